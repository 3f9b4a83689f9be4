"""Which part of the uncertainty each row of a run's table owes to what: the budget of `joules uncertainty`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.console import Console

from powerd_analytics import export
from powerd_analytics.energy.budget import INNER, KINDS, Budget, distribution
from powerd_analytics.energy.devices import Part, interval_budget, load_parts, part_phase_budget
from powerd_analytics.energy.reasons import usable
from powerd_analytics.energy.rest import merged
from powerd_analytics.energy.uncertainty import known
from powerd_analytics.export import Cell, Column, table_frame, to_json_text
from powerd_analytics.folding.fold import FOLDING
from powerd_analytics.runs.phases import as_range, pieces
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.table import groups, outermost, table_of
from powerd_analytics.table_rows import PhaseRow, PhaseTable, RunRow, TotalRow, group_line
from powerd_analytics.text import digits
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

Values = NDArray[np.float64]

REPEATS = "repeats"
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
    parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text))
    table = table_of(run, parts, progress=lambda share, text: progress(0.5 + 0.3 * share, text))
    names = list(dict.fromkeys(r.phase for r in table.phases))
    if phase is not None and phase not in names:
        there = printable(", ".join(names), limit=300) or "none"
        raise AnalysisError(f"no phase {printable(phase)!r} in {run.path}: there are {there}")
    rows: list[BudgetRow] = []
    for i, part in enumerate(parts):
        progress(0.8 + 0.2 * i / len(parts), f"uncertainty of {part.device}")
        rows += _rows_of(run, part, table, phase)
    return rows


def _rows_of(run: Run, part: Part, table: PhaseTable, phase: str | None) -> list[BudgetRow]:
    own = (part.device, part.provenance)
    phases = [r for r in table.phases if (r.device, r.provenance) == own and phase in (None, r.phase)]
    rows = _phase_rows(run, part, phases)
    if phase is not None:
        return rows
    by_group = {tuple(sorted(dict(g).items())): labels for g, labels in groups(run).items()}
    for total in table.totals:
        if (total.device, total.provenance) == own:
            labels = by_group.get(tuple(sorted(total.group.items())), [])
            outer = as_range(outermost(run, labels))
            shares = _of_intervals(part, total, *merged(run.phases.begin_ns[outer], run.phases.end_ns[outer]))
            rows.append(_budget_row("total", total, "", total.iterations, total.energy_j, shares))
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    for r in table.runs:
        if (r.device, r.provenance) == own:
            rows.append(_budget_row("run", r, "", 1, r.energy_j, _of_intervals(part, r, begin, end)))
    return rows


def _phase_rows(run: Run, part: Part, rows: Sequence[PhaseRow]) -> list[BudgetRow]:
    budget, seen = part_phase_budget(run, part)
    is_used = usable(seen) & ~run.phases.cut
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
        shapes = {name: " and ".join(sorted(names)) for name, names in budget.shapes.items()}
    shares = _shares(REPEATS, row.u_statistical_j, means, row.u_systematic_j, shapes)
    return _budget_row("phase", row, row.phase, row.iterations, row.j_per_batch, shares)


def _of_intervals(
    part: Part, row: TotalRow | RunRow, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[Share, ...]:
    """Of the sum over intervals, of which there may be millions: shared parts add up one to one."""
    sums, shapes = dict.fromkeys(KINDS, 0.0), dict[str, set[str]]()
    random2 = systematic = 0.0
    for some in pieces(len(begin)):
        none = np.zeros(some.stop - some.start, np.int64)
        budget, _ = interval_budget(part, begin[some], end[some], none, none)
        for name, u in budget.parts.items():
            sums[name] += float(np.sum(np.nan_to_num(u)))
        for name, names in budget.shapes.items():
            shapes.setdefault(name, set()).update(names)
        u_random_j, _, u_systematic_j, _ = budget.taken()
        random2 += float(np.sum(np.nan_to_num(u_random_j) ** 2))
        systematic += float(np.sum(np.nan_to_num(u_systematic_j)))
    random = float(np.sqrt(random2))
    if isinstance(row, TotalRow):
        random, systematic = row.u_statistical_j or 0.0, row.u_systematic_j or 0.0
    counted = {name: u for name, u in sums.items() if _counts(name) and u}
    texts = {name: " and ".join(sorted(names)) for name, names in shapes.items()}
    return _shares("sampling", random, counted, systematic, texts)


def _counts(name: str) -> bool:
    """Whether a part is one of those that phases of a kind share."""
    return name != INNER and KINDS[name].of_repeats


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
    every = []
    for name, value in u.items():
        kind = KINDS.get(name)
        share = value**2 / variance if variance > 0 else 0.0
        is_random = name == random
        of_lines = bool(kind and kind.of_lines)
        every.append(Share(name, value, share, shapes.get(name, "normal"), not is_random, of_lines))
    return tuple(sorted((s for s in every if s.u_j > 0), key=lambda s: -s.share))


def _budget_row(
    table: str, row: PhaseRow | TotalRow | RunRow, phase: str, n: int, energy_j: float | None, shares: tuple[Share, ...]
) -> BudgetRow:
    group = {} if isinstance(row, RunRow) else dict(row.group)
    u = float(np.sqrt(sum(s.u_j**2 for s in shares))) if shares else None
    if energy_j is None or row.u95_j is None:
        shares, u = (), None
    if shares:
        first = shares[0]
        remedy = REMEDIES.get(first.part) or KINDS[first.part].remedy
        words = f"mostly {first.part} ({first.share:.0%} of the variance): to shrink it, {remedy}"
    elif row.u95_j == 0:
        words = row.note or "its lines state no error, and its readings show none"
    else:
        words = row.note or "nothing is known of its uncertainty"
    return BudgetRow(table, group, phase, row.device, row.provenance, n, energy_j, u, row.u95_j, shares, words)


COLUMNS = (
    "table", "group", "phase", "device", "provenance", "n", "energy_j", "u_j", "u95_j", "part", "part_u_j", "share",
    "distribution", "shared_by_phases", "shared_by_lines", "words",
)  # fmt: skip
"""One row for each part of each row of the run's table; a row without parts has one with these cells empty."""


def parts_frame(rows: Sequence[BudgetRow]) -> pd.DataFrame:
    """The budget for programs: a row for each part."""
    lines: list[list[Cell]] = []
    for row in rows:
        whole = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)} | {"group": group_line(row.group)}
        for part in row.parts or (None,):
            cells = whole | (asdict(part) | {"part_u_j": part.u_j, "u_j": row.u_j} if part else {})
            values = [cells.get(name) for name in COLUMNS]
            lines.append([str(v).lower() if isinstance(v, bool) else v for v in values])
    return table_frame("uncertainty", "Uncertainty budget", [Column(name) for name in COLUMNS], lines)


def budget_frame(rows: Sequence[BudgetRow]) -> pd.DataFrame:
    """The budget for people: a row for each row of the run's table."""
    columns = (
        Column("group"), Column("phase"), Column("device"), Column("n", "integer", "1"), Column("J", "number", "J"),
        Column("± U95 J", "number", "J", is_uncertainty=True), Column("share of the variance (standard uncertainty)"),
        Column("in words"),
    )  # fmt: skip
    lines = []
    for r in rows:
        device = r.device if r.provenance == "measured" else f"{r.device} ({r.provenance})"
        percents = [f"{100 * s.share:.0f} %" if s.share >= 0.01 else "< 1 %" for s in r.parts]
        parts = (f"{s.part} {percent} ({digits(s.u_j, 2)} J)" for s, percent in zip(r.parts, percents, strict=True))
        figures = (r.n, r.energy_j, r.u95_j, ", ".join(parts) or "–")
        lines.append((group_line(r.group), r.phase or f"({r.table})", device, *figures, r.words))
    return table_frame("uncertainty", "Uncertainty budget", columns, lines)


def to_json(rows: Sequence[BudgetRow]) -> str:
    """The budget as a JSON object: ``rows``, each with its ``parts``."""
    documents = [asdict(r) | {"group": dict(r.group), "parts": [asdict(s) for s in r.parts]} for r in rows]
    return to_json_text({"rows": documents}) + "\n"


def to_csv(rows: Sequence[BudgetRow]) -> str:
    """The parts as CSV."""
    return export.to_csv(parts_frame(rows))


def to_markdown(rows: Sequence[BudgetRow]) -> str:
    """The budget for people, in Markdown."""
    return export.to_markdown([budget_frame(rows)])


def print_table(rows: Sequence[BudgetRow], console: Console) -> None:
    """The budget for people, on a terminal."""
    export.print_tables([budget_frame(rows)], console)
