"""Progress: late, and for people only."""

import io

import pytest
from hypothesis import given
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


# Tables on narrow terminals: no figure is cut in two, and a table that fits is left as it is.


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
