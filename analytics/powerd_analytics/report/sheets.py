"""Sheets as the page's template takes them: texts, exact values for sorting, footnotes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from powerd_analytics.exports.sheet import Sheet, SheetColumn
from powerd_analytics.records.columns import Cell
from powerd_core.text import printable

LONG = 60
"""A text longer than this may be broken into lines."""


@dataclass(frozen=True, slots=True)
class Head:
    text: str
    unit: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class ShownCell:
    """``value`` is the number in full precision, None for a text or where nothing is known."""

    text: str
    value: str | None
    style: str


@dataclass(frozen=True, slots=True)
class ShownSheet:
    id: str
    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[ShownCell, ...], ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]


def shown_sheet(sheet: Sheet, identity: str = "") -> ShownSheet:
    """A sheet for the template, its strings made printable."""
    columns, lines, footnotes = sheet.shown()
    places = [next(i for i, c in enumerate(sheet.columns) if c is column) for column in columns]
    rows = tuple(
        tuple(_cell(row[at], text, column) for at, column, text in zip(places, columns, line, strict=True))
        for row, line in zip(sheet.rows, lines, strict=True)
    )
    heads = tuple(
        Head(printable(c.heading), "" if c.units == "1" else printable(c.units), _numeric(c)) for c in columns
    )
    return ShownSheet(
        identity or sheet.name, printable(sheet.title), heads, rows, tuple(map(printable, footnotes)),
        tuple(map(printable, sheet.notes)),
    )  # fmt: skip


def plain_sheet(name: str, title: str, columns: Sequence[SheetColumn], rows: Sequence[Sequence[Cell]]) -> Sheet:
    """A sheet of cells as they are."""
    return Sheet(name, title, tuple(columns), tuple(tuple(row) for row in rows))


def text_column(name: str) -> SheetColumn:
    return SheetColumn(name, name, "text")


def number_column(name: str, units: str = "") -> SheetColumn:
    return SheetColumn(name, name, "number", units)


def count_column(name: str) -> SheetColumn:
    return SheetColumn(name, name, "integer", "1")


def _numeric(column: SheetColumn) -> bool:
    return column.kind in ("number", "integer")


def _cell(value: Cell, text: str, column: SheetColumn) -> ShownCell:
    shown = printable(text)
    if not _numeric(column):
        return ShownCell(shown, None, "long" if len(shown) > LONG else "")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return ShownCell(shown, repr(value) if is_number else None, "n")
