"""The networks of the examples, so that nothing has to be downloaded: ResNet-34 and -50, AlexNet and a small CNN.

ResNet-34 and -50 after He et al., "Deep Residual Learning for Image Recognition" (2016), table 1; AlexNet after
Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014), the single-column form.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.relu2 = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        made: Tensor = self.relu2(y + self.shortcut(x))
        return made


def resnet34(classes: int = 1000) -> nn.Module:
    """ResNet-34 for images of 3 x 224 x 224: 21.8 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels_in = 64
    for stage, (blocks, channels) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(blocks):
            layers.append(BasicBlock(channels_in, channels, 2 if stage and not block else 1))
            channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, and a shortcut; the stride is the 3x3 convolution's."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(4 * channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.relu2 = nn.ReLU(inplace=True)
        self.relu3 = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, 4 * channels, 1, stride, bias=False), nn.BatchNorm2d(4 * channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu1(self.norm1(self.conv1(x)))
        y = self.norm3(self.conv3(self.relu2(self.norm2(self.conv2(y)))))
        made: Tensor = self.relu3(y + self.shortcut(x))
        return made


def resnet50(classes: int = 1000) -> nn.Module:
    """ResNet-50 for images of 3 x 224 x 224: 25.6 million parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels_in = 64
    for stage, (blocks, channels) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(blocks):
            layers.append(Bottleneck(channels_in, channels, 2 if stage and not block else 1))
            channels_in = 4 * channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def alexnet(classes: int = 1000) -> nn.Module:
    """AlexNet for images of 3 x 224 x 224: 61.1 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, classes),
    )


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
