"""What is left over at edges is believed as far as chance cannot have made it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.edges.belief import believed


def one(mean, variance, size2, half=0.0, is_there=False):
    share, left = believed(*(np.array([x]) for x in (mean, variance, half, size2, is_there)))
    return float(share[0]), float(left[0])


def test_a_mean_far_beyond_chance_is_taken_nearly_whole_and_one_within_it_hardly():
    assert one(8.0, 1.0, 100.0)[0] > 0.98
    assert one(0.5, 1.0, 100.0)[0] < 0.15
    assert one(0.0, 1.0, 100.0)[1] < 0.15
    assert abs(one(8.0, 1.0, 100.0)[1] - 1) < 0.05


@given(
    st.floats(-1e3, 1e3), st.floats(1e-9, 1e3), st.integers(1, 10_000), st.floats(0, 10), st.floats(1e-3, 1e3)
)  # fmt: skip
def test_shares_lie_between_none_and_all_grow_with_the_mean_and_know_no_unit(mean, variance, times, half, scale):
    size2, half = times * variance, half * np.sqrt(variance)
    share, left = one(mean, variance, size2, half)
    assert 0 <= share <= 1
    assert left >= 0
    assert one(1.1 * mean, variance, size2)[0] >= one(mean, variance, size2)[0] - 1e-12
    scaled = one(scale * mean, scale**2 * variance, scale**2 * size2, scale * half)
    np.testing.assert_allclose(scaled, (share, scale**2 * left), rtol=1e-6, atol=1e-12 * scale**2)


def test_what_there_is_differs_from_what_is_believed_by_the_stated_variance():
    """Drawn as it is said: in half of the cases nothing is there."""
    rng = np.random.default_rng(3)
    n, size2 = 100_000, 30.0
    there = np.where(rng.random(n) < 0.5, 0.0, rng.normal(0, np.sqrt(size2), n))
    mean = there + rng.normal(0, 1, n)
    share, left = believed(mean, np.ones(n), np.zeros(n), np.full(n, size2), np.zeros(n, bool))
    error = share * mean - there
    for low, high in ((0, 1), (1, 2), (2, 3), (3, 5), (5, 20)):
        of = (np.abs(mean) >= low) & (np.abs(mean) < high)
        np.testing.assert_allclose(np.mean(error[of] ** 2), np.mean(left[of]), rtol=0.1)


def test_a_limit_that_explains_the_mean_leaves_it_unbelieved_and_one_that_cannot_does_not():
    """Windows within +- 1 of their place, and chance of a hundredth: 0.9 may be nothing, 1.1 is something."""
    inside, beyond = one(0.9, 1e-4, 25.0, half=1.0), one(1.1, 1e-4, 25.0, half=1.0)
    assert inside[0] < 0.25
    assert beyond[0] > 0.95
    # What is there is unsure by the limit even so.
    assert 0.9 < beyond[1] / (1 / 3) < 1.1


def test_what_is_known_to_be_there_is_believed_whatever_explains_it():
    assert one(0.5, 0.01, 25.0, half=1.0)[0] < 0.25
    assert one(0.5, 0.01, 25.0, half=1.0, is_there=True)[0] > 0.95


def test_drawn_limits_leave_the_stated_variance():
    rng = np.random.default_rng(4)
    n, size2, half = 200_000, 9.0, 1.5
    there = np.where(rng.random(n) < 0.5, 0.0, rng.normal(0, 3, n))
    mean = there + rng.uniform(-half, half, n) + rng.normal(0, 0.2, n)
    share, left = believed(mean, np.full(n, 0.04), np.full(n, half), np.full(n, size2), np.zeros(n, bool))
    error = share * mean - there
    for low, high in ((0, 0.7), (0.7, 1.3), (2.2, 4), (4, 20)):
        of = (np.abs(mean) >= low) & (np.abs(mean) < high)
        np.testing.assert_allclose(np.mean(error[of] ** 2), np.mean(left[of]), rtol=0.2)
