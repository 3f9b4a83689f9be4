"""Energies above idle, always beside the whole: what of a row's joules the machine would not have used anyway."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from powerd_analytics.energy.reasons import digits
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.tables.rows import IdleRow, PhaseRow, PhaseTable, RunRow, TotalRow

Row = PhaseRow | TotalRow | RunRow

ABOVE_IDLE_HEADER = ["phase", "device", "J", "idle W", "J idle", "J above idle", "± U95 above idle"]


def above_idle_cells(row: Row, idle: Sequence[IdleRow]) -> dict[str, Any]:
    """Further columns of a CSV or JSON row; none where nobody asked for energies above idle."""
    if not idle:
        return {}
    found = _idle_of(row, idle)
    joules, _ = _whole(row)
    above, u95 = above_idle(row, found)
    idle_j = joules - above if joules is not None and above is not None else None
    return {
        "idle_w": found.idle_w if found else None,
        "idle_j": idle_j,
        "above_idle_j": above,
        "above_idle_u95_j": u95,
        "idle_note": found.note if found else "",
    }


def above_idle(row: Row, idle: IdleRow | None) -> tuple[float | None, float | None]:
    """Joules above idle of what a row's joules are (a mean phase, a group, the run), and their expanded uncertainty.

    The two are taken as independent. They share the sensor's gain and zero, which partly cancel, so that this is the
    most that it can be. It may be negative: then nothing was used above idle that could be told.
    """
    joules, seconds = _whole(row)
    if idle is None or joules is None or seconds is None:
        return None, None
    above = joules - idle.idle_w * seconds
    if row.u95_j is None:
        return above, None
    return above, float(np.hypot(row.u95_j, COVERAGE_FACTOR * idle.u_w * seconds))


def above_idle_lines(table: PhaseTable, names: Sequence[str]) -> Iterator[tuple[list[str], str]]:
    """Cells of the table for people and each row's note: groups' attributes ``names``, then `ABOVE_IDLE_HEADER`."""
    rows: list[Row] = [*table.phases, *table.totals, *table.runs]
    for row in rows:
        found = _idle_of(row, table.idle)
        joules, _ = _whole(row)
        above, u95 = above_idle(row, found)
        if found is None or above is None or joules is None:
            continue
        group = {} if isinstance(row, RunRow) else row.group
        if isinstance(row, PhaseRow):
            what = f"{row.phase} (mean)"
        else:
            what = "run" if isinstance(row, RunRow) else "all of the group"
        sign = "≥ " if row.is_lower_bound else ""
        cells = [str(group.get(name, "")) for name in names]
        cells += [what, f"{row.device} ({row.provenance})"]
        cells += [sign + digits(joules), digits(found.idle_w), digits(joules - above), sign + digits(above)]
        yield [*cells, digits(u95, 2)], found.note


def _idle_of(row: Row, idle: Sequence[IdleRow]) -> IdleRow | None:
    return next((i for i in idle if (i.device, i.provenance) == (row.device, row.provenance)), None)


def _whole(row: Row) -> tuple[float | None, float | None]:
    if isinstance(row, PhaseRow):
        # Of a device that ranks share, each has its part of the idle power too.
        return row.j_per_batch, None if row.s_per_batch is None else row.s_per_batch / row.ranks
    return row.energy_j, row.time_s
