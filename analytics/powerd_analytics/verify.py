"""Sums that must agree in every run: its lines, its phases and any pieces it is cut into give the same joules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, line_energies, load_parts
from powerd_analytics.energy.rest import merged
from powerd_analytics.runs.phases import as_range
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run
from powerd_analytics.signals.streams import plain_j
from powerd_analytics.table import table_of
from powerd_client.verify import Check, Finding, finding_of
from powerd_core.errors import PowerdError

ROUNDING = 1e-9
"""Relative to the joules that were added without regard to their sign, and in joules where there are none."""
_PIECES = 1000

Ints = NDArray[np.int64]


def verify_sums(path: str | Path, progress: Progress = no_progress) -> Iterator[Finding]:
    """Findings on the energies of a run file that could be opened; raises nothing of its own."""
    try:
        run = read_run(path)
        parts = load_parts(run, progress=lambda share, text: progress(0.6 * share, text))
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
            return finding_of(name, wrong, end.value)


def _sums(run: Run, part: Part) -> Check:
    begin, end = run.begin_ns, run.end_ns
    p = run.phases
    top = as_range(p.parent < 0)
    covered = merged(np.clip(p.begin_ns[top], begin, end), np.clip(p.end_ns[top], begin, end))
    cuts = np.linspace(begin, end, _PIECES + 1).astype(np.int64)
    joules_of, sizes = _between(
        part, (np.array([begin]), np.array([end])), covered, outside(begin, end, *covered), (cuts[:-1], cuts[1:])
    ).T
    total, phases, rest, split = map(float, joules_of)
    if not np.isfinite(total):
        yield "the run's energy is no number"
    lines = float(line_energies(part.signals, begin, end).sum())
    size = max(sizes[0], sizes[1] + sizes[2], sizes[3])
    for what, joules in (
        ("lines together", lines),
        ("phases and rest", phases + rest),
        (f"{_PIECES} pieces", split),
    ):
        if not abs(joules - total) <= ROUNDING * max(size, 1.0):
            yield f"{what} give {joules:.12g} J, the run {total:.12g} J"
    return f"{total:.6g} J = {len(part.signals)} lines = phases + rest = {_PIECES} pieces, within {ROUNDING:g}"


def _between(part: Part, *intervals: tuple[Ints, Ints]) -> NDArray[np.float64]:
    """[list of intervals, 2] joules that a part's lines have in all of them, with and without regard to their signs.
    Readings are gone through once, and of millions of intervals only the sum is kept."""
    sums = np.zeros((len(intervals), 2))
    for signal in part.signals:
        sums += [(j.sum(), np.abs(j).sum()) for j in plain_j(signal, *intervals)]
    return sums


def outside(begin_ns: int, end_ns: int, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """What disjoint intervals in order leave of the time from ``begin_ns`` to ``end_ns``."""
    return np.concatenate([[begin_ns], ends]), np.concatenate([begins, [end_ns]])


def _balance(run: Run, parts: tuple[Part, ...]) -> Check:
    """What the table calls its residual, against the uncertainty that it states."""
    residuals = []
    for row in table_of(run, parts, is_folded=False).runs:
        if row.residual_j is None or row.energy_j is None:
            continue
        name = f"{row.device} ({row.provenance}) {row.residual_j:.2g} J"
        if row.u95_j is None:
            # Clipped, or of too few readings: there is no uncertainty that it could be more than.
            residuals.append(f"{name}, which has no ± to be compared with")
            continue
        if not abs(row.residual_j) <= max(row.u95_j, ROUNDING * max(abs(row.energy_j), 1.0)):
            more = f"more than its ± {row.u95_j:.3g} J"
            yield f"{row.device}: phases and rest miss {row.residual_j:.3g} J of the run, {more}"
        residuals.append(name)
    return f"phases + rest = run but for {', '.join(residuals)}" if residuals else "no phases to compare with the run"
