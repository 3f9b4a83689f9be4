"""What the uncertainty of each row of a run's table comes from: the budget of `joules tables --table uncertainty`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.budget import KINDS, Budget
from powerd_analytics.energy.devices import Part, interval_budget, load_parts, part_phase_budget
from powerd_analytics.energy.model import Posterior
from powerd_analytics.energy.reasons import usable
from powerd_analytics.energy.response import Response
from powerd_analytics.energy.uncertainty import beyond_rounding
from powerd_analytics.output.export import Column, Table, make_table, to_json_text
from powerd_analytics.output.text import Cell
from powerd_analytics.run_tables.table import (
    BY_REPETITIONS,
    MODELLED,
    PhaseRow,
    PhaseTable,
    Row,
    RunRow,
    TotalRow,
    common_settings,
    group_line,
    kept_table,
    labels_of,
    stretches_of,
    table_of,
)
from powerd_analytics.runs.kept import keep, key_of_run, recall
from powerd_analytics.runs.phases import any_overlap
from powerd_analytics.runs.run import Progress, Run, no_progress, pick

_LEAST_SHOWN = 0.01
"""Smaller shares of the variance are for programs."""
REMEDIES = {name: kind.remedy for name, kind in KINDS.items()}
OF_A_MODEL = dict.fromkeys(
    ("gain", "offset"), "measure it: a processor by RAPL (`powerd sources`), or the machine by a wall meter"
)
"""Of what is modelled no gain can be calibrated: the model itself is what is off."""
READINGS_EACH, MOST_KNOTS = 40, 24
"""Readings that the closed formula wants for each part of a phase, and the most parts."""
OWN = tuple(name for name, kind in KINDS.items() if not kind.of_repeats)
"""Parts that each phase has of its own."""


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
    return budget_of(run, parts, table, phase, progress=lambda share, text: progress(0.8 + 0.2 * share, text))


def kept_budget(
    run: Run,
    device: str | None = None,
    phase: str | None = None,
    parts: Sequence[Part] | None = None,
    *,
    progress: Progress = no_progress,
) -> list[BudgetRow]:
    """The same of a run as it was read, from the user's cache as `kept_table` is, or kept there."""
    if device is not None:
        run.device(device)
    key = key_of_run(run)
    rows: list[BudgetRow] | None = recall(key, "budget", (BudgetRow, Share))
    if rows is None:
        if parts is None:
            parts = load_parts(run, device, lambda share, text: progress(0.5 * share, text))
        table = kept_table(run, device, parts, progress=lambda share, text: progress(0.5 + 0.3 * share, text))
        rows = budget_of(run, parts, table, progress=lambda share, text: progress(0.8 + 0.2 * share, text))
        if device is None:
            keep(key, "budget", rows)
    rows = [row for row in rows if device in (None, row.device)]
    if phase is None:
        return rows
    rows = [row for row in rows if row.table == "phase"]
    pick(phase, dict.fromkeys(row.phase for row in rows), "phase")
    return [row for row in rows if row.phase == phase]


def budget_of(
    run: Run, parts: Sequence[Part], table: PhaseTable, phase: str | None = None, *, progress: Progress = no_progress
) -> list[BudgetRow]:
    """The same from parts whose readings are in memory, and their table."""
    if phase is not None:
        pick(phase, dict.fromkeys(r.phase for r in table.phases), "phase")
    rows: list[BudgetRow] = []
    for i, part in enumerate(parts):
        progress(i / len(parts), f"uncertainty of {part.device}")
        rows += _rows_of(run, part, table, phase)
    return rows


def _rows_of(run: Run, part: Part, table: PhaseTable, phase: str | None) -> list[BudgetRow]:
    every: list[Row] = [*table.phases, *table.totals, *table.runs]
    own = [r for r in every if (r.device, r.provenance) == (part.device, part.provenance)]
    budget, seen = part_phase_budget(run, part)
    is_used = usable(seen) & ~run.phases.cut
    rows = []
    for row in own:
        if isinstance(row, PhaseRow):
            if phase in (None, row.phase):
                of_kind = run.phases.of(labels_of(run, row))
                shares = () if row.method in BY_REPETITIONS else _of_phases(budget, of_kind & is_used, row)
                told = _budget_row("phase", row, row.phase, row.iterations, row.j_per_batch, shares)
                rows.append(_with_closed_form(told, row, run, part, of_kind & is_used))
        elif phase is None and isinstance(row, TotalRow):
            shares = _of_intervals(part, row, *stretches_of(run, labels_of(run, row)))
            rows.append(_budget_row("total", row, "", row.iterations, row.energy_j, shares))
        elif phase is None and isinstance(row, RunRow):
            shares = _of_intervals(part, row, np.array([run.begin_ns]), np.array([run.end_ns]))
            rows.append(_budget_row("run", row, "", 1, row.energy_j, shares))
    return rows


def _of_phases(budget: Budget, used: NDArray[np.bool_], row: PhaseRow) -> tuple[Share, ...]:
    each = {name: u for name in KINDS if used.any() and (u := budget.part(name, used)) is not None}
    random = {name: float(np.sqrt(np.sum(np.square(u)))) for name, u in each.items() if name in OWN}
    means = {name: float(np.mean(u)) for name, u in each.items() if name not in OWN}
    return _shares(random, row.u_statistical_j, means, row.u_systematic_j, budget.shapes)


def _with_closed_form(told: BudgetRow, row: PhaseRow, run: Run, part: Part, used: NDArray[np.bool_]) -> BudgetRow:
    """The row with what the closed formula says, where all lines have a low-pass."""
    begin, end = run.phases.begin_ns[used], run.phases.end_ns[used]
    if not told.parts or row.s_per_batch is None or not told.energy_j or not told.u95_j or any_overlap(begin, end):
        return told
    watts = [low_pass_w(part.posterior(s), begin, end) for s in part.signals]
    if None in watts:
        return told
    joules = sum(filter(None, watts)) * row.s_per_batch / row.ranks
    off = (joules - told.energy_j) / told.u95_j
    words = f"{told.words}; closed formula of the low-pass: {joules:.4g} J ({off:+.1f} U95)"
    return replace(told, words=words)


def low_pass_w(posterior: Posterior, begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> float | None:
    """Mean power of disjoint phases [m] of a kind by the closed formula, which is exact for any waveform. None where
    the line is no low-pass, or its readings leave a part of the phases out.

    Of tau y' = P - y the integral over a phase is mean(P) = mean(y) + tau (y(end) - y(begin)) / T. What the low-pass
    shows at each moment of a phase, y, comes from the readings of all phases folded over each other, as a line with
    knots. Of the model it takes nothing but which readings there are; the time constant and the delay are as stated.
    """
    response, sample = Response.of(posterior.model.signal), posterior.sample
    if response.is_counter or response.window_s > 0 or response.tau_s == 0:
        return None
    begin_s, end_s = sample.cells.since(begin_ns), sample.cells.since(end_ns)
    # A reading's weight is centred on its timestamp: what the low-pass shows so much later.
    at = sample.t_s + response.tau_s
    i = np.maximum(np.searchsorted(begin_s, at, "right") - 1, 0)
    place = (at - begin_s[i]) / (end_s[i] - begin_s[i])
    within = sample.is_good & (place >= 0) & (place < 1)
    place, watts = place[within], sample.watts[within]
    parts = min(len(place) // READINGS_EACH, MOST_KNOTS)
    knot = np.floor(place * parts).astype(int)
    if parts < 3 or np.bincount(knot, minlength=parts).min() < READINGS_EACH / 4:
        return None
    line, row = np.zeros((len(place), parts + 1)), np.arange(len(place))
    line[row, knot + 1] = place * parts - knot
    line[row, knot] = 1 - line[row, knot + 1]
    y = np.linalg.lstsq(line, watts, rcond=None)[0]
    lasts_s = float(np.mean(end_ns - begin_ns)) * 1e-9
    return float(np.mean(y[1:] + y[:-1]) / 2 + response.tau_s * (y[-1] - y[0]) / lasts_s)


def _of_intervals(
    part: Part, row: TotalRow | RunRow, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[Share, ...]:
    """Of the sum over intervals: shared parts add up one to one."""
    budget, _ = interval_budget(part, begin, end)
    random = {name: float(np.sqrt(np.sum(np.square(u)))) for name, u in budget.parts.items() if name in OWN}
    sums = {name: float(np.sum(u)) for name, u in budget.parts.items() if name not in OWN}
    parts = [float(np.sqrt(sum(u**2 for u in some.values()))) for some in (random, sums)]
    if isinstance(row, TotalRow):
        parts = [row.u_statistical_j or 0.0, row.u_systematic_j or 0.0]
    return _shares(random, parts[0], sums, parts[1], budget.shapes)


def _scaled(parts: Mapping[str, float], u_j: float) -> dict[str, float]:
    norm = float(np.sqrt(sum(u**2 for u in parts.values())))
    return {name: u * u_j / norm for name, u in parts.items()} if norm > 0 else {}


def _shares(
    random: Mapping[str, float], u_random_j: float | None, parts: Mapping[str, float], u_systematic_j: float | None,
    shapes: Mapping[str, set[str]],
) -> tuple[Share, ...]:  # fmt: skip
    """The largest first. The parts tell how both uncertainties are made up; how large these are, the table says."""
    if u_random_j is None or u_systematic_j is None:
        return ()
    u = _scaled(random, u_random_j) | _scaled(parts, u_systematic_j)
    variance = sum(value**2 for value in u.values())
    u = {name: beyond_rounding(value, variance**0.5) for name, value in u.items()}
    shares = [
        Share(
            part=name,
            u_j=value,
            share=value**2 / variance,
            distribution=" and ".join(sorted(shapes.get(name, {"normal"}))),
            shared_by_phases=name not in OWN,
            shared_by_lines=KINDS[name].of_lines,
        )
        for name, value in u.items()
        if value > 0
    ]
    return tuple(sorted(shares, key=lambda s: -s.share))


def _budget_row(
    table: str, row: Row, phase: str, n: int, energy_j: float | None, shares: tuple[Share, ...]
) -> BudgetRow:
    shares = () if energy_j is None or row.u95_j is None else shares
    words = row.note or "nothing is known of its uncertainty"
    if shares:
        first = shares[0]
        remedies = REMEDIES | OF_A_MODEL if row.provenance == MODELLED else REMEDIES
        remedy = remedies[first.part]
        words = f"mostly {first.part} ({first.share:.0%} of the variance): to shrink it, {remedy}"
    elif row.u95_j == 0:
        words = row.note or "its lines state no error, and its readings show none"
    u = float(np.sqrt(sum(s.u_j**2 for s in shares))) if shares else None
    group = dict(getattr(row, "group", {}))
    return BudgetRow(table, group, phase, row.device, row.provenance, n, energy_j, u, row.u95_j, shares, words)


COLUMNS = (
    "table", "group", "phase", "device", "provenance", "n", "energy_j", "u_j", "u95_j", "part", "part_u_j", "share",
    "distribution", "shared_by_phases", "shared_by_lines", "words",
)  # fmt: skip
"""One row for each part of each row of the run's table; a row without parts has one with these cells empty."""


def parts_table(rows: Sequence[BudgetRow]) -> Table:
    """The budget for programs: a row for each part."""
    lines: list[list[Cell]] = []
    for row in rows:
        whole = {name: getattr(row, name) for name in COLUMNS if hasattr(row, name)} | {"group": group_line(row.group)}
        for part in row.parts or (None,):
            cells = whole | (asdict(part) | {"part_u_j": part.u_j, "u_j": row.u_j} if part else {})
            values = [cells.get(name) for name in COLUMNS]
            lines.append([str(v).lower() if isinstance(v, bool) else v for v in values])
    return make_table("uncertainty", "Uncertainty budget", [Column(name) for name in COLUMNS], lines)


def budget_tables(rows: Sequence[BudgetRow]) -> list[Table]:
    """The budget for people: a table a device, a row for each row of the run's table, the remedies below."""
    settings = common_settings([r.group for r in rows if r.table != "run"])
    columns = (
        Column("group"), Column("phase"), Column("J", "number", "J"),
        Column("± U95", "number", "J", is_uncertainty=True), Column("share of the variance"), Column("note"),
    )  # fmt: skip
    by_device: dict[tuple[str, str], list[BudgetRow]] = {}
    for row in rows:
        by_device.setdefault((row.device, row.provenance), []).append(row)
    tables = []
    for (device, provenance), own in by_device.items():
        lines = [
            (
                group_line({k: v for k, v in r.group.items() if k not in settings}),
                r.phase or f"({r.table})",
                r.energy_j,
                r.u95_j,
                ", ".join(f"{s.part} {s.share:.0%}" for s in r.parts if s.share >= _LEAST_SHOWN).replace("%", " %"),
                re.sub(r" \(\d+% of the variance\)", "", r.words),
            )
            for r in own
        ]
        title = f"Uncertainty of {device} ({', '.join(filter(None, (provenance, group_line(settings))))})"
        tables.append(make_table("uncertainty", title, columns, lines))
    return tables


def to_json(rows: Sequence[BudgetRow]) -> str:
    """The budget as a JSON object: ``rows``, each with its ``parts``."""
    return to_json_text({"rows": [asdict(r) for r in rows]}) + "\n"
