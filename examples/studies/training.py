"""The training of `train.py` with torch: generated pictures, a step, and the loop over epochs with its marks."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from networks import NETWORKS, Network
from operations import OPERATIONS
from torch import Tensor, nn

from powerd_client import Meter

AUXILIARY = 0.3
"""The weight of auxiliary classifiers in the loss."""
COARSE, CONTRAST = 8, 0.2
"""Patterns have so many fields a side, and are so strong against the noise."""


class Pictures:
    """Batches of an epoch, drawn where they are used. Each class is a pattern of its own under noise, so that it can be
    learnt. Each epoch has new pictures; those of a seed are the same in each run."""

    def __init__(self, network: Network, count: int, batch_size: int, seed: int, device: torch.device) -> None:
        self.network, self.count, self.batch_size, self.device = network, count, batch_size, device
        self.generator = torch.Generator(device).manual_seed(seed)
        shape = (network.classes, network.shape[0], COARSE, COARSE)
        self.patterns = CONTRAST * torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for begin in range(0, self.count, self.batch_size):
            size, of = min(self.batch_size, self.count - begin), {"generator": self.generator, "device": self.device}
            noise = torch.randn(size, *self.network.shape, **of)
            labels = torch.randint(self.network.classes, (size,), **of)
            yield noise + nn.functional.interpolate(self.patterns[labels], self.network.shape[1:]), labels


def loss_of(outputs: Tensor | tuple[Tensor, ...], labels: Tensor) -> Tensor:
    first, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = nn.functional.cross_entropy(first, labels)
    for output in auxiliary:
        loss = loss + AUXILIARY * nn.functional.cross_entropy(output, labels)
    return loss


def prepare(options: argparse.Namespace) -> torch.device:
    """The device of this process, with the precision and the algorithm that were asked for."""
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    torch.backends.cudnn.deterministic = options.algorithm == "deterministic"
    torch.backends.cudnn.benchmark = options.algorithm == "benchmark"
    torch.backends.cudnn.enabled = torch.backends.mkldnn.enabled = options.algorithm != "native"
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda", torch.cuda.current_device())


def train(options: argparse.Namespace) -> None:
    """Raises `MemoryError` where a batch does not fit."""
    device = prepare(options)
    try:
        with Meter() as meter:
            Training(options, meter, device).run()
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, torch.cuda.OutOfMemoryError) or "can't allocate memory" in str(error):
            words = f"out of memory: {options.model} with a batch of {options.batch_size} does not fit"
            raise MemoryError(words) from error
        raise
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


class Training:
    def __init__(self, options: argparse.Namespace, meter: Meter, device: torch.device) -> None:
        self.options, self.meter, self.device = options, meter, device
        self.network, self.is_training = NETWORKS[options.model], options.mode == "train"
        self.model = self.network.make(self.network.classes).to(device).train(self.is_training)
        rank = 0
        if options.gpus > 1:
            torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
            rank = torch.distributed.get_rank()
            if self.is_training:
                self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), options.lr, momentum=0.9, weight_decay=5e-4)
        self.images, self.batch_size = options.images // options.gpus, options.batch_size // options.gpus
        self.pictures = self.drawn(self.images, options.seed * options.gpus + rank)
        self.first = rank == 0

    def drawn(self, count: int, seed: int) -> Pictures:
        return Pictures(self.network, count, self.batch_size, seed, self.device)

    def precise(self) -> contextlib.AbstractContextManager[Any]:
        is_half = self.options.precision == "bf16"
        return torch.autocast(self.device.type, torch.bfloat16) if is_half else contextlib.nullcontext()

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Train a batch, or run it. The loss, which nobody waits for."""
        with torch.set_grad_enabled(self.is_training), self.precise():
            loss = loss_of(self.model(images), labels)
        if self.is_training:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.detach()

    def accuracy(self) -> float:
        """Of pictures that are in no training."""
        right = 0
        self.model.eval()
        for images, labels in self.drawn(self.options.validation, -1):
            with torch.no_grad(), self.precise():
                right += int((self.model(images).argmax(1) == labels).sum())
        self.model.train(self.is_training)
        return right / self.options.validation

    def run(self) -> None:
        options, operations = self.options, OPERATIONS[self.options.model]
        attributes = {"model": options.model, "batch_size": self.batch_size, "precision": options.precision}
        attributes |= {"mode": options.mode, "algorithm": options.algorithm}
        attributes |= {"operations_per_sample": operations.paper}
        if self.is_training:
            attributes |= {"operations_executed_per_sample": operations.executed}
        optimizers = [self.optimizer] if self.is_training else []
        with self.meter.watch(self.model, *optimizers, loader=self.pictures, **attributes) as watch:
            if options.warm_up:
                images, labels = next(iter(self.drawn(self.batch_size, options.seed)))
                self.meter.record_kernels(lambda: self.step(images, labels), options.warm_up)
            # Without a backward pass nobody knows what an iteration is: it is marked here.
            self.epochs(watch.loader if self.is_training else self.meter.iterations(self.pictures, **attributes))

    def epochs(self, batches: Any) -> None:
        """All epochs, or those until the target is met, or nothing has been gained for long."""
        options, best, best_epoch = self.options, 0.0, 0
        for epoch in range(1, options.epochs + 1):
            total = torch.zeros((), device=self.device)
            for images, labels in batches:
                total += self.step(images, labels) * len(labels)
            result = {"loss": float(total) / self.images}
            if options.validation:
                result["top1"] = self.accuracy()
            self.meter.result(epoch=epoch, **result)
            self.say(f"epoch {epoch}: " + ", ".join(f"{name} {value:.6g}" for name, value in result.items()))
            if options.target is None:
                continue
            if result["top1"] >= options.target:
                self.meter.result(epochs_to_target=epoch)
                self.say(f"{options.target:g} is reached after {epoch} epochs")
                return
            if result["top1"] > best:
                best, best_epoch = result["top1"], epoch
            if epoch - best_epoch >= options.patience:
                break
        if options.target is not None:
            self.say(f"{options.target:g} was not reached: the best accuracy is {best:.3g}, after {best_epoch} epochs")

    def say(self, text: str) -> None:
        if self.first:
            print(text)
