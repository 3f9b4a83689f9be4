"""Which part of the uncertainty each row of a run's table owes to what: the budget of `joules uncertainty`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.budget import INNER, KINDS, Budget, distribution
from powerd_analytics.energy.devices import (
    Part,
    Progress,
    interval_energies,
    load_parts,
    no_progress,
    part_phases_seen,
)
from powerd_analytics.energy.negligible import known
from powerd_analytics.energy.reasons import usable
from powerd_analytics.energy.rest import merged
from powerd_analytics.folding.folded import FOLDING
from powerd_analytics.runs.phases import as_range, pieces
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.slices import IN_MEMORY
from powerd_analytics.tables.rows import PhaseRow, PhaseTable, RunRow, TotalRow
from powerd_analytics.tables.table import groups, table_of
from powerd_analytics.tables.totals import outermost
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

Values = NDArray[np.float64]

REPEATS = "repeats"
MOST_NAMES = 8
"""Phases that a message names."""
REMEDIES = {
    REPEATS: "measure more phases of the kind",
    FOLDING: "read more often than once in a phase, so that nothing needs folding",
}


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a row's uncertainty."""

    part: str
    u_j: float
    share: float
    """Of the row's variance, 0 to 1."""
    distribution: str
    shared_by_phases: bool
    shared_by_lines: bool


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """The parts of one row's uncertainty, the largest first. Without parts, ``words`` says why."""

    table: str
    group: Mapping[str, Any]
    phase: str
    device: str
    provenance: str
    n: int
    energy_j: float | None
    u_j: float | None
    u95_j: float | None
    parts: tuple[Share, ...]
    words: str


def budget_rows(
    run: Run, device: str | None = None, phase: str | None = None, *, progress: Progress = no_progress
) -> list[BudgetRow]:
    """A row for each row of the run's table. Raises `AnalysisError` for an unknown device or phase."""
    parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text), in_memory=IN_MEMORY)
    table = table_of(run, parts, progress=lambda share, text: progress(0.5 + 0.3 * share, text))
    names = list(dict.fromkeys(r.phase for r in table.phases))
    if phase is not None and phase not in names:
        known = [printable(name) for name in names[:MOST_NAMES]]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        raise AnalysisError(
            f"no phase {printable(phase)!r} in {run.path}: there are {', '.join(known) or 'none'}{more}"
        )
    found: list[BudgetRow] = []
    for i, part in enumerate(parts):
        progress(0.8 + 0.2 * i / len(parts), f"uncertainty of {part.device}")
        found += _rows_of(run, part, table, phase)
    return found


def _rows_of(run: Run, part: Part, table: PhaseTable, phase: str | None) -> list[BudgetRow]:
    is_own = (part.device, part.provenance)
    found = _phase_rows(
        run, part, [r for r in table.phases if (r.device, r.provenance) == is_own and phase in (None, r.phase)]
    )
    if phase is not None:
        return found
    by_group = {tuple(sorted(dict(g).items())): labels for g, labels in groups(run).items()}
    for total in table.totals:
        if (total.device, total.provenance) == is_own:
            labels = by_group.get(tuple(sorted(total.group.items())), [])
            outer = as_range(outermost(run, labels))
            found.append(_total_row(part, total, *merged(run.phases.begin_ns[outer], run.phases.end_ns[outer])))
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    found += [_run_row(part, r, begin, end) for r in table.runs if (r.device, r.provenance) == is_own]
    return found


def _phase_rows(run: Run, part: Part, rows: Sequence[PhaseRow]) -> list[BudgetRow]:
    budget = Budget(len(run.phases), details=True)
    is_used = usable(part_phases_seen(run, part, budget)) & ~run.phases.cut
    places: dict[tuple[str, str], list[int]] = {}
    for i, kind in enumerate(run.phases.classes):
        places.setdefault(("/".join(kind.path), kind.timing), []).append(i)
    return [_phase_row(run, part, is_used, budget, r, places.get((r.path, r.timing), ())) for r in rows]


def _phase_row(
    run: Run, part: Part, is_used: NDArray[np.bool_], budget: Budget, row: PhaseRow, place: Sequence[int]
) -> BudgetRow:
    """``place``: the classes of phases with the row's path and timing."""
    p = run.phases
    labels = [i for i in place if dict(p.classes[i].group) == dict(row.group)]
    used = p.of(labels) & is_used
    if row.method == "folded":
        means = dict(row.folded_parts_j)
        shapes = {
            name: " and ".join(sorted({distribution(name, s) for s in part.signals})) for name in means if name in KINDS
        }
    else:
        each = ((name, budget.part(name, used)) for name in KINDS if used.any() and _counts(name))
        means = {name: float(np.mean(u)) for name, u in each if u is not None}
        shapes = _shapes(budget.shapes)
    shares = _shares(REPEATS, row.u_statistical_j, means, row.u_systematic_j, shapes)
    return _made("phase", row, row.phase, row.iterations, row.j_per_batch, shares)


def _total_row(part: Part, row: TotalRow, begin: NDArray[np.int64], end: NDArray[np.int64]) -> BudgetRow:
    return _made("total", row, "", row.iterations, row.energy_j, _intervals(part, row, begin, end))


def _run_row(part: Part, row: RunRow, begin: NDArray[np.int64], end: NDArray[np.int64]) -> BudgetRow:
    return _made("run", row, "", 1, row.energy_j, _intervals(part, row, begin, end))


def _intervals(
    part: Part, row: TotalRow | RunRow, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[Share, ...]:
    """Of the sum over intervals, of which there may be millions: shared parts add up one to one."""
    sums, shapes = dict.fromkeys(KINDS, 0.0), dict[str, set[str]]()
    random2 = systematic = 0.0
    for some in pieces(len(begin)):
        none, budget = np.zeros(some.stop - some.start, np.int64), Budget(some.stop - some.start, details=True)
        interval_energies(part, begin[some], end[some], none, none, None, budget)
        for name, u in budget.parts.items():
            sums[name] += float(np.sum(np.nan_to_num(u)))
        for name, found in budget.shapes.items():
            shapes.setdefault(name, set()).update(found)
        random2 += float(np.sum(np.nan_to_num(budget.u_random_j) ** 2))
        systematic += float(np.sum(np.nan_to_num(budget.u_systematic_j)))
    random = float(np.sqrt(random2))
    if isinstance(row, TotalRow):
        random, systematic = row.u_statistical_j or 0.0, row.u_systematic_j or 0.0
    counted = {name: u for name, u in sums.items() if _counts(name) and u}
    return _shares("sampling", random, counted, systematic, _shapes(shapes))


def _counts(name: str) -> bool:
    """Whether a part is one of those that phases of a kind share."""
    return name != INNER and KINDS[name].of_repeats


def _shapes(shapes: Mapping[str, set[str]]) -> dict[str, str]:
    return {name: " and ".join(sorted(found)) for name, found in shapes.items()}


def _shares(
    random: str, u_random_j: float | None, parts: Mapping[str, float], u_systematic_j: float | None,
    shapes: Mapping[str, str],
) -> tuple[Share, ...]:  # fmt: skip
    """The largest first. ``parts`` tell how the systematic uncertainty is made up; how large it is, the table says."""
    if u_random_j is None or u_systematic_j is None:
        return ()
    norm = float(np.sqrt(sum(u**2 for u in parts.values())))
    scale = u_systematic_j / norm if norm > 0 else 0.0
    u = {random: u_random_j} | {name: value * scale for name, value in parts.items()}
    variance = sum(value**2 for value in u.values())
    u = {name: known(value, variance**0.5) for name, value in u.items()}
    made = []
    for name, value in u.items():
        kind = KINDS.get(name)
        share = value**2 / variance if variance > 0 else 0.0
        is_random = name == random
        of_lines = bool(kind and kind.of_lines)
        made.append(Share(name, value, share, shapes.get(name, "normal"), not is_random, of_lines))
    return tuple(sorted((s for s in made if s.u_j > 0), key=lambda s: -s.share))


def _made(
    table: str, row: PhaseRow | TotalRow | RunRow, phase: str, n: int, energy_j: float | None, shares: tuple[Share, ...]
) -> BudgetRow:
    group = {} if isinstance(row, RunRow) else dict(row.group)
    u = float(np.sqrt(sum(s.u_j**2 for s in shares))) if shares else None
    if energy_j is None or row.u95_j is None:
        shares, u = (), None
    words = _words(shares) if shares else row.note or _without_parts(row.u95_j)
    return BudgetRow(table, group, phase, row.device, row.provenance, n, energy_j, u, row.u95_j, shares, words)


def _words(shares: Sequence[Share]) -> str:
    first = shares[0]
    remedy = REMEDIES.get(first.part) or KINDS[first.part].remedy
    return f"mostly {first.part} ({first.share:.0%} of the variance): to shrink it, {remedy}"


def _without_parts(u95_j: float | None) -> str:
    if u95_j == 0:
        return "its lines state no error, and its readings show none"
    return "nothing is known of its uncertainty"
