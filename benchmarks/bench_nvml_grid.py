"""The moments of NVML's power samples: whether their grid is found and kept, and what a change of pace costs.

Works on the stamps that one H200 gave (tests/data/nvml), or on those of this machine's first GPU with `--record FILE`,
which also writes them. A pace that changes is made of such a machine's lateness: each sample is stamped late as the
measured one of the same number was.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import accumulate, pairwise
from pathlib import Path

from common import HERE, machine, progress

from powerd_daemon.sources.nvml_grid import ON_TIME_NS, PERIOD_NS, SampleGrid

MS = 1_000_000
BUFFER = 119
"""Samples in the driver's buffer."""
STEP_NS = 3 * MS
DATA = HERE.parent / "tests/data/nvml/h200_stamps.txt"


def read(path: Path) -> list[int]:
    """Stamps in ns from a file of distances in us."""
    rows = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    return [t * 1000 for t in accumulate(int(word) for row in rows for word in row.split())]


def record(path: Path, seconds: float) -> None:
    """Read the first GPU's buffer every 50 ms, and write the distances of its samples."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    stamps: list[int] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        progress(f"{len(stamps)} samples")
        last_us = stamps[-1] if stamps else 0
        _, found = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_TOTAL_POWER_SAMPLES, last_us)
        stamps += (s.timeStamp for s in found if s.timeStamp * 1000 > last_us * 1000 + STEP_NS)
        time.sleep(0.05)
    path.write_text("\n".join(str(b - a) for a, b in pairwise(stamps)) + "\n")


def learn(stamps: list[int]) -> bool:
    """Learn from the buffer at every moment. Whether all found the same grid."""
    grids = []
    starts = range(0, len(stamps) - BUFFER, 5)
    for i in starts:
        grid = SampleGrid()
        if grid.learn(stamps[i : i + BUFFER]):
            grids.append(grid)
    phases = [(g._moment(0) - grids[0]._moment(0) + PERIOD_NS // 2) % PERIOD_NS - PERIOD_NS // 2 for g in grids]
    spread_ms = (max(phases) - min(phases)) / MS
    found = f"learnt from {len(grids)} of {len(starts)} buffers (target: all)"
    print(f"{found}; grids within {spread_ms:.2f} ms (target: 0.5)")
    return len(grids) == len(starts) and spread_ms < 0.5


def follow(stamps: list[int]) -> bool:
    """Follow the samples as they come. Whether the grid was kept."""
    grid = SampleGrid()
    grid.learn(stamps[:BUFFER])
    told: list[int] = []
    late_ms: list[float] = []
    waiting: list[int] = []
    for stamp in stamps[BUFFER:]:
        waiting.append(stamp)
        found = grid.moments(waiting)
        late_ms += ((t - m) / MS for t, m in zip(waiting, found, strict=False) if m is not None)
        told += (m for m in found if m is not None)
        waiting = waiting[len(found) :]
    at_once = sum(ms <= ON_TIME_NS / MS for ms in late_ms) / max(len(late_ms), 1)
    periods = round((told[-1] - told[0]) / PERIOD_NS) + 1 if told else 0
    print(f"told {len(told)} of {len(stamps) - BUFFER} samples (target: all but the last few)")
    latest_ms = max(late_ms, default=0.0)
    never = f"{periods - len(told)} of {periods} never taken"
    print(f"{at_once:.0%} stamped at once, the latest {latest_ms:.1f} ms late; {never}")
    return grid.is_known and len(stamps) - BUFFER - len(told) <= 10


def change(stamps: list[int], period_ms: float, size: int) -> bool:
    """A pace that changes. Whether it was noticed in time: a faster one by three samples, a slower one in a second."""
    grid = SampleGrid()
    grid.learn(stamps[:BUFFER])
    kept = [(stamp - grid._moment(0)) % PERIOD_NS for stamp in stamps[:BUFFER]]
    first = grid._moment(grid._raw_number(stamps[BUFFER - 1])) + PERIOD_NS
    true = [first + round(i * period_ms * MS) for i in range(300)]
    stamped = [t + kept[i % len(kept)] * (kept[i % len(kept)] < PERIOD_NS - MS) for i, t in enumerate(true)]
    stamped = [max(stamped[: i + 1]) + i for i in range(len(stamped))]
    wrong, worst_ms, noticed_s = 0, 0.0, float("inf")
    waiting: list[tuple[int, int]] = []
    for i in range(0, len(true), size):
        waiting += zip(true[i : i + size], stamped[i : i + size], strict=True)
        found = grid.moments([s for _, s in waiting])
        off_ms = [abs(m - t) / MS for (t, _), m in zip(waiting, found, strict=False) if m is not None]
        wrong += sum(ms > 1 for ms in off_ms)
        worst_ms = max([worst_ms, *off_ms])
        waiting = waiting[len(found) :]
        if not grid.is_known:
            noticed_s = (true[min(i + size, len(true)) - 1] - first) / 1e9
            break
    what = f"noticed after {noticed_s:.2f} s, {wrong} told wrongly, by {worst_ms:.0f} ms"
    print(f"{period_ms:5g} ms, {size:3} read at once: {what}")
    return noticed_s < 1.1 + size * period_ms / 1000 and wrong <= (2 if period_ms < PERIOD_NS / MS else 40)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="stamps of this machine's first GPU")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to record")
    given = parser.parse_args()
    if given.record:
        record(given.record, given.seconds)
    print(machine())
    stamps = read(given.record or DATA)
    good = [learn(stamps), follow(stamps)]
    print("a pace that changes in the middle of a run (targets: at most 2 wrong where it is faster, 40 where slower)")
    good += [change(stamps, period_ms, size) for period_ms in (5, 10, 30, 50) for size in (1, 3, 50)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
