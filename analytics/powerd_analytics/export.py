"""One model of a table, and every form in which a table leaves the house.

A table is a pandas frame. Its cells are plain Python values: text, whole numbers, numbers, True and False, and None
where there is no value. `table_frame` makes one; ``frame.attrs`` then holds

- ``name`` and ``title``, ``notes`` (what holds for the whole table) and ``provenance`` (measured, modelled, simulated);
- ``units`` by column, and ``columns``: every `Column` as a dict;
- ``bounds``: cells [row, column] that are known from one side only, because a sensor stood at full scale.

Programs take CSV, JSON, Parquet and HDF5, with full precision. People take the terminal, Markdown, LaTeX and HTML,
which all show what `rounded` makes of a frame.
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
from dataclasses import asdict, dataclass
from html import escape
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import h5py
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
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


def table_frame(
    name: str, title: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], notes: Sequence[str] = (),
    bounds: Sequence[tuple[int, int]] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """A table. Without ``bounds``, all columns with a sign are bounds in rows whose ``is_lower_bound`` is true."""
    import pandas as pd

    names = [c.name for c in columns]
    if bounds is None:
        at = names.index("is_lower_bound") if "is_lower_bound" in names else None
        bounded = [i for i, row in enumerate(rows) if at is not None and row[at] is True]
        bounds = [(i, k) for i in bounded for k, c in enumerate(columns) if c.sign]
    frame = pd.DataFrame([list(row) for row in rows], columns=names, dtype=object)
    provenances = {str(row[names.index("provenance")]) for row in rows} if "provenance" in names else set()
    frame.attrs = {
        "name": name,
        "title": title,
        "notes": list(notes),
        "provenance": sorted(provenances),
        "units": {c.name: c.units for c in columns if c.units},
        "columns": [asdict(c) for c in columns],
        "bounds": [list(b) for b in bounds],
    }
    return frame


def columns_of(frame: pd.DataFrame) -> list[Column]:
    """The columns of a frame that `table_frame` made."""
    return [Column(**c) for c in frame.attrs["columns"]]


def rows_of(frame: pd.DataFrame) -> list[tuple[Cell, ...]]:
    """The rows of a frame."""
    return list(frame.itertuples(index=False, name=None))


@dataclass(frozen=True, slots=True)
class Rounded:
    """A table for people: numbers rounded, empty and hidden columns left out, notes as numbers of footnotes."""

    columns: list[Column]
    places: list[int]
    """Where each of the columns stands in the frame."""
    lines: list[list[str]]
    footnotes: list[str]


def rounded(frame: pd.DataFrame) -> Rounded:
    """A frame for people. The texts of a column ``note`` become footnotes, equal ones once."""
    columns, separator = columns_of(frame), frame.attrs.get("separator", "; ")
    bounds = {(row, column) for row, column in frame.attrs["bounds"]}
    numbers: dict[str, int] = {}
    lines = []
    for r, row in enumerate(rows_of(frame)):
        cells = []
        for k, (column, value) in enumerate(zip(columns, row, strict=True)):
            if column.name == "note":
                texts = [text for text in str(value or "").split(separator) if text]
                marks = [numbers.setdefault(text, len(numbers) + 1) for text in texts]
                cells.append(" ".join(map(str, sorted(marks))))
            else:
                cells.append(_shown(column, value, is_bound=(r, k) in bounds))
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


def to_csv(frame: pd.DataFrame) -> str:
    """RFC 4180 with the columns' names as header; numbers in full precision, nothing for what has no value."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(csv_cell, row) for row in (frame.columns, *rows_of(frame))])
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """A cell for CSV. A text that a spreadsheet would calculate (``=cmd|...``) gets an apostrophe in front, which makes
    it a text there too; one that is a number stays as it is."""
    if isinstance(value, str) and value.startswith(("=", "@", "+", "-", "\t", "\r")) and not is_number(value):
        value = f"'{value}"
    return encodable(value)


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


def to_json(frames: Sequence[pd.DataFrame]) -> str:
    """A JSON object by the tables' names: columns with their units, rows as objects, notes."""
    documents = {
        frame.attrs["name"]: {
            "title": frame.attrs["title"],
            "units": frame.attrs["units"],
            "rows": frame.to_dict("records"),
            "notes": frame.attrs["notes"],
        }
        for frame in frames
    }
    return to_json_text(documents) + "\n"


def rows_to_json(frame: pd.DataFrame) -> str:
    """A JSON list of the rows alone."""
    return to_json_text(frame.to_dict("records")) + "\n"


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


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """The table as Parquet, with its title and notes as metadata."""
    import pyarrow.parquet as pq

    about = {"title": encodable(frame.attrs["title"]), "notes": encodable("\n".join(frame.attrs["notes"]))}
    pq.write_table(arrow_table(columns_of(frame), frame.to_dict("records"), about), path)


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


def print_tables(frames: Sequence[pd.DataFrame], console: Console) -> None:
    """One table a frame, with numbered footnotes."""
    for frame in frames:
        shown = rounded(frame)
        table, width = _table(frame.attrs["title"], shown), console.width
        options = console.options.update(max_width=NO_EDGE)
        if not console.is_terminal:  # a file or a pipe has no edge: columns are never folded there
            console.width = max(width, Measurement.get(console, options, table).maximum)
        for longest in range(32, 10, -2) if console.is_terminal else ():
            # Two characters of padding a column are given up first.
            if Measurement.get(console, options, table).minimum - 2 * len(shown.columns) <= width:
                break
            table = _table(frame.attrs["title"], shown, longest)
        print_unbroken(table, console)
        console.width = width
        for note in [*(f"{i}  {note}" for i, note in enumerate(shown.footnotes, 1)), *frame.attrs["notes"]]:
            text = f" {printable(note)}"
            console.print(hanging(text, width) if console.is_terminal else text, markup=False, highlight=False)
        console.print()


_NAMES = ("layer", "phase", "phase_path", "path", "model", "run")


def _table(title: str, shown: Rounded, longest: int | None = None) -> Table:
    """With ``longest``, names that others gave and that have more characters are shortened in the middle."""
    table = Table(
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


def to_markdown(frames: Sequence[pd.DataFrame]) -> str:
    """One Markdown table a frame, with numbered footnotes."""
    out: list[str] = []
    for frame in frames:
        shown = rounded(frame)
        head = [c.heading or c.name for c in shown.columns]
        lines = ["| " + " | ".join(map(markdown_cell, line)) + " |" for line in (head, *shown.lines)]
        lines.insert(1, "|" + "|".join(" ---: " if c.is_numeric else " --- " for c in shown.columns) + "|")
        out += [f"**{markdown_cell(frame.attrs['title'])}**", "", *lines, ""]
        out += [f"{i}. {markdown_cell(note)}" for i, note in enumerate(shown.footnotes, 1)]
        out += [""] * bool(shown.footnotes)
        for note in frame.attrs["notes"]:
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


def to_latex(frames: Sequence[pd.DataFrame]) -> str:
    r"""Floating tables with \caption and \label{tab:NAME}; put \usepackage{booktabs} into the preamble.

    The text is UTF-8, which LaTeX reads by itself since 2018; XeLaTeX and LuaLaTeX print every character of a name.
    """
    import pandas as pd

    out = [r"% \usepackage{booktabs}"]
    for frame in frames:
        shown = rounded(frame)
        lines = [[latex_text(cell) for cell in line] for line in shown.lines]
        text = (
            pd.DataFrame(lines, columns=range(len(shown.columns)), dtype=object)
            .to_latex(
                index=False,
                header=[latex_text(c.heading or c.name) for c in shown.columns],
                column_format="".join("r" if c.is_numeric else "l" for c in shown.columns),
                caption=latex_text(frame.attrs["title"]),
                label=f"tab:{re.sub('[^A-Za-z0-9:_.-]', '-', frame.attrs['name'])}",
                escape=False,
            )
            .replace(r"\begin{table}", "\\begin{table}\n\\centering", 1)
        )
        notes = [f"$^{{{i}}}$ {latex_text(note)}" for i, note in enumerate(shown.footnotes, 1)]
        notes += map(latex_text, frame.attrs["notes"])
        if notes:
            below = " \\\\\n".join(notes)
            below = f"\n\\smallskip\n\\begin{{minipage}}{{\\linewidth}}\\footnotesize\n{below}\n\\end{{minipage}}\n"
            text = text.replace(r"\end{table}", below + r"\end{table}")
        out.append(text)
    return "\n".join(out)


def latex_text(text: str) -> str:
    """Text that LaTeX prints as it is; hyphens that it would join to a dash are kept apart."""
    return "".join(_LATEX.get(c, c) for c in printable(text)).replace("--", "-{}-").replace("--", "-{}-")


_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; color-scheme: light dark; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th { border-bottom: 1.5px solid; }
caption { text-align: left; font-weight: 600; padding: 1.5rem 0 .4rem; }
th, td { padding: .15rem .7rem; text-align: left; white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; }
"""


def to_html(frames: Sequence[pd.DataFrame], title: str = "Tables") -> str:
    """A page that needs no other file."""
    body = "\n".join(map(_html_table, frames))
    head = f'<meta charset="utf-8">\n<title>{_html(title)}</title>\n<style>{_STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _html_table(frame: pd.DataFrame) -> str:
    shown = rounded(frame)
    classes = [' class="n"' if c.is_numeric else "" for c in shown.columns]

    def line(tag: str, cells: Sequence[str]) -> str:
        of_line = (f"<{tag}{of}>{_html(cell)}</{tag}>" for of, cell in zip(classes, cells, strict=True))
        return f"<tr>{''.join(of_line)}</tr>"

    head = line("th", [c.heading or c.name for c in shown.columns])
    body = "\n".join(line("td", cells) for cells in shown.lines)
    caption = f"<caption>{_html(frame.attrs['title'])}</caption>"
    table = f"<table>\n{caption}\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    items = "".join(f"<li>{_html(note)}</li>" for note in shown.footnotes)
    notes = "".join(f"<p>{_html(note)}</p>" for note in frame.attrs["notes"])
    return f'<div class="wide">{table}</div>\n{f"<ol>{items}</ol>" if items else ""}{notes}'


def _html(text: str) -> str:
    return escape(printable(text))


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


def write_tables(path: Path, frames: Sequence[pd.DataFrame], *, overwrite: bool = False) -> None:
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
            for frame in frames:
                _add(path, file.require_group(TABLES), frame, overwrite)
            if is_run and "attributes" in file:
                del file["attributes"]
            if is_run and DIGEST in file.attrs:
                file.attrs[DIGEST] = digest(file)


def _add(path: Path, tables: h5py.Group, frame: pd.DataFrame, overwrite: bool) -> None:
    name = own_name(frame.attrs["name"])
    if name in tables:
        if not overwrite:
            raise RunFileError(f"{path} has a table {name!r} already: give --overwrite to replace it")
        del tables[name]
    group = tables.create_group(name, track_order=True)
    group.attrs.update({"title": clean(frame.attrs["title"]), "notes": clean("\n".join(frame.attrs["notes"]))})
    for column in columns_of(frame):
        name, values = own_name(column.name), list(frame[column.name])
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
