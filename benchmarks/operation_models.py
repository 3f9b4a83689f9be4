"""Models of kinds that the zoo of `joules operations` does not have, for `bench_operations.py`.

After Dosovitskiy et al. (2021, ViT-B/16), Hochreiter and Schmidhuber (1997, LSTM), Ronneberger et al. (2015, U-Net) and
Sandler et al. (2018, MobileNetV2), in their usual sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Vit(nn.Module):
    """[n, 3, 224, 224] to [n, 1000]: patches of 16, twelve layers of width 768, or of another size."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.classifier = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.first.expand(len(x), -1, -1), y], 1) + self.places
        made: Tensor = self.classifier(self.encoder(y)[:, 0])
        return made


class Lstm(nn.Module):
    """[n, s] tokens to [n, s, 10000]: two layers of width 650."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(10000, 650)
        self.lstm = nn.LSTM(650, 650, 2, dropout=0.5, batch_first=True)
        self.classifier = nn.Linear(650, 10000)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.classifier(self.lstm(self.tokens(x))[0])
        return made


class UNet(nn.Module):
    """[n, 1, 256, 256] to [n, 2, 256, 256], four times halved and doubled."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip((1, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.join = nn.ModuleList(_twice(2 * w, w) for w in widths[-2::-1])
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(self.pool(x) if i else x)
            kept.append(x)
        for up, join, left in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([left, up(x)], 1))
        made: Tensor = self.last(x)
        return made


class Inverted(nn.Module):
    """Wider, a convolution of each channel apart, and narrow again, with a shortcut where the shape stays."""

    def __init__(self, cin: int, cout: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = cin * factor
        layers = [] if factor == 1 else [*_normed(cin, wide, 1), nn.ReLU6(inplace=True)]
        layers += [*_normed(wide, wide, 3, stride, wide), nn.ReLU6(inplace=True), *_normed(wide, cout, 1)]
        self.body, self.has_shortcut = nn.Sequential(*layers), stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.body(x) if self.has_shortcut else self.body(x)
        return made


def vit() -> nn.Module:
    """86.6 million parameters."""
    return Vit()


def lstm() -> nn.Module:
    """19.8 million parameters."""
    return Lstm()


def unet() -> nn.Module:
    """31 million parameters."""
    return UNet()


def mobilenet() -> nn.Module:
    """3.5 million parameters."""
    layers: list[nn.Module] = [*_normed(3, 32, 3, 2), nn.ReLU6(inplace=True)]
    cin = 32
    for factor, width, count, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                         (6, 160, 3, 2), (6, 320, 1, 1)):  # fmt: skip
        for i in range(count):
            layers.append(Inverted(cin, width, stride if not i else 1, factor))
            cin = width
    layers += [*_normed(cin, 1280, 1), nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


def _normed(cin: int, cout: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(cout)]


def _twice(cin: int, cout: int) -> nn.Module:
    layers = [*_normed(cin, cout, 3), nn.ReLU(inplace=True), *_normed(cout, cout, 3), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)
