"""Sums that must agree in every run: its lines, its phases and any pieces it is cut into give the same joules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, Progress, line_energies, load_parts, no_progress
from powerd_analytics.energy.rest import merged
from powerd_analytics.runs.phases import as_range
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.signals.slices import IN_MEMORY
from powerd_analytics.signals.streams import plain_j
from powerd_analytics.tables.table import table_of
from powerd_client.findings import Check, Finding, found
from powerd_core.errors import PowerdError

ROUNDING = 1e-9
"""Relative to the joules that were added without regard to their sign, and in joules where there are none."""
_PIECES = 1000

Ints = NDArray[np.int64]


def verify_sums(path: str | Path, progress: Progress = no_progress) -> Iterator[Finding]:
    """Findings on the energies of a run file that could be opened; raises nothing of its own."""
    try:
        run = read_run(path)
        parts = load_parts(run, progress=lambda share, text: progress(0.6 * share, text), in_memory=IN_MEMORY)
        for part in parts:
            yield _finding(f"energy of {part.device} ({part.provenance})", _sums(run, part))
        progress(0.6, "comparing phases and rest with the run")
        if parts:
            yield _finding("table", _balance(run, parts))
    except PowerdError as error:
        yield Finding("energy", "wrong", str(error))


def _finding(name: str, check: Check) -> Finding:
    wrong: list[str] = []
    while True:
        try:
            wrong.append(next(check))
        except StopIteration as end:
            return found(name, wrong, end.value)


def _sums(run: Run, part: Part) -> Check:
    begin, end = run.begin_ns, run.end_ns
    p = run.phases
    top = as_range(p.parent < 0)
    covered = merged(np.clip(p.begin_ns[top], begin, end), np.clip(p.end_ns[top], begin, end))
    cuts = np.linspace(begin, end, _PIECES + 1).astype(np.int64)
    whole, phases, rest, split = _between(
        part, (np.array([begin]), np.array([end])), covered, outside(begin, end, *covered), (cuts[:-1], cuts[1:])
    )
    total = whole.joules
    if not np.isfinite(total):
        yield "the run's energy is no number"
    lines = float(line_energies(part.signals, begin, end).sum())
    size = max(whole.size, phases.size + rest.size, split.size)
    for what, joules in (
        ("lines together", lines),
        ("phases and rest", phases.joules + rest.joules),
        (f"{_PIECES} pieces", split.joules),
    ):
        if not abs(joules - total) <= ROUNDING * max(size, 1.0):
            yield f"{what} give {joules:.12g} J, the run {total:.12g} J"
    return f"{total:.6g} J = {len(part.signals)} lines = phases + rest = {_PIECES} pieces, within {ROUNDING:g}"


@dataclass(frozen=True, slots=True)
class _Sum:
    """Joules of intervals together, plainly integrated; ``size`` is without regard to their signs."""

    joules: float
    size: float


def _between(part: Part, *intervals: tuple[Ints, Ints]) -> list[_Sum]:
    """Of each list of intervals what a part's lines have in all of them. Readings are gone through once, and of
    millions of intervals only the sum is kept."""
    found = [_Sum(0.0, 0.0)] * len(intervals)
    for signal in part.signals:
        every = zip(found, plain_j(signal, *intervals), strict=True)
        found = [_Sum(x.joules + float(j.sum()), x.size + float(np.abs(j).sum())) for x, j in every]
    return found


def outside(begin_ns: int, end_ns: int, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """What disjoint intervals in order leave of the time from ``begin_ns`` to ``end_ns``."""
    return np.concatenate([[begin_ns], ends]), np.concatenate([begins, [end_ns]])


def _balance(run: Run, parts: tuple[Part, ...]) -> Check:
    """What the table calls its residual, against the uncertainty that it states."""
    said = []
    for row in table_of(run, parts, is_folded=False).runs:
        if row.residual_j is None or row.energy_j is None:
            continue
        name = f"{row.device} ({row.provenance}) {row.residual_j:.2g} J"
        if row.u95_j is None:
            # Clipped, or of too few readings: there is no uncertainty that it could be more than.
            said.append(f"{name}, which has no ± to be compared with")
            continue
        if not abs(row.residual_j) <= max(row.u95_j, ROUNDING * max(abs(row.energy_j), 1.0)):
            more = f"more than its ± {row.u95_j:.3g} J"
            yield f"{row.device}: phases and rest miss {row.residual_j:.3g} J of the run, {more}"
        said.append(name)
    return f"phases + rest = run but for {', '.join(said)}" if said else "no phases to compare with the run"
