"""Evidence and posteriors against their textbook formulas, and windows that are shifted far."""

import numpy as np
import pytest
from bench_folding import Sensor, readings
from folding_waveforms import draw

from powerd_analytics.folding.blocks import POSITIONS, blocks_of, by_position, equations_of
from powerd_analytics.folding.equations import Equations
from powerd_analytics.folding.folded import fold
from powerd_analytics.folding.lag import LAG_VARIABLE, Places
from powerd_analytics.folding.posterior import evidence, means, means_and_variances
from powerd_analytics.folding.priors import Priors
from powerd_analytics.folding.response import Response
from powerd_analytics.folding.segments import Phases, segments_of

MS = 1_000_000


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


def test_evidence_of_readings_without_noise_is_a_number_where_rounding_leaves_no_factor(monkeypatch):
    _, _, total, _, priors = some_readings()
    want = evidence(total, 4.0, priors)

    def none(_):
        raise np.linalg.LinAlgError

    monkeypatch.setattr(np.linalg, "cholesky", none)
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
    return readings(wave, int(end[-1]) + 100 * MS, sensor, rng), Phases(begin, end, kind, len(lengths))


def test_readings_by_position_are_all_readings():
    signal, phases = seen(Sensor("", 20, 29, 1.0))
    response = Response.of(signal)
    segments = segments_of(phases, response.width_ns)
    blocks = blocks_of(signal, response, segments, 3 * MS)
    by, want = by_position(blocks, response, 50.0, MS, phases), equations_of(blocks, response, 50.0, MS)
    assert len(by.rows) == POSITIONS
    assert by.rows.min() > 0
    for got, of_blocks in zip(by.total, want.total, strict=True):
        np.testing.assert_allclose(got, of_blocks, rtol=1e-9, atol=1e-9)
    assert isinstance(by, Equations)


@pytest.mark.parametrize("filter_ms", [0, 13])
@pytest.mark.parametrize("most_lag_ms", [0, 2, 50])
def test_windows_stay_among_what_is_known_however_late_power_may_be(filter_ms, most_lag_ms):
    signal, phases = seen(Sensor("", 20, 1 if filter_ms else 29, 1.0, filter_ms=filter_ms))
    response = Response.of(signal)
    segments = segments_of(phases, response.width_ns)
    places = Places(1.0 * MS, most_lag_ms * MS, response.width_ns)
    blocks = blocks_of(signal, response, segments, places.room_ns)
    assert sum(len(b.watts) for b in blocks) > 100
    for b in blocks:
        for by in places.nodes()[[0, -1]].astype(int).tolist():
            shares = b.timeline.equations(b.begin_ns + by, b.end_ns + by, response)[:, : b.timeline.columns]
            np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_a_long_bound_of_the_lag_leaves_numbers_behind_a_low_pass(monkeypatch):
    monkeypatch.setenv(LAG_VARIABLE, "10")
    signal, phases = seen(Sensor("", 20, 1, 1.0, filter_ms=13), (40.0, 60.0), 40)
    for f in fold([signal], phases):
        assert f.per_s.u95_j < 0.1 * f.per_s.energy_j
