"""Tables of others, as CSV or Parquet: read whole, checked, with every fault told by file, row and column."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from powerd_core.errors import AnalysisError, RunFileError
from powerd_core.text import printable

# float() also takes "1_000", "infinity" and digits of other scripts: nothing that a table should hold.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""But tabs and line breaks, which a quoted cell may hold."""
_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_QUOTED = re.compile(r'"[^"]*"')
_EVERY = 1 << 16
_MOST_WHOLE = 2**53
"""From here on neighbouring whole numbers are one double."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table by columns. Cells are texts without blanks around them; ``""`` is an empty cell."""

    name: str
    """The file, as messages call it."""
    columns: tuple[str, ...]
    cells: Mapping[str, Sequence[str]]
    """Column -> cells [n]."""
    lines: Sequence[int]
    """[n] where each row stands: its first line in a CSV file, its number in a Parquet file; both count from 1."""
    line_word: str = "line"

    def __len__(self) -> int:
        return len(self.lines)

    def at(self, row: int) -> str:
        """Where row ``row`` (from 0) stands."""
        return f"{self.name}, {self.line_word} {self.lines[row]}"

    def fault(self, row: int, column: str, text: str) -> AnalysisError:
        """An error about one cell, ready to be raised."""
        return AnalysisError(f"{self.at(row)}, column {printable(column, limit=60)}: {text}")

    def require(self, *columns: str) -> None:
        """Raise an `AnalysisError` for the first of these columns that the table does not have."""
        for column in columns:
            if column not in self.columns:
                raise AnalysisError(f"{self._header()}: no column {column!r}: {self._hint(column)}")

    def texts(self, column: str) -> Sequence[str]:
        """Cells [n] of a column of names: none empty, none with control characters."""
        self.require(column)
        for row, text in enumerate(self.cells[column]):
            if not text:
                raise self.fault(row, column, "is empty")
            if _CONTROL.search(text):
                raise self.fault(row, column, _no_text(text))
        return self.cells[column]

    def numbers(
        self, column: str, *, positive: bool = False, signed: bool = False, whole: bool = False, full: bool = False
    ) -> list[float | None]:
        """Cells [n] of a column as finite numbers, None where empty.

        Zero is refused when ``positive``, what is below zero unless ``signed``, fractions and what is not below 2^53
        when ``whole``, empty cells when ``full``. Raises `AnalysisError` for the first cell that is anything else.
        """
        self.require(column)
        numbers: list[float | None] = []
        for row, text in enumerate(self.cells[column]):
            if not text and not full:
                numbers.append(None)
                continue
            value = parsed(text)
            if value is None:
                raise self.fault(row, column, _no_number(text))
            if value < 0 and not signed:
                raise self.fault(row, column, f"{text} is negative")
            if positive and value <= 0:
                raise self.fault(row, column, f"{text}: must be above 0")
            if whole and not value.is_integer():
                raise self.fault(row, column, f"{text} is no whole number")
            if whole and abs(value) >= _MOST_WHOLE:
                raise self.fault(row, column, f"{text} is too large to be counted")
            numbers.append(value)
        return numbers

    def _header(self) -> str:
        return f"{self.name}, {self.line_word} 1" if self.line_word == "line" else self.name

    def _hint(self, column: str) -> str:
        folded = {c.casefold(): c for c in self.columns if c}
        near = get_close_matches(column.casefold(), folded, n=1, cutoff=0.75)
        if near:
            return f"did you mean {printable(repr(folded[near[0]]), limit=60)}?"
        return printable(f"it has {', '.join(c for c in self.columns if c) or 'none with a name'}", limit=300)


def parsed(text: str) -> float | None:
    """A finite decimal number, else None."""
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def read_table(path: Path, progress: Callable[[float, str], None] = lambda share, text: None) -> TableFile:
    """Read a table: Parquet by its first bytes, else CSV (comma, semicolon or tab; UTF-8, or UTF-16 with its mark).

    Rows without any text are skipped. Raises `RunFileError` for a file that cannot be read,
    `AnalysisError` for one that is no table: empty, columns twice, rows longer or shorter than the header.
    """
    name = printable(str(path), limit=200)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFileError(f"{name} cannot be read: {error.strerror or error}") from error
    if data[:4] == b"PAR1":
        return _parquet(name, data)
    return _csv(name, _decoded(name, data), progress)


def _decoded(name: str, data: bytes) -> str:
    encoding = next((e for mark, e in _MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AnalysisError(f"{name}, line {line}: is not {encoding.upper()} text: save it as CSV in UTF-8") from error


def _csv(name: str, text: str, progress: Callable[[float, str], None]) -> TableFile:
    first = _QUOTED.sub("", text.lstrip("\r\n").split("\n", 1)[0])  # a name in quotes may hold what parts cells
    delimiter = next((d for d in ",;\t" if d in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: tuple[str, ...] | None = None
    rows: list[list[str]] = []
    lines: list[int] = []
    begin = 1
    try:
        for row in reader:
            line, begin = begin, reader.line_num + 1
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if header is None:
                header = tuple(cells)
                _check_header(f"{name}, line {line}", header)
                continue
            if len(cells) != len(header):
                raise AnalysisError(f"{name}, line {line}: {len(cells)} cells, but the header has {len(header)}")
            rows.append(cells)
            lines.append(line)
            if len(lines) % _EVERY == 0:
                progress(0.5, f"reading {name}")
    except csv.Error as error:
        raise AnalysisError(f"{name}, line {begin}: is no CSV: {error}") from error
    if header is None:
        raise AnalysisError(f"{name}: the file is empty: it needs a header and rows")
    if not rows:
        raise AnalysisError(f"{name}: has a header and no rows")
    return _checked(TableFile(name, header, dict(zip(header, zip(*rows, strict=True), strict=True)), lines))


def _parquet(name: str, data: bytes) -> TableFile:
    try:
        from pyarrow import ArrowException, BufferReader
        from pyarrow.parquet import read_table as read_parquet
    except ImportError as error:
        raise RunFileError(f"{name}: Parquet needs pyarrow: pip install 'powerd[analytics]'") from error
    try:
        table = read_parquet(BufferReader(data))
        columns = {c.strip(): [_text(v) for v in table.column(i).to_pylist()] for i, c in enumerate(table.column_names)}
    except (ArrowException, OSError, ValueError) as error:
        raise AnalysisError(
            f"{name}: is no Parquet file that can be read: {printable(str(error), limit=200)}"
        ) from error
    _check_header(name, tuple(c.strip() for c in table.column_names))
    if not table.num_rows:
        raise AnalysisError(f"{name}: has no rows")
    return _checked(TableFile(name, tuple(columns), columns, range(1, table.num_rows + 1), "row"))


def _text(value: object) -> str:
    if isinstance(value, float):
        return repr(value)
    return "" if value is None else str(value).strip()


def _checked(table: TableFile) -> TableFile:
    """The table. Raises `AnalysisError` for a cell with a NUL: bytes of something else than text."""
    for column, cells in table.cells.items():
        # Most tables hold none: all cells of a column are looked through at once.
        if "\0" in "".join(cells):
            row = next(i for i, cell in enumerate(cells) if "\0" in cell)
            raise table.fault(row, column, _no_text(cells[row]))
    return table


def _no_text(cell: str) -> str:
    found = _CONTROL.search(cell)
    code = f"U+{ord(found.group()):04X}" if found else ""
    hint = ": save the table as UTF-8 text" if code == "U+0000" else ": a name holds none"
    return f"'{printable(cell, limit=60)}' holds the control character {code}{hint}"


def _check_header(where: str, header: tuple[str, ...]) -> None:
    for column in header:
        if _CONTROL.search(column):
            raise AnalysisError(f"{where}: a column's name {_no_text(column)}")
        if column and header.count(column) > 1:
            raise AnalysisError(f"{where}: two columns are called {printable(column, limit=60)!r}")


def _no_number(text: str) -> str:
    shown = repr(printable(text, limit=40))
    if not text:
        return "is empty: it needs a number"
    if text.lower().lstrip("+-") in ("nan", "inf", "infinity") or _NUMBER.fullmatch(text):
        return f"{shown} is no finite number; leave the cell empty where nothing was measured"
    if parsed(text.replace(",", ".", 1)) is not None:
        return f"{shown} is no number: write a decimal point, and no separator of thousands"
    return f"{shown} is no number"
