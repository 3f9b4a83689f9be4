"""What a reading of a sensor with a low-pass shows, and folding through one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.folding.response import Response
from powerd_analytics.folding.timeline import Bins, Timeline
from powerd_analytics.runs.run import read_run
from powerd_analytics.tables.table import phase_table

TAU_MS = 13.0


def smoothed(t: np.ndarray, edges: np.ndarray, watts: np.ndarray, tau_ns: float) -> np.ndarray:
    """Steps of power behind a low-pass of first order, by its differential equation."""
    level = watts[0]
    begun = [level]
    for k in range(len(watts)):
        level = watts[k] + (level - watts[k]) * np.exp(-(edges[k + 1] - edges[k]) / tau_ns)
        begun.append(level)
    k = np.clip(np.searchsorted(edges, t, "right") - 1, 0, len(watts) - 1)
    return watts[k] + (np.array(begun)[k] - watts[k]) * np.exp(-(t - edges[k]) / tau_ns)


def test_a_window_without_a_low_pass_weighs_all_alike():
    response = Response(10 * MS)
    assert response.length_ns == 10 * MS
    assert response.newest_ns == 5 * MS
    assert response.before(np.array([-1.0, 0.0, 2.5 * MS, 10 * MS, 12 * MS])).tolist() == [0, 0, 0.25, 1, 1]


@given(st.floats(0, 30), st.floats(0.1, 40))
def test_a_reading_stands_at_the_centre_of_its_weight(window_ms, tau_ms):
    response = Response(max(window_ms * MS, 2.0), tau_ms * MS)
    ages = np.linspace(0, response.length_ns, 20_001)
    share = response.before(ages)
    assert share[0] == pytest.approx(0)
    assert share[-1] == pytest.approx(1)
    assert np.all(np.diff(share) >= -1e-12)
    centre = np.sum(np.diff(share) * (ages[1:] + ages[:-1]) / 2)
    # Of what is cut off a thousandth is left, seven time constants away.
    assert centre == pytest.approx(response.newest_ns, abs=0.01 * tau_ms * MS + 3)


def test_shares_of_a_low_pass_are_those_of_its_equation():
    rng = np.random.default_rng(3)
    edges = np.cumsum(rng.integers(2 * MS, 30 * MS, 80))
    kind = rng.integers(0, 3, 79)
    watts = np.array([100.0, 400.0, 250.0])
    response = Response(2.0, TAU_MS * MS)
    t = rng.integers(edges[0] + 200 * MS, edges[-1] - 20 * MS, 200)
    timeline = Timeline(edges[:-1], edges[1:], kind, Bins.of_lengths([10.0, 10.0, 10.0], [1, 1, 1]))
    newest = t + response.newest_ns
    shares = timeline.equations(newest - response.length_ns, newest, response)[:, : timeline.columns]
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    first = np.cumsum([0, *(len(e) for e in Bins.of_lengths([10.0] * 3, [1] * 3).edges)])[:3]
    of_kind = np.add.reduceat(shares, first, axis=1)
    want = smoothed(newest.astype(float), edges.astype(float), watts[kind], TAU_MS * MS)
    np.testing.assert_allclose(of_kind @ watts, want, atol=0.4)


def run_behind_a_low_pass(tmp_path, accuracy):
    """150 iterations of 22.3, 51.4 and 1.1 ms, read every 20 ms through a low-pass of 13 ms."""
    t = training(batches=(256,), iterations=150, forward_ms=22.3, backward_ms=51.4, update_ms=1.1)
    edges = np.append(t.edges_ns, t.end_ns).astype(float)

    def seen(at):
        return smoothed(at + TAU_MS * MS, edges, np.asarray(t.watts, float), TAU_MS * MS)

    line = LineSpec("gpu0.nvml", seen, period_ns=20 * MS, accuracy=accuracy)
    return read_run(make_run(tmp_path / "r.h5", [line], t.phases, end_ns=t.end_ns))


def test_folding_knows_the_low_pass(tmp_path):
    run = run_behind_a_low_pass(tmp_path, {"window_ns": 1 * MS, "filter_ns": 13 * MS, "centre_ns": 1 * MS})
    rows = {r.phase: r for r in phase_table(run).phases}
    for name, watts in (("forward", 180), ("backward", 260)):
        row = rows[name]
        assert row.method == "folded"
        assert "sensor smooths with a time constant of 13 ms (± 1 ms)" in row.note
        assert row.j_per_batch == pytest.approx(watts * row.s_per_batch, abs=row.u95_j)
        assert row.u95_j < 0.12 * row.j_per_batch


def test_a_mean_over_a_window_is_no_low_pass(tmp_path):
    # What this field is for: taken for a window of the same spread, the same readings give other joules.
    run = run_behind_a_low_pass(tmp_path, {"window_ns": 45 * MS})
    row = next(r for r in phase_table(run).phases if r.phase == "forward")
    right = 180 * (row.s_per_batch or 0)
    assert row.j_per_batch is None or abs(row.j_per_batch - right) > 0.01 * right
