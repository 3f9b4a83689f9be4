"""What no axis can show: numbers whose squares and quotients are none."""

from __future__ import annotations

from powerd_analytics.published.tablefile import TableFile

LARGEST, SMALLEST = 1e60, 1e-60


def numbers_to_draw(
    table: TableFile, name: str, *, positive: bool = False, signed: bool = False, whole: bool = False
) -> list[float | None]:
    """A column's numbers [n] as `TableFile.numbers` gives them, None throughout where the table does not have it.

    Raises `AnalysisError`, too, for the first that is beyond `LARGEST`, or no 0 and below `SMALLEST`.
    """
    if not name or name not in table.columns:
        return [None] * len(table)
    numbers = table.numbers(name, positive=positive, signed=signed, whole=whole)
    for row, value in enumerate(numbers):
        if value and not SMALLEST <= abs(value) <= LARGEST:
            size = "large" if abs(value) > LARGEST else "small"
            raise table.fault(row, name, f"{table.cells[name][row]} is too {size} to be drawn")
    return numbers
