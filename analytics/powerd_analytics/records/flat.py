"""One flat record for each row of a run's table: what campaigns, indexes, comparisons and pictures are made of."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.records.columns import Cell, Record, empty_record
from powerd_analytics.records.figures import Row, figures, of_one_gpu, places_of, u_gflops
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
from powerd_analytics.runs.phases import OPERATIONS
from powerd_analytics.runs.recalibration import recalibrate
from powerd_analytics.runs.run import Run, read_run
from powerd_analytics.tables.rows import JobRow, PhaseTable, RankRow, RunRow
from powerd_analytics.tables.table import phase_table
from powerd_analytics.tables.totals import number


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
    setting, part, places = Setting(run), JobPart(run), places_of(run)
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
        record = empty_record() | common | _described(run, setting, row, group) | figures(run, row, group, places)
        record |= part.of_device(row.device)
        record |= part.seconds(row) if not isinstance(row, RunRow) else {}
        if record["ranks"] == 1 and (record["world_size"] or 1) == 1:
            record |= of_one_gpu(record)
        record |= u_gflops(record, row, table)
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


def _finite(value: Cell) -> Cell:
    return None if isinstance(value, float) and not isfinite(value) else value
