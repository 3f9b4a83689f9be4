"""Idle power of a run's devices, from its phases called ``baseline``.

Energies above idle always stand beside the whole: what of a row's joules the machine would not have used anyway
(`powerd_analytics.run_tables.table` has them).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, part_phase_energies
from powerd_analytics.energy.uncertainty import COVERAGE_FACTOR
from powerd_analytics.output.text import digits, seconds
from powerd_analytics.runs.run import Run
from powerd_client.energies.phase import BASELINE


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Idle power of one device by lines of one provenance."""

    device: str
    provenance: str
    idle_w: float
    """Mean of what was measured before and after, each once."""
    u_w: float
    """Standard uncertainty, with what idle drifted between the two."""
    before_w: float | None
    after_w: float | None
    seconds: float
    """All its baselines together."""
    note: str


@dataclass(frozen=True, slots=True)
class _Level:
    """Idle power of some baselines together."""

    watts: float
    u_random_w: float
    u_systematic_w: float
    seconds: float


def idle_of(run: Run, part: Part) -> IdleRow | None:
    """Idle power of a part, None without a baseline that ended and that its sensors resolve."""
    p = run.phases
    is_baseline = p.of([i for i, c in enumerate(p.classes) if c.name == BASELINE])
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
    if (~around).any():
        first, last = int(p.begin_ns[~around].min()), int(p.end_ns[~around].max())
    else:
        first, last = _longest_without(run, p.begin_ns[is_baseline], p.end_ns[is_baseline])
    is_before, is_after = usable & (p.end_ns <= first), usable & (p.begin_ns >= last) & (p.end_ns > first)
    before, after = (_level(columns, mask) if mask.any() else None for mask in (is_before, is_after))
    levels = [level for level in (before, after) if level is not None] or [_level(columns, usable)]
    drift = after.watts - before.watts if before is not None and after is not None else 0.0
    random = [level.u_random_w / len(levels) for level in levels]
    systematic = max(level.u_systematic_w for level in levels)
    note = _note(before, after, sum(level.seconds for level in levels))
    return IdleRow(
        device=part.device,
        provenance=part.provenance,
        idle_w=float(np.mean([level.watts for level in levels])),
        # Idle may have been anywhere between the two while nobody looked: half their difference is the limit.
        u_w=float(np.sqrt(np.sum(np.square(random)) + systematic**2 + (drift / 2) ** 2 / 3)),
        before_w=before.watts if before is not None else None,
        after_w=after.watts if after is not None else None,
        seconds=float(sum(level.seconds for level in levels)),
        note=note + ("; a baseline was not ended and is left out" if p.cut[is_baseline].any() else ""),
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


def _note(before: _Level | None, after: _Level | None, length_s: float) -> str:
    length = seconds(length_s)
    if before is not None and after is not None:
        u95 = COVERAGE_FACTOR * float(np.hypot(before.u_random_w, after.u_random_w))
        levels = f"idle {digits(before.watts)} W before and {digits(after.watts)} W after, in {length}"
        return f"{levels}: a drift of {digits(after.watts - before.watts, 2)} W (± {digits(u95, 2)} W)"
    if before is None and after is None:
        return f"idle was measured only in the middle of the run, in {length}"
    when = "before" if before is not None else "after"
    return f"idle was measured only {when} the training, in {length}: its drift is not known"
