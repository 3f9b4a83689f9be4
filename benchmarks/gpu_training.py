"""One training that is timed in several ways: plain, with powerd's phases, with its hooks, with Zeus's windows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from common import HERE
from gpu_zeus import Windows
from torch import nn

from powerd_client import Meter

sys.path.insert(0, str(HERE.parent / "examples"))
from models import MODELS, synthetic_batch

PHASES = ("forward", "backward", "update")
UNTIMED = 2
"""Steps before those that are timed: the first one under new hooks makes their events and kinds."""

Step = Callable[[], None]


@dataclass(slots=True)
class Training:
    """A model with its optimizer and one batch on ``device``."""

    name: str
    batch: int
    device: torch.device
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    images: torch.Tensor = field(init=False)
    labels: torch.Tensor = field(init=False)
    loss_of: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        self.model = MODELS[self.name][0]().to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images, self.labels = synthetic_batch(self.name, self.batch, self.device)
        self.loss_of = nn.CrossEntropyLoss()

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def plain(self) -> None:
        """One iteration with nothing in it."""
        loss = self.loss_of(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def phased(self, meter: Meter) -> Step:
        """One iteration in ``iteration``, ``forward``, ``backward``, ``update``: eight marks."""
        iteration = meter.phase("iteration")
        forward, backward, update = (meter.phase(p) for p in PHASES)

        def step() -> None:
            with iteration:
                with forward:
                    loss = self.loss_of(self.model(self.images), self.labels)
                with backward:
                    loss.backward()
                with update:
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)

        return step

    def windowed(self, windows: Windows) -> Step:
        """One iteration with Zeus's windows around the same three phases, as its documentation shows them."""
        begin, end = windows.begin, windows.end

        def step() -> None:
            begin("forward")
            loss = self.loss_of(self.model(self.images), self.labels)
            end("forward")
            begin("backward")
            loss.backward()
            end("backward")
            begin("update")
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            end("update")

        return step

    def ms_per_step(self, step: Step, count: int) -> float:
        """Mean of ``count`` steps, from an idle device to an idle device."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(count):
            step()
        self.wait()
        return (time.perf_counter() - begin) / count * 1e3

    def count_for(self, step: Step, milliseconds: float, least: int = 5) -> int:
        """How many steps take about that long."""
        return max(least, round(milliseconds / self.ms_per_step(step, least)))

    def warm_up(self, seconds: float) -> None:
        """Let libraries choose their kernels, and clocks and temperature rise."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.ms_per_step(self.plain, 5)


@contextmanager
def marked(meter: Meter, training: Training, mode: str) -> Iterator[Step]:
    """The step of a mode, inside a phase that names model, batch size and mode, with its hooks."""
    step = training.phased(meter) if mode in ("phases", "energy") else training.plain
    with meter.phase("training", model=training.name, batch_size=training.batch, mode=mode):
        if mode in ("watch", "layers"):
            with meter.watch(training.model, training.optimizer, layers=mode == "layers"):
                yield step
        else:
            yield step
        training.wait()
