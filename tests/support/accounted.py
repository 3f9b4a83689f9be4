"""The files that powerd-accounting leaves on a node, of jobs whose joules are known."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from powerd_client.accounting.days import JOBS, write_jobs

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


def write_node(folder: Path, node: str, rows=None) -> None:
    """The file of a month below a node's folder."""
    (folder / JOBS).mkdir(parents=True)
    write_jobs(folder / JOBS / "2026-11-00aa.parquet", node, rows or [job_row(1), job_row(None)])
