"""Figures of merit: one table, one spelling, and the older ones."""

import numpy as np
import pytest

from powerd_analytics.energy import metrics
from powerd_analytics.frame.merits import MERITS, OF_A_SWEEP, Given, merit_of
from powerd_core.errors import AnalysisError


@pytest.mark.parametrize(
    ("text", "name"),
    [("t", "time"), ("EDP", "edp"), ("SML", "sml"), ("saving_minus_loss", "sml"), ("eds", "eds:2"), ("eds:4", "eds:4")],
)
def test_older_spellings_are_known(text, name):
    assert merit_of(text).name == name
    assert merit_of(merit_of(text).name) == merit_of(text)


@pytest.mark.parametrize("text", ["", "watts", "e:2", "eds:", "eds:0.9", "eds:nan"])
def test_what_is_none_is_refused(text):
    with pytest.raises(AnalysisError, match=r"is none of e, time|k must be 1 or more"):
        merit_of(text)


def test_values_are_those_of_the_metrics():
    e, t = np.array([90.0, 100.0]), np.array([11.0, 10.0])
    given = Given((100.0, 10.0), e, np.array([5.0, 6.0]), np.array([2.0, 2.0]), 0.5, 300.0, 0.3)
    values = {name: merit.value(e, t, given).tolist() for name, merit in MERITS.items()}
    expected = {
        "e": [90, 100], "time": [11, 10], "edp": [990, 1000], "ed2p": [10890, 10000],
        "eds": metrics.eds(e, t, 100.0, 10.0, 2.0).tolist(), "sml": [0, 0],
        "cost": metrics.zeus_cost_j(e, t, 300.0).tolist(), "gflops_per_w": [5, 6], "j_per_sample": [45, 50],
        "money": metrics.money(e, 0.3).tolist(),
    }  # fmt: skip
    assert {name: pytest.approx(value, abs=1e-9) for name, value in expected.items()} == values


@pytest.mark.parametrize("name", [*OF_A_SWEEP, "sml"])
def test_a_ratio_is_one_at_the_reference_and_its_logarithm_agrees(name):
    merit = merit_of(name)
    assert merit.is_relative
    assert merit.ratio(1.0, 1.0) == pytest.approx(1.0)
    log = merit.logarithm(np.log([0.8]), np.log([1.1]))
    assert np.exp(log) == pytest.approx([merit.ratio(0.8, 1.1)])
