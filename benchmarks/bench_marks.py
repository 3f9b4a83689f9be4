"""What a pair of marks costs in the training process, beside other ways of marking a phase, in one run.

Target: at most 2 us median for a begin/end pair (aim: under 1 us). Exit status 1 when it is missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import torch
from common import machine

from powerd_client import Meter

PAIRS, ROUNDS = 1000, 300
TARGET_NS = 2000


@contextmanager
def _timer(store: list[tuple[str, int, int]], name: str):
    begin = time.perf_counter_ns()
    yield
    store.append((name, begin, time.perf_counter_ns()))


def ns_per_call(call: Callable[[int], None]) -> list[float]:
    """Nanoseconds of one pair, as the mean over `PAIRS` of them, `ROUNDS` times."""
    means = []
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        call(PAIRS)
        means.append((time.perf_counter_ns() - begin) / PAIRS)
    return means


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, Meter(out=Path(directory) / "run.h5") as meter:
        forward = meter.phase("forward")
        store: list[tuple[str, int, int]] = []

        def loop_only(n: int) -> None:
            for _ in range(n):
                pass

        def reused(n: int) -> None:
            for _ in range(n):
                with forward:
                    pass

        def by_name(n: int) -> None:
            for _ in range(n):
                with meter.phase("forward"):
                    pass

        def begin_end(n: int) -> None:
            for _ in range(n):
                meter.begin("forward")
                meter.end("forward")

        def contextmanager_list(n: int) -> None:
            store.clear()
            for _ in range(n):
                with _timer(store, "forward"):
                    pass

        def record_function(n: int) -> None:
            for _ in range(n):
                with torch.profiler.record_function("forward"):
                    pass

        calls = {
            "empty loop": loop_only,
            "with forward:  (kept phase object)": reused,
            'with meter.phase("forward"):': by_name,
            'meter.begin("forward"); meter.end("forward")': begin_end,
            "@contextmanager with perf_counter_ns into a list": contextmanager_list,
            "torch.profiler.record_function, profiler off": record_function,
        }
        print(f"A pair of marks, {ROUNDS} rounds of {PAIRS} ({machine()})")
        results = {name: ns_per_call(call) for name, call in calls.items()}
        empty = statistics.median(results["empty loop"])
        ours = statistics.median(results['with meter.phase("forward"):']) - empty
        for name, means in results.items():
            cut = statistics.quantiles(means, n=100)
            middle = statistics.median(means) - empty
            print(f"  {name:50} median {middle:7.0f} ns   p99 {cut[98] - empty:7.0f} ns   {middle / ours:6.2f} x")
        print(f"  target: {ours:.0f} of {TARGET_NS} ns: {'met' if ours <= TARGET_NS else 'MISSED'}")
        return 0 if ours <= TARGET_NS else 1


if __name__ == "__main__":
    sys.exit(main())
