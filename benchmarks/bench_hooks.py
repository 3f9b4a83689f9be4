"""What `Meter.watch` costs in the training process, on the CPU: marks, hooks, layers, iterations, memory.

Each ratio is from pairs of neighbouring rounds of one run, with and without hooks, so that slow drifts of the machine
cancel. Time is the training thread's CPU time: hooks do nothing but compute, and what else the machine does is no part
of it. A recorder runs beside it, as in a real run.

Target: at most 1 % of an iteration for forward, backward and update.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from common import HERE, machine, progress
from torch import nn

from powerd_client import Meter

sys.path.insert(0, str(HERE.parent / "examples"))
from models import resnet50


def anonymous_bytes() -> int:
    """Memory of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval, by resampling."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def compare(
    meter: Meter, step: Callable[[], None], model: nn.Module, optimizer: torch.optim.Optimizer, *,
    layers: bool, rounds: int, steps: int, text: str,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Ratios, and seconds a step more, of watched rounds against the plain ones beside them."""
    ratios, more = [], []
    for number in range(rounds):
        progress(f"{text}: round {number + 1} of {rounds}")
        seconds = {}
        for watched in (number % 2 == 0, number % 2 == 1):
            with meter.watch(model, optimizer, layers=layers) if watched else nullcontext():
                step()
                begin = time.thread_time()
                for _ in range(steps):
                    step()
                seconds[watched] = (time.thread_time() - begin) / steps
        ratios.append(seconds[True] / seconds[False])
        more.append(seconds[True] - seconds[False])
    progress("")
    return ratios, more


def trainer(model: nn.Module, *shape: int) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """One training step of a model on random numbers, and its optimizer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(*shape)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def show_marks(meter: Meter, rounds: int) -> None:
    """A mark, and a watched module's call, without anything else."""
    mark, code, pairs = meter._mark, meter.phase("nothing")._begin, 2000

    def marks() -> None:
        for _ in range(pairs):
            mark(code)
            mark(~code)

    def nothing() -> None:
        for _ in range(pairs):
            pass

    module, x = nn.Identity(), torch.zeros(1)

    def calls() -> None:
        for _ in range(pairs):
            module(x)

    def ns(call: Callable[[], None]) -> float:
        begin = time.thread_time_ns()
        call()
        return (time.thread_time_ns() - begin) / pairs

    one = [(ns(marks) - ns(nothing)) / 2 for _ in range(rounds)]
    plain = [ns(calls) for _ in range(rounds)]
    with meter.watch(module):
        hooked = [ns(calls) for _ in range(rounds)]
    print(f"  one mark                                   {statistics.median(one):8.0f} ns")
    more = statistics.median(hooked) - statistics.median(plain)
    print(f"  forward of a module, two hooks, two marks  {more:8.0f} ns")


def show_memory(meter: Meter, marks: int) -> None:
    """Growth over many marks; their records lie in files, which the recorder takes away."""
    mark, code = meter._mark, meter.phase("nothing")._begin
    mark(code)
    mark(~code)
    before = anonymous_bytes()
    for done in range(0, marks, 2):
        mark(code)
        mark(~code)
        if done % 100_000 == 0:
            progress(f"{done} marks of {marks}")
            time.sleep(0.05)
    progress("")
    grown = (anonymous_bytes() - before) / marks * 1e6
    print(f"  memory for a million marks                 {grown / 1024:8.0f} KiB in the process, 15625 KiB on disk")


def show_growth(meter: Meter, iterations: int) -> None:
    """Memory of a training of very many very small iterations, with every phase and layer marked."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    step, optimizer = trainer(model, 2, 4)
    with meter.watch(model, optimizer, layers=True):
        for _ in range(2000):
            step()
        before, begin = anonymous_bytes(), time.perf_counter()
        for _ in meter.iterations(range(iterations)):
            step()
            if _ % 10_000 == 0:
                progress(f"iteration {_} of {iterations}")
        grown, spent = anonymous_bytes() - before, time.perf_counter() - begin
    progress("")
    print(
        f"  {iterations} tiny iterations, 22 marks each: memory {grown / 1024:+.0f} KiB from the 2000th on, "
        f"{spent / iterations * 1e6:.0f} us an iteration"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of rounds for each ratio")
    parser.add_argument("--iterations", type=int, default=100_000, help="of the training that must not grow")
    parser.add_argument("--batch", type=int, default=2, help="images in ResNet-50's batch")
    parser.add_argument("--size", type=int, default=64, help="their height and width")
    parser.add_argument("--marks", type=int, default=1_000_000, help="for the memory of marks")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a second thread waits for whatever else runs here
    with tempfile.TemporaryDirectory() as directory, Meter(out=Path(directory) / "run.h5") as meter:
        print(f"What watch() costs ({machine()}, PyTorch {torch.__version__}, one thread)")
        show_marks(meter, 50)
        show_memory(meter, args.marks)
        model = resnet50()
        step, optimizer = trainer(model, args.batch, 3, args.size, args.size)
        count = sum(next(m.children(), None) is None for m in model.modules())
        for layers in (False, True):
            text = f"ResNet-50, {count} layers marked" if layers else "ResNet-50, phases marked"
            ratios, more = compare(
                meter, step, model, optimizer, layers=layers, rounds=args.rounds, steps=3, text=text
            )  # fmt: skip
            middle, low, high = interval(ratios)
            print(
                f"  {text:42} {middle - 1:+8.2%}  ({low - 1:+.2%} .. {high - 1:+.2%}) of an iteration "
                f"of {args.batch} x 3 x {args.size} x {args.size}, {statistics.median(more) * 1e6:+.0f} us"
            )
        # The same hooks where there is next to nothing else to do: what they cost, without the noise of the work.
        tiny = nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)])
        step, optimizer = trainer(tiny, 2, 4)
        for layers in (False, True):
            _, more = compare(
                meter, step, tiny, optimizer, layers=layers, rounds=2 * args.rounds, steps=20, text="tiny layers"
            )
            middle, low, high = (1e6 * value for value in interval(more))
            marks = 6 + 4 * count * layers
            print(
                f"  {count} tiny layers, {marks:4} marks                {middle:+8.1f} us an iteration "
                f"({low:+.1f} .. {high:+.1f}): {1e3 * middle / marks:.0f} ns a mark with its hook"
            )
        show_growth(meter, args.iterations)


if __name__ == "__main__":
    main()
