"""Progress: late, and for people only."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from powerd_analytics.output.export import Column, make_table, print_tables, round_table
from powerd_analytics.output.terminal import LateProgress


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_log_gets_nothing_of_a_bar(is_terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=80)
    with LateProgress(console, delay_s=0.0) as progress:
        progress(0.5, "half of it")
    assert ("half of it" in text.getvalue()) is is_terminal
    assert bool(text.getvalue()) is is_terminal


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 200), st.integers(1, 8), st.data())
def test_every_figure_is_whole_at_any_width(width, columns, data):
    row = st.tuples(st.text("abcdefgh ", max_size=40), *[st.floats(0.001, 1e6)] * columns)
    lines = data.draw(st.lists(row, min_size=1, max_size=4))
    figures = [Column(f"quantity_of_{i}", "number") for i in range(columns)]
    table = make_table("phases", "Phases", [Column("phase"), *figures], lines)
    out = io.StringIO()
    print_tables([table], Console(file=out, width=width, force_terminal=True, color_system=None))
    cells = {cell for line in round_table(table).lines for cell in line[1:]}
    assert cells <= set(out.getvalue().split())
