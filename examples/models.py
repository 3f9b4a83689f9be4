"""The networks of the examples, so that nothing has to be downloaded: ResNet-34 and -50, AlexNet and a small CNN.

The first three are those whose operations `joules operations` knows by name.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from powerd_analytics.operations.zoo import alexnet, resnet34, resnet50


def small_cnn(classes: int = 10) -> nn.Module:
    """Three convolutions for images of 3 x 32 x 32: each phase of a training step takes milliseconds on a CPU."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.BatchNorm2d(128),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128 * 16, 6144),
        nn.ReLU(inplace=True),
        nn.Linear(6144, classes),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int], int]] = {
    "resnet34": (resnet34, (3, 224, 224), 1000),
    "resnet50": (resnet50, (3, 224, 224), 1000),
    "alexnet": (alexnet, (3, 224, 224), 1000),
    "small-cnn": (small_cnn, (3, 32, 32), 10),
}
"""Constructor, shape of one sample, and number of classes of each network."""


def synthetic_batch(name: str, batch_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random images and labels of the right shape: energy does not depend on what the pictures show."""
    _, shape, classes = MODELS[name]
    return torch.randn(batch_size, *shape, device=device), torch.randint(classes, (batch_size,), device=device)
