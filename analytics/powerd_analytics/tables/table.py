"""The table of a run: joules and seconds of every kind of phase, totals of every group, and the run as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from powerd_analytics.energy.devices import (
    Part,
    PhaseColumns,
    Progress,
    interval_energies,
    line_energies,
    load_parts,
    no_progress,
)
from powerd_analytics.energy.negligible import known, without_rounding
from powerd_analytics.energy.reasons import (
    clipped,
    digits,
    not_resolvable,
    phase_note,
    seconds,
    usable,
    without_readings,
)
from powerd_analytics.energy.rest import merged, rest_energy_j
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS
from powerd_analytics.energy.whole import whole_of
from powerd_analytics.runs.phases import Group, pieces
from powerd_analytics.runs.ranks import NOBODY, ranks_of
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.slices import IN_MEMORY, load_bounded
from powerd_analytics.tables.attributes import check_attributes
from powerd_analytics.tables.foldedrows import folded_rows
from powerd_analytics.tables.ranktable import energies_by_rank, job_rows, mean_by_rank, rank_rows
from powerd_analytics.tables.rows import PhaseRow, PhaseTable, RankRow, RunRow, TotalRow
from powerd_analytics.tables.settled import settled
from powerd_analytics.tables.totals import Bases, Sharing, group_total, iterations_of, number, one_basis, outermost
from powerd_client.baseline import BASELINE

RESOLVABLE_SHARE = 0.9
"""A kind has a number when at least this share of its phases is resolvable: a mean over the long ones is no mean."""


def phase_table(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> PhaseTable:
    """The table of a run, for one device or all. Raises `AnalysisError` for an unknown device, and as
    `check_attributes`."""
    check_attributes(run)
    parts = load_parts(run, device, lambda share, text: progress(0.6 * share, text), in_memory=IN_MEMORY)
    return table_of(run, parts, progress=lambda share, text: progress(0.6 + 0.4 * share, text))


def table_of(
    whole: Run, parts: Sequence[Part], *, is_folded: bool = True, progress: Progress = no_progress
) -> PhaseTable:
    """The same from parts whose readings are in memory; unless ``is_folded``, without what takes longest."""
    among = ranks_of(whole)
    of_ranks: list[RankRow] = []
    phases: list[PhaseRow] = []
    totals: list[TotalRow] = []
    runs: list[RunRow] = []
    for i, part in enumerate(parts):
        progress(i / len(parts), f"energies of {part.device}")
        run, sharing = among.on(whole, part.device)
        columns = energies_by_rank(run, part, among)
        rows: dict[int, PhaseRow] = {}
        found: list[tuple[TotalRow, Bases]] = []
        for labels in groups(run).values():
            tracks = among.tracks(run)
            share = tracks, sharing if (run.phases.of(labels) & (tracks != NOBODY)).any() else 1
            rows |= _phase_rows(run, part, columns, labels, share)
            if is_folded:
                rows |= folded_rows(run, part, labels, rows)
            total, bases = group_total(run, part, columns, labels, rows, share)
            found.append((settled(total, run, labels, share), bases))
        totals += one_basis(found)
        phases += rows.values()
        runs.append(_run_row(run, part, columns, is_unused=among.are_many and not among.users(part.device)))
        of_ranks += rank_rows(run, part, among, runs[-1])
    jobs = job_rows(whole, among, of_ranks, runs)
    return PhaseTable(tuple(phases), tuple(totals), tuple(runs), ranks=tuple(of_ranks), jobs=tuple(jobs))


def groups(run: Run) -> dict[Group, list[int]]:
    """The classes of each group; groups and classes in the order in which they first occur."""
    p = run.phases
    first: dict[int, int] = {}
    for some in pieces(len(p)):
        labels, at = np.unique(p.label[some], return_index=True)
        for label, place in zip(labels.tolist(), at.tolist(), strict=True):
            first.setdefault(label, some.start + place)
    found: dict[Group, list[int]] = {}
    for label in sorted(first, key=first.__getitem__):
        found.setdefault(p.classes[label].group, []).append(label)
    return found


def _phase_rows(
    run: Run, part: Part, columns: PhaseColumns, labels: list[int], sharing: Sharing
) -> dict[int, PhaseRow]:
    classes, n = run.phases.classes, iterations_of(run, labels)
    names = [classes[i].name for i in labels]
    paths = [classes[i].path for i in labels]
    outer = {int(i) for i in run.phases.label[outermost(run, labels)] if classes[i].name != BASELINE}
    rows = {}
    for i in labels:
        of_kind = run.phases.label == i
        has_inner = any(len(p) > len(classes[i].path) and p[: len(classes[i].path)] == classes[i].path for p in paths)
        count = int(np.sum(of_kind & ~run.phases.cut))
        if outer == {i} and has_inner and count != n:
            continue  # the phase around all batches: its figures are the group's totals
        name = classes[i].name if names.count(classes[i].name) == 1 else "/".join(classes[i].path)
        rows[i] = _phase_row(run, part, columns, i, name, sharing, is_per_batch=not has_inner or count == n)
    return rows


def _phase_row(
    run: Run, part: Part, columns: PhaseColumns, label: int, name: str, sharing: Sharing, *, is_per_batch: bool
) -> PhaseRow:
    tracks, ranks = sharing
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
        mean = mean_by_rank([getattr(columns, name)[used] for name in MEAN_COLUMNS], tracks[used])
        # Those left out are the short ones: the mean power holds for them too, the mean energy does not.
        mean = without_rounding(mean.scaled(s_mean / s_used / ranks))
        note = phase_note(columns, of_kind, run.phases.cut, clip)
    else:
        note = not_resolvable(part, columns, ended) if ended.any() else "none ended: all were cut off"
    is_lower_bound = clip.is_lower_bound and mean is not None
    shares = f"mean per rank: each of {ranks} has 1/{ranks} of the device's power" if ranks > 1 and mean else ""
    note = "; ".join(n for n in (shares, note, clip.note(has_number=mean is not None)) if n)
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
        u95_j=mean.u95_j if mean and not clip else None,
        u_statistical_j=mean.u_statistical_j if mean and not clip.low else None,
        u_systematic_j=mean.u_systematic_j if mean and not clip.low else None,
        power_w=mean.energy_j / s_mean if mean and s_mean else None,
        samples_per_s=batch / s_mean if batch and s_mean and is_per_batch else None,
        missing_s=float(columns.missing_s[ended].sum()),
        off_by_j=float(np.nan_to_num(columns.off_by_j[used]).mean()) / ranks if used.any() else 0.0,
        is_lower_bound=is_lower_bound,
        note=note,
        ranks=ranks,
    )


def _run_row(run: Run, part: Part, columns: PhaseColumns, *, is_unused: bool = False) -> RunRow:
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    none = np.zeros(1, np.int64)
    whole = interval_energies(part, begin, end, none, none)
    power_w, silent = _mean_w(run, part)
    # The sum without a line that has no readings is not the device's energy, nor is 0 J that of a device without any.
    energy = float(whole.linear_j[0]) if not silent else None
    p = run.phases
    top = (p.parent < 0) & columns.resolvable
    first, last = merged(p.begin_ns[top], p.end_ns[top])
    phases_j = rest_j = residual = None
    notes = []
    if top.any():
        cover = whole_of(part, first, last)
        if cover.seen.resolvable.all() and energy is not None:
            phases_j = cover.energy.energy_j
            rest_j = rest_energy_j(part, (begin, end), (first, last), cover.given)
            residual = energy - phases_j - rest_j
    missing, clip = float(whole.missing_s[0]), clipped(part, begin, end)
    is_lower_bound = clip.is_lower_bound and energy is not None
    if energy is None:
        notes.append(f"not resolvable: no readings of {', '.join(silent)}")
    elif missing > 1e-3 * float(whole.duration_s[0]):
        notes.append(without_readings(missing, float(np.nan_to_num(whole.off_by_j[0])), clip))
    notes += ["used by no rank"] if is_unused else []
    notes += _causes(run, part)
    if not run.is_complete:
        notes.append("incomplete: the training process vanished or a part was cut off")
    notes += [note for note in (clip.note(has_number=energy is not None), *_counted(run, part)) if note]
    return RunRow(
        device=part.device,
        provenance=part.provenance,
        time_s=float(whole.duration_s[0]),
        energy_j=energy,
        u95_j=None if clip or energy is None else known(float(np.nan_to_num(whole.u95_j[0])), energy),
        power_w=power_w,
        phases_j=phases_j,
        rest_j=rest_j,
        residual_j=residual,
        missing_s=missing,
        is_lower_bound=is_lower_bound,
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


def _mean_w(run: Run, part: Part) -> tuple[float | None, list[str]]:
    """Mean power over what each line's integral covers: from its first reading to its last, holes bridged. None where
    it covers nothing of the run for lines, whose names follow."""
    total_w, silent = 0.0, []
    for signal in part.signals:
        covered_ns = 0
        if len(signal) > 1:
            begin_ns, end_ns = max(run.begin_ns, int(signal.t_ns[0])), min(run.end_ns, int(signal.t_ns[-1]))
            # What a counter counted in an interval in which it began anew is not in its integral.
            covered_ns = end_ns - begin_ns - signal.set_back_ns()
        if covered_ns > 0:
            total_w += float(line_energies((signal,), begin_ns, end_ns)[0]) / (covered_ns * 1e-9)
        else:
            silent.append(signal.line.name)
    return (None if silent else total_w), silent


def _counted(run: Run, part: Part) -> list[str]:
    """What sensors of the device counted themselves over the run, as a wall meter's integration: they miss nothing
    between readings, so for the whole run theirs is the better figure."""
    notes = []
    for name in run.compared(part.device):
        line = run.lines[name]
        if line.quantity != "energy_j" or line.provenance.value != part.provenance:
            continue
        counter = Part(part.device, part.provenance, (load_bounded(run, name),))
        none = np.zeros(1, np.int64)
        whole = interval_energies(counter, np.array([run.begin_ns]), np.array([run.end_ns]), none, none)
        missing = float(whole.missing_s[0])
        if not missing <= 0.5 * float(whole.duration_s[0]):
            notes.append(f"{name} counted for less than half of the run")
            continue
        u95 = np.nan_to_num(whole.u95_j[0])
        short = f", {seconds(missing)} not counted" if missing > 1e-3 * float(whole.duration_s[0]) else ""
        notes.append(f"{name} itself counted {digits(float(whole.linear_j[0]))} J ± {digits(float(u95), 2)}{short}")
    return notes
