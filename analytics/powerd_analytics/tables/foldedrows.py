"""Rows of the table whose phases the sensor does not resolve, with the numbers that folding gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from powerd_analytics.energy.devices import Part
from powerd_analytics.energy.reasons import clipped, sensor
from powerd_analytics.folding.folded import Folded, fold
from powerd_analytics.folding.segments import Phases
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.rows import FOLDED, PhaseRow

MOST_KINDS = 12
"""Kinds of one level that are folded together: each is a dozen unknowns."""
_MISSING = 0.05
"""Share of the phases' time without readings above which nothing is folded."""


def folded_rows(run: Run, part: Part, labels: Sequence[int], rows: Mapping[int, PhaseRow]) -> dict[int, PhaseRow]:
    """Rows of classes ``labels`` that had no number, with one or with one reason more."""
    classes = run.phases.classes
    made: dict[int, PhaseRow] = {}
    wanted = [i for i, row in rows.items() if i in labels and _is_short(part, row)]
    for depth in sorted({len(classes[i].path) for i in wanted}):
        level = [i for i in labels if len(classes[i].path) == depth and not classes[i].overlaps]
        found, why = _fold_level(run, part, level)
        for i in wanted:
            if len(classes[i].path) == depth and i in level:
                made[i] = _with(rows[i], part, found[level.index(i)] if found else Folded(None, 0, why))
    return made


def _is_short(part: Part, row: PhaseRow) -> bool:
    time_s = (row.s_per_batch or 0.0) * row.iterations
    is_seen = bool(part.signals) and all(len(s) > 2 or s.range_w is not None for s in part.signals)
    return not row.is_resolvable and row.ranks == 1 and time_s > 0 and is_seen and row.missing_s <= _MISSING * time_s


def _fold_level(run: Run, part: Part, level: list[int]) -> tuple[list[Folded], str]:
    """What folding says of each class of a level, or why it cannot be done."""
    p = run.phases
    if len(level) > MOST_KINDS:
        return [], f"folding tells at most {MOST_KINDS} kinds apart"
    which = np.flatnonzero(np.isin(p.label, level) & ~p.cut & (p.end_ns > p.begin_ns))
    which = which[np.argsort(p.begin_ns[which], kind="stable")]
    begin, end = p.begin_ns[which], p.end_ns[which]
    if np.any(begin[1:] < end[:-1]):
        return [], "folding needs phases one after the other, these overlap"
    if clip := clipped(part, begin, end):
        return [], f"nothing is folded where {clip}"
    number = np.zeros(len(p.classes), np.int64)
    number[level] = np.arange(len(level))
    return fold(part.signals, Phases(begin, end, number[p.label[which]], len(level))), ""


def _with(row: PhaseRow, part: Part, found: Folded) -> PhaseRow:
    if found.per_s is None or row.s_per_batch is None:
        return replace(row, note="; ".join(n for n in (row.note, found.why) if n))
    mean = found.per_s.scaled(row.s_per_batch)
    slowest = max(part.signals, key=lambda s: s.resolution_ns)
    return replace(
        row,
        j_per_batch=mean.energy_j,
        u95_j=mean.u95_j,
        u_statistical_j=mean.u_statistical_j,
        u_systematic_j=mean.u_systematic_j,
        power_w=found.per_s.energy_j,
        method=FOLDED,
        folded_parts_j=tuple((name, u_w * row.s_per_batch) for name, u_w in found.parts_w),
        note=f"folded over {found.iterations} phases: {sensor(slowest)}",
    )
