"""Idle power of a run's devices, from its phases called ``baseline``, and tables with energies above it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, Progress, load_parts, no_progress, part_phase_energies
from powerd_analytics.energy.reasons import digits, seconds
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.slices import IN_MEMORY
from powerd_analytics.tables.rows import IdleRow, PhaseTable
from powerd_analytics.tables.table import table_of
from powerd_client.baseline import BASELINE
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
    parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text), in_memory=IN_MEMORY)
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
