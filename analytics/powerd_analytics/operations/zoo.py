"""Models by name, made here so that nothing has to be downloaded: those of the papers, and a few that everybody knows.

AlexNet after Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014); CaffeNet, the two
groups of Krizhevsky et al. (2012) with pooling before normalisation; VGG-16 after Simonyan and Zisserman (2015),
configuration D; the encoder after Vaswani et al., "Attention is all you need" (2017), the base size.
2D-CNN: gait from 50 maps of optical flow of 60 x 60, as in Castro et al.; the text and table 1 disagree on ``full5``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from powerd_analytics.operations.zoo_resnet import resnet18, resnet34, resnet34_padded, resnet50, resnet_gait


def alexnet(classes: int = 1000) -> nn.Module:
    """For images of 3 x 224 x 224: 61.1 million parameters."""
    features = [
        *_conv(3, 64, 11, stride=4, padding=2), nn.MaxPool2d(3, 2),
        *_conv(64, 192, 5, padding=2), nn.MaxPool2d(3, 2),
        *_conv(192, 384, 3, padding=1), *_conv(384, 256, 3, padding=1), *_conv(256, 256, 3, padding=1),
        nn.MaxPool2d(3, 2), nn.Flatten(),
    ]  # fmt: skip
    head = [nn.Dropout(), *_full(9216, 4096), nn.Dropout(), *_full(4096, 4096), nn.Linear(4096, classes)]
    return nn.Sequential(*features, *head)


def caffenet(classes: int = 1000) -> nn.Module:
    """For images of 3 x 227 x 227: 61 million parameters; convolutions 2, 4 and 5 in two groups."""
    features = [
        *_conv(3, 96, 11, stride=4), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        *_conv(96, 256, 5, padding=2, groups=2), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5),
        *_conv(256, 384, 3, padding=1), *_conv(384, 384, 3, padding=1, groups=2),
        *_conv(384, 256, 3, padding=1, groups=2), nn.MaxPool2d(3, 2), nn.Flatten(),
    ]  # fmt: skip
    head = [*_full(9216, 4096), nn.Dropout(), *_full(4096, 4096), nn.Dropout(), nn.Linear(4096, classes)]
    return nn.Sequential(*features, *head, nn.Softmax(-1))


def cnn_2d(classes: int = 150, *, full5: bool = False) -> nn.Module:
    """For 50 x 60 x 60: table 1's operations and megabytes of Castro et al. follow without ``full5``."""
    features = [
        *_conv(50, 96, 7), nn.MaxPool2d(2),
        *_conv(96, 192, 5, stride=2), nn.MaxPool2d(2),
        *_conv(192, 512, 3), nn.MaxPool2d(2),
        *_conv(512, 4096, 2), nn.Flatten(),
    ]  # fmt: skip
    fifth = [*_full(4096, 4096), nn.Dropout()] if full5 else []
    return nn.Sequential(*features, *fifth, *_full(4096, 2048), nn.Dropout(), nn.Linear(2048, classes), nn.Softmax(-1))


def cnn_2d_full5() -> nn.Module:
    """The same with the ``full5`` that the text names."""
    return cnn_2d(full5=True)


def vgg16(classes: int = 1000) -> nn.Module:
    """For images of 3 x 224 x 224: 138 million parameters."""
    layers: list[nn.Module] = []
    channels = 3
    for repeats, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(repeats):
            layers += _conv(channels, width, 3, padding=1)
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [*_full(25088, 4096), nn.Dropout(), *_full(4096, 4096), nn.Dropout(), nn.Linear(4096, classes)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


class Encoder(nn.Module):
    """Token and position embeddings, encoder layers, and a classifier of every token: [n, s] to [n, s, tokens]."""

    def __init__(self, tokens: int = 32000, width: int = 512, heads: int = 8, layers: int = 6, longest: int = 512):
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(nn.Embedding(longest, width).weight.detach())
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True) for _ in range(layers)
        )
        self.classifier = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        y = self.tokens(x) + self.positions[: x.shape[1]]
        for layer in self.layers:
            y = layer(y)
        made: Tensor = self.classifier(y)
        return made


def _conv(cin: int, cout: int, kernel: int, stride: int = 1, padding: int = 0, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(cin, cout, kernel, stride, padding, groups=groups), nn.ReLU(inplace=True)]


def _full(cin: int, cout: int) -> list[nn.Module]:
    return [nn.Linear(cin, cout), nn.ReLU(inplace=True)]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model by name."""

    make: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]
    dtype: str = "float32"


IMAGE = (3, 224, 224)
ZOO: dict[str, Entry] = {
    "2d-cnn": Entry(cnn_2d, (50, 60, 60)),
    "2d-cnn-full5": Entry(cnn_2d_full5, (50, 60, 60)),
    "alexnet": Entry(alexnet, IMAGE),
    "caffenet": Entry(caffenet, (3, 227, 227)),
    "resnet": Entry(resnet_gait, (50, 60, 60)),
    "resnet-im": Entry(resnet34_padded, IMAGE),
    "resnet18": Entry(resnet18, IMAGE),
    "resnet34": Entry(resnet34, IMAGE),
    "resnet50": Entry(resnet50, IMAGE),
    "transformer": Entry(Encoder, (128,), "int64"),
    "vgg16": Entry(vgg16, IMAGE),
}
