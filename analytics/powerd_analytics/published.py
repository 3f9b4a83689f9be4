"""Tables that anybody published: whole trainings from tables of phases, and the best of several configurations.

`read_table` reads CSV or Parquet into a `TableFile`; faults name file, row (from 1, below the header) and column.
`training_totals` sums the phases of each configuration (`joules totals`), `choose` picks the best row against a
reference (`joules pick`). docs/reference/totals.md has the columns and the rules.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from powerd_analytics import metrics
from powerd_analytics.runs.run import Progress, no_progress
from powerd_core.errors import AnalysisError, ConfigError, RunFileError
from powerd_core.text import printable

if TYPE_CHECKING:
    import pandas as pd

# -- tables of others --------------------------------------------------------------------------------------------------

# float() also takes "1_000", "infinity" and digits of other scripts: nothing that a table should hold.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table by columns. Cells are texts without blanks around them; ``""`` is an empty cell."""

    name: str
    """The file, as messages call it."""
    columns: tuple[str, ...]
    cells: Mapping[str, Sequence[str]]
    """Column -> cells [n]."""
    rows: int

    def __len__(self) -> int:
        return self.rows

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

    def texts(self, column: str) -> Sequence[str]:
        """Cells [n] of a column of names, none empty or with control characters."""
        self.require(column)
        for row, text in enumerate(self.cells[column]):
            if not text or _CONTROL.search(text):
                raise self.fault(row, column, "is empty, or holds a control character")
        return self.cells[column]

    def numbers(
        self, column: str, *, positive: bool = False, signed: bool = False, whole: bool = False
    ) -> list[float | None]:
        """Cells [n] of a column as finite numbers, None where empty.

        Zero is refused when ``positive``, what is below zero unless ``signed``, fractions when ``whole``. Raises
        `AnalysisError` for the first cell that is anything else.
        """
        self.require(column)
        numbers: list[float | None] = []
        for row, text in enumerate(self.cells[column]):
            value = parsed(text)
            if value is None and text:
                raise self.fault(row, column, f"{printable(text, limit=40)!r} is no finite number (decimal point)")
            if value is not None and ((value < 0 and not signed) or (value == 0 and positive)):
                raise self.fault(row, column, f"{text}: must {'be above 0' if positive else 'not be negative'}")
            if value is not None and whole and not value.is_integer():
                raise self.fault(row, column, f"{text} is no whole number")
            numbers.append(value)
        return numbers


def parsed(text: str) -> float | None:
    """A finite decimal number, else None."""
    value = float(text) if _NUMBER.fullmatch(text) else math.inf
    return value if math.isfinite(value) else None


def read_table(path: Path, progress: Progress = no_progress) -> TableFile:
    """Read a table: Parquet by its first bytes, else CSV (comma, semicolon or tab; UTF-8, or UTF-16 with its mark).

    Rows without any text are skipped. Raises `RunFileError` for a file that cannot be read,
    `AnalysisError` for one that is no table: empty, columns twice, rows longer or shorter than the header.
    """
    name = printable(str(path), limit=200)
    progress(0.5, f"reading {name}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunFileError(f"{name} cannot be read: {error.strerror or error}") from error
    rows = [cells for cells in (_parquet(name, data) if data[:4] == b"PAR1" else _csv(name, data)) if any(cells)]
    if len(rows) < 2:
        raise AnalysisError(f"{name} is no table: it needs a header and rows")
    header = rows.pop(0)
    for i, cells in enumerate(rows, 1):
        if len(cells) != len(header):
            raise AnalysisError(f"{name}, row {i}: {len(cells)} cells, but the header has {len(header)}")
    for column in header:
        if _CONTROL.search(column) or (column and header.count(column) > 1):
            raise AnalysisError(f"{name}, header: {column!r} stands twice, or holds a control character")
    return TableFile(name, tuple(header), dict(zip(header, zip(*rows, strict=True), strict=True)), len(rows))


def _csv(name: str, data: bytes) -> list[list[str]]:
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        first = re.sub(r'"[^"]*"', "", text.lstrip("\r\n").split("\n", 1)[0])  # a name in quotes may hold separators
        delimiter = next((d for d in ",;\t" if d in first), ",")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return [[cell.strip() for cell in row] for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise AnalysisError(f"{name} is no CSV in UTF-8: {printable(str(error), limit=200)}") from error


def _parquet(name: str, data: bytes) -> list[list[str]]:
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import read_table as read_parquet

    try:
        table = read_parquet(BufferReader(data))
        columns = [["" if v is None else str(v).strip() for v in column.to_pylist()] for column in table.columns]
    except (ArrowException, OSError, ValueError) as error:
        raise AnalysisError(f"{name} is no Parquet file: {printable(str(error), limit=200)}") from error
    return [[c.strip() for c in table.column_names], *map(list, zip(*columns, strict=True))]


ENERGY_J = {"energy_j": 1.0, "energy_kj": 1e3, "energy_wh": 3.6e3, "energy_kwh": 3.6e6}
TIME_S = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9, "time_ks": 1e3, "time_min": 60.0,
          "time_h": 3600.0}  # fmt: skip
ROUNDED = 0.01
"""Two columns of one quantity may differ by this share: published figures are rounded."""


def column_in(table: TableFile, names: Mapping[str, float], *, positive: bool = False) -> list[float | None]:
    """The column [n] in SI units, from the first of ``names`` (with their scales) that the table has.

    Raises `AnalysisError` for none, for two that differ by more than `ROUNDED`, and as `TableFile.numbers`.
    """
    present = [name for name in names if name in table.columns] or list(names)[:1]
    si = [[None if v is None else v * names[n] for v in table.numbers(n, positive=positive)] for n in present]
    for other, values in zip(present[1:], si[1:], strict=True):
        for row, (a, b) in enumerate(zip(si[0], values, strict=True)):
            if a != b and (a is None or b is None or not math.isclose(a, b, rel_tol=ROUNDED)):
                raise AnalysisError(f"{table.at(row)}, columns {present[0]} and {other} differ: leave one column out")
    return si[0]


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
    columns: dict[str, Sequence[object]] = {"at": [table.at(row) for row in range(len(table))]}
    for name in names:
        columns[name] = texts = table.texts(name)
        if name in ("gpus", "batch"):
            columns[name] = [int(n) for n in table.numbers(name, positive=True, whole=True) if n is not None]
        elif name == "phase":
            columns[name] = [text.casefold() for text in texts]
    rows = pd.DataFrame(columns)
    for name in FIGURES:
        is_count = name == "iterations"
        numbers = table.numbers(name, positive=is_count, whole=is_count) if name in table.columns else None
        rows[name] = pd.Series(numbers, rows.index, float)
    if (again := rows.duplicated(list(names))).any():
        row = rows[again].iloc[0]
        what = printable(", ".join(str(row[name]) for name in names), limit=200)
        raise AnalysisError(f"{row['at']}: a second row of {what}")
    return rows


# -- totals of whole trainings -----------------------------------------------------------------------------------------

Mix = dict[str, int]
"""How many GPUs of each kind one configuration has, each kind measured on one card: ``{"pascal": 2, "maxwell": 2}``."""
COLUMNS = ("device", "model", "gpus", "batch", "time_s", "energy_j", "edp_js", "gflops_per_w")
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
    return {model: value for model, value in zip(models, values, strict=True) if value is not None}


def training_totals(
    table: pd.DataFrame, operations: Mapping[str, float] | None = None, mixes: Mapping[int, Mix] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Totals of every configuration in a table of `read_phases` by device, model, GPUs and batch, as `COLUMNS`, and
    notes on them.

    Time is the sum over phases, energy the sum over phases x GPUs. A configuration of as many GPUs as a mix, on a kind
    of the mix: the time of the slowest kind, since all train together, energy the sum over kinds of count x that kind's
    joules; each kind has its row with these figures, as in the paper. A figure that lacks a phase is None, never a
    part; the notes say why. Raises `ConfigError` for a mix with a kind that is not in the table, `AnalysisError` when
    no figure can be had at all.
    """
    import pandas as pd

    notes: list[str] = []
    configurations = [Configuration(*key) for key in table.index.droplevel("phase").drop_duplicates()]
    # A row that was left out is as empty as one with empty cells: a model's phases are those of all its rows.
    phases = {m: list(of.index.unique("phase")) for m, of in table.groupby(level="model", sort=False)}
    for model, names in phases.items():
        if 0 < sum(phase in AROUND for phase in names) < len(names):
            text = printable(f"{model}: {', '.join(names)} are all summed", limit=200)
            notes.append(f"{text}: leave out the rows of phases that hold others, or these count twice")
    devices = list(dict.fromkeys(c.device for c in configurations))
    for gpus, mix in (mixes or {}).items():
        if unknown := [kind for kind in mix if kind not in devices]:
            raise ConfigError(f"--mix: no device {printable(unknown[0])!r} in the tables")
        if not any(c.gpus == gpus and c.device in mix for c in configurations):
            notes.append(f"--mix: no configuration of {gpus} GPUs of {printable(', '.join(mix))} in the tables")
    seconds, joules = (
        table[f"{unit}_per_training"].fillna(table[f"{unit}_per_batch"] * table["iterations"]).dropna().to_dict()
        for unit in ("s", "j")
    )
    joules_of_batch = table["j_per_batch"].fillna(table["j_per_training"] / table["iterations"]).dropna().to_dict()
    totals: list[list[Any]] = []
    order = [*phases]
    for c in sorted(configurations, key=lambda c: (devices.index(c.device), order.index(c.model), c.gpus, c.batch)):
        mix = (mixes or {}).get(c.gpus, {})
        counts = mix if c.device in mix else {c.device: c.gpus}
        time_s = _time_s(c, phases[c.model], counts, seconds, notes)
        energy_j = _energy_j(c, phases[c.model], counts, joules, notes)
        edp_js = metrics.edp_js(energy_j, time_s) if energy_j is not None and time_s is not None else None
        gflops_per_w = None
        if operations is not None:
            passes = [phase for phase in PASSES if phase in phases[c.model]]
            gflops_per_w = _gflops_per_w(c, passes, counts, joules_of_batch, operations.get(c.model), notes)
        totals.append([*c, time_s, energy_j, edp_js, gflops_per_w])
        if not all(math.isfinite(v) for v in totals[-1][4:] if v is not None):
            raise AnalysisError(f"{c}: its figures are too large: a sum or a product is not finite")
    made = pd.DataFrame(totals, columns=list(COLUMNS))
    if made[["time_s", "energy_j"]].isna().all(axis=None):
        raise AnalysisError(f"no configuration has a total: {notes[-1]}")
    return made, list(dict.fromkeys(notes))


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


# -- the best of several configurations --------------------------------------------------------------------------------

Metric = Literal["e", "edp", "eds", "cost"]

CAPS_W = ("max_power_w", "power_cap_w", "power_limit_w", "power_limit")
"""Columns whose highest value is taken for the maximum power of a Zeus cost."""
COLUMN_OF: Mapping[Metric, str] = {"e": "energy_j", "edp": "edp_js", "eds": "eds", "cost": "cost_j"}


@dataclass(frozen=True, slots=True)
class Condition:
    """``COLUMN=VALUE``: numbers compare as numbers, other cells as text."""

    column: str
    value: str

    def holds(self, cell: str) -> bool:
        """Whether a cell is that value."""
        value, wanted = parsed(cell), parsed(self.value)
        is_number = value is not None and wanted is not None and math.isclose(value, wanted, rel_tol=1e-9)
        return is_number or cell == self.value

    def rows(self, table: TableFile, among: Sequence[int]) -> list[int]:
        """The rows for which it holds. Raises `AnalysisError` for a column that is not there, and for none."""
        table.require(self.column)
        cells = table.cells[self.column]
        rows = [i for i in among if self.holds(cells[i])]
        if not rows:
            values = printable(", ".join(dict.fromkeys(filter(None, cells))), limit=300)
            raise AnalysisError(f"{table.name}: no row has {self}; {self.column} is {values}")
        return rows

    def __str__(self) -> str:
        return printable(f"{self.column}={self.value}", limit=120)


def parse_condition(option: str, text: str) -> Condition:
    """``COLUMN=VALUE``, at the first ``=``. Raises `ConfigError`."""
    column, equals, value = (piece.strip() for piece in text.partition("="))
    if not (column and equals):
        raise ConfigError(f"{option} {printable(text)}: is not COLUMN=VALUE, as in power_cap_w=260")
    return Condition(column, value)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best row of one group, by its number from 0 in the table."""

    row: int
    energy_j: float
    value: float
    energy_saving_pct: float
    performance_loss_pct: float
    saving_minus_loss_pct: float


def choose(
    table: TableFile,
    reference: Condition,
    metric: Metric,
    where: Sequence[Condition] = (),
    by: Sequence[str] = (),
    *,
    k: float = 2.0,
    eta: float = 0.5,
    max_power_w: float | None = None,
) -> tuple[list[Choice], list[str]]:
    """The best row in all that fulfil ``where``, or in each group of equal cells in the columns ``by``; and notes.

    Energy comes from one of the columns `ENERGY_J`, time from one of `TIME_S` (`column_in`). Rows without one of them
    were not run and are passed over; of equally good ones the first is taken. Raises `AnalysisError` for a table
    without these columns or with two that differ, without exactly one reference row in a group, and with cells that are
    no numbers, in any row. ``max_power_w`` None: the highest power cap in the group.
    """
    table.require(*by)
    energy_j, time_s = column_in(table, ENERGY_J), column_in(table, TIME_S)
    rows = list(range(len(table)))
    for condition in where:
        rows = condition.rows(table, rows)
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in rows:
        groups.setdefault(tuple(table.cells[column][i] for column in by), []).append(i)
    notes: list[str] = []
    choices = []
    for group in groups.values():
        ref = reference.rows(table, group)
        if len(ref) > 1:
            raise AnalysisError(
                f"{table.name}: {len(ref)} rows are the reference {reference}: "
                "narrow them down with --where COLUMN=VALUE, or pick one of each with --by COLUMN"
            )
        figures = {i: (e, t) for i in group if (e := energy_j[i]) is not None and (t := time_s[i]) is not None}
        if not all(figures.get(ref[0], (0.0,))):
            raise AnalysisError(f"{table.at(ref[0])}: the reference {reference} has no energy or no time")
        notes += [f"{table.at(i)}: no energy or no time: not among the choices" for i in group if i not in figures]
        notes += [
            f"{table.at(i)}: 0 counts as 0; leave empty what was not measured" for i in figures if 0 in figures[i]
        ]
        most_w = max_power_w
        if metric == "cost" and most_w is None:
            most_w = _max_power_w(table, list(figures), notes)
        values = []
        for e, t in figures.values():
            if metric == "eds":
                values.append(metrics.eds(e, t, *figures[ref[0]], k))
            elif metric == "cost":
                values.append(metrics.zeus_cost_j(e, t, most_w or 0.0, eta))
            else:
                values.append(metrics.edp_js(e, t) if metric == "edp" else e)
        if not all(map(math.isfinite, values)):
            raise AnalysisError(f"{table.name}: energy and time are too large: their metric is no finite number")
        at = metrics.best(values)
        best = list(figures)[at]
        (e, t), (e_ref, t_ref) = figures[best], figures[ref[0]]
        saving, loss = metrics.energy_saving_pct(e, e_ref), metrics.performance_loss_pct(t, t_ref)
        both = metrics.saving_minus_loss_pct(e, t, e_ref, t_ref)
        choices.append(Choice(best, e, values[at], saving, loss, both))
    return choices, list(dict.fromkeys(notes))


def _max_power_w(table: TableFile, rows: Sequence[int], notes: list[str]) -> float:
    column = next((name for name in CAPS_W if name in table.columns), None)
    caps_w = table.numbers(column) if column is not None else []
    highest_w = max((caps_w[i] or 0.0 for i in rows), default=0.0) if caps_w else 0.0
    if not highest_w:
        raise ConfigError(f"the cost needs the maximum power of the GPU: give --max-power W, or a column {CAPS_W[1]}")
    notes.append(f"maximum power {highest_w:g} W is the highest {column}; --max-power W gives another")
    return highest_w
