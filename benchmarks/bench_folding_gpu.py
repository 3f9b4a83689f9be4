"""Folded joules of phases on a real GPU against the same work done alone for seconds.

Two or three loads of steady power (matrix products, copies, waiting) take turns as the phases of an iteration, too
short for the driver's readings to see one alone. Each load also runs alone before and after, for seconds, which any
sensor can measure: its power then, times the phase's duration, is what a phase should take. Both come from the same
readings, so the sensor's gain, the largest part of a stated interval, cancels; therefore the error is also held against
the interval less its gain and zero. What the two runs of a load differ by, and an iteration from its loads alone, says
how steady the loads themselves are.

Needs CUDA, but for `--read FILE`, which judges the run file of an earlier `--out FILE`. `--dry-run` tries everything on
the CPU; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import math
import shutil
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
from powerd_analytics.tables.rows import FOLDED, PhaseRow
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
Queue = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Something that is queued in small pieces. ``ms`` is how long one takes."""

    piece: Queue
    ms: float

    def queue(self, milliseconds: float) -> None:
        for _ in range(max(1, round(milliseconds / self.ms))):
            self.piece()


class Gpu:
    """This machine's GPU. Products stay in fp32, which leaves the power below the card's limit, so clocks stay."""

    name = property(lambda self: f"one {torch.cuda.get_device_name()}")

    def loads(self) -> dict[str, Load]:
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
        product = torch.empty_like(a)
        source = torch.randn(1 << 26, device="cuda")
        target = torch.empty_like(source)
        pieces: dict[str, Queue] = {
            "products": lambda: torch.mm(a, b, out=product),
            "copies": lambda: target.copy_(source),
            "waits": lambda: torch.cuda._sleep(400_000),
        }
        return {name: Load(piece, self.ms_of(piece)) for name, piece in pieces.items()}

    def ms_of(self, piece: Queue, count: int = 2000) -> float:
        """On a GPU whose clocks have risen."""
        for _ in range(count):
            piece()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            piece()
        end.record()
        self.wait()
        return begin.elapsed_time(end) / count

    def wait(self) -> None:
        torch.cuda.synchronize()


class StandIn:
    """Loads of the CPU, to try everything else."""

    name = "stand-ins, nothing is measured"

    def loads(self) -> dict[str, Load]:
        def busy() -> None:
            end = time.perf_counter() + 0.001
            while time.perf_counter() < end:
                pass

        return {"products": Load(busy, 1.0), "copies": Load(busy, 1.0), "waits": Load(lambda: time.sleep(0.001), 1.0)}

    def wait(self) -> None:
        pass


def alone(meter: Meter, machine_: Gpu | StandIn, name: str, load: Load, seconds: float, turn: str) -> None:
    """One load for so long. Its first half second, in which power comes to its level, is a phase of its own."""
    with meter.phase("training", model=f"alone {turn}", load=name):
        with meter.phase("settling"):
            load.queue(500)
        with meter.phase("steady"):
            load.queue(1e3 * seconds)
        machine_.wait()


def in_turns(
    meter: Meter, machine_: Gpu | StandIn, loads: dict[str, Load], case: dict[str, float], seconds: float
) -> None:
    """Iterations of the case's loads for so long."""
    with meter.phase("training", model=title_of(case)):
        for _ in range(math.ceil(1e3 * seconds / sum(case.values()))):
            with meter.phase("iteration"):
                for name, ms in case.items():
                    with meter.phase(name):
                        loads[name].queue(ms)
        machine_.wait()


def title_of(case: dict[str, float]) -> str:
    return " + ".join(f"{name} {ms:g}" for name, ms in case.items())


def without_sensor(row: PhaseRow) -> float:
    """U95 of a folded row less gain, zero and rounding, which both ways of measuring have in common."""
    assert row.u95_j is not None
    shared = [u for part, u in row.folded_parts_j if part in SENSOR_PARTS]
    assert row.u_statistical_j is not None
    assert row.u_systematic_j is not None
    u = math.hypot(row.u_statistical_j, row.u_systematic_j)
    return row.u95_j * math.sqrt(max(0.0, u * u - sum(s * s for s in shared))) / u


def judge(path: Path, cases: tuple[dict[str, float], ...]) -> tuple[int, int, int]:
    """Print each phase's figures: how many lie inside their interval, how many in that less gain and zero, of how many.

    An iteration takes up to a few per cent less than its loads alone, as chip and memory are cooler; all its phases are
    taken to have that in common.
    """
    table = phase_table(read_run(path))
    rows = [r for r in table.phases if r.device.startswith("gpu")] or list(table.phases)
    steady: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.phase == "steady" and row.power_w is not None:
            steady.setdefault(str(row.group["load"]), {})[str(row.group["model"])] = row.power_w
    for name, watts in steady.items():
        say(f"  alone, {name:9} " + ", ".join(f"{turn.removeprefix('alone ')} {w:.1f} W" for turn, w in watts.items()))
    found = [judge_case(case, [r for r in rows if r.group.get("model") == title_of(case)], steady) for case in cases]
    inside, bare, numbers = (sum(column) for column in zip(*found, strict=True))
    return inside, bare, numbers


def judge_case(
    case: dict[str, float], rows: list[PhaseRow], steady: dict[str, dict[str, float]]
) -> tuple[int, int, int]:
    """The phases of one case."""
    say(f"  in turns, {title_of(case)} ms")
    phases = [(r, statistics.mean(steady[r.phase].values()) * (r.s_per_batch or 0.0)) for r in rows if r.phase in case]
    iteration = next(r for r in rows if r.phase == "iteration")
    alone_j = sum(expected for _, expected in phases)
    common = 1.0 if iteration.j_per_batch is None else iteration.j_per_batch / alone_j
    say(f"    an iteration takes {100 * (common - 1):+.2f} % of its loads alone, {alone_j:.3f} J")
    inside = bare = numbers = 0
    for row, expected in phases:
        text = (
            f"    {row.phase:9} {1e3 * (row.s_per_batch or 0.0):6.2f} ms, by the load alone {common * expected:7.3f} J"
        )
        if row.j_per_batch is None or row.u95_j is None:
            say(f"{text}; {row.note}")
            continue
        less = without_sensor(row) if row.method == FOLDED else row.u95_j
        off = row.j_per_batch - common * expected
        numbers, inside, bare = numbers + 1, inside + (abs(off) <= row.u95_j), bare + (abs(off) <= less)
        say(
            f"{text}, {row.method} {row.j_per_batch:7.3f} ± {row.u95_j:.3f} J, off by {off:+.3f} J = "
            f"{100 * off / expected:+.1f} %: {'inside' if abs(off) <= row.u95_j else 'OUTSIDE'}; "
            f"{'inside' if abs(off) <= less else 'outside'} ± {less:.3f} J, the same less gain and zero"
        )
    return inside, bare, numbers


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each case in turns")
    parser.add_argument("--alone", type=float, default=3.0, help="seconds of each load alone, before and after")
    parser.add_argument("--out", type=Path, metavar="FILE", help="keep the run file there")
    parser.add_argument("--read", type=Path, metavar="FILE", help="judge this run file, measure nothing")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, with stand-ins; its figures mean nothing")
    return parser.parse_args()


def measure(machine_: Gpu | StandIn, path: Path, alone_s: float, turns_s: float) -> None:
    """Write the run file: each load alone, all cases in turns, each load alone again."""
    loads = machine_.loads()
    say("  one piece: " + ", ".join(f"{name} {load.ms:.3f} ms" for name, load in loads.items()))
    with Meter(out=path) as meter:
        for turn in ("before", "after"):
            for name, load in loads.items():
                say(f"  {name} alone, {turn}")
                alone(meter, machine_, name, load, alone_s, turn)
            for case in CASES if turn == "before" else ():
                say(f"  in turns: {title_of(case)}")
                in_turns(meter, machine_, loads, case, turns_s)
        time.sleep(0.5)  # readings behind the last moment that is asked for


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as directory:
        path = args.read or Path(directory) / "run.h5"
        if not args.read:
            if not args.dry_run and not torch.cuda.is_available():
                print("folded phases on a GPU: no CUDA here, nothing was measured")
                return
            machine_ = StandIn() if args.dry_run else Gpu()
            say(f"folded phases against loads alone: {machine_.name} ({machine()}, PyTorch {torch.__version__})")
            measure(machine_, path, args.alone, args.seconds)
            if args.out is not None:
                shutil.copy(path, args.out)
        inside, bare, numbers = judge(path, CASES)
    say(f"  {inside} of {numbers} numbers lie inside their interval, {bare} in that less gain and zero")
    sys.exit(0 if inside == numbers and numbers else 1)


if __name__ == "__main__":
    main()
