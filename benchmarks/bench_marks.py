"""What a pair of marks costs in the training process, beside other ways of marking a phase, in one run.

Target: at most 2 us median for a begin/end pair (aim: under 1 us). Exit status 1 when it is missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import timeit
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

import torch
from common import machine

from powerd_client import Meter

PAIRS, ROUNDS = 1000, 300
TARGET_NS = 2000
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
        return 0 if ours <= TARGET_NS else 1


if __name__ == "__main__":
    sys.exit(main())
