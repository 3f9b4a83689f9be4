"""What the page says first and draws: the best configuration, parts of a machine, unknowns, bars, gaps."""

import re

import numpy as np
import pytest
from make_campaign import one_run
from make_run import MS, LineSpec, PhaseSpec, make_run, training
from page import report

from powerd_analytics.frame.trainings import Length, read_runs, with_sums
from powerd_analytics.views.breakdown import breakdowns


def said(page, words):
    """The sentences with these words."""
    return [t.strip() for t in page.texts if words in t.lower()]


def page_of(tmp_path, lines, phases, end_ns, **options):
    return report([make_run(tmp_path / "r.h5", lines, phases, end_ns=end_ns)], tmp_path / "page.html", **options)[1]


@pytest.mark.parametrize(("scale", "is_sure", "gpus"), [(0.9, True, 2), (0.999, False, 1)])
def test_repeats_tell_configurations_apart_or_not(tmp_path, scale, is_sure, gpus):
    for name, factor in (("old", 1.0), ("new", scale)):
        for i in range(3):
            seed = i if name == "old" else 50 + i
            one_run(
                tmp_path / f"{name}{i}.h5", factor, noise_w=2.0, gpus=gpus, iterations=3, seed=seed, device_name=name
            )
    _, page = report(sorted(tmp_path.glob("*.h5")), tmp_path / "page.html")
    (sentence,) = said(page, "least energy a sample")
    assert ("distinguishable from all others" in sentence) == is_sure
    if is_sure:
        assert "Least energy a sample: AlexNet, batch 64, new" in sentence
        more = float(re.search(r"next is AlexNet, batch 64, old, ([\d.]+) % more", sentence).group(1))
        assert more == pytest.approx(100 * (1 / scale - 1), abs=1.5)
    # The bars are those of the GPUs' sum: single ones are no configurations of their own.
    assert [a["aria-label"].count("forward") for t, a in page.tags if t == "svg" and "role" in a] == [2]


@pytest.mark.parametrize("short", [True, False])
def test_nothing_takes_most_where_too_much_is_not_resolvable(tmp_path, short):
    """One of two phases is too short for the sensor, and what it may have taken is more than the other did."""
    specs = [PhaseSpec("training", 0, 300 * MS, {"model": "m", "batch_size": 8})]
    for at in range(0, 300 * MS, 100 * MS):
        specs.append(PhaseSpec("backward", at + 45 * MS, at + 95 * MS, {}, 0))
        # Many forward passes of half a millisecond each, between the readings: together they last as long.
        begins = [at + i * MS + MS // 4 for i in range(44)] if short else [at]
        specs += [PhaseSpec("forward", b, b + (MS // 2 if short else 45 * MS), {}, 0) for b in begins]
    watts = (150.0, 50.0) if short else (50.0, 150.0)
    line = LineSpec("gpu0.a", lambda at: np.where(at // (50 * MS) % 2, watts[1], watts[0]), period_ns=5 * MS)
    found = said(page_of(tmp_path, [line], specs, 300 * MS), "takes most of the joules")
    assert [sentence.split()[0] for sentence in found] == ([] if short else ["backward"])


def test_repeats_are_one_configuration_also_where_a_phase_is_resolved_in_some_alone(tmp_path):
    tr = training((64,), 12)
    for i, period_ms in enumerate((2, 2, 60)):
        line = LineSpec("gpu0.a", tr.power(), period_ns=period_ms * MS)
        make_run(tmp_path / f"{i}.h5", [line], tr.phases, end_ns=tr.end_ns, run_id=f"id{i}")
    frame = with_sums(read_runs([tmp_path]), Length())
    updates = frame[(frame["kind"] == "phase") & (frame["phase"] == "update")]
    assert updates["j_per_batch"].notna().tolist() == [True, True, False]
    ((bar,),) = breakdowns(frame)
    joules = {piece.phase: piece.energy_j for piece in bar.pieces}
    assert joules["update"] == pytest.approx(0.0029 * 110, rel=0.02)  # of an iteration, not of two thirds of one
    assert bar.energy_j == pytest.approx(15.5, rel=0.02)


def test_an_iteration_of_several_models_is_one_bar(tmp_path):
    """Each network has its pieces; what is trained three times as often has three times the joules."""
    phases = []
    for k in range(10):
        begin, at = k * 100 * MS, len(phases)
        phases.append(PhaseSpec("iteration", begin, begin + 100 * MS, {"batch_size": 64}))
        models = (("D", 0), ("D", 20), ("G", 40), ("D", 60))
        phases += [PhaseSpec("forward", begin + t * MS, begin + (t + 20) * MS, {"model": m}, at) for m, t in models]
    line = LineSpec("gpu0.a", lambda t: np.full(len(t), 100.0))
    run = make_run(tmp_path / "r.h5", [line], phases, end_ns=1000 * MS)
    ((bar,),) = breakdowns(with_sums(read_runs([run]), Length()))
    joules = {piece.phase: piece.energy_j for piece in bar.pieces}
    assert joules == {"forward D": pytest.approx(6.0), "forward G": pytest.approx(2.0)}
    assert (bar.energy_j, bar.rest_j) == (pytest.approx(10.0), pytest.approx(2.0))
