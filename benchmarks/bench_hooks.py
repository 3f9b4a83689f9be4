"""What `Meter.watch` costs in the training process, on the CPU: marks, hooks, layers, memory.

Each ratio is from pairs of neighbouring rounds of one run, with and without hooks, so that slow drifts of the machine
cancel. Time is the training thread's CPU time: hooks do nothing but compute, and what else the machine does is no part
of it. A recorder runs beside it, as in a real run.

Target: at most 1 % of an iteration for forward, backward and update. Exit status 1 when it is missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import timeit
from contextlib import nullcontext
from pathlib import Path

import torch
from common import HERE, machine, median_interval, options, progress
from torch import nn

from powerd_client import Meter

sys.path.insert(0, str(HERE.parent / "examples"))
from models import resnet50

TARGET = 0.01


class Trainer:
    """Trains a model on random numbers."""

    def __init__(self, model: nn.Module, *shape: int) -> None:
        self.model, self.x = model, torch.randn(*shape)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.model(self.x).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def pairs(self, meter: Meter, *, layers: bool, rounds: int, steps: int) -> list[tuple[float, float]]:
        """CPU seconds a step with hooks and without them, for neighbouring rounds."""
        pairs = []
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            seconds = {}
            for watched in (number % 2 == 0, number % 2 == 1):
                with meter.watch(self.model, self.optimizer, layers=layers) if watched else nullcontext():
                    self.step()
                    seconds[watched] = timeit.timeit(self.step, timer=time.thread_time, number=steps) / steps
            pairs.append((seconds[True], seconds[False]))
        progress("")
        return pairs


def ns_a_call(statement: str, **names: object) -> float:
    """Nanoseconds of CPU time."""
    times = timeit.repeat(statement, timer=time.thread_time, repeat=50, number=2000, globals=names)
    return statistics.median(times) / 2000 * 1e9


def show_marks(meter: Meter) -> None:
    """A mark, and a watched module's call, without anything else."""
    pair = ns_a_call("mark(code); mark(~code)", mark=meter._mark, code=meter.phase("nothing")._begin)
    print(f"  one mark                                   {pair / 2:8.0f} ns")
    module, x = nn.Identity(), torch.zeros(1)
    plain = ns_a_call("module(x)", module=module, x=x)
    with meter.watch(module):
        watched = ns_a_call("module(x)", module=module, x=x)
    print(f"  forward of a module, two hooks, two marks  {watched - plain:8.0f} ns")


def show_growth(meter: Meter, iterations: int) -> None:
    """Memory of a training of very many very small iterations, with every phase and layer marked."""

    def anonymous_kib() -> int:
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])

    tiny = Trainer(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), 2, 4)
    with meter.watch(tiny.model, tiny.optimizer, layers=True):
        for _ in range(2000):
            tiny.step()
        before, begin = anonymous_kib(), time.perf_counter()
        for _ in meter.iterations(range(iterations)):
            tiny.step()
        grown, spent = anonymous_kib() - before, time.perf_counter() - begin
    print(
        f"  {iterations} tiny iterations, 22 marks each: memory {grown:+d} KiB from the 2000th on, "
        f"{spent / iterations * 1e6:.0f} us an iteration"
    )


def main() -> int:
    args = options(__doc__, rounds=15, iterations=100_000)
    torch.set_num_threads(1)  # a second thread waits for whatever else runs here
    with tempfile.TemporaryDirectory() as directory, Meter(out=Path(directory) / "run.h5") as meter:
        print(f"What watch() costs ({machine()}, PyTorch {torch.__version__}, one thread)")
        show_marks(meter)
        whole = Trainer(resnet50(), 2, 3, 64, 64)
        count = sum(next(m.children(), None) is None for m in whole.model.modules())
        shares = {}
        for layers in (False, True):
            pairs = whole.pairs(meter, layers=layers, rounds=args.rounds, steps=3)
            shares[layers], low, high = median_interval([watched / plain - 1 for watched, plain in pairs])
            text = f"ResNet-50, {count} layers marked" if layers else "ResNet-50, phases marked"
            print(f"  {text:42} {shares[layers]:+8.2%}  ({low:+.2%} .. {high:+.2%}) of an iteration of 2 x 3 x 64 x 64")
        show_growth(meter, args.iterations)
    is_met = shares[False] <= TARGET
    print(f"  target: phases at most {TARGET:.0%} of an iteration: {'met' if is_met else 'MISSED'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
