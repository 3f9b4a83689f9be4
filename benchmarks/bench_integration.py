"""Joules of phases from many readings: time and memory, from memory and from a run file on disk.

    python benchmarks/bench_integration.py [--largest 1e8 | --full] [--table 1e7]
    python benchmarks/bench_integration.py --commands [1e7 1e8] [--phases-every 10] [--jobs 8]

1. From memory: 10^8 readings, 10^6 phases, against a bare `numpy.cumsum` over the same readings, a loop of
   `numpy.trapezoid` (on 1000 of the phases, scaled), and pandas: cumsum of the steps and `Index.searchsorted`, then an
   interpolation at each edge. Each in a process of its own, which tells its peak memory.
2. From disk: a run file with one line of 10^7, 10^8 (and with --full 10^9) readings and a phase for every 100 of
   them, read in pieces by `Sweep`. It is written to a temporary directory and removed.
3. `joules tables` of such a file, which reads it in slices; with --table the number of readings.
4. With --commands only this: the peak memory of each command on files of one or more sizes, with a phase for every
   --phases-every readings (`integration_commands.py`).
   Times are of this run: where other things run beside it, CPU seconds say more than those on the wall.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from common import machine, progress
from integration_commands import COMMANDS, compare_sizes
from integration_file import PERIOD_NS, make_file, phases_of

READINGS_A_PHASE = 100
IN_MEMORY = ("cumsum", "powerd", "trapezoid", "pandas")


class Peak(threading.Thread):
    """The process's peak memory, without the pages of mapped files, which the kernel takes back when it needs them:
    opening a run file looks through all of it once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib = 0.0

    def run(self) -> None:
        while True:
            self.look()
            time.sleep(0.01)

    def look(self) -> float:
        status = Path("/proc/self/status").read_text()
        self.mib = max(self.mib, int(status.split("RssAnon:")[1].split()[0]) / 1024)
        return self.mib


PEAK = Peak()


def in_memory(n: int) -> tuple[np.ndarray, np.ndarray]:
    t = np.arange(n, dtype=np.int64) * PERIOD_NS
    t += np.tile(np.random.default_rng(0).integers(-50_000, 50_000, 1 << 16), n // (1 << 16) + 1)[:n]
    watts = np.empty(n)
    for i in range(0, n, 1 << 20):
        at = np.arange(i, min(i + (1 << 20), n))
        watts[i : i + (1 << 20)] = 150 + 100 * ((at // 37) % 2) + (at % 11)
    return t, watts


def child(how: str, n: int, m: int) -> dict[str, float]:
    """Runs in a process of its own."""
    t, watts = in_memory(n)
    edges = phases_of(n, m)
    begin, end = edges[:-1], edges[1:]
    before_mib = PEAK.look()
    times, joules = [], 0.0
    for _ in range(3 if how in ("cumsum", "powerd") else 1):
        at = time.perf_counter()
        if how == "cumsum":
            joules = float(np.cumsum(watts)[-1]) * PERIOD_NS * 1e-9
        elif how == "powerd":
            from powerd_analytics.signals.integral import energy_j

            joules = float(energy_j(t, watts, begin, end).sum())
        elif how == "trapezoid":
            some = np.linspace(0, m - 1, 1000).astype(int)
            joules = sum(trapezoid(t, watts, int(begin[i]), int(end[i])) for i in some) * m / len(some)
        else:
            joules = by_pandas(t, watts, begin, end)
        times.append(time.perf_counter() - at)
    scale = m / 1000 if how == "trapezoid" else 1.0
    return {"s": min(times) * scale, "peak_mib": PEAK.look(), "before_mib": before_mib, "joules": joules}


def trapezoid(t: np.ndarray, watts: np.ndarray, begin: int, end: int) -> float:
    """One phase as a loop would do it: its readings, and the interpolated power at its edges."""
    first, last = np.searchsorted(t, [begin, end])
    around = slice(max(first - 1, 0), last + 1)
    at = np.concatenate([[begin], t[first:last], [end]])
    power = np.interp(at - begin, t[around] - begin, watts[around])
    return float(np.trapezoid(power, at * 1e-9))


def by_pandas(t: np.ndarray, watts: np.ndarray, begin: np.ndarray, end: np.ndarray) -> float:
    import pandas as pd

    power = pd.Series(watts, index=pd.Index(t), copy=False)
    steps = (power + power.shift()) * 0.5e-9 * pd.Series(t, index=power.index).diff()
    total = steps.fillna(0.0).cumsum()

    def upto(moment: np.ndarray) -> np.ndarray:
        i = np.clip(power.index.searchsorted(moment, "right") - 1, 0, len(t) - 2)
        into = (moment - t[i]) * 1e-9
        share = (moment - t[i]) / (t[i + 1] - t[i])
        return total.to_numpy()[i] + into * (watts[i] + 0.5 * share * (watts[i + 1] - watts[i]))

    return float((upto(end) - upto(begin)).sum())


def in_process(*words: str) -> dict[str, float]:
    """This benchmark's answer to ``words`` in a process of its own."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        # A child that was killed for its memory leaves no text.
        raise SystemExit(f"{' '.join(words)} failed with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def sweep_file(path: Path) -> dict[str, float]:
    """All phases of the file by one sweep over its readings."""
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.signals.slices import SLICE
    from powerd_analytics.signals.sweep import Sweep

    run = read_run(path)
    begin = time.perf_counter()
    edges = np.append(run.phases.begin_ns[1:], run.phases.end_ns[-1])
    sweep = Sweep(edges)
    with run.reader("gpu0.sim") as reader:
        for i in range(0, run.lines["gpu0.sim"].count, SLICE):
            part = reader.values(("power_mw",), i, i + SLICE)
            sweep.add(part.t_ns, part.codes["power_mw"] * 0.01)
    at = np.arange(len(edges) - 1)
    joules = sweep.between(at, at + 1)
    return {"s": time.perf_counter() - begin, "peak_mib": PEAK.look(), "joules": float(joules.sum())}


def table_of_file(path: Path) -> dict[str, float]:
    from powerd_analytics.runs.run import read_run
    from powerd_analytics.tables.table import phase_table

    begin = time.perf_counter()
    run = read_run(path)
    read_s = time.perf_counter() - begin
    read_mib = PEAK.look()
    rows = {r.phase: r for r in phase_table(run).phases}
    return {
        "s": time.perf_counter() - begin,
        "read_s": read_s,
        "read_mib": read_mib,
        "peak_mib": PEAK.look(),
        "j": rows["f"].j_per_batch or float("nan"),
        "u95": rows["f"].u95_j or float("nan"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=float, default=1e8, help="most readings from disk")
    parser.add_argument("--full", action="store_true", help="10^9 from disk")
    parser.add_argument("--table", type=float, default=1e7, help="readings of the file whose table is made; 0: none")
    parser.add_argument("--only-disk", action="store_true", help="leave the comparison in memory out")
    parser.add_argument("--commands", type=float, nargs="*", help="memory of commands, at these numbers of readings")
    parser.add_argument("--minutes", type=float, default=10.0, help="with --commands: what is not done then is named")
    parser.add_argument("--only", nargs="+", default=[], help="with --commands: these alone, in this order")
    parser.add_argument("--phases-every", type=int, default=READINGS_A_PHASE, help="with --commands: readings a phase")
    parser.add_argument("--jobs", type=int, default=1, help="with --commands: so many side by side")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        PEAK.start()
        how, *rest = args.child
        if how in IN_MEMORY:
            print(json.dumps(child(how, int(rest[0]), int(rest[1]))))
        else:
            print(json.dumps({"sweep": sweep_file, "table": table_of_file}[how](Path(rest[0]))))
        return
    print(machine())
    if args.commands is not None:
        sizes = sorted({int(n) for n in args.commands or (1e7, 1e8)})
        if unknown := sorted(set(args.only) - set(COMMANDS)):
            raise SystemExit(f"--only {unknown[0]!r}: there is {'; '.join(COMMANDS)}")
        compare_sizes(sizes, args.phases_every, args.minutes, args.only, args.jobs)
        return
    if not args.only_disk:
        compare(10**8, 10**6)
    largest = 10**9 if args.full else int(args.largest)
    print("\nfrom disk, a phase for every 100 readings: one sweep over the file")
    print(f"{'readings':>10s} {'s':>8s} {'ns/reading':>11s} {'peak MiB':>9s}  file GB")
    sizes = [n for n in (10**7, 10**8, 10**9) if n <= largest]
    for n in sizes:
        with_file(n, "sweep", report_sweep)
    if args.table:
        print("\n`joules tables`, read in slices, a phase for every 100 readings")
        with_file(int(args.table), "table", report_table)


def compare(n: int, m: int) -> None:
    print(f"\nfrom memory, {n:.0e} readings, {m:.0e} phases")
    found = {how: in_process("--child", how, str(n), str(m)) for how in IN_MEMORY}
    print(f"{'':28s} {'s':>9s} {'x cumsum':>9s} {'peak MiB':>9s} {'of it data':>11s}   joules of all phases")
    said = {"trapezoid": "loop of trapezoid (scaled)", "pandas": "pandas cumsum, searchsorted"}
    for how, r in found.items():
        ratio, joules = r["s"] / found["cumsum"]["s"], f"{r['joules']:.9g}" if how != "cumsum" else ""
        numbers = f"{r['s']:9.3f} {ratio:9.2f} {r['peak_mib']:9.0f} {r['before_mib']:11.0f} {joules:>12s}"
        print(f"{said.get(how, how):28s} {numbers}")
    ratio, peak = found["powerd"]["s"] / found["cumsum"]["s"], found["powerd"]["peak_mib"]
    print(f"within 3 x of cumsum: {'yes' if ratio <= 3 else 'NO'} ({ratio:.2f})")
    print(f"below 2 GiB: {'yes' if peak < 2048 else 'NO'} ({peak / 1024:.2f} GiB)")


def with_file(n: int, how: str, report: object) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-integration-") as directory:
        need, free = 9.2 * n + 20e6, shutil.disk_usage(directory).free
        if need > 0.8 * free:
            print(f"{n:10.0e}  left out: needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {directory}")
            return
        path = Path(directory) / "run.h5"
        make_file(path, n, n // READINGS_A_PHASE)
        progress("")
        report(n, in_process("--child", how, str(path)), os.path.getsize(path))


def report_sweep(n: int, r: dict[str, float], size: int) -> None:
    print(f"{n:10.0e} {r['s']:8.2f} {r['s'] / n * 1e9:11.1f} {r['peak_mib']:9.0f} {size / 1e9:8.1f}", flush=True)


def report_table(n: int, r: dict[str, float], size: int) -> None:
    print(f"{n:.0e} readings, {n // READINGS_A_PHASE:.0e} phases, file of {size / 1e9:.1f} GB: {r['s']:.1f} s,")
    print(f"  of it {r['read_s']:.1f} s to open it; peak {r['peak_mib']:.0f} MiB ({r['read_mib']:.0f} once opened);")
    print(f"  forward {r['j']:.4f} J ± {r['u95']:.4f}", flush=True)


if __name__ == "__main__":
    main()
