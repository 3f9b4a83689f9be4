"""One model of a table, and every form in which a table leaves the house.

A `Table` has columns, rows of plain cells (text, whole numbers, numbers, True and False, None where there is no
value), notes that hold for all of it, and bounds: cells that are known from one side only, because a sensor stood at
full scale.

Programs take CSV, JSON (a list of rows), Parquet and HDF5, with full precision. People take the terminal, Markdown and
LaTeX, which all show what `round_table` makes of a table.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import h5py
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from powerd_analytics.output.terminal import NO_EDGE, hanging_indent
from powerd_analytics.output.text import Cell, digits, is_number_cell, shorten
from powerd_client.host.ownership import Changed, Identity, identity, whole_output
from powerd_client.runs.recover import open_run
from powerd_client.runs.runfile import DIGEST, clean, digest, own_name, steady_hdf5, write_numbers, write_strings
from powerd_core.errors import AnalysisError, PowerdError, RunFileError
from powerd_core.text import figure_and_u95, printable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Kind = Literal["text", "integer", "number", "flag"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: ``name`` for programs, ``heading`` for people. ``units`` is empty for names, ``1`` for counts."""

    name: str
    kind: Kind = "text"
    units: str = ""
    meaning: str = ""
    heading: str = ""
    sign: str = ""
    """What stands before a number that is known from one side only."""
    is_uncertainty: bool = False
    """An expanded uncertainty of the column before it: two digits are enough."""
    is_hidden: bool = False
    """For programs: people see it as a sign or a footnote."""
    missing: str = "–"
    """What people see where a number has no value."""
    per: float = 1.0
    """People see a number in these: 1e6 for millions."""
    is_setting: bool = False
    """What a row is of, such as a device or a batch size. Where all rows have the same, people read it once."""

    @property
    def is_numeric(self) -> bool:
        return self.kind in ("number", "integer")


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows, with what a reader must know of them."""

    name: str
    """For programs: the key in an HDF5 file, the label in LaTeX."""
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    bounds: frozenset[tuple[int, int]] = frozenset()
    """Row and column of the cells that are known from one side only."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    def records(self) -> list[dict[str, Cell]]:
        """The rows by the names of the columns."""
        return [dict(zip(self.names, row, strict=True)) for row in self.rows]


def make_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Cell] | Sequence[Cell]],
    notes: Sequence[str] = (),
    bounds: Iterable[tuple[int, int]] | None = None,
) -> Table:
    """A table of rows by name or in the order of the columns.

    Without ``bounds``, all columns with a sign are bounds in rows whose ``is_lower_bound`` is true.
    """
    names = [c.name for c in columns]
    lines = [tuple(row.get(n) for n in names) if isinstance(row, Mapping) else tuple(row) for row in rows]
    if bounds is None:
        at = names.index("is_lower_bound") if "is_lower_bound" in names else None
        bounded = [i for i, row in enumerate(lines) if at is not None and row[at] is True]
        bounds = [(i, k) for i in bounded for k, c in enumerate(columns) if c.sign]
    return Table(name, title, tuple(columns), tuple(lines), tuple(notes), frozenset(bounds))


PROVENANCE = "provenance"
"""The column that says how joules came about: measured, modelled or simulated."""


def with_provenance(table: Table, kinds: Iterable[str]) -> Table:
    """The table with how its joules came about, in every format: a column for programs where it has none, and a note
    for people where these are not all measured and no column that they see says so."""
    every = sorted(set(kinds) - {""})
    if PROVENANCE not in table.names and every:
        column, text = Column(PROVENANCE, is_hidden=True), " and ".join(every)
        table = replace(table, columns=(*table.columns, column), rows=tuple((*row, text) for row in table.rows))
    is_seen = any(column.name == PROVENANCE and not column.is_hidden for column in table.columns) and len(table) > 0
    if set(every) <= {"measured"} or is_seen:
        return table
    note = f"joules are {' and '.join(every)}"
    return replace(table, notes=tuple(dict.fromkeys((note, *table.notes))))


@dataclass(frozen=True, slots=True)
class Rounded:
    """A table for people: numbers rounded, empty and hidden columns left out, notes as numbers of footnotes."""

    columns: list[Column]
    places: list[int]
    """Where each of the columns stands in the table."""
    lines: list[list[str]]
    footnotes: list[str]


def round_table(table: Table) -> Rounded:
    """A table for people. The texts of a column ``note`` become footnotes, equal ones once."""
    columns = table.columns
    numbers: dict[str, int] = {}
    lines = []
    for r, row in enumerate(table.rows):
        cells = []
        for k, (column, value) in enumerate(zip(columns, row, strict=True)):
            if column.name == "note":
                texts = [text for text in str(value or "").split("; ") if text]
                marks = [numbers.setdefault(text, len(numbers) + 1) for text in texts]
                cells.append(" ".join(map(str, sorted(marks))))
            else:
                cells.append(_shown(column, value, is_bound=(r, k) in table.bounds))
        for k in range(1, len(columns)):
            _round_by_u95(columns[k - 1 : k + 1], row[k - 1 : k + 1], cells, k)
        lines.append(cells)
    places = [
        k
        for k, column in enumerate(columns)
        if not column.is_hidden and (not lines or any(line[k] not in ("", "–") for line in lines))
    ]
    return Rounded([columns[k] for k in places], places, [[line[k] for k in places] for line in lines], [*numbers])


def _round_by_u95(columns: Sequence[Column], values: Sequence[Cell], cells: list[str], k: int) -> None:
    """Where cell ``k`` is the uncertainty of the figure before it, both end at the same digit."""
    figure, u95 = values
    if not (columns[1].is_uncertainty and columns[0].is_numeric and not columns[0].is_uncertainty):
        return
    if not (is_number_cell(figure) and is_number_cell(u95) and u95 > 0) or isinstance(figure, int):
        return
    of, u_of = figure / columns[0].per, u95 / columns[1].per
    _, e, exponent = cells[k - 1].partition("e")
    scale = 10.0 ** int(exponent) if e else 1.0  # such a figure shares its power of ten with its U95
    number, spread = figure_and_u95(of / scale, u_of / scale)
    is_bound = columns[0].sign and cells[k - 1].startswith(columns[0].sign)
    cells[k - 1] = (f"{columns[0].sign} {number}" if is_bound else number) + e + exponent
    if not e:
        cells[k] = spread


def _shown(column: Column, value: Cell, *, is_bound: bool) -> str:
    if value is None:
        return "" if column.kind == "text" else column.missing
    if column.kind == "flag":
        return "yes" if value else ""
    if isinstance(value, bool | str):
        return str(value)
    value = value if column.per == 1 else value / column.per
    text = cell_text(column.name, value, 2 if column.is_uncertainty else 4)
    return f"{column.sign} {text}" if is_bound and column.sign else text


def cell_text(name: str, value: float, places: int = 4) -> str:
    """A number for people: counts and settings as they are, figures in so many digits."""
    if name == "p" and value < 1e-4:
        return "< 0.0001"
    if name.endswith("clock_hz"):
        return f"{value / 1e6:.6g}"
    if isinstance(value, int) or name in ("batch_size", "power_cap_w", "gpus"):
        return f"{value:.6g}" if abs(value) < 1e6 else str(round(value))
    return digits(value, places)


# -- programs ----------------------------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """RFC 4180 with the columns' names as header; numbers in full precision, nothing for what has no value."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(csv_cell, row) for row in (table.names, *table.rows)])
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    r"""A cell for CSV. A text that a spreadsheet would calculate (``=cmd|...``) gets an apostrophe in front.

    That makes it a text there too; one that is a number stays as it is. Control characters, which a terminal would
    obey, are spelled out (``\x1b``), but for line breaks and tabs within a text.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith(("=", "@", "+", "-")) or value.startswith(("\t", "\r")):
        value = value if is_number(value) else f"'{value}"
    return encodable(_CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), value))


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_number(text: str) -> bool:
    """Whether a text reads like a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def encodable(value: Any) -> Any:
    r"""A cell as it can be written in UTF-8: half a character, as undecodable names have (PEP 383), as ``\udcff``."""
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value


def to_json_text(document: Any, *, indent: int | None = 1, sort_keys: bool = False) -> str:
    """The document as JSON (RFC 8259, which has neither NaN nor infinities); what it does not know as text."""
    return json.dumps(_finite(document), indent=indent, sort_keys=sort_keys, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(v) for name, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, list | tuple) else value


def to_json(table: Table) -> str:
    """A JSON list of the rows, each an object by the columns' names; null for what has no value."""
    return to_json_text(table.records()) + "\n"


def arrow_schema(columns: Iterable[Column], metadata: Mapping[Any, str] | None = None) -> pa.Schema:
    """A typed field for each column; ``field.metadata[b"units"]`` holds the unit."""
    import pyarrow as pa

    types = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "flag": pa.bool_()}
    fields = [
        pa.field(encodable(c.name), types[c.kind], metadata={"units": c.units} if c.units else None) for c in columns
    ]
    return pa.schema(fields, metadata=metadata)


def arrow_table(
    columns: Iterable[Column], rows: Sequence[Mapping[Any, Any]], metadata: Mapping[Any, str] | None = None
) -> pa.Table:
    """Rows by the names of columns; what has no value is null."""
    import pyarrow as pa

    columns = list(columns)
    types: dict[Kind, Callable[[Any], Any]] = {"text": str, "number": float, "integer": int, "flag": bool}
    arrays = []
    for column in columns:
        values = (row.get(column.name) for row in rows)
        arrays.append([None if v is None else encodable(types[column.kind](v)) for v in values])
    return pa.table(arrays, schema=arrow_schema(columns, metadata))


def write_parquet(table: Table, path: Path) -> None:
    """The table as Parquet, with its title and notes as metadata."""
    import pyarrow.parquet as pq

    about = {"title": encodable(table.title), "notes": encodable("\n".join(table.notes))}
    pq.write_table(arrow_table(table.columns, table.records(), about), path)


def write_rows(
    columns: Sequence[Column], pieces: Iterable[Sequence[Mapping[str, Any]]], format: Literal["csv", "json", "parquet"],
    target: TextIO | Path,
) -> None:  # fmt: skip
    """Rows that come in pieces, of which one is in memory: to a new file, or text to an open one."""
    if isinstance(target, Path) and format != "parquet":
        with target.open("w", encoding="utf-8", newline="") as file:
            write_rows(columns, pieces, format, file)
        return
    if isinstance(target, Path):
        import pyarrow.parquet as pq

        with pq.ParquetWriter(target, arrow_schema(columns)) as writer:
            for rows in pieces:
                writer.write_table(arrow_table(columns, rows))
        return
    names = [c.name for c in columns]
    table = csv.writer(target, lineterminator="\n")
    if format == "csv":
        table.writerow(names)
        for rows in pieces:
            table.writerows([csv_cell(row[name]) for name in names] for row in rows)
        return
    between = "["
    for rows in pieces:
        for row in rows:
            target.write(between + "\n " + to_json_text({name: row[name] for name in names}, indent=None))
            between = ","
    target.write("[]\n" if between == "[" else "\n]\n")


# -- people ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Narrow:
    """A table for people who have 80 columns: what all its rows have in common stands above it, a figure and its
    uncertainty in one column, notes of one cause are one note."""

    title: str
    common: str
    """Settings that all rows have in common; empty for none."""
    columns: tuple[Column, ...]
    lines: tuple[tuple[str, ...], ...]
    marks: tuple[str, ...]
    """The numbers of the footnotes of each line."""


@dataclass(frozen=True, slots=True)
class Notes:
    """The notes of some tables that are read together, each once."""

    marks: tuple[tuple[str, ...], ...]
    """By table and row: the numbers of its footnotes."""
    footnotes: tuple[str, ...]
    below: tuple[str, ...]
    """What holds for all rows."""


def notes_of(tables: Sequence[Table]) -> Notes:
    """Their notes, those of one cause merged."""
    by_row = [[_texts_of_row(table, row) for row in table.rows] for table in tables]
    merged = merged_notes(text for rows in by_row for texts in rows for text in texts)
    footnotes = list(dict.fromkeys(merged.values()))
    number = {text: footnotes.index(one) + 1 for text, one in merged.items()}
    marks = tuple(tuple(" ".join(map(str, sorted({number[t] for t in texts}))) for texts in rows) for rows in by_row)
    return Notes(marks, tuple(footnotes), tuple(dict.fromkeys(note for table in tables for note in table.notes)))


def _texts_of_row(table: Table, row: Row) -> list[str]:
    note = row[table.names.index("note")] if "note" in table.names else None
    return [text for text in str(note or "").split("; ") if text]


def narrow_table(table: Table, marks: Sequence[str]) -> Narrow:
    """A table for a terminal or a page; ``marks`` has the numbers of the footnotes of each row."""
    shown = round_table(table)
    columns, lines = list(shown.columns), [list(line) for line in shown.lines]
    has_figures = any(not column.is_setting and column.name != "note" for column in columns)
    common = dict[str, str]()
    for k in reversed(range(len(columns))):
        of_column = {line[k] for line in lines}
        is_told_above = columns[k].is_setting and len(of_column) == 1 and has_figures
        if is_told_above:
            common[columns[k].name] = _in_words(columns[k], of_column.pop())
        is_paired = k > 0 and _is_paired(columns[k - 1], columns[k])
        if is_paired:
            _pair(columns, lines, k)
        if is_told_above or is_paired or columns[k].name == "note":
            del columns[k]
            for line in lines:
                del line[k]
    if common.get("gpus") == "1 GPU" and common.get("device", "").startswith("cpu"):
        del common["gpus"]
    return Narrow(
        table.title, ", ".join(reversed(common.values())), tuple(columns), tuple(map(tuple, lines)), tuple(marks)
    )


def _in_words(column: Column, text: str) -> str:
    if column.name == "gpus":
        return f"{text} GPU{'s' * (text != '1')}"
    is_plain = column.kind == "text" and not column.name.startswith("attribute_")
    return text if is_plain else f"{column.heading or column.name} {text}"


def _is_paired(figure: Column, other: Column) -> bool:
    return (
        other.is_uncertainty
        and (other.heading or other.name).startswith("±")
        and figure.is_numeric
        and not figure.is_uncertainty
    )


def _pair(columns: list[Column], lines: list[list[str]], k: int) -> None:
    """Put column ``k``, an uncertainty, into that of its figure; the signs stand below each other."""
    columns[k - 1] = replace(columns[k - 1], heading=f"{columns[k - 1].heading or columns[k - 1].name}{_AND_U95}")
    width = max((cell_len(line[k - 1]) for line in lines), default=0)
    for line in lines:
        figure, u95 = line[k - 1].rjust(width), line[k]
        mantissa, e, exponent = figure.partition("e")
        if u95 in ("", "–"):
            line[k - 1] = figure
        elif e and u95[:1].isdigit():  # both in the same power of ten; "not told" is no number
            line[k - 1] = f"({mantissa} ± {digits(float(u95) / 10 ** int(exponent), 2)})e{exponent}"
        else:
            line[k - 1] = f"{figure} ± {u95}"


_AND_U95 = " ± U95"
"""Ends the heading of a column that has figures with their uncertainty."""
_FIGURE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)( (?:µs|ms|s|kJ|mJ|J|mW|kW|W|%)(?!\w))?")
_SCALE = {"µs": 1e-6, "ms": 1e-3, "mJ": 1e-3, "kJ": 1e3, "mW": 1e-3, "kW": 1e3}


def merged_notes(texts: Iterable[str]) -> dict[str, str]:
    """For each note the one that stands for it and for all that differ from it in their figures alone: with these from
    the least to the greatest (``14.2 ms to 2.34 s without readings``)."""
    by_cause: dict[str, list[str]] = {}
    for text in dict.fromkeys(texts):
        by_cause.setdefault(_FIGURE.sub("\0", text), []).append(text)
    merged: dict[str, str] = {}
    for same in by_cause.values():
        merged |= dict.fromkeys(same, _merged(same))
    return merged


def _merged(same: Sequence[str]) -> str:
    reaches = iter([_reach(figures) for figures in zip(*map(_FIGURE.finditer, same), strict=True)])
    return _FIGURE.sub(lambda _: next(reaches), same[0])


def _reach(figures: Sequence[re.Match[str]]) -> str:
    in_order = sorted(figures, key=lambda m: float(m[1]) * _SCALE.get((m[2] or "").strip(), 1.0))
    least, greatest = in_order[0][0], in_order[-1][0]
    return least if least == greatest else f"{least} to {greatest}"


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """One after the other. One that is too wide is cut into pieces below each other, each with what its rows are of;
    notes follow the last table, each once."""
    notes = notes_of(tables)
    for i, (table, marks) in enumerate(zip(tables, notes.marks, strict=True)):
        if i:
            console.print()
        _print_line(console, table.title, "bold")
        whole = narrow_table(table, marks)
        is_too_wide = _least_width(_marked(whole, whole.columns)) > console.width
        for part in _by_device(table, marks) if is_too_wide else [whole]:
            _print_line(console, part.common, "dim")
            for piece in _pieces(part, console.width):
                _print_piece(piece, console)
    for note in [*(f"{i}  {note}" for i, note in enumerate(notes.footnotes, 1)), *notes.below]:
        _print_line(console, f" {note}")


def _print_line(console: Console, text: str, style: str = "") -> None:
    if text:
        line = hanging_indent(printable(text), console.width)
        console.print(Text(line, style=style), soft_wrap=True, highlight=False)


def _by_device(table: Table, marks: Sequence[str]) -> list[Narrow]:
    """A part for each device whose rows a table has."""
    names = [name for name in ("device", "provenance") if name in table.names]
    places = [table.names.index(name) for name in names]
    rows: dict[tuple[Cell, ...], list[int]] = {}
    for r, row in enumerate(table.rows):
        rows.setdefault(tuple(row[k] for k in places), []).append(r)
    parts = []
    for own in rows.values():
        bounds = frozenset((own.index(r), k) for r, k in table.bounds if r in own)
        part = replace(table, rows=tuple(table.rows[r] for r in own), bounds=bounds)
        parts.append(narrow_table(part, [marks[r] for r in own]))
    return parts


_NAMES = ("layer", "phase", "phase_path", "path", "model", "run", "program")
_LONGEST_NAME = 24
_LONGEST_WORD = 24
_HEADING_WORD = 6
_NOTE = Column("note", heading="note")


def _marked(table: Narrow, columns: Sequence[Column]) -> Narrow:
    """Some columns of a table, with the numbers of the footnotes behind them."""
    places = [table.columns.index(column) for column in columns]
    has_marks = any(table.marks)
    lines = [
        (*(line[k] for k in places), *((mark,) if has_marks else ()))
        for line, mark in zip(table.lines, table.marks, strict=True)
    ]
    return replace(table, columns=(*columns, *((_NOTE,) if has_marks else ())), lines=tuple(lines))


def _pieces(table: Narrow, width: int) -> list[Narrow]:
    """A table whose names are shortened as far as it takes, in as few pieces as fit the width. Each begins with the
    columns that tell its rows apart."""
    for longest in (_LONGEST_NAME, 20, 16):
        own = replace(table, lines=tuple(_shortened(table.columns, line, longest) for line in table.lines))
        whole = _marked(own, own.columns)
        if _least_width(whole) <= width:
            return [whole]
    sides = list[Column]()
    for column in (c for c in own.columns if not c.is_numeric or c.is_setting):
        if _least_width(_marked(own, [*sides, column])) <= 2 * width // 3:
            sides.append(column)
    pieces, some = [], list[Column]()
    for column in (c for c in own.columns if c not in sides):
        if some and _least_width(_marked(own, [*sides, *some, column])) > width:
            pieces.append(some)
            some = []
        some.append(column)
    return [_marked(own, [*sides, *piece]) for piece in [*pieces, some]]


def _shortened(columns: Sequence[Column], line: Sequence[str], longest: int) -> tuple[str, ...]:
    return tuple(shorten(t, longest) if c.name in _NAMES else t for c, t in zip(columns, line, strict=True))


def _least_widths(table: Narrow) -> list[int]:
    """By column, what it needs at least: figures stay whole, texts are folded at their words."""
    widths = []
    for k, column in enumerate(table.columns):
        cells = [line[k] for line in table.lines]
        heading = max(map(cell_len, _heading(table, k).split()), default=0)
        if column.is_numeric:
            widths.append(max([min(heading, _HEADING_WORD), *map(cell_len, cells)]))
        else:
            longest = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
            widths.append(min(max(heading, longest), _LONGEST_WORD))
    return widths


def _least_width(table: Narrow) -> int:
    """Characters of a table with one space between its columns."""
    return sum(_least_widths(table)) + len(table.columns) + 1


def _heading(table: Narrow, k: int) -> str:
    """Of column ``k``; that of an uncertainty on a line of its own where it would widen the column."""
    column = table.columns[k]
    heading = column.heading or column.name
    longest = max((cell_len(line[k]) for line in table.lines), default=0)
    if column.heading.endswith(_AND_U95) and cell_len(heading) > longest:
        return f"{heading.removesuffix(_AND_U95)}\n{_AND_U95.strip()}"
    return heading


def _print_piece(table: Narrow, console: Console) -> None:
    drawn = RichTable(header_style="bold", box=SIMPLE_HEAD)
    for k, column in enumerate(table.columns):
        is_pair = column.heading.endswith(_AND_U95)
        justify: Literal["left", "right"] = "right" if column.is_numeric and not is_pair else "left"
        heading = "\n".join(map(printable, _heading(table, k).split("\n")))
        drawn.add_column(Text(heading), justify=justify, overflow="fold", no_wrap=is_pair)
    for line in table.lines:
        drawn.add_row(*map(_text, line))
    width = console.width
    natural = Measurement.get(console, console.options.update(max_width=NO_EDGE), drawn).maximum
    if natural > width:
        _fit(table, drawn, width)
    console.print(drawn, crop=False)
    console.width = width


def _fit(table: Narrow, drawn: RichTable, width: int) -> None:
    """Give every column its least width, and what is left over to those that lack most. What is still too wide goes
    over the terminal's edge: a figure cut in two reads as another one."""
    drawn.padding = (0, 0, 0, 0)
    widths = _least_widths(table)
    wanted = []
    for k, column in enumerate(table.columns):
        texts = _heading(table, k).split() if column.is_numeric else [line[k] for line in table.lines]
        wanted.append(max(map(cell_len, texts), default=0))
    for _ in range(width - sum(widths) - len(widths) - 1):
        k = max(range(len(widths)), key=lambda k: wanted[k] - widths[k])
        widths[k] += wanted[k] > widths[k]
    drawn.width = sum(widths) + len(widths) + 1
    for drawn_column, own in zip(drawn.columns, widths, strict=True):
        drawn_column.width = own


def _text(text: str) -> Text:
    # Not a string: rich would take brackets in it for its own, and passes control characters on.
    return Text(printable(text))


def to_markdown(tables: Sequence[Table]) -> str:
    """One Markdown table each, with numbered footnotes."""
    out: list[str] = []
    for table in tables:
        shown = round_table(table)
        head = [c.heading or c.name for c in shown.columns]
        lines = ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in (head, *shown.lines)]
        lines.insert(1, "|" + "|".join(" ---: " if c.is_numeric else " --- " for c in shown.columns) + "|")
        out += [f"**{markdown_cell(table.title)}**", ""] if table.title else []
        out += [*lines, ""]
        out += [f"{i}. {markdown_cell(note)}" for i, note in enumerate(shown.footnotes, 1)]
        out += [""] * bool(shown.footnotes)
        for note in table.notes:
            out += [f"*{markdown_cell(note)}*", ""]
    return "\n".join(out)


_LONELY = re.compile(r"(?<![^\W_])_|_(?![^\W_])")


def markdown_cell(text: str) -> str:
    """Names from files may hold what Markdown, or the HTML it becomes, takes for its own."""
    text = re.sub(r"&(?=#?\w+;)", "&amp;", printable(text)).replace("<", "&lt;")
    return _LONELY.sub(r"\_", re.sub(r"[\\|*`[$~]", r"\\\g<0>", text))


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "]": "{]}", "*": "{*}", "±": r"$\pm$", "≥": r"$\ge$", "≤": r"$\le$",
    "×": r"$\times$", "·": r"$\cdot$", "−": "$-$", "µ": r"$\mu$", "²": "$^2$", "³": "$^3$",
    "Δ": r"$\Delta$", "–": r"\textendash{}", "…": r"\dots{}", "→": r"$\to$",
}  # fmt: skip


def to_latex(tables: Sequence[Table]) -> str:
    r"""Floating tables with \caption and \label{tab:NAME}; put \usepackage{booktabs} into the preamble.

    The text is UTF-8, which LaTeX reads by itself since 2018; XeLaTeX and LuaLaTeX print every character of a name.
    """
    out = [_LATEX_HEAD]
    for table in tables:
        shown = round_table(table)
        notes = [f"$^{{{i}}}$ {latex_text(note)}" for i, note in enumerate(shown.footnotes, 1)]
        notes += map(latex_text, table.notes)
        out += _latex_table(table, latex_text(table.title), shown.columns, map(_latex_row, shown.lines), notes)
    return "\n".join(out)


def to_paper(tables: Sequence[Table]) -> str:
    """The same for a paper: what all rows have in common stands in the caption, a figure and its uncertainty in one
    column, and the notes of all tables, each once, below the last one."""
    notes = notes_of(tables)
    below = [f"$^{{{i}}}$ {latex_text(note)}" for i, note in enumerate(notes.footnotes, 1)]
    below += map(latex_text, notes.below)
    out = [_LATEX_HEAD]
    for k, (table, marks) in enumerate(zip(tables, notes.marks, strict=True)):
        shown = narrow_table(table, marks)
        caption = ": ".join(map(latex_text, filter(None, (shown.title, shown.common))))
        lines = [
            _latex_row(line).removesuffix(r" \\") + (f"$^{{{mark.replace(' ', ',')}}}$" if mark else "") + r" \\"
            for line, mark in zip(shown.lines, marks, strict=True)
        ]
        out += _latex_table(table, caption, shown.columns, lines, below if k == len(tables) - 1 else ())
    return "\n".join(out)


_LATEX_HEAD = r"% \usepackage{booktabs}"


def _latex_table(
    table: Table, caption: str, columns: Sequence[Column], lines: Iterable[str], notes: Sequence[str]
) -> list[str]:
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{_label(table)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if c.is_numeric else 'l' for c in columns)}}}",
        r"\toprule",
        _latex_row([c.heading or c.name for c in columns]),
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        *(_latex_notes(notes) if notes else ()),
        r"\end{table}",
        "",
    ]


def _label(table: Table) -> str:
    return re.sub("[^A-Za-z0-9:_.-]", "-", table.name)


def _latex_notes(notes: Sequence[str]) -> list[str]:
    return [r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize", " \\\\\n".join(notes), r"\end{minipage}"]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is; hyphens that it would join to a dash are kept apart."""
    return "".join(_LATEX.get(c, c) for c in printable(text)).replace("--", "-{}-").replace("--", "-{}-")


# -- files -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(
    path: Path, *, overwrite: bool = True, made_of: Identity | Literal["any"] | None = "any"
) -> Iterator[Path]:
    """Another name to write a file under, which is moved into its place when it is whole.

    A link of the user's own keeps its place, and what it leads to is written. Raises `RunFileError`, which names
    another file than ``path`` where writing met that, and `Changed` as `whole_output` does.
    """
    try:
        with whole_output(path, overwrite=overwrite, made_of=made_of) as partial:
            yield partial
    except FileExistsError as error:
        raise RunFileError(f"{path} exists: give another name or --overwrite") from error
    except OSError as error:
        if isinstance(error, PowerdError):
            raise
        # Libraries put their own words around the system's.
        why = os.strerror(error.errno) if error.errno else error
        other = os.fsdecode(error.filename or "")
        if other and ".partial" not in other and Path(other) not in (path, path.resolve()):
            raise RunFileError(f"{other} cannot be opened: {why}") from error
        raise RunFileError(f"{path} cannot be written: {why}") from error


# -- HDF5 --------------------------------------------------------------------------------------------------------------

FORMAT, FORMAT_VERSION = "powerd-tables", 1
TABLES = "tables"


_MOST_TRIES = 20
"""Of writing tables into a file into which others write at the same time."""


def write_tables(path: Path, written: Sequence[Table], *, overwrite: bool = False) -> None:
    """Put tables into ``/tables/NAME`` of a run file, of a file of tables, or of a new file of tables.

    Each column is a dataset of one dimension with its unit as an attribute, so that xarray, pandas and h5py read a
    table with one call each (docs/reference/tables.md). What has no value is NaN or an empty text. The file is copied,
    the copy changed, signed anew and read again, and moved into its place when it is whole and on the disk; where
    another program has changed the file meanwhile, all of this is done again. ``overwrite`` replaces tables of the same
    names; others stay. Raises `RunFileError`, also for a run file that is damaged.
    """
    for left in reversed(range(_MOST_TRIES)):
        try:
            _write_tables(path, written, overwrite)
        except Changed:
            if not left:
                raise
        else:
            return


def _write_tables(path: Path, written: Sequence[Table], overwrite: bool) -> None:
    with _translated(path, "written"):
        before = identity(path)
    with whole_file(path, made_of=before) as partial, _translated(path, "written"):
        is_there = before is not None
        of_run = is_there and is_run(path)
        if is_there:
            shutil.copy2(path, partial)
        with steady_hdf5(partial, "r+" if is_there else "x") as (file, _):
            if not is_there:
                file.attrs.update({"format": FORMAT, "format_version": FORMAT_VERSION})
            if not isinstance(file.get(TABLES, getlink=True), h5py.HardLink | None):
                raise RunFileError(f"{path}: {TABLES!r} in it is a link to elsewhere, and powerd writes into none")
            for table in written:
                _add(path, file.require_group(TABLES), table, overwrite)
            if of_run and "attributes" in file:
                del file["attributes"]
            if of_run and DIGEST in file.attrs:
                file.attrs[DIGEST] = digest(file)
            names = sorted(file)
        _check_written(partial, names, written)


def _check_written(file: Path, names: Sequence[str], written: Sequence[Table]) -> None:
    """Raises `RunFileError` where a file does not hold what was put into it."""
    lengths = {own_name(table.name): len(table) for table in written}
    with h5py.File(file, "r") as again:
        again.visititems(lambda _, __: None)
        columns = {name: [len(column) for column in again[TABLES][name].values()] for name in lengths}
        if sorted(again) != list(names) or any(set(found) - {lengths[name]} for name, found in columns.items()):
            raise RunFileError("what was written cannot be read again; the file stays as it was")


def _add(path: Path, tables: h5py.Group, table: Table, overwrite: bool) -> None:
    name = own_name(table.name)
    if name in tables:
        if not overwrite:
            raise RunFileError(f"{path} has a table {name!r} already: give --overwrite to replace it")
        del tables[name]
    group = tables.create_group(name, track_order=True)
    group.attrs.update({"title": clean(table.title), "notes": clean("\n".join(table.notes))})
    for k, column in enumerate(table.columns):
        name, values = own_name(column.name), [row[k] for row in table.rows]
        if column.kind == "text":
            write_strings(group, name, ["" if v is None else str(v) for v in values])
            group[name].attrs.update({"_Encoding": "utf-8", "units": ""})  # how netCDF says that bytes are text
            continue
        numbers = np.array([np.nan if v is None else float(v) for v in values])
        if column.kind in ("integer", "flag") and np.isfinite(numbers).all():
            numbers = numbers.astype(np.int64 if column.kind == "integer" else np.uint8)
        write_numbers(group, name, numbers, column.units)


def read_table(path: str | Path, name: str) -> pd.DataFrame:
    """A table of a run file or of a file of tables; ``frame.attrs["units"]`` has the units by column.

    Raises `RunFileError` for a file that is none of ours, `AnalysisError` for a table that is not there.
    """
    import pandas as pd

    path = Path(path)
    with _translated(path, "read"):
        is_run(path)
        with h5py.File(path, "r") as file:
            if name not in file.get(TABLES, {}):
                raise AnalysisError(f"{path} has no table {name!r}: it has {', '.join(file.get(TABLES, {})) or 'none'}")
            columns, units = {}, {}
            for column, data in file[TABLES][name].items():
                columns[column] = [v.decode() for v in data[:]] if data.dtype.kind == "S" else data[:]
                units[column] = str(data.attrs.get("units", ""))

    frame = pd.DataFrame(columns)
    frame.attrs["units"] = units
    return frame


def is_run(path: Path) -> bool:
    """Whether that is a run file, with the metadata that it was written with, or a file of tables (False). Raises
    `RunFileError` for neither."""
    if path.exists() and h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") == FORMAT and file.attrs.get("format_version") == FORMAT_VERSION:
                return False
    with open_run(path) as file:
        if DIGEST in file.attrs and file.attrs[DIGEST] != digest(file):
            raise RunFileError(
                f"{path} is damaged: its attributes are not those it was written with (`joules info --check`)"
            )
    return True


@contextlib.contextmanager
def _translated(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except PowerdError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise RunFileError(f"{path} cannot be {what}: {why}") from error
