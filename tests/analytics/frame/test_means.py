"""The mean of several runs: its parts, after looks, and of ratios block by block."""

from math import exp, inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from powerd_analytics.energy.uncertainty import expanded_uncertainty, student
from powerd_analytics.frame.figure import Figure
from powerd_analytics.frame.means import mean_of_numbers, mean_of_ratios, mean_of_repeats

VALUES = [10.0, 10.4, 9.9, 10.1]


def test_what_is_statistical_shrinks_and_what_is_shared_does_not():
    mean = mean_of_repeats([Figure(value, 0.3, 0.2, 0.1) for value in VALUES])
    assert mean.value == pytest.approx(np.mean(VALUES))
    assert mean.u_statistical == pytest.approx(np.std(VALUES, ddof=1) / 2)
    assert (mean.u_systematic, mean.rectangle, mean.degrees_of_freedom) == (pytest.approx(0.2), pytest.approx(0.1), 3)
    one = Figure(3.0, 0.1)
    assert mean_of_repeats([one]) is one
    same = mean_of_repeats([Figure(3.0, 0.1)] * 4)
    assert (same.u_statistical, same.degrees_of_freedom) == (pytest.approx(0.05), inf)


def test_after_looks_the_interval_is_the_wider_one():
    u = np.std(VALUES, ddof=1) / 2
    assert mean_of_numbers(VALUES).u95 == pytest.approx(stdtrit(3, 0.975) * u)
    assert mean_of_numbers(VALUES, looked=True).u95 == pytest.approx(stdtrit(3, 0.985) * u)


def test_ratios_have_their_geometric_mean():
    ratios = [0.8, 0.82, 0.79]
    mean, logs = mean_of_ratios(ratios), np.log(ratios)
    assert mean.value == pytest.approx(exp(logs.mean()))
    assert mean.u95 == pytest.approx(mean.value * float(student(2)) * np.std(logs, ddof=1) / sqrt(3))
    assert mean_of_ratios([0.8]).u95 is None


@given(st.floats(0.01, 10), st.floats(0, 10), st.floats(0, 1), st.integers(1, 30))
def test_an_interval_is_never_less_than_that_of_the_spread_alone(spread, systematic, share, freedom):
    """Degrees of freedom grow with what is systematic: with little of it the interval once fell below."""
    both = expanded_uncertainty(spread, systematic, share * systematic, freedom)
    assert both >= expanded_uncertainty(spread, 0.0, 0.0, freedom) * (1 - 1e-12)
