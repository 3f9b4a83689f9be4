"""The files that powerd-accounting leaves on a node, of jobs whose joules are known."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from powerd_client.accounting.days import JOBS, SECONDS, write_jobs, write_seconds

DAY = (date(2026, 11, 2) - date(1970, 1, 1)).days
"""A Monday."""


def job_row(number, user="ana", account="p7", device="gpu0", energy_j=3600.0, kind="measured", day=DAY, **of):
    """A row of a job and device as the store gives it; no job for None."""
    sums = {"shared_j": 0.01 * energy_j, "random_j2": 100.0, "time_s": 60.0, "missing_s": 1.0}
    sums |= {"idle_j": 0.0, "idle_s": 0.0, "known_s": 60.0} | of
    if number is None:
        return (day, "", *[None] * 12, device, kind, energy_j, *sums.values())
    texts = ("slurm", str(number), "train", user, account, "gpu", "", "gpu0", "0", "prolog")
    begin_ns = DAY * 86400 * 10**9 + number * 10**9
    return (day, f"slurm {number}", *texts, begin_ns, begin_ns + 3600 * 10**9, device, kind, energy_j, *sums.values())


def write_node(folder: Path, node: str, rows=None, generation="00aa", seconds=None) -> None:
    """The file of a month below a node's folder, and of these seconds of gpu0 on `DAY` where they are given."""
    (folder / JOBS).mkdir(parents=True, exist_ok=True)
    write_jobs(folder / JOBS / f"2026-11-{generation}.parquet", node, rows or [job_row(1), job_row(None)])
    if seconds is not None:
        (folder / SECONDS).mkdir(exist_ok=True)
        sums = (100.0, 1.0, 1.0, 1.0, 0.0)
        day = [(DAY * 86400 + second, "gpu0", "measured", "", *sums, None, None, None) for second in seconds]
        write_seconds(folder / SECONDS / f"2026-11-02-{generation}-0.parquet", node, [day])
