"""The figures of one row of a run's table, as columns of its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from powerd_analytics.energy.negligible import known
from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.records.columns import Record
from powerd_analytics.records.groups import Group, GroupKey, group_key, text_of
from powerd_analytics.runs.phases import OPERATIONS
from powerd_analytics.runs.run import Run
from powerd_analytics.tables.rows import PhaseRow, PhaseTable, RunRow, TotalRow
from powerd_analytics.tables.totals import number

Row = PhaseRow | TotalRow | RunRow

PAPER = "paper"


Place = tuple[str, str, GroupKey]


def places_of(run: Run) -> dict[Place, list[int]]:
    """The classes of a run's phases by path, timing and group: what a row of phases is about."""
    found: dict[Place, list[int]] = {}
    for i, kind in enumerate(run.phases.classes):
        found.setdefault(("/".join(kind.path), kind.timing, group_key(dict(kind.group))), []).append(i)
    return found


def figures(run: Run, row: Row, group: Group, places: Mapping[Place, Sequence[int]]) -> Record:
    """What a row of the table says, by the names of columns. ``places``: `places_of` the run."""
    known: Record = {
        "power_w": row.power_w,
        "missing_s": row.missing_s,
        "is_lower_bound": row.is_lower_bound,
        "u95_j": row.u95_j,
        "note": row.note,
        "method": text_of(getattr(row, "method", None)),
    }
    if isinstance(row, PhaseRow):
        return known | _phase(run, row, group, places)
    if isinstance(row, TotalRow):
        return known | _total(row)
    energy = row.energy_j
    return known | {
        "kind": "run",
        "time_s": row.time_s,
        "energy_j": energy,
        "u95_j": row.u95_j,
        "edp_js": edp_js(energy, row.time_s) if energy is not None else None,
        "phases_j": row.phases_j,
        "rest_j": row.rest_j,
        "residual_j": row.residual_j,
    }


def _phase(run: Run, row: PhaseRow, group: Group, places: Mapping[Place, Sequence[int]]) -> Record:
    s, j = row.s_per_batch, row.j_per_batch
    gflops = None
    operations, batch = number(group.attributes, OPERATIONS), number(group.attributes, "batch_size")
    if operations and batch and j and row.phase in ("forward", "backward"):
        gflops = gflops_per_w_paper(operations, batch, 1, j)
    return {
        "kind": "phase",
        "phase": row.phase,
        "phase_path": row.path,
        "timing": row.timing,
        "iterations": row.iterations,
        "s_per_batch": s,
        "u_s_per_batch": _u_mean_s(run, places.get((row.path, row.timing, group_key(row.group)), ())),
        "j_per_batch": j,
        "u_statistical_j": row.u_statistical_j,
        "u_systematic_j": row.u_systematic_j,
        "samples_per_s": row.samples_per_s,
        "edp_js": edp_js(j, s) if j is not None and s is not None else None,
        "gflops_per_w": gflops,
        "gflops_convention": PAPER if gflops else None,
        "gflops_basis": row.phase if gflops else None,
    }


def _total(row: TotalRow) -> Record:
    n = row.iterations
    return {
        "kind": "total",
        "ranks_counted": row.ranks_counted,
        "iterations": n,
        "s_per_batch": row.time_s / n if n else None,
        "j_per_batch": row.energy_j / n if n and row.energy_j is not None else None,
        "u_statistical_j": row.u_statistical_j,
        "u_systematic_j": row.u_systematic_j,
        "samples_per_s": row.samples_per_s,
        "time_s": row.time_s,
        "energy_j": row.energy_j,
        "edp_js": row.edp_js,
        "gflops_per_w": row.gflops_per_w_paper,
        "gflops_convention": PAPER if row.gflops_per_w_paper else None,
        "gflops_basis": row.gflops_basis or None,
        "rest_j": row.rest_j,
        "residual_j": row.residual_j,
    }


def of_one_gpu(record: Record) -> Record:
    """GPUs that one process uses share its batches (Castro et al.): each did its part of the operations."""
    gflops, gpus = record["gflops_per_w"], record["gpus"]
    return {"gflops_per_w": gflops / gpus} if isinstance(gflops, float) and isinstance(gpus, int) else {}


def u_gflops(record: Record, row: Row, table: PhaseTable) -> Record:
    """Uncertainty of a figure per joule: relative, that of the joules of the phases which it divides by."""
    gflops, basis = record["gflops_per_w"], str(record["gflops_basis"])
    if not isinstance(gflops, float) or isinstance(row, RunRow):
        return {}
    same = (row.device, row.provenance, group_key(row.group))
    found = [
        r for r in table.phases if (r.device, r.provenance, group_key(r.group)) == same and r.phase in basis.split("+")
    ]
    joules = sum(r.j_per_batch or 0.0 for r in found)
    if not joules:
        return {}
    statistical = np.sqrt(sum((r.u_statistical_j or 0.0) ** 2 for r in found))
    systematic = sum(r.u_systematic_j or 0.0 for r in found)
    return {
        "u_statistical_gflops_per_w": float(gflops * statistical / joules),
        "u_systematic_gflops_per_w": float(gflops * systematic / joules),
    }


def _u_mean_s(run: Run, labels: Sequence[int]) -> float | None:
    """Standard uncertainty of the mean duration by the spread of the phases that ended; None for fewer than two."""
    p = run.phases
    ended = p.of(labels) & ~p.cut
    seconds = (p.end_ns[ended] - p.begin_ns[ended]).astype(np.float64) * 1e-9
    if len(seconds) < 2:
        return None
    return known(float(np.std(seconds, ddof=1) / np.sqrt(len(seconds))), float(np.mean(seconds)))
