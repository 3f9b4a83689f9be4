import numpy as np
import pytest

from powerd_analytics import metrics
from powerd_analytics.energy.uncertainty import Estimate, mean_of, sum_of


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
