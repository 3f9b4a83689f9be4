"""What the control helper costs: at rest, and a training while a lease is held.

The helper sets knobs of a simulated GPU. A pure-Python loop runs in turns with and without a lease; the ratio of its
speeds is what the lease costs. The helper's CPU time and memory are read from /proc.

    python benchmarks/bench_control.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import TICKS, machine, options

from powerd_client.knobs.control import Hold

CHILD = "POWERD_BENCH_CONTROL"


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int, name: str) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name}:")) / 1024


def helper_pid() -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if b"powerd_control" in words and os.environ["POWERD_CONTROL"].encode() in words:
            return int(path.parent.name)
    raise SystemExit("the helper does not run")


def loops_per_s(seconds: float) -> float:
    count, end = 0, time.perf_counter() + seconds
    begin = time.process_time()
    while time.perf_counter() < end:
        for _ in range(1000):
            count += 1
    return count / (time.process_time() - begin)


def measure(rest_s: float, turns: int, turn_s: float) -> None:
    pid = helper_pid()
    before_s = cpu_s(pid)
    time.sleep(rest_s)
    used = (cpu_s(pid) - before_s) / rest_s
    print(f"helper at rest for {rest_s:g} s: {100 * used:.3f} % of a core (target 0.1)")
    own, resident = memory_mib(pid, "Pss"), memory_mib(pid, "Rss")
    print(f"its memory: {own:.1f} MiB its own share, {resident:.1f} MiB resident (target 20)")
    ratios = []
    before_s, begin_s = cpu_s(pid), time.monotonic()
    for turn in range(turns):
        rates = {}
        for is_held in (False, True) if turn % 2 else (True, False):
            if is_held:
                with Hold({"power_cap_w": 200.0}, settle_s=0.0):
                    rates[True] = loops_per_s(turn_s)
            else:
                rates[False] = loops_per_s(turn_s)
        ratios.append(rates[False] / rates[True] - 1)
    mean, spread = statistics.fmean(ratios), statistics.stdev(ratios)
    half = 2.1 * spread / len(ratios) ** 0.5
    print(f"a loop while a lease is held, in {turns} turns: {100 * mean:+.2f} % of CPU time (± {100 * half:.2f}, 95 %)")
    share = (cpu_s(pid) - before_s) / (time.monotonic() - begin_s)
    print(f"the helper meanwhile: {100 * share:.2f} % of a core")


def main() -> int:
    arguments = options(__doc__, rest=60.0, turns=20, turn=3.0)
    if CHILD in os.environ:
        measure(arguments.rest, arguments.turns, arguments.turn)
        return 0
    print(machine())
    command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--", sys.executable, *sys.argv]
    return subprocess.run(command, env={**os.environ, CHILD: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
