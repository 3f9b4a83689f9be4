"""Progress: late, and for people only."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from powerd_analytics.terminal import LateProgress, print_unbroken


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_gets_nothing_of_a_bar(is_terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=80)
    with LateProgress(console, delay_s=0.0) as progress:
        progress(0.5, "half of it")
    assert ("half of it" in text.getvalue()) is is_terminal
    assert bool(text.getvalue()) is is_terminal


FIGURES = st.integers(0, 10**9).map(str) | st.floats(0.001, 1e6).map(lambda x: f"≥ {x:.4g}")


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 200), st.integers(1, 8), st.data())
def test_every_figure_is_whole_at_any_width(width, columns, data):
    row = st.tuples(st.text("abcdefgh ", max_size=40), *[FIGURES] * columns)
    lines = data.draw(st.lists(row, min_size=1, max_size=4))
    table = Table(title="Phases", box=SIMPLE_HEAD)
    for i in range(columns + 1):
        table.add_column(f"quantity_of_{i}", justify="right" if i else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(Text, line))
    out = io.StringIO()
    print_unbroken(table, Console(file=out, width=width, force_terminal=True, color_system=None))
    for line in lines:
        assert any(all(cell in shown for cell in line[1:]) for shown in out.getvalue().splitlines()), line
