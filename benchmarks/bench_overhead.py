"""How much a busy pure-Python loop in the training process slows down while 8 lines x 1 kHz are received.

Rounds without and with a recording alternate in one process, in pairs, so that slow drifts of the machine cancel.
Target: less than 1 %.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from common import machine, powerd, progress

from powerd_client import Meter

PAIRS, ROUND_S = 16, 1.5
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
    ratios = []
    with tempfile.TemporaryDirectory() as directory, powerd(SOURCE) as (url, _):
        loop(1.0)
        for pair in range(PAIRS):
            progress(f"pair {pair + 1} of {PAIRS}")
            order = [False, True] if pair % 2 else [True, False]
            rate = {}
            for recording in order:
                if recording:
                    meter = Meter(url, Path(directory) / f"run{pair}.h5")
                    rate[True] = loop(ROUND_S)
                    meter.close()
                else:
                    rate[False] = loop(ROUND_S)
                time.sleep(0.3)
            ratios.append(rate[False] / rate[True])
    progress("")
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=PAIRS)) for _ in range(2000))
    print(f"Slow-down of a pure-Python loop while 8 lines x 1 kHz are recorded ({machine()})")
    print(f"  powerd, sampler and recorder share the machine's other core; {PAIRS} pairs of {ROUND_S} s")
    print(
        f"  recorded / alone: {statistics.median(ratios) - 1:+.2%} "
        f"(95 % interval {medians[50] - 1:+.2%} .. {medians[1949] - 1:+.2%})"
    )


if __name__ == "__main__":
    main()
