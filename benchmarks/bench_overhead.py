"""How much a busy pure-Python loop in the training process slows down while 8 lines x 1 kHz are received.

One run is recorded all the time. Its powerd, sampler and recorder are stopped and continued in turn, half a second
each, and the loop's rate is compared between neighbouring halves, so that slow drifts of the machine cancel. The first
tenth of a second after each switch is not counted: there the continued processes catch up.

Target: less than 1 %.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

from common import descendants, machine, powerd, progress

from powerd_client import Meter

SETTLE_S, ROUND_S = 0.1, 0.4
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    pairs = parser.parse_args().pairs
    ratios = []
    with tempfile.TemporaryDirectory() as directory, powerd(SOURCE) as (url, pid):
        out = Path(directory) / "run.h5"
        with Meter(url, out):
            others = [pid, *descendants(pid), *descendants(os.getpid())]
            others = [p for p in dict.fromkeys(others) if p != os.getpid()]
            loop(1.0)
            for pair in range(pairs):
                progress(f"pair {pair + 1} of {pairs}")
                rate = {}
                for recording in (pair % 2 == 0, pair % 2 == 1):
                    for process in others:
                        os.kill(process, signal.SIGCONT if recording else signal.SIGSTOP)
                    loop(SETTLE_S)
                    rate[recording] = loop(ROUND_S)
                ratios.append(rate[False] / rate[True])
            for process in others:
                os.kill(process, signal.SIGCONT)
            time.sleep(0.5)
    progress("")
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=pairs)) for _ in range(2000))
    print(f"Slow-down of a pure-Python loop while 8 lines x 1 kHz are recorded ({machine()})")
    print(f"  recording / everything stopped, {pairs} pairs of {ROUND_S} s in one process:")
    print(
        f"  {statistics.median(ratios) - 1:+.2%} "
        f"(median; 95 % interval {medians[50] - 1:+.2%} .. {medians[1949] - 1:+.2%})"
    )


if __name__ == "__main__":
    main()
