import numpy as np
import pytest

from powerd_analytics import metrics
from powerd_analytics.uncertainty import Estimate, mean_of, sum_of


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


def test_parts_combine_in_quadrature_with_k_2():
    assert Estimate(1.0, 0.3, 0.4).u95_j == pytest.approx(1.0)


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
