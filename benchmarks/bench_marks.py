"""What a pair of marks costs in the training process, beside other ways of marking a phase, in one run; and how long a
run of a minute with 75,000 phases takes to close, its result included.

Targets: at most 2 us median for a begin/end pair (aim: under 1 us), and less than a second to close, unless a line says
what is done. Exit status 1 when the first is missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import timeit
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

import torch
from common import machine

from powerd_client import Meter

PAIRS, ROUNDS = 1000, 300
TARGET_NS = 2000
PHASES, LENGTH_S, CLOSE_S = 75_000, 60.0, 1.0
CALLS = {
    "empty loop": "pass",
    "with forward:  (kept phase object)": "with forward: pass",
    'with meter.phase("forward"):': 'with meter.phase("forward"): pass',
    'meter.begin("forward"); meter.end("forward")': 'meter.begin("forward"); meter.end("forward")',
    "@contextmanager with perf_counter_ns into a list": 'with timed(store, "forward"): pass',
    "torch.profiler.record_function, profiler off": 'with torch.profiler.record_function("forward"): pass',
}


@contextmanager
def timed(store: list[tuple[str, int, int]], name: str):
    begin = perf_counter_ns()
    yield
    store.append((name, begin, perf_counter_ns()))


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, Meter(out=Path(directory) / "run.h5") as meter:
        names = {"meter": meter, "forward": meter.phase("forward"), "timed": timed, "store": [], "torch": torch}
        # Nanoseconds of one pair, as the mean over PAIRS of them, ROUNDS times.
        results = {
            name: [1e9 * s / PAIRS for s in timeit.repeat(call, repeat=ROUNDS, number=PAIRS, globals=names)]
            for name, call in CALLS.items()
        }
        print(f"A pair of marks, {ROUNDS} rounds of {PAIRS} ({machine()})")
        empty = statistics.median(results["empty loop"])
        ours = statistics.median(results['with meter.phase("forward"):']) - empty
        for name, means in results.items():
            middle, p99 = statistics.median(means) - empty, statistics.quantiles(means, n=100)[98] - empty
            print(f"  {name:50} median {middle:7.0f} ns   p99 {p99:7.0f} ns   {middle / ours:6.2f} x")
        print(f"  target: {ours:.0f} of {TARGET_NS} ns: {'met' if ours <= TARGET_NS else 'MISSED'}")
    close_s = closing()
    print(f"Closing a run of {LENGTH_S:g} s with {PHASES} phases: {close_s:.2f} s (target {CLOSE_S:g} s)")
    return 0 if ours <= TARGET_NS else 1


def closing() -> float:
    """Seconds that `Meter.close` takes after iterations of three phases each, spread evenly."""
    iterations = PHASES // 4
    with tempfile.TemporaryDirectory() as directory:
        meter = Meter(out=Path(directory) / "run.h5")
        begin_s = time.monotonic()
        for i in range(iterations):
            time.sleep(max(0.0, begin_s + i * LENGTH_S / iterations - time.monotonic()))
            with meter.phase("iteration"):
                for name in ("forward", "backward", "update"):
                    with meter.phase(name):
                        pass
        close_s = time.monotonic()
        meter.close()
        return time.monotonic() - close_s


if __name__ == "__main__":
    sys.exit(main())
