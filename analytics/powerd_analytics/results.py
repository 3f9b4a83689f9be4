"""What a run says of itself without being asked for a table: the lines at its close, and energies while it goes on.

`powerd_client.energies` finds this module by the entry point `powerd.energies`. All figures are those of
`powerd_analytics.table.phase_table`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.phases import PhaseClass, kept
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.table import LAYER, PhaseRow, PhaseTable, RunRow, group_key, phase_table
from powerd_analytics.text import seconds
from powerd_client.energies import Energy, said_provenance
from powerd_client.phase import WHOLE
from powerd_core.model import Provenance
from powerd_core.text import printable, significant, with_u95

WIDTH = 80
"""Columns of a line, as far as names allow."""
_ORDER = [Provenance.MEASURED.value, Provenance.SIMULATED.value, Provenance.MODELLED.value]
_ASKED = "asked"
"""The attribute that sets the phases that somebody asks for apart from all others."""
_MOST_SHARES = 6


def energies(run: Path, *, name: str | None, row: int | None, device: str | None) -> list[Energy]:
    """Energies of the phases of a run: of all kinds, of those called ``name``, or of the phase in one row; measured
    ones first. Phases whose readings have not all arrived are left out, but for the one in ``row``.

    Raises `RunFileError`, and `AnalysisError` for an unknown device.
    """
    whole = read_run(run)
    p = whole.phases
    if row is not None:
        asked = np.arange(len(p)) == row
    else:
        asked = p.of([i for i, kind in enumerate(p.classes) if name in (None, kind.name, "/".join(kind.path))])
    arrived = (p.end_ns <= whole.end_ns) & (p.begin_bound_ns >= 0) & (p.end_bound_ns >= 0)
    is_late = bool((asked & ~arrived & ~p.cut).any())
    if row is not None:
        is_late = is_late or bool(p.cut[row])
        if p.begin_ns[row] >= whole.end_ns:
            return [Energy(p.classes[p.label[row]].name, is_so_far=True, note="its readings have not arrived yet")]
        arrived |= asked
        p = replace(p, cut=p.cut & ~asked)  # what has arrived of it counts as the phase
    keep = (arrived | p.cut) & (p.begin_ns < whole.end_ns)
    p = replace(p, end_ns=np.minimum(p.end_ns, whole.end_ns))
    if row is not None or name is not None:
        classes, label = _apart(p.classes, p.label, asked)
        p = replace(p, classes=classes, label=label)
    table = phase_table(replace(whole, phases=kept(p, keep)), device)
    is_wanted = _ASKED if row is not None or name is not None else ""
    rows = [r for r in table.phases if (not is_wanted or is_wanted in r.group) and r.iterations]
    return [_energy(r, is_late) for r in sorted(rows, key=lambda r: _ORDER.index(r.provenance))]


def _apart(
    classes: tuple[PhaseClass, ...], label: NDArray[np.int32], asked: NDArray[np.bool_]
) -> tuple[tuple[PhaseClass, ...], NDArray[np.int32]]:
    """Classes and labels in which the phases asked for are a group of their own."""
    label, more = label.copy(), list(classes)
    for i in np.unique(label[asked]):
        label[asked & (label == i)] = len(more)
        more.append(replace(classes[i], attributes={**classes[i].attributes, _ASKED: True}))
    return tuple(more), label


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


def result_lines(run: Path) -> Iterator[list[str]]:
    """The result of a run in at most three lines, and again with the shares of its phases, which take longer."""
    whole = read_run(run)
    none = replace(whole, phases=kept(whole.phases, np.zeros(len(whole.phases), bool)))
    has_phases = len(whole.phases) > 0
    pending = "  phases: too many for a quick result" if has_phases else "  no phases are marked: see meter.watch"
    yield _result(whole, phase_table(none), pending)
    if has_phases:
        table = phase_table(whole)
        yield _result(whole, table, None)


def _result(run: Run, table: PhaseTable, second: str | None) -> list[str]:
    rows = sorted(table.runs, key=lambda r: (r.energy_j is None, _ORDER.index(r.provenance), -(r.energy_j or 0.0)))
    path = _shown(run.path)
    if not rows:
        return [printable(f"{path}: no device was recorded"), f"  next: joules info {quote(path)}"]
    first = rows[0]
    parts = [f"{path}: {_main(first)}"]
    for row in rows[1:]:
        parts.append(_other(row))
        if len("; ".join(parts)) > WIDTH:
            parts[-1] = f"{len(rows) - len(parts) + 1} more"
            if len("; ".join(parts)) > WIDTH:
                del parts[-1]
            break
    lines = ["; ".join(parts), second or _shares(run, table, first), _next(run, first, path)]
    return [printable(line) for line in lines if line]


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def _main(row: RunRow) -> str:
    who = f"{row.device} {said_provenance(row.provenance)}"
    if row.energy_j is None:
        return f"{who}: no joules: {row.note}"
    joules = with_u95(row.energy_j, row.u95_j, "J", is_lower_bound=row.is_lower_bound)
    watts = f", {significant(row.power_w, 3)} W" if row.power_w is not None else ""
    return f"{who} {joules} ({significant(row.energy_j / 3600, 3)} Wh){watts} over {significant(row.time_s, 3)} s"


def _other(row: RunRow) -> str:
    if row.energy_j is None:
        return f"{row.device}: no joules"
    joules = with_u95(row.energy_j, row.u95_j, "J", is_lower_bound=row.is_lower_bound)
    return f"{row.device} {said_provenance(row.provenance)} {joules}"


def _next(run: Run, row: RunRow, path: str) -> str:
    """What was lost, and the command to go on with."""
    warnings = sum(m.get("level") in ("warning", "error") for m in run.messages)
    lost = [f"{seconds(row.missing_s)} without readings"] if row.missing_s > 1e-3 * row.time_s else []
    lost += ["incomplete"] if not run.is_complete else []
    lost += [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    command = f"joules {'info' if warnings else 'tables'} {quote(path)}"
    return f"  {', '.join(lost)}{'; ' if lost else ''}next: {command}"


# -- the shares of the phases ------------------------------------------------------------------------------------------


def _shares(run: Run, table: PhaseTable, whole: RunRow) -> str:
    """``backward 54 %, forward 26 %, rest 20 %``: of the outermost phases that are more than one."""
    if not whole.energy_j:
        return ""
    classes = [kind for i, kind in enumerate(run.phases.classes) if (run.phases.label == i).any() and not kind.overlaps]
    top = _top(run, classes)
    if top == [(WHOLE,)]:
        return "  no phases are marked in it: see meter.watch and meter.phase"
    joules: dict[str, float | None] = {}
    for path in top:
        for kind in (k for k in classes if k.path == path):
            energy_j, known = _joules_of(kind, table, whole), joules.get(kind.name, 0.0)
            joules[kind.name] = None if energy_j is None or known is None else known + energy_j
    shares = {name: 100 * j / whole.energy_j for name, j in joules.items() if j is not None}
    texts = [f"{name} {share:.0f} %" for name, share in sorted(shares.items(), key=lambda item: -item[1])]
    hidden = [name for name, j in joules.items() if j is None]
    names = ", ".join(hidden) if len(hidden) < 5 else f"{len(hidden)} more"
    if not shares:
        return _fitting(f"  {names}: too short for this sensor")
    texts, others = texts[:_MOST_SHARES], texts[_MOST_SHARES:]
    texts += [f"{len(others)} others"] if others else []
    rest = 100 - sum(shares.values())
    if hidden or rest > 0.5:
        texts.append(f"rest{' with ' if hidden else ''}{names} {rest:.0f} %")
    return _fitting("  " + ", ".join(texts))


def _fitting(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _top(run: Run, classes: list[PhaseClass]) -> list[tuple[str, ...]]:
    """The paths whose shares say where the joules went: the outermost ones, and instead of one that takes more than
    half of the time (as the iterations do) what lies inside it."""
    p = run.phases
    time_s = np.bincount(p.label, weights=p.duration_s, minlength=len(p.classes))
    length_s: dict[tuple[str, ...], float] = {}
    for i, kind in enumerate(p.classes):
        if kind in classes and LAYER not in kind.attributes:
            length_s[kind.path] = length_s.get(kind.path, 0.0) + float(time_s[i])
    top: list[tuple[str, ...]] = [path for path in length_s if len(path) == 1]
    while len(top) < 3:
        longest = max(top, key=length_s.__getitem__, default=())
        inside = [path for path in length_s if path[:-1] == longest]
        if not inside or 2 * length_s[longest] < sum(length_s[path] for path in top):
            break
        top = [path for path in top if path != longest] + inside
    return top


def _joules_of(kind: PhaseClass, table: PhaseTable, whole: RunRow) -> float | None:
    """The joules of all phases of a class. A phase around all batches has the figures of its group's total."""
    group, path = group_key(dict(kind.group)), "/".join(kind.path)
    for row in table.phases:
        of_device = (row.device, row.provenance) == (whole.device, whole.provenance)
        if of_device and row.path == path and group_key(row.group) == group and row.timing == kind.timing:
            return None if row.j_per_batch is None else row.j_per_batch * row.iterations
    totals = (t for t in table.totals if (t.device, t.provenance) == (whole.device, whole.provenance))
    return next((t.energy_j for t in totals if group_key(t.group) == group), None)
