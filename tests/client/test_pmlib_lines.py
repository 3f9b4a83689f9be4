"""Sets of lines: pmlib's text and pmlib's macros."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client import pmlib
from powerd_client.pmlib import Lines, pm_set_lines
from powerd_core.errors import ConfigError

NUMBERS = st.sets(st.integers(0, 127), min_size=1)


@given(NUMBERS)
def test_a_set_survives_its_text(numbers):
    lines = Lines(numbers)
    assert pm_set_lines(str(lines)) == lines
    assert list(lines) == sorted(numbers)


@given(st.lists(st.tuples(st.integers(0, 127), st.integers(0, 127)).map(sorted), min_size=1), st.data())
def test_ranges_in_any_order_and_overlapping(ranges, data):
    text = ",".join(
        str(a) if a == b and data.draw(st.booleans()) else data.draw(st.sampled_from([f"{a}-{b}", f" {a} - {b} "]))
        for a, b in ranges
    )
    assert set(pm_set_lines(text)) == {i for a, b in ranges for i in range(a, b + 1)}


@given(st.text(alphabet="0123456789-, x²٣", max_size=8))
def test_any_text_is_a_set_of_lines_or_our_error(text):
    try:
        lines = pm_set_lines(text)
    except ConfigError:
        return
    assert len(lines) > 0
    assert pm_set_lines(str(lines)) == lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no line and no range: write them as '1-4,6'"),
        ("1,,2", "'' is no line"),
        ("1-4-6", "'1-4-6' is no line"),
        ("-3", "'-3' is no line"),
        ("4-1", "'4-1' runs backwards"),
        ("128", "line 128: lines have the numbers 0 to 127"),
        ("0-200", "line 128"),
    ],
)
def test_text_that_is_no_set(text, message):
    with pytest.raises(ConfigError, match=message):
        pm_set_lines(text)


def test_macros():
    lines = Lines()
    pmlib.LINE_SET(7, lines)
    pmlib.LINE_SET(9, lines)
    pmlib.LINE_CLR(9, lines)
    pmlib.LINE_CLR(9, lines)
    assert pmlib.LINE_ISSET(7, lines)
    assert not pmlib.LINE_ISSET(9, lines)
    assert not lines.is_all
    pmlib.LINE_SET_ALL(lines)
    assert (len(lines), lines.is_all, str(lines)) == (128, True, "0-127")
    pmlib.LINE_CLR_ALL(lines)
    assert str(lines) == ""
    with pytest.raises(ConfigError, match="lines have the numbers 0 to 127"):
        pmlib.LINE_SET(-1, lines)
