"""Phases that no reading sees alone, from many iterations at shifting moments."""

import numpy as np
import pytest
from bench_folding import Sensor, aliased, one, readings
from folding_waveforms import draw, wave_of
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.energy.devices import load_parts
from powerd_analytics.folding.equations import Equations
from powerd_analytics.folding.folded import LEAST_PHASES, fold
from powerd_analytics.folding.segments import Phases
from powerd_analytics.folding.timeline import Bins, Timeline
from powerd_analytics.runs.run import read_run
from powerd_analytics.tables.shares import budget_rows
from powerd_analytics.tables.table import phase_table, table_of

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


@pytest.mark.parametrize("seed", [0, 1])
def test_intervals_hold_whatever_the_window_s_place(seed):
    inside = []
    for i in range(6):
        found, _ = one(Sensor("", 20, 29, 2.0), (22.0, 51.0), "steps", 30, seed=100 * seed + i, lag_ms=0.0)
        inside += list(np.abs(found[:, 0]) <= found[:, 1])
    assert np.mean(inside) > 0.8


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
    said = [f.why for f in fold([signal], Phases(begin, end, kind, 2))]
    assert said == [f"folding needs {LEAST_PHASES} of them, there are {len(begin) // 2}"] * 2
    begin, end, kind, wave = draw("steps", (10.0, 20.0), 20.0, rng)
    end = np.where((kind == 0) & (np.arange(len(kind)) % 3 == 0), begin + (end - begin) // 5, end)
    signal = readings(wave, int(end[-1]) + 100 * MS, NVML, rng)
    found = fold([signal], Phases(begin, end, kind, 2))
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
    found = fold(lines, Phases(begin, end, kind, 2))
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
    shares = timeline.shares(begin, end)
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
    for seed in range(4):
        found, why = one(sensor, lengths, waveform, seconds, seed=70 + seed, lag_ms=0.0)
        inside += [abs(e) <= u for (e, u, *_), w in zip(found, why, strict=True) if not w]
    assert np.mean(inside) > 0.8


def test_what_longer_phases_have_more_of_is_a_column():
    bins = Bins.of_lengths([4.0, 6.0], [2, 2])
    edges = np.array([0, 5, 11, 14, 20]) * MS
    timeline = Timeline(edges[:-1], edges[1:], np.array([0, 1, 0, 1]), bins)
    made = timeline.equations(np.array([0, 0]), np.array([20 * MS, 5 * MS]))
    # Phases of the first kind last 1 ms more and 1 ms less than usual, so that both together are as usual.
    np.testing.assert_allclose(made[:, bins.columns :], [[0, 0], [0.2, 0]], atol=1e-9)


def test_equations_of_joined_bins_are_those_of_long_bins():
    rng = np.random.default_rng(2)
    bins = Bins.of_lengths([8.0, 5.0], [5, 1])
    coarse, which = bins.joined()
    edges = np.cumsum(rng.integers(MS, 9 * MS, 60))
    segments = edges[:-1], edges[1:], np.arange(59) % 2
    begin = rng.integers(edges[0], edges[-1] - 30 * MS, 100)
    watts = rng.normal(0, 1, 100)
    fine, want = (Equations.of_block(Timeline(*segments, b), begin, begin + 9 * MS, watts) for b in (bins, coarse))
    got = fine.coarser(which)
    np.testing.assert_allclose(got.normal, want.normal, atol=1e-5)
    np.testing.assert_allclose(got.right, want.right, atol=1e-5)
