"""What folding costs, with the linear algebra in one thread, as it is used, and in as many as the library takes.

    python benchmarks/bench_folding_speed.py [--seconds 60] [--turns 3] [--seed 9300]

Runs of `bench_folding.py` (waveform ``as stated``) are folded in turns, first one way, then the other: wall and CPU
seconds of the fastest turn of each, and their ratio. Exit status 1 when the two do not give the same watts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from bench_folding import ITERATIONS, SENSORS, readings
from common import machine, progress
from energy_estimators import MS
from folding_waveforms import draw
from threadpoolctl import threadpool_info

from powerd_analytics.folding.folded import fold
from powerd_analytics.folding.line import fold_line
from powerd_analytics.folding.segments import Phases
from powerd_analytics.signals.signal import Signal

WHICH = ("50/s, mean of 29 ms", "50/s, 29 ms ± 1 ms", "500/s, chip, 1.06 ms ± 0.3")
ROUNDING = 1e-6
"""Of watts: sums of other numbers of threads are rounded otherwise, and the models' weights follow."""


def timed(work: Callable[[], np.ndarray]) -> tuple[float, float, np.ndarray]:
    """Wall and CPU seconds, and what came of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    made = work()
    return time.perf_counter() - wall, time.process_time() - cpu, made


def folded_w(signal: Signal, phases: Phases) -> np.ndarray:
    """[kinds] watts as the package folds; NaN where there is no number."""
    return np.array([f.per_s.energy_j if f.per_s else np.nan for f in fold([signal], phases)])


def with_all_threads_w(signal: Signal, phases: Phases) -> np.ndarray:
    """[kinds] the same without a limit of threads, whether there is a number or not."""
    return np.array([w.watts for w in fold_line(signal, phases)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time of a run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seed", type=int, default=9300)
    args = parser.parse_args()
    threads = max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)
    print(f"Folding {args.seconds:g} s of readings, fastest of {args.turns} turns ({machine()})")
    print(f"{'':42}{'one thread':>18}{f'{threads} threads':>18}   times as long")
    print(f"{'sensor and phases (ms)':42}{'wall s   CPU s':>18}{'wall s   CPU s':>18}     wall    CPU")
    is_same = True
    for s in (s for s in SENSORS if s.name in WHICH):
        for lengths in ITERATIONS[1:4:2]:
            where = f"{s.name}, {'/'.join(f'{x:g}' for x in lengths)}"
            progress(where)
            rng = np.random.default_rng(args.seed)
            begin, end, kind, wave = draw("as stated", lengths, args.seconds, rng, lag_ms=1.0)
            signal, phases = readings(wave, int(end[-1]) + 100 * MS, s, rng), Phases(begin, end, kind, len(lengths))
            best = [(np.inf, np.inf), (np.inf, np.inf)]
            for _ in range(args.turns):
                made = []
                for i, way in enumerate((folded_w, with_all_threads_w)):
                    wall, cpu, watts = timed(lambda way=way, signal=signal, phases=phases: way(signal, phases))
                    best[i] = min(best[i], (wall, cpu))
                    made.append(watts)
                there = np.isfinite(made[0])
                is_same &= bool(np.allclose(made[0][there], made[1][there], rtol=ROUNDING))
            (wall, cpu), (all_wall, all_cpu) = best
            numbers = f"{wall:9.2f}{cpu:9.2f}{all_wall:9.2f}{all_cpu:9.2f}"
            print(f"{where:42}{numbers}{all_wall / wall:9.2f}{all_cpu / cpu:7.2f}")
    print("the same watts" if is_same else "the watts differ")
    return 0 if is_same else 1


if __name__ == "__main__":
    sys.exit(main())
