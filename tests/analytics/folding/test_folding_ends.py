"""Intervals where lag and place are at the ends of their limits, and folded readings of powerd's own simulated card."""

from math import erf, sqrt

import numpy as np
import pytest
from bench_folding import LAG_MS, Sensor, in_parallel, one
from folding_sim import NAMES, TRAININGS, record
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.folding.lag import NO_LAG, Places
from powerd_analytics.folding.limits import as_normal
from powerd_daemon.sources.sim import SimOptions

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


@given(st.sampled_from([0, 1_000, 50_000, 300_000, 3_000_000]), st.integers(1_000, 5_000_000), st.floats(1e5, 1e8))
def test_no_lag_has_its_own_probability_and_ends_are_cases(beside, most_lag, window):
    places = Places(beside, most_lag, window)
    cases = places.cases(places.nodes())
    assert np.sum(NO_LAG * cases.no_lag) == pytest.approx(NO_LAG * cases.prior.sum(), rel=0.15)
    # An even share of all lags has next to none that are 0.
    assert cases.prior[cases.lag_ns < 1].sum() / cases.prior.sum() > 0.9 * NO_LAG
    assert cases.lag_ns.min() == pytest.approx(0, abs=1e-3)
    assert cases.lag_ns.max() == pytest.approx(most_lag)


def test_finer_nodes_lie_between_the_neighbours_of_what_is_possible():
    places = Places(300_000, 2_000_000, 1e6)
    nodes = places.nodes()
    possible = np.zeros(len(nodes), bool)
    possible[3] = True
    finer = places.finer(nodes, possible)
    assert (finer[0], finer[-1]) == (nodes[2], nodes[4])
    assert np.all(np.diff(finer) < np.diff(nodes)[0] / 2)
    possible[:] = True
    assert np.array_equal(places.finer(nodes, possible)[[0, -1]], nodes[[0, -1]])


@pytest.mark.parametrize(("lag_ms", "place"), [(0.0, None), (LAG_MS, None), (None, -1.0), (None, 1.0)])
def test_intervals_hold_at_the_ends(lag_ms, place):
    inside = []
    for seed in range(2):
        found, _ = one(Sensor("", 20, 29, 1.0), (22.0, 51.0), "steps", 15, seed, lag_ms, place)
        inside += list(np.abs(found[:, 0]) <= found[:, 1])
    assert np.mean(inside) > 0.7


def test_results_come_in_the_order_in_which_they_were_asked_for():
    class Workers:
        map = staticmethod(map)

    assert list(in_parallel(Workers(), pow, [(2, 3), (3, 2), (2, 0)])) == [8, 9, 1]


def test_the_simulated_card_s_readings_are_those_of_its_load():
    signals, load, begin_ns, end_ns = record(SimOptions(rate_hz=500.0, errors="none", training=TRAININGS[0]), 1.5)
    assert len(signals) == 8
    watts = sum(s.integral().between(s.t_ns[:1], s.t_ns[-1:])[0] / (s.t_ns[-1] - s.t_ns[0]) * 1e9 for s in signals)
    exact = load.energy_j(begin_ns, end_ns) / ((end_ns - begin_ns) * 1e-9)
    assert watts == pytest.approx(exact, rel=0.01)
    assert {p[0] for p in load.waveform.phases(begin_ns, end_ns)} == {*NAMES, "idle"}
