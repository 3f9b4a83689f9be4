"""Columns of anybody's table that hold one quantity in one of several units."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from powerd_analytics.published.tablefile import TableFile
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

ENERGY_J = {"energy_j": 1.0, "energy_kj": 1e3, "energy_wh": 3.6e3, "energy_kwh": 3.6e6}
TIME_S = {"time_s": 1.0, "time_ms": 1e-3, "time_us": 1e-6, "time_ns": 1e-9, "time_ks": 1e3, "time_min": 60.0,
          "time_h": 3600.0}  # fmt: skip


def column_in(table: TableFile, names: Mapping[str, float], *, positive: bool = False) -> list[float | None]:
    """The column [n] in SI units, from the first of ``names`` (with their scales) that the table has.

    Where it has several, they must say the same in every row, each as exact as its digits. Raises `AnalysisError` for
    none, for two that differ, and as `TableFile.numbers`.
    """
    found = [name for name in names if name in table.columns]
    if not found:
        table.require(next(iter(names)))
    columns = {name: table.numbers(name, positive=positive) for name in found}
    first, *others = found
    for other in others:
        for row in range(len(table)):
            a, b = columns[first][row], columns[other][row]
            if a is None and b is None:
                continue
            cells = [table.cells[name][row] for name in (first, other)]
            if a is None or b is None or not _agree(cells, (a, b), (names[first], names[other])):
                said = " and ".join(
                    f"{name} is {printable(cell, limit=40) or 'empty'}"
                    for name, cell in zip((first, other), cells, strict=True)
                )
                raise AnalysisError(
                    f"{table.at(row)}, columns {first} and {other}: {said}: which of the two counts is not clear; "
                    "leave one column out"
                )
    return [None if v is None else v * names[first] for v in columns[first]]


def _agree(cells: list[str], values: tuple[float, float], scales: tuple[float, float]) -> bool:
    """Whether two cells can be roundings of one number: half a unit of the last digit each, and what doubles lose."""
    a, b = values[0] * scales[0], values[1] * scales[1]
    halves = sum(0.5 * _last_digit(cell) * scale for cell, scale in zip(cells, scales, strict=True))
    return abs(a - b) <= halves * (1 + 1e-9) + 1e-9 * max(abs(a), abs(b))


def _last_digit(cell: str) -> float:
    """The place value of the last digit of a decimal number."""
    exponent = Decimal(cell).as_tuple().exponent
    return 10.0**exponent if isinstance(exponent, int) else 0.0
