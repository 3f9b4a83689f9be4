"""The best of several settings: by means, by pairs of runs, by a curve; and what is as good, by how much at most."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.frame.best import NEAR, best_of_curve, best_of_means, best_of_pairs
from powerd_core.errors import AnalysisError


def alike(values, u95):
    return list(best_of_means(values, u95).as_good)


def test_what_cannot_be_told_from_the_least_mean():
    values = [1.04, 1.00, 1.02]
    assert best_of_means(values, [0.001] * 3).row == 1
    assert alike(values, [0.001] * 3) == [1]
    assert alike(values, [0.01, 0.01, 0.02]) == [1, 2]
    assert alike(values, [0.05] * 3) == [0, 1, 2]
    assert alike([2.0, 2.0], [0.0, 0.0]) == [0, 1]
    best = best_of_means(values, [0.01, 0.01, 0.02])
    assert best.within == pytest.approx((0.0, 0.02 + np.hypot(0.01, 0.02)))
    for bad in (([], []), ([1.0], []), ([1.0], [float("nan")]), ([float("inf")], [0.0])):
        with pytest.raises(AnalysisError):
            best_of_means(*bad)


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=20), st.floats(1.0, 100.0))
def test_the_best_is_among_them_and_a_wider_interval_holds_more(figures, times):
    values, u95 = zip(*figures, strict=True)
    few = best_of_means(values, u95)
    assert few.row in few.as_good
    assert set(few.as_good) <= set(alike(values, [times * u for u in u95]))


def blocks(*values):
    return dict(enumerate(values))


def test_what_blocks_share_parts_no_settings():
    """Blocks that differ by a fifth; within each, the second setting is 1 % better."""
    drift = np.array([0.0, 0.1, 0.2])
    logs = [blocks(*(drift + off + noise)) for off, noise in (
        (0.0, [0, 0, 0]), (-0.01, [1e-4, 0, -1e-4]), (-0.0095, [2e-4, -2e-4, 0]))]  # fmt: skip
    best = best_of_pairs(logs, 0)
    assert best_of_pairs(logs).row == 1
    assert (best.row, best.as_good, best.open) == (1, (1, 2), ())
    assert 0.0005 < best.worst < 0.002
    with pytest.raises(AnalysisError, match="in the same block"):
        best_of_pairs([{}, {1: 0.0}], 0)


def test_what_was_never_near_enough_to_be_known_is_open_and_not_as_good():
    one, many = blocks(0.0), blocks(0.0, 0.01, 0.0, 0.01)
    best = best_of_pairs([many, one, blocks(0.1, -0.1, 0.1, -0.08)], 0)
    assert best.as_good == (0,)
    assert best.open == (1, 2)  # a single run; runs that are far apart
    assert best.worst == 0.0
    off, half = np.array([0.0, 0.004, 0.02, 0.05]), np.array([0.0, 0.01, 0.03, 0.01])
    best = best_of_curve(0, off, half, np.ones(4, bool))
    assert (best.as_good, best.open) == ((0, 1), (2,))
    assert best.within == pytest.approx((0.0, np.expm1(0.014)))
    best = best_of_curve(0, off, half, np.array([True, False, True, True]))
    assert (best.as_good, best.open) == ((0,), (1, 2)), "one that was not measured is to be surely within 1 %"


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)), min_size=1, max_size=12))
def test_every_row_is_as_good_open_or_worse(rows):
    off, half = np.array([(0.0, 0.0), *rows]).T
    best = best_of_curve(0, off, half, np.ones(len(off), bool))
    assert not set(best.as_good) & set(best.open)
    assert best.within[0] == 0.0
    assert best.worst <= np.expm1(NEAR)
    for i in set(range(len(off))) - set(best.as_good) - set(best.open):
        assert off[i] > half[i]
