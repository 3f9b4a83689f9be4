"""Bars: which axis they stand on, what their numbers say, and what of them is not known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("matplotlib")
from matplotlib.figure import Figure

from powerd_analytics.plots.configurations import SMALLEST
from powerd_analytics.plots.style import BARS_LOG_FROM, Bar, draw_bars

VALUES = st.floats(-1e3, 1e6).filter(lambda v: v == 0 or abs(v) >= SMALLEST)  # what tables may hold to be drawn
HEIGHTS = st.lists(st.tuples(st.none() | VALUES, st.none() | st.floats(0, 1e3)), min_size=1, max_size=4)


def drawn(heights, *, is_lower_bound=False, unknown="n.r."):
    ax = Figure(figsize=(5, 3)).subplots()
    bars = [Bar(float(i), 0.8, height, "#0072B2", "", is_lower_bound) for i, height in enumerate(heights)]
    draw_bars(ax, bars, heights, 4.5, unknown=unknown)
    return ax


@settings(max_examples=25, deadline=None)
@given(HEIGHTS)
def test_every_bar_and_interval_is_on_the_axis(heights):
    ax = drawn(heights)
    low, high = ax.get_ylim()
    assert low <= 0 or ax.get_yscale() == "log"
    for h, u in heights:
        if h is not None:
            assert low <= h <= high
            assert h + (u or 0.0) <= high


def test_heights_over_decades_stand_on_a_logarithmic_axis():
    assert drawn([(1.0, 0.1), (BARS_LOG_FROM * 0.9, 1.0)]).get_yscale() == "linear"
    ax = drawn([(1e-4, 1e-5), (1.0, 0.1), (2e3, 20.0)])
    assert ax.get_yscale() == "log"
    assert ax.get_ylim()[0] <= 1e-4
    # No logarithm of what flowed back.
    assert drawn([(-1.0, None), (2e3, None)]).get_yscale() == "linear"


@pytest.mark.parametrize("heights", [[(None, None), (5.0, 1.0)], [(None, None), (1e-4, None), (1e3, None)]])
def test_what_is_not_known_has_a_box_of_one_size_on_every_axis_and_no_number(heights):
    ax = drawn(heights)
    box = next(p for p in ax.patches if p.get_hatch() == "xxxx")
    across = ax.get_xaxis_transform()
    assert box.get_transform().contains_branch(across)
    assert box.get_height() == pytest.approx(0.035)
    assert [t.get_text() for t in ax.texts].count("n.r.") == 1


def test_numbers_stand_upright_turned_or_not_at_all():
    assert {t.get_rotation() for t in drawn([(1.0, None)] * 3).texts} == {0.0}
    assert {t.get_rotation() for t in drawn([(1.2345, None)] * 30).texts} == {90.0}
    assert not drawn([(1.2345, None)] * 90).texts


def test_a_bound_has_an_arrow_and_a_sign():
    ax = drawn([(3.0, None)], is_lower_bound=True)
    assert [t.get_text() for t in ax.texts] == ["≥ 3.00"]
    assert ax.containers
