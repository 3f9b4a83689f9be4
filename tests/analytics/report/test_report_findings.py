"""What the page says first: differences as `joules compare` finds them, and figures that show the table's numbers."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from command import joules
from make_campaign import one_run
from make_run import LineSpec, make_run, training
from page import report

pytest.importorskip("jinja2")


def finding(page, what="energy"):
    """The sentence on joules a sample: per cent, interval, p and what stood for repeats."""
    text = " ".join(page.texts)
    found = re.search(
        rf"Least {what} a sample: (.*?), ([\d.e-]+) ± [\d.e-]+ J(?: s)?, (.*?); "
        r"next is (.*?), ([-\d.]+) ± ([\d.]+) % more "
        r"\(p (=|<) ([\d.]+), Welch's t, (.*?)\)",
        text,
    )
    assert found, text[:2000]
    best, _, sure, other, percent, u95, _, p, repeats = found.groups()
    return best, sure, other, float(percent), float(u95), float(p), repeats


def compared(capsys, a, b, phase):
    """The row of `joules compare` on joules a batch."""
    code, out, _ = joules(capsys, "compare", a, b, "--format", "csv")
    assert code == 0
    rows = csv.DictReader(io.StringIO(out))
    return next(r for r in rows if r["phase"] == phase and r["figure"] == "J/batch")


@pytest.mark.parametrize(("runs", "phase"), [(3, "all"), (1, "iteration")])
@pytest.mark.parametrize(("scale", "is_sure"), [(0.9, True), (0.999, False)])
def test_the_difference_is_the_one_that_compare_finds(tmp_path, capsys, runs, phase, scale, is_sure):
    for name, factor, first in (("old", 1.0, 0), ("new", scale, 50)):
        (tmp_path / name).mkdir()
        for i in range(runs):
            path = tmp_path / name / f"{name}{i}.h5"
            one_run(path, factor, noise_w=5.0, iterations=20, seed=first + i, device_name=name)
    _, page = report([tmp_path / "old", tmp_path / "new"], tmp_path / "page.html")
    best, sure, other, percent, u95, p, repeats = finding(page)
    row = compared(capsys, tmp_path / best.split(", ")[-1], tmp_path / other.split(", ")[-1], phase)
    assert best.split(", ")[-1] != other.split(", ")[-1]
    assert percent == pytest.approx(float(row["change_percent"]), rel=0.01)
    assert u95 == pytest.approx(100 * float(row["u95_change"]) / float(row["a"]), rel=0.06)
    # The page makes one comparison, the table one for each of its rows, and corrects for them.
    assert p == pytest.approx(float(row["p"]), rel=0.05, abs=1e-4)
    assert (sure == "distinguishable from all others") == (row["verdict"] == "B more") == is_sure
    assert repeats.startswith(row["repeats"])


def test_configurations_of_one_run_are_compared_by_the_sample(tmp_path):
    path = one_run(tmp_path / "run.h5", batches=(64, 128), iterations=40, noise_w=4.0)
    _, page = report([path], tmp_path / "page.html")
    product = finding(page, "energy-delay product")
    assert product[:3] == ("AlexNet, batch 128", "distinguishable from all others", "AlexNet, batch 64")
    best, sure, other, percent, u95, p, repeats = finding(page)
    assert product[3] > percent
    assert (best, other) == ("AlexNet, batch 128", "AlexNet, batch 64")
    assert sure == "distinguishable from all others"
    per_sample = dict(zip((c[0] for c in page.column("totals", "batch")), _per_sample(page), strict=True))
    assert percent == pytest.approx(100 * (per_sample["64"] / per_sample["128"] - 1), abs=u95)
    assert p <= 1e-4
    assert repeats == "blocks of iterations of one run, phase iteration"


def _per_sample(page):
    columns = (page.column("totals", head) for head in ("J", "n", "batch"))
    return [float(j[1]) / float(n[1]) / float(b[1]) for j, n, b in zip(*columns, strict=True)]


def test_bars_show_the_numbers_of_the_table(tmp_path):
    path = one_run(tmp_path / "run.h5", batches=(64, 128), iterations=10, noise_w=4.0)
    text, page = report([path], tmp_path / "page.html")
    rows = zip(*(page.column("energy", h) for h in ("phase", "J/batch", "± U95 J")), strict=True)
    table = [(phase[0], joules[0], u95[0], float(joules[1])) for phase, joules, u95 in rows if joules[1] is not None]
    svg = re.search(r'<svg role="img" aria-label="Bars.*?</svg>', text, re.S).group(0)
    bars = re.findall(r'<title>(\S+): ([\d.]+) J ± ([\d.]+) J</title><rect class="c\d" .*?height="([\d.]+)"', svg)
    shown = [row[:3] for row in table if row[0] in {bar[0] for bar in bars}]
    assert sorted(bar[:3] for bar in bars) == sorted(shown)
    assert len(bars) >= 4
    high = max(row[3] for row in table if row[0] in {bar[0] for bar in bars})
    per_joule = max(float(bar[3]) for bar in bars) / high
    for *name, height in bars:
        joules_of = next(row[3] for row in table if list(row[:3]) == name)
        assert float(height) == pytest.approx(max(joules_of * per_joule, 0.5), abs=0.2)


@pytest.mark.parametrize("watts", [0.0, -5.0])
def test_a_device_that_took_nothing_has_a_page(tmp_path, watts):
    tr = training((64,), 12)
    path = make_run(
        tmp_path / "r.h5", [LineSpec("gpu0.a", lambda t: np.full(len(t), watts))], tr.phases, end_ns=tr.end_ns
    )
    text, page = report([path], tmp_path / "page.html")
    assert page.tables
    assert "takes most of the joules" not in text


def test_gpus_that_are_added_up_are_told_apart_by_their_runs(tmp_path):
    for name, factor in (("old", 1.0), ("new", 0.8)):
        for i in range(3):
            seed = i if name == "old" else 50 + i
            one_run(tmp_path / f"{name}{i}.h5", factor, noise_w=5.0, gpus=2, iterations=12, seed=seed, device_name=name)
    _, page = report(sorted(tmp_path.glob("*.h5")), tmp_path / "page.html")
    best, sure, other, percent, u95, p, repeats = finding(page)
    assert (best, sure) == ("AlexNet, batch 64, new", "distinguishable from all others")
    assert other == "AlexNet, batch 64, old"
    assert percent - 2 * u95 < 25 < percent + 2 * u95
    assert p < 0.01
    assert repeats == "runs"
    # The bars are those of the sum: single GPUs are no configurations of their own.
    assert [a["aria-label"].count("forward") for t, a in page.tags if t == "svg"] == [2]


def test_what_has_no_repeats_is_not_said_to_be_equal(tmp_path):
    paths = [
        make_run(tmp_path / f"{name}.h5", [LineSpec("gpu0.a", lambda t, w=watts: 0.0 * t + w)],
                 [replace(p, attributes={"device_name": name, **p.attributes}) for p in training((64,), 1).phases],
                 run_id=name)
        for name, watts in (("small", 50), ("large", 90))
    ]  # fmt: skip
    _, page = report(paths, tmp_path / "page.html")
    said = next(t for t in page.texts if "Least energy a sample" in t)
    assert "without repeats that would tell it from m, batch 64, large" in said.replace("AlexNet", "m")
    assert "not distinguishable" not in said
    assert "80 % more" in said
