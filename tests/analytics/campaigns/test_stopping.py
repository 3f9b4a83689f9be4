"""When repeats end, and what the interval is worth then."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.campaigns.stopping import StoppingRule
from powerd_core.errors import AnalysisError

POSITIVE = st.floats(0.5, 2.0)


def test_an_interval_by_hand():
    interval = StoppingRule(0.01).interval([1.00, 1.01, 0.99, 1.00, 1.00])
    assert (interval.mean, interval.runs) == (pytest.approx(1.0), 5)
    assert interval.u95 == pytest.approx(3.298 * 0.0070711 / math.sqrt(5), rel=1e-3)  # t(0.985, 4)
    assert not interval.is_narrow
    assert StoppingRule(0.011).interval([1.00, 1.01, 0.99, 1.00, 1.00]).is_narrow


def test_a_fixed_number_of_repeats_is_not_looked_at():
    values = [1.00, 1.01, 0.99, 1.00, 1.00]
    assert StoppingRule(0.01, 5, 5).interval(values).u95 == pytest.approx(2.776 * 0.0070711 / math.sqrt(5), rel=1e-3)
    assert StoppingRule(1e-9, 5, 5).is_done(values)


@given(st.lists(POSITIVE, min_size=1, max_size=25), st.floats(1e-3, 1e3))
def test_units_do_not_matter(values, scale):
    rule = StoppingRule(0.02)
    one, other = rule.interval(values), rule.interval(np.array(values) * scale)
    assert other.mean == pytest.approx(scale * one.mean)
    assert other.u95 == pytest.approx(scale * one.u95, rel=1e-6, abs=1e-12 * scale, nan_ok=True)


@given(st.lists(POSITIVE, min_size=2, max_size=25), st.floats(0.001, 0.1))
def test_what_is_narrow_is_narrow_for_a_wider_wish(values, half_width):
    if StoppingRule(half_width).is_done(values):
        assert StoppingRule(2 * half_width).is_done(values)
    assert StoppingRule(half_width).is_done(values + values * 20)


def test_after_stopping_the_interval_covers_as_stated_where_a_plain_one_does_not():
    rng = np.random.default_rng(1)
    rule, n, covered, plain = StoppingRule(0.007), 1500, 0, 0
    fixed = StoppingRule(0.007, 20, 20)
    for values in 1 + 0.01 * rng.standard_normal((n, 20)):
        runs = next(k for k in range(5, 21) if rule.is_done(values[:k]))
        interval = rule.interval(values[:runs])
        covered += abs(interval.mean - 1) <= interval.u95
        # The same looks at the plain interval.
        runs = next(k for k in range(5, 21) if k == 20 or fixed.interval(values[:k]).is_narrow)
        interval = fixed.interval(values[:runs])
        plain += abs(interval.mean - 1) <= interval.u95
    assert 0.93 <= covered / n <= 0.975
    assert plain < covered


@pytest.mark.parametrize("arguments", [(0.0,), (math.nan,), (-0.01,), (0.01, 1, 5), (0.01, 6, 5)])
def test_a_rule_that_cannot_be_followed_is_refused(arguments):
    with pytest.raises(AnalysisError):
        StoppingRule(*arguments)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan]])
def test_a_value_that_is_no_measurement_is_refused(values):
    with pytest.raises(AnalysisError):
        StoppingRule(0.01).interval(values)
