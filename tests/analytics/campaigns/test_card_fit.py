"""A card from a sweep of caps: true constants come back, left-out caps are predicted, and what is no card is said."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from command import joules

from powerd_analytics.campaigns.card_fit import SweepPoint, fit_card, points_of
from powerd_core.card_file import card_named, card_of, card_text
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.gpu_physics import NETWORKS, RTX_6000, V100, operate

CAPS = (100, 130, 160, 200, 260)


def points(network, noise=0.0, rng=None, caps=CAPS):
    found = []
    for cap in caps:
        at = operate(RTX_6000, NETWORKS[network], float(cap))
        off = np.exp(noise * rng.standard_normal(2)) if rng is not None else (1.0, 1.0)
        found.append(SweepPoint(float(cap), at.time_s * off[0], at.power_w * off[1]))
    return tuple(found)


def test_exact_points_give_the_card_back():
    fit = fit_card({name: points(name) for name in ("vgg19", "alexnet")}, V100)
    assert fit.is_obeyed
    assert fit.rms < 1e-4
    assert fit.card.floor_w == pytest.approx(RTX_6000.floor_w, rel=0.02)
    assert fit.card.knee == pytest.approx(RTX_6000.knee, abs=0.02)
    at, true = operate(fit.card, fit.networks["vgg19"], 145.0), operate(RTX_6000, NETWORKS["vgg19"], 145.0)
    assert (at.time_s, at.power_w) == pytest.approx((true.time_s, true.power_w), rel=0.003)


def test_with_the_card_known_three_caps_of_a_new_training_give_its_curve():
    fit = fit_card({"resnet50": points("resnet50", caps=(100, 160, 260))}, RTX_6000, keeps_card=True)
    for cap in (120.0, 140.0, 200.0):
        at, true = operate(fit.card, fit.networks["resnet50"], cap), operate(RTX_6000, NETWORKS["resnet50"], cap)
        assert (at.time_s, at.power_w) == pytest.approx((true.time_s, true.power_w), rel=0.005)


def test_a_card_that_does_not_obey_the_form_is_told():
    jumpy = tuple(p._replace(power_w=p.power_w * (1.06 if i % 2 else 0.94)) for i, p in enumerate(points("vgg19")))
    assert not fit_card({"vgg19": jumpy}, RTX_6000).is_obeyed


def test_what_few_points_do_not_tell_has_no_narrow_interval():
    fit = fit_card({"vgg19": points("vgg19", 0.01, np.random.default_rng(1), (100, 180, 260))}, RTX_6000)
    assert not all(constant.is_told for constant in fit.constants)


def test_rows_without_enough_caps_are_refused():
    rows = [{"model": "m", "power_cap_w": cap, "energy_j": 10.0, "time_s": 1.0} for cap in (100, 100, 200)]
    with pytest.raises(AnalysisError, match="3 power caps"):
        points_of(rows, "here")
    assert len(points_of([*rows, {"model": "m", "power_cap_w": 150, "energy_j": 9.0, "time_s": 1.0}], "here")["m"]) == 3


def test_a_card_is_written_and_read_again(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(card_text(RTX_6000, {'a "b"': NETWORKS["vgg19"]}, "rtx6000"))
    card, networks = card_of(path.read_text(), "card.toml")
    assert (card.floor_w, card.knee, card.limits_w) == (67.5, 0.448, (100.0, 260.0, 260.0))
    assert networks == {"a b": NETWORKS["vgg19"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("version = 1", "version = 2"), "this release knows 1"),
        (("floor_w = 67.5", "floor_w = -1"), "watts from 0 up"),
        (("knee = 0.448", "knee = nan"), "knee|number"),
        (('like = "rtx6000"', 'like = "gtx"'), "there is no 'gtx'"),
        (("waiting = 0.09", "waiting = 2"), "shares from 0 to 1"),
        (("[card]", "[card"), "no TOML"),
        (("voltage", "volts"), "unknown option 'volts'"),
    ],
)
def test_a_damaged_card_is_one_line(tmp_path, change, message):
    path = tmp_path / "card.toml"
    path.write_text(card_text(RTX_6000, {"vgg19": NETWORKS["vgg19"]}, "rtx6000").replace(*change))
    with pytest.raises(ConfigError, match=message) as raised:
        card_named(str(path), lambda name: path.read_text())
    assert "\n" not in str(raised.value)


def test_the_command_fits_a_sweep_and_its_card_is_simulated(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep = ("--on", "sim:rtx6000", "--network", "vgg19", "--step", 40, "--repeats", 2, "--into", "caps")
    assert joules(capsys, "campaign", "caps", *sweep)[0] == 0
    code, out, _ = joules(capsys, "campaign", "fit", "caps", "-o", "card.toml")
    assert code == 0
    assert "residuals of power and time" in out
    assert max(map(len, out.splitlines())) <= 80
    again = ("--on", "sim:card.toml", "--network", "training", "--step", 40, "--repeats", 1, "--into", "again")
    assert joules(capsys, "campaign", "caps", *again)[0] == 0
    assert "there is no card" in joules(capsys, "campaign", "fit", "caps", "--like", "gtx")[2]
    with open("published.csv", "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("model", "power_cap_w", "energy_j", "time_s"))
        out.writerows(("vgg19", p.cap_w, p.power_w * p.time_s, p.time_s) for p in points("vgg19"))
    assert joules(capsys, "campaign", "fit", "published.csv")[0] == 0


def test_a_constant_at_its_bound_that_is_not_told_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, printed = replace(NETWORKS["vgg19"], waiting=0.0), []
    for seed in range(8):
        rng, lines = np.random.default_rng(seed), ["model,power_cap_w,energy_j,time_s"]
        for cap in CAPS:
            at = operate(RTX_6000, network, float(cap))
            e, t = np.exp(0.01 * rng.standard_normal(2))
            lines.append(f"vgg19,{cap},{at.energy_j * e},{at.time_s * t}")
        (tmp_path / "sweep.csv").write_text("\n".join(lines))
        code, out, err = joules(capsys, "campaign", "fit", "sweep.csv")
        assert code == 0, err
        printed.append(out)
    assert any("e-" in out and "not told" in out for out in printed), "a share of nearly nothing has an exponent"
