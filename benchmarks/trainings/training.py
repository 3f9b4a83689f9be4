"""A real training whose phases are judged: one model with its optimizer and one batch of random numbers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from common import HERE
from torch import nn

from powerd_client import Meter

sys.path.insert(0, str(HERE.parent / "examples"))
from models import MODELS, synthetic_batch

PHASES = ("forward", "backward", "update")
UNTIMED = 2
"""Steps before those that are timed: the first one under new hooks makes their events and kinds."""
WARM_UP_S = 1.5

Step = Callable[[], None]


def say(text: str) -> None:
    print(text, flush=True)


class Training:
    """A model with its optimizer and one batch on ``device``: of images, or with ``gpt2`` of tokens."""

    def __init__(self, name: str, batch: int, device: torch.device, learning_rate: float = 0.01) -> None:
        self.name, self.batch, self.device = name, batch, device
        self.model: nn.Module
        if name == "gpt2":
            from transformers import GPT2Config, GPT2LMHeadModel

            self.model = GPT2LMHeadModel(GPT2Config()).to(device)
            self.inputs = self.labels = torch.randint(0, 50257, (batch, 1024), device=device)
        else:
            self.model = MODELS[name][0]().to(device)
            self.inputs, self.labels = synthetic_batch(name, batch, device)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate, momentum=0.9)
        self._cross_entropy = nn.CrossEntropyLoss()

    def loss(self) -> torch.Tensor:
        """Forward."""
        if self.name == "gpt2":
            return self.model(self.inputs, labels=self.labels).loss
        return self._cross_entropy(self.model(self.inputs), self.labels)

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def plain(self) -> None:
        """One iteration with nothing in it."""
        self.loss().backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def phased(self, meter: Meter) -> Step:
        """One iteration in ``iteration``, ``forward``, ``backward``, ``update``: eight marks."""
        iteration = meter.phase("iteration")
        forward, backward, update = (meter.phase(p) for p in PHASES)

        def step() -> None:
            with iteration:
                with forward:
                    loss = self.loss()
                with backward:
                    loss.backward()
                with update:
                    self.update()

        return step

    def steps(self, step: Step, count: int) -> None:
        for _ in range(count):
            step()
        self.wait()

    def ms_per_step(self, step: Step, count: int) -> float:
        """Mean of ``count`` steps, from an idle device to an idle device."""
        self.wait()
        begin = time.perf_counter()
        self.steps(step, count)
        return (time.perf_counter() - begin) / count * 1e3

    def count_for(self, step: Step, milliseconds: float, least: int = 5) -> int:
        """How many steps take about that long."""
        return max(least, round(milliseconds / self.ms_per_step(step, least)))

    def warm_up(self, seconds: float) -> None:
        """Let libraries choose their kernels, and clocks and temperature rise."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.steps(self.plain, 5)
