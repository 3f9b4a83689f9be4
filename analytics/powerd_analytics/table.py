"""The table of a run: joules and seconds of every kind of phase, totals of every group, and the run as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from powerd_analytics.devices import (
    Part,
    PhaseColumns,
    Progress,
    interval_energies,
    load_parts,
    no_progress,
    part_phase_energies,
)
from powerd_analytics.phases import Group
from powerd_analytics.reasons import (
    AT_LEAST,
    clipped,
    digits,
    not_resolvable,
    phase_note,
    seconds,
    usable,
    without_readings,
)
from powerd_analytics.rest import merged, rest_energy_j
from powerd_analytics.rows import PhaseRow, PhaseTable, RunRow, TotalRow
from powerd_analytics.run import Run
from powerd_analytics.signal import load_signal
from powerd_analytics.totals import Bases, group_total, iterations_of, number, one_basis, outermost
from powerd_analytics.uncertainty import COVERAGE_FACTOR, mean_of

RESOLVABLE_SHARE = 0.9
"""A kind has a number when at least this share of its phases is resolvable: a mean over the long ones is no mean."""


def phase_table(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> PhaseTable:
    """The table of a run, for one device or all. Raises `AnalysisError` for an unknown device."""
    parts = load_parts(run, device, lambda share, text: progress(0.6 * share, text))
    return table_of(run, parts, progress=lambda share, text: progress(0.6 + 0.4 * share, text))


def table_of(run: Run, parts: Sequence[Part], *, progress: Progress = no_progress) -> PhaseTable:
    """The same from parts whose readings are in memory."""
    phases: list[PhaseRow] = []
    totals: list[TotalRow] = []
    runs: list[RunRow] = []
    for i, part in enumerate(parts):
        progress(i / len(parts), f"energies of {part.device}")
        columns = part_phase_energies(run, part)
        rows: dict[int, PhaseRow] = {}
        found: list[tuple[TotalRow, Bases]] = []
        for labels in groups(run).values():
            rows |= _phase_rows(run, part, columns, labels)
            found.append(group_total(run, part, columns, labels, rows))
        totals += one_basis(found)
        phases += rows.values()
        runs.append(_run_row(run, part, columns))
    return PhaseTable(tuple(phases), tuple(totals), tuple(runs))


def groups(run: Run) -> dict[Group, list[int]]:
    """The classes of each group; groups and classes in the order in which they first occur."""
    labels, first = np.unique(run.phases.label, return_index=True)
    found: dict[Group, list[int]] = {}
    for label in labels[np.argsort(first)]:
        found.setdefault(run.phases.classes[label].group, []).append(int(label))
    return found


def _phase_rows(run: Run, part: Part, columns: PhaseColumns, labels: list[int]) -> dict[int, PhaseRow]:
    classes, n = run.phases.classes, iterations_of(run, labels)
    names = [classes[i].name for i in labels]
    paths = [classes[i].path for i in labels]
    outer = {int(i) for i in run.phases.label[outermost(run, labels)]}
    rows = {}
    for i in labels:
        of_kind = run.phases.label == i
        has_inner = any(len(p) > len(classes[i].path) and p[: len(classes[i].path)] == classes[i].path for p in paths)
        count = int(np.sum(of_kind & ~run.phases.cut))
        if i in outer and has_inner and count != n:
            continue  # the phase around all batches: its figures are the group's totals
        name = classes[i].name if names.count(classes[i].name) == 1 else "/".join(classes[i].path)
        rows[i] = _phase_row(run, part, columns, i, name, is_per_batch=not has_inner or count == n)
    return rows


def _phase_row(run: Run, part: Part, columns: PhaseColumns, label: int, name: str, *, is_per_batch: bool) -> PhaseRow:
    kind = run.phases.classes[label]
    of_kind = run.phases.label == label
    ended = of_kind & ~run.phases.cut
    used = ended & usable(columns)
    s_used = float(columns.duration_s[used].mean()) if used.any() else 0.0
    s_mean = float(columns.duration_s[ended].mean()) if ended.any() else None
    mean = None
    clip = clipped(part, run.phases.begin_ns[ended], run.phases.end_ns[ended])
    is_resolvable = (ended & columns.resolvable).sum() >= RESOLVABLE_SHARE * ended.sum()
    if s_mean and used.sum() >= 0.5 * ended.sum() and is_resolvable:
        mean = mean_of(columns.energy_j[used], columns.u_random_j[used], columns.u_systematic_j[used])
        # Those left out are the short ones: the mean power holds for them too, the mean energy does not.
        mean = mean.scaled(s_mean / s_used)
        note = phase_note(columns, of_kind, run.phases.cut, clip)
    else:
        note = not_resolvable(part, columns, ended) if ended.any() else "none ended: all were cut off"
    is_lower_bound = bool(clip) and mean is not None
    note = "; ".join(n for n in (note, f"{clip}: {AT_LEAST}" if is_lower_bound else clip) if n)
    batch = number(kind.attributes, "batch_size")
    return PhaseRow(
        group=dict(kind.group),
        phase=name,
        path="/".join(kind.path),
        device=part.device,
        provenance=part.provenance,
        timing=kind.timing,
        iterations=int(ended.sum()),
        s_per_batch=s_mean,
        j_per_batch=mean.energy_j if mean else None,
        u95_j=mean.u95_j if mean and not is_lower_bound else None,
        u_statistical_j=mean.u_statistical_j if mean else None,
        u_systematic_j=mean.u_systematic_j if mean else None,
        power_w=mean.energy_j / s_mean if mean and s_mean else None,
        samples_per_s=batch / s_mean if batch and s_mean and is_per_batch else None,
        missing_s=float(columns.missing_s[ended].sum()),
        off_by_j=float(np.nan_to_num(columns.off_by_j[used]).mean()) if used.any() else 0.0,
        is_lower_bound=is_lower_bound,
        note=note,
    )


def _run_row(run: Run, part: Part, columns: PhaseColumns) -> RunRow:
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    none = np.zeros(1, np.int64)
    whole = interval_energies(part, begin, end, none, none)
    energy = float(whole.linear_j[0])
    p = run.phases
    top = (p.parent < 0) & columns.resolvable
    first, last = merged(p.begin_ns[top], p.end_ns[top])
    phases_j = rest_j = residual = None
    notes = []
    if top.any():
        nothing = np.zeros(len(first), np.int64)
        cover = interval_energies(part, first, last, nothing, nothing)
        if cover.resolvable.all():
            phases_j = float(cover.energy_j.sum())
            rest_j = rest_energy_j(part, (begin, end), (first, last), cover)
            residual = energy - phases_j - rest_j
    missing, clip = float(whole.missing_s[0]), clipped(part, begin, end)
    if missing > 1e-3 * float(whole.duration_s[0]):
        notes.append(without_readings(missing, float(np.nan_to_num(whole.off_by_j[0])), clip))
    notes += _causes(run, part)
    if not run.is_complete:
        notes.append("incomplete: the training process vanished or a part was cut off")
    notes += [note for note in (f"{clip}: {AT_LEAST}" if clip else "", *_counted(run, part)) if note]
    u = np.nan_to_num(np.hypot(whole.u_random_j[0], whole.u_systematic_j[0]))
    return RunRow(
        device=part.device,
        provenance=part.provenance,
        time_s=float(whole.duration_s[0]),
        energy_j=energy,
        u95_j=None if clip else float(COVERAGE_FACTOR * u),
        power_w=_mean_w(run, part),
        phases_j=phases_j,
        rest_j=rest_j,
        residual_j=residual,
        missing_s=missing,
        is_lower_bound=bool(clip),
        note="; ".join(notes),
    )


def _causes(run: Run, part: Part) -> list[str]:
    """Why readings of a part are missing: one text for each cause, with how often and for how long."""
    names = {s.line.name for s in part.signals}
    found: dict[str, list[float]] = {}
    for gap in run.gaps:
        if names.intersection(gap.lines):
            found.setdefault(gap.cause, []).append((gap.end_ns - gap.begin_ns) * 1e-9)
    return [f"missing {seconds(sum(s))} in {len(s)} gaps: {cause}" for cause, s in found.items()]


def _mean_w(run: Run, part: Part) -> float | None:
    """Mean power over what each line's integral covers: from its first reading to its last, holes bridged."""
    total_w = 0.0
    for signal in part.signals:
        if len(signal) < 2:
            return None
        begin_ns, end_ns = max(run.begin_ns, int(signal.t_ns[0])), min(run.end_ns, int(signal.t_ns[-1]))
        # What a counter counted in an interval in which it began anew is not in its integral.
        covered_ns = end_ns - begin_ns - int(np.diff(signal.t_ns)[signal.broken].sum())
        if covered_ns <= 0:
            return None
        total_w += float(signal.integral().between(begin_ns, end_ns)) / (covered_ns * 1e-9)
    return total_w if part.signals else None


def _counted(run: Run, part: Part) -> list[str]:
    """What sensors of the device counted themselves over the run, as a wall meter's integration: they miss nothing
    between readings, so for the whole run theirs is the better figure."""
    notes = []
    for name in run.compared(part.device):
        line = run.lines[name]
        if line.quantity != "energy_j" or line.provenance.value != part.provenance:
            continue
        counter = Part(part.device, part.provenance, (load_signal(run, name),))
        none = np.zeros(1, np.int64)
        whole = interval_energies(counter, np.array([run.begin_ns]), np.array([run.end_ns]), none, none)
        missing = float(whole.missing_s[0])
        if not missing <= 0.5 * float(whole.duration_s[0]):
            notes.append(f"{name} counted for less than half of the run")
            continue
        u95 = COVERAGE_FACTOR * np.nan_to_num(np.hypot(whole.u_random_j[0], whole.u_systematic_j[0]))
        short = f", {seconds(missing)} not counted" if missing > 1e-3 * float(whole.duration_s[0]) else ""
        notes.append(f"{name} itself counted {digits(float(whole.linear_j[0]))} J ± {digits(float(u95), 2)}{short}")
    return notes
