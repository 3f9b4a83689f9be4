"""One flat record for each row of a run's table: what campaigns, indexes, comparisons and pictures are made of."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

import numpy as np

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.energy.negligible import known
from powerd_analytics.metrics import edp_js, gflops_per_w_paper
from powerd_analytics.records.columns import Cell, Record, empty_record
from powerd_analytics.records.groups import (
    Group,
    GroupKey,
    check_numbers,
    group_key,
    groups_of,
    others_of,
    text_of,
    whole_run,
)
from powerd_analytics.records.job import JobPart
from powerd_analytics.records.setting import Setting, gpus_of, ranks_of
from powerd_analytics.runs.phases import OPERATIONS, PhaseClass
from powerd_analytics.runs.recalibration import recalibrate
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.tables.rows import JobRow, PhaseRow, PhaseTable, RankRow, RunRow, TotalRow
from powerd_analytics.tables.table import phase_table
from powerd_analytics.tables.totals import number

Row = PhaseRow | TotalRow | RunRow

PAPER = "paper"


def run_records(
    path: str | Path,
    device: str | None = None,
    calibration: Path | None = None,
    *,
    progress: Progress = no_progress,
) -> list[Record]:
    """The records of a run file: phases, totals and runs, for one device or all.

    A run without phases has only the records of kind ``run``, one without lines none. Raises `RunFileError` for a file
    that cannot be read, `AnalysisError` for an unknown device.
    """
    run = read_run(path, progress=lambda share, text: progress(0.1 * share, text))
    if calibration is not None:
        run, _ = recalibrate(run, calibration)
    table = phase_table(run, device, progress=lambda share, text: progress(0.1 + 0.9 * share, text))
    return records_of(run, table)


def records_of(run: Run, table: PhaseTable) -> list[Record]:
    """The records of a run whose table is at hand."""
    found = groups_of(run)
    setting, part = Setting(run), JobPart(run)
    common: Record = {
        "run": run.path.stem,
        "path": str(run.path),
        "run_id": text_of(run.attributes.get("run_id")),
        "created_utc": text_of(run.attributes.get("created_utc")),
        "host": text_of(run.environment.get("host")),
        **part.columns(),
    }
    rows: list[Row] = [*table.phases, *table.totals, *table.runs]
    records = []
    for row in rows:
        group = whole_run(run, found) if isinstance(row, RunRow) else found[group_key(row.group)]
        record = empty_record() | common | _described(run, setting, row, group) | _figures(run, row, group)
        record |= part.of_device(row.device)
        record |= part.seconds(row) if not isinstance(row, RunRow) else {}
        if record["ranks"] == 1 and (record["world_size"] or 1) == 1:
            record |= _of_one_gpu(record)
        record |= _u_gflops(record, row, table)
        check_numbers(run, record)
        records.append(record)
    about = empty_record() | common | _described_run(run, setting, found)
    records += [about | part.of_device(of_rank.device) | _of_rank(of_rank) for of_rank in table.ranks]
    records += [about | part.of_devices(job.devices) | _of_job(job) for job in table.jobs]
    return [{name: _finite(value) for name, value in record.items()} for record in records]


def _described_run(run: Run, setting: Setting, found: Mapping[GroupKey, Group]) -> Record:
    """What all of a run has in common, whatever the device."""
    row = RunRow("", "", 0.0, None, None, None, None, None, None, 0.0, is_lower_bound=False, note="")
    return _described(run, setting, row, whole_run(run, found))


def _of_rank(row: RankRow) -> Record:
    return {
        "kind": "rank",
        "rank": row.rank,
        "device": row.device,
        "provenance": row.provenance,
        "sharing": row.ranks,
        "time_s": row.busy_s,
        "energy_j": row.energy_j,
        "phases_j": row.phases_j,
        "rest_j": row.rest_j,
        "residual_j": row.residual_j,
        "is_lower_bound": row.is_lower_bound,
        "note": row.note,
    }


def _of_job(row: JobRow) -> Record:
    return {
        "kind": "job",
        "ranks": row.ranks,
        "device": "+".join(row.devices),
        "provenance": row.provenance,
        "energy_j": row.energy_j,
        "devices_j": row.devices_j,
        "residual_j": row.residual_j,
        "is_lower_bound": row.is_lower_bound,
        "note": row.note,
    }


def _described(run: Run, setting: Setting, row: Row, group: Group) -> Record:
    """What was run on what, by the phases' attributes first, then by what the driver said."""
    a, span = group.attributes, (group.begin_ns, group.end_ns)
    cap, clock, mhz = number(a, "power_cap_w"), number(a, "clock_hz"), number(a, "clock_mhz")
    chosen = clock or (mhz * 1e6 if mhz else None)
    gpus, batch = number(a, "gpus"), number(a, "batch_size")
    return {
        "model": text_of(a.get("model")),
        "batch_size": int(batch) if batch and batch.is_integer() else batch,
        "gpus": round(gpus) if gpus else gpus_of(run),
        "ranks": ranks_of(run),
        "device": row.device,
        "device_name": text_of(a.get("device_name")) or setting.device_name(row.device),
        "provenance": row.provenance,
        "power_cap_w": cap or setting.power_cap_w(row.device, *span),
        "clock_hz": chosen or setting.clock_hz(row.device, *span),
        "clock_set": chosen is not None,
        "attributes": others_of(a),
        "operations_per_sample": number(a, OPERATIONS),
    }


def _figures(run: Run, row: Row, group: Group) -> Record:
    known: Record = {
        "power_w": row.power_w,
        "missing_s": row.missing_s,
        "is_lower_bound": row.is_lower_bound,
        "u95_j": row.u95_j,
        "note": row.note,
        "method": text_of(getattr(row, "method", None)),
    }
    if isinstance(row, PhaseRow):
        return known | _phase(run, row, group)
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


def _phase(run: Run, row: PhaseRow, group: Group) -> Record:
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
        "u_s_per_batch": _u_mean_s(run, row),
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


def _of_one_gpu(record: Record) -> Record:
    """GPUs that one process uses share its batches (Castro et al.): each did its part of the operations."""
    gflops, gpus = record["gflops_per_w"], record["gpus"]
    return {"gflops_per_w": gflops / gpus} if isinstance(gflops, float) and isinstance(gpus, int) else {}


def _u_gflops(record: Record, row: Row, table: PhaseTable) -> Record:
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


def _u_mean_s(run: Run, row: PhaseRow) -> float | None:
    """Standard uncertainty of the mean duration by the spread of the phases that ended; None for fewer than two."""
    p = run.phases
    labels = [i for i, kind in enumerate(p.classes) if _is(kind, row)]
    seconds = p.duration_s[np.isin(p.label, labels) & ~p.cut]
    if len(seconds) < 2:
        return None
    return known(float(np.std(seconds, ddof=1) / np.sqrt(len(seconds))), float(np.mean(seconds)))


def _is(kind: PhaseClass, row: PhaseRow) -> bool:
    same = "/".join(kind.path) == row.path and kind.timing == row.timing
    return same and group_key(dict(kind.group)) == group_key(row.group)


def _finite(value: Cell) -> Cell:
    return None if isinstance(value, float) and not isfinite(value) else value
