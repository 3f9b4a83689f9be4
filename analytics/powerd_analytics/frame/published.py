"""Tables that anybody published: as a frame of figures, and whole trainings from tables of phases.

`read_table` reads CSV or Parquet into a `TableFile`; errors name file, row (from 1, below the header) and column.
`published_frame` makes it the frame that runs have, `training_totals` sums the phases of each configuration
(`joules published totals`). docs/reference/published.md has the columns and the rules.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from powerd_analytics.energy import metrics
from powerd_analytics.energy.uncertainty import NORMAL
from powerd_analytics.frame.figures import (
    ATTRIBUTE,
    COLUMNS,
    Frame,
    Values,
    floats,
    is_known,
    with_column_types,
    with_eds,
    worked_out,
)
from powerd_analytics.frame.figures import column as column_of
from powerd_analytics.output.export import Column, Kind, Table, csv_cell, make_table
from powerd_analytics.output.text import parse_number
from powerd_analytics.runs.run import Progress, no_progress
from powerd_core.errors import AnalysisError, ConfigError, RunFileError
from powerd_core.text import printable

# -- tables of others --------------------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """A table as it was written."""

    name: str
    """The file, as messages call it."""
    cells: pd.DataFrame
    """Texts without blanks around them, by column; ``""`` is an empty cell."""

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def columns(self) -> list[str]:
        """Their names, in order."""
        return list(self.cells.columns)

    def at(self, row: int) -> str:
        """Where row ``row`` (from 0) stands."""
        return f"{self.name}, row {row + 1}"

    def fault(self, row: int, column: str, text: str) -> AnalysisError:
        """An error about one cell, ready to be raised."""
        return AnalysisError(f"{self.at(row)}, column {printable(column, limit=60)}: {text}")

    def require(self, *columns: str) -> None:
        """Raise an `AnalysisError` for the first of these columns that the table does not have."""
        for column in columns:
            if column not in self.columns:
                has = printable(", ".join(self.columns), limit=300)
                raise AnalysisError(f"{self.name}: no column {column!r}: it has {has}")

    def texts(self, column: str) -> list[str]:
        """Cells [n] of a column of names, none empty or with control characters."""
        self.require(column)
        for row, text in enumerate(self.cells[column]):
            if not text or _CONTROL.search(text):
                raise self.fault(row, column, "is empty, or holds a control character")
        return list(self.cells[column])

    def numbers(self, column: str, *, positive: bool = False, signed: bool = False, whole: bool = False) -> Values:
        """Cells [n] of a column as finite numbers, NaN where empty.

        Zero is refused when ``positive``, what is below zero unless ``signed``, fractions when ``whole``. Raises
        `AnalysisError` for the first cell that is anything else.
        """
        self.require(column)
        numbers = np.full(len(self), np.nan)
        for row, text in enumerate(self.cells[column]):
            if not text:
                continue
            value = parse_number(text)
            if value is None:
                raise self.fault(row, column, f"{printable(text, limit=40)!r} is no finite number (decimal point)")
            if (value < 0 and not signed) or (value == 0 and positive):
                raise self.fault(row, column, f"{text}: must {'be above 0' if positive else 'not be negative'}")
            if whole and not value.is_integer():
                raise self.fault(row, column, f"{text} is no whole number")
            numbers[row] = value
        return numbers


def read_table(path: Path, progress: Progress = no_progress) -> TableFile:
    """Read a table: Parquet by its first bytes, else CSV (comma, semicolon or tab; UTF-8, or UTF-16 with its mark).

    Rows without any text are skipped, and columns without a name. Raises `RunFileError` for a file that cannot be read,
    `AnalysisError` for one that is no table: empty, columns twice, rows longer or shorter than the header.
    """
    name = printable(str(path), limit=200)
    progress(0.5, f"reading {name}")
    try:
        data = path.read_bytes()
        lines = _parquet(data) if data[:4] == b"PAR1" else _csv(data)
    except UnicodeDecodeError as error:
        why = "a run file: `joules tables` makes tables of it" if data.startswith(b"\x89HDF") else "no text"
        raise AnalysisError(f"{name} is no table: it is {why}") from error
    except ValueError as error:
        raise AnalysisError(f"{name} is no table: {printable(' '.join(str(error).split()), limit=200)}") from error
    except OSError as error:
        raise RunFileError(f"{name} cannot be read: {error.strerror or error}") from error
    lines = lines.map(str.strip, na_action="ignore")
    lines = lines[lines.fillna("").ne("").any(axis=1)]
    if len(lines) < 2:
        raise AnalysisError(f"{name} is no table: it needs a header and rows")
    header, cells = [str(text) for text in lines.iloc[0]], lines.iloc[1:].reset_index(drop=True)
    for row in np.flatnonzero(cells.isna().any(axis=1)):
        raise AnalysisError(f"{name}, row {row + 1}: {cells.iloc[row].count()} cells, but the header has {len(header)}")
    for column in header:
        if _CONTROL.search(column) or (column and header.count(column) > 1):
            raise AnalysisError(f"{name}, header: {column!r} stands twice, or holds a control character")
    cells.columns = pd.Index(header)
    return TableFile(name, cells.loc[:, [bool(column) for column in header]])


def _csv(data: bytes) -> pd.DataFrame:
    """The lines, the header among them; cells that a short line lacks have no value."""
    text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    first = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").split("\n", 1)[0])  # a name in quotes may hold separators
    separator = next((s for s in ",;\t" if s in first), ",")
    # The other engine of pandas fills short lines up without a word.
    return pd.read_csv(
        io.StringIO(text), sep=separator, header=None, dtype=str, keep_default_na=False, engine="python"
    )  # fmt: skip


def _parquet(data: bytes) -> pd.DataFrame:
    """The same of a Parquet file."""
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import read_table as read_parquet

    try:
        table = read_parquet(BufferReader(data))
        columns = [
            [name, *("" if v is None else str(v) for v in table[name].to_pylist())] for name in table.column_names
        ]
    except (ArrowException, KeyError) as error:  # one of a column that stands twice
        raise ValueError(str(error)) from error
    return pd.DataFrame(zip(*columns, strict=True))


ENERGY_J = {"energy_j": 1.0, "energy_kj": 1e3, "energy_wh": 3.6e3, "energy_kwh": 3.6e6}
TIME_S = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9, "time_ks": 1e3, "time_min": 60.0,
          "time_h": 3600.0}  # fmt: skip
ROUNDED = 0.01
"""Two columns of one quantity may differ by this share: published figures are rounded."""


def column_in(table: TableFile, names: Mapping[str, float], *, positive: bool = False) -> Values:
    """The column [n] in SI units, from the first of ``names`` (with their scales) that the table has.

    Raises `AnalysisError` for none, for two that differ by more than `ROUNDED`, and as `TableFile.numbers`.
    """
    present = [name for name in names if name in table.columns] or list(names)[:1]
    with np.errstate(over="ignore"):  # what is too large is refused where it is used
        si = [table.numbers(name, positive=positive) * names[name] for name in present]
    for other, values in zip(present[1:], si[1:], strict=True):
        is_close = np.isclose(si[0], values, rtol=ROUNDED, atol=0, equal_nan=True)
        for row in np.flatnonzero(~is_close):
            raise AnalysisError(f"{table.at(int(row))}, columns {present[0]} and {other} differ: leave one column out")
    return si[0]


def csv_text(frame: pd.DataFrame) -> str:
    """A table of published figures as CSV, with 15 digits, so that sums of decimals read as such."""
    rounded = frame.map(lambda value: float(f"{value:.15g}") if isinstance(value, float) else csv_cell(value))
    text: str = rounded.rename(columns=csv_cell).to_csv(index=False, lineterminator="\n")
    return text


def table_of_frame(frame: pd.DataFrame, name: str) -> Table:
    """The same for every other format; a cell without a value is empty."""
    columns = [column_of(str(n)) if str(n) in COLUMNS else Column(str(n), _kind(frame[n])) for n in frame]
    cells = frame.astype(object).where(frame.notna(), None)
    for c in columns:
        if c.kind == "text":
            cells[c.name] = [None if value is None else str(value) for value in cells[c.name]]
    return make_table(name, "", columns, cells.replace("", None).itertuples(index=False))


def _kind(values: pd.Series) -> Kind:
    is_of_numbers = all(isinstance(v, int | float) for v in values if v not in (None, ""))
    return "number" if is_of_numbers else "text"


# -- as the frame of figures -------------------------------------------------------------------------------------------

CAPS_W = ("max_power_w", "power_cap_w", "power_limit_w", "power_limit")
"""Columns whose highest value is taken for the maximum power of a Zeus cost."""
KINDS = ("phase", "total", "run", "rank")
WHOLE = ("", "all", "total")
"""Names of a phase that mean all of them."""
_MOST = 2**53
_OTHER_NAMES: Mapping[str, Sequence[str]] = {
    "batch_size": ("batch_size", "batch"),
    "device_name": ("device_name", "gpu"),
    "power_cap_w": (*CAPS_W[1:], CAPS_W[0]),
}
"""Columns of a frame as others call them; the first that a table has counts."""
_UNITS = {"energy_j": ENERGY_J, "time_s": TIME_S, "clock_hz": {"clock_hz": 1.0, "clock_mhz": 1e6}}
_WORKED_OUT = ("power_w", "edp_js", "ed2p_js2", "j_per_sample", "samples_per_j", "s_per_sample", "edp_per_sample_js",
               "eds", "u95_j")  # fmt: skip
_UNSIGNED = ("batch_size", "gpus", "power_cap_w", "clock_hz", "iterations", "s_per_batch", "time_s", "energy_j")
_OF_TRAININGS = ("s_per_training", "j_per_training")
_PER_SAMPLE = ("j_per_sample", "s_per_sample", "samples_per_j", "edp_per_sample_js")


def published_frame(table: TableFile) -> Frame:
    """A table as the frame of figures: a row for each of its rows, in their order.

    A row without a phase is a ``total``, others are a ``phase``, unless a column ``kind`` says so. Energy and time come
    from the columns `ENERGY_J` and `TIME_S`, and from ``j_per_batch`` and ``s_per_batch``; what one of the two pairs
    lacks follows from the other and ``iterations``. Without ``iterations``, a total of a batch is of one batch, and a
    phase is as long as it was in all. ``u95_j`` and ``u95_s`` are of the energy and the time that a row has, and count
    as systematic. Columns that a frame does not know are attributes, as they stand.

    Raises `AnalysisError` with file, row and column for a cell that is no number where a figure stands.
    """
    names = {name: first_of(table, _OTHER_NAMES.get(name, (name,))) for name in (*COLUMNS, *_OF_TRAININGS)}
    read = {name: own for name, own in names.items() if own and name not in _WORKED_OUT}
    if not set(table.cells.get("kind", ())) <= set(KINDS):
        read.pop("kind")
    columns: dict[str, Any] = {name: _column(table, name, own) for name, own in read.items()}
    for name, units in _UNITS.items():
        if first_of(table, list(units)):
            columns[name] = column_in(table, units)
    used = {*read.values(), *_WORKED_OUT, "u95_s"}.union(*_UNITS.values())
    for name in table.columns:
        if name not in used:
            columns[f"{ATTRIBUTE}{name.removeprefix(ATTRIBUTE)}"] = _attribute(table, name)
    frame = pd.DataFrame(columns, index=pd.RangeIndex(len(table)))
    frame = with_column_types(frame.reindex(columns=[*COLUMNS, *(name for name in columns if name not in COLUMNS)]))
    if "kind" not in read:
        frame["kind"] = pd.Series(np.where(frame["phase"].fillna("").isin(WHOLE), "total", "phase"), dtype="string")
    frame["phase"] = frame["phase"].mask(frame["phase"].isin(WHOLE))
    frame["phase_path"] = frame["phase_path"].fillna(frame["phase"])
    with np.errstate(all="ignore"):
        return _with_figures(table, frame)


def _column(table: TableFile, name: str, own: str) -> Any:
    """A column of a frame from the one that a table has."""
    kind = column_of(name).kind
    if kind == "text":
        return [text or None for text in table.cells[own]]
    if kind == "flag":
        return [text.casefold() in ("true", "1") if text else None for text in table.cells[own]]
    values = table.numbers(own, signed=name not in _UNSIGNED, whole=kind == "integer")
    for row in np.flatnonzero(np.abs(values) >= _MOST) if kind == "integer" else ():
        raise table.fault(int(row), own, f"{table.cells[own][row]} is too large")
    return values


def _attribute(table: TableFile, name: str) -> pd.Series:
    """A column that a frame does not know: numbers where all cells are, else texts."""
    texts = table.cells[name]
    values = [parse_number(text) for text in texts]
    if all(value is not None or not text for text, value in zip(texts, values, strict=True)):
        return pd.Series(values, dtype="float64")
    return pd.Series([text or None for text in texts], dtype="string")


def _with_figures(table: TableFile, frame: Frame) -> Frame:
    """The frame with what follows from the figures that its table states."""
    is_phase, n = np.asarray(frame["kind"] == "phase"), floats(frame, "iterations")
    is_of_all = is_known(frame, "energy_j") | is_known(frame, "time_s")
    is_of_a_batch = ~is_of_all & (is_known(frame, "j_per_batch") | is_known(frame, "s_per_batch"))
    n = np.where(~is_phase & is_of_a_batch & np.isnan(n), 1.0, n)
    is_of_a_training = is_phase & np.isnan(floats(frame, "j_per_batch")) & np.isnan(n)
    frame["iterations"] = pd.Series(n).astype("Int64")
    joules, seconds = (
        _stated(frame, n, each, whole) for each, whole in (("j_per_batch", "energy_j"), ("s_per_batch", "time_s"))
    )
    own_j = np.where(is_phase, floats(frame, "j_per_batch"), floats(frame, "energy_j"))
    own_s = np.where(is_phase | (n > 0), floats(frame, "s_per_batch"), floats(frame, "time_s"))
    if "u95_j" in table.columns:
        is_unknown = frame["u_statistical_j"].isna() & frame["u_systematic_j"].isna()
        u_j = table.numbers("u95_j") / NORMAL * np.abs(own_j / joules)
        frame["u_systematic_j"] = frame["u_systematic_j"].mask(is_unknown, pd.Series(u_j))
    if "u95_s" in table.columns:
        u_s = table.numbers("u95_s") / NORMAL * np.abs(own_s / seconds)
        frame["u_s_per_batch"] = frame["u_s_per_batch"].fillna(pd.Series(u_s))
    frame = worked_out(frame)
    for name in _PER_SAMPLE:
        frame[name] = frame[name].mask(is_of_a_training)
    frame["samples_per_s"] = frame["samples_per_s"].fillna(1 / frame["s_per_sample"])
    return with_eds(frame)


def _stated(frame: Frame, n: Values, each: str, whole: str) -> Values:
    """[rows] the figure that a row states, of one batch or of all; in the frame, each is filled in by the other."""
    of_each, of_all = floats(frame, each), floats(frame, whole)
    is_phase, is_total = (np.asarray(frame["kind"] == kind) for kind in ("phase", "total"))
    each_of_all = of_all / np.where(np.isnan(n), 1.0, n)
    frame[each] = np.where(np.isnan(of_each) & (is_phase | is_total), each_of_all, of_each)
    frame[whole] = np.where(np.isnan(of_all) & is_total, of_each * n, of_all)
    first, second = np.where(is_phase, of_each, of_all), np.where(is_phase, of_all, of_each)
    return np.where(np.isnan(first), second, first)


def first_of(table: TableFile, names: Sequence[str]) -> str | None:
    """The first of some columns that the table has."""
    return next((name for name in names if name in table.columns), None)


# -- tables of phases --------------------------------------------------------------------------------------------------

KEYS = ["device", "model", "gpus", "batch", "phase"]
"""Columns that say which row it is: a file has every combination at most once."""
FIGURES = ["iterations", "s_per_batch", "j_per_batch", "s_per_training", "j_per_training"]
"""Columns with figures, each optional."""


class Configuration(NamedTuple):
    """What is trained, on which and how many GPUs."""

    device: str
    model: str
    gpus: int
    batch: int

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return printable(f"{self.device}, {self.model}, {gpus}, batch {self.batch}", limit=200)


def read_phases(paths: Sequence[Path], progress: Progress = no_progress) -> pd.DataFrame:
    """Read and join files: a row for each of `KEYS` (the index, phases in small letters) with `FIGURES`, NaN where no
    file says one, in the order in which the files give them.

    A file without some of these columns may give ``iterations`` for every row that agrees in those it has (a table of
    iterations by model and batch). Raises `AnalysisError` for rows that say different things, and for files that
    together have no column of time or none of energy.
    """
    import pandas as pd

    tables = [read_table(path, lambda share, text: progress(0.6 * share, text)) for path in paths]
    columns = {column for table in tables for column in table.columns}
    for unit, what in (("s", "time"), ("j", "energy")):
        if f"{unit}_per_training" not in columns and not {f"{unit}_per_batch", "iterations"} <= columns:
            raise AnalysisError(
                f"{', '.join(t.name for t in tables)}: for the {what} of a training give the column "
                f"{unit}_per_training, or {unit}_per_batch and iterations; another file may have them"
            )
    of_iterations = [t for t in tables if "model" in t.columns and not set(KEYS) <= set(t.columns)]
    of_iterations = [t for t in of_iterations if set(FIGURES) & set(t.columns) == {"iterations"}]
    of_phases = [_rows(t, KEYS) for t in tables if t not in of_iterations]
    rows = pd.concat(of_phases or [_rows(t, KEYS) for t in tables])
    keys = rows[KEYS].drop_duplicates()
    for table in of_iterations:
        shared = [name for name in KEYS if name in table.columns]
        rows = pd.concat([rows, keys.merge(_rows(table, shared), on=shared)])
    groups = rows.groupby(KEYS, sort=False)
    for name in FIGURES:
        contradicted = groups[name].transform("nunique") > 1
        if contradicted.any():
            given = rows[contradicted & rows[name].notna()]
            other = given[given[name] != given[name].iloc[0]].iloc[0]
            here, there = other[name], given[name].iloc[0]
            raise AnalysisError(f"{other['at']}, column {name}: {here:.12g} here, {there:.12g} in another file")
    return groups[FIGURES].first()


def _rows(table: TableFile, names: Sequence[str]) -> pd.DataFrame:
    """The rows [n] of a file with these of `KEYS`, its `FIGURES`, and ``at``: where each stands.

    Raises `AnalysisError` for two rows of one thing.
    """
    import pandas as pd

    table.require(*names)
    rows = pd.DataFrame({"at": [table.at(row) for row in range(len(table))]})
    for name in names:
        rows[name] = texts = table.texts(name)
        if name in ("gpus", "batch"):
            rows[name] = table.numbers(name, positive=True, whole=True).astype(np.int64)
        elif name == "phase":
            rows[name] = [text.casefold() for text in texts]
    for name in FIGURES:
        is_count = name == "iterations"
        rows[name] = table.numbers(name, positive=is_count, whole=is_count) if name in table.columns else np.nan
    if (again := rows.duplicated(list(names))).any():
        row = rows[again].iloc[0]
        what = printable(", ".join(str(row[name]) for name in names), limit=200)
        raise AnalysisError(f"{row['at']}: a second row of {what}")
    return rows


# -- totals of whole trainings -----------------------------------------------------------------------------------------

Mix = dict[str, int]
"""How many GPUs of each kind one configuration has, each kind measured on one card: ``{"pascal": 2, "maxwell": 2}``."""
TOTALS = ("device", "model", "gpus", "batch", "iterations", "time_s", "energy_j", "edp_js", "gflops_per_w")
AROUND = ("iteration", "step", "epoch", "training", "total", "all")
"""Names of phases that usually hold the others: beside these, a sum over phases counts them twice."""
PASSES = ("forward", "backward")
"""Phases whose joules GFLOPS/W divides by; each counts a model's operations once."""


def parse_mixes(texts: Sequence[str]) -> dict[int, Mix]:
    """The mixes of a command line (``pascal=2,maxwell=2``), by their number of GPUs.

    Raises `ConfigError` for what is none, or for two of one number.
    """
    mixes: dict[int, Mix] = {}
    for text in texts:
        mix: Mix = {}
        for part in text.split(","):
            kind, _, count = (piece.strip() for piece in part.rpartition("="))
            if not kind or kind in mix or not re.fullmatch("[1-9][0-9]{0,7}", count):
                raise ConfigError(f"--mix {printable(text)}: is not KIND=COUNT,KIND=COUNT, as in pascal=2,maxwell=2")
            mix[kind] = int(count)
        if mixes.setdefault(sum(mix.values()), mix) is not mix:
            raise ConfigError(f"--mix {printable(text)}: there is another mix of as many GPUs")
    return mixes


def read_operations(path: Path) -> dict[str, float]:
    """Operations of a sample by model: columns ``model`` and ``operations`` (``operations_m`` for millions).

    Raises `AnalysisError`, too, for a model that stands there twice.
    """
    table = read_table(path)
    models = _rows(table, ["model"])["model"]
    values = column_in(table, {"operations": 1.0, "operations_m": 1e6, "ops_m": 1e6}, positive=True)
    return dict(pd.Series(values, models).dropna())


def training_totals(
    table: pd.DataFrame, operations: Mapping[str, float] | None = None, mixes: Mapping[int, Mix] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Totals of every configuration in a table of `read_phases` by device, model, GPUs and batch, as `TOTALS`, and
    notes on them.

    Time is the sum over phases, energy the sum over phases x GPUs. A configuration of as many GPUs as a mix, on a kind
    of the mix: the time of the slowest kind, since all train together, energy the sum over kinds of count x that kind's
    joules; each kind has its row with these figures, as in the paper. A figure that lacks a phase is None, never a
    part; the notes say why. Raises `ConfigError` for a mix with a kind that is not in the table, `AnalysisError` when
    no figure can be had at all.
    """
    import pandas as pd

    mixes = mixes or {}
    configurations = [Configuration(*key) for key in table.index.droplevel("phase").drop_duplicates()]
    # A row that was left out is as empty as one with empty cells: a model's phases are those of all its rows.
    phases = {m: list(of.index.unique("phase")) for m, of in table.groupby(level="model", sort=False)}
    devices, models = list(dict.fromkeys(c.device for c in configurations)), [*phases]
    notes = [*_summed_twice(phases), *_without_configuration(mixes, configurations)]
    seconds, joules = (
        table[f"{unit}_per_training"].fillna(table[f"{unit}_per_batch"] * table["iterations"]).dropna().to_dict()
        for unit in ("s", "j")
    )
    joules_of_batch = table["j_per_batch"].fillna(table["j_per_training"] / table["iterations"]).dropna().to_dict()
    iterations = table["iterations"].groupby(level=KEYS[:-1]).agg(_common).dropna().astype(int).to_dict()
    totals: list[list[Any]] = []
    for c in sorted(configurations, key=lambda c: (devices.index(c.device), models.index(c.model), c.gpus, c.batch)):
        mix = mixes.get(c.gpus, {})
        counts = mix if c.device in mix else {c.device: c.gpus}
        time_s = _time_s(c, phases[c.model], counts, seconds, notes)
        energy_j = _energy_j(c, phases[c.model], counts, joules, notes)
        edp_js = metrics.edp_js(energy_j, time_s) if energy_j is not None and time_s is not None else None
        gflops_per_w = None
        if operations is not None:
            passes = [phase for phase in PASSES if phase in phases[c.model]]
            gflops_per_w = _gflops_per_w(c, passes, counts, joules_of_batch, operations.get(c.model), notes)
        totals.append([*c, iterations.get(c), *_finite(c, time_s, energy_j, edp_js, gflops_per_w)])
    trainings = pd.DataFrame(totals, columns=list(TOTALS)).astype({"iterations": "Int64"})
    if trainings[["time_s", "energy_j"]].isna().all(axis=None):
        raise AnalysisError(f"no configuration has a total: {notes[-1]}")
    return trainings, list(dict.fromkeys(notes))


def _finite(c: Configuration, *figures: float | None) -> tuple[float | None, ...]:
    if not all(math.isfinite(v) for v in figures if v is not None):
        raise AnalysisError(f"{c}: its figures are too large: a sum or a product is not finite")
    return figures


def _summed_twice(phases: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """A note on each model of which some phases may hold others."""
    for model, names in phases.items():
        if 0 < sum(phase in AROUND for phase in names) < len(names):
            text = printable(f"{model}: {', '.join(names)} are all summed", limit=200)
            yield f"{text}: leave out the rows of phases that hold others, or these count twice"


def _without_configuration(mixes: Mapping[int, Mix], configurations: Sequence[Configuration]) -> Iterator[str]:
    """A note on each mix of which there is no configuration. Raises `ConfigError` for a kind that is not there."""
    devices = {c.device for c in configurations}
    for gpus, mix in mixes.items():
        if unknown := [kind for kind in mix if kind not in devices]:
            raise ConfigError(f"--mix: no device {printable(unknown[0])!r} in the tables")
        if not any(c.gpus == gpus and c.device in mix for c in configurations):
            yield f"--mix: no configuration of {gpus} GPUs of {printable(', '.join(mix))} in the tables"


def _common(values: pd.Series) -> float:
    """The value that all have; NaN where they differ, or one has none."""
    return float(values.iloc[0]) if values.nunique(dropna=False) == 1 else math.nan


ByRow = Mapping[tuple[Any, ...], float]
"""One figure of one GPU by `KEYS`, where it is known."""


def _time_s(c: Configuration, phases: Sequence[str], counts: Mix, seconds: ByRow, notes: list[str]) -> float | None:
    """The sum over phases; of kinds that train together, that of the slowest.

    Not a sum over each phase's slowest: who is done with one phase first waits in the next, whose time has that in it.
    Of a phase for which a kind has no time, that of the others counts.
    """
    totals = dict.fromkeys(counts, 0.0)
    missing = []
    for phase in phases:
        known = {kind: t for kind in counts if (t := seconds.get((kind, *c[1:], phase))) is not None}
        missing += [] if known else [phase]
        for kind in totals if known else ():
            totals[kind] += known.get(kind, max(known.values()))
    if missing:
        notes.append(_lack(c, "time", missing))
        return None
    if min(totals.values()) < max(totals.values()):
        each = " and ".join(f"{t:.6g} s on {printable(kind, limit=60)}" for kind, t in totals.items())
        where = f"{printable(c.model, limit=60)}, {c.gpus} GPUs, batch {c.batch}"
        notes.append(f"{where}: {each}; they train together: that of the slowest counts")
    return max(totals.values())


def _energy_j(c: Configuration, phases: Sequence[str], counts: Mix, joules: ByRow, notes: list[str]) -> float | None:
    """The sum over phases and GPUs."""
    known = {(kind, phase): joules.get((kind, *c[1:], phase)) for kind in counts for phase in phases}
    if missing := [key for key, j in known.items() if j is None]:
        names = [phase if len(counts) == 1 else f"{phase} on {kind}" for kind, phase in missing]
        notes.append(_lack(c, "energy", names))
        return None
    return math.fsum(counts[kind] * j for (kind, _), j in known.items() if j is not None)


def _gflops_per_w(
    c: Configuration, passes: Sequence[str], counts: Mix, joules: ByRow, operations: float | None, notes: list[str]
) -> float | None:
    """By the paper's convention, over the joules of a batch's passes on all GPUs."""
    if operations is None:
        notes.append(f"{printable(c.model, limit=60)}: no GFLOPS/W, as its operations are not given")
        return None
    known = [(n, joules.get((kind, *c[1:], phase))) for kind, n in counts.items() for phase in passes]
    j_per_batch = math.fsum(n * j for n, j in known if j is not None)
    if any(j is None for _, j in known) or j_per_batch <= 0:
        notes.append(_lack(c, "GFLOPS/W, as there are no joules of a batch", PASSES))
        return None
    return metrics.gflops_per_w_paper(operations, c.batch, len(passes), j_per_batch)


def _lack(c: Configuration, what: str, phases: Sequence[str]) -> str:
    return f"{c}: no {what} of {printable(' and '.join(phases), limit=200)}"
