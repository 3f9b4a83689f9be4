"""Many runs as one campaign: their records, checked for what would make a table of them wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from powerd_analytics.energy.devices import Progress, no_progress
from powerd_analytics.indexes.files import run_files
from powerd_analytics.indexes.index import index_records, is_index
from powerd_analytics.records.checks import check_campaign, check_run
from powerd_analytics.records.columns import Cell, Record
from powerd_analytics.records.flat import run_records
from powerd_analytics.records.jobsums import merge_jobs


def read_campaign(
    paths: Sequence[Path],
    device: str | None = None,
    calibration: Path | None = None,
    *,
    is_one_job: bool = False,
    progress: Progress = no_progress,
) -> list[Record]:
    """The records of all runs in ``paths`` (files, directories, indexes), checked by `check_run` and `check_campaign`.

    Those of indexes are taken from there. With a file of ``calibration``, all run files are read, and the joules of its
    sensors are computed again by it.

    Runs that are parts of one training over several machines are one (`merge_jobs`); with ``is_one_job`` all are.
    """
    files = run_files(paths)
    indexed: dict[Cell, list[Record]] = {}
    for path in paths if calibration is None else ():
        for record in index_records(path, device, progress=progress) if is_index(path) else ():
            indexed.setdefault(record["path"], []).append(record)
    records: list[Record] = []
    for i, path in enumerate(files):
        of_run = indexed.get(str(path)) or run_records(
            path, device, calibration, progress=part_of(progress, i, len(files), path.name)
        )
        check_run(path, of_run)
        records += of_run
    check_campaign(records)
    return merge_jobs(records, by_hand=is_one_job)


def part_of(progress: Progress, i: int, n: int, name: str) -> Progress:
    """The progress of the ``i``-th of ``n`` files."""
    return lambda share, text: progress((i + share) / n, f"{name}: {text}")
