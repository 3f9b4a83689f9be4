"""What the page compares and draws: parts of one machine, repeats, layers, warm-ups, gaps, long notes."""

import re

import numpy as np
import pytest
from make_campaign import one_run
from make_layers import write_run as write_layers
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training
from page import report

from powerd_analytics.campaigns.factors import Factors
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.records.columns import COLUMNS
from powerd_analytics.report.figures import MOST_BARS, phase_bars
from powerd_analytics.report.traces import trace_of
from powerd_analytics.runs.run import read_run


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


def test_repeats_are_one_configuration_whatever_their_number_of_batches(tmp_path):
    paths = [one_run(tmp_path / f"{b}-{n}.h5", batches=(b,), iterations=n, noise_w=4, seed=n)
             for b in (64, 128) for n in (6, 9)]  # fmt: skip
    _, page = report(paths, tmp_path / "r.html")
    (said,) = lines_of(page)
    assert "(simulated, 2 configurations)" in said
    assert "Welch's t, runs)" in said


def test_layers_are_no_configurations_of_the_page(tmp_path):
    _, page = report([write_layers(tmp_path / "layers.h5")], tmp_path / "r.html")
    assert lines_of(page) == []
    assert "backward takes most of the joules" in " ".join(page.texts)


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
    assert [f.caption.split(" on ")[0] for f in made] == [f"Joules a batch of {m}" for m in "aba"]
    tops = [max(float(t) for t in re.findall(r'text-anchor="end">([\d.]+)<', f.svg)) for f in made]
    assert tops[0] == tops[2] >= 9
    assert tops[1] < 9
    many = [record("a", "gpu0", 1.0, f"p{i}") for i in range(MOST_BARS + 1)]
    (none,) = phase_bars(many, {})
    assert none.svg == ""
    assert "too many to be drawn here" in none.caption
    # Two that no name tells apart are two bars.
    (both,) = phase_bars([record("a", "gpu0", 1.0), {**record("a", "gpu0", 2.0), "run": "other"}], {})
    assert both.svg.count("<rect") >= 2
    assert "other" in both.svg


@pytest.mark.parametrize("lines", [1, 3])
def test_gaps_that_overlap_are_one(tmp_path, lines):
    t = np.arange(0, 4 * S, 2 * MS, dtype=np.int64)
    kept = [t[(t < S + i * 10 * MS) | (t > 2 * S + i * 10 * MS)] for i in range(lines)]
    kept = [k[(k < 3 * S) | (k > 3 * S + 100 * MS)] for k in kept]
    specs = [LineSpec(f"gpu0.{i}", lambda at: np.full(len(at), 50.0), t_ns=k) for i, k in enumerate(kept)]
    run = read_run(make_run(tmp_path / "r.h5", specs, end_ns=4 * S))
    (part,) = load_parts(run)
    first, second = trace_of(run, part, [], 10_000).gaps
    assert first == (998_000, 2_002_000 + (lines - 1) * 10_000)
    assert second == (2_998_000, 3_102_000)


def test_many_notes_are_folded_away_and_all_there(tmp_path):
    begins = [k * S // 2 for k in range(14)]
    phases = [PhaseSpec("p", b + 50 * MS, b + 450 * MS, {"batch_size": k + 1}) for k, b in enumerate(begins)]
    t = np.arange(0, 7 * S, 2 * MS, dtype=np.int64)
    kept = np.all([(t < b + 200 * MS) | (t > b + (210 + 5 * k) * MS) for k, b in enumerate(begins)], axis=0)
    line = LineSpec("gpu0.a", lambda at: np.full(len(at), 50.0), t_ns=t[kept])
    text, _ = report([make_run(tmp_path / "r.h5", [line], phases, end_ns=7 * S)], tmp_path / "r.html")
    inside = "".join(re.findall(r"<details.*?</details>", text, re.S))
    notes = re.findall(r"<ol class=\"notes\">(.*?)</ol>", text, re.S)
    assert any(table.count("<li>") > 12 for table in notes)
    for table in notes:
        assert (table.count("<li>") > 12) == (table in inside)


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
    assert "backward takes most of the joules on gpu0 (simulated): " in main
    assert "configurations" not in main
