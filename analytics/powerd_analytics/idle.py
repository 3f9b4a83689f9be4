"""Idle power of a run's devices, from its phases called ``baseline``, and energies above it.

Energies above idle always stand beside the whole: what of a row's joules the machine would not have used anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, load_parts, part_phase_energies
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.table import table_of
from powerd_analytics.table_rows import IdleRow, PhaseRow, PhaseTable, RunRow, TotalRow
from powerd_analytics.text import digits, seconds
from powerd_client.phase import BASELINE
from powerd_core.errors import AnalysisError


@dataclass(frozen=True, slots=True)
class _Level:
    """Idle power of some baselines together."""

    watts: float
    u_random_w: float
    u_systematic_w: float
    seconds: float


def table_above_idle(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> PhaseTable:
    """The table of a run with the idle power of its devices. Raises `AnalysisError` for a run without a baseline."""
    parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text))
    idle = tuple(row for part in parts if (row := idle_of(run, part)) is not None)
    if not idle:
        raise AnalysisError(
            f"{run.path} has no baseline that its sensors can tell: call meter.baseline(seconds) before and after the "
            "training, or record with `joules record --baseline SECONDS`"
        )
    table = table_of(run, parts, progress=lambda share, text: progress(0.5 + 0.5 * share, text))
    return replace(table, idle=idle)


def idle_of(run: Run, part: Part) -> IdleRow | None:
    """Idle power of a part, None without a baseline that ended and that its sensors resolve."""
    p = run.phases
    names = np.array([c.name == BASELINE for c in p.classes], bool)
    is_baseline = names[p.label] if len(p) else np.zeros(0, bool)
    if not is_baseline.any():
        return None
    columns = part_phase_energies(run, part)
    usable = is_baseline & ~p.cut & columns.resolvable
    if not usable.any():
        return None
    around = is_baseline.copy()  # and what encloses a baseline is no work by itself
    above = p.parent[is_baseline]
    while len(above := above[above >= 0]):
        around[above] = True
        above = p.parent[above]
    work = ~around
    if work.any():
        first, last = int(p.begin_ns[work].min()), int(p.end_ns[work].max())
    else:
        first, last = _longest_without(run, p.begin_ns[is_baseline], p.end_ns[is_baseline])
    before, after = usable & (p.end_ns <= first), usable & (p.begin_ns >= last) & (p.end_ns > first)
    levels = [_level(columns, mask) for mask in (before, after) if mask.any()] or [_level(columns, usable)]
    watts = float(np.mean([level.watts for level in levels]))
    drift = levels[1].watts - levels[0].watts if len(levels) == 2 else 0.0
    # Idle may have been anywhere between the two while nobody looked: half their difference is the limit.
    u = [level.u_random_w / len(levels) for level in levels]
    systematic = max(level.u_systematic_w for level in levels)
    return IdleRow(
        device=part.device,
        provenance=part.provenance,
        idle_w=watts,
        u_w=float(np.sqrt(np.sum(np.square(u)) + systematic**2 + (drift / 2) ** 2 / 3)),
        before_w=levels[0].watts if before.any() else None,
        after_w=levels[-1].watts if after.any() else None,
        seconds=float(sum(level.seconds for level in levels)),
        note=_note(levels, bool(before.any()), bool(after.any()), int(run.phases.cut[is_baseline].sum())),
    )


def _longest_without(run: Run, begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> tuple[int, int]:
    """The longest stretch [ns] of a run that no baseline covers: of a command that marks no phases, its work."""
    order = np.argsort(begin_ns, kind="stable")
    begin = np.append(begin_ns[order], run.end_ns)
    end = np.maximum.accumulate(np.append(run.begin_ns, end_ns[order]))
    at = int(np.argmax(begin - end))
    return int(end[at]), int(begin[at])


def _level(columns: PhaseColumns, mask: NDArray[np.bool_]) -> _Level:
    length = float(columns.duration_s[mask].sum())
    return _Level(
        float(columns.energy_j[mask].sum()) / length,
        float(np.sqrt(np.sum(columns.u_random_j[mask] ** 2))) / length,
        float(columns.u_systematic_j[mask].sum()) / length,
        length,
    )


def _note(levels: list[_Level], before: bool, after: bool, cut: int) -> str:
    length = seconds(sum(level.seconds for level in levels))
    if before and after:
        first, last = levels[0].watts, levels[1].watts
        u95 = COVERAGE_FACTOR * float(np.hypot(levels[0].u_random_w, levels[1].u_random_w))
        text = (
            f"idle {digits(first)} W before and {digits(last)} W after, in {length}: "
            f"a drift of {digits(last - first, 2)} W (± {digits(u95, 2)} W)"
        )
    elif before or after:
        when, other = ("before", "after") if before else ("after", "before")
        text = (
            f"idle was measured only {when} the training, in {length}: its drift is not known; measure it {other} too"
        )
    else:
        text = f"idle was measured only in the middle of the run, in {length}"
    return text + ("; a baseline was not ended and is left out" if cut else "")


Row = PhaseRow | TotalRow | RunRow


def idle_columns(row: Row, idle: Sequence[IdleRow]) -> dict[str, Any]:
    """Further columns of a CSV or JSON row."""
    own = idle_of_row(row, idle)
    joules, _ = joules_and_seconds(row)
    above_j, u95_j = above_idle(row, own)
    return {
        "idle_w": own.idle_w if own else None,
        "idle_j": joules - above_j if joules is not None and above_j is not None else None,
        "above_idle_j": above_j,
        "above_idle_u95_j": u95_j,
        "idle_note": own.note if own else "",
    }


def above_idle(row: Row, idle: IdleRow | None) -> tuple[float | None, float | None]:
    """Joules above idle of what a row's joules are (a mean phase, a group, the run), and their expanded uncertainty.

    The two are taken as independent. They share the sensor's gain and zero, which partly cancel, so that this is the
    most that it can be. It may be negative: then nothing was used above idle that could be told.
    """
    joules, seconds_ = joules_and_seconds(row)
    if idle is None or joules is None or seconds_ is None:
        return None, None
    above_j = joules - idle.idle_w * seconds_
    if row.u95_j is None:
        return above_j, None
    return above_j, float(np.hypot(row.u95_j, COVERAGE_FACTOR * idle.u_w * seconds_))


def idle_of_row(row: Row, idle: Sequence[IdleRow]) -> IdleRow | None:
    """The idle power of the device of a row, by lines of the same provenance."""
    return next((i for i in idle if (i.device, i.provenance) == (row.device, row.provenance)), None)


def joules_and_seconds(row: Row) -> tuple[float | None, float | None]:
    """What idle power is taken from; of a device that ranks share, each has its part of the idle power too."""
    if isinstance(row, PhaseRow):
        return row.j_per_batch, None if row.s_per_batch is None else row.s_per_batch / row.ranks
    return row.energy_j, row.time_s
