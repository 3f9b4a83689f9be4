"""Joules of phases from many readings: time of the integral in memory, and memory of each command on a run file.

    python benchmarks/bench_integration.py [--memory 1e8]
    python benchmarks/bench_integration.py --commands 1e8 [--phases-every 10]

1. 10^8 readings in memory, 10^6 phases, against a bare `numpy.cumsum` over the same readings, a loop of
   `numpy.trapezoid` (on 1000 of the phases, scaled), and pandas: cumsum of the steps and `Index.searchsorted`, then an
   interpolation at each edge. Each in a process of its own, which tells its peak memory.
2. With --commands only this: seconds and peak memory of each `joules` command on files of so many readings, which are
   written to a temporary directory and removed.

Targets: at most 3 times `numpy.cumsum`, 5 times with the model (which works on two slices at once), and 2 GiB of
memory. Exit status 1 when one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import numpy as np
from common import descendants, machine, progress

PERIOD_NS = 2_000_000
CHUNK = 1 << 18
READINGS_A_PHASE = 100
LIMIT_MIB = 2048


# --- A run file of any length, written in seconds: what repeats from chunk to chunk is compressed once


def phase_edges(n: int, m: int) -> np.ndarray:
    """Edges [m + 1] of m phases back to back, their durations within 10 %, over n readings."""
    rng = np.random.default_rng(1)
    edges = np.concatenate([[0.0], np.cumsum(1 + 0.1 * (rng.random(m) - 0.5))])
    return (edges * ((n - 1) * PERIOD_NS / edges[-1])).astype(np.int64)


def make_file(path: Path, n: int, m: int, shape: str = "training") -> None:
    """A run file with a line of power, and one of a clock with a tenth of its readings.

    ``shape`` says how the phases lie: all within one ``training``; the ``layers`` of one forward pass; or outermost,
    with ``gaps`` of a fifth of their time between them.
    """
    import h5py

    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        f.attrs.update(
            {
                "format": "powerd-run", "format_version": 1, "run_id": "bench", "created_utc": "", "powerd_version": "",
                "host_clock": "CLOCK_MONOTONIC_RAW", "t_start_ns": 0, "t_stop_ns": n * PERIOD_NS, "complete": 1,
                "rebuilt": 0, "command": "[]", "environment": "{}",
            }
        )  # fmt: skip
        at = np.arange(CHUNK)
        power = {"kind": "scaled", "column": "power_mw", "w_per_code": 0.01}
        codes = (15_000 + 10_000 * ((at // 37) % 2) + 100 * (at % 11)).astype(np.uint16)
        write_line(f, "gpu0.sim", n, PERIOD_NS, "power_w", power, codes)
        clock = {"kind": "quantity", "column": "mhz", "quantity": "clock_hz", "per_code": 1e6}
        write_line(f, "gpu0.sm_clock", n // 10, 10 * PERIOD_NS, "clock_hz", clock, (1400 + at % 40).astype(np.uint16))
        f.create_group("devices/gpu0").attrs.update({"feeds": np.array(["gpu0.sim"], object), "description": ""})
        write_phases(f, phase_edges(n, m), shape)
        f.create_group("clocks")
        gaps = f.create_group("gaps")
        for name in ("begin_ns", "end_ns", "lost"):
            gaps[name] = np.zeros(0, np.int64)
        for name in ("stream", "lines", "cause"):
            gaps.create_dataset(name, (0,), h5py.string_dtype())
        f.create_dataset("processes", data=['{"pid": 1}'], dtype=h5py.string_dtype())
        f.create_dataset("messages", (0,), h5py.string_dtype())


def write_line(
    f: Any, name: str, n: int, period_ns: int, quantity: str, conversion: dict[str, object], codes: np.ndarray
) -> None:
    """A line whose codes repeat from chunk to chunk; no two of its times are as far apart as the next."""
    line = f.create_group(f"lines/{name}")
    line.attrs.update(
        {
            "device": "gpu0", "source": "sim", "board": "b", "provenance": "simulated", "quantity": quantity,
            "description": "", "period_ns": period_ns, "detail": "{}", "clock": "",
            "conversion": json.dumps(conversion),
            "accuracy": json.dumps({"window_ns": 1_060_000, "centre_ns": 100_000}),
        }
    )  # fmt: skip
    repeated = {
        str(conversion["column"]): codes,
        "flags": np.zeros(CHUNK, np.uint16),
        "t_board_ns": np.zeros(CHUNK, int),
    }
    for column, values in repeated.items():
        chunk = values[:n]
        dataset = line.create_dataset(
            column, (n,), chunk.dtype, chunks=chunk.shape, compression="gzip", compression_opts=1
        )
        packed = zlib.compress(chunk.tobytes(), 1)
        for i in range(0, n, CHUNK):
            dataset.id.write_direct_chunk((i,), packed)
    t_ns = line.create_dataset("t_ns", (n,), np.int64, chunks=(min(CHUNK, n),))
    jitter = np.random.default_rng(0).integers(-50_000, 50_000, CHUNK)
    for i in range(0, n, CHUNK):
        k = min(CHUNK, n - i)
        t_ns[i : i + k] = np.arange(i, i + k, dtype=np.int64) * period_ns + jitter[:k]
        progress(f"writing {i / n:.0%} of {n:.0e} readings")


def write_phases(f: Any, edges: np.ndarray, shape: str) -> None:
    """Forward, backward, update in turn, or three layers; one phase around all but where there are gaps."""
    import h5py

    g, m, has_gaps = f.create_group("phases"), len(edges) - 1, shape == "gaps"
    gap_ns = (0.2 * np.diff(edges)).astype(np.int64) if has_gaps else 0
    columns = {
        "begin_ns": np.concatenate([edges[:1], edges[:-1]]),
        "end_ns": np.concatenate([edges[-1:], edges[1:] - gap_ns]),
        "kind": np.concatenate([[0], 1 + np.arange(m) % 3]).astype(np.int32),
        "parent": np.concatenate([[-1], np.full(m, -1 if has_gaps else 0, np.int64)]),
        "process": np.zeros(m + 1, np.int32),
        "cut": np.zeros(m + 1, np.uint8),
    }
    for name, values in columns.items():
        kept = values[1:] if has_gaps else values
        g.create_dataset(name, data=kept, chunks=(min(CHUNK, len(kept)),), compression="gzip", compression_opts=1)
    kinds: list[tuple[str, dict[str, str]]] = [("training", {}), *((k, {}) for k in "fbu")]
    if shape == "layers":
        kinds = [("forward", {}), *(("layer", {"layer": k}) for k in "fbu")]
    documents = [json.dumps({"name": name, "attributes": a, "timing": "host"}) for name, a in kinds]
    g.create_dataset("kinds", data=documents, dtype=h5py.string_dtype())


@contextmanager
def run_file(n: int, m: int, shape: str = "training") -> Iterator[Path | None]:
    """A run file alone in a temporary folder; None, which is said, where there is no room for it and one like it."""
    with tempfile.TemporaryDirectory(prefix="bench-integration-") as folder:
        need, free = 20 * n, shutil.disk_usage(folder).free
        if need > free:
            print(f"{n:10.0e}  left out: needs {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free in {folder}")
            yield None
            return
        path = Path(folder) / "run.h5"
        make_file(path, n, m, shape)
        progress("")
        yield path


# --- Ways to integrate, each in a process of its own


def peak_mib() -> float:
    return getrusage(RUSAGE_SELF).ru_maxrss / 1024


Integrate = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], float]
"""Joules of all phases together, from times, watts, begins and ends."""


def by_cumsum(t: np.ndarray, watts: np.ndarray, begin: np.ndarray, end: np.ndarray) -> float:
    """No integral at all: what only adding the readings up takes."""
    return float(np.cumsum(watts)[-1]) * PERIOD_NS * 1e-9


def by_powerd(t: np.ndarray, watts: np.ndarray, begin: np.ndarray, end: np.ndarray) -> float:
    from powerd_client.signals.integral import energy_j

    return float(energy_j(t, watts, begin, end).sum())


def by_model(t: np.ndarray, watts: np.ndarray, begin: np.ndarray, end: np.ndarray) -> float:
    """What the tables take: the fit of one model of the power, and with it the integral of each phase, in slices."""
    from powerd_analytics.energy.lines import upto
    from powerd_analytics.energy.regression import fit_line
    from powerd_analytics.energy.states import States
    from powerd_analytics.runs.phases import PhaseClass, Phases, moments_of
    from powerd_analytics.runs.signals import SLICE
    from powerd_client.signals.signal import RunLine, Signal
    from powerd_core.model import Accuracy, Provenance, ScaledConversion

    class InSlices(Signal):
        """Readings in memory that are looked at as those in a file are."""

        @contextmanager
        def slices(self) -> Iterator[Callable[[int], Signal]]:
            def piece(i: int) -> Signal:
                own = slice(max(i * SLICE - 64, 0), (i + 1) * SLICE + 64)
                count = len(t[own]) - 1
                return signal_of(Signal, own, np.zeros(count, bool), np.zeros(0, np.int64))

            yield piece

    accuracy = Accuracy(window_ns=1_060_000, centre_ns=100_000)
    line = RunLine(
        "gpu0.sim", "gpu0", "sim", "b", Provenance.SIMULATED, "power_w", "", PERIOD_NS,
        ScaledConversion("power_mw", 0.01), accuracy, {}, "", len(t),
    )  # fmt: skip

    def signal_of(kind: type[Signal], own: slice, none: np.ndarray, cuts_ns: np.ndarray) -> Signal:
        return kind(
            line, t[own], watts[own], False, none, none, PERIOD_NS, accuracy.window_ns, accuracy.centre_ns, 0, None,
            range_w=(100.0, 260.0), cuts_ns=cuts_ns,
        )  # fmt: skip

    m = len(begin)
    label, outermost, zeros = (np.arange(m) % 3).astype(np.int32), np.full(m, -1, np.int32), np.zeros(m, np.int32)
    kinds = tuple(PhaseClass((name,), {}, "host") for name in ("forward", "backward", "update"))
    phases = Phases(begin, end, label, outermost, zeros, zeros, zeros.astype(bool), kinds, zeros, zeros)
    # Like a line in a file: the whole has its first and its last reading only.
    signal = signal_of(InSlices, slice(0, len(t), len(t) - 1), np.zeros(1, bool), t[SLICE:-1:SLICE])
    moments = moments_of(begin, end)
    joules = upto(fit_line(signal, States.of(phases), 0.0).model, moments).energy_j
    at_begin, at_end = np.searchsorted(moments, begin), np.searchsorted(moments, end)
    return float((joules[at_end] - joules[at_begin]).sum())


def by_trapezoid(t: np.ndarray, watts: np.ndarray, begin: np.ndarray, end: np.ndarray) -> float:
    """A loop over the phases: their readings, and the interpolated power at their edges."""
    joules = 0.0
    for b, e in zip(begin.tolist(), end.tolist(), strict=True):
        first, last = np.searchsorted(t, [b, e])
        around = slice(max(first - 1, 0), last + 1)
        at = np.concatenate([[b], t[first:last], [e]])
        joules += float(np.trapezoid(np.interp(at - b, t[around] - b, watts[around]), at * 1e-9))
    return joules


def by_pandas(t: np.ndarray, watts: np.ndarray, begin: np.ndarray, end: np.ndarray) -> float:
    import pandas as pd

    power = pd.Series(watts, index=pd.Index(t), copy=False)
    steps = (power + power.shift()) * 0.5e-9 * pd.Series(t, index=power.index).diff()
    total = steps.fillna(0.0).cumsum()

    def upto(moment: np.ndarray) -> np.ndarray:
        i = np.clip(power.index.searchsorted(moment, "right") - 1, 0, len(t) - 2)
        share = (moment - t[i]) / (t[i + 1] - t[i])
        mean_w = watts[i] + 0.5 * share * (watts[i + 1] - watts[i])
        return total.to_numpy()[i] + (moment - t[i]) * 1e-9 * mean_w

    return float((upto(end) - upto(begin)).sum())


WAYS: dict[str, Integrate] = {
    "numpy.cumsum": by_cumsum,
    "powerd": by_powerd,
    "powerd, with its model": by_model,
    "loop of trapezoid (scaled)": by_trapezoid,
    "pandas cumsum, searchsorted": by_pandas,
}


def from_memory(way: str, n: int, m: int) -> dict[str, float]:
    """Seconds, the best of three (of the loop once, for 1000 of the phases), MiB and joules of a way."""
    t = np.arange(n, dtype=np.int64) * PERIOD_NS
    t += np.tile(np.random.default_rng(0).integers(-50_000, 50_000, 1 << 16), n // (1 << 16) + 1)[:n]
    watts = np.empty(n)
    for i in range(0, n, 1 << 20):
        at = np.arange(i, min(i + (1 << 20), n))
        watts[i : i + (1 << 20)] = 150 + 100 * ((at // 37) % 2) + (at % 11)
    edges = phase_edges(n, m)
    chosen = np.linspace(0, m - 1, 1000).astype(int) if WAYS[way] is by_trapezoid else np.arange(m)
    begin, end = edges[:-1][chosen], edges[1:][chosen]
    before_mib, times, joules = peak_mib(), [], 0.0
    for _ in range(3 if len(chosen) == m else 1):
        started = time.perf_counter()
        joules = WAYS[way](t, watts, begin, end)
        times.append(time.perf_counter() - started)
    scale = m / len(chosen)
    return {"s": min(times) * scale, "peak_mib": peak_mib(), "before_mib": before_mib, "joules": joules * scale}


def in_process(way: str, n: int, m: int) -> dict[str, float]:
    """The same, measured in a process of its own."""
    command = [sys.executable, __file__, "--child", way, str(n), str(m)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        # A child that was killed for its memory leaves no text.
        raise SystemExit(f"{way} failed with {done.returncode}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout))


def compare_ways(n: int, m: int) -> bool:
    """Print all ways from memory; whether powerd's meets its targets."""
    print(f"\nfrom memory, {n:.0e} readings, {m:.0e} phases")
    results = {way: in_process(way, n, m) for way in WAYS}
    print(f"{'':28s} {'s':>9s} {'x cumsum':>9s} {'peak MiB':>9s} {'of it data':>11s}   joules of all phases")
    for way, r in results.items():
        ratio = r["s"] / results["numpy.cumsum"]["s"]
        print(f"{way:28s} {r['s']:9.3f} {ratio:9.2f} {r['peak_mib']:9.0f} {r['before_mib']:11.0f} {r['joules']:12.9g}")
    is_met = True
    for way, limit in (("powerd", 3.0), ("powerd, with its model", 5.0)):
        ratio, peak_mib = results[way]["s"] / results["numpy.cumsum"]["s"], results[way]["peak_mib"]
        is_met &= ratio <= limit and peak_mib <= LIMIT_MIB
        print(f"{way}: {ratio:.2f} times cumsum (target {limit:g}), {peak_mib:.0f} MiB (target {LIMIT_MIB})")
    return is_met


# --- The commands


COMMANDS = {
    "info": ["info", "RUN"],
    "info --check": [
        "info",
        "--check",
        "RUN",
    ],  # exit status 1: the file has no board times, which would double its size
    "journal recover": ["journal", "recover", "RUN", "-o", "OUT.h5", "--overwrite"],
    "tables": ["tables", "RUN"],
    "tables --table uncertainty": ["tables", "--table", "uncertainty", "RUN"],
    "query": ["query", "FOLDER", "--index", "OUT.parquet", "--jobs", "1"],
    "plot": ["plot", "RUN", "-o", "OUT.png", "--overwrite"],
    "plot --kind power": ["plot", "RUN", "--kind", "power", "-o", "OUT.png", "--overwrite"],
    "plot --kind phases": ["plot", "RUN", "--kind", "phases", "-o", "OUT.png", "--overwrite"],
    "plot --kind quality": ["plot", "RUN", "--kind", "quality", "-o", "OUT.png", "--overwrite"],
    "trace": ["trace", "RUN", "-o", "OUT.json", "--overwrite"],
    "compare": ["compare", "RUN", "TWIN"],
    "report": ["report", "RUN", "-o", "OUT.html", "--overwrite"],
    "tables --table layers, layers": ["tables", "--table", "layers", "RUN"],
    "tables, gaps": ["tables", "RUN"],
    "tables --table uncertainty, gaps": ["tables", "--table", "uncertainty", "RUN"],
    "info --check, gaps": ["info", "--check", "RUN"],
    "trace, gaps": ["trace", "RUN", "-o", "OUT.json", "--overwrite"],
    "report, gaps": ["report", "RUN", "-o", "OUT.html", "--overwrite"],
}
"""RUN is a file with the phases that the name says behind its comma, TWIN the same by another name, alone in FOLDER."""


def compare_commands(n: int, m: int) -> bool:
    """A row a command; whether all stay below the limit of memory."""
    print(f"\n{n:.0e} readings, {m:.0e} phases, {n // 10:.0e} readings of a clock beside them")
    print(f"{'':20s} {'MiB':>6s} {'wall s':>7s} {'CPU s':>7s}  exit")
    is_met = True
    for shape in ("training", "layers", "gaps"):
        with run_file(n, m, shape) as path:
            for name in [x for x in COMMANDS if path and (x.partition(", ")[2] or "training") == shape]:
                mib, text = peak_of(COMMANDS[name], path)
                verdict = f"  ABOVE {LIMIT_MIB} MiB" if mib > LIMIT_MIB else ""
                is_met &= mib <= LIMIT_MIB
                print(f"{name:20s} {mib:6.0f} {text}{verdict}", flush=True)
    return is_met


def own_kib(pid: int) -> int:
    """Memory of a process that is no page of a file; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])
    except (OSError, IndexError):
        return 0


def peak_of(words: list[str], run: Path) -> tuple[float, str]:
    """Peak MiB of a command with all that it starts, without pages of mapped files, which the kernel takes back; then
    its seconds and exit status."""
    with tempfile.TemporaryDirectory(dir=run.parent) as folder:
        twin = Path(folder) / "runs" / "twin.h5"
        twin.parent.mkdir()
        twin.hardlink_to(run)
        paths = {"RUN": str(run), "TWIN": str(twin), "FOLDER": str(twin.parent)}
        words = [paths.get(word, word.replace("OUT", f"{folder}/out")) for word in words]
        command, begin = [sys.executable, "-m", "powerd_analytics", *words], time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak_kib = 0
        while True:
            peak_kib = max(peak_kib, sum(own_kib(pid) for pid in (process.pid, *descendants(process.pid))))
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s, cpu_s = time.perf_counter() - begin, usage.ru_utime + usage.ru_stime
    return peak_kib / 1024, f"{wall_s:7.1f} {cpu_s:7.1f}  {process.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", type=float, default=1e8, help="readings in memory, a phase for every 100")
    parser.add_argument("--commands", type=float, help="memory of commands, at this number of readings")
    parser.add_argument("--phases-every", type=int, default=READINGS_A_PHASE, help="with --commands: readings a phase")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        way, n, m = args.child
        print(json.dumps(from_memory(way, int(n), int(m))))
        return 0
    print(machine())
    if args.commands:
        is_met = compare_commands(int(args.commands), int(args.commands) // args.phases_every)
    else:
        is_met = compare_ways(int(args.memory), int(args.memory) // READINGS_A_PHASE)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
