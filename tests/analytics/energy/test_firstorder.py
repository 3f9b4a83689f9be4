"""The mean of correlated repeats against its posterior by brute force, and against what must change nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.energy.coverage import NORMAL, student
from powerd_analytics.energy.firstorder import LEAST_DEGREES, first_order
from powerd_analytics.energy.uncertainty import mean_of


def repeats(n, rho, seed):
    rng = np.random.default_rng(seed)
    x = np.empty(n)
    x[0] = rng.normal()
    for i in range(1, n):
        x[i] = rho * x[i - 1] + np.sqrt(1 - rho**2) * rng.normal()
    return x


def half_width(x):
    u, degrees = first_order(x - x.mean())
    return u * NORMAL * student(degrees)


def by_brute_force(x):
    """Half the interval about the mean of ``x``, from the likelihood with its whole covariance, of any scale."""
    n, rhos = len(x), 1 - np.exp(np.linspace(0, np.log(5e-4), 160))
    mus = np.mean(x) + np.std(x) * np.sinh(np.linspace(-5, 5, 801))
    log = np.empty((len(rhos), len(mus)))
    for i, rho in enumerate(rhos):
        covariance = rho ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
        inverse, logdet = np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1]
        a, b, c = inverse.sum(), (inverse @ x).sum(), x @ inverse @ x
        log[i] = -0.5 * logdet - n / 2 * np.log(c - 2 * b * mus + a * mus**2) + np.log(1 - rho)
    p = (np.exp(log - log.max()) * np.gradient(mus)).sum(axis=0)
    order = np.argsort(np.abs(mus - np.mean(x)))
    held = np.cumsum(p[order]) / p.sum()
    return float(np.abs(mus - np.mean(x))[order][np.searchsorted(held, 0.95)])


@pytest.mark.parametrize(("n", "rho"), [(16, 0.5), (16, 0.95), (40, 0.8), (80, 0.97)])
def test_the_interval_is_that_of_the_posterior(n, rho):
    for seed in range(4):
        x = repeats(n, rho, seed)
        assert half_width(x) == pytest.approx(by_brute_force(x), rel=0.04)


@given(st.integers(16, 60), st.floats(0, 0.98), st.integers(0, 999), st.floats(1e-9, 1e9), st.floats(-1e3, 1e3))
def test_unit_place_and_direction_of_time_change_nothing(n, rho, seed, unit, place):
    x = repeats(n, rho, seed)
    assert half_width(unit * x) == pytest.approx(unit * half_width(x), rel=1e-3)
    assert half_width(x + place) == pytest.approx(half_width(x), rel=1e-3)
    assert half_width(x[::-1]) == pytest.approx(half_width(x), rel=1e-3)


@given(st.integers(3, 60), st.integers(0, 999))
def test_a_straight_line_and_a_step_have_an_interval(n, at):
    for x in (np.arange(n, dtype=float), (np.arange(n) > at % (n - 1)).astype(float)):
        u, degrees = first_order(x - x.mean())
        assert np.isfinite(u)
        assert u > 0
        assert degrees >= LEAST_DEGREES


def test_one_hump_in_a_quiet_run_is_not_taken_for_a_walk():
    """Of 68 repeats within 14 % of each other the mean is not uncertain by a quarter."""
    at = np.arange(68)
    x = 28.5 + 3.5 * np.exp(-(((at - 44) / 5) ** 2)) + 0.2 * np.sin(at * 2.4)
    none = np.zeros(68)
    u95 = mean_of(x, none, none).u95_j
    assert NORMAL * np.std(x) / np.sqrt(68) < u95 < np.ptp(x)
