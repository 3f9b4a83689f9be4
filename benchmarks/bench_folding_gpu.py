"""Folded joules of phases on a real GPU against the same work done alone for seconds.

Two or three loads of steady power (matrix products, copies, waiting) take turns as the phases of an iteration, too
short for the driver's readings to see one alone. Each load also runs alone before and after, for seconds, which any
sensor can measure: its power then, times the phase's duration, is what a phase should take. Both come from the same
readings, so the sensor's gain, the largest part of a stated interval, cancels; therefore the error is also held against
the interval less its gain and zero. What the two runs of a load differ by, and an iteration from its loads alone, says
how steady the loads themselves are.

Needs CUDA. Target: every number inside its U95. Exit status 1 when one is not.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from bench_device import say
from common import machine

from powerd_analytics import phase_table, read_run
from powerd_analytics.table import FOLDED, PhaseRow
from powerd_client import Meter

CASES = (
    {"products": 22.3, "copies": 51.3},
    {"products": 12.1, "waits": 17.4},
    {"copies": 31.7, "waits": 10.9, "products": 18.2},
    {"products": 5.3, "waits": 6.1},
)
"""Milliseconds of each load in an iteration: what no reading sees alone, and in the last case not even folding."""
SENSOR_PARTS = ("gain", "offset", "quantisation")
"""Parts that a load alone and in turns have in common."""


@dataclass(frozen=True, slots=True)
class Load:
    """Something that is queued in small pieces. ``ms`` is how long one takes."""

    piece: Callable[[], object]
    ms: float

    def queue(self, milliseconds: float) -> None:
        for _ in range(max(1, round(milliseconds / self.ms))):
            self.piece()


def loads_of_gpu() -> dict[str, Load]:
    """Products stay in fp32, which leaves the power below the card's limit, so clocks stay."""
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    product = torch.empty_like(a)
    source = torch.randn(1 << 26, device="cuda")
    target = torch.empty_like(source)
    pieces: dict[str, Callable[[], object]] = {
        "products": lambda: torch.mm(a, b, out=product),
        "copies": lambda: target.copy_(source),
        "waits": lambda: torch.cuda._sleep(400_000),
    }
    return {name: Load(piece, ms_of(piece)) for name, piece in pieces.items()}


def ms_of(piece: Callable[[], object], count: int = 2000) -> float:
    """On a GPU whose clocks have risen."""
    for _ in range(count):
        piece()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        piece()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def title_of(case: dict[str, float]) -> str:
    return " + ".join(f"{name} {ms:g}" for name, ms in case.items())


def measure(path: Path, alone_s: float, turns_s: float) -> None:
    """Write the run file: each load alone, all cases in turns, each load alone again."""
    loads = loads_of_gpu()
    say("  one piece: " + ", ".join(f"{name} {load.ms:.3f} ms" for name, load in loads.items()))
    with Meter(out=path) as meter:
        for turn in ("before", "after"):
            for name, load in loads.items():
                with meter.phase("training", model=f"alone {turn}", load=name):
                    with meter.phase("settling"):  # power comes to its level
                        load.queue(500)
                    with meter.phase("steady"):
                        load.queue(1e3 * alone_s)
                    torch.cuda.synchronize()
            for case in CASES if turn == "before" else ():
                with meter.phase("training", model=title_of(case)):
                    for _ in range(math.ceil(1e3 * turns_s / sum(case.values()))):
                        with meter.phase("iteration"):
                            for name, ms in case.items():
                                with meter.phase(name):
                                    loads[name].queue(ms)
                    torch.cuda.synchronize()
        time.sleep(0.5)  # readings behind the last moment that is asked for


def u95_without_sensor(row: PhaseRow) -> float:
    """U95 of a folded row less gain, zero and rounding, which both ways of measuring have in common."""
    assert row.u95_j is not None
    if row.method != FOLDED or row.u_statistical_j is None or row.u_systematic_j is None:
        return row.u95_j
    u = math.hypot(row.u_statistical_j, row.u_systematic_j)
    shared = sum(part**2 for name, part in row.folded_parts_j if name in SENSOR_PARTS)
    return row.u95_j * math.sqrt(max(0.0, u * u - shared)) / u


def judge(path: Path) -> bool:
    """Print each phase's figures; whether all numbers lie inside their interval.

    An iteration takes up to a few per cent less than its loads alone, as chip and memory are cooler; all its phases are
    taken to have that in common.
    """
    rows = [r for r in phase_table(read_run(path)).phases if r.device.startswith("gpu")]
    steady_w: dict[str, list[float]] = {}
    for row in rows:
        if row.phase == "steady" and row.power_w is not None:
            steady_w.setdefault(str(row.group["load"]), []).append(row.power_w)
    for name, watts in steady_w.items():
        say(f"  alone, {name:9} before and after {' and '.join(f'{w:.1f}' for w in watts)} W")
    inside = inside_less = numbers = 0
    for case in CASES:
        say(f"  in turns, {title_of(case)} ms")
        of_case = {r.phase: r for r in rows if r.group.get("model") == title_of(case)}
        alone_j = {name: statistics.mean(steady_w[name]) * (of_case[name].s_per_batch or 0.0) for name in case}
        iteration_j = of_case["iteration"].j_per_batch
        common = 1.0 if iteration_j is None else iteration_j / sum(alone_j.values())
        say(f"    an iteration takes {common - 1:+.2%} of its loads alone, {sum(alone_j.values()):.3f} J")
        for name in case:
            row, expected_j = of_case[name], common * alone_j[name]
            text = f"    {name:9} {1e3 * (row.s_per_batch or 0.0):6.2f} ms, by the load alone {expected_j:7.3f} J"
            if row.j_per_batch is None or row.u95_j is None:
                say(f"{text}; {row.note}")
                continue
            off, less = row.j_per_batch - expected_j, u95_without_sensor(row)
            numbers, inside, inside_less = (
                numbers + 1,
                inside + (abs(off) <= row.u95_j),
                inside_less + (abs(off) <= less),
            )
            say(
                f"{text}, {row.method} {row.j_per_batch:7.3f} ± {row.u95_j:.3f} J, off by {off:+.3f} J = "
                f"{off / alone_j[name]:+.1%}: {'inside' if abs(off) <= row.u95_j else 'OUTSIDE'}; "
                f"{'inside' if abs(off) <= less else 'outside'} ± {less:.3f} J, the same less gain and zero"
            )
    say(f"  {inside} of {numbers} numbers lie inside their interval, {inside_less} in that less gain and zero")
    return inside == numbers > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each case in turns")
    parser.add_argument("--alone", type=float, default=3.0, help="seconds of each load alone, before and after")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        say("folded phases on a GPU: no CUDA here, nothing was measured")
        return 0
    name = torch.cuda.get_device_name()
    say(f"folded phases against loads alone: one {name} ({machine()}, PyTorch {torch.__version__})")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.h5"
        measure(path, args.alone, args.seconds)
        return 0 if judge(path) else 1


if __name__ == "__main__":
    sys.exit(main())
