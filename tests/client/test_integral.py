"""Energy of sampled power between any moments, against exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.signals import integral
from powerd_client.signals.integral import Integral, counter_energy_j, energy_j, unwrap_counter
from powerd_core.errors import AnalysisError

signals = st.lists(
    st.tuples(st.integers(1, 10**9), st.floats(-1e3, 1e3, allow_nan=False)), min_size=2, max_size=40
).map(lambda steps: (np.cumsum([s[0] for s in steps]) + 10**15, np.array([s[1] for s in steps])))


@given(signals, st.lists(st.floats(0, 1), min_size=0, max_size=8))
def test_energy_is_additive_over_any_split(signal, shares):
    t, p = signal
    length = int(t[-1] - t[0])
    cuts = np.sort([t[0], t[-1], *(t[0] + int(s * length) for s in shares)])
    parts = energy_j(t, p, cuts[:-1], cuts[1:])
    assert parts.sum() == pytest.approx(float(energy_j(t, p, t[0], t[-1])), abs=1e-9 * (1 + np.abs(p).max() * length))


def test_nothing_outside_the_readings_counts():
    t, p = np.array([100, 200], np.int64), np.array([5.0, 5.0])
    assert float(energy_j(t, p, 0, 1000)) == pytest.approx(5 * 100e-9)
    assert float(energy_j(t, p, 0, 50)) == 0
    assert float(Integral.of_power(t, p).covered_s(0, 150)) == pytest.approx(50e-9)


def test_counters_interpolate_differences():
    t, e = np.array([0, 100, 200], np.int64), np.array([0.0, 10.0, 40.0])
    np.testing.assert_allclose(counter_energy_j(t, e, [0, 50, 150], [200, 150, 1000]), [40, 20, 15])


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=30), st.integers(0, 2**32 - 1))
def test_counters_unwrap(steps, start):
    true = start + np.concatenate([[0], np.cumsum(steps)])
    counts, reset = unwrap_counter((true % 2**32).astype(np.int64), 32)
    np.testing.assert_array_equal(counts, true - start)
    assert not reset.any()


def test_a_wide_counter_that_falls_was_reset():
    counts, reset = unwrap_counter(np.array([5, 9, 1, 4]), 64)
    assert counts.tolist() == [0, 4, 4, 7]
    assert reset.tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("t", "p", "text"),
    [
        ([0, 1], [1.0], "shape"),
        ([0, 0], [1.0, 1.0], "increase"),
        ([0, 1], [1.0, np.nan], "finite"),
        ([0.0, 1.5], [1.0, 1.0], "integer"),
    ],
)
def test_unusable_signals_are_refused(t, p, text):
    with pytest.raises(AnalysisError, match=text):
        energy_j(t, p, 0, 1)


def test_no_reading_gives_no_energy():
    assert energy_j(np.zeros(0, np.int64), np.zeros(0), [0, 1], [5, 6]).tolist() == [0, 0]


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
    st.lists(st.tuples(st.integers(1, 10**7), st.floats(-500, 500)), min_size=1, max_size=40),
    st.lists(st.tuples(*[st.integers(-(10**7), 4 * 10**8)] * 2), max_size=12),
    st.integers(1, 9),
)
def test_any_block_gives_the_exact_joules(steps, intervals, block):
    t = np.cumsum([s for s, _ in steps]).astype(np.int64)
    p = np.array([w for _, w in steps])
    begin, end = np.array([sorted(x) for x in intervals], np.int64).reshape(-1, 2).T
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(integral, "BLOCK", block)
        got = energy_j(t, p, begin, end)
    want = [exact_j(t.tolist(), p.tolist(), int(a), int(b)) for a, b in zip(begin, end, strict=True)]
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
