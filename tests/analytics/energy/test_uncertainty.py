import numpy as np
import pytest

from powerd_analytics import metrics
from powerd_analytics.energy.uncertainty import Estimate, _periodic, mean_of, sum_of


def test_repeats_shrink_the_statistical_part_only():
    rng = np.random.default_rng(0)
    few, many = (mean_of(rng.normal(10, 1, n), np.full(n, 0.01), np.full(n, 0.2)) for n in (25, 2500))
    assert few.u_statistical_j == pytest.approx(0.2, rel=0.4)
    assert many.u_statistical_j == pytest.approx(0.02, rel=0.1)
    assert (few.u_systematic_j, many.u_systematic_j) == pytest.approx((0.2, 0.2))


def test_equal_repeats_are_as_unsure_as_single_ones_say():
    e = mean_of(np.full(4, 10.0), np.full(4, 0.3), np.zeros(4))
    assert e.u_statistical_j == pytest.approx(0.15)
    assert mean_of(np.array([10.0]), np.array([0.3]), np.zeros(1)).u_statistical_j == pytest.approx(0.3)


def test_half_widths_follow_the_shapes_of_the_parts():
    assert Estimate(1.0, 0.3, 0.4).u_j == pytest.approx(0.5)
    assert Estimate(1.0, 0.3, 0.4).u95_j == pytest.approx(1.96 * 0.5, rel=1e-3)
    # A limit alone is left by nobody: 95 % of a rectangle.
    assert Estimate(1.0, 0.0, 0.4, 0.4).u95_j == pytest.approx(0.95 * np.sqrt(3) * 0.4, rel=1e-3)
    assert Estimate(1.0, 0.0, 0.0).u95_j == 0
    assert Estimate(2.0, 0.3, 0.4, 0.4, 4.0).scaled(3.0).u95_j == pytest.approx(
        3 * Estimate(2.0, 0.3, 0.4, 0.4, 4.0).u95_j
    )


def test_few_repeats_widen_the_interval_of_their_scatter_only():
    scattered = mean_of(np.array([1.0, 2.0, 3.0]), np.zeros(3), np.zeros(3))
    assert scattered.u95_j == pytest.approx(4.303 * scattered.u_j, rel=1e-3)
    known = mean_of(np.array([1.0, 1.0, 1.0]), np.full(3, 0.1), np.zeros(3))
    assert known.u95_j == pytest.approx(1.96 * known.u_j, rel=1e-3)


def test_repeats_that_hang_together_count_for_fewer():
    """Blocks of ten equal ones are a tenth as many repeats."""
    rng = np.random.default_rng(3)
    blocks = np.repeat(rng.normal(10, 1, 60), 10)
    alone = rng.permutation(blocks)
    together, apart = (mean_of(e, np.zeros(600), np.zeros(600)) for e in (blocks, alone))
    assert together.u_statistical_j == pytest.approx(np.std(blocks) / np.sqrt(60), rel=0.3)
    assert apart.u_statistical_j == pytest.approx(np.std(blocks) / np.sqrt(600), rel=0.2)


def test_intervals_of_few_repeats_that_hang_together_hold_more_often_than_their_own_mean_lets_them():
    """30 repeats, each 0.8 of the last: their own mean hides a part of what they have in common."""
    rng = np.random.default_rng(5)
    draws = rng.normal(size=(400, 130))
    for i in range(1, 130):
        draws[:, i] = 0.8 * draws[:, i - 1] + 0.6 * draws[:, i]
    none = np.zeros(30)
    held = np.mean([abs(e.energy_j) <= e.u95_j for e in (mean_of(x, none, none) for x in draws[:, 100:])])
    alone = rng.normal(size=(400, 30))
    as_said = np.mean([abs(e.energy_j) <= e.u95_j for e in (mean_of(x, none, none) for x in alone)])
    # 0.78 with a sum of correlations alone, 0.81 with its first-order correction: better, and still not 0.95.
    assert 0.885 <= held < 0.96
    assert 0.925 <= as_said <= 0.975


def held_and_wide(draws, truth=0.0):
    """Share of intervals of means that hold, and their median half-width."""
    none = np.zeros(draws.shape[1])
    found = [mean_of(x, none, none) for x in draws]
    return np.mean([abs(e.energy_j - truth) <= e.u95_j for e in found]), np.median([e.u95_j for e in found])


@pytest.mark.parametrize("frequency", [0.16, 0.34, 0.46])
def test_repeats_that_come_and_go_with_a_period_are_known_better_than_by_their_scatter(frequency):
    """As of phases in which something else comes and goes: their scatter alone would hold in all cases."""
    rng = np.random.default_rng(11)
    times = np.cumsum(1 + 0.01 * rng.normal(size=(400, 30)), axis=1) + 1e3 * rng.random((400, 1))
    held, wide = held_and_wide(np.sin(2 * np.pi * frequency * times) + 0.2 * rng.normal(size=(400, 30)))
    assert 0.93 <= held <= 0.99
    assert wide < 0.8 * 2.045 * np.hypot(np.sqrt(0.5), 0.2) / np.sqrt(30)


@pytest.mark.parametrize("repeats", [30, 31])
def test_two_kinds_of_repeats_by_turns_are_no_scatter(repeats):
    rng = np.random.default_rng(12)
    turns = np.where(np.arange(repeats) % 2 == 0, 10.0, 12.0) + 0.1 * rng.normal(size=(300, repeats))
    held, wide = held_and_wide(turns, turns.mean())
    assert held >= 0.93
    assert wide < 0.25 * 2.04 / np.sqrt(repeats)


def test_a_period_by_chance_costs_no_coverage():
    """Of independent repeats one series in a hundred seems to have one, and its interval holds like all others."""
    draws = np.random.default_rng(13).normal(size=(3000, 24))
    is_taken = np.array([_periodic(x - x.mean(), float(x[1:] @ x[:-1]) / float(x @ x)) is not None for x in draws])
    assert 0 < is_taken.mean() <= 0.015
    assert held_and_wide(draws)[0] == pytest.approx(0.955, abs=0.02)
    assert _periodic(np.full(20, -1e-15), 0.95) is None
    assert _periodic(np.tile([1.0, -1.0], 15), -1.0) == (pytest.approx(0, abs=1e-12), 10.0)


def test_sums_add_shared_parts_one_to_one():
    e = sum_of(np.array([1.0, 2.0]), np.array([0.3, 0.4]), np.array([0.1, 0.2]))
    assert (e.energy_j, e.u_statistical_j, e.u_systematic_j) == pytest.approx((3.0, 0.5, 0.3))


def test_metrics():
    assert metrics.edp_js(3.0, 2.0) == 6.0
    assert metrics.mean_power_w(6.0, 2.0) == 3.0
    assert metrics.eds(5.0, 7.0, 5.0, 7.0, 2.0) == pytest.approx(1.0)
    # Quadro RTX 6000, Alexnet at 140 W against the default.
    assert metrics.eds(2.427, 30.5, 3.288, 28.2, 2.0) == pytest.approx(0.5 * 2.427 / 3.288 + 0.5 * 30.5 / 28.2)
    # Castro et al., Pascal, ResNet, batch 64: two passes over 425.13 M operations a sample.
    assert metrics.gflops_per_w_paper(425.13e6, 64, 2, 8.0) == pytest.approx(6.802, rel=1e-3)
