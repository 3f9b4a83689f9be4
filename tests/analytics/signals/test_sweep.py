"""One pass over readings in pieces gives the exact integral of the piecewise-linear power."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.signals import sweep as sweeps
from powerd_analytics.signals.integral import Integral, energy_j
from powerd_analytics.signals.sweep import Sweep
from powerd_core.errors import AnalysisError


def exact_j(t, p, begin, end):
    """In rational numbers."""
    total = Fraction(0)
    for i in range(len(t) - 1):
        a, b = max(begin, t[i]), min(end, t[i + 1])
        if a < b:
            p0, slope = Fraction(p[i]), (Fraction(p[i + 1]) - Fraction(p[i])) / (t[i + 1] - t[i])
            total += (b - a) * (p0 + slope * Fraction(a + b - 2 * t[i], 2))
    return float(total / 10**9)


@given(
    st.lists(st.tuples(st.integers(1, 10**7), st.floats(-500, 500)), min_size=2, max_size=40),
    st.lists(st.integers(-(10**7), 4 * 10**8), min_size=2, max_size=12),
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(1, 9),
)
def test_any_pieces_and_blocks_give_the_exact_joules(steps, moments, cuts, block):
    t = np.cumsum([s for s, _ in steps]).astype(np.int64)
    p = np.array([w for _, w in steps])
    at = np.sort(np.array(moments, np.int64))
    sweeps_block, sweeps.BLOCK = sweeps.BLOCK, block
    try:
        sweep = Sweep(at)
        for rows in np.split(np.arange(len(t)), sorted(min(c, len(t)) for c in cuts)):
            sweep.add(t[rows], p[rows])
    finally:
        sweeps.BLOCK = sweeps_block
    first = np.arange(len(at) - 1)
    got = sweep.between(first, first + 1)
    want = [exact_j(t.tolist(), p.tolist(), int(a), int(b)) for a, b in pairwise(at)]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_many_blocks_agree_with_prefix_sums_and_keep_a_millisecond_after_days():
    rng = np.random.default_rng(0)
    n = 300_000
    t = np.cumsum(rng.integers(1, 2_000_000_000, n)) + 10**17
    p = 300 + 200 * np.sin(np.arange(n))
    begin = np.sort(rng.integers(t[0] - 10**9, t[-1], 5000))
    end = begin + rng.integers(0, 10**9, 5000)
    np.testing.assert_allclose(
        energy_j(t, p, begin, end), Integral.of_power(t, p).between(begin, end), rtol=1e-7, atol=1e-7
    )
    late = int(t[-2]) + 5
    want = exact_j(t[-3:].tolist(), p[-3:].tolist(), late, late + 10**6)
    assert float(energy_j(t, p, late, late + 10**6)) == pytest.approx(want, rel=1e-9)


def test_times_must_increase_across_pieces_too():
    sweep = Sweep(np.array([0, 5]))
    sweep.add(np.array([0, 3]), np.array([1.0, 2.0]))
    with pytest.raises(AnalysisError, match="increase"):
        sweep.add(np.array([3, 4]), np.array([1.0, 2.0]))
    with pytest.raises(AnalysisError, match="finite"):
        sweep.add(np.array([4, 5]), np.array([1.0, np.inf]))
