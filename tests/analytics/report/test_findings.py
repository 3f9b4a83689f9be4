"""What the page says first and draws: the best configuration, parts of a machine, unknowns, bars, gaps."""

import re

import numpy as np
import pytest
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, S, make_run, training
from page import report

from powerd_analytics.campaign import breakdowns
from powerd_analytics.colours import phase_colour
from powerd_analytics.energy.devices import load_parts
from powerd_analytics.records import COLUMNS
from powerd_analytics.report.page import MOST_BARS, Columns, phase_figures, trace_of
from powerd_analytics.runs.run import read_run


def said(page, words):
    """The sentences with these words."""
    return [t.strip() for t in page.texts if words in t.lower()]


def page_of(tmp_path, lines, phases, end_ns, **options):
    return report([make_run(tmp_path / "r.h5", lines, phases, end_ns=end_ns)], tmp_path / "page.html", **options)[1]


@pytest.mark.parametrize(("scale", "is_sure"), [(0.9, True), (0.999, False)])
def test_repeats_tell_configurations_apart_or_not(tmp_path, scale, is_sure):
    for name, factor in (("old", 1.0), ("new", scale)):
        for i in range(3):
            seed = i if name == "old" else 50 + i
            one_run(tmp_path / f"{name}{i}.h5", factor, noise_w=2.0, gpus=2, iterations=5, seed=seed, device_name=name)
    _, page = report(sorted(tmp_path.glob("*.h5")), tmp_path / "page.html")
    (sentence,) = said(page, "least energy a sample")
    assert ("distinguishable from all others" in sentence) == is_sure
    if is_sure:
        assert "Least energy a sample: AlexNet, batch 64, new" in sentence
        more = float(re.search(r"next is AlexNet, batch 64, old, ([\d.]+) % more", sentence).group(1))
        assert more == pytest.approx(100 * (1 / scale - 1), abs=1.5)
    # The bars are those of the GPUs' sum: single ones are no configurations of their own.
    assert [a["aria-label"].count("forward") for t, a in page.tags if t == "svg" and "role" in a] == [2]


def test_configurations_of_one_run_are_compared_by_the_sample_and_drawn_as_in_the_table(tmp_path):
    text, page = report([one_run(tmp_path / "r.h5", batches=(64, 128), noise_w=4.0)], tmp_path / "page.html")
    columns = (page.column("totals", head) for head in ("batch", "J", "n"))
    joules = {b[0]: float(j[1]) / float(n[1]) / float(b[1]) for b, j, n in zip(*columns, strict=True)}
    (sentence,) = said(page, "least energy a sample")
    more = float(re.search(r"batch 128, .* next is AlexNet, batch 64, ([\d.]+) % more", sentence).group(1))
    assert more == pytest.approx(100 * (joules["64"] / joules["128"] - 1), rel=0.01)
    rows = zip(*(page.column("phases", h) for h in ("batch", "phase", "J/batch")), strict=True)
    table = {(b[0], p[0]): float(j[1]) for b, p, j in rows if j[1] is not None}
    drawn = r'="AlexNet, batch (\d+): (\w+)[^"]*"><title>[^<]*</title><rect fill="(#\w+)" .*?width="([\d.]+)%"'
    bars = re.findall(drawn, text)
    pieces = [(table[batch, phase], float(width)) for batch, phase, _, width in bars if phase != "rest"]
    assert len(pieces) >= 4
    per_joule = {width / joules for joules, width in pieces}
    assert max(per_joule) == pytest.approx(min(per_joule), rel=0.02)
    assert {colour for _, phase, colour, _ in bars if phase == "forward"} == {phase_colour("forward")}
    # The pieces of a bar and its rest are the iteration.
    whole = sum(float(width) for batch, *_, width in bars if batch == "64") / max(per_joule)
    assert whole == pytest.approx(table["64", "iteration"], rel=0.01)


@pytest.mark.parametrize("watts", [0.0, -5.0])
def test_a_device_that_took_nothing_has_a_page(tmp_path, watts):
    tr = training((64,), 6)
    page = page_of(tmp_path, [LineSpec("gpu0.a", lambda t: np.full(len(t), watts))], tr.phases, tr.end_ns)
    assert page.tables
    assert not said(page, "takes most of the joules")


def test_a_processor_is_never_the_best_configuration_of_its_gpu(tmp_path):
    tr = training((64, 128), 6, model="m")
    lines = [LineSpec("gpu0.a", tr.power(1.0), provenance="measured"),
             LineSpec("cpu0.a", tr.power(0.1), "cpu0", "measured")]  # fmt: skip
    found = said(page_of(tmp_path, lines, tr.phases, tr.end_ns), "least energy a sample")
    assert [line.split(":")[0] for line in found] == ["gpu", "cpu"]  # more joules first
    assert all("2 configurations" in line and "cpu0" not in line and "gpu0" not in line for line in found)


def test_figures_are_of_one_model_and_share_a_scale():
    def record(model, device, joules, phase="forward"):
        values = {"kind": "phase", "run": "r", "path": "r.h5", "model": model, "batch_size": 8, "device": device,
                  "provenance": "measured", "attributes": "{}", "phase": phase, "phase_path": phase,
                  "j_per_batch": joules, "is_lower_bound": False}  # fmt: skip
        return {**dict.fromkeys(COLUMNS), **values}

    def drawn(*records):
        return [(f["heading"], str(f["svg"])) for f in phase_figures(breakdowns(records))]

    figures = drawn(record("a", "gpu0", 1.0), {**record("a", "gpu0+gpu1", 9.0), "path": "s.h5"},
                    record("b", "gpu0", 2.0))  # fmt: skip
    widths = {
        h: float(re.search(r'<rect fill="#\w+" x="0.000%" .*?width="([\d.]+)%"', svg).group(1)) for h, svg in figures
    }
    of_a = [widths[f"Joules a batch of a on {device}"] for device in ("gpu0+gpu1", "gpu0")]
    assert of_a[0] == pytest.approx(9 * of_a[1], rel=1e-3)
    assert widths["Joules a batch of b on gpu0"] == of_a[0]
    ((_, nothing),) = drawn(*({**record("a", "gpu0", 1.0), "batch_size": i} for i in range(1, MOST_BARS + 2)))
    assert nothing == ""
    # Two that nothing tells apart are repeats; of different runs that are none, there are two bars.
    ((_, both),) = drawn(record("a", "gpu0", 1.0), {**record("a", "gpu0", 2.0), "run": "other", "clock_hz": 1e9})
    assert both.count("<title>") == 2


@pytest.mark.parametrize("lines", [1, 3])
def test_gaps_that_overlap_are_one(tmp_path, lines):
    t = np.arange(0, 4 * S, 2 * MS, dtype=np.int64)
    kept = [t[(t < S + i * 10 * MS) | (t > 2 * S + i * 10 * MS)] for i in range(lines)]
    kept = [k[(k < 3 * S) | (k > 3 * S + 100 * MS)] for k in kept]
    specs = [LineSpec(f"gpu0.{i}", lambda at: np.full(len(at), 50.0), t_ns=k) for i, k in enumerate(kept)]
    run = read_run(make_run(tmp_path / "r.h5", specs, end_ns=4 * S))
    (part,) = load_parts(run)
    first, second = trace_of(run, part, [], 10_000, Columns())["gaps"]
    assert first == [998_000, 2_002_000 + (lines - 1) * 10_000]
    assert second == [2_998_000, 3_102_000]


@pytest.mark.parametrize("short", [True, False])
def test_nothing_takes_most_where_too_much_is_not_resolvable(tmp_path, short):
    """One of two phases is too short for the sensor, and what it may have taken is more than the other did."""
    specs = [PhaseSpec("training", 0, 300 * MS, {"model": "m", "batch_size": 8})]
    for at in range(0, 300 * MS, 100 * MS):
        specs.append(PhaseSpec("backward", at + 45 * MS, at + 95 * MS, {}, 0))
        # Many forward passes of half a millisecond each: together they last as long.
        begins = [at + i * MS for i in range(44)] if short else [at]
        specs += [PhaseSpec("forward", b, b + (MS // 2 if short else 45 * MS), {}, 0) for b in begins]
    watts = (150.0, 50.0) if short else (50.0, 150.0)
    line = LineSpec("gpu0.a", lambda at: np.where(at // (50 * MS) % 2, watts[1], watts[0]), period_ns=5 * MS)
    found = said(page_of(tmp_path, [line], specs, 300 * MS), "takes most of the joules")
    assert [sentence.split()[0] for sentence in found] == ([] if short else ["backward"])
