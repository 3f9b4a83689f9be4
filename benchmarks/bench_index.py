"""Indexing a campaign on one core, on all, and by Dask; and a query over an index of 100,000 runs.

The run files are whole ones of a training at three batch sizes, eight of them made and the rest copies with ids of
their own. The ways of running take turns, and the fastest of each counts; CPU time says what they cost where others
use the machine as well. The index of many runs has the rows of the small one again and again under other names, its
figures off by 1 % each. The query, a group-by over the phases of all, is timed with opening the index, and as a command
in a process of its own.

Target: the command takes at most 1 s. Exit status 1 when it is missed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import h5py
import numpy as np
from common import HERE, cpu_seconds, machine, options, progress

sys.path.insert(0, str(HERE.parent / "tests" / "analytics" / "support"))

SQL = """SELECT device_name, batch_size, phase, count(*) AS n, avg(j_per_batch) AS j, stddev(j_per_batch) AS s
FROM phases GROUP BY ALL ORDER BY ALL"""
TARGET_S = 1.0


def make_files(folder: Path, count: int) -> int:
    """Run files in ``folder``, 12 iterations a training in each; returns the bytes of one."""
    from make_campaign import one_run

    originals = [
        one_run(folder / f"{i}.h5", 1 + 0.1 * i, (64, 128, 256), 12, device_name=f"card{i % 4}", seed=i)
        for i in range(min(8, count))
    ]
    for i in range(len(originals), count):
        copy = folder / f"{i}.h5"
        shutil.copyfile(originals[i % len(originals)], copy)
        with h5py.File(copy, "r+") as file:
            file.attrs["run_id"] = f"copy{i}"
        progress(f"{i} of {count} run files made")
    return originals[0].stat().st_size


def cpu_s() -> float:
    """CPU time of this process, of all below it that live, and of its children that have ended."""
    return cpu_seconds(os.getpid()) + sum(os.times()[2:4])


def index_speeds(folder: Path, count: int, turns: int) -> None:
    from dask.distributed import LocalCluster

    from powerd_analytics.frame.index import cores, index_runs

    n = cores()
    ways: dict[str, dict[str, object]] = {"one core": {"jobs": 1}, f"{n} processes": {"jobs": n}}
    seconds, cpu = defaultdict(list), defaultdict(list)
    with LocalCluster(n_workers=n, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        ways[f"Dask, {n} workers"] = {"scheduler": cluster.scheduler_address}
        for turn in range(turns):
            for name, options in ways.items():
                progress(f"{name}, turn {turn + 1}")
                begin, before = time.perf_counter(), cpu_s()
                report = index_runs(folder, again=True, **options)  # type: ignore[arg-type]
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(cpu_s() - before)
                assert (report.read, report.failed) == (count, ()), report
    progress("")
    first = min(seconds["one core"])
    for name, took in seconds.items():
        print(
            f"  {name:20s} {count / min(took):8.1f} files/s   {first / min(took):5.2f} times one core"
            f"   {1000 * min(cpu[name]) / count:5.1f} ms CPU a file"
        )
    begin = time.perf_counter()
    assert index_runs(folder).read == 0
    print(f"  nothing changed      {time.perf_counter() - begin:8.3f} s for {count} files")


def replicate(index: Path, out: Path, runs: int) -> int:
    """An index with the rows of another under ``runs`` names; returns its rows."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from powerd_analytics.frame.index import ROW_GROUP

    table = pq.read_table(index)
    names = table.filter(pc.field("kind") == "file")["path"].to_pylist()
    parts, rng = [], np.random.default_rng(0)
    for turn in range(-(-runs // len(names))):
        part = table.filter(pc.is_in(table["path"], pa.array(names[: runs - turn * len(names)])))
        for i, field in enumerate(table.schema):
            if field.name == "path":
                part = part.set_column(i, field, pc.binary_join_element_wise(f"{turn:05d}", part["path"], "/"))
            elif field.type == pa.float64() and field.name != "batch_size":  # else they would compress as no figures do
                factor = pa.array(rng.normal(1, 0.01, len(part)))
                part = part.set_column(i, field, pc.multiply(part[field.name], factor))
        parts.append(part)
    whole = pa.concat_tables(parts)
    pq.write_table(whole, out, compression="zstd", row_group_size=ROW_GROUP)
    return len(whole)


def query_speeds(index: Path, rows: int, runs: int, repeats: int) -> bool:
    """Print them; whether the command meets the target."""
    from powerd_analytics.frame.index import query

    print(f"a query over {runs} indexed runs ({rows} rows, {index.stat().st_size / 1e6:.1f} MB), median of {repeats}")
    command = [sys.executable, "-m", "powerd_analytics", "query", index, SQL]
    ways = {
        "in this process": lambda: query(index, SQL),
        "joules query, a new process": lambda: subprocess.run(command, check=True, capture_output=True),
    }
    medians = {}
    for name, ask in ways.items():
        times = []
        for turn in range(repeats):
            progress(f"{name}, turn {turn + 1}")
            begin = time.perf_counter()
            ask()
            times.append(time.perf_counter() - begin)
        medians[name] = median(times)
    progress("")
    for name, taken in medians.items():
        print(f"  {name:28s} {taken:6.3f} s")
    print(f"  target {TARGET_S:g} s: {'met' if taken <= TARGET_S else 'MISSED'}")
    return taken <= TARGET_S


def main() -> int:
    args = options(__doc__, files=1000, runs=100_000, turns=2, repeats=15)
    print(machine(), f"load {os.getloadavg()[0]:.1f}", sep=", ")
    with tempfile.TemporaryDirectory(prefix="bench-index-") as name:
        folder, many = Path(name) / "runs", Path(name) / "many.parquet"
        folder.mkdir()
        size = make_files(folder, args.files)
        print(f"indexing {args.files} run files of {size / 1e3:.0f} kB, the fastest of {args.turns} turns")
        index_speeds(folder, args.files, args.turns)
        rows = replicate(folder / "index.parquet", many, args.runs)
        return 0 if query_speeds(many, rows, args.runs, args.repeats) else 1


if __name__ == "__main__":
    sys.exit(main())
