"""Tables on narrow terminals: no figure is cut in two, and a table that fits is left as it is."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.unbroken import print_unbroken

FIGURES = st.integers(0, 10**9).map(str) | st.floats(0.001, 1e6).map(lambda x: f"≥ {x:.4g}")


def table(names, lines):
    made = Table(title="Phases", title_justify="left", box=SIMPLE_HEAD)
    for i, name in enumerate(names):
        made.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for line in lines:
        made.add_row(*map(Text, line))
    return made


def printed(made, width):
    out = io.StringIO()
    print_unbroken(made, Console(file=out, width=width, force_terminal=True, color_system=None))
    return out.getvalue()


@given(st.integers(10, 200), st.integers(1, 8), st.data())
def test_every_figure_is_whole_at_any_width(width, columns, data):
    row = st.tuples(st.text("abcdefgh ", max_size=40), *[FIGURES] * columns)
    lines = data.draw(st.lists(row, min_size=1, max_size=4))
    text = printed(table(["phase", *(f"quantity_of_{i}" for i in range(columns))], lines), width)
    for line in lines:
        assert any(all(cell in shown for cell in line[1:]) for shown in text.splitlines()), (line, text)


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_what_is_too_wide_goes_over_the_edge(monkeypatch, terminal):
    monkeypatch.setenv("TERM", terminal)
    energy, power = "1" * 60, "2" * 60
    text = printed(table(["phase", "J/batch", "W"], [("forward", energy, power)]), 20)
    assert f"forward {energy} {power}" in text


def test_a_table_that_fits_is_as_rich_makes_it():
    lines = [("forward", "1.25", "2.5")]
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=True, color_system=None).print(table(["phase", "J", "W"], lines))
    assert printed(table(["phase", "J", "W"], lines), 80) == out.getvalue()
