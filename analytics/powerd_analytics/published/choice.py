"""The best of several configurations by one metric, against a reference among them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from powerd_analytics import metrics
from powerd_analytics.published.tablefile import TableFile, parsed
from powerd_analytics.published.units import ENERGY_J, TIME_S, column_in
from powerd_core.errors import AnalysisError, ConfigError
from powerd_core.text import printable

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
        cells, number = table.cells[self.column], parsed(self.value)
        return [i for i in among if cells[i] == self.value or (number is not None and parsed(cells[i]) == number)]

    def __str__(self) -> str:
        return printable(f"{self.column}={self.value}", limit=120)


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


@dataclass(frozen=True, slots=True)
class Choices:
    table: TableFile
    chosen: tuple[Choice, ...]
    notes: tuple[str, ...]


def parse_condition(option: str, text: str) -> Condition:
    """``COLUMN=VALUE``, at the first ``=``. Raises `ConfigError`."""
    column, equals, value = (piece.strip() for piece in text.partition("="))
    if not (column and equals and value):
        raise ConfigError(f"{option} {printable(text)}: is not COLUMN=VALUE, as in power_cap_w=260")
    return Condition(column, value)


def choose(
    table: TableFile,
    reference: Condition,
    criterion: Criterion,
    where: Sequence[Condition] = (),
    by: Sequence[str] = (),
) -> Choices:
    """The best row in all that fulfil ``where``, or in each group of equal cells in the columns ``by``.

    Energy comes from one of the columns `ENERGY_J`, time from one of `TIME_S` (`column_in`). Rows without one of them
    were not run and are passed over. Raises `AnalysisError` for a table without these columns or with two that differ,
    without exactly one reference row in a group, and with cells that are no numbers, in any row.
    """
    table.require(reference.column, *(c.column for c in where), *by)
    energy, time = column_in(table, ENERGY_J), column_in(table, TIME_S)
    rows = list(range(len(table)))
    for condition in where:
        rows = condition.rows(table, rows)
    if not rows:
        said = " and ".join(map(str, where))
        raise AnalysisError(f"{table.name}: no row has {said}{_values(table, where[0].column)}")
    notes: list[str] = []
    chosen = []
    for name, group in _groups(table, rows, by):
        ref = _reference(table, reference, group, name)
        run: list[int] = []
        left: list[int] = []
        for i in group:
            (left if energy[i] is None or time[i] is None else run).append(i)
        if left:
            many = f" and {len(left) - 1} more" if len(left) > 1 else ""
            notes.append(f"{table.at(left[0])}{many}: no energy or no time: not among the choices")
        if ref not in run:
            raise AnalysisError(f"{table.at(ref)}: the reference {reference} has no energy or no time")
        if zeros := [i for i in run if energy[i] == 0 or time[i] == 0]:
            many = f" and {len(zeros) - 1} more" if len(zeros) > 1 else ""
            notes.append(f"{table.at(zeros[0])}{many}: 0 counts as 0; leave it empty if it was not measured")
        chosen.append(_best(table, criterion, run, ref, (energy, time), notes))
    return Choices(table, tuple(chosen), tuple(notes))


def _best(
    table: TableFile,
    criterion: Criterion,
    rows: Sequence[int],
    ref: int,
    figures: tuple[Sequence[float | None], Sequence[float | None]],
    notes: list[str],
) -> Choice:
    e, t = ({i: float(v) for i in rows if (v := column[i]) is not None} for column in figures)
    if not (e[ref] > 0 and t[ref] > 0):
        raise AnalysisError(f"{table.at(ref)}: the reference has an energy or a time of 0: nothing compares with it")
    power_w = _max_power_w(table, criterion, rows, notes) if criterion.metric == "cost" else 0.0
    values = [_value(criterion, (e[i], t[i]), (e[ref], t[ref]), power_w) for i in rows]
    for i, v in zip(rows, values, strict=True):
        if not math.isfinite(v):
            raise AnalysisError(f"{table.at(i)}: energy and time are too large: their metric is no finite number")
        if v == 0 and e[i] > 0 and t[i] > 0 and criterion.metric != "cost":
            raise AnalysisError(f"{table.at(i)}: energy and time are too small: their metric would be 0")
    at = metrics.best(values)
    best = rows[at]
    ties = [table.lines[i] for i, v in zip(rows, values, strict=True) if v == values[at] and i != best]
    if ties:
        others = f"{table.line_word}{'s' if len(ties) > 1 else ''} {', '.join(map(str, ties[:8]))}"
        notes.append(f"{table.at(best)}: {others} {'are' if len(ties) > 1 else 'is'} as good; the first is taken")
    return Choice(
        best,
        e[best],
        values[at],
        metrics.energy_saving_pct(e[best], e[ref]),
        metrics.performance_loss_pct(t[best], t[ref]),
        metrics.saving_minus_loss_pct(e[best], t[best], e[ref], t[ref]),
    )


def _value(criterion: Criterion, row: tuple[float, float], reference: tuple[float, float], max_power_w: float) -> float:
    """The metric of a row; row and reference as joules and seconds."""
    if criterion.metric == "e":
        return row[0]
    if criterion.metric == "edp":
        return metrics.edp_js(*row)
    if criterion.metric == "eds":
        return metrics.eds(*row, *reference, criterion.k)
    return metrics.zeus_cost_j(*row, max_power_w, criterion.eta)


def _groups(table: TableFile, rows: Sequence[int], by: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    groups: dict[tuple[str, ...], list[int]] = {}
    for i in rows:
        groups.setdefault(tuple(table.cells[column][i] for column in by), []).append(i)
    for key, group in groups.items():
        yield ", ".join(f"{c}={v}" for c, v in zip(by, key, strict=True)), group


def _reference(table: TableFile, reference: Condition, group: Sequence[int], name: str) -> int:
    found = reference.rows(table, group)
    among = f" among the rows with {printable(name, limit=120)}" if name else ""
    if not found:
        raise AnalysisError(
            f"{table.name}: no row is the reference {reference}{among}{_values(table, reference.column)}"
        )
    if len(found) > 1:
        places = ", ".join(str(table.lines[i]) for i in found[:8]) + (", …" if len(found) > 8 else "")
        raise AnalysisError(
            f"{table.name}, {table.line_word}s {places}: {len(found)} rows are the reference {reference}{among}: "
            "narrow them down with --where COLUMN=VALUE, or pick one of each with --by COLUMN"
        )
    return found[0]


def _values(table: TableFile, column: str) -> str:
    known = list(dict.fromkeys(cell for cell in table.cells[column] if cell))
    return printable(f"; {column} is {', '.join(known[:12])}{', …' if len(known) > 12 else ''}", limit=300)


def _max_power_w(table: TableFile, criterion: Criterion, rows: Sequence[int], notes: list[str]) -> float:
    if criterion.max_power_w is not None:
        return criterion.max_power_w
    column = next((name for name in CAPS_W if name in table.columns), None)
    told = [] if column is None else table.numbers(column)
    caps = [cap for i in rows if told and (cap := told[i])]
    if not caps:
        raise ConfigError(f"the cost needs the maximum power of the GPU: give --max-power W, or a column {CAPS_W[1]}")
    note = f"maximum power {max(caps):g} W is the highest {column}; --max-power W gives another"
    if note not in notes:
        notes.append(note)
    return max(caps)
