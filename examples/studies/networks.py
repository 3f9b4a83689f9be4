"""The networks of the published studies, as tables of numbers: nothing has to be downloaded.

A plan is a list of layers. In it, a tuple is a convolution: (channels, kernel, stride, padding), with stride 1 and
padding kernel // 2 where they are left out. A list of plans is a group of branches, whose channels are put one behind
the other. A module is itself. AlexNet, CaffeNet, the 2D-CNN and the ResNets are those that `joules operations` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from powerd_analytics.operations.zoo import alexnet, caffenet, cnn_2d, resnet

Unit = Callable[..., list[nn.Module]]
"""What a tuple of a plan becomes: ``unit(cin, cout, kernel, stride, padding)``."""


def plain(cin: int, cout: int, kernel: Any, stride: int, padding: Any) -> list[nn.Module]:
    return [nn.Conv2d(cin, cout, kernel, stride, padding), nn.ReLU(inplace=True)]


def normalised(cin: int, cout: int, kernel: Any, stride: int, padding: Any) -> list[nn.Module]:
    convolution = nn.Conv2d(cin, cout, kernel, stride, padding, bias=False)
    return [convolution, nn.BatchNorm2d(cout, eps=1e-3), nn.ReLU(inplace=True)]


class Branches(nn.ModuleList):
    """Branches that see the same input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self], 1)


def build(cin: int, plan: Sequence[Any], unit: Unit) -> tuple[nn.Sequential, int]:
    """The layers of a plan, and how many channels come out of them."""
    layers: list[nn.Module] = []
    for part in plan:
        if isinstance(part, nn.Module):
            layers.append(part)
        elif isinstance(part, tuple):
            cout, kernel, stride, padding = (*part, *(1, None)[len(part) - 2 :])
            same = tuple(k // 2 for k in kernel) if isinstance(kernel, tuple) else kernel // 2
            layers += unit(cin, cout, kernel, stride, same if padding is None else padding)
            cin = cout
        else:
            branches = [build(cin, branch, unit) for branch in part]
            layers.append(Branches(layer for layer, _ in branches))
            cin = sum(channels for _, channels in branches)
    return nn.Sequential(*layers), cin


def head(channels: int, classes: int, dropout: float = 0.0) -> list[nn.Module]:
    """The mean of each channel, and a classifier."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), nn.Linear(channels, classes)]


# -- VGG: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition" (2015), table 1


def vgg(stages: Sequence[int], classes: int) -> nn.Module:
    """So many 3x3 convolutions before each of five poolings."""
    widths = zip(stages, (64, 128, 256, 512, 512), strict=True)
    plan = [part for count, width in widths for part in (*[(width, 3)] * count, nn.MaxPool2d(2))]
    full = [nn.Linear(25088, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout()]
    return nn.Sequential(
        build(3, plan, plain)[0], nn.AdaptiveAvgPool2d(7), nn.Flatten(), *full, nn.Linear(4096, classes)
    )


# -- GoogLeNet: Szegedy et al., "Going deeper with convolutions" (2015), table 1 --

GOOGLENET = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    ((192, 96, 208, 16, 48, 64),),
    ((160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64)),
    ((256, 160, 320, 32, 128, 128),),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)
"""Channels of 1x1, 3x3 and 5x5 convolutions, each after those that reduce for it, and behind the pooling. The groups
end where pooling or an auxiliary classifier stands."""


vgg16 = partial(vgg, (2, 2, 3, 3, 3), 1000)
"""For `joules operations --input 3x224x224 examples/studies/networks.py:vgg16`."""


class Listened(nn.Module):
    """Parts one behind the other. In training, a classifier listens behind some of them, and its output comes too."""

    def __init__(self, parts: Sequence[nn.Module], listeners: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.listeners = nn.ModuleDict({str(behind): listener for behind, listener in listeners.items()})

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        heard = []
        for number, part in enumerate(self.parts):
            x = part(x)
            if self.training and str(number) in self.listeners:
                heard.append(self.listeners[str(number)](x))
        return (x, *heard) if heard else x


def googlenet(classes: int = 1000, *, auxiliary: bool = False) -> nn.Module:
    """With ``auxiliary`` two more classifiers, of 6.4 million parameters, which are there in training alone."""

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    def norm() -> nn.Module:
        return nn.LocalResponseNorm(5)

    def inception(one: int, to3: int, three: int, to5: int, five: int, behind_pool: int) -> list[list[Any]]:
        return [[(one, 1)], [(to3, 1), (three, 3)], [(to5, 1), (five, 5)], [nn.MaxPool2d(3, 1, 1), (behind_pool, 1)]]

    plans = [[inception(*numbers) for numbers in group] for group in GOOGLENET]
    plans[0] = [(64, 7, 2), pool(), norm(), (64, 1), (192, 3), norm(), pool(), *plans[0], pool()]
    plans[3] = [*plans[3], pool()]
    parts, channels, listeners = [], 3, {}
    for number, plan in enumerate(plans):
        part, channels = build(channels, plan, plain)
        parts.append(part)
        if auxiliary and number in (1, 2):
            reduced = [nn.AdaptiveAvgPool2d(4), nn.Conv2d(channels, 128, 1), nn.ReLU(True), nn.Flatten()]
            full = [nn.Linear(2048, 1024), nn.ReLU(True), nn.Dropout(0.7), nn.Linear(1024, classes)]
            listeners[number] = nn.Sequential(*reduced, *full)
    return Listened([*parts, nn.Sequential(*head(channels, classes, 0.4))], listeners)


# -- Inception V3: Szegedy et al., "Rethinking the Inception architecture for computer vision" (2016), and V4:
# "Inception-v4, Inception-ResNet and the impact of residual connections on learning" (2017). No auxiliary classifiers.


def _mean() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1, count_include_pad=False)


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, 2)


def _fork(cout: int) -> list[list[Any]]:
    """A 3x3 convolution as 1x3 beside 3x1."""
    return [[(cout, (1, 3))], [(cout, (3, 1))]]


def inception3(classes: int) -> nn.Module:
    def a(pooled: int) -> list[list[Any]]:
        return [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], [_mean(), (pooled, 1)]]

    def b(c: int) -> list[list[Any]]:
        far = [(c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))]
        return [[(192, 1)], [(c, 1), (c, (1, 7)), (192, (7, 1))], far, [_mean(), (192, 1)]]

    def c() -> list[list[Any]]:
        return [[(320, 1)], [(384, 1), _fork(384)], [(448, 1), (384, 3), _fork(384)], [_mean(), (192, 1)]]

    far = [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, 0)]
    plan = [
        (32, 3, 2, 0), (32, 3, 1, 0), (64, 3), _pool(), (80, 1), (192, 3, 1, 0), _pool(),
        a(32), a(64), a(64), [[(384, 3, 2, 0)], [(64, 1), (96, 3), (96, 3, 2, 0)], [_pool()]],
        b(128), b(160), b(160), b(192), [[(192, 1), (320, 3, 2, 0)], far, [_pool()]], c(), c(),
    ]  # fmt: skip
    features, channels = build(3, plan, normalised)
    return nn.Sequential(features, *head(channels, classes, 0.5))


def inception4(classes: int) -> nn.Module:
    def a() -> list[list[Any]]:
        return [[(96, 1)], [(64, 1), (96, 3)], [(64, 1), (96, 3), (96, 3)], [_mean(), (96, 1)]]

    def b() -> list[list[Any]]:
        far = [(192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))]
        return [[(384, 1)], [(192, 1), (224, (1, 7)), (256, (7, 1))], far, [_mean(), (128, 1)]]

    def c() -> list[list[Any]]:
        far = [(384, 1), (448, (3, 1)), (512, (1, 3)), _fork(256)]
        return [[(256, 1)], [(384, 1), _fork(256)], far, [_mean(), (256, 1)]]

    stem = [
        (32, 3, 2, 0), (32, 3, 1, 0), (64, 3), [[_pool()], [(96, 3, 2, 0)]],
        [[(64, 1), (96, 3, 1, 0)], [(64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3, 1, 0)]],
        [[(192, 3, 2, 0)], [_pool()]],
    ]  # fmt: skip
    far = [(256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2, 0)]
    to_b = [[(384, 3, 2, 0)], [(192, 1), (224, 3), (256, 3, 2, 0)], [_pool()]]
    to_c = [[(192, 1), (192, 3, 2, 0)], far, [_pool()]]
    plan = [*stem, *(a() for _ in range(4)), to_b, *(b() for _ in range(7)), to_c, *(c() for _ in range(3))]
    features, channels = build(3, plan, normalised)
    return nn.Sequential(features, *head(channels, classes, 0.2))


# -- Xception: Chollet, "Xception: deep learning with depthwise separable convolutions" (2017), figure 5 -------------


class Residual(nn.Module):
    """Separable convolutions of these channels, and a shortcut around them. With ``stride`` 2 they end in a pooling."""

    def __init__(self, cin: int, channels: Sequence[int], stride: int = 2, *, activates: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inner = cin
        for number, cout in enumerate(channels):
            layers += [nn.ReLU()] if number or activates else []
            layers += separable(inner, cout)
            inner = cout
        self.body = nn.Sequential(*layers, *([nn.MaxPool2d(3, stride, 1)] if stride > 1 else []))
        projected = nn.Conv2d(cin, inner, 1, stride, bias=False), nn.BatchNorm2d(inner)
        self.shortcut = nn.Sequential(*projected) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x) + self.shortcut(x)
        return y


def separable(cin: int, cout: int) -> list[nn.Module]:
    """A 3x3 convolution of each channel by itself, and one of all channels of each point."""
    by_channel = nn.Conv2d(cin, cin, 3, padding=1, groups=cin, bias=False)
    return [by_channel, nn.Conv2d(cin, cout, 1, bias=False), nn.BatchNorm2d(cout)]


def xception(classes: int) -> nn.Module:
    entry = build(3, [(32, 3, 2, 0), (64, 3, 1, 0)], normalised)[0]
    middle = [Residual(728, (728, 728, 728), 1) for _ in range(8)]
    return nn.Sequential(
        entry, Residual(64, (128, 128), activates=False), Residual(128, (256, 256)), Residual(256, (728, 728)), *middle,
        Residual(728, (728, 1024)), *separable(1024, 1536), nn.ReLU(True), *separable(1536, 2048), nn.ReLU(True),
        *head(2048, classes),
    )  # fmt: skip


# -- the gait ResNet of Castro et al. (2019): blocks of its own, and a first pooling without padding


def gait(classes: int) -> nn.Module:
    network: Any = resnet((4, 6, 7, 2), cin=50, classes=classes)
    network.stem[3] = nn.MaxPool2d(3, 2)
    return network


# -- one for trying out: on two cores a batch of 64 takes some hundredths of a second


def small(classes: int) -> nn.Module:
    plan = [part for width in (8, 16, 32) for part in ((width, 3), nn.MaxPool2d(2))]
    return nn.Sequential(build(3, plan, normalised)[0], nn.Flatten(), nn.Linear(512, classes))


class Network(NamedTuple):
    """A network by name."""

    make: Callable[[int], nn.Module]
    """By the number of classes. Its output are logits, in training also those of auxiliary classifiers."""
    shape: tuple[int, int, int]
    """Of a sample: channels, height, width."""
    classes: int


def _logits(make: Callable[[int], nn.Sequential], classes: int) -> nn.Module:
    """Without the softmax that ends a network of the zoo: the loss has it."""
    return make(classes)[:-1]


IMAGE, LARGE, FLOW = (3, 224, 224), (3, 299, 299), (50, 60, 60)
NETWORKS: dict[str, Network] = {
    "alexnet": Network(alexnet, IMAGE, 1000),
    "vgg16": Network(partial(vgg, (2, 2, 3, 3, 3)), IMAGE, 1000),
    "vgg19": Network(partial(vgg, (2, 2, 4, 4, 4)), IMAGE, 1000),
    "googlenet": Network(googlenet, IMAGE, 1000),
    "googlenet-auxiliary": Network(partial(googlenet, auxiliary=True), IMAGE, 1000),
    "inception3": Network(inception3, LARGE, 1000),
    "inception4": Network(inception4, LARGE, 1000),
    "resnet50": Network(lambda classes: resnet((3, 4, 6, 3), bottleneck=True, classes=classes), IMAGE, 1000),
    "resnet152": Network(lambda classes: resnet((3, 8, 36, 3), bottleneck=True, classes=classes), IMAGE, 1000),
    # Koszczal et al.: 69 kinds of birds.
    "xception": Network(xception, LARGE, 69),
    # Castro et al.: CaffeNet, and ResNetIm (ResNet-34) for ImageNet; for gait, maps of optical flow of 150 walkers.
    "caffenet": Network(partial(_logits, caffenet), (3, 227, 227), 1000),
    "resnet-im": Network(lambda classes: resnet((3, 4, 6, 3), projects=False, classes=classes), IMAGE, 1000),
    "2d-cnn": Network(partial(_logits, cnn_2d), FLOW, 150),
    "2d-cnn-full5": Network(partial(_logits, partial(cnn_2d, full5=True)), FLOW, 150),
    "resnet-gait": Network(gait, FLOW, 150),
    "small": Network(small, (3, 32, 32), 10),
}
