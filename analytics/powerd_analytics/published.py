"""Tables that anybody published: whole trainings from tables of phases, and the best of several configurations.

`read_table` reads CSV or Parquet into a `TableFile`; faults name file, row (from 1, below the header) and column.
`training_totals` sums the phases of each configuration (`joules totals`), `choose` picks the best row against a
reference (`joules pick`). docs/totals.md has the columns and the rules.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, NamedTuple

from powerd_analytics import metrics
from powerd_analytics.runs.run import Progress, no_progress
from powerd_core.errors import AnalysisError, ConfigError, RunFileError
from powerd_core.text import printable

# -- tables of others --------------------------------------------------------------------------------------------------

# float() also takes "1_000", "infinity" and digits of other scripts: nothing that a table should hold.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MARKS = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"))
_LARGEST_WHOLE = 2**53
"""From here on neighbouring whole numbers are one double."""


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
                near = get_close_matches(column, self.columns, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self.columns)}"
                raise AnalysisError(f"{self.name}: no column {column!r}: {printable(hint, limit=300)}")

    def texts(self, column: str) -> Sequence[str]:
        """Cells [n] of a column of names, none empty or with control characters."""
        self.require(column)
        for row, text in enumerate(self.cells[column]):
            if not text or _CONTROL.search(text):
                raise self.fault(row, column, "holds a control character" if text else "is empty")
        return self.cells[column]

    def numbers(
        self, column: str, *, positive: bool = False, signed: bool = False, whole: bool = False
    ) -> list[float | None]:
        """Cells [n] of a column as finite numbers, None where empty.

        Zero is refused when ``positive``, what is below zero unless ``signed``, fractions and what is not below 2^53
        when ``whole``. Raises `AnalysisError` for the first cell that is anything else.
        """
        self.require(column)
        numbers: list[float | None] = []
        for row, text in enumerate(self.cells[column]):
            value = parsed(text)
            if value is None and text:
                raise self.fault(row, column, f"{printable(text, limit=40)!r} is no finite number (decimal point)")
            if value is not None and ((value < 0 and not signed) or (value <= 0 and positive)):
                raise self.fault(row, column, f"{text}: must {'be above 0' if positive else 'not be negative'}")
            if value is not None and whole and not (value.is_integer() and abs(value) < _LARGEST_WHOLE):
                raise self.fault(row, column, f"{text} is no whole number below 2^53")
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
    header, *rows = [
        row for row in (_parquet(name, data) if data[:4] == b"PAR1" else _csv(name, data)) if any(row)
    ] or [[]]
    if not rows:
        raise AnalysisError(f"{name} is no table: it needs a header and rows")
    for i, row in enumerate([header, *rows]):
        where = f"{name}, row {i}" if i else f"{name}, header"
        if len(row) != len(header):
            raise AnalysisError(f"{where}: {len(row)} cells, but the header has {len(header)}")
    for column in header:
        if _CONTROL.search(column) or (column and header.count(column) > 1):
            raise AnalysisError(f"{name}, header: {column!r} stands twice, or holds a control character")
    return TableFile(name, tuple(header), dict(zip(header, zip(*rows, strict=True), strict=True)), len(rows))


def _csv(name: str, data: bytes) -> list[list[str]]:
    encoding = next((e for mark, e in _MARKS if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
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

KEYS = ("device", "model", "gpus", "batch", "phase")
"""Columns that say which row it is: a file has every combination at most once."""
FIGURES = ("iterations", "s_per_batch", "j_per_batch", "s_per_training", "j_per_training")
"""Columns with figures, each optional."""
MISMATCH_SHARE = 0.1
"""A training that differs by more than this share from its batches x iterations is worth a word: tables are rounded."""

Figures = dict[str, float]
"""What the files say of one phase, by the names of `FIGURES`."""


class Configuration(NamedTuple):
    """What is trained, on which and how many GPUs."""

    device: str
    model: str
    gpus: int
    batch: int

    def __str__(self) -> str:
        gpus = f"{self.gpus} GPU{'s' if self.gpus > 1 else ''}"
        return f"{printable(self.device, limit=60)}, {printable(self.model, limit=60)}, {gpus}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Joined rows in the order in which the files give them, and what a reader should know of them."""

    rows: Mapping[Configuration, Mapping[str, Figures]]
    """By configuration and phase; phases in small letters."""
    notes: tuple[str, ...]


def read_phases(paths: Sequence[Path], progress: Progress = no_progress) -> PhaseTable:
    """Read and join files by `KEYS`.

    A file without some of these columns may give ``iterations`` for every row that agrees in those it has (a table of
    iterations by model and batch). Raises `AnalysisError` for rows that say different things, and for files that
    together have no column of time or none of energy.
    """
    tables = [read_table(path, lambda share, text: progress(0.6 * share, text)) for path in paths]
    of_iterations = [t for t in tables if "model" in t.columns and _figures_in(t) == ["iterations"]]
    of_iterations = [t for t in of_iterations if not set(KEYS) <= set(t.columns)]
    of_phases = [t for t in tables if t not in of_iterations] or tables
    rows: dict[tuple[str | int, ...], Figures] = {}
    notes: list[str] = []
    for table in of_phases:
        keys = _keys(table, KEYS)
        for key in keys:
            rows.setdefault(key, {})
        for name in _figures_in(table):
            for row, value in enumerate(_numbers(table, name)):
                _put(rows[keys[row]], table, row, name, value)
                if value == 0:
                    notes.append(
                        f"{table.at(row)}, column {name}: 0 counts as 0; leave it empty if it was not measured"
                    )
    for table in of_iterations:
        at = [KEYS.index(name) for name in KEYS if name in table.columns]
        row_of = {key: row for row, key in enumerate(_keys(table, [KEYS[i] for i in at]))}
        values = _numbers(table, "iterations")
        for key, figures in rows.items():
            row_found = row_of.get(tuple(key[i] for i in at))
            if row_found is not None:
                _put(figures, table, row_found, "iterations", values[row_found])
    columns = {column for table in tables for column in table.columns}
    for unit, what in (("s", "time"), ("j", "energy")):
        if f"{unit}_per_training" not in columns and not {f"{unit}_per_batch", "iterations"} <= columns:
            raise AnalysisError(
                f"{', '.join(t.name for t in tables)}: for the {what} of a training give the column "
                f"{unit}_per_training, or {unit}_per_batch and iterations; another file may have them"
            )
    by_configuration: dict[Configuration, dict[str, Figures]] = {}
    for key, figures in rows.items():
        c, phase = Configuration(*key[:-1]), key[-1]  # type: ignore[arg-type]
        by_configuration.setdefault(c, {})[str(phase)] = figures
        notes += _mismatches(f"{c}, {printable(str(phase), limit=60)}", figures)
    return PhaseTable(by_configuration, tuple(notes))


def _figures_in(table: TableFile) -> list[str]:
    return [name for name in FIGURES if name in table.columns]


def _numbers(table: TableFile, name: str) -> list[float | None]:
    is_count = name == "iterations"
    return table.numbers(name, positive=is_count, whole=is_count)


def _keys(table: TableFile, names: Sequence[str]) -> list[tuple[str | int, ...]]:
    """What each row [n] is of. Raises `AnalysisError` for two rows of one thing."""
    table.require(*names)
    columns: list[Sequence[str | int]] = []
    for name in names:
        texts = table.texts(name)
        if name in ("gpus", "batch"):
            columns.append([int(n) for n in table.numbers(name, positive=True, whole=True) if n is not None])
        else:
            columns.append([text.casefold() for text in texts] if name == "phase" else texts)
    keys = list(zip(*columns, strict=True))
    first: dict[tuple[str | int, ...], int] = {}
    for row, key in enumerate(keys):
        if (before := first.setdefault(key, row)) != row:
            text = printable(", ".join(map(str, key)), limit=200)
            raise AnalysisError(f"{table.at(row)}: a second row of {text}; the first is row {before + 1}")
    return keys


def _put(figures: Figures, table: TableFile, row: int, name: str, value: float | None) -> None:
    if value is not None and figures.setdefault(name, value) != value:
        raise table.fault(row, name, f"{value:.12g} here, {figures[name]:.12g} in another file for the same phase")


def _mismatches(where: str, figures: Figures) -> list[str]:
    """Trainings that are not their batches x iterations."""
    notes = []
    for unit in ("s", "j"):
        given, batch = figures.get(f"{unit}_per_training"), figures.get(f"{unit}_per_batch")
        if given and batch is not None and "iterations" in figures:
            product = batch * figures["iterations"]
            if abs(product - given) > MISMATCH_SHARE * given:
                what = f"{unit}_per_batch x iterations is {product:.6g}"
                notes.append(f"{where}: {unit}_per_training {given:.6g} is taken, but {what}")
    return notes


def per_training(figures: Figures, unit: str) -> float | None:
    """Seconds (``s``) or joules (``j``) of the whole training: as given, else of a batch x iterations."""
    if (given := figures.get(f"{unit}_per_training")) is not None:
        return given
    batch, iterations = figures.get(f"{unit}_per_batch"), figures.get("iterations")
    return batch * iterations if batch is not None and iterations is not None else None


def _j_per_batch(figures: Figures) -> float | None:
    """Joules of one batch on the measured card: as given, else of the training over iterations."""
    if (given := figures.get("j_per_batch")) is not None:
        return given
    training, iterations = figures.get("j_per_training"), figures.get("iterations")
    return training / iterations if training is not None and iterations is not None else None


# -- totals of whole trainings -----------------------------------------------------------------------------------------

Mix = dict[str, int]
"""How many GPUs of each kind one configuration has, each kind measured on one card: ``{"pascal": 2, "maxwell": 2}``."""


def parse_mixes(texts: Sequence[str]) -> dict[int, Mix]:
    """The mixes of a command line (``pascal=2,maxwell=2``), by their number of GPUs.

    Raises `ConfigError` for what is none, or for two of one number.
    """
    mixes: dict[int, Mix] = {}
    for text in texts:
        mix: Mix = {}
        for part in text.split(","):
            kind, _, count = (piece.strip() for piece in part.rpartition("="))
            if not kind or kind in mix or not re.fullmatch("[0-9]{1,8}", count) or int(count) == 0:
                raise ConfigError(f"--mix {printable(text)}: is not KIND=COUNT,KIND=COUNT, as in pascal=2,maxwell=2")
            mix[kind] = int(count)
        gpus = sum(mix.values())
        if gpus in mixes:
            raise ConfigError(f"--mix {printable(text)}: there is another mix of {gpus} GPUs; give one of each number")
        mixes[gpus] = mix
    return mixes


COLUMNS = ("device", "model", "gpus", "batch", "time_s", "energy_j", "edp_js", "gflops_per_w")
AROUND = ("iteration", "step", "epoch", "training", "total", "all")
"""Names of phases that usually hold the others: beside these, a sum over phases counts them twice."""
PASSES = ("forward", "backward")
"""Phases whose joules GFLOPS/W divides by; each counts a model's operations once."""


@dataclass(frozen=True, slots=True)
class TrainingTotal:
    """Figures of one configuration's whole training, over all its GPUs; None where they cannot be had."""

    configuration: Configuration
    time_s: float | None
    energy_j: float | None
    edp_js: float | None
    gflops_per_w: float | None


def read_operations(path: Path) -> dict[str, float]:
    """Operations of a sample by model: columns ``model`` and ``operations`` (``operations_m`` for millions).

    Raises `AnalysisError`, too, for a model that stands there twice.
    """
    table = read_table(path)
    models = [str(model) for (model,) in _keys(table, ["model"])]
    values = column_in(table, {"operations": 1.0, "operations_m": 1e6, "ops_m": 1e6}, positive=True)
    return {model: value for model, value in zip(models, values, strict=True) if value is not None}


def training_totals(
    table: PhaseTable, operations: Mapping[str, float] | None = None, mixes: Mapping[int, Mix] | None = None
) -> tuple[list[TrainingTotal], list[str]]:
    """Totals of every configuration in the table by device, model, GPUs and batch, and notes on them.

    Time is the sum over phases, energy the sum over phases x GPUs. A configuration of as many GPUs as a mix, on a kind
    of the mix: the time of the slowest kind, since all train together, energy the sum over kinds of count x that kind's
    joules; each kind has its row with these figures, as in the paper. A figure that lacks a phase is None, never a
    part; the notes say why. Raises `ConfigError` for a mix with a kind that is not in the table, `AnalysisError` when
    no figure can be had at all.
    """
    mixes = mixes or {}
    # A row that was left out is as empty as one with empty cells: a model's phases are those of all its rows.
    phases: dict[str, list[str]] = {}
    for c, of_configuration in table.rows.items():
        known = phases.setdefault(c.model, [])
        known += [phase for phase in of_configuration if phase not in known]
    devices, models = list(dict.fromkeys(c.device for c in table.rows)), list(phases)
    notes = [*table.notes, *_notes_on_mixes(table, mixes, devices), *_notes_on_phases(phases)]
    totals = []
    for c in sorted(table.rows, key=lambda c: (devices.index(c.device), models.index(c.model), c.gpus, c.batch)):
        mix = mixes.get(c.gpus, {})
        counts = mix if c.device in mix else {c.device: c.gpus}
        rows = {kind: table.rows.get(c._replace(device=kind), {}) for kind in counts}
        training = _Training(c, phases[c.model], counts, rows, notes)
        time_s, energy_j = training.time_s(), training.energy_j()
        edp_js = metrics.edp_js(energy_j, time_s) if energy_j is not None and time_s is not None else None
        gflops_per_w = None if operations is None else training.gflops_per_w(operations.get(c.model))
        figures = (time_s, energy_j, edp_js, gflops_per_w)
        if not all(math.isfinite(v) for v in figures if v is not None):
            raise AnalysisError(f"{c}: its figures are too large: a sum or a product is not finite")
        totals.append(TrainingTotal(c, *figures))
    if not any(total.energy_j is not None or total.time_s is not None for total in totals):
        raise AnalysisError(f"no configuration has a total: {notes[-1]}")
    return totals, list(dict.fromkeys(notes))


def _notes_on_mixes(table: PhaseTable, mixes: Mapping[int, Mix], devices: Sequence[str]) -> list[str]:
    notes = []
    for gpus, mix in mixes.items():
        if unknown := [kind for kind in mix if kind not in devices]:
            known = printable(", ".join(devices), limit=200)
            raise ConfigError(f"--mix: no device {printable(unknown[0])!r} in the tables: they have {known}")
        if not any(c.gpus == gpus and c.device in mix for c in table.rows):
            notes.append(f"--mix: no configuration of {gpus} GPUs of {printable(', '.join(mix))} in the tables")
    return notes


def _notes_on_phases(phases: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"{printable(model, limit=60)}: {printable(', '.join(of_model), limit=200)} are all summed: leave out the rows "
        "of phases that hold others, or these count twice"
        for model, of_model in phases.items()
        if 0 < sum(phase in AROUND for phase in of_model) < len(of_model)
    ]


@dataclass(frozen=True, slots=True)
class _Training:
    """One configuration with the rows of all kinds of GPU that it has; what it lacks goes to ``notes``."""

    c: Configuration
    phases: Sequence[str]
    """Of its model, in whatever configuration."""
    counts: Mix
    rows: Mapping[str, Mapping[str, Figures]]
    """By kind of GPU and phase."""
    notes: list[str]

    def time_s(self) -> float | None:
        """The sum over phases; of kinds that train together, that of the slowest.

        Not a sum over each phase's slowest: who is done with one phase first waits in the next, whose time has that in
        it. Of a phase for which a kind has no time, that of the others counts.
        """
        times: dict[str, list[float]] = {kind: [] for kind in self.rows}
        missing = []
        for phase in self.phases:
            known = {k: t for k, of in self.rows.items() if (t := per_training(of.get(phase, {}), "s")) is not None}
            for kind in self.rows if known else ():
                times[kind].append(known.get(kind, max(known.values())))
            missing += [] if known else [phase]
        if missing:
            self._lacks("time", missing)
            return None
        totals = {kind: math.fsum(of) for kind, of in times.items()}
        if min(totals.values()) < max(totals.values()):
            each = " and ".join(f"{t:.6g} s on {printable(kind, limit=60)}" for kind, t in totals.items())
            where = f"{printable(self.c.model, limit=60)}, {self.c.gpus} GPUs, batch {self.c.batch}"
            self.notes.append(f"{where}: {each}; they train together: that of the slowest counts")
        return max(totals.values())

    def energy_j(self) -> float | None:
        """The sum over phases and GPUs."""
        joules = {(k, p): per_training(self.rows[k].get(p, {}), "j") for k in self.counts for p in self.phases}
        if missing := [key for key, j in joules.items() if j is None]:
            self._lacks("energy", [p if len(self.counts) == 1 else f"{p} on {k}" for k, p in missing])
            return None
        return sum(self.counts[kind] * j for (kind, _), j in joules.items() if j is not None)

    def gflops_per_w(self, operations: float | None) -> float | None:
        """By the paper's convention, over the joules of a batch's passes on all GPUs."""
        if operations is None:
            self.notes.append(f"{printable(self.c.model, limit=60)}: no GFLOPS/W, as its operations are not given")
            return None
        passes = [phase for phase in PASSES if phase in self.phases]
        joules = [(n, _j_per_batch(self.rows[k].get(p, {}))) for k, n in self.counts.items() for p in passes]
        j_per_batch = sum(n * j for n, j in joules if j is not None)
        if any(j is None for _, j in joules) or j_per_batch <= 0:
            self._lacks("GFLOPS/W, as there are no joules of a batch", PASSES)
            return None
        return metrics.gflops_per_w_paper(operations, self.c.batch, len(passes), j_per_batch)

    def _lacks(self, what: str, phases: Sequence[str]) -> None:
        self.notes.append(f"{self.c}: no {what} of {printable(' and '.join(phases), limit=200)}")


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

    def rows(self, table: TableFile, among: Sequence[int]) -> list[int]:
        """The rows for which it holds. Raises `AnalysisError` for a column that is not there."""
        table.require(self.column)
        cells, number = table.cells[self.column], parsed(self.value)
        return [i for i in among if cells[i] == self.value or (number is not None and parsed(cells[i]) == number)]

    def __str__(self) -> str:
        return printable(f"{self.column}={self.value}", limit=120)


def parse_condition(option: str, text: str) -> Condition:
    """``COLUMN=VALUE``, at the first ``=``. Raises `ConfigError`."""
    column, equals, value = (piece.strip() for piece in text.partition("="))
    if not (column and equals and value):
        raise ConfigError(f"{option} {printable(text)}: is not COLUMN=VALUE, as in power_cap_w=260")
    return Condition(column, value)


@dataclass(frozen=True, slots=True)
class Criterion:
    """What is the lowest in the best row. ``max_power_w`` None: the highest power cap in the table."""

    metric: Metric
    k: float = 2.0
    eta: float = 0.5
    max_power_w: float | None = None


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
    criterion: Criterion,
    where: Sequence[Condition] = (),
    by: Sequence[str] = (),
) -> tuple[list[Choice], list[str]]:
    """The best row in all that fulfil ``where``, or in each group of equal cells in the columns ``by``; and notes.

    Energy comes from one of the columns `ENERGY_J`, time from one of `TIME_S` (`column_in`). Rows without one of them
    were not run and are passed over. Raises `AnalysisError` for a table without these columns or with two that differ,
    without exactly one reference row in a group, and with cells that are no numbers, in any row.
    """
    table.require(*by)
    energy_j, time_s = column_in(table, ENERGY_J), column_in(table, TIME_S)
    rows = list(range(len(table)))
    for condition in where:
        rows = condition.rows(table, rows)
        if not rows:
            raise AnalysisError(f"{table.name}: no row has {condition}{_values(table, condition.column)}")
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in rows:
        groups.setdefault(tuple(table.cells[column][i] for column in by), []).append(i)
    notes: list[str] = []
    choices = []
    for key, group in groups.items():
        among = ", ".join(f"{c}={v}" for c, v in zip(by, key, strict=True))
        ref = _reference(
            table, reference, group, printable(f" among the rows with {among}" if among else "", limit=150)
        )
        figures = {i: (e, t) for i in group if (e := energy_j[i]) is not None and (t := time_s[i]) is not None}
        if not all(figures.get(ref, (0.0,))):
            raise AnalysisError(f"{table.at(ref)}: the reference {reference} has no energy or no time")
        notes += [f"{table.at(i)}: no energy or no time: not among the choices" for i in group if i not in figures]
        notes += [
            f"{table.at(i)}: 0 counts as 0; leave it empty if it was not measured" for i, f in figures.items() if 0 in f
        ]
        choices.append(_best(table, criterion, figures, ref, notes))
    return choices, list(dict.fromkeys(notes))


def _best(
    table: TableFile, criterion: Criterion, figures: Mapping[int, tuple[float, float]], ref: int, notes: list[str]
) -> Choice:
    """``figures`` are joules and seconds of each row."""
    rows = list(figures)
    max_power_w = _max_power_w(table, criterion, rows, notes) if criterion.metric == "cost" else 0.0
    functions: dict[Metric, Callable[[float, float], float]] = {
        "e": lambda e, t: e,
        "edp": metrics.edp_js,
        "eds": lambda e, t: metrics.eds(e, t, *figures[ref], criterion.k),
        "cost": lambda e, t: metrics.zeus_cost_j(e, t, max_power_w, criterion.eta),
    }
    values = [functions[criterion.metric](*figures[i]) for i in rows]
    if not all(map(math.isfinite, values)):
        raise AnalysisError(f"{table.name}: energy and time are too large: their metric is no finite number")
    at = metrics.best(values)
    best = rows[at]
    if ties := [i + 1 for i, v in zip(rows, values, strict=True) if v == values[at] and i != best]:
        notes.append(f"{table.at(best)}: as good as {', '.join(map(str, ties))}; the first is taken")
    (e, t), (e_ref, t_ref) = figures[best], figures[ref]
    saving, loss = metrics.energy_saving_pct(e, e_ref), metrics.performance_loss_pct(t, t_ref)
    return Choice(best, e, values[at], saving, loss, metrics.saving_minus_loss_pct(e, t, e_ref, t_ref))


def _reference(table: TableFile, reference: Condition, group: Sequence[int], among: str) -> int:
    rows = reference.rows(table, group)
    if not rows:
        values = _values(table, reference.column)
        raise AnalysisError(f"{table.name}: no row is the reference {reference}{among}{values}")
    if len(rows) > 1:
        raise AnalysisError(
            f"{table.name}: {len(rows)} rows are the reference {reference}{among}: "
            "narrow them down with --where COLUMN=VALUE, or pick one of each with --by COLUMN"
        )
    return rows[0]


def _values(table: TableFile, column: str) -> str:
    return printable(f"; {column} is {', '.join(dict.fromkeys(filter(None, table.cells[column])))}", limit=300)


def _max_power_w(table: TableFile, criterion: Criterion, rows: Sequence[int], notes: list[str]) -> float:
    if criterion.max_power_w is not None:
        return criterion.max_power_w
    column = next((name for name in CAPS_W if name in table.columns), None)
    caps_w = table.numbers(column) if column is not None else []
    highest_w = max((caps_w[i] or 0.0 for i in rows), default=0.0) if caps_w else 0.0
    if not highest_w:
        raise ConfigError(f"the cost needs the maximum power of the GPU: give --max-power W, or a column {CAPS_W[1]}")
    notes.append(f"maximum power {highest_w:g} W is the highest {column}; --max-power W gives another")
    return highest_w
