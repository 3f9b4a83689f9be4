"""How much a busy pure-Python loop in the training process slows down while 8 lines x 1 kHz are received.

One run is recorded all the time. Its powerd, sampler and recorder are stopped and continued in turn, half a second
each, and the loop's rate is compared between neighbouring halves, so that slow drifts of the machine cancel. The first
tenth of a second after each switch is not counted: there the continued processes catch up. Then the same with
`joules top` beside it, which alone is stopped and continued.

Target: less than 1 %. Exit status 1 when it is missed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import descendants, machine, median_interval, options, powerd, progress

from powerd_client import Meter

SETTLE_S, ROUND_S = 0.1, 0.4
TARGET = 0.01
SOURCE = '[[source]]\nkind = "ready_blocks:ReadyBlocks"\nname = "rails"\nrate_hz = 1000.0\n'


def loop(seconds: float) -> float:
    """Iterations a second of a loop that does nothing but Python."""
    end = time.perf_counter() + seconds
    done, x, begun = 0, 0, time.perf_counter()
    while time.perf_counter() < end:
        for i in range(10_000):
            x = (x * 31 + i) & 0xFFFF
        done += 10_000
    return done / (time.perf_counter() - begun)


def ratios(pairs: int, others: Sequence[int], what: str) -> list[float]:
    """The loop's rate while ``others`` are stopped over its rate while they run, for neighbouring halves."""
    ratio = []
    for pair in range(pairs):
        progress(f"{what}: pair {pair + 1} of {pairs}")
        rate = {}
        for is_running in (pair % 2 == 0, pair % 2 == 1):
            for process in others:
                os.kill(process, signal.SIGCONT if is_running else signal.SIGSTOP)
            loop(SETTLE_S)
            rate[is_running] = loop(ROUND_S)
        ratio.append(rate[False] / rate[True])
    for process in others:
        os.kill(process, signal.SIGCONT)
    progress("")
    return ratio


def show(what: str, values: list[float]) -> bool:
    """Print the slow-down; whether it meets the target."""
    middle, low, high = (x - 1 for x in median_interval(values))
    verdict = "met" if middle < TARGET else "MISSED"
    print(f"  {what}, {len(values)} pairs of {ROUND_S} s in one process:")
    print(f"  {middle:+.2%} (median; 95 % interval {low:+.2%} .. {high:+.2%}); target {TARGET:.0%}: {verdict}")
    return middle < TARGET


def main() -> int:
    args = options(__doc__, pairs=100)
    with tempfile.TemporaryDirectory() as directory, powerd(SOURCE) as (url, pid):
        out = Path(directory) / "run.h5"
        with Meter(url, out):
            others = [pid, *descendants(pid), *descendants(os.getpid())]
            others = [p for p in dict.fromkeys(others) if p != os.getpid()]
            loop(1.0)
            recorded = ratios(args.pairs, others, "recording")
            command = [sys.executable, "-P", "-m", "powerd_analytics", "top", url, "--run", str(out)]
            command += ["--format", "json"]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as top:
                loop(3.0)
                if top.poll() is not None:
                    raise SystemExit(f"`joules top` ended with {top.returncode}")
                watched = ratios(args.pairs, [top.pid], "joules top")
                top.terminate()
            time.sleep(0.5)
    print(f"Slow-down of a pure-Python loop while 8 lines x 1 kHz are recorded ({machine()})")
    is_met = show("recording / everything stopped", recorded)
    is_met &= show("recording and `joules top` / recording, `joules top` stopped", watched)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
