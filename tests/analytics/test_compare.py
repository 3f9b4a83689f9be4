"""Comparisons: differences that chance and sensors explain are not called any."""

import csv
import functools
import io
import math
import re

import numpy as np
import pytest
from command import joules, refused
from hypothesis import given
from hypothesis import strategies as st
from make_campaign import one_run
from make_job import machine

from powerd_analytics.frame.figure import Figure
from powerd_analytics.frame.means import mean_of_repeats
from powerd_analytics.views.compare import (
    NOTHING,
    RUNS,
    SPREAD_OF_ONE,
    compare,
    comparison_sentences,
    comparison_table,
    difference,
    holm,
    mean_of_series,
    read_samples,
    run_samples,
    verdict,
)
from powerd_core.errors import AnalysisError


def by_chance(value, u, degrees_of_freedom=math.inf):
    return Figure(value, u, degrees_of_freedom=degrees_of_freedom)


def independent(values):
    return mean_of_repeats([Figure(value) for value in values.tolist()])


GAIN = {"u_gain": 0.02, "u_offset_w": 0.0, "step_w": 0.0, "window_ns": 0, "origin": "test"}


@pytest.mark.parametrize(
    ("t", "dof", "p"),
    [(12.7062, 1, 0.05), (4.30265, 2, 0.05), (2.228139, 10, 0.05), (2.845340, 20, 0.01), (1.959964, math.inf, 0.05)],
)
def test_one_sides_uncertainty_gives_students_t_of_the_tables(t, dof, p):
    sure, unsure = by_chance(t, 0.0), by_chance(0.0, 1.0, dof)
    assert difference(unsure, sure)[0] == pytest.approx(p, rel=2e-5)
    if p == 0.05:
        assert difference(unsure, sure)[1] == pytest.approx(t, rel=2e-5)


def test_p_of_equal_means_is_uniform():
    rng = np.random.default_rng(1)
    p = [difference(independent(rng.normal(5, 1, 4)), independent(rng.normal(5, 3, 7)))[0] for _ in range(2000)]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.015)
    assert np.mean(np.array(p) < 0.5) == pytest.approx(0.5, abs=0.05)


def test_correlated_iterations_are_not_taken_for_independent_ones():
    rng = np.random.default_rng(2)

    def drifting(n):
        steps, x = rng.normal(0, 1, n), np.zeros(n)
        for i in range(1, n):
            x[i] = 0.9 * x[i - 1] + steps[i]
        return 100 + x

    naive, blocked = [], []
    for _ in range(200):
        a, b = drifting(600), drifting(600)
        naive.append(difference(independent(a), independent(b))[0])
        blocked.append(difference(mean_of_series(a), mean_of_series(b))[0])
    assert np.mean(np.array(naive) < 0.05) > 0.4  # what the series' own correlation is for
    assert np.mean(np.array(blocked) < 0.05) < 0.1


def test_repeats_that_hang_together_count_for_fewer():
    """Blocks of ten equal ones are a tenth as many repeats, or fewer, as what else they might be is not known."""
    rng = np.random.default_rng(3)
    blocks = np.repeat(rng.normal(10, 1, 60), 10)
    assert 0.9 < mean_of_series(blocks).u_statistical / (np.std(blocks) / np.sqrt(60)) < 1.5
    assert mean_of_series(rng.permutation(blocks)).u_statistical == pytest.approx(
        np.std(blocks) / np.sqrt(600), rel=0.2
    )
    assert mean_of_series(np.ones(20)) == by_chance(1.0, 0.0)


@pytest.mark.parametrize(("n", "rho", "least"), [(30, 0.0, 0.925), (30, 0.8, 0.87), (200, 0.8, 0.925)])
def test_intervals_of_repeats_hold_however_they_hang_together(n, rho, least):
    """Of 30 repeats, each 0.8 of the last, their own mean hides much of what they have in common: a sum of correlations
    alone would hold in 78 % of the cases."""
    rng = np.random.default_rng(5)
    draws = rng.normal(size=(400, n + 100))
    for i in range(1, n + 100):
        draws[:, i] = rho * draws[:, i - 1] + np.sqrt(1 - rho**2) * draws[:, i]
    zero = by_chance(0.0, 0.0)
    held = np.mean([difference(zero, mean_of_series(x))[0] >= 0.05 for x in draws[:, 100:]])
    assert least <= held <= 0.98


@given(st.integers(2, 60), st.floats(1e-9, 1e9), st.floats(-1e3, 1e3))
def test_unit_place_and_direction_of_time_change_nothing(n, unit, place):
    x = np.cumsum(np.random.default_rng(n).normal(size=n))
    for other, scale in ((unit * x, unit), (x + place, 1.0), (x[::-1], 1.0)):
        mean, changed = mean_of_series(x), mean_of_series(other)
        assert changed.u_statistical == pytest.approx(scale * mean.u_statistical, rel=1e-6)
        assert changed.degrees_of_freedom == pytest.approx(mean.degrees_of_freedom, rel=1e-6)


@given(st.lists(st.none() | st.floats(0, 1), max_size=12))
def test_holm_is_a_correction_that_keeps_the_order(p):
    found = holm(p)
    pairs = [(a, b) for a, b in zip(p, found, strict=True) if a is not None]
    assert all(b is None for a, b in zip(p, found, strict=True) if a is None)
    assert all(a <= b <= 1 for a, b in pairs)
    assert [b for _, b in sorted(pairs)] == sorted(b for _, b in pairs)
    if pairs:
        assert min(b for _, b in pairs) == pytest.approx(min(1, len(pairs) * min(a for a, _ in pairs)))


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Three runs each: B's joules are 3 % more than A's; one of each on a sensor of another gain."""
    folder = tmp_path_factory.mktemp("compare")
    found = {}
    for name, scale, accuracy in (("a", 1.0, GAIN), ("b", 1.03, GAIN), ("other", 1.03, {**GAIN, "u_gain": 0.021})):
        (folder / name).mkdir()
        found[name] = [
            one_run(
                folder / name / f"{i}.h5",
                scale,
                accuracy=accuracy,
                noise_w=1.0,
                iterations=60,
                seed=10 * len(found) + i,
            )
            for i in range(3)
        ]
    return found


@functools.cache
def samples_of(path):
    return run_samples(path)[0]


def samples(paths):
    return [s for path in paths for s in samples_of(path)]


def row(found, phase, figure="j_per_batch"):
    at = found.names.index("phase")
    return next(d for d in found.rows if d.key[at] == phase and d.figure == figure)


def test_runs_are_repeats_and_a_shared_gain_cancels(sides):
    found = compare(samples(sides["a"]), samples(sides["b"]))
    d = row(found, "forward")
    assert (d.repeats, d.is_same_sensor, d.a.runs, d.b.runs) == (RUNS, True, 3, 3)
    assert d.change_percent == pytest.approx(3, abs=1)
    # 2 % of gain on both sides, but of the difference only.
    assert d.a.u_systematic == pytest.approx(0.02 * d.a.value, rel=0.02)
    assert d.u95 < 0.02 * d.a.value
    assert d.is_distinguishable
    assert verdict(d) == "B more"
    assert "Same sensors" in " ".join(comparison_sentences(found))


def test_other_sensors_are_off_independently(sides):
    found = compare(samples(sides["a"]), samples(sides["other"]))
    d = row(found, "forward")
    assert not d.is_same_sensor
    assert d.u95 > 2 * 0.02 * d.a.value * 2**0.5 * 0.98
    assert not d.is_distinguishable
    assert verdict(d) == "not told apart"
    assert "Different sensors" in " ".join(comparison_sentences(found))


def test_one_run_against_several_takes_their_scatter(sides):
    found = compare(samples(sides["a"]), samples(sides["b"][:1]))
    d = row(found, "forward")
    assert d.repeats == SPREAD_OF_ONE
    joules = [s.record["j_per_batch"] for s in samples(sides["a"]) if s.record["phase"] == "forward"]
    by_chance = np.hypot(d.a.u_statistical, d.b.u_statistical)
    assert by_chance == pytest.approx(np.std(joules, ddof=1) * (1 + 1 / 3) ** 0.5)


def test_settings_that_differ_are_what_is_compared_and_those_that_vary_must_match(tmp_path):
    of = {}
    for cap in (260, 140):
        of[cap] = [one_run(tmp_path / f"{cap}-{b}.h5", batches=(b,), power_cap_w=cap, iterations=8) for b in (64, 128)]
    found = compare(samples(of[260]), samples(of[140]))
    assert found.settings == (("power_cap_w", 260.0, 140.0),)
    assert "batch_size" in found.names
    at = found.names.index("batch_size")
    assert {d.key[at] for d in found.rows} == {64, 128}
    assert "cap W 260 in A, 140 in B" in " ".join(comparison_sentences(found))


def test_the_command_says_it_in_a_table_and_in_words(sides, capsys, tmp_path):
    a, b = sides["a"][0].parent, sides["b"][0].parent
    code, out, err = joules(capsys, "compare", sides["a"][0], sides["b"][0])
    assert (code, err.strip()) == (0, "")
    for word in ("p (Holm)", "simulated", "distinguishable (5 %, Welch's t"):
        assert word in out
    out = tmp_path / "c.csv"
    assert joules(capsys, "compare", a, b, "--format", "csv", "-o", out)[0] == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert {r["provenance"] for r in rows} == {"simulated"}
    assert float(next(r["p"] for r in rows if r["phase"] == "forward" and r["figure"] == "J/batch")) < 0.05


def test_nothing_in_common_says_what_differs_and_what_to_ignore(tmp_path, capsys):
    runs = {
        side: [one_run(tmp_path / side / f"{room}.h5", room=room, iterations=3) for room in rooms]
        for side, rooms in (("a", (1, 2)), ("b", (3, 4)))
        if not (tmp_path / side).mkdir()
    }
    a, b = (paths[0].parent for paths in runs.values())
    said = refused(capsys, "compare", a, b)
    assert "room 1, 2 in A, 3, 4 in B" in said
    assert "--ignore room compares them nonetheless" in said
    code, out, _ = joules(capsys, "compare", a, b, "--ignore", "room")
    assert code == 0
    assert "Ignored: room; rows that differ in nothing else are taken for repeats" in out
    assert "a setting" in refused(capsys, "compare", a, b, "--ignore", "provenance")


def test_seeds_and_output_paths_part_no_rows(tmp_path):
    a, b = ([one_run(tmp_path / f"{seed}.h5", iterations=8, seed_of_run=seed, out_dir=f"out/{seed}") for seed in seeds]
            for seeds in ((1, 2), (3, 4)))  # fmt: skip
    found = compare(read_samples(a), read_samples(b))
    assert not [name for name in found.names if name.startswith("attribute_")]
    assert (row(found, "forward").a.runs, found.settings) == (2, ())


def test_machines_of_one_training_are_compared_as_one(tmp_path):
    sides = {}
    for side, scale in (("a", 1.0), ("b", 1.1)):
        (tmp_path / side).mkdir()
        sides[side] = [machine(tmp_path / side / f"{n}.h5", n, ranks=1, scale=scale) for n in range(2)]
    found = compare(read_samples(sides["a"]), read_samples(sides["b"]))
    d = row(found, "forward")
    alone = [s.record["j_per_batch"] for s in samples(sides["a"]) if s.record["phase"] == "forward"]
    assert (len(alone), d.a.runs, d.repeats) == (2, 1, NOTHING)  # a rank is on each device, and no clock is common
    assert d.a.value == pytest.approx(sum(alone))
    assert verdict(d) == "no repeats to tell"


def test_a_batch_of_more_machines_is_other_work(tmp_path):
    """Each rank has a batch of 64 samples: of two machines 128, of three 192."""
    two, three = (
        [machine(tmp_path / f"{n} of {count}.h5", n, ranks=1, machines=count) for n in range(count)] for count in (2, 3)
    )
    found = compare(read_samples(two), read_samples(three))
    joules_of_3 = sum(s.record["j_per_batch"] for s in samples(three) if s.record["phase"] == "forward")
    assert row(found, "forward", "j_per_sample").b.value == pytest.approx(joules_of_3 / 192)
    assert {d.figure for d in found.rows} == {"j_per_sample", "s_per_sample", "edp_per_sample_js"}


# -- batches of 64 and of 128 samples: joules of a sample, or nothing


@pytest.fixture(scope="module")
def of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unequal")
    return {
        (side, batch): [
            one_run(folder / f"{side}{batch}-{i}.h5", scale, (batch,), 60, accuracy=GAIN, noise_w=1.0, seed=seed + i)
            for i in range(3)
        ]
        for side, batch, scale, seed in (("a", 64, 1.0, 10), ("b", 128, 1.0, 20), ("b", 64, 1.03, 30))
    }


def test_a_setting_that_is_one_on_each_side_is_compared_by_the_sample(of):
    found = compare(read_samples(of["a", 64]), read_samples(of["b", 128]))
    assert found.settings == (("batch_size", 64, 128),)
    assert {d.figure for d in found.rows} == {"j_per_sample", "s_per_sample", "edp_per_sample_js"}
    totals = {s.record["batch_size"]: s.record for s in samples([*of["a", 64], *of["b", 128]])
              if s.record["kind"] == "total"}  # fmt: skip
    d = next(d for d in found.rows if d.key[0] == "total" and d.figure == "j_per_sample")
    assert d.a.value == pytest.approx(totals[64]["energy_j"] / totals[64]["iterations"] / 64, rel=1e-2)
    assert d.b.value == pytest.approx(totals[128]["energy_j"] / totals[128]["iterations"] / 128, rel=1e-2)
    assert d.a.u_systematic == pytest.approx(0.02 * d.a.value, rel=0.02)
    assert "Batches differ in size: joules, seconds and EDP (J s) are of one sample." in comparison_sentences(found)
    assert "J/sample" in {cells["figure"] for cells in comparison_table(found, "a", "b").records()}


def test_batches_of_different_size_lead_with_joules_and_edp_of_a_sample(of):
    found = compare(samples(of["a", 64]), samples(of["b", 128]))
    assert [(d.key[0], d.figure) for d in found.rows[:3]] == [
        ("total", "j_per_sample"), ("total", "edp_per_sample_js"), ("total", "s_per_sample"),
    ]  # fmt: skip
    joules, edp, seconds = found.rows[:3]
    assert edp.b.value == pytest.approx(joules.b.value * seconds.b.value, rel=1e-3)
    assert edp.a.u_systematic == pytest.approx(joules.a.u_systematic * seconds.a.value, rel=1e-3)
    assert edp.is_same_sensor
    # The gain is shared: it counts for the difference alone.
    assert 1.9 * 0.02 * abs(edp.change) < edp.u95 < 4 * 0.02 * abs(edp.change)


def test_of_several_sides_each_is_compared_with_the_first(of):
    a, b, c = (samples(of[key]) for key in (("a", 64), ("b", 64), ("b", 128)))
    found = compare(a, b, (), c)
    assert found.settings == (("batch_size", 64, 64, 128),)
    alone = compare(a, c)
    of_c = {(d.key, d.figure): d for d in found.rows if d.other == 2}
    assert {(d.key, d.figure) for d in alone.rows} == set(of_c)
    for d in alone.rows:
        both = of_c[d.key, d.figure]
        assert (both.change, both.u95) == (d.change, d.u95)
        assert both.p >= d.p  # corrected over the rows of both
    table = comparison_table(found, "a", "b", "c")
    assert table.title == "A = a, B = b, C = c"
    assert [r["side"] for r in table.records()[:3]] == ["A", "B", "C"]
    assert [r["verdict"] for r in table.records()[:3]] == ["", "B more", "C less"]


def test_a_program_that_is_recorded_as_a_whole_has_no_batches(tmp_path):
    a, b = (one_run(tmp_path / f"{n}.h5", batches=(None,), iterations=1) for n in "ab")
    found = compare(read_samples([a]), read_samples([b]))
    assert {d.heading for d in found.rows if d.key[1] == "training"} <= {"J", "s"}


@pytest.mark.parametrize("runs", [3, 1])
def test_what_a_sample_is_unsure_of_is_a_batch_sizeth_of_what_a_batch_is(of, runs):
    """The sensor's gain is shared, so that it counts for the difference alone, which is half of A's joules."""
    a, b = samples(of["a", 64][:runs]), samples(of["b", 128][:runs])
    by_sample = row(compare(a, b), "forward", "j_per_sample")
    other = row(compare(a, samples(of["b", 64][:runs])), "forward")
    assert by_sample.repeats == other.repeats
    assert by_sample.a.u_statistical == pytest.approx(other.a.u_statistical / 64)
    assert by_sample.a.u_systematic == pytest.approx(other.a.u_systematic / 64)
    assert by_sample.is_same_sensor
    assert by_sample.change_percent == pytest.approx(-50, abs=1)
    assert 1.9 * 0.02 * abs(by_sample.change) < by_sample.u95 < 4 * 0.02 * abs(by_sample.change)


def test_ignoring_an_equal_batch_size_changes_nothing(of):
    a, b = samples(of["a", 64]), samples(of["b", 64])
    assert compare(a, b, ["batch_size"]).rows == compare(a, b).rows


def test_a_batch_of_unknown_size_is_not_compared_with_another(of, tmp_path):
    unknown = one_run(tmp_path / "unknown.h5", batches=(None,), iterations=8)
    with pytest.raises(AnalysisError, match="compared by the sample"):
        compare(samples(of["a", 64]), read_samples([unknown]))


@pytest.fixture(scope="module")
def change(tmp_path_factory):
    """Runs of a main branch, and of a change that takes 6 % more."""
    folder = tmp_path_factory.mktemp("change")
    for side, scale in (("main", 1.0), ("change", 1.06)):
        (folder / side).mkdir()
        for i in range(3):
            one_run(folder / side / f"{i}.h5", scale, (64,), 40, accuracy=GAIN, noise_w=1.0, seed=10 * len(side) + i)
    return folder


@pytest.mark.parametrize(
    ("sides", "limit", "status"),
    [
        (("main", "change"), "3%", 1),
        (("main", "change"), "7", 0),
        (("change", "main"), "3%", 0),
        (("main", "change"), "", 0),
    ],
)
def test_a_gate_fails_where_joules_rose_by_more_than_the_limit(change, capsys, sides, limit, status):
    words = ("--fail-above", limit) if limit else ()
    code, out, err = joules(capsys, "compare", *(change / side for side in sides), *words)
    assert code == status
    assert "J/batch" in out
    assert ("rose by" in err) == bool(status)
    if status:
        share = float(re.search(r"rose by (\S+) ±", err)[1])
        assert share == pytest.approx(6, abs=1)


@pytest.mark.parametrize("limit", ["three", "-1%", "nan", "3%%"])
def test_a_limit_that_is_none_is_refused(change, capsys, limit):
    assert "--fail-above" in refused(capsys, "compare", change / "main", change / "change", f"--fail-above={limit}")
