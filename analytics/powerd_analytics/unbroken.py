"""Tables on a terminal that is narrower than they are: figures stay whole, whatever else gives way."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

NO_EDGE = 100_000
"""A width for measuring what does not fold."""
_HEADING = 6
"""Headings of figures are folded to this width, as far as the figures below them allow it."""
_WORD = 12
"""So are words in columns of text."""


def print_unbroken(table: Table, console: Console) -> None:
    """Print a table whose right-justified columns are figures: a figure cut in two reads as another one.

    Where it does not fit, the space between columns goes first, then headings and text are folded; what is still too
    wide goes over the terminal's edge.
    """
    width = console.width
    options = console.options.update(max_width=NO_EDGE)
    if Measurement.get(console, options, table).maximum > width:
        table.padding = (0, 0, 0, 0)
        needed = Measurement.get(console, options, table).minimum
        for column in table.columns:
            word = max(map(_longest_word, (column.header, *column.cells)))
            if column.justify == "right":
                heading = min(_longest_word(column.header), _HEADING)
                column.width = max([heading, *(cell_len(_plain(cell)) for cell in column.cells)])
                needed += column.width - word
            else:
                needed -= max(0, word - _WORD)
        if needed > width:
            table.width = needed  # not the console's: rich takes a dumb terminal to have 80 columns whatever is set
    console.print(table, crop=False)


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _longest_word(cell: RenderableType) -> int:
    return max(map(cell_len, _plain(cell).split()), default=0)
