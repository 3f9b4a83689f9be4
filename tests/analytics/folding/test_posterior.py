"""Evidence and posteriors against their textbook formulas, and windows that are shifted far."""

import numpy as np
import pytest
from bench_folding import Sensor, draw, readings
from hypothesis import given
from hypothesis import strategies as st
from make_run import MS, LineSpec, make_run, training

from powerd_analytics.folding.design import Bins, PhaseSequence, Response, Timeline, segments_of
from powerd_analytics.folding.fold import blocks_of
from powerd_analytics.folding.posterior import (
    Priors,
    ShiftPrior,
    evidence,
    means,
    means_and_variances,
)
from powerd_analytics.runs.run import read_run
from powerd_analytics.table import phase_table


def some_readings(seed=0, n=80, p=6):
    rng = np.random.default_rng(seed)
    shares, watts = rng.random((n, p)), rng.normal(0, 3, n)
    total = (shares.T @ shares, shares.T @ watts, float(watts @ watts), n)
    roots = rng.normal(0, 1, (4, p, p))
    covariance = roots @ np.swapaxes(roots, 1, 2) + np.eye(p)
    return shares, watts, total, covariance, Priors(np.linalg.inv(covariance), -np.linalg.slogdet(covariance)[1])


def test_evidence_is_the_density_of_the_readings():
    shares, watts, total, covariance, priors = some_readings()
    of_readings = 4.0 * np.eye(len(watts)) + shares @ covariance @ shares.T
    far = np.einsum("i,mi->m", watts, np.linalg.solve(of_readings, np.repeat(watts[None, :, None], 4, 0))[..., 0])
    want = -0.5 * (np.linalg.slogdet(of_readings)[1] + far)
    np.testing.assert_allclose(evidence(total, 4.0, priors), want, rtol=1e-9)


def test_means_and_variances_are_those_of_a_normal_posterior():
    shares, watts, total, covariance, priors = some_readings()
    marks = np.random.default_rng(1).random((3, 2, 6))
    gain = covariance @ shares.T @ np.linalg.inv(4.0 * np.eye(len(watts)) + shares @ covariance @ shares.T)
    got, noise, model = means_and_variances(total, 4.0, priors, marks)
    np.testing.assert_allclose(got, np.einsum("lkp,mp->mlk", marks, gain @ watts), rtol=1e-8)
    np.testing.assert_allclose(noise, 4.0 * np.sum(np.einsum("lkp,mpn->mlkn", marks, gain) ** 2, axis=-1), rtol=1e-8)
    left = covariance - gain @ shares @ covariance
    np.testing.assert_allclose(noise + model, np.einsum("lkp,mpq,lkq->mlk", marks, left, marks), rtol=1e-8)
    np.testing.assert_allclose(means(total, 4.0, priors, marks)[0], got, rtol=1e-9)


def seen(sensor, lengths=(8.0, 14.0), seconds=12):
    rng = np.random.default_rng(4)
    begin, end, kind, wave = draw("steps", lengths, seconds, rng)
    return readings(wave, int(end[-1]) + 100 * MS, sensor, rng), PhaseSequence(begin, end, kind, len(lengths))


@pytest.mark.parametrize("filter_ms", [0, 13])
@pytest.mark.parametrize("most_lag_ms", [0, 2, 50])
def test_windows_stay_among_what_is_known_however_late_power_may_be(filter_ms, most_lag_ms):
    signal, phases = seen(Sensor("", 20, 1 if filter_ms else 29, 1.0, filter_ms=filter_ms))
    response = Response.of(signal)
    segments = segments_of(phases, response.width_ns)
    shifts = ShiftPrior(1.0 * MS, most_lag_ms * MS, response.width_ns)
    blocks = blocks_of(signal, response, segments, shifts.room_ns)
    assert sum(len(b.watts) for b in blocks) > 100
    for b in blocks:
        for by in shifts.nodes()[[0, -1]].astype(int).tolist():
            shares = b.timeline.design(b.begin_ns + by, b.end_ns + by, response)[:, : b.timeline.columns]
            np.testing.assert_allclose(shares.sum(axis=1), 1)


# What a reading of a sensor with a low-pass shows, and folding through one.


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
    shares = timeline.design(newest - response.length_ns, newest, response)[:, : timeline.columns]
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
