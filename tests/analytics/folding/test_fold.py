"""Phases that no reading sees alone, from many iterations at shifting moments."""

from math import erf, sqrt

import numpy as np
import pytest
from bench_folding import LAG_MS, Sensor, aliased, draw, one, readings, wave_of
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.energy.devices import load_parts
from powerd_analytics.folding.design import Bins, PhaseSequence, Timeline, segments_of
from powerd_analytics.folding.fold import LAG, LEAST_PHASES, as_normal, fold
from powerd_analytics.folding.posterior import LAG_VARIABLE, MOST_LAG_MS, most_lag_ns
from powerd_analytics.runs.run import read_run
from powerd_analytics.table import phase_table, table_of
from powerd_analytics.uncertainty_table import budget_rows

NVML = Sensor("50/s, mean of 29 ms", 20, 29)
COUNTER = Sensor("10/s, counter", 100, 100, counter=True)
FAST = Sensor("500/s", 2, 1.06)


@pytest.mark.parametrize("sensor", [NVML, COUNTER, FAST], ids=lambda s: s.name)
@pytest.mark.parametrize("waveform", ["steps", "inside", "edge ramps"])
@pytest.mark.parametrize("lengths", [(5.0, 10.0, 3.0), (22.0, 51.0)])
def test_joules_are_right_within_what_is_stated(sensor, waveform, lengths):
    found, why = one(sensor, lengths, waveform, 15 if sensor is FAST else 40, seed=11, lag_ms=0.0)
    assert why == [""] * len(lengths)
    error, u95, *_ = found.T
    assert np.all(np.abs(error) <= u95)
    assert np.all(np.abs(error) < 6)
    assert np.all(u95 < 40)


@pytest.mark.parametrize("sensor", [NVML, Sensor("in step", 40, 29), COUNTER], ids=lambda s: s.name)
def test_a_sensor_in_step_with_the_iterations_gives_no_number(sensor):
    # An iteration of 40 ms: every reading of such a sensor sees one of one or two moments of it.
    assert all("always looks at the same moments" in why for why in aliased(sensor, 3))


@pytest.mark.parametrize("sensor", [COUNTER, Sensor("10/s, mean of 100 ms", 100, 100)], ids=lambda s: s.name)
def test_power_in_step_with_the_sensor_gives_no_number(sensor):
    # A sawtooth of 20 a second: such a sensor sees the same part of it with every reading.
    lengths = (22.0, 51.0, 4.0)
    _, why = one(sensor, lengths, "capped at 20 Hz", 60, seed=3)
    assert all("off alike at the same moments" in w for w in why)
    _, why = one(sensor, lengths, "noise", 60, seed=3)
    assert why == [""] * 3


def test_few_phases_and_phases_unlike_each_other_are_not_folded():
    rng = np.random.default_rng(5)
    begin, end, kind, wave = draw("steps", (22.0, 51.0), 3.0, rng)
    signal = readings(wave, int(end[-1]) + 100 * MS, NVML, rng)
    said = [f.why for f in fold([signal], PhaseSequence(begin, end, kind, 2))]
    assert said == [f"folding needs {LEAST_PHASES} of them, there are {len(begin) // 2}"] * 2
    begin, end, kind, wave = draw("steps", (10.0, 20.0), 20.0, rng)
    end = np.where((kind == 0) & (np.arange(len(kind)) % 3 == 0), begin + (end - begin) // 5, end)
    signal = readings(wave, int(end[-1]) + 100 * MS, NVML, rng)
    found = fold([signal], PhaseSequence(begin, end, kind, 2))
    assert found[0].why == "their lengths differ too much for folding"
    assert found[1].why == ""


def test_pauses_are_left_out_and_lines_add_up():
    rng = np.random.default_rng(6)
    begin, end, kind, _ = draw("steps", (10.0, 25.0), 30.0, rng)
    late = 900 * MS * (np.arange(len(begin)) // 200)
    begin, end = begin + late, end + late
    wave = wave_of("steps", begin, end, kind, rng)
    # What goes on in the pauses is nobody's business: here a power as in no phase.
    lines = [readings(wave, int(end[-1]) + 100 * MS, NVML, rng) for _ in range(2)]
    found = fold(lines, PhaseSequence(begin, end, kind, 2))
    exact = (wave.energy(end) - wave.energy(begin)) * 1e-9
    for k in range(2):
        watts = 2 * exact[kind == k].sum() / ((end - begin)[kind == k].sum() * 1e-9)
        assert found[k].per_s.energy_j == pytest.approx(watts, abs=found[k].per_s.u95_j)


def test_shares_of_windows_add_up_to_one():
    rng = np.random.default_rng(1)
    edges = np.cumsum(rng.integers(1, 9 * MS, 200))
    kind = rng.integers(0, 3, 199)
    timeline = Timeline(edges[:-1], edges[1:], kind, Bins.of_lengths([4.0, 5.0, 6.0], [3, 1, 4]))
    begin = rng.integers(edges[0], edges[-1] - 30 * MS, 500)
    end = begin + rng.integers(1, 30 * MS, 500)
    shares = timeline.design(begin, end)[:, : timeline.columns]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    # A kind's columns together are the time in its segments.
    of_kind = np.zeros((500, 199))
    for i in range(199):
        of_kind[:, i] = np.clip(np.minimum(end, edges[i + 1]) - np.maximum(begin, edges[i]), 0, None)
    bins = Bins.of_lengths([4.0, 5.0, 6.0], [3, 1, 4])
    for k, (start, n) in enumerate(zip(bins.first, bins.count, strict=True)):
        want = of_kind[:, kind == k].sum(axis=1) / (end - begin)
        np.testing.assert_allclose(shares[:, start : start + n].sum(axis=1), want, atol=1e-9)


def slow_run(tmp_path, iterations=150, accuracy=None):
    t = training(batches=(256,), iterations=iterations, forward_ms=22.3, backward_ms=51.4, update_ms=1.1)
    edges = np.append(t.edges_ns, t.end_ns)
    sums = np.concatenate([[0], np.cumsum(np.diff(edges) * t.watts)])

    def seen(at):
        low, high = (np.interp(at + by, edges, sums) for by in (-14.5 * MS, 14.5 * MS))
        return (high - low) / (29 * MS)

    line = LineSpec("gpu0.nvml", seen, period_ns=20 * MS, accuracy={"window_ns": 29 * MS} | (accuracy or {}))
    return t, read_run(make_run(tmp_path / "r.h5", [line], t.phases, end_ns=t.end_ns))


def test_the_table_says_what_is_folded(tmp_path):
    _, run = slow_run(tmp_path)
    table = phase_table(run)
    rows = {r.phase: r for r in table.phases}
    assert rows["iteration"].method == "integral"
    for name, watts in (("forward", 180), ("backward", 260)):
        row = rows[name]
        assert row.method == "folded"
        assert row.note == "folded over 150 phases: sensor averages 29 ms and reads every 20 ms"
        assert row.j_per_batch == pytest.approx(watts * row.s_per_batch, abs=row.u95_j)
        assert row.u95_j < 0.1 * row.j_per_batch
    # Sums and GFLOPS/W stay with what the sensor resolves.
    assert table.totals[0].gflops_basis == "iteration"
    assert table.totals[0].residual_j is not None


def test_a_run_in_slices_folds_to_the_same(tmp_path):
    _, run = slow_run(tmp_path)
    (sliced,) = load_parts(run, in_memory=0, slice_size=200)
    a, b = ({r.phase: r for r in table.phases} for table in (phase_table(run), table_of(run, [sliced])))
    for name in ("forward", "backward"):
        assert b[name].j_per_batch == pytest.approx(a[name].j_per_batch, rel=1e-6)


def test_the_budget_of_a_folded_phase_tells_the_sensor_from_the_folding(tmp_path):
    _, run = slow_run(tmp_path, accuracy={"u_gain": 0.02, "u_offset_w": 1.5})
    row = next(r for r in budget_rows(run) if r.phase == "forward")
    parts = {s.part: s for s in row.parts}
    assert set(parts) >= {"repeats", "folding", "lag", "gain", "offset"}
    assert parts["lag"].shared_by_lines
    assert parts["gain"].u_j == pytest.approx(0.02 * row.energy_j)
    assert parts["offset"].u_j == pytest.approx(1.5 * 0.0223, rel=0.1)
    assert parts["gain"].distribution == "rectangular"
    table = next(r for r in phase_table(run).phases if r.phase == "forward")
    systematic = [s.u_j for s in row.parts if s.part != "repeats"]
    assert np.linalg.norm(systematic) == pytest.approx(table.u_systematic_j)


@pytest.mark.parametrize("waveform", ["decay", "rise and fall"])
@pytest.mark.parametrize(
    ("sensor", "lengths", "seconds"),
    [(COUNTER, (2.0, 5.0, 2.0), 40), (FAST, (22.0, 51.0, 2.0), 10)],
    ids=["all in a window", "sharp"],
)
def test_power_that_does_not_come_to_its_level_in_a_phase(sensor, lengths, seconds, waveform):
    inside = []
    for seed in range(2):
        found, why = one(sensor, lengths, waveform, seconds, seed=70 + seed, lag_ms=0.0)
        inside += [abs(e) <= u for (e, u, *_), w in zip(found, why, strict=True) if not w]
    assert np.mean(inside) > 0.8


# Power that comes later than the marks of its phases.


MS_FOLDING_LAG = 1_000_000


def phases_of(lengths, n=40, seed=0):
    rng = np.random.default_rng(seed)
    length = (np.tile(lengths, n) * MS_FOLDING_LAG * rng.uniform(0.95, 1.05, n * len(lengths))).astype(np.int64)
    edges = np.concatenate([[0], np.cumsum(length)])
    return PhaseSequence(edges[:-1], edges[1:], np.tile(np.arange(len(lengths)), n), len(lengths))


def folded(lag_ms, sensor=None, waveform="steps", seed=3, seconds=20):
    rng = np.random.default_rng(seed)
    begin, end, kind, wave = draw(waveform, (22.0, 51.0), seconds, rng, lag_ms=lag_ms)
    signal = readings(wave, int(end[-1]) + 100 * MS_FOLDING_LAG, sensor or Sensor("", 20, 29, 1.0), rng)
    exact = (wave.energy(end) - wave.energy(begin)) * 1e-9
    watts = [exact[kind == k].sum() / ((end - begin)[kind == k].sum() * 1e-9) for k in range(2)]
    return fold([signal], PhaseSequence(begin, end, kind, 2)), np.array(watts)


@given(st.floats(0, 4), st.integers(0, 5))
def test_late_power_moves_joules_over_edges_and_none_away(lag_ms, seed):
    phases = phases_of((8.0, 6.0, 9.0), seed=seed)
    segments = segments_of(phases, 1e6)
    watts = np.array([100.0, 300.0, 180.0])
    marks = segments.between_marks([round(lag_ms * MS_FOLDING_LAG)], [slice(0, len(segments.kind))])[0, :3]
    of_bins = np.concatenate(
        [np.repeat(watts, segments.bins.count[:3]), np.zeros(marks.shape[1] - sum(segments.bins.count[:3]))]
    )
    length_ms = np.array(segments.bins.length_ms[:3])
    # Power before an edge less that behind it, for as long as power is late; a few phases at the begin are left out.
    moved_j = (np.roll(watts, 1) - watts) * lag_ms
    got_j = (marks @ of_bins - watts) * length_ms
    np.testing.assert_allclose(got_j, moved_j, rtol=0.05, atol=1e-3)
    assert got_j.sum() == pytest.approx(0, abs=0.02 * np.abs(moved_j).sum() + 1e-3)


@pytest.mark.parametrize("lag_ms", [0.3, 1.0, 1.7])
def test_joules_between_marks_hold_whatever_the_lag(lag_ms):
    found, watts = folded(lag_ms)
    for f, w in zip(found, watts, strict=True):
        assert f.per_s.energy_j == pytest.approx(w, abs=f.per_s.u95_j)
        assert 0 < dict(f.parts_w)[LAG] < f.per_s.u_systematic_j


def test_a_sensor_that_sees_the_edges_tells_the_lag(monkeypatch):
    sharp = Sensor("", 2, 1.06)
    found, watts = folded(1.3, sharp, seconds=8)
    for f, w in zip(found, watts, strict=True):
        # Unknown, 2 ms would be 4 W or more.
        assert dict(f.parts_w)[LAG] < 0.5
        assert f.per_s.energy_j == pytest.approx(w, abs=max(f.per_s.u95_j, 0.5))


def test_the_bound_of_the_lag_is_a_setting(monkeypatch):
    monkeypatch.delenv(LAG_VARIABLE, raising=False)
    assert most_lag_ns() == MOST_LAG_MS * MS_FOLDING_LAG
    monkeypatch.setenv(LAG_VARIABLE, "0.5")
    assert most_lag_ns() == 500_000


# Intervals where lag and place are at the ends of their limits, and folded readings of powerd's own simulated card.


U95 = 1.959964


def held(limit, u, half_width, at):
    """How often an error of ``at`` x the limit and noise lies within ± ``half_width``."""
    return sum(erf((half_width + sign * at * limit) / u / sqrt(2)) for sign in (-1, 1)) / 2


@given(st.floats(1e-3, 1e3), st.floats(0.01, 100), st.floats(-1, 1))
def test_an_interval_with_a_limit_holds_wherever_within_it_the_truth_lies(limit, ratio, at):
    u = ratio * limit
    half_width = U95 * np.hypot(u, as_normal(limit, u))
    assert held(limit, u, half_width, 1) == pytest.approx(0.95, abs=1e-6)
    assert held(limit, u, half_width, at) >= 0.95 - 1e-6


def test_a_limit_alone_is_its_own_interval_and_none_adds_nothing():
    assert U95 * as_normal(2.0, 0.0) == pytest.approx(2.0)
    assert as_normal(0.0, 3.0) == 0
    assert as_normal(1e-9, 3.0) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(("lag_ms", "place"), [(0.0, None), (LAG_MS, None), (None, -1.0), (None, 1.0)])
def test_intervals_hold_at_the_ends(lag_ms, place):
    inside = []
    for seed in range(2):
        found, _ = one(Sensor("", 20, 29, 1.0), (22.0, 51.0), "steps", 15, seed, lag_ms, place)
        inside += list(np.abs(found[:, 0]) <= found[:, 1])
    assert np.mean(inside) > 0.7
