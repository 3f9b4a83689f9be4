"""Totals of a group of phases: everything that one model at one batch size took on one device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns
from powerd_analytics.energy.reasons import Clip, clipped, no_energy, without_readings
from powerd_analytics.energy.rest import Given, merged, overlapping, rest_energy_j
from powerd_analytics.energy.whole import Whole, whole_of
from powerd_analytics.metrics import edp_js, gflops_per_w_paper, mean_power_w
from powerd_analytics.runs.phases import OPERATIONS, PhaseClass, as_range, pieces
from powerd_analytics.runs.ranks import NOBODY, present_in
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.rows import INTEGRAL, PhaseRow, TotalRow

FORWARD_BACKWARD = "forward+backward"
ITERATION = "iteration"

Bases = dict[str, float]
"""GFLOPS/W by the phases whose joules it divides by."""

Sharing = tuple[NDArray[np.int32], int]
"""Rank of each phase [m], and how many ranks share the device."""


def number(attributes: Mapping[str, object], name: str) -> float | None:
    """An attribute that is a positive number, else None."""
    value = attributes.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if good else None  # type: ignore[arg-type]


def iterations_of(run: Run, labels: Sequence[int]) -> int:
    """Iterations among phases of these classes: those called so, else forward passes, else the commonest phase."""
    p = run.phases
    ended = np.zeros(len(p.classes), np.int64)
    for some in pieces(len(p)):
        ended += np.bincount(p.label[some][~p.cut[some]], minlength=len(p.classes))
    for name in (ITERATION, "forward"):
        named = [int(ended[i]) for i in labels if p.classes[i].name == name]
        if named:
            return max(named)
    return max((int(ended[i]) for i in labels), default=0)


def outermost(run: Run, labels: Sequence[int]) -> NDArray[np.bool_]:
    """[m] phases of these classes that no other phase of these classes encloses directly."""
    p = run.phases
    inside = p.of(labels)
    found = inside.copy()
    for some in pieces(len(p)):
        parent = p.parent[some]
        found[some] &= ~(inside[parent] & (parent >= 0))
    return found


def group_total(
    run: Run,
    part: Part,
    columns: PhaseColumns,
    labels: Sequence[int],
    rows: Mapping[int, PhaseRow],
    sharing: Sharing | None = None,
) -> tuple[TotalRow, Bases]:
    """Totals of the classes ``labels`` of one group; ``rows`` are their rows of the table, by class."""
    p = run.phases
    classes = {i: p.classes[i] for i in labels}
    outer = outermost(run, labels)
    together = as_range(outer)
    begin, end = merged(p.begin_ns[together], p.end_ns[together])
    found, clip = whole_of(part, begin, end), clipped(part, begin, end)
    time_s = found.duration_s
    total = found.energy if found.is_resolvable and found.missing_s <= 0.5 * time_s else None
    notes = _notes(part, found, clip, int(np.sum(p.cut & outer)), has_number=total is not None)
    rest = residual = None
    if total is not None:
        tracks, ranks = sharing or (np.zeros(len(p), np.int32), 1)
        rest, residual, note = _balance(
            part, columns, run, classes, rows, outer, (begin, end), total.energy_j, (tracks, ranks)
        )
        notes += [f"n counts the iterations of all {ranks} ranks; joules are the device's, once"] if ranks > 1 else []
        notes += [note] if note else []
    attributes = next(iter(classes.values())).attributes
    batch, iterations = number(attributes, "batch_size"), iterations_of(run, labels)
    row = TotalRow(
        group=dict(next(iter(classes.values())).group),
        device=part.device,
        provenance=part.provenance,
        iterations=iterations,
        time_s=time_s,
        energy_j=total.energy_j if total else None,
        u95_j=total.u95_j if total and not clip else None,
        u_statistical_j=total.u_statistical_j if total and not clip.low else None,
        u_systematic_j=total.u_systematic_j if total and not clip.low else None,
        power_w=mean_power_w(total.energy_j, time_s) if total and time_s > 0 else None,
        edp_js=edp_js(total.energy_j, time_s) if total else None,
        samples_per_s=iterations * batch / time_s if batch and iterations and time_s > 0 else None,
        gflops_per_w_paper=None,
        gflops_basis="",
        rest_j=rest,
        residual_j=residual,
        missing_s=found.missing_s,
        is_lower_bound=clip.is_lower_bound and total is not None,
        note="; ".join(notes),
    )
    return row, _bases(classes, rows, batch)


def _notes(part: Part, found: Whole, clip: Clip, cut: int, *, has_number: bool) -> list[str]:
    """Why a total is missing, or what weakens it; ``cut`` of its outermost phases never ended."""
    if has_number:
        notes = [f"{cut} cut off, counted up to there"] if cut else []
        is_worth_saying = found.missing_s > 1e-3 * found.duration_s
        notes += [without_readings(found.missing_s, found.off_by_j, clip)] if is_worth_saying else []
    else:
        notes = [no_energy(part, found.mostly_missing, found.missing_s, found.duration_s)]
    return notes + ([clip.note(has_number=has_number)] if clip else [])


def paths_around(classes: Iterable[PhaseClass]) -> set[tuple[str, ...]]:
    """The paths of phases that have one of these phases inside."""
    return {c.path[:k] for c in classes for k in range(1, len(c.path))}


def _balance(
    part: Part,
    columns: PhaseColumns,
    run: Run,
    classes: Mapping[int, PhaseClass],
    rows: Mapping[int, PhaseRow],
    outer: NDArray[np.bool_],
    outer_edges: tuple[NDArray[np.int64], NDArray[np.int64]],
    total_j: float,
    sharing: Sharing,
) -> tuple[float | None, float | None, str]:
    """Rest and residual of a group against its innermost resolvable phases, and a note where there are none.

    Ranks that share a device each have an equal part of it: their phases and rests are those of one rank on average. To
    a rank without phases in the group all of it is rest.
    """
    p = run.phases
    good = {i: c for i, c in classes.items() if i in rows and _is_integral(rows[i])}
    around = paths_around(good.values())
    inner = [i for i, c in good.items() if c.path not in around]
    cover = p.of(inner) & columns.resolvable
    if not (cover & ~outer).any():
        return None, None, ""
    tracks, ranks = sharing
    # An outermost phase without phases inside is a phase like those inside others, and no rest. What runs beside the
    # others (DDP's communication) is in no sum, and beside ranks other processes have no part of the device.
    beside = p.of([i for i, c in classes.items() if c.overlaps])
    if np.any(tracks[cover] != NOBODY):
        beside |= tracks == NOBODY
    cover &= ~(outer & beside)
    with_phases = present_in(tracks[cover])
    ranks = max(ranks, len(with_phases))
    rest, phases = (ranks - len(with_phases)) * total_j, 0.0
    for track in with_phases:
        own = as_range(cover & (tracks == track))
        begin, end = p.begin_ns[own], p.end_ns[own]
        if overlapping(begin, end):
            return None, None, "phases overlap (several processes or threads): no rest"
        given = Given(columns.begin_j[own], columns.end_j[own])
        rest += rest_energy_j(part, outer_edges, (begin, end), given)
        phases += float(columns.energy_j[own].sum())
    return rest / ranks, total_j - (phases + rest) / ranks, ""


def _is_integral(row: PhaseRow) -> bool:
    return row.is_resolvable and row.method == INTEGRAL


def select(columns: PhaseColumns, which: NDArray[np.bool_]) -> PhaseColumns:
    """The columns of some of the phases."""
    return PhaseColumns(**{name: getattr(columns, name)[which] for name in PhaseColumns.__dataclass_fields__})


def _bases(classes: Mapping[int, PhaseClass], rows: Mapping[int, PhaseRow], batch: float | None) -> Bases:
    operations = next((v for c in classes.values() if (v := number(c.attributes, OPERATIONS))), None)
    passes = {c.name: i for i, c in classes.items() if c.name in ("forward", "backward")}
    if not (operations and batch and passes):
        return {}
    found: Bases = {}
    # A folded figure is by far less sure than that of the iterations around it.
    joules = [rows[i].j_per_batch if i in rows and _is_integral(rows[i]) else None for i in passes.values()]
    if all(j is not None and j > 0 for j in joules):
        both = sum(j for j in joules if j is not None)
        found[FORWARD_BACKWARD] = gflops_per_w_paper(operations, batch, len(passes), both)
    for i, c in classes.items():
        if c.name == ITERATION and i in rows and (j := rows[i].j_per_batch):
            found[ITERATION] = gflops_per_w_paper(operations, batch, len(passes), j)
    return found


def one_basis(rows: Sequence[tuple[TotalRow, Bases]]) -> list[TotalRow]:
    """Give every row its GFLOPS/W, on the same basis for a whole device: figures on different ones do not compare."""
    with_any = [bases for _, bases in rows if bases]
    basis = FORWARD_BACKWARD
    if any(FORWARD_BACKWARD not in bases for bases in with_any):
        basis = ITERATION
    return [
        replace(row, gflops_per_w_paper=bases[basis], gflops_basis=basis) if basis in bases else row
        for row, bases in rows
    ]
