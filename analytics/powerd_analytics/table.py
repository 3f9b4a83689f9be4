"""The table of a run: joules and seconds of every kind of phase, totals of every group, and the run as a whole.

`phase_table` gives three sets of rows for each part of the run (the lines of one device and one provenance):

- a `PhaseRow` for each kind of phase: the mean of its repeats. Kinds that the sensor does not resolve get the number of
  the phase-folded regression, or say why there is none;
- a `TotalRow` for each group (such as one model at one batch size), from its first phase to its last, with the rest
  between its phases, so that phases + rest + residual = total;
- a `RunRow` for the whole recording, with phases + rest + residual = run.

Where the training has several ranks, `powerd_analytics.rank_table` adds what each of them took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies, line_energies, load_parts
from powerd_analytics.energy.reasons import (
    Clip,
    clipped,
    no_energy,
    not_resolvable,
    phase_note,
    sensor,
    usable,
    without_readings,
)
from powerd_analytics.energy.rest import Given, Whole, merged, overlapping, rest_energy_j, whole_of
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, known, without_rounding
from powerd_analytics.folding.design import PhaseSequence
from powerd_analytics.folding.fold import Folded, fold
from powerd_analytics.metrics import edp_js, gflops_per_w_paper, mean_power_w
from powerd_analytics.rank_table import energies_by_rank, job_rows, mean_by_rank, rank_rows
from powerd_analytics.runs.phases import OPERATIONS, Group, PhaseClass, as_range, pieces
from powerd_analytics.runs.ranks import NOBODY, present_in, ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.signals.signal import load_bounded
from powerd_analytics.table_rows import FOLDED, INTEGRAL, PhaseRow, PhaseTable, RankRow, RunRow, TotalRow
from powerd_analytics.text import digits, seconds
from powerd_client.phase import BASELINE
from powerd_core.errors import AnalysisError
from powerd_core.text import printable

RESOLVABLE_SHARE = 0.9
"""A kind has a number when at least this share of its phases is resolvable: a mean over the long ones is no mean."""
MOST_KINDS = 12
"""Kinds of one level that are folded together: each is a dozen unknowns."""
_MISSING = 0.05
"""Share of the phases' time without readings above which nothing is folded."""
UNSURE = "too few readings to tell how sure that is"

FORWARD_BACKWARD = "forward+backward"
ITERATION = "iteration"

_Bases = dict[str, float]
"""GFLOPS/W by the phases whose joules it divides by."""
_Sharing = tuple[NDArray[np.int32], int]
"""Rank of each phase [m], and how many ranks share the device."""


def phase_table(run: Run, device: str | None = None, *, progress: Progress = no_progress) -> PhaseTable:
    """The table of a run, for one device or all. Raises `AnalysisError` for an unknown device, and as
    `check_attributes`."""
    check_attributes(run)
    parts = load_parts(run, device, lambda share, text: progress(0.6 * share, text))
    return table_of(run, parts, progress=lambda share, text: progress(0.6 + 0.4 * share, text))


def table_of(
    whole: Run, parts: Sequence[Part], *, is_folded: bool = True, progress: Progress = no_progress
) -> PhaseTable:
    """The same from parts whose readings are in memory; unless ``is_folded``, without what takes longest."""
    ranks = ranks_of(whole)
    phases: list[PhaseRow] = []
    totals: list[TotalRow] = []
    runs: list[RunRow] = []
    of_ranks: list[RankRow] = []
    for i, part in enumerate(parts):
        progress(i / len(parts), f"energies of {part.device}")
        run, count = ranks.on(whole, part.device)
        columns = energies_by_rank(run, part, ranks)
        rows: dict[int, PhaseRow] = {}
        of_groups: list[tuple[TotalRow, _Bases]] = []
        for labels in groups(run).values():
            tracks = ranks.tracks(run)
            sharing = tracks, count if (run.phases.of(labels) & (tracks != NOBODY)).any() else 1
            rows |= _phase_rows(run, part, columns, labels, sharing)
            if is_folded:
                rows |= _folded_rows(run, part, labels, rows)
            of_groups.append(_group_total(run, part, columns, labels, rows, sharing))
        totals += _on_one_basis(of_groups)
        phases += rows.values()
        runs.append(_run_row(run, part, columns, is_unused=ranks.are_many and not ranks.users(part.device)))
        of_ranks += rank_rows(run, part, ranks, runs[-1])
    jobs = job_rows(whole, ranks, of_ranks, runs)
    return PhaseTable(tuple(phases), tuple(totals), tuple(runs), ranks=tuple(of_ranks), jobs=tuple(jobs))


def groups(run: Run) -> dict[Group, list[int]]:
    """The classes of each group; groups and classes in the order in which they first occur."""
    p = run.phases
    first: dict[int, int] = {}
    for some in pieces(len(p)):
        labels, at = np.unique(p.label[some], return_index=True)
        for label, place in zip(labels.tolist(), at.tolist(), strict=True):
            first.setdefault(label, some.start + place)
    by_group: dict[Group, list[int]] = {}
    for label in sorted(first, key=first.__getitem__):
        by_group.setdefault(p.classes[label].group, []).append(label)
    return by_group


def number(attributes: Mapping[str, object], name: str) -> float | None:
    """An attribute that is a positive number, else None."""
    value = attributes.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def iterations_of(run: Run, labels: Sequence[int]) -> int:
    """Iterations among phases of these classes: those called so, else forward passes, else the commonest phase."""
    p = run.phases
    ended = np.zeros(len(p.classes), np.int64)
    for some in pieces(len(p)):
        ended += np.bincount(p.label[some][~p.cut[some]], minlength=len(p.classes))
    for name in (ITERATION, "forward"):
        if named := [int(ended[i]) for i in labels if p.classes[i].name == name]:
            return max(named)
    return max((int(ended[i]) for i in labels), default=0)


def outermost(run: Run, labels: Sequence[int]) -> NDArray[np.bool_]:
    """[m] phases of these classes that no other phase of these classes encloses directly."""
    p = run.phases
    inside = p.of(labels)
    outer = inside.copy()
    for some in pieces(len(p)):
        parent = p.parent[some]
        outer[some] &= ~(inside[parent] & (parent >= 0))
    return outer


def _paths_around(classes: Iterable[PhaseClass]) -> set[tuple[str, ...]]:
    """The paths of phases that have one of these phases inside."""
    return {c.path[:k] for c in classes for k in range(1, len(c.path))}


# -- phases ------------------------------------------------------------------------------------------------------------


def _phase_rows(
    run: Run, part: Part, columns: PhaseColumns, labels: list[int], sharing: _Sharing
) -> dict[int, PhaseRow]:
    classes, n = run.phases.classes, iterations_of(run, labels)
    count_of = Counter(classes[i].name for i in labels)
    around = _paths_around(classes[i] for i in labels)
    outer = {int(i) for i in run.phases.label[outermost(run, labels)] if classes[i].name != BASELINE}
    rows = {}
    for i in labels:
        has_inner = classes[i].path in around
        count = int(np.sum((run.phases.label == i) & ~run.phases.cut))
        if outer == {i} and has_inner and count != n:
            continue  # the phase around all batches: its figures are the group's totals
        name = classes[i].name if count_of[classes[i].name] == 1 else "/".join(classes[i].path)
        rows[i] = _phase_row(run, part, columns, i, name, sharing, is_per_batch=not has_inner or count == n)
    return rows


def _phase_row(
    run: Run, part: Part, columns: PhaseColumns, label: int, name: str, sharing: _Sharing, *, is_per_batch: bool
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
    shares = f"mean per rank: each of {ranks} has 1/{ranks} of the device's power" if ranks > 1 and mean else ""
    notes = (shares, note, clip.note(has_number=mean is not None))
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
        is_lower_bound=clip.is_lower_bound and mean is not None,
        note="; ".join(n for n in notes if n),
        ranks=ranks,
    )


def _folded_rows(run: Run, part: Part, labels: Sequence[int], rows: Mapping[int, PhaseRow]) -> dict[int, PhaseRow]:
    """Rows of classes ``labels`` whose phases the sensor does not resolve, with the number of the phase-folded
    regression, or with one reason more why there is none."""
    classes = run.phases.classes
    folded_rows: dict[int, PhaseRow] = {}
    wanted = [i for i, row in rows.items() if i in labels and _can_be_folded(part, row)]
    for depth in sorted({len(classes[i].path) for i in wanted}):
        level = [i for i in labels if len(classes[i].path) == depth and not classes[i].overlaps]
        folded, reason = _fold_level(run, part, level)
        for i in wanted:
            if i in level:
                kind = folded[level.index(i)] if folded else Folded(None, 0, reason)
                folded_rows[i] = _with_folded(rows[i], part, kind)
    return folded_rows


def _can_be_folded(part: Part, row: PhaseRow) -> bool:
    time_s = (row.s_per_batch or 0.0) * row.iterations
    is_seen = bool(part.signals) and all(len(s) > 2 or s.range_w is not None for s in part.signals)
    return not row.is_resolvable and row.ranks == 1 and time_s > 0 and is_seen and row.missing_s <= _MISSING * time_s


def _fold_level(run: Run, part: Part, level: list[int]) -> tuple[list[Folded], str]:
    """The regression's result for each class of a level, or why it cannot be done."""
    p = run.phases
    if len(level) > MOST_KINDS:
        return [], f"folding tells at most {MOST_KINDS} kinds apart"
    which = np.flatnonzero(np.isin(p.label, level) & ~p.cut & (p.end_ns > p.begin_ns))
    which = which[np.argsort(p.begin_ns[which], kind="stable")]
    begin, end = p.begin_ns[which], p.end_ns[which]
    if np.any(begin[1:] < end[:-1]):
        return [], "folding needs phases one after the other, these overlap"
    if clip := clipped(part, begin, end):
        return [], f"nothing is folded where {clip}"
    index = np.zeros(len(p.classes), np.int64)
    index[level] = np.arange(len(level))
    return fold(part.signals, PhaseSequence(begin, end, index[p.label[which]], len(level))), ""


def _with_folded(row: PhaseRow, part: Part, folded: Folded) -> PhaseRow:
    if folded.per_s is None or row.s_per_batch is None:
        return replace(row, note="; ".join(n for n in (row.note, folded.why) if n))
    mean = folded.per_s.scaled(row.s_per_batch)
    slowest = max(part.signals, key=lambda s: s.resolution_ns)
    return replace(
        row,
        j_per_batch=mean.energy_j,
        u95_j=mean.u95_j,
        u_statistical_j=mean.u_statistical_j,
        u_systematic_j=mean.u_systematic_j,
        power_w=folded.per_s.energy_j,
        method=FOLDED,
        folded_parts_j=tuple((name, u_w * row.s_per_batch) for name, u_w in folded.parts_w),
        note=f"folded over {folded.iterations} phases: {sensor(slowest)}",
    )


# -- totals ------------------------------------------------------------------------------------------------------------


def _group_total(
    run: Run, part: Part, columns: PhaseColumns, labels: Sequence[int], rows: Mapping[int, PhaseRow], sharing: _Sharing
) -> tuple[TotalRow, _Bases]:
    """Totals of the classes ``labels`` of one group; ``rows`` are their rows of the table, by class."""
    p = run.phases
    classes = {i: p.classes[i] for i in labels}
    outer = outermost(run, labels)
    together = as_range(outer)
    edges = merged(p.begin_ns[together], p.end_ns[together])
    whole, clip = whole_of(part, *edges), clipped(part, *edges)
    time_s = whole.duration_s
    total = without_rounding(whole.energy) if whole.is_resolvable and whole.missing_s <= 0.5 * time_s else None
    notes = _total_notes(part, whole, clip, int(np.sum(p.cut & outer)), has_number=total is not None)
    rest_j = residual_j = None
    tracks, ranks = sharing
    # A rank that marks nothing has no part in the iterations.
    marking = present_in(tracks[p.of(labels)]) if ranks > 1 else np.zeros(1, np.int32)
    counted = max(1, int((marking != NOBODY).sum()))
    if total is not None:
        rest_j, residual_j, note = _balance(part, columns, run, classes, rows, outer, edges, total.energy_j, sharing)
        if ranks > 1:
            of = f"all {ranks}" if counted >= ranks else f"{counted} of {ranks}"
            notes.append(f"n counts the iterations of {of} ranks; joules are the device's, once")
        notes += [note] if note else []
    attributes = next(iter(classes.values())).attributes
    batch, iterations = number(attributes, "batch_size"), iterations_of(run, labels)
    u95_j = known(whole.energy.u95_j, total.energy_j) if total is not None and not clip else None
    row = TotalRow(
        group=dict(next(iter(classes.values())).group),
        device=part.device,
        provenance=part.provenance,
        iterations=iterations,
        time_s=time_s,
        energy_j=total.energy_j if total else None,
        u95_j=u95_j,
        u_statistical_j=total.u_statistical_j if total and not clip.low else None,
        u_systematic_j=total.u_systematic_j if total and not clip.low else None,
        power_w=mean_power_w(total.energy_j, time_s) if total and time_s > 0 else None,
        edp_js=edp_js(total.energy_j, time_s) if total else None,
        samples_per_s=iterations * batch / time_s if batch and iterations and time_s > 0 else None,
        gflops_per_w_paper=None,
        gflops_basis="",
        rest_j=rest_j,
        residual_j=residual_j,
        missing_s=whole.missing_s,
        is_lower_bound=clip.is_lower_bound and total is not None,
        note="; ".join(notes),
        ranks_counted=counted,
    )
    return row, _bases(classes, rows, batch)


def _total_notes(part: Part, whole: Whole, clip: Clip, cut: int, *, has_number: bool) -> list[str]:
    """Why a total is missing, or what weakens it; ``cut`` of its outermost phases never ended."""
    if has_number:
        notes = [f"{cut} cut off, counted up to there"] if cut else []
        if whole.missing_s > 1e-3 * whole.duration_s:
            notes.append(without_readings(whole.missing_s, whole.off_by_j, clip))
    else:
        notes = [no_energy(part, whole.mostly_missing, whole.missing_s, whole.duration_s)]
    return notes + ([clip.note(has_number=has_number)] if clip else [])


def _balance(
    part: Part,
    columns: PhaseColumns,
    run: Run,
    classes: Mapping[int, PhaseClass],
    rows: Mapping[int, PhaseRow],
    outer: NDArray[np.bool_],
    outer_edges: tuple[NDArray[np.int64], NDArray[np.int64]],
    total_j: float,
    sharing: _Sharing,
) -> tuple[float | None, float | None, str]:
    """Rest and residual of a group against its innermost resolvable phases, and a note where there are none.

    Ranks that share a device each have an equal part of it: their phases and rests are those of one rank on average. To
    a rank without phases in the group all of it is rest.
    """
    p = run.phases
    resolved = {i: c for i, c in classes.items() if i in rows and _is_integral(rows[i])}
    around = _paths_around(resolved.values())
    inner = [i for i, c in resolved.items() if c.path not in around]
    cover = p.of(inner) & columns.resolvable
    if not (cover & ~outer).any():
        return None, None, ""
    tracks, ranks = sharing
    # An outermost phase without phases inside is a phase like those inside others, and no rest. What overlaps the
    # others (DDP's communication) is in no sum, and beside ranks other processes have no part of the device.
    overlaps = p.of([i for i, c in classes.items() if c.overlaps])
    if np.any(tracks[cover] != NOBODY):
        overlaps |= tracks == NOBODY
    cover &= ~(outer & overlaps)
    with_phases = present_in(tracks[cover])
    ranks = max(ranks, len(with_phases))
    rest_j, phases_j = (ranks - len(with_phases)) * total_j, 0.0
    for track in with_phases:
        own = as_range(cover & (tracks == track))
        begin, end = p.begin_ns[own], p.end_ns[own]
        if overlapping(begin, end):
            return None, None, "phases overlap (several processes or threads): no rest"
        rest_j += rest_energy_j(part, outer_edges, (begin, end), Given(columns.begin_j[own], columns.end_j[own]))
        phases_j += float(columns.energy_j[own].sum())
    return rest_j / ranks, total_j - (phases_j + rest_j) / ranks, ""


def _is_integral(row: PhaseRow) -> bool:
    return row.is_resolvable and row.method == INTEGRAL


def _bases(classes: Mapping[int, PhaseClass], rows: Mapping[int, PhaseRow], batch: float | None) -> _Bases:
    operations = next((v for c in classes.values() if (v := number(c.attributes, OPERATIONS))), None)
    passes = {c.name: i for i, c in classes.items() if c.name in ("forward", "backward")}
    if not (operations and batch and passes):
        return {}
    bases: _Bases = {}
    # A folded figure is by far less sure than that of the iterations around it.
    joules = [rows[i].j_per_batch if i in rows and _is_integral(rows[i]) else None for i in passes.values()]
    if all(j is not None and j > 0 for j in joules):
        both = sum(j for j in joules if j is not None)
        bases[FORWARD_BACKWARD] = gflops_per_w_paper(operations, batch, len(passes), both)
    for i, c in classes.items():
        if c.name == ITERATION and i in rows and (j := rows[i].j_per_batch):
            bases[ITERATION] = gflops_per_w_paper(operations, batch, len(passes), j)
    return bases


def _on_one_basis(rows: Sequence[tuple[TotalRow, _Bases]]) -> list[TotalRow]:
    """Give every row its GFLOPS/W, on the same basis for a whole device: figures on different ones do not compare."""
    has_passes = all(FORWARD_BACKWARD in bases for _, bases in rows if bases)
    basis = FORWARD_BACKWARD if has_passes else ITERATION
    return [
        replace(row, gflops_per_w_paper=bases[basis], gflops_basis=basis) if basis in bases else row
        for row, bases in rows
    ]


# -- the run as a whole ------------------------------------------------------------------------------------------------


def _run_row(run: Run, part: Part, columns: PhaseColumns, *, is_unused: bool = False) -> RunRow:
    """The whole run on the device of a part; ``columns`` are the energies of its phases."""
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    whole = interval_energies(part, begin, end, np.zeros(1, np.int64), np.zeros(1, np.int64))
    power_w, silent = _mean_w(run, part)
    # The sum without a line that has no readings is not the device's energy, nor is 0 J that of a device without any.
    energy_j = float(whole.linear_j[0]) if not silent else None
    p = run.phases
    top = (p.parent < 0) & columns.resolvable
    together = as_range(top)
    first, last = merged(p.begin_ns[together], p.end_ns[together])
    phases_j = rest_j = residual_j = None
    if top.any():
        cover = whole_of(part, first, last, is_given=True)
        if cover.is_resolvable and energy_j is not None:
            phases_j = cover.energy.energy_j
            rest_j = rest_energy_j(part, (begin, end), (first, last), cover.given)
            residual_j = energy_j - phases_j - rest_j
    missing_s, duration_s = float(whole.missing_s[0]), float(whole.duration_s[0])
    clip, u95_j = clipped(part, begin, end), float(whole.u95_j[0])
    notes = []
    if energy_j is None:
        notes.append(f"not resolvable: no readings of {', '.join(silent)}")
    elif missing_s > 1e-3 * duration_s:
        notes.append(without_readings(missing_s, float(np.nan_to_num(whole.off_by_j[0])), clip))
    if energy_j is not None and not clip and np.isnan(u95_j):
        notes.append(UNSURE)
    notes += ["used by no rank"] if is_unused else []
    notes += _gap_notes(run, part)
    if unordered := sum(s.unordered for s in part.signals):
        notes.append(f"the times of {unordered} readings go back: the file is wrong (joules verify says more)")
    if not run.is_complete:
        notes.append("incomplete: the training process vanished or a part was cut off")
    notes += [clip.note(has_number=energy_j is not None), *_counter_notes(run, part)]
    return RunRow(
        device=part.device,
        provenance=part.provenance,
        time_s=duration_s,
        energy_j=energy_j,
        u95_j=None if clip or energy_j is None or np.isnan(u95_j) else known(u95_j, energy_j),
        power_w=power_w,
        phases_j=phases_j,
        rest_j=rest_j,
        residual_j=residual_j,
        missing_s=missing_s,
        is_lower_bound=clip.is_lower_bound and energy_j is not None,
        note="; ".join(n for n in notes if n),
    )


def _gap_notes(run: Run, part: Part) -> list[str]:
    """Why readings of a part are missing: one text for each cause, with how often and for how long."""
    names = {s.line.name for s in part.signals}
    lengths_s: dict[str, list[float]] = {}
    for gap in run.gaps:
        if names.intersection(gap.lines):
            lengths_s.setdefault(gap.cause, []).append((gap.end_ns - gap.begin_ns) * 1e-9)
    return [f"missing {seconds(sum(s))} in {len(s)} gaps: {cause}" for cause, s in lengths_s.items()]


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


def _counter_notes(run: Run, part: Part) -> list[str]:
    """What sensors of the device counted themselves over the run, as a wall meter's integration: they miss nothing
    between readings, so for the whole run theirs is the better figure."""
    notes = []
    for name in run.compared(part.device):
        line = run.lines[name]
        if line.quantity != "energy_j" or line.provenance.value != part.provenance:
            continue
        counter, none = Part(part.device, part.provenance, (load_bounded(run, name),)), np.zeros(1, np.int64)
        whole = interval_energies(counter, np.array([run.begin_ns]), np.array([run.end_ns]), none, none)
        missing_s, duration_s, u95_j = (float(x[0]) for x in (whole.missing_s, whole.duration_s, whole.u95_j))
        if not missing_s <= 0.5 * duration_s:
            notes.append(f"{name} counted for less than half of the run")
            continue
        sure = f", {UNSURE}" if np.isnan(u95_j) else f" ± {digits(u95_j, 2)}"
        short = f", {seconds(missing_s)} not counted" if missing_s > 1e-3 * duration_s else ""
        notes.append(f"{name} itself counted {digits(float(whole.linear_j[0]))} J{sure}{short}")
    return notes


# -- attributes that are figures ---------------------------------------------------------------------------------------

_POSITIVE = ("above 0", lambda value: value > 0)
_COUNT = ("a whole number above 0", lambda value: value > 0 and float(value).is_integer())
_FROM_ZERO = ("0 or more", lambda value: value >= 0)
_FIGURES: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "batch_size": ("1 or more", lambda value: value >= 1),
    **dict.fromkeys(("power_cap_w", "clock_hz", "clock_mhz"), _POSITIVE),
    **dict.fromkeys(("gpus", "ranks", "world_size", "machines"), _COUNT),
    # A training may end before its first sample, and a layer may do no operation.
    **dict.fromkeys(("epochs", "iterations", "samples", "dataset_size", OPERATIONS), _FROM_ZERO),
}
"""Attributes of phases that must be figures, and which."""


def check_attributes(run: Run) -> None:
    """Raises `AnalysisError` with file, row of the phases (from 1) and attribute for a figure that is none (any other
    attribute may be anything), and for one that is a number in some phases and true or false in others where the two
    are equal (1 and True)."""
    p = run.phases
    faults: dict[int, tuple[str, str]] = {}
    numbers: dict[str, set[Any]] = {}
    for kind in p.classes:
        for name, value in kind.attributes.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers.setdefault(name, set()).add(value)
    for label, kind in enumerate(p.classes):
        for name, value in kind.attributes.items():
            if isinstance(value, bool) and value in numbers.get(name, ()):
                faults.setdefault(label, (name, f"{value} here and {int(value)} in other phases: which is meant?"))
        for name, (what, is_good) in _FIGURES.items():
            value = kind.attributes.get(name)
            # Operations of two models under one name are several, which the records refuse.
            each = value if name == OPERATIONS and isinstance(value, tuple) else () if value is None else (value,)
            if not all(_is_finite(v) and is_good(v) for v in each):
                faults.setdefault(label, (name, f"{printable(repr(value), limit=40)}: must be a finite number, {what}"))
    if not faults:
        return
    # Phases inside inherit what is wrong: the first row that has it is the one that was given it.
    row = int(np.flatnonzero(np.isin(p.label, list(faults)))[0])
    label = int(p.label[row])
    phase, (name, text) = printable(repr(p.classes[label].name), limit=60), faults[label]
    raise AnalysisError(
        f"{run.path}: phase row {row + 1} ({phase}), attribute {name}: {text}; correct what marks it, or give an "
        "attribute of your own another name"
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
