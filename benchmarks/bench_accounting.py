"""What powerd-accounting costs on a node of 8 GPUs and 16 rails, what a month of it takes on a disk, and how long a
month of 1,000 nodes is asked.

``--parts cost``: a powerd with cheap sources of these rates (50 readings a second of each GPU, 1,000 of each wire),
frames every 20 and every 200 ms; CPU time and greatest memory of the accounting beside it, and of `powerd export`,
scraped every 15 s.
``--parts bytes``: a day of a node as its file, power as trainings, pauses and idling make it.
``--parts month``: files of jobs of all nodes and days, asked by `joules jobs --by account`; the same by Dask over four
workers; and the device-minutes themselves, in a file a node, joined with the jobs' accounts.

Targets: 1 % of a core, 60 MB of memory, 40 MB a node and month. Exit status 1 when one is missed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import cpu_seconds, free_port, machine, options, powerd, progress, wait_until

from powerd_analytics.frame import job_totals
from powerd_client.accounting import days
from powerd_client.accounting.store import NAME

SOURCES = """[[source]]
name = "rails"
kind = "flat_node:Rails"
[[source]]
name = "gpus"
kind = "flat_node:Gpus"
"""
PUBLISH_S = 900.0
"""The default of ``--publish-s``."""
GPUS, RAIL_DEVICES, DAY_S = 8, 2, 86400
JOBS_A_DAY = 6
FIRST_DAY = 20_758
"""2026-11-01."""
TARGET_CPU, TARGET_MB, TARGET_MONTH_MB = 0.01, 60.0, 40.0
SQL = """SELECT account, sum(m.energy_j), sum(m.missing_s) FROM read_parquet(?) m
LEFT JOIN (SELECT DISTINCT job, account FROM read_parquet(?)) USING (job) GROUP BY ALL ORDER BY ALL"""


def memory_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


# -- cost --------------------------------------------------------------------------------------------------------------


def cost(seconds: float, block_ms: float, folder: Path) -> tuple[float, float]:
    """Share of a core and megabytes."""
    with powerd(SOURCES, server=f"block_ms = {block_ms}") as (url, daemon):
        command = [sys.executable, "-P", "-m", "powerd_client.accounting.service", url, "--folder", str(folder)]
        process = subprocess.Popen([*command, "--publish-s", "1e9"])
        try:
            wait_until((folder / NAME).exists, 60)
            time.sleep(45)  # until rows of devices are made, as at all later times
            before, of_daemon, begin_s = cpu_seconds(process.pid), cpu_seconds(daemon), time.monotonic()
            time.sleep(seconds)
            elapsed_s = time.monotonic() - begin_s
            share = (cpu_seconds(process.pid) - before) / elapsed_s
            megabytes, of_daemon = memory_mb(process.pid), (cpu_seconds(daemon) - of_daemon) / elapsed_s
            print(f"  frames every {block_ms:3.0f} ms: {100 * share:5.2f} % of a core, {megabytes:5.1f} MB", end="")
            print(f"   (powerd itself {100 * of_daemon:.1f} %)")
            return share, megabytes
        finally:
            process.terminate()
            process.wait(120)


def cost_of_export(seconds: float, block_ms: float) -> tuple[float, float]:
    """Share of a core and megabytes of `powerd export`, scraped every 15 s."""
    with powerd(SOURCES, server=f"block_ms = {block_ms}") as (url, _):
        listen = f"127.0.0.1:{free_port()}"
        process = subprocess.Popen([sys.executable, "-P", "-m", "powerd_daemon", "export", url, "--listen", listen])
        try:
            scrape = partial(urllib.request.urlopen, f"http://{listen}/metrics", timeout=10)
            wait_until(lambda: is_answered(scrape), 60)
            time.sleep(10)
            before, begin_s = cpu_seconds(process.pid), time.monotonic()
            for _ in range(round(seconds / 15)):
                time.sleep(15)
                with scrape() as answer:
                    answer.read()
            share = (cpu_seconds(process.pid) - before) / (time.monotonic() - begin_s)
            megabytes = memory_mb(process.pid)
            print(
                f"  powerd export, frames every {block_ms:3.0f} ms: {100 * share:5.2f} % of a core, {megabytes:5.1f} MB"
            )
            return share, megabytes
        finally:
            process.terminate()
            process.wait(120)


def is_answered(scrape: Callable[[], Any]) -> bool:
    try:
        with scrape():
            return True
    except OSError:
        return False


def publishing(folder: Path) -> None:
    before, begin_s = os.times(), time.perf_counter()
    command = [sys.executable, "-P", "-m", "powerd_client.accounting.days", str(folder), "n", "400", "2000"]
    subprocess.run(command, check=True)
    after, took_s = os.times(), time.perf_counter() - begin_s
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    print(
        f"  files of jobs renewed, every {PUBLISH_S:.0f} s: {took_s:.2f} s, {100 * cpu_s / PUBLISH_S:.2f} % of a core"
    )


# -- bytes -------------------------------------------------------------------------------------------------------------


def device_day(rng: np.random.Generator, device: str, u_gain: float) -> Iterator[tuple[Any, ...]]:
    """Rows of a day as the store has them: jobs of hours with noise of their own, pauses for a checkpoint, idling."""
    watts, jobs = np.empty(DAY_S), [""] * DAY_S
    at = number = 0
    while at < DAY_S:
        n = min(int(rng.exponential(7200)) + 300, DAY_S - at)
        if rng.random() < 0.25:
            watts[at : at + n] = rng.normal(75, 0.6, n)
        else:
            watts[at : at + n] = rng.uniform(300, 680) + rng.normal(0, rng.uniform(2, 25), n)
            watts[at : at + n : int(rng.integers(30, 600))] *= 0.6
            jobs[at : at + n] = [f"slurm {number}"] * n
        at, number = at + n, number + 1
    for second, (power, job) in enumerate(zip(watts.tolist(), jobs, strict=True)):
        sums = (power, u_gain * power, (0.01 * power) ** 2, 1.0, 0.0)
        yield (FIRST_DAY * DAY_S + second, device, "measured", job, *sums, 700.0, not job, None)


def day_bytes(folder: Path) -> float:
    """Megabytes of a node and month of 30 days."""
    rng, place = np.random.default_rng(1), folder / "day.parquet"
    names = [(f"gpu{i}", 0.029) for i in range(GPUS)] + [(f"rail{i}", 0.004) for i in range(RAIL_DEVICES)]
    begin_s = time.perf_counter()
    days.write_seconds(place, "n1", (list(device_day(rng, *name)) for name in names))
    took_s, size = time.perf_counter() - begin_s, place.stat().st_size
    jobs = folder / "jobs.parquet"
    days.write_jobs(jobs, "n1", list(job_rows(rng, 0, 30)))
    month_mb = 30e-6 * size + 1e-6 * jobs.stat().st_size
    rows = len(names) * DAY_S
    print(f"  {rows} rows a day, {size / rows:.2f} bytes each, written in {took_s:.1f} s")
    print(f"  a node and month: {month_mb:.1f} MB, of which the file of jobs {1e-6 * jobs.stat().st_size:.2f} MB")
    read = pq.read_metadata(place).row_group(0)
    columns = [read.column(i) for i in range(read.num_columns)]
    print("  " + ", ".join(f"{c.path_in_schema} {c.total_compressed_size / DAY_S:.2f}" for c in columns) + " bytes")
    return month_mb


# -- a month of many nodes ---------------------------------------------------------------------------------------------


def job_rows(rng: np.random.Generator, node: int, n_days: int, devices: int = GPUS) -> Iterator[tuple[Any, ...]]:
    """Rows of a node and month: each day some jobs on all of its devices, and nobody."""
    for day in range(FIRST_DAY, FIRST_DAY + n_days):
        for number in range(JOBS_A_DAY):
            who, of = int(rng.integers(0, 500)), f"{node * 1000 + (day - FIRST_DAY) * JOBS_A_DAY + number}"
            texts = ("slurm", of, "train", f"user{who}", f"account{who % 40}", "gpu", "", "gpu0", "0", "prolog")
            for device in range(devices):
                joules = float(rng.uniform(1e6, 6e6))
                sums = (joules, 0.029 * joules, joules, 3600.0, 0.0, 0.01 * joules, 36.0, 3600.0)
                yield (day, f"slurm {of}", *texts, 0, 10**18, f"gpu{device}", "measured", *sums)
        for device in range(devices):
            sums = (1e5, 3e3, 1e4, 3600.0, 0.0, 1e5, 3600.0, 3600.0)
            yield (day, "", *[None] * 12, f"gpu{device}", "measured", *sums)


def make_month(folder: Path, nodes: int, n_days: int) -> None:
    """The files of jobs, written without waiting for the disk."""
    rng = np.random.default_rng(2)
    days._sync = lambda path: None
    for node in range(nodes):
        own = folder / f"n{node}" / days.JOBS
        own.mkdir(parents=True)
        rows = list(job_rows(rng, node, n_days))
        days.write_jobs(own / f"{days.name_of(FIRST_DAY)[:7]}-00aa.parquet", f"n{node}", rows)
        progress(f"{node + 1} of {nodes} nodes")
    progress("")


def make_minutes(folder: Path, nodes: int, n_days: int, devices: int) -> int:
    """Device-minutes in the columns of ``seconds``, a file a node; how many."""
    folder.mkdir()
    rng, n = np.random.default_rng(3), n_days * 1440 * devices
    minute = np.tile(FIRST_DAY * DAY_S + 60 * np.arange(n_days * 1440, dtype=np.int64), devices)
    device = np.repeat(np.arange(devices, dtype=np.int32), n_days * 1440)
    device_names = pa.DictionaryArray.from_arrays(device, [f"gpu{i}" for i in range(devices)])
    for node in range(nodes):
        job = np.tile((np.arange(n_days * 1440) // 240).astype(np.int32), devices)  # six a day
        names = [f"slurm {node * 1000 + i}" for i in range(n_days * JOBS_A_DAY)]
        watts = rng.choice([75.0, 410.0, 520.0, 610.0], n // 240).repeat(240)
        columns = {
            "second": minute, "device": device_names, "job": pa.DictionaryArray.from_arrays(job, names),
            "energy_j": (np.round(60 * watts + rng.normal(0, 100, n), -2)).astype(np.float32),
            "u95_j": np.full(n, 1700, np.float32), "missing_s": np.zeros(n, np.float32),
        }  # fmt: skip
        encoding = {"energy_j": "BYTE_STREAM_SPLIT", "second": "DELTA_BINARY_PACKED"}
        words = ["device", "job", "u95_j", "missing_s"]
        pq.write_table(
            pa.table(columns), folder / f"n{node}.parquet", compression="zstd", column_encoding=encoding,
            use_dictionary=words,
        )  # fmt: skip
        progress(f"{node + 1} of {nodes} files of minutes")
    progress("")
    return nodes * n


def asked(*words: str) -> tuple[float, list[str]]:
    begin_s = time.perf_counter()
    command = [sys.executable, "-P", "-m", "powerd_analytics", "jobs", *words, "--format", "csv"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - begin_s, done.stdout.splitlines()


def part_of(files: list[str], minutes: list[str]) -> list[dict[str, Any]]:
    """What a worker of Dask does: accounts of a part of the nodes."""
    import duckdb

    if not minutes:
        return job_totals._asked(files, ("account",), job_totals._COLUMNS_OF_SEVERAL, "true")
    with duckdb.connect(":memory:") as connection:
        rows = connection.execute(SQL, [minutes, files]).fetchall()
    return [{"account": account, "energy_j": joules} for account, joules, _ in rows]


def by_dask(client: Any, files: list[str], minutes: list[str], workers: int) -> tuple[float, float]:
    """Seconds, and the joules of all accounts."""
    begin_s = time.perf_counter()
    of_node = [Path(file).parent.parent.name for file in files]
    nodes = sorted(set(of_node))
    shares = [set(nodes[i::workers]) for i in range(workers)]
    futures = [
        client.submit(
            part_of,
            [file for file, node in zip(files, of_node, strict=True) if node in share],
            [file for file in minutes if Path(file).stem in share],
            pure=False,
        )
        for share in shares
    ]
    total_j = sum(row["energy_j"] for future in futures for row in future.result())
    return time.perf_counter() - begin_s, total_j


def month(folder: Path, nodes: int, n_days: int, devices: int) -> None:
    import duckdb
    from dask.distributed import Client, LocalCluster

    begin_s = time.perf_counter()
    make_month(folder / "nodes", nodes, n_days)
    files = job_totals.job_files([str(folder / "nodes")])
    size_mb = sum(Path(file).stat().st_size for file in files) * 1e-6
    print(f"  {len(files)} files of jobs, {size_mb:.0f} MB, made in {time.perf_counter() - begin_s:.0f} s")
    for by in ("account", "user,week", "job"):
        took = [asked(str(folder / "nodes"), "--by", by) for _ in range(3)]
        print(f"  joules jobs --by {by:10s} {min(t for t, _ in took):6.2f} s, {len(took[0][1]) - 1} rows")
    begin_s = time.perf_counter()
    count = make_minutes(folder / "minutes", nodes, n_days, devices)
    minutes = sorted(map(str, (folder / "minutes").iterdir()))
    size_mb = sum(Path(file).stat().st_size for file in minutes) * 1e-6
    print(f"  {count * 1e-6:.1f} M device-minutes, {size_mb:.0f} MB, made in {time.perf_counter() - begin_s:.0f} s")
    for _ in range(2):
        begin_s = time.perf_counter()
        with duckdb.connect(":memory:") as connection:
            rows = connection.execute(SQL, [minutes, files]).fetchall()
        took_s = time.perf_counter() - begin_s
    print(f"  DuckDB, device-minutes by account: {took_s:.2f} s, {len(rows)} rows")
    cluster = LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    with cluster, Client(cluster) as client:
        for what, own in (("files of jobs", []), ("device-minutes", minutes)):
            took_by_dask = [by_dask(client, files, own, 4) for _ in range(3)]
            print(f"  Dask, 4 workers, {what} by account: {min(t for t, _ in took_by_dask):.2f} s")


def main() -> int:
    given = options(__doc__, parts=["cost", "bytes", "month"], seconds=60.0, nodes=1000, days=30, devices=2, folder="")
    print(machine())
    missed = False
    with tempfile.TemporaryDirectory(dir=given.folder or None) as name:
        folder = Path(name)
        if "cost" in given.parts:
            print("powerd-accounting beside 8 GPUs (50 readings a second each) and 16 rails (1,000 each)")
            for block_ms in (20.0, 200.0):
                share, megabytes = cost(given.seconds, block_ms, folder / f"cost{block_ms:.0f}")
                missed |= share > TARGET_CPU or megabytes > TARGET_MB
            for block_ms in (20.0, 200.0):
                share, megabytes = cost_of_export(given.seconds, block_ms)
                missed |= share > TARGET_CPU or megabytes > TARGET_MB
            publishing(folder / "cost20")
        if "bytes" in given.parts:
            print("a day of a node: 8 GPUs, 2 devices of 8 rails each")
            missed |= day_bytes(folder) > TARGET_MONTH_MB
        if "month" in given.parts:
            print(f"{given.nodes} nodes, {given.days} days")
            month(folder, given.nodes, given.days, given.devices)
            shutil.rmtree(folder / "nodes")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
