"""What a run says of itself without being asked for a table: the lines at its close, and energies while it goes on.

`powerd_client.energies.live_energy` finds this module by the entry point `powerd.energies`. All figures are those of
`powerd_analytics.run_tables.table.phase_table`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from powerd_analytics.output.text import seconds
from powerd_analytics.run_tables.table import (
    ITERATION,
    PhaseRow,
    PhaseTable,
    RunRow,
    TotalRow,
    group_key,
    kept_table,
    parts_among,
    phase_table,
)
from powerd_analytics.runs.phases import LAYER, select_phases
from powerd_analytics.runs.ranks import notes_of_run
from powerd_analytics.runs.run import Progress, Run, no_progress, read_run
from powerd_client.energies.live_energy import Energy, said_provenance
from powerd_client.energies.phase import WHOLE
from powerd_client.host.log import shown_path
from powerd_core.model import Provenance
from powerd_core.text import printable, significant, with_u95

WIDTH = 80
"""Columns up to which further devices share the first line."""
_ORDER = [Provenance.MEASURED.value, Provenance.SIMULATED.value, Provenance.MODELLED.value]
_ASKED = "asked"
"""The attribute that sets the phases that somebody asks for apart from all others."""


def energies(run: Path, *, name: str | None, row: int | None, device: str | None) -> list[Energy]:
    """Energies of the phases of a run: of all kinds, of those called ``name``, or of the phase in one row; measured
    ones first. Phases whose readings have not all arrived are left out, but for the one in ``row``.

    Raises `RunFileError`, and `AnalysisError` for an unknown device.
    """
    found = _table(run, name, row, device)
    if isinstance(found, Energy):
        return [found]
    table, is_late = found
    rows = [r for r in table.phases if r.iterations and (_ASKED in r.group or (name is None and row is None))]
    return [_energy(r, is_late) for r in sorted(rows, key=lambda r: _ORDER.index(r.provenance))]


def figures(run: Path) -> list[Energy]:
    """What each device took in a run (``phase`` is empty), then the energies of all kinds of phases, each with the
    measured devices first. Raises `RunFileError`."""
    found = _table(run, None, None, None)
    assert not isinstance(found, Energy)
    table, is_late = found
    devices = [
        Energy(
            phase="",
            energy_j=row.energy_j,
            u95_j=row.u95_j,
            seconds=row.time_s,
            device=row.device,
            provenance=row.provenance,
            is_lower_bound=row.is_lower_bound,
            note=row.note,
        )
        for row in table.runs
    ]
    phases = [_energy(row, is_late) for row in table.phases if row.iterations]
    return [e for every in (devices, phases) for e in sorted(every, key=lambda e: _ORDER.index(e.provenance))]


def _table(run: Path, name: str | None, row: int | None, device: str | None) -> tuple[PhaseTable, bool] | Energy:
    """The table of what `energies` asks for, and whether some of its readings have not arrived; or why there is none.

    The phases that are asked for have the attribute `_ASKED`.
    """
    whole = read_run(run)
    p = whole.phases
    if row is not None:
        asked = np.arange(len(p)) == row
    else:
        asked = p.of(
            [
                i
                for i, kind in enumerate(p.classes)
                if name in (None, kind.name, "/".join(kind.path), "/".join(kind.shown))
            ]
        )
    arrived = (p.end_ns <= whole.end_ns) & (p.begin_bound_ns >= 0) & (p.end_bound_ns >= 0)
    is_late = bool((asked & ~arrived & ~p.cut).any())
    if row is not None:
        is_late = is_late or bool(p.cut[row])
        if p.begin_ns[row] >= whole.end_ns:
            return Energy(p.classes[p.label[row]].name, is_so_far=True, note="its readings have not arrived yet")
        arrived |= asked
        p = replace(p, cut=p.cut & ~asked)  # what has arrived of it counts as the phase
    keep = (arrived | p.cut) & (p.begin_ns < whole.end_ns)
    p = replace(p, end_ns=np.minimum(p.end_ns, whole.end_ns))
    if row is not None or name is not None:  # a group of their own, so that they have a row of their own
        label, classes = p.label.copy(), list(p.classes)
        for i in np.unique(label[asked]):
            label[asked & (label == i)] = len(classes)
            home = None if (group := classes[i].home) is None else (*group, (_ASKED, True))
            classes.append(replace(classes[i], attributes={**classes[i].attributes, _ASKED: True}, home=home))
        p = replace(p, classes=tuple(classes), label=label)
    return phase_table(replace(whole, phases=select_phases(p, keep)), device), is_late


def _energy(row: PhaseRow, is_late: bool) -> Energy:
    return Energy(
        phase=row.phase,
        energy_j=row.j_per_batch,
        u95_j=row.u95_j,
        seconds=row.s_per_batch or 0.0,
        count=row.iterations,
        device=row.device,
        provenance=row.provenance,
        is_so_far=is_late,
        is_lower_bound=row.is_lower_bound,
        note=row.note,
    )


# -- the one number of a run -------------------------------------------------------------------------------------------


def run_totals(run: Run, *, progress: Progress = no_progress) -> tuple[RunRow, ...]:
    """The rows of the whole run as its table has them: what `joules info`, `verify` and `top` say of its joules.

    Raises `AnalysisError`.
    """
    return kept_table(run, progress=progress).runs


def joules_text(row: RunRow) -> str:
    """The joules of a whole run in words, the same wherever they are told: figure, ± U95, and what has no readings."""
    if row.energy_j is None:
        return f"{_joules(row)}, in {seconds(row.time_s)}"
    missing = f", {_missing(row)}" if _missing(row) else ""
    return f"{_joules(row)} over {seconds(row.time_s)}{missing}"


# -- the lines at the end of a recording -------------------------------------------------------------------------------


def result_lines(path: Path) -> list[str]:
    """The result of a run in at most three lines: the joules of its table, the shares of its phases, and what to do
    next, behind what makes the joules weaker: sensors that failed, another program on the device. Of several such
    things the first is said, and `joules info` and the tables say all.

    What that takes is bounded by the readings that the regression sees, here as in every table.
    """
    run = read_run(path)
    table = kept_table(run)
    rows = sorted(table.runs, key=lambda r: (r.energy_j is None, _ORDER.index(r.provenance), -(r.energy_j or 0.0)))
    name = shown_path(run.path)
    if not rows:
        return [f"{name}: no device was recorded", f"  next: joules info {quote(name)}"]
    main = rows[0]
    first = f"{name}: {_joules(main)}"
    if main.energy_j is not None and main.power_w is not None:
        wh, power, time = (significant(x, 3) for x in (main.energy_j / 3600, main.power_w, main.time_s))
        first += f" ({wh} Wh), {power} W over {time} s"
    for k, row in enumerate(rows[1:], 1):
        longer = f"{first}; {_joules(row)}"
        if len(longer) > WIDTH:
            first += f"; {len(rows) - k} more"
            break
        first = longer
    warnings = sum(m.get("level") in ("warning", "error") for m in run.messages)
    lost = [_missing(main)] if _missing(main) else []
    lost += ["incomplete"] * (not run.is_complete) + [f"{warnings} warning{'s' * (warnings > 1)}"] * (warnings > 0)
    told = [*(row.faults for row in rows), *notes_of_run(run)]
    first_told, *others = [*dict.fromkeys(text for text in told if text)] or [""]
    beside = (f"{first_told}; " + f"{len(others)} more; " * bool(others)) * bool(first_told)
    command = "info" if warnings or first_told else "tables"
    last = f"  {beside}next: joules {command} {quote(name)}" + f" ({', '.join(lost)})" * bool(lost)
    return [printable(line) for line in (first, _shares(run, table, main), last)]


def _missing(row: RunRow) -> str:
    """``9.2 s saturated``; empty where nothing is missing."""
    return f"{seconds(row.missing_s)} {row.missing_word}" if row.missing_s > 1e-3 * row.time_s else ""


def _joules(row: RunRow) -> str:
    who = f"{row.device} {said_provenance(row.provenance)}"
    if row.energy_j is None:
        why = row.note.partition(";")[0].removeprefix("not resolvable: ")
        return f"{who}: no joules, {why}" if why else f"{who}: no joules"
    why = "" if row.u95_j is not None or row.is_lower_bound else " (± not known)"
    return f"{who} {with_u95(row.energy_j, row.u95_j, 'J', is_lower_bound=row.is_lower_bound)}{why}"


def _shares(run: Run, table: PhaseTable, whole: RunRow) -> str:
    """``of 553 J in iterations: backward 54 %, forward 26 %, rest 20 %``, the largest first, on one line: the shares of
    the table, of all its groups together."""
    groups = _trained_groups(table, whole)
    of_group: dict[Any, list[PhaseRow]] = {group_key(t.group): [] for t in groups}
    for row in table.phases:
        if (row.device, row.provenance) == (whole.device, whole.provenance) and group_key(row.group) in of_group:
            of_group[group_key(row.group)].append(row)
    paths = {row.path for rows in of_group.values() for row in rows}
    if not whole.energy_j or paths <= {WHOLE}:
        return "  no phases are marked in it: see meter.watch and meter.phase"
    joules, hidden = _joules_by_phase([row for rows in of_group.values() for row in parts_among(rows)])
    base = sum(t.energy_j or 0.0 for t in groups)
    if not joules or not base:
        return f"  {hidden or 'phases'}: not resolvable; the table says why"
    shares = sorted(((name, 100 * j / base) for name, j in joules.items()), key=itemgetter(1), reverse=True)
    texts = [f"{name} {share:.0f} %" for name, share in shares]
    rest = 100 - sum(share for _, share in shares)
    texts += [f"rest{' with ' * bool(hidden)}{hidden} {rest:.0f} %"] if hidden or rest > 0.5 else []
    outermost = {path.partition("/")[0] for path in paths}
    within = "phases" if len(outermost) > 1 else "iterations" if outermost == {ITERATION} else outermost.pop()
    return f"  of {significant(base, 4)} J in {within}: {', '.join(texts)}"


def _trained_groups(table: PhaseTable, whole: RunRow) -> list[TotalRow]:
    """The groups of a device that are of a training, not of its layers or beside others; where some say a batch size,
    these alone."""
    groups = [
        total
        for total in table.totals
        if (total.device, total.provenance) == (whole.device, whole.provenance)
        and LAYER not in total.group
        and total.group.get("overlaps") is not True
    ]
    return [total for total in groups if "batch_size" in total.group] or groups


def _joules_by_phase(parts: Sequence[PhaseRow]) -> tuple[dict[str, float], str]:
    """The joules of phases by their names, and in words those that have none."""
    joules = defaultdict[str, float](float)
    for row in parts:
        if row.j_per_batch is not None:
            joules[row.phase] += row.j_per_batch * row.iterations
    hidden = dict.fromkeys(row.phase for row in parts if row.j_per_batch is None)
    return joules, ", ".join(hidden) if len(hidden) < 5 else f"{len(hidden)} more"


def totals(path: Path, device: str | None = None) -> dict[str, float]:
    """Joules, seconds, watts and EDP of the run, its groups and the means of their phases, as far as they are known, by
    names such as ``powerd/gpu0.measured/forward/j_per_batch``.

    Groups are told apart by their attributes: ``.../batch_size=64,model=x/...``. A lower bound says so in its name.
    Raises `RunFileError`, and `AnalysisError` for an unknown device.
    """
    table = kept_table(read_run(path), device)
    figures: dict[str, float] = {}

    def add(row: RunRow | TotalRow | PhaseRow, path: list[str], **values: float | None) -> None:
        for name, value in values.items():
            is_bound = row.is_lower_bound and name not in ("time_s", "s_per_batch")
            words = ["powerd", f"{row.device}.{row.provenance}", *path, name + "_at_least" * is_bound]
            if value is not None:
                figures[printable("/".join(words))] = float(value)

    def named(row: TotalRow | PhaseRow) -> list[str]:
        text = ",".join(f"{name}={value}" for name, value in sorted(row.group.items()))
        return [text.replace("/", ".")] if text else []

    for r in table.runs:
        edp_js = None if r.energy_j is None else r.energy_j * r.time_s
        add(r, [], energy_j=r.energy_j, energy_u95_j=r.u95_j, time_s=r.time_s, power_w=r.power_w, edp_js=edp_js)
    for t in table.totals:
        path_of = named(t) or ["phases"]
        add(t, path_of, energy_j=t.energy_j, energy_u95_j=t.u95_j, time_s=t.time_s, power_w=t.power_w, edp_js=t.edp_js)
    for p in table.phases:
        path_of = [*named(p), p.phase.replace("/", ".")]
        add(p, path_of, j_per_batch=p.j_per_batch, u95_j_per_batch=p.u95_j, s_per_batch=p.s_per_batch,
            power_w=p.power_w)  # fmt: skip
    return figures
