"""Mean, deviation and quantiles of lateness, against the same figures of the whole list."""

from __future__ import annotations

from math import ceil
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_daemon.clock import LatencyHistogram

HOUR_NS = 3_600_000_000_000
times = st.lists(st.integers(0, 100) | st.integers(0, 10**7) | st.integers(0, HOUR_NS), min_size=1, max_size=200)


def lateness_of(times_ns: list[int]) -> LatencyHistogram:
    found = LatencyHistogram()
    for t_ns in times_ns:
        found.add(t_ns)
    return found


@given(times)
def test_mean_deviation_and_maximum(times_ns: list[int]) -> None:
    found = lateness_of(times_ns)
    assert (found.count, found.max_ns) == (len(times_ns), max(times_ns))
    assert found.mean_ns == pytest.approx(fmean(times_ns))
    assert found.deviation_ns == pytest.approx(pstdev(times_ns), rel=1e-9, abs=1e-6)


@given(times, st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_never_below_the_true_one_and_at_most_an_eighth_above(times_ns: list[int], share: float) -> None:
    true_ns = sorted(times_ns)[ceil(share * len(times_ns)) - 1]
    assert true_ns <= lateness_of(times_ns).quantile_ns(share) <= true_ns * 9 / 8
