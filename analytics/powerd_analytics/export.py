"""One model of a table, and every form in which a table leaves the house.

A `Table` has columns, rows of plain cells (text, whole numbers, numbers, True and False, None where there is no
value), notes that hold for all of it, and bounds: cells that are known from one side only, because a sensor stood at
full scale.

Programs take CSV, JSON (a list of rows), Parquet and HDF5, with full precision. People take the terminal, Markdown and
LaTeX, which all show what `rounded` makes of a table.
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
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import h5py
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from powerd_analytics.terminal import NO_EDGE, hanging, print_unbroken
from powerd_analytics.text import digits, shortened
from powerd_client.ownership import whole_output
from powerd_client.recover import open_run
from powerd_client.runfile import DIGEST, clean, digest, own_name, steady_hdf5, write_numbers, write_strings
from powerd_core.errors import AnalysisError, PowerdError, RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Cell = str | int | float | bool | None
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


@dataclass(frozen=True, slots=True)
class Rounded:
    """A table for people: numbers rounded, empty and hidden columns left out, notes as numbers of footnotes."""

    columns: list[Column]
    places: list[int]
    """Where each of the columns stands in the table."""
    lines: list[list[str]]
    footnotes: list[str]


def rounded(table: Table) -> Rounded:
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
        lines.append(cells)
    places = [
        k
        for k, column in enumerate(columns)
        if not column.is_hidden and (not lines or any(line[k] not in ("", "–") for line in lines))
    ]
    return Rounded([columns[k] for k in places], places, [[line[k] for k in places] for line in lines], [*numbers])


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
    if name == "clock_hz":
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


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """One after the other, with numbered footnotes."""
    for table in tables:
        shown = rounded(table)
        drawn, width = _drawn(table.title, shown), console.width
        options = console.options.update(max_width=NO_EDGE)
        if not console.is_terminal:  # a file or a pipe has no edge: columns are never folded there
            console.width = max(width, Measurement.get(console, options, drawn).maximum)
        for longest in range(32, 10, -2) if console.is_terminal else ():
            # Two characters of padding a column are given up first.
            if Measurement.get(console, options, drawn).minimum - 2 * len(shown.columns) <= width:
                break
            drawn = _drawn(table.title, shown, longest)
        print_unbroken(drawn, console)
        console.width = width
        for note in [*(f"{i}  {note}" for i, note in enumerate(shown.footnotes, 1)), *table.notes]:
            text = f" {printable(note)}"
            console.print(hanging(text, width) if console.is_terminal else text, markup=False, highlight=False)
        console.print()


_NAMES = ("layer", "phase", "phase_path", "path", "model", "run")


def _drawn(title: str, shown: Rounded, longest: int | None = None) -> RichTable:
    """With ``longest``, names that others gave and that have more characters are shortened in the middle."""
    table = RichTable(
        title=_text(title), title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD
    )  # fmt: skip
    for column in shown.columns:
        justify: Literal["left", "right"] = "right" if column.is_numeric else "left"
        table.add_column(_text(column.heading or column.name), justify=justify, overflow="fold")
    for line in shown.lines:
        table.add_row(
            *(
                _text(shortened(cell, longest) if longest and column.name in _NAMES else cell)
                for column, cell in zip(shown.columns, line, strict=True)
            )
        )
    return table


def _text(text: str) -> Text:
    # Not a string: rich would take brackets in it for its own, and passes control characters on.
    return Text(printable(text))


def to_markdown(tables: Sequence[Table]) -> str:
    """One Markdown table each, with numbered footnotes."""
    out: list[str] = []
    for table in tables:
        shown = rounded(table)
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
}  # fmt: skip


def to_latex(tables: Sequence[Table]) -> str:
    r"""Floating tables with \caption and \label{tab:NAME}; put \usepackage{booktabs} into the preamble.

    The text is UTF-8, which LaTeX reads by itself since 2018; XeLaTeX and LuaLaTeX print every character of a name.
    """
    out = [r"% \usepackage{booktabs}"]
    for table in tables:
        shown = rounded(table)
        notes = [f"$^{{{i}}}$ {latex_text(note)}" for i, note in enumerate(shown.footnotes, 1)]
        notes += map(latex_text, table.notes)
        below = [r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize", " \\\\\n".join(notes), r"\end{minipage}"]
        out += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(table.title)}}}",
            rf"\label{{tab:{re.sub('[^A-Za-z0-9:_.-]', '-', table.name)}}}",
            rf"\begin{{tabular}}{{{''.join('r' if c.is_numeric else 'l' for c in shown.columns)}}}",
            r"\toprule",
            _latex_row([c.heading or c.name for c in shown.columns]),
            r"\midrule",
            *map(_latex_row, shown.lines),
            r"\bottomrule",
            r"\end{tabular}",
            *(below if notes else ()),
            r"\end{table}",
            "",
        ]
    return "\n".join(out)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is; hyphens that it would join to a dash are kept apart."""
    return "".join(_LATEX.get(c, c) for c in printable(text)).replace("--", "-{}-").replace("--", "-{}-")


# -- files -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_file(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Another name to write a file under, which is moved into its place when it is whole.

    A link of the user's own keeps its place, and what it leads to is written. Raises `RunFileError`, which names
    another file than ``path`` where writing met that.
    """
    try:
        with whole_output(path, overwrite=overwrite) as partial:
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


def write_tables(path: Path, written: Sequence[Table], *, overwrite: bool = False) -> None:
    """Put tables into ``/tables/NAME`` of a run file, of a file of tables, or of a new file of tables.

    Each column is a dataset of one dimension with its unit as an attribute, so that xarray, pandas and h5py read a
    table with one call each (docs/reference/tables.md). What has no value is NaN or an empty text. The file is copied,
    the copy changed and signed anew, and moved into its place when it is whole and on the disk. ``overwrite`` replaces
    tables of the same names; others stay. Raises `RunFileError`, also for a run file that is damaged.
    """
    with whole_file(path) as partial, _translated(path, "written"):
        is_there = path.exists()
        is_run = is_there and _is_run(path)
        if is_there:
            shutil.copy2(path, partial)
        with steady_hdf5(partial, "r+" if is_there else "x") as (file, _):
            if not is_there:
                file.attrs.update({"format": FORMAT, "format_version": FORMAT_VERSION})
            for table in written:
                _add(path, file.require_group(TABLES), table, overwrite)
            if is_run and "attributes" in file:
                del file["attributes"]
            if is_run and DIGEST in file.attrs:
                file.attrs[DIGEST] = digest(file)


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
        _is_run(path)
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


def _is_run(path: Path) -> bool:
    """Whether that is a run file, with the metadata that it was written with, or a file of tables (False). Raises
    `RunFileError` for neither."""
    if path.exists() and h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") == FORMAT and file.attrs.get("format_version") == FORMAT_VERSION:
                return False
    with open_run(path) as file:
        if DIGEST in file.attrs and file.attrs[DIGEST] != digest(file):
            raise RunFileError(f"{path} is damaged: its attributes are not those it was written with (`joules verify`)")
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
