"""ResNets after He et al., "Deep residual learning for image recognition" (2016), table 1, and the one for gait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn


class Padded(nn.Module):
    """A shortcut without parameters: every other value, and zeros for the channels that there were not (option A)."""

    def __init__(self, step: int, more: int) -> None:
        super().__init__()
        self.step, self.more = step, more

    def forward(self, x: Tensor) -> Tensor:
        padded: Tensor = nn.functional.pad(x[:, :, :: self.step, :: self.step], (0, 0, 0, 0, 0, self.more))
        return padded


class ResidualBlock(nn.Module):
    """Convolutions (channels, kernel, stride) with normalisation, a shortcut around them, and their sum."""

    def __init__(self, cin: int, plan: Sequence[tuple[int, int, int]], *, projects: bool) -> None:
        super().__init__()
        layers, channels = [], cin
        for cout, kernel, stride in plan:
            layers += [nn.Conv2d(channels, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout)]
            layers.append(nn.ReLU(inplace=True))
            channels = cout
        self.body = nn.Sequential(*layers[:-1])
        step = max(stride for _, _, stride in plan)
        self.shortcut: nn.Module = nn.Identity()
        if step != 1 or channels != cin:
            projected = nn.Conv2d(cin, channels, 1, step, bias=False), nn.BatchNorm2d(channels)
            self.shortcut = nn.Sequential(*projected) if projects else Padded(step, channels - cin)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


def resnet(
    blocks: Sequence[int], *, bottleneck: bool = False, cin: int = 3, classes: int = 1000, projects: bool = True
) -> nn.Module:
    """[n, cin, h, w] to [n, classes], in four stages of ``blocks``. Runs know layers by these names."""
    stem = nn.Conv2d(cin, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    channels = 64
    stages = []
    for i, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True)):
        stage = []
        for j in range(count):
            stride = 2 if i and not j else 1
            plan = [(width, 3, stride), (width, 3, 1)]
            if bottleneck:  # the stride is the 3x3 convolution's
                plan = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
            stage.append(ResidualBlock(channels, plan, projects=projects))
            channels = plan[-1][0]
        stages.append(nn.Sequential(*stage))
    parts = {"stem": nn.Sequential(*stem), "stages": nn.Sequential(*stages), "pool": nn.AdaptiveAvgPool2d(1)}
    parts |= {"flatten": nn.Flatten(), "classifier": nn.Linear(channels, classes)}
    return nn.Sequential(OrderedDict(parts))


def resnet34(classes: int = 1000) -> nn.Module:
    """21.8 million parameters."""
    return resnet((3, 4, 6, 3), classes=classes)


def resnet50(classes: int = 1000) -> nn.Module:
    """25.6 million parameters."""
    return resnet((3, 4, 6, 3), bottleneck=True, classes=classes)


# Models by name, made here so that nothing has to be downloaded: those of the papers, and a few that everybody knows.
#
# AlexNet after Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014); CaffeNet, the two
# groups of Krizhevsky et al. (2012) with pooling before normalisation; the encoder after Vaswani et al., "Attention is
# all you need" (2017), the base size.
# 2D-CNN: gait from 50 maps of optical flow of 60 x 60, as in Castro et al.; the text and table 1 disagree on ``full5``.


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
    """For 50 x 60 x 60: table 1's operations and megabytes of Castro et al. follow without ``full5``, which the text
    names."""
    features = [
        *_conv(50, 96, 7), nn.MaxPool2d(2),
        *_conv(96, 192, 5, stride=2), nn.MaxPool2d(2),
        *_conv(192, 512, 3), nn.MaxPool2d(2),
        *_conv(512, 4096, 2), nn.Flatten(),
    ]  # fmt: skip
    fifth = [*_full(4096, 4096), nn.Dropout()] if full5 else []
    return nn.Sequential(*features, *fifth, *_full(4096, 2048), nn.Dropout(), nn.Linear(2048, classes), nn.Softmax(-1))


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
        logits: Tensor = self.classifier(y)
        return logits


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
    "2d-cnn-full5": Entry(partial(cnn_2d, full5=True), (50, 60, 60)),
    "alexnet": Entry(alexnet, IMAGE),
    "caffenet": Entry(caffenet, (3, 227, 227)),
    # ResNet-34 for 50 maps of optical flow, as far as the text of Castro et al. says what theirs is.
    "resnet": Entry(partial(resnet, (3, 4, 6, 3), cin=50, classes=150), (50, 60, 60)),
    "resnet-im": Entry(partial(resnet, (3, 4, 6, 3), projects=False), IMAGE),
    "resnet18": Entry(partial(resnet, (2, 2, 2, 2)), IMAGE),
    "resnet34": Entry(resnet34, IMAGE),
    "resnet50": Entry(resnet50, IMAGE),
    "transformer": Entry(Encoder, (128,), "int64"),
}
