"""Pivots: one figure of a frame, by any columns along its rows and columns; and the gain of one product over another.

A pivot never merges what is different: columns in which the rows of one cell still differ are added to its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from powerd_analytics.frame.figure import VALUES, Figure, Record, figure_of, freedom_of_sum, mean_of_cells
from powerd_analytics.frame.figures import ATTRIBUTE, Frame, column, dimension, factors_in, of_kind, rows_of
from powerd_analytics.frame.repeats import BASIS, FACTORS, average_repeats, of_a_batch
from powerd_analytics.output.export import Column, Table, cell_text, make_table
from powerd_analytics.output.text import Cell, is_number_cell
from powerd_core.errors import AnalysisError, ConfigError

CONVENTION = "GFLOPS/W (paper): forward and backward count the model's operations once each"
U95 = "± U95: half of the 95 % interval; of means over n runs by Student's t with n - 1 degrees of freedom"

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


_APART = ("model", "phase", "batch_size", "gpus", "device_name", "device", "power_cap_w",
          *(n for n in FACTORS if n not in ("kind", "provenance", "rank")), "iterations", "run")  # fmt: skip
"""Columns in which the rows of one cell must not differ, most telling first."""
_OF_A_BATCH = ("s_per_batch", "samples_per_s", "j_per_batch", "power_w", "gflops_per_w", "j_per_sample", "j_per_token",
               "s_per_sample", "edp_per_sample_js")  # fmt: skip
"""Figures in which runs with other numbers of batches are repeats."""
_NO_AXES = ("kind", "u95_j", "u_statistical_j", "u_systematic_j", "note", *VALUES)
_KINDS = ("gflops_basis", "provenance")
"""What differs in these has no average."""
_OF_PHASES = ("phase", "phase_path")
"""Phases contain each other: their mean means nothing."""


@dataclass(frozen=True, slots=True)
class Pivot:
    """The cells of a pivot; ``rows`` and ``columns`` are the keys along its sides, in order."""

    row_names: tuple[str, ...]
    """What lies along the rows; always with ``provenance`` at the end, unless that is among the columns."""
    column_names: tuple[str, ...]
    value: str
    rows: tuple[Key, ...]
    columns: tuple[Key, ...]
    cells: dict[tuple[Key, Key], Figure]
    notes: tuple[str, ...]

    def mean(self, rows: Sequence[Key], columns: Sequence[Key]) -> Figure | None:
        """Mean over cells, None unless all are there: means over different ones do not compare."""
        figures = [f for r in rows for c in columns if (f := self.cells.get((r, c))) is not None]
        is_whole = figures and len(figures) == len(rows) * len(columns)
        return mean_of_cells(figures) if is_whole else None


def make_pivot(frame: Frame, request: PivotRequest, ignore: Sequence[str] = ()) -> Pivot:
    """The pivot of a frame; ``ignore`` as in `average_repeats`.

    Columns in which the rows of one cell still differ are added to the rows, with a note: a mean over batch sizes or
    devices would be a figure of nothing. Raises `AnalysisError` for unknown columns, or when nothing has the figure.
    """
    value, rows, columns = _axes(frame, request)
    axes = [*rows, *columns]
    with_value = _with_figure(frame, value, axes)
    # A phase's own figure is over its own joules: the basis of totals is what may differ.
    basis = BASIS if value == "gflops_per_w" and (with_value["kind"] == "total").all() else ()
    means = average_repeats(with_value, (*axes, *basis), ignore)
    added = _added(means, axes, basis, ignore)
    notes = []
    if added:
        names = ", ".join(n.removeprefix(ATTRIBUTE) for n in added)
        notes.append(f"{names} added to the rows: figures that differ in it are not averaged")
    runs = means["runs"].fillna(1)
    if (runs != 1).any():
        reach = dict.fromkeys([int(runs.min()), int(runs.max())])
        notes.append(f"mean of {' to '.join(map(str, reach))} runs a cell")
    row_names = (*rows, *added, *(("provenance",) if "provenance" not in columns else ()))
    records = rows_of(means)
    cells_of = {(_key(r, row_names), _key(r, columns)): f for r in records if (f := figure_of(r, value)) is not None}
    along_rows, along_columns = _sorted([k for k, _ in cells_of]), _sorted([k for _, k in cells_of])
    return Pivot(row_names, tuple(columns), value, along_rows, along_columns, cells_of, tuple(notes))


def _axes(frame: Frame, request: PivotRequest) -> tuple[str, list[str], list[str]]:
    """The columns that are asked for: the figure, those along the rows but for the provenance, which is always there,
    and those along the columns. Raises `AnalysisError`."""
    value = dimension(request.value, frame)
    if value not in VALUES:
        raise AnalysisError(f"{value!r} is no figure for the cells of a pivot: choose one of {', '.join(VALUES)}")
    rows, columns = ([dimension(n, frame) for n in names] for names in (request.rows, request.columns))
    for name in [*rows, *columns]:
        if name in _NO_AXES or (rows + columns).count(name) > 1:
            raise AnalysisError(f"{name!r} is a figure or named twice: it cannot lie along the side of a pivot")
    return value, [n for n in rows if n != "provenance"], columns


def _with_figure(frame: Frame, value: str, axes: Sequence[str]) -> Frame:
    """The rows that a pivot is of: a run without the figure is none of those that a cell is the mean of. Raises
    `AnalysisError` where there is none."""
    chosen = _chosen_kind(frame, value, {*axes})
    if value in _OF_A_BATCH and "iterations" not in axes:
        chosen = of_a_batch(chosen)
    with_value = chosen[chosen[value].notna()].reset_index(drop=True)
    if with_value.empty:
        reasons = chosen["note"].dropna()
        reasons = reasons[reasons != ""]
        why = reasons.iloc[0] if len(reasons) else "its rows have no such figure"
        raise AnalysisError(f"no run has {value}: {why}")
    return with_value


def _added(means: Frame, axes: Sequence[str], basis: Sequence[str], ignore: Sequence[str]) -> list[str]:
    """The columns in which rows of one cell still differ."""
    added = [n for n in basis if n not in axes and means[n].nunique(dropna=False) > 1]
    for name in dict.fromkeys([*_APART, *factors_in(means)]):
        if name in axes or name in ignore:
            continue
        cells = means.groupby([*axes, *added, "provenance"], dropna=False, sort=False)
        if (cells[name].nunique(dropna=False) > 1).any():
            added.append(name)
    return added


def _chosen_kind(frame: Frame, value: str, named: set[str]) -> Frame:
    """Phases where phases are asked for, whole recordings where nothing else has the figure, else totals."""
    kinds = ["phase"] if named & {"phase", "phase_path", "timing"} else ["total", "phase", "run"]
    with_value = set(frame["kind"][frame[value].notna()])
    return of_kind(frame, next((kind for kind in kinds if kind in with_value), kinds[0]))


def _key(record: Record, names: Sequence[str]) -> Key:
    return tuple(record[name] for name in names)


def _sorted(keys: Sequence[Key]) -> tuple[Key, ...]:
    """Names in the order in which they came, numbers by size, nothing first."""
    unique = list(dict.fromkeys(keys))
    orders = [list(dict.fromkeys(values)) for values in zip(*unique, strict=True)]

    def rank(value: Cell, order: list[Cell]) -> tuple[int, float]:
        return (1, value) if is_number_cell(value) else (0 if value is None else 2, float(order.index(value)))

    return tuple(sorted(unique, key=lambda key: [rank(v, o) for v, o in zip(key, orders, strict=True)]))


def pivot_table(
    pivot: Pivot, *, name: str = "pivot", title: str = "", averages: bool = False, value: Column | None = None
) -> Table:
    """The pivot as a table: a column with its uncertainty for each column key, averages at the sides if asked for."""
    value = value or column(pivot.value)
    columns = [column(n) for n in pivot.row_names]
    over = _over(pivot, value.heading, averages=averages)
    for label, _ in over:
        columns += _figure_columns(value, label)
    averages_below = _averages_below(pivot) if averages else []
    if averages_below and pivot.row_names[0] not in _KINDS:
        columns[0] = replace(columns[0], kind="text")
    lines = [*((row, [row]) for row in pivot.rows), *averages_below]
    notes = [U95, *([CONVENTION] if pivot.value == "gflops_per_w" else []), *pivot.notes]
    if averages and {*pivot.row_names, *pivot.column_names} & {*_OF_PHASES}:
        notes.append("no averages over phases: some are inside others")
    units = f", {value.units}" if value.units else ""
    rows, bounds = _cells_of(pivot, lines, [keys for _, keys in over])
    return make_table(name, title or f"{value.heading} ({pivot.value}{units})", columns, rows, notes, bounds)


def _figure_columns(value: Column, label: str) -> tuple[Column, Column]:
    name = value.name if label == value.heading else f"{value.name}[{label}]"
    u95 = Column(f"u95_{name}", "number", value.units, heading="± U95", is_uncertainty=True)
    return replace(value, name=name, heading=label), u95


def _over(pivot: Pivot, heading: str, *, averages: bool) -> list[tuple[str, list[Key]]]:
    """The label of each column of figures and the keys that it is over, all of them for the average."""
    over = [(_label(pivot.column_names, key) or heading, [key]) for key in pivot.columns]
    if averages and len(over) > 1 and not {*pivot.column_names} & {*_KINDS, *_OF_PHASES}:
        over.append(("average", list(pivot.columns)))
    return over


def _cells_of(
    pivot: Pivot, lines: Sequence[tuple[Key, list[Key]]], over: Sequence[list[Key]]
) -> tuple[list[tuple[Cell, ...]], list[tuple[int, int]]]:
    """A row of cells for each of the ``lines``: a figure and its U95 for each of ``over``; and which are bounds."""
    rows: list[tuple[Cell, ...]] = []
    bounds = []
    for r, (side, keys_of_row) in enumerate(lines):
        cells: list[Cell] = [*side]
        for keys in over:
            figure = pivot.mean(keys_of_row, keys)
            bounds += [(r, len(cells))] if figure and figure.is_lower_bound else []
            cells += (figure.value, figure.u95) if figure else (None, None)
        rows.append(tuple(cells))
    return rows, bounds


def _averages_below(pivot: Pivot) -> list[tuple[Key, list[Key]]]:
    """A line for each kind of rows that there are several of: what an average over rows must have in common. None over
    phases, nor where the provenance lies along the columns."""
    if "provenance" not in pivot.row_names or {*pivot.row_names} & {*_OF_PHASES}:
        return []
    by_kind: dict[Key, list[Key]] = {}
    for row in pivot.rows:
        kind = tuple(v if n in _KINDS else None for n, v in zip(pivot.row_names, row, strict=True))
        by_kind.setdefault(kind, []).append(row)
    is_free = pivot.row_names[0] not in _KINDS
    return [(("average", *kind[1:]) if is_free else kind, rows) for kind, rows in by_kind.items() if len(rows) > 1]


def _label(names: Sequence[str], key: Key) -> str:
    texts = []
    is_processor = any(str(v).startswith("cpu") for n, v in zip(names, key, strict=True) if n.startswith("device"))
    for name, value in zip(names, key, strict=True):
        if name == "gpus" and value == 1 and is_processor:
            continue
        text = cell_text(name, value) if is_number_cell(value) else str(value)
        is_plain = name in ("model", "device", "device_name", "phase")
        texts.append(text if is_plain else f"{column(name).heading} {text}")
    return ", ".join(texts)


def gain_table(pivot: Pivot, by: str, pair: tuple[str, str] | None = None, *, averages: bool = False) -> Table | None:
    """How many times the figure of one ``by`` (such as a device) is that of another, cell by cell.

    None unless there are exactly two, or ``pair`` (first, second) names two: then second over first. Different devices
    are different sensors: their uncertainties are independent. Raises `AnalysisError` for a name that is not there.
    """
    if by not in pivot.column_names:
        return None
    at = pivot.column_names.index(by)
    names = list(dict.fromkeys(str(k[at]) for k in pivot.columns))
    if pair is not None and (unknown := [n for n in pair if n not in names]):
        raise AnalysisError(f"no {by} {unknown[0]!r} to compare: there is {', '.join(names)}")
    if pair is None and len(names) != 2:
        return None
    first, second = pair or names
    cells: dict[tuple[Key, Key], Figure] = {}
    for (row, key), a in pivot.cells.items():
        b = pivot.cells.get((row, (*key[:at], second, *key[at + 1 :])))
        is_pair = str(key[at]) == first and b is not None and not (a.is_lower_bound or b.is_lower_bound)
        if b is not None and is_pair and a.value and b.value:
            cells[row, (*key[:at], *key[at + 1 :])] = _ratio(b, a)
    if not cells:
        return None
    # In the order of the pivot's own rows and columns.
    rows = tuple(row for row in pivot.rows if any(row == r for r, _ in cells))
    rest = dict.fromkeys((*key[:at], *key[at + 1 :]) for key in pivot.columns)
    columns = tuple(key for key in rest if any(key == k for _, k in cells))
    names_left = (*pivot.column_names[:at], *pivot.column_names[at + 1 :])
    ratios = Pivot(pivot.row_names, names_left, pivot.value, rows, columns, cells, ())
    title = f"Gain in {column(pivot.value).heading}: {second} over {first}"
    gain = Column("gain", "number", "1", heading="gain")
    return pivot_table(ratios, name="gain", title=title, averages=averages, value=gain)


def _ratio(b: Figure, a: Figure) -> Figure:
    ratio = b.value / a.value

    def part(of_b: float | None, of_a: float | None) -> float | None:
        if of_a is None or of_b is None:
            return None
        return ratio * float(np.hypot(of_a / a.value, of_b / b.value))

    freedom = freedom_of_sum([a.scaled(1 / a.value), b.scaled(1 / b.value)])
    return Figure(
        ratio,
        part(b.u_statistical, a.u_statistical),
        part(b.u_systematic, a.u_systematic),
        degrees_of_freedom=freedom,
    )
