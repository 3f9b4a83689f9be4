"""Sheets on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from powerd_analytics.exports.sheet import Sheet
from powerd_analytics.unbroken import NO_EDGE, print_unbroken
from powerd_core.text import printable


def print_sheets(sheets: Sequence[Sheet], console: Console) -> None:
    """One table a sheet, rounded for people, with numbered footnotes."""
    for sheet in sheets:
        columns, lines, notes = sheet.shown()
        made = Table(
            title=_text(sheet.title), title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD
        )
        for column in columns:
            justify = "left" if column.kind in ("text", "flag") else "right"
            made.add_column(_text(column.heading), justify=justify, overflow="fold")  # type: ignore[arg-type]
        for line in lines:
            made.add_row(*map(_text, line))
        _print_whole(made, console)
        for i, note in enumerate(notes, 1):
            console.print(f" {i}  {printable(note)}", markup=False, highlight=False)
        for note in sheet.notes:
            console.print(f" {printable(note)}", markup=False, highlight=False)
        console.print()


def _print_whole(table: Table, console: Console) -> None:
    """A file or a pipe has no edge: columns are never folded there."""
    if console.is_terminal:
        print_unbroken(table, console)
        return
    width = console.width
    needed = Measurement.get(console, console.options.update(max_width=NO_EDGE), table).maximum
    console.width = max(width, needed)
    console.print(table)
    console.width = width


def _text(text: str) -> Text:
    # Not a string: rich would take brackets in it for its own, and passes control characters on.
    return Text(printable(text))
