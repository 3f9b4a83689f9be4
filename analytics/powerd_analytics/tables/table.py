"""The table of a run: joules and seconds of every kind of phase, totals of every group, and the run as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from powerd_analytics.energy.devices import Part, PhaseColumns, Progress, load_parts, no_progress
from powerd_analytics.energy.negligible import without_rounding
from powerd_analytics.energy.reasons import clipped, not_resolvable, phase_note, usable
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS
from powerd_analytics.runs.phases import Group, pieces
from powerd_analytics.runs.ranks import NOBODY, ranks_of
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.slices import IN_MEMORY
from powerd_analytics.tables.attributes import check_attributes
from powerd_analytics.tables.foldedrows import folded_rows
from powerd_analytics.tables.ranktable import energies_by_rank, job_rows, mean_by_rank, rank_rows
from powerd_analytics.tables.rows import PhaseRow, PhaseTable, RankRow, RunRow, TotalRow
from powerd_analytics.tables.runrow import run_row
from powerd_analytics.tables.settled import settled
from powerd_analytics.tables.totals import (
    Bases,
    Sharing,
    group_total,
    iterations_of,
    number,
    one_basis,
    outermost,
    paths_around,
)
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
        runs.append(run_row(run, part, columns, is_unused=among.are_many and not among.users(part.device)))
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
    count_of = Counter(classes[i].name for i in labels)
    around = paths_around(classes[i] for i in labels)
    outer = {int(i) for i in run.phases.label[outermost(run, labels)] if classes[i].name != BASELINE}
    rows = {}
    for i in labels:
        of_kind = run.phases.label == i
        has_inner = classes[i].path in around
        count = int(np.sum(of_kind & ~run.phases.cut))
        if outer == {i} and has_inner and count != n:
            continue  # the phase around all batches: its figures are the group's totals
        name = classes[i].name if count_of[classes[i].name] == 1 else "/".join(classes[i].path)
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
    clip = clipped(part, run.phases.begin_ns, run.phases.end_ns, ended)
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
