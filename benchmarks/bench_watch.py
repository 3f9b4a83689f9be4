"""What `Meter.watch` costs a training in time: on a GPU, without one on the processor; trainings that wait for the host
and those that do not.

Rounds with and without the watch follow each other in one process, in turns, so that slow drifts of the machine cancel;
the figure is the median of the pairs' ratios with its 95 % interval, and beside it stands the same with a second round
without a watch in the watch's place, which shows what the machine alone makes of it, and what `torch.profiler` costs.
On a GPU three kinds of watch are compared: device events in as many iterations as the watch itself decides
(`device="auto"`), in all of them (`device="cuda"`), and none (`device="host"`).

Target: at most 0.5 % where an iteration takes 5 ms or more, 10 us below. Exit status 1 when the watch of the default
misses it by more than its interval.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from common import HERE, free_port, machine, median_interval, options, progress
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from powerd_client import Meter

sys.path.insert(0, str(HERE.parent / "examples"))
from models import resnet50

TARGET, TARGET_S, SHORT_S = 0.005, 10e-6, 5e-3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SETTLES = 100
"""Iterations after which the watch has decided which of them have device events."""


def mlp(width: int = 192, layers: int = 3) -> nn.Module:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts)


class Training:
    """One iteration of a training on random numbers."""

    def __init__(self, model: nn.Module, *shape: int, half: bool = False, way: str = "") -> None:
        self.watched = self.model = model.to(DEVICE)
        self.x = torch.randn(*shape, device=DEVICE)
        self.half = half
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        if way == "ddp":
            self.watched = self.model = DistributedDataParallel(self.model)
        elif way:
            self.model = torch.compile(self.model, **({} if way == "compile" else {"mode": "reduce-overhead"}))  # type: ignore[assignment]
            self.watched = self.model

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16) if self.half else nullcontext():
            loss = self.model(self.x).float().square().mean()
        loss.backward()
        self.optimizer.step()

    def seconds(self, steps: int) -> float:
        """An iteration's, over so many of them."""
        _wait()
        begun = time.perf_counter()
        for _ in range(steps):
            self.step()
        _wait()
        return (time.perf_counter() - begun) / steps


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


CASES: dict[str, Callable[[], Training]] = {
    "MLP, batch 64": lambda: Training(mlp(), 64, 192),
    "MLP of 24 layers, batch 64": lambda: Training(mlp(layers=24), 64, 192),
}
ON_GPU: dict[str, Callable[[], Training]] = {
    "ResNet-50 bf16, batch 32": lambda: Training(resnet50(), 32, 3, 224, 224, half=True),
    "ResNet-50 fp32, batch 64": lambda: Training(resnet50(), 64, 3, 224, 224),
    "ResNet-50 bf16, batch 256": lambda: Training(resnet50(), 256, 3, 224, 224, half=True),
    "MLP of 24 layers, compiled": lambda: Training(mlp(layers=24), 64, 192, way="compile"),
    "MLP of 24 layers, CUDA graphs": lambda: Training(mlp(layers=24), 64, 192, way="reduce-overhead"),
}
ON_PROCESSOR: dict[str, Callable[[], Training]] = {
    "MLP, batch 64, DDP of two": lambda: Training(mlp(), 64, 192, way="ddp"),
    "ResNet-50, 2 x 3 x 64 x 64": lambda: Training(resnet50(), 2, 3, 64, 64),
}


def pairs(training: Training, watch: Callable[[], AbstractContextManager[Any]], rounds: int, round_s: float) -> tuple[
    list[float], float
]:  # fmt: skip
    """What an iteration takes more in rounds with ``watch`` than in their neighbours, as shares; and what it takes
    without, in seconds."""
    with watch():
        training.seconds(SETTLES)
    steps = max(3, int(round_s / training.seconds(3)))
    shares, plain = [], []
    for number in range(rounds):
        took = {}
        for is_watched in (number % 2 == 0, number % 2 == 1):
            with watch() if is_watched else nullcontext():
                training.step()
                took[is_watched] = training.seconds(steps)
        shares.append(took[True] / took[False] - 1)
        plain.append(took[False])
    return shares, median_interval(plain)[0]


def show(name: str, how: str, shares: list[float], iteration_s: float) -> bool:
    """Whether the target is met, or may be."""
    middle, low, high = median_interval(shares)
    target = max(TARGET, TARGET_S / iteration_s) if iteration_s < SHORT_S else TARGET
    verdict = "met" if middle <= target else "missed" if low > target else "not told"
    print(
        f"  {name:31} {iteration_s * 1e3:8.3f} ms  {how:20} {middle:+7.2%} ({low:+.2%} .. {high:+.2%})"
        f" {middle * iteration_s * 1e6:+8.0f} us  {verdict}",
        flush=True,
    )
    return low <= target


def measure(name: str, make: Callable[[], Training], rounds: int, round_s: float, *, layers: bool) -> bool:
    training = make()
    training.seconds(20)
    shares, iteration_s = pairs(training, nullcontext, rounds, round_s)
    show(name, "nothing", shares, iteration_s)
    shares, iteration_s = pairs(training, torch.profiler.profile, max(4, rounds // 4), round_s)
    show(name, "torch.profiler", shares, iteration_s)
    kinds = ("auto", "cuda", "host") if DEVICE.type == "cuda" else ("host",)
    ways = [(kind, False) for kind in kinds] + ([(kinds[0], True)] if layers else [])
    is_met = True
    for kind, with_layers in ways:
        progress(f"{name}: {kind}")
        with (
            tempfile.TemporaryDirectory() as directory,
            Meter(out=Path(directory) / "run.h5", device=kind, quiet=True) as meter,  # type: ignore[arg-type]
        ):
            shares, iteration_s = pairs(
                training,
                lambda m=meter, own=with_layers: m.watch(training.watched, training.optimizer, layers=own),
                rounds,
                round_s,
            )
            remark = meter._timer._sampling.remark if meter._timer and meter._timer._sampling else ""
        progress("")
        met = show(name, f"watch, {kind}" + ", layers" * with_layers, shares, iteration_s)
        is_met = is_met and (met or kind != kinds[0] or with_layers)
        if remark:
            print(f"      {remark}")
    return is_met


def main() -> int:
    args = options(__doc__, rounds=20, round_s=0.4, cases=[""], layers=False)
    if DEVICE.type == "cpu":
        torch.set_num_threads(1)  # a second thread waits for whatever else runs here
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    on = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "the processor"
    print(f"What watch() costs a training on {on} ({machine()}, PyTorch {torch.__version__})")
    cases = {**CASES, **(ON_GPU if DEVICE.type == "cuda" else ON_PROCESSOR)}
    is_met = True
    for name, make in cases.items():
        if not any(part in name for part in args.cases):
            continue
        if "DDP" in name:
            is_met &= _in_ranks(name, args)
        else:
            is_met &= measure(name, make, args.rounds, args.round_s, layers=args.layers or "MLP, batch" in name)
    return 0 if is_met else 1


def _in_ranks(name: str, args: Any) -> bool:
    """A case in two processes by gloo; the first one's figures."""
    context = torch.multiprocessing.start_processes(
        _rank, (name, args.rounds, args.round_s, free_port()), nprocs=2, join=False, start_method="spawn"
    )
    while not context.join():
        pass
    return True


def _rank(rank: int, name: str, rounds: int, round_s: float, port: int) -> None:
    torch.set_num_threads(1)
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):  # two processes of one training, and no launcher's ranks
        os.environ.pop(variable, None)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    training = ON_PROCESSOR[name]()
    training.seconds(20)
    steps = max(3, int(round_s / training.seconds(20)))
    agreed = torch.tensor([steps])
    torch.distributed.broadcast(agreed, 0)
    with tempfile.TemporaryDirectory() as directory, Meter(out=Path(directory) / "run.h5", quiet=True) as meter:
        for communication in (False, True):
            shares, plain = [], []
            for number in range(rounds):
                took = {}
                for is_watched in (number % 2 == 0, number % 2 == 1):
                    watch = meter.watch(training.watched, training.optimizer, communication=communication)
                    if not is_watched:
                        watch.remove()
                    took[is_watched] = training.seconds(int(agreed))
                    watch.remove()
                shares.append(took[True] / took[False] - 1)
                plain.append(took[False])
            if rank == 0:
                how = "watch, with comm." if communication else "watch, without comm."
                show(name, how, shares, median_interval(plain)[0])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
