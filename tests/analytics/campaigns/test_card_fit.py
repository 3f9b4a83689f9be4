"""A card from a sweep of caps: true constants come back, left-out caps are predicted, and what is no card is said."""

import csv
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from command import joules, refused
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.campaign_views.pictures import draw_card
from powerd_analytics.campaigns.card_fit import Scatter, SweepPoint, fit_card, fit_notes, sweep_of
from powerd_analytics.frame.figures import frame_from, worked_out
from powerd_core.card_file import KnownCard, card_named, card_of, card_text
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.gpu_physics import CARDS, NETWORKS, RTX_6000, V100, operate

CAPS = (100, 130, 160, 200, 260)


def points(network, noise=0.0, rng=None, caps=CAPS, runs=1):
    found = []
    for cap in caps:
        at = operate(RTX_6000, NETWORKS[network], float(cap))
        off = np.exp(noise * rng.standard_normal(2)) if rng is not None else (1.0, 1.0)
        found.append(SweepPoint(float(cap), at.time_s * off[0], at.power_w * off[1], runs))
    return tuple(found)


def total(cap_w, energy_j=10.0, time_s=1.0, **more):
    return {"kind": "total", "power_cap_w": cap_w, "energy_j": energy_j, "time_s": time_s, **more}


def frame(rows):
    return worked_out(frame_from(rows))


# -- the fit -----------------------------------------------------------------------------------------------------------


def test_exact_points_give_the_card_back():
    fit = fit_card({name: points(name) for name in ("vgg19", "alexnet")}, V100)
    assert fit.is_obeyed
    assert max(fit.power.rms, fit.time.rms) < 1e-4
    assert fit.card.floor_w == pytest.approx(RTX_6000.floor_w, rel=0.02)
    assert fit.card.knee == pytest.approx(RTX_6000.knee, abs=0.02)
    at, true = operate(fit.card, fit.networks["vgg19"], 145.0), operate(RTX_6000, NETWORKS["vgg19"], 145.0)
    assert (at.time_s, at.power_w) == pytest.approx((true.time_s, true.power_w), rel=0.003)


def test_with_the_card_known_three_caps_of_a_new_training_give_its_curve():
    fit = fit_card({"resnet50": points("resnet50", caps=(100, 160, 260))}, RTX_6000, keeps_card=True)
    for cap in (120.0, 140.0, 200.0):
        at, true = operate(fit.card, fit.networks["resnet50"], cap), operate(RTX_6000, NETWORKS["resnet50"], cap)
        assert (at.time_s, at.power_w) == pytest.approx((true.time_s, true.power_w), rel=0.005)


def jumpy(by):
    """Watts that go up and down from cap to cap, which no card of the form does."""
    return tuple(p._replace(power_w=p.power_w * (1 + by * (-1) ** i)) for i, p in enumerate(points("vgg19", runs=4)))


def test_a_card_that_does_not_obey_the_form_is_told_from_noise_by_repeats():
    alone = fit_card({"vgg19": jumpy(0.06)}, RTX_6000)
    assert not alone.is_obeyed
    assert "or its runs have that noise" in fit_notes(alone)[-1]
    quiet = fit_card({"vgg19": jumpy(0.06)}, RTX_6000, scatter=Scatter(0.01, 0.01, 15))
    assert not quiet.is_obeyed
    assert "does not obey the form" in fit_notes(quiet)[-1]
    assert "noise" not in fit_notes(quiet)[-1]
    loud = fit_card({"vgg19": jumpy(0.06)}, RTX_6000, scatter=Scatter(0.12, 0.01, 15))
    assert loud.is_obeyed
    assert "no more than repeats scatter the points by: 6 and 0.5 %" in fit_notes(loud)[-1]


def test_residuals_of_power_and_time_stand_apart():
    fit = fit_card({"vgg19": jumpy(0.02)}, RTX_6000)
    assert fit.power.rms > 5 * fit.time.rms
    assert [note.partition(":")[0] for note in fit_notes(fit)[:2]] == ["residuals of power", "residuals of time"]


def test_where_there_are_as_many_constants_as_figures_residuals_tell_nothing():
    fit = fit_card({"vgg19": points("vgg19", caps=(100, 160, 260))}, RTX_6000)
    assert fit_notes(fit)[-1].endswith("residuals tell nothing")
    assert not any(constant.is_told for constant in fit.constants)


def test_what_few_points_do_not_tell_has_no_narrow_interval():
    fit = fit_card({"vgg19": points("vgg19", 0.01, np.random.default_rng(1), (100, 180, 260))}, RTX_6000)
    assert not all(constant.is_told for constant in fit.constants)


# -- the points --------------------------------------------------------------------------------------------------------


def test_rows_without_enough_caps_are_refused():
    rows = [total(cap, model="m") for cap in (100, 100, 200)]
    with pytest.raises(AnalysisError, match="3 power caps"):
        sweep_of(frame(rows), "here")
    sweep = sweep_of(frame([*rows, total(150, 9.0, model="m")]), "here")
    assert [(p.cap_w, p.runs) for p in sweep.points["m"]] == [(100, 2), (150, 1), (200, 1)]


@pytest.mark.parametrize(
    ("factor", "levels", "names"),
    [
        ("batch_size", (64, 128), ["m, batch 64", "m, batch 128"]),
        ("device", ("gpu0", "gpu1"), ["m, gpu0", "m, gpu1"]),
        ("attribute_precision", ("bf16", "fp32"), ["m, precision bf16", "m, precision fp32"]),
        ("program", ("a.py", "b.py"), ["m, a.py", "m, b.py"]),
        ("model", ("a", "b"), ["a", "b"]),
    ],
)
def test_what_parts_cells_parts_trainings_and_their_names_say_it(factor, levels, names):
    rows = [total(c, 10.0 * (1 + i), **({"model": "m"} | {factor: level}))
            for i, level in enumerate(levels) for c in (100, 150, 200)]  # fmt: skip
    sweep = sweep_of(frame(rows), "here")
    assert list(sweep.points) == names
    assert [[p.power_w for p in own] for own in sweep.points.values()] == [[10.0] * 3, [20.0] * 3]


@pytest.mark.parametrize("name", ["attribute_seed", "cell", "run"])
def test_what_tells_repeats_apart_parts_no_trainings(name):
    rows = [total(c, **{name: f"{c} {i}"}) for c in (100, 150, 200) for i in range(2)]
    assert [p.runs for p in sweep_of(frame(rows), "here").points["training"]] == [2, 2, 2]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"clock_hz": 1.2e9}, "a clock was set"),
        ({"memory_clock_hz": 5e9}, "a clock was set"),
        ({"power_cap_in_run": "150 W"}, "the cap changed in the run"),
        ({"power_cap_w": None}, "no power cap"),
        ({"energy_j": None}, "no joules"),
        ({"is_lower_bound": True}, "lower bound"),
        ({"device": "gpu0+gpu1", "gpus": 2}, "several GPUs"),
        ({"device": "2 GPUs", "gpus": 2}, "several GPUs"),
        ({"gpus": 4}, "several GPUs"),
        ({"is_held": True, "verdict": "overridden", "run": "x", "path": "x"}, "not honoured"),
    ],
)
def test_what_does_not_count_is_left_out_and_said(more, reason):
    rows = [total(c) for c in (100, 150, 200)]
    sweep = sweep_of(frame([*rows, total(150, 99.0) | more]), "here")
    assert [p.power_w for p in sweep.points["training"]] == [10.0] * 3
    assert len(sweep.left_out) == 1
    assert reason in sweep.left_out[0]


def test_a_training_with_two_caps_is_left_out_and_named():
    rows = [total(c, model=m) for m, caps in (("a", (100, 150, 200)), ("b", (100, 150))) for c in caps]
    sweep = sweep_of(frame(rows), "here")
    assert list(sweep.points) == ["a"]
    assert sweep.left_out == ("left out: b, which has 2 of the 3 power caps that a fit needs",)


def test_runs_of_two_products_are_no_card():
    rows = [total(c, device_name=name) for name in ("V100", "A40") for c in (100, 150, 200)]
    with pytest.raises(AnalysisError, match="runs of V100 and A40"):
        sweep_of(frame(rows), "here")


def test_runs_of_different_lengths_are_compared_by_the_batch():
    rows = [total(c, 10.0 * n, 2.0 * n, iterations=n, s_per_batch=2.0) for c, n in ((100, 5), (150, 9), (200, 7))]
    assert [p.time_s for p in sweep_of(frame(rows), "here").points["training"]] == [2.0] * 3


def test_the_scatter_is_that_of_repeats_around_their_own_cap():
    rng, rows = np.random.default_rng(1), []
    for cap in range(100, 300, 10):
        for _ in range(20):
            p, t = np.exp([0.02, 0.01] * rng.standard_normal(2))
            rows.append(total(float(cap), cap * p * t, t))
    sweep = sweep_of(frame(rows), "here")
    assert sweep.scatter == pytest.approx((0.02, 0.01, 380), rel=0.1)
    assert sweep_of(frame(rows[::20]), "here").scatter is None


def test_the_default_limit_is_the_drivers_where_the_sweep_has_it():
    rows = [total(c, default_power_limit_w=180.0) for c in (100, 150, 200)]
    assert sweep_of(frame(rows), "here").limits_w == (100, 180, 200)
    assert sweep_of(frame([total(c) for c in (100, 150, 200)]), "here").limits_w == (100, 200, 200)
    far = [total(c, default_power_limit_w=300.0) for c in (100, 150, 200)]
    assert sweep_of(frame(far), "here").limits_w == (100, 200, 200)


# -- the file ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4, unique=True))
def test_a_card_of_any_names_is_written_and_read_again(names):
    networks = {name: replace(NETWORKS["vgg19"], time_s=float(i + 1)) for i, name in enumerate(names)}
    card = replace(V100, name=names[0], floor_w=51.25, limits_w=(100.0, 240.0, 250.0))
    assert card_of(card_text(KnownCard(card, "v100", networks), names[0]), "here") == KnownCard(card, "v100", networks)


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
    path.write_text(card_text(KnownCard(RTX_6000, "rtx6000", {"vgg19": NETWORKS["vgg19"]})).replace(*change))
    with pytest.raises(ConfigError, match=message) as raised:
        card_named(str(path), lambda name: path.read_text())
    assert "\n" not in str(raised.value)


# -- the command -------------------------------------------------------------------------------------------------------


def write_sweep(path, rows=None):
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("model", "power_cap_w", "energy_j", "time_s"))
        out.writerows(rows or [("vgg19", p.cap_w, p.power_w * p.time_s, p.time_s) for p in points("vgg19")])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_fits_a_sweep_and_its_card_is_simulated(here, capsys):
    sweep = ("--on", "sim:rtx6000", "--network", "vgg19", "--step", 40, "--repeats", 2, "--into", "caps")
    assert joules(capsys, "campaign", "caps", *sweep)[0] == 0
    code, out, _ = joules(capsys, "campaign", "fit", "caps", "-o", "card.toml")
    assert code == 0
    for said in ("residuals of power", "residuals of time", "repeats scatter", "joules are simulated"):
        assert said in out
    assert max(map(len, out.splitlines())) <= 80
    assert (here / "card.toml").read_text().startswith("# fitted to simulated power")
    again = ("--on", "sim:card.toml", "--network", "training", "--step", 40, "--repeats", 1, "--into", "again")
    assert joules(capsys, "campaign", "caps", *again)[0] == 0
    assert "there is no card" in joules(capsys, "campaign", "fit", "caps", "--like", "gtx")[2]


def test_a_campaign_of_two_batch_sizes_gives_two_trainings_and_no_clock_that_was_set(here, capsys):
    (here / "c.toml").write_text(
        '[campaign]\nname = "c"\ncommand = ["x", "{model}", "{batch_size}"]\n[factors]\nmodel = ["resnet50"]\n'
        "batch_size = [32, 64]\npower_cap_w = [100, 140, 200, 260]\n[repeats]\nmin = 2\n[simulation]\n"
        "iterations = 20\nbatch_size = 64\n"
    )
    assert joules(capsys, "campaign", "run", "c.toml", "--on", "sim:rtx6000")[0] == 0
    assert joules(capsys, "campaign", "fit", "c", "-o", "card.toml")[0] == 0
    networks = tomllib.loads((here / "card.toml").read_text())["network"]
    assert list(networks) == ["resnet50, batch 32", "resnet50, batch 64"]
    assert networks["resnet50, batch 64"]["time_s"] == pytest.approx(6.0, rel=0.1)
    assert networks["resnet50, batch 32"]["time_s"] < 4.0
    clocks = (here / "c.toml").read_text().replace("batch_size = [32, 64]", "batch_size = 64\nsm_clock_mhz = [900]")
    (here / "d.toml").write_text(clocks)
    assert joules(capsys, "campaign", "run", "d.toml", "--on", "sim:rtx6000")[0] == 0
    assert "a clock was set" in refused(capsys, "campaign", "fit", "d")


def test_a_published_table_gives_points(here, capsys):
    (here / "t.csv").write_text(
        "model,batch,power_limit_w,energy_wh,time_min\n"
        + "".join(f"vgg19,{b},{c},{b * (c + 40) / 100},{b * (1 + 60 / c)}\n" for b in (1, 2) for c in CAPS)
    )
    code, out, _ = joules(capsys, "campaign", "fit", "t.csv", "-o", "card.toml")
    assert code == 0
    assert "vgg19, batch 2" in out
    assert "each cap was run once: noise cannot be told" in out
    known = card_of((here / "card.toml").read_text(), "card.toml")
    assert known.card.limits_w == (100, 260, 260)
    assert known.networks["vgg19, batch 1"].time_s == pytest.approx(60 * (1 + 60 / 260), rel=0.2)
    code, out, _ = joules(capsys, "campaign", "fit", "t.csv", "--where", "batch=2")
    assert "5 points of 1 training" in out


def test_an_index_of_run_files_gives_points(here, capsys):
    pytest.importorskip("pyarrow")
    from make_campaign import one_run

    (here / "runs").mkdir()
    for i, cap in enumerate((100, 150, 200, 260)):
        one_run(here / "runs" / f"{i}.h5", iterations=3, scale=cap / 260, power_cap_w=float(cap))
    assert joules(capsys, "query", "runs", "--jobs", 1, "--index", "all.parquet")[0] == 0
    of_index = joules(capsys, "campaign", "fit", "all.parquet")
    of_files = joules(capsys, "campaign", "fit", "runs")
    assert of_index[0] == of_files[0] == 0
    assert of_index[1] == of_files[1]
    assert "4 points of 1 training" in of_index[1]


def test_a_card_like_that_of_a_file_keeps_what_its_file_says_of_another_card(here, capsys):
    write_sweep("sweep.csv")
    assert joules(capsys, "campaign", "fit", "sweep.csv", "--like", "v100", "-o", "any.toml")[0] == 0
    assert joules(capsys, "campaign", "fit", "sweep.csv", "--like", "any.toml", "-o", "second.toml")[0] == 0
    known = card_named("second.toml", lambda name: (here / name).read_text())
    assert known.like == "v100"
    assert (known.card.core_mhz, known.card.memory_mhz) == (V100.core_mhz, V100.memory_mhz)
    assert known.card.name == f"{V100.name} (fitted)"


def test_names_that_differ_by_a_quote_stay_apart(here, capsys):
    write_sweep("sweep.csv", [(name, c, c * 10, 10 + 500 / c) for name in ('a"', "a\\", "a") for c in CAPS])
    assert joules(capsys, "campaign", "fit", "sweep.csv", "-o", "card.toml")[0] == 0
    assert set(tomllib.loads((here / "card.toml").read_text())["network"]) == {'a"', "a\\", "a"}


def test_a_card_beside_the_campaigns_file_is_simulated_from_anywhere(here, capsys, monkeypatch):
    (here / "far").mkdir()
    card = replace(V100, limits_w=(100.0, 200.0, 200.0))
    (here / "far" / "card.toml").write_text(card_text(KnownCard(card, "v100", {"mine": NETWORKS["vgg19"]})))
    text = (
        '[campaign]\nname = "c"\ncommand = ["x"]\n[factors]\npower_cap_w = [100, "max"]\n[repeats]\nmin = 1\n'
        '[simulation]\ncard = "card.toml"\nnetwork = "mine"\niterations = 5\n'
    )
    (here / "far" / "c.toml").write_text(text)
    code, out, err = joules(capsys, "campaign", "run", "far/c.toml", "--on", "sim")
    assert (code, "200 W" in err + out) == (0, True)
    (here / "d.toml").write_text(text.replace('"card.toml"', '"v100"').replace('"mine"', '"vgg19"'))
    assert joules(capsys, "campaign", "plan", "d.toml", "--on", "sim")[0] == 0
    (here / "e.toml").write_text(text.replace('card = "card.toml"\n', ""))
    assert "names a card" in refused(capsys, "campaign", "run", "e.toml", "--on", "sim")
    (here / "f.toml").write_text(text.replace("card.toml", "gtx"))
    assert "there is no 'gtx'" in refused(capsys, "campaign", "plan", "f.toml")
    monkeypatch.chdir(here / "far")
    assert joules(capsys, "campaign", "run", "c.toml", "--on", "sim:card.toml", "--into", "x")[0] == 0


def test_a_card_is_where_an_adaptive_sweep_begins(here, capsys):
    (here / "card.toml").write_text(card_text(KnownCard(RTX_6000, "rtx6000")))
    sweep = ("--on", "sim:rtx6000", "--network", "vgg19", "--step", 20)
    code, out, _ = joules(capsys, "campaign", "caps", *sweep, "--adaptive", "--like", "card.toml")
    assert code == 0
    assert "the edp is within" in out
    assert "--adaptive" in refused(capsys, "campaign", "caps", *sweep, "--like", "card.toml", "--into", "x")
    assert "there is no card" in refused(capsys, "campaign", "caps", *sweep, "--adaptive", "--like", "gtx")


def test_a_constant_at_its_bound_that_is_not_told_is_printed(here, capsys):
    network, printed = replace(NETWORKS["vgg19"], waiting=0.0), []
    for seed in range(8):
        rng, lines = np.random.default_rng(seed), ["model,power_cap_w,energy_j,time_s"]
        for cap in CAPS:
            at = operate(RTX_6000, network, float(cap))
            e, t = np.exp(0.01 * rng.standard_normal(2))
            lines.append(f"vgg19,{cap},{at.energy_j * e},{at.time_s * t}")
        (here / "sweep.csv").write_text("\n".join(lines))
        code, out, err = joules(capsys, "campaign", "fit", "sweep.csv")
        assert code == 0, err
        printed.append(out)
    assert any("e-" in out and "not told" in out for out in printed), "a share of nearly nothing has an exponent"


@pytest.mark.parametrize("kind", ["measured", "simulated"])
def test_the_picture_has_points_and_curve_of_each_training(kind):
    networks = {name: NETWORKS[name] for name in ("vgg19", "alexnet")}
    fit = fit_card({name: points(name) for name in networks}, RTX_6000, keeps_card=True)
    figure = draw_card(fit, [kind])
    watts, seconds = figure.axes
    for ax in (watts, seconds):
        curves, marks = ax.lines[::2], ax.lines[1::2]
        assert len({line.get_color() for line in curves}) == len(curves) == len(marks) == 2
        assert [len(line.get_xdata()) for line in marks] == [len(CAPS)] * 2
        assert (marks[0].get_markerfacecolor() == "white") == (kind != "measured")
    assert list(watts.lines[1].get_ydata()) == [p.power_w for p in points("vgg19")]
    assert list(seconds.lines[3].get_ydata()) == [p.time_s for p in points("alexnet")]
    assert f"{kind} power" in figure._supxlabel.get_text()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(networks)


def test_every_card_of_the_simulator_is_known_by_its_name():
    assert {name: card_named(name, str).card for name in CARDS} == CARDS
