"""How sure energies are, by the shapes of the parts of their uncertainty."""

import math

import numpy as np
import pytest

from powerd_analytics.energy.uncertainty import NORMAL, Estimate, factor, one_rectangle, sum_of


def test_half_widths_follow_the_shapes_of_the_parts():
    assert Estimate(1.0, 0.3, 0.4).u_j == pytest.approx(0.5)
    assert Estimate(1.0, 0.3, 0.4).u95_j == pytest.approx(1.96 * 0.5, rel=1e-3)
    # A limit alone is left by nobody: 95 % of a rectangle.
    assert Estimate(1.0, 0.0, 0.4, 0.4).u95_j == pytest.approx(0.95 * np.sqrt(3) * 0.4, rel=1e-3)
    assert Estimate(1.0, 0.0, 0.0).u95_j == 0
    assert Estimate(2.0, 0.3, 0.4, 0.4).scaled(3.0).u95_j == pytest.approx(3 * Estimate(2.0, 0.3, 0.4, 0.4).u95_j)


def test_sums_add_shared_parts_one_to_one():
    e = sum_of(np.array([1.0, 2.0]), np.array([0.3, 0.4]), np.array([0.1, 0.2]))
    assert (e.energy_j, e.u_statistical_j, e.u_systematic_j) == pytest.approx((3.0, 0.5, 0.3))


# 95 % intervals hold what they say: their factors against drawn sums.


HALF_WIDTH = math.sqrt(3)


def test_factors_of_a_rectangle_and_of_a_normal_part():
    assert factor(2.0, 2.0) == pytest.approx(0.95 * HALF_WIDTH, abs=1e-4)
    assert factor(2.0, 0.0) == pytest.approx(NORMAL, abs=1e-4)
    assert factor(0.0, 0.0) == pytest.approx(NORMAL)


@pytest.mark.parametrize(
    "rectangles", [[1.0], [1.0, 1.0], [1.0, 0.5], [1.0, 0.2], [1.0, 1.0, 1.0], [1.0, 0.7, 0.4], [1.0] * 6]
)
@pytest.mark.parametrize("normal", [0.0, 0.3, 1.0])
def test_intervals_of_drawn_sums_hold_95_percent(rectangles, normal):
    rng = np.random.default_rng(1)
    drawn = rng.normal(0, normal, 200_000)
    for u in rectangles:
        drawn += rng.uniform(-1, 1, len(drawn)) * HALF_WIDTH * u
    u = math.sqrt(sum(x**2 for x in rectangles) + normal**2)
    inside = np.mean(np.abs(drawn) <= factor(u, one_rectangle(*rectangles)) * u)
    assert inside == pytest.approx(0.95, abs=0.008)
