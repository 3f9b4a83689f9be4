import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.signals.integral import Integral, counter_energy_j, energy_j, unwrap_counter
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


@given(signals, st.floats(0, 1), st.floats(0, 1))
def test_energy_equals_trapezoids_on_a_refined_grid(signal, one, other):
    t, p = signal
    length = int(t[-1] - t[0])
    begin, end = sorted((int(t[0]) + int(one * length), int(t[0]) + int(other * length)))
    rel = (t - t[0]).astype(float)
    grid = np.unique(np.concatenate([rel, [begin - t[0], end - t[0]]]))
    grid = grid[(grid >= begin - t[0]) & (grid <= end - t[0])]
    expected = np.trapezoid(np.interp(grid, rel, p), grid) * 1e-9
    assert float(energy_j(t, p, begin, end)) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_nothing_outside_the_readings_counts():
    t, p = np.array([100, 200], np.int64), np.array([5.0, 5.0])
    assert float(energy_j(t, p, 0, 1000)) == pytest.approx(5 * 100e-9)
    assert float(energy_j(t, p, 0, 50)) == 0
    assert float(Integral.of_power(t, p).covered_s(0, 150)) == pytest.approx(50e-9)


def test_a_constant_power_is_not_lost_between_equal_readings():
    t = np.array([0, 10 * 10**9], np.int64)
    assert float(energy_j(t, np.array([60.0, 60.0]), 0, 10 * 10**9)) == pytest.approx(600)


def test_hours_keep_the_precision_of_a_millisecond():
    t = np.arange(0, 20 * 3600 * 10**9, 50 * 10**6, dtype=np.int64) + 10**17
    p = 300 + 200 * np.sin(np.arange(len(t)))
    begin = t[-3] + 7
    got = float(energy_j(t, p, begin, begin + 10**6))
    i = np.interp([7, 10**6 + 7], [0, 50 * 10**6], p[-3:-1])
    assert got == pytest.approx(i.mean() * 1e-3, rel=1e-6)


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
