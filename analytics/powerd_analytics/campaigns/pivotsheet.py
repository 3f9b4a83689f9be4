"""Pivots as tables to show or write: uncertainties beside values, averages at the sides, and gains between devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from powerd_analytics.campaigns.figures import Figure
from powerd_analytics.campaigns.pivot import KINDS, Key, Pivot
from powerd_analytics.exports.sheet import HEADINGS, Sheet, SheetColumn, cell_text, sheet_column
from powerd_analytics.records.columns import COLUMNS, Cell
from powerd_core.errors import AnalysisError

CONVENTION = "GFLOPS/W (paper): forward and backward count the model's operations once each"
_OF_PHASES = ("phase", "phase_path")
"""Phases contain each other: their mean means nothing."""
_U95 = "± U95: half of the 95 % interval, of means over runs k = 2"


def pivot_sheet(pivot: Pivot, *, name: str = "pivot", title: str = "", averages: bool = False) -> Sheet:
    """The pivot as a table: a column with its uncertainty for each column key, averages at the sides if asked for."""
    names = [sheet_column(n) if n in COLUMNS else SheetColumn(n, n, "text") for n in pivot.row_names]
    units = sheet_column(pivot.value)
    columns = [*names]
    keys: list[Key | None] = [*pivot.columns]
    is_of_one_kind = not {*KINDS, *_OF_PHASES} & {*pivot.column_names}
    if averages and len(pivot.columns) > 1 and is_of_one_kind:
        keys.append(None)
    for key in keys:
        label = "average" if key is None else _label(pivot.column_names, key) or HEADINGS.get(pivot.value, pivot.value)
        known = pivot.value if label == units.heading else f"{pivot.value}[{label}]"
        columns.append(SheetColumn(known, label, "number", units.units, units.sign))
        columns.append(SheetColumn(f"u95_{known}", "± U95", "number", units.units, "", is_uncertainty=True))
    rows: list[tuple[Cell, ...]] = []
    bounds: set[tuple[int, int]] = set()
    figures = [
        (row, [pivot.row_mean(row) if k is None else pivot.cells.get((row, k)) for k in keys]) for row in pivot.rows
    ]
    if averages and "provenance" in pivot.row_names and not _has_phases(pivot.row_names):
        kinds = [pivot.kind_of(row) for row in pivot.rows]
        for kind in [k for i, k in enumerate(kinds) if k not in kinds[:i] and kinds.count(k) > 1]:
            side = [kind.get(name) for name in pivot.row_names]
            side[0] = "average" if pivot.row_names[0] not in kind else side[0]
            figures.append((tuple(side), [pivot.column_mean(k, kind) for k in keys]))
    for r, (row, found) in enumerate(figures):
        cells: list[Cell] = list(row)
        for f in found:
            if f is not None and f.is_lower_bound:
                bounds.add((r, len(cells)))
            cells += [None, None] if f is None else [f.value, f.u95]
        rows.append(tuple(cells))
    if len(pivot.row_names) > 1 and len(figures) > len(pivot.rows) and columns[0].kind != "text":
        columns[0] = SheetColumn(columns[0].name, columns[0].heading, "text", columns[0].units)
    text = title or f"{units.heading} ({pivot.value}{', ' + units.units if units.units else ''})"
    return Sheet(name, text, tuple(columns), tuple(rows), _notes(pivot, averages=averages), frozenset(bounds))


def _has_phases(names: Sequence[str]) -> bool:
    return bool({*_OF_PHASES} & {*names})


def _notes(pivot: Pivot, *, averages: bool) -> tuple[str, ...]:
    meaning = f"{_U95}; {CONVENTION}" if pivot.value == "gflops_per_w" else _U95
    left_out = averages and _has_phases((*pivot.row_names, *pivot.column_names))
    return (meaning, *pivot.notes, *(("no averages over phases: some are inside others",) if left_out else ()))


def _label(names: Sequence[str], key: Key) -> str:
    said = []
    for name, value in zip(names, key, strict=True):
        text = cell_text(name, value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
        said.append(
            text if name in ("model", "device", "device_name", "phase") else f"{HEADINGS.get(name, name)} {text}"
        )
    return ", ".join(said)


def gain_sheet(pivot: Pivot, by: str, pair: tuple[str, str] | None = None) -> Sheet | None:
    """How many times the figure of one ``by`` (such as a device) is that of another, cell by cell.

    None unless there are exactly two, or ``pair`` (first, second) names two: then second over first. Different devices
    are different sensors: their uncertainties are independent. Raises `AnalysisError` for a name that is not there.
    """
    if by not in pivot.column_names:
        return None
    at = pivot.column_names.index(by)
    there = list(dict.fromkeys(str(k[at]) for k in pivot.columns))
    if pair is not None and (unknown := [n for n in pair if n not in there]):
        raise AnalysisError(f"no {by} {unknown[0]!r} to compare: there is {', '.join(there)}")
    if pair is None:
        if len(there) != 2:
            return None
        pair = (there[0], there[1])
    rest = tuple(n for i, n in enumerate(pivot.column_names) if i != at)
    cells: dict[tuple[Key, Key], Figure] = {}
    for row, column in product(pivot.rows, pivot.columns):
        other = tuple(pair[1] if i == at else v for i, v in enumerate(column))
        a, b = pivot.cells.get((row, column)), pivot.cells.get((row, other))
        if str(column[at]) == pair[0] and a is not None and b is not None and _divides(b, a):
            cells[row, tuple(v for i, v in enumerate(column) if i != at)] = _ratio(b, a)
    if not cells:
        return None
    columns = tuple(dict.fromkeys(k for _, k in cells))
    rows = tuple(r for r in pivot.rows if any((r, c) in cells for c in columns))
    made = Pivot(pivot.row_names, rest, pivot.value, rows, columns, cells, ())
    sheet = pivot_sheet(
        made, name="gain", title=f"Gain in {HEADINGS.get(pivot.value, pivot.value)}: {pair[1]} over {pair[0]}"
    )
    plain = list(sheet.columns[: len(made.row_names)])
    for c in sheet.columns[len(made.row_names) :]:
        heading = "gain" if c.heading == HEADINGS.get(pivot.value) else c.heading
        plain.append(SheetColumn(c.name.replace(pivot.value, "gain"), heading, c.kind, "1", "", c.is_uncertainty))
    return Sheet(sheet.name, sheet.title, tuple(plain), sheet.rows, sheet.notes)


def _divides(b: Figure, a: Figure) -> bool:
    """Bounds have no ratio."""
    return a.value != 0 and b.value != 0 and not a.is_lower_bound and not b.is_lower_bound


def _ratio(b: Figure, a: Figure) -> Figure:
    ratio = b.value / a.value

    def part(of_b: float | None, of_a: float | None) -> float | None:
        if of_a is None or of_b is None:
            return None
        return ratio * float(((of_a / a.value) ** 2 + (of_b / b.value) ** 2) ** 0.5)

    return Figure(
        ratio, part(b.u_statistical, a.u_statistical), part(b.u_systematic, a.u_systematic)
    )  # fmt: skip
