"""Pivot tables of a campaign: one figure by any columns, repeats averaged, nothing different ever merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from powerd_analytics.campaigns.figures import VALUES, Figure, figure_of, mean_of_cells
from powerd_analytics.campaigns.repeats import BASIS, CONFIGURATION, RUNS, averaged, of_a_batch
from powerd_analytics.records.columns import COLUMNS, Cell, Record, number_of
from powerd_analytics.records.frame import dimension, value_in
from powerd_core.errors import AnalysisError, ConfigError

_APART = (*(n for n in CONFIGURATION if n not in ("kind", "provenance")), "clock_hz", "iterations", "run")
"""Columns in which the records of one cell must not differ, most telling first after those of `_FIRST`."""
_FIRST = ("model", "phase", "batch_size", "gpus", "device_name", "device", "power_cap_w")
_OF_A_BATCH = ("s_per_batch", "samples_per_s", "j_per_batch", "power_w", "gflops_per_w")
"""Figures in which runs with other numbers of batches are repeats."""
_NO_AXES = ("kind", "provenance", "u95_j", "u_statistical_j", "u_systematic_j", "note", *VALUES)

KINDS = ("gflops_basis", "provenance")
"""What differs in these has no average."""

Key = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class PivotRequest:
    """What lies along the rows, what along the columns, and the figure in the cells."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    value: str

    @staticmethod
    def parse(text: str) -> PivotRequest:
        """``ROWS[,ROWS]:COLUMNS[,COLUMNS]:VALUE``; COLUMNS may be empty. Raises `ConfigError`."""
        parts = text.split(":")
        if len(parts) != 3 or not parts[0] or not parts[2]:
            raise ConfigError(f"--pivot {text}: write ROWS:COLUMNS:VALUE, as in model,batch_size:gpus:j_per_batch")
        rows, columns = (tuple(n for n in part.split(",") if n.strip()) for part in parts[:2])
        return PivotRequest(rows, columns, parts[2])


@dataclass(frozen=True, slots=True)
class Pivot:
    """The cells of a pivot; ``rows`` and ``columns`` are the keys along its sides, in order."""

    row_names: tuple[str, ...]
    """What lies along the rows; always with ``provenance`` at the end."""
    column_names: tuple[str, ...]
    value: str
    rows: tuple[Key, ...]
    columns: tuple[Key, ...]
    cells: dict[tuple[Key, Key], Figure]
    notes: tuple[str, ...]

    def row_mean(self, row: Key) -> Figure | None:
        """Mean over the row's cells, None unless all columns have one: means over different ones do not compare."""
        return _mean([self.cells.get((row, c)) for c in self.columns])

    def kind_of(self, row: Key) -> dict[str, Cell]:
        """What an average over rows must have in common: provenance, and what GFLOPS/W divide by where that differs."""
        return {name: value for name, value in zip(self.row_names, row, strict=True) if name in KINDS}

    def column_mean(self, column: Key | None, kind: Mapping[str, Cell]) -> Figure | None:
        """Mean over the column's cells in rows of one kind, under the same condition; over all columns for None."""
        columns = self.columns if column is None else (column,)
        return _mean([self.cells.get((r, c)) for r in self.rows if self.kind_of(r) == kind for c in columns])


def make_pivot(records: Sequence[Record], request: PivotRequest) -> Pivot:
    """The pivot of a campaign's records.

    Columns in which the records of one cell still differ are added to the rows, with a note: a mean over batch sizes
    or devices would be a figure of nothing. Raises `AnalysisError` for unknown columns, or when nothing has the figure.
    """
    value = dimension(request.value, records)
    if value not in VALUES:
        raise AnalysisError(f"{value!r} is no figure for the cells of a pivot: choose one of {', '.join(VALUES)}")
    rows, columns = ([dimension(n, records) for n in names] for names in (request.rows, request.columns))
    for name in [*rows, *columns]:
        if name in _NO_AXES and name != "provenance":
            raise AnalysisError(f"{name!r} is a figure, nothing to lay along the side of a pivot")
        if (rows + columns).count(name) > 1:
            raise AnalysisError(f"{name!r} is named twice among rows and columns")
    rows = [n for n in rows if n != "provenance"]
    of_kind = _of_kind(records, value, {*rows, *columns})
    if value in _OF_A_BATCH and "iterations" not in (*rows, *columns):
        of_kind = [of_a_batch(r) for r in of_kind]
    # A phase's own figure is over its own joules: the basis of totals is what may differ.
    basis = BASIS if value == "gflops_per_w" and all(r["kind"] == "total" for r in of_kind) else ()
    named = [n for n in (*rows, *columns) if n in COLUMNS]
    # A run without the figure is none of those that a cell is the mean of.
    found = averaged([r for r in of_kind if r[value] is not None], apart=(*named, *basis))
    if not found:
        raise AnalysisError(f"no run has {value}: {_why(of_kind)}")
    added = [n for n in basis if n not in (*rows, *columns) and len({r[n] for r in found}) > 1]
    added += _told_apart(found, [*rows, *added], columns)
    rows, notes = rows + added, []
    if added:
        notes.append(f"{', '.join(added)} added to the rows: figures that differ in it are not averaged")
    repeats = {int(number_of(r, RUNS) or 1) for r in found}
    if repeats != {1}:
        notes.append(f"mean of {' to '.join(map(str, sorted({min(repeats), max(repeats)})))} runs a cell")
    names = ("provenance",) if "provenance" not in columns else ()
    row_names = (*rows, *names)
    cells: dict[tuple[Key, Key], Figure] = {}
    for r in found:
        figure = figure_of(r, value)
        if figure is not None:
            cells[_key(r, row_names), _key(r, columns)] = figure
    return Pivot(
        row_names, tuple(columns), value, _sorted([k for k, _ in cells]), _sorted([k for _, k in cells]), cells,
        tuple(notes),
    )  # fmt: skip


def _of_kind(records: Sequence[Record], value: str, named: set[str]) -> list[Record]:
    """Phases where phases are asked for, whole recordings where nothing else has the figure, else totals."""
    kinds = ["phase"] if named & {"phase", "phase_path", "timing"} else ["total", "phase", "run"]
    for kind in kinds:
        found = [r for r in records if r["kind"] == kind]
        if any(r[value] is not None for r in found):
            return found
    return [r for r in records if r["kind"] == kinds[0]]


def _why(records: Sequence[Record]) -> str:
    notes = list(dict.fromkeys(str(r["note"]) for r in records if r["note"]))
    return notes[0] if notes else "its rows have no such figure"


def _told_apart(records: Sequence[Record], rows: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Further columns without which a cell would hold different things."""
    added: list[str] = []
    for name in dict.fromkeys((*_FIRST, *_APART)):
        if name in rows or name in columns:
            continue
        cells: dict[Key, set[Cell]] = {}
        for r in records:
            cells.setdefault(_key(r, [*rows, *added, *columns, "provenance"]), set()).add(r[name])
        if any(len(values) > 1 for values in cells.values()):
            added.append(name)
    return added


def _key(record: Record, names: Sequence[str]) -> Key:
    return tuple(value_in(record, name) for name in names)


def _sorted(keys: Sequence[Key]) -> tuple[Key, ...]:
    """Names in the order in which they came, numbers by size, nothing first."""
    unique = list(dict.fromkeys(keys))
    width = len(unique[0]) if unique else 0
    orders = [list(dict.fromkeys(k[i] for k in unique)) for i in range(width)]

    def rank(i: int, value: Cell) -> tuple[int, float]:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return (1, float(value)) if is_number else (0 if value is None else 2, float(orders[i].index(value)))  # type: ignore[arg-type]

    return tuple(sorted(unique, key=lambda k: [rank(i, v) for i, v in enumerate(k)]))


def _mean(figures: Sequence[Figure | None]) -> Figure | None:
    known = [f for f in figures if f is not None]
    return mean_of_cells(known) if known and len(known) == len(figures) else None
