"""What the page says first and draws: differences as `joules compare` finds them, parts of a machine, unknowns."""

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from command import joules
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training
from page import report

from powerd_analytics.costs import Factors
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.records import COLUMNS
from powerd_analytics.report.page import MOST_BARS, phase_bars
from powerd_analytics.report.traces import Columns, trace_of
from powerd_analytics.runs.run import read_run


def finding(page):
    """The sentence on joules a sample: per cent, interval, p and what stood for repeats."""
    text = " ".join(page.texts)
    found = re.search(
        r"Least energy a sample: (.*?), ([\d.e-]+) ± [\d.e-]+ J, (.*?); "
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
    best, sure, other, percent, u95, p, repeats = finding(page)
    assert "Least energy-delay product a sample: AlexNet, batch 128, " in " ".join(page.texts)
    assert (best, other) == ("AlexNet, batch 128", "AlexNet, batch 64")
    assert sure == "distinguishable from all others"
    per_sample = dict(zip((c[0] for c in page.column("totals", "batch")), _per_sample(page), strict=True))
    assert percent == pytest.approx(100 * (per_sample["64"] / per_sample["128"] - 1), abs=u95)
    assert p <= 1e-4
    assert repeats.endswith("iterations of one run, phase iteration")


def _per_sample(page):
    columns = (page.column("totals", head) for head in ("J", "n", "batch"))
    return [float(j[1]) / float(n[1]) / float(b[1]) for j, n, b in zip(*columns, strict=True)]


def test_bars_show_the_numbers_of_the_table(tmp_path):
    path = one_run(tmp_path / "run.h5", batches=(64, 128), iterations=10, noise_w=4.0)
    text, page = report([path], tmp_path / "page.html")
    rows = zip(*(page.column("energy", h) for h in ("phase", "J/batch", "± U95 J")), strict=True)
    table = [(phase[0], joules[0], u95[0], float(joules[1])) for phase, joules, u95 in rows if joules[1] is not None]
    svg = re.search(r'<svg role="img" aria-label="Bars.*?</svg>', text, re.S).group(0)
    bars = re.findall(r'<title>(\S+): ([\d.]+) ± ([\d.]+) J</title><rect class="c\d" .*?height="([\d.]+)"', svg)
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


def lines_of(page):
    return [t.strip() for t in page.texts if "least energy a sample" in t.lower()]


def test_a_processor_is_never_the_best_configuration_of_its_gpu(tmp_path):
    tr = training((64, 128), 8, model="m")
    lines = [LineSpec("gpu0.a", tr.power(1.0), provenance="measured"),
             LineSpec("cpu0.a", tr.power(0.1), "cpu0", "measured")]  # fmt: skip
    _, page = report([make_run(tmp_path / "r.h5", lines, tr.phases, end_ns=tr.end_ns)], tmp_path / "r.html")
    found = lines_of(page)
    assert [line.split(":")[0] for line in found] == ["gpu", "cpu"]  # more joules first
    assert all("2 configurations" in line and "cpu0" not in line and "gpu0" not in line for line in found)


def test_a_warm_up_has_no_price_of_a_training(tmp_path):
    tr = training((64,), 6, model="m")
    begin = tr.phases[0].begin_ns
    phases = [*tr.phases, PhaseSpec("warm-up", begin - 60 * MS, begin - 10 * MS)]
    path = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", tr.power(1.0))], phases, end_ns=tr.end_ns)
    _, page = report([path], tmp_path / "r.html", factors=Factors(380.0, None, None, None, None))
    said = next(t for t in page.texts if "What was recorded of training" in t)
    assert said.count("g CO2e") == 1


def test_figures_are_of_one_model_and_share_a_scale():
    def record(model, device, joules, phase="forward"):
        values = {"kind": "phase", "run": "r", "path": "r.h5", "model": model, "batch_size": 8, "device": device,
                  "provenance": "measured", "attributes": "{}", "phase": phase, "phase_path": phase,
                  "j_per_batch": joules, "is_lower_bound": False}  # fmt: skip
        return {**dict.fromkeys(COLUMNS), **values}

    made = phase_bars([record("a", "gpu0", 1.0), {**record("a", "gpu0+gpu1", 9.0), "path": "s.h5"},
                       record("b", "gpu0", 2.0)], {"forward": 0})  # fmt: skip
    assert [caption.split(" on ")[0] for _, caption in made] == [f"Joules a batch of {m}" for m in "aba"]
    tops = [max(float(t) for t in re.findall(r'text-anchor="end">([\d.]+)<', svg)) for svg, _ in made]
    assert tops[0] == tops[2] >= 9
    assert tops[1] < 9
    many = [record("a", "gpu0", 1.0, f"p{i}") for i in range(MOST_BARS + 1)]
    (none,) = phase_bars(many, {})
    assert none[0] == ""
    assert "too many" in none[1]
    # Two that no name tells apart are two bars.
    (both,) = phase_bars([record("a", "gpu0", 1.0), {**record("a", "gpu0", 2.0), "run": "other"}], {})
    assert both[0].count("<rect") >= 2
    assert "other" in both[0]


@pytest.mark.parametrize("lines", [1, 3])
def test_gaps_that_overlap_are_one(tmp_path, lines):
    t = np.arange(0, 4 * S, 2 * MS, dtype=np.int64)
    kept = [t[(t < S + i * 10 * MS) | (t > 2 * S + i * 10 * MS)] for i in range(lines)]
    kept = [k[(k < 3 * S) | (k > 3 * S + 100 * MS)] for k in kept]
    specs = [LineSpec(f"gpu0.{i}", lambda at: np.full(len(at), 50.0), t_ns=k) for i, k in enumerate(kept)]
    run = read_run(make_run(tmp_path / "r.h5", specs, end_ns=4 * S))
    (part,) = load_parts(run)
    first, second = map(tuple, trace_of(run, part, [], 10_000, Columns())["gaps"])
    assert first == (998_000, 2_002_000 + (lines - 1) * 10_000)
    assert second == (2_998_000, 3_102_000)


def test_where_nothing_is_resolvable_this_is_said_first(tmp_path):
    specs = [PhaseSpec("training", 0, S, {"model": "m", "batch_size": 8})]
    specs += [PhaseSpec("forward", k * 100 * MS, k * 100 * MS + 1000, {}, 0) for k in range(1, 9)]
    line = LineSpec("gpu0.a", lambda at: np.full(len(at), 50.0))
    _, page = report([make_run(tmp_path / "r.h5", [line], specs, end_ns=S)], tmp_path / "r.html")
    said = [t.strip() for t in page.texts]
    assert "No innermost phase has an energy that the sensors could resolve." in said
    assert not any(t.startswith("forward takes most") for t in said)


def test_nothing_takes_most_where_too_much_is_not_resolvable(tmp_path):
    """Of forward and backward one is too short for the sensor: that the other takes most is not known."""
    specs, t = [], 0
    for batch, short in ((8, 50), (16, 1)):
        specs.append(PhaseSpec("training", t, t + 20 * 100 * MS, {"model": "m", "batch_size": batch}))
        outer = len(specs) - 1
        for k in range(20):
            at = t + k * 100 * MS
            parts = ("forward", at, at + 45 * MS), ("backward", at + 45 * MS, at + 95 * MS)
            specs += [PhaseSpec(n, b, e if n == "backward" or short == 50 else b + MS, {}, outer) for n, b, e in parts]
            # Many forward passes of 1 ms each: together they last as long.
            if short == 1:
                specs += [PhaseSpec("forward", at + i * MS, at + i * MS + MS // 2, {}, outer) for i in range(2, 44)]
        t += 20 * 100 * MS
    line = LineSpec("gpu0.a", lambda at: np.where(at // (50 * MS) % 2, 150.0, 50.0), period_ns=5 * MS)
    _, page = report([make_run(tmp_path / "r.h5", [line], specs, end_ns=t)], tmp_path / "r.html")
    main = next(x for x in page.texts if "takes most of the joules" in x)
    assert "backward takes most of the joules on gpu0 (simulated) in 1 of 2 configurations: " in main
