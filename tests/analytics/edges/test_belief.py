"""What is left over at edges is believed as far as chance cannot have made it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.edges.belief import believed


def one(mean, variance, count):
    share, left = believed(np.array([mean]), np.array([variance]), np.array([count]))
    return float(share[0]), float(left[0])


def test_a_mean_far_beyond_chance_is_taken_nearly_whole_and_one_within_it_hardly():
    assert one(8.0, 1.0, 100.0)[0] > 0.98
    assert one(0.5, 1.0, 100.0)[0] < 0.15
    assert one(0.0, 1.0, 100.0)[1] < 0.15
    assert abs(one(8.0, 1.0, 100.0)[1] - 1) < 0.05


@given(st.floats(-1e3, 1e3), st.floats(1e-9, 1e3), st.integers(1, 10_000), st.floats(1e-3, 1e3))
def test_shares_lie_between_none_and_all_grow_with_the_mean_and_know_no_unit(mean, variance, count, scale):
    share, left = one(mean, variance, count)
    assert 0 <= share <= 1
    assert left >= 0
    assert one(1.1 * mean, variance, count)[0] >= share - 1e-12
    scaled = one(scale * mean, scale**2 * variance, count)
    np.testing.assert_allclose(scaled, (share, scale**2 * left), rtol=1e-6, atol=1e-12 * scale**2)


def test_what_there_is_differs_from_what_is_believed_by_the_stated_variance():
    """Drawn as it is said: in half of the cases nothing is there."""
    rng = np.random.default_rng(3)
    n, count = 100_000, 30.0
    there = np.where(rng.random(n) < 0.5, 0.0, rng.normal(0, np.sqrt(count), n))
    mean = there + rng.normal(0, 1, n)
    share, left = believed(mean, np.ones(n), np.full(n, count))
    error = share * mean - there
    for low, high in ((0, 1), (1, 2), (2, 3), (3, 5), (5, 20)):
        of = (np.abs(mean) >= low) & (np.abs(mean) < high)
        np.testing.assert_allclose(np.mean(error[of] ** 2), np.mean(left[of]), rtol=0.1)
