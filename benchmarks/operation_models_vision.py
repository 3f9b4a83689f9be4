"""Networks for pictures that the zoo of `joules operations` does not have, for `bench_operations.py --models all`.

After Szegedy et al. (2015, GoogLeNet), Huang et al. (2017, DenseNet-121), Tan and Le (2019, EfficientNet-B0), Liu et
al. (2022, ConvNeXt-T), Ho et al. (2020, the U-Net of a diffusion model) and Radford et al. (2016, DCGAN).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from operation_models import _normed
from torch import Tensor, nn


class Branches(nn.Module):
    """Several ways of one input, their channels side by side."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


class Dense(nn.Module):
    """Each layer reads all before it."""

    def __init__(self, cin: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(cin + i * growth), nn.ReLU(), nn.Conv2d(cin + i * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        kept = [x]
        for layer in self.layers:
            kept.append(layer(torch.cat(kept, 1)))
        return torch.cat(kept, 1)


class Squeezed(nn.Module):
    """Channels weighed by what is in the whole picture."""

    def __init__(self, channels: int, narrow: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, narrow, 1), nn.SiLU(), nn.Conv2d(narrow, channels, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x * self.weigh(x).sigmoid()
        return made


class Added(nn.Module):
    """A body beside its input."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.body(x)
        return made


class Places(nn.Module):
    """Dimensions in another order."""

    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class Looking(nn.Module):
    """Attention of every place of a picture on every other."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, channels), heads
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, 3, self.heads, c // self.heads, h * w).transpose(-1, -2).unbind(1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        made: Tensor = x + self.out(seen.transpose(-1, -2).reshape(n, c, h, w))
        return made


class Timed(nn.Module):
    """Two convolutions, the moment of diffusion added between them."""

    def __init__(self, cin: int, cout: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(32, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.moment = nn.Linear(width, cout)
        self.second = nn.Sequential(nn.GroupNorm(32, cout), nn.SiLU(), nn.Conv2d(cout, cout, 3, padding=1))
        self.shortcut = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.first(x) + self.moment(nn.functional.silu(t))[:, :, None, None]
        made: Tensor = self.second(y) + self.shortcut(x)
        return made


class Diffusion(nn.Module):
    """[n, 3, 64, 64] and [n, 1] moments to [n, 3, 64, 64], attention at 32 and below."""

    def __init__(self, base: int = 128) -> None:
        super().__init__()
        widths = [base, 2 * base, 2 * base, 4 * base]
        self.base = base
        self.moment = nn.Sequential(nn.Linear(base, 4 * base), nn.SiLU(), nn.Linear(4 * base, 4 * base))
        self.first, self.last = nn.Conv2d(3, base, 3, padding=1), nn.Conv2d(base, 3, 3, padding=1)
        self.down, self.up, self.seeing_down, self.seeing_up = (nn.ModuleList() for _ in range(4))
        for i, (a, b) in enumerate(zip([base, *widths], widths, strict=False)):
            self.down.append(Timed(a, b, 4 * base))
            self.seeing_down.append(Looking(b) if i else nn.Identity())
            self.up.insert(0, Timed(2 * b, a, 4 * base))
            self.seeing_up.insert(0, Looking(a) if i > 1 else nn.Identity())
        self.middle = Timed(widths[-1], widths[-1], 4 * base)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(self.base // 2) * (-math.log(10000) / (self.base // 2)))
        angles = t * rates
        moment = self.moment(torch.cat([angles.sin(), angles.cos()], 1))
        x, kept = self.first(x), []
        for block, see in zip(self.down, self.seeing_down, strict=True):
            x = see(block(x, moment))
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, moment)
        for block, see in zip(self.up, self.seeing_up, strict=True):
            x = nn.functional.interpolate(x, scale_factor=2.0)
            x = see(block(torch.cat([x, kept.pop()], 1), moment))
        made: Tensor = self.last(x)
        return made


class Pair(nn.Module):
    """[n, 100, 1, 1] and pictures to the judgements of what was generated and of what is real."""

    def __init__(self) -> None:
        super().__init__()
        up, down = (100, 512, 256, 128, 64), (3, 64, 128, 256, 512)
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(up)):
            layers += [nn.ConvTranspose2d(a, b, 4, 2 if i else 1, 1 if i else 0), nn.BatchNorm2d(b), nn.ReLU()]
        self.generator = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())
        layers = []
        for a, b in pairwise(down):
            layers += [nn.Conv2d(a, b, 4, 2, 1), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]
        self.judge = nn.Sequential(*layers, nn.Conv2d(512, 1, 4))

    def forward(self, z: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        return self.judge(self.generator(z)), self.judge(real)


def inception() -> nn.Module:
    """7 million parameters: nine times four ways side by side."""
    plans = ((192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64), (480, 192, 96, 208, 16, 48, 64),
             (512, 160, 112, 224, 24, 64, 64), (512, 128, 128, 256, 24, 64, 64), (512, 112, 144, 288, 32, 64, 64),
             (528, 256, 160, 320, 32, 128, 128), (832, 256, 160, 320, 32, 128, 128),
             (832, 384, 192, 384, 48, 128, 128))  # fmt: skip
    layers = [*_rectified(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *_rectified(64, 64, 1), *_rectified(64, 192, 3),
              nn.MaxPool2d(3, 2, 1)]  # fmt: skip
    for i, (cin, one, narrow3, three, narrow5, five, pooled) in enumerate(plans):
        layers += [nn.MaxPool2d(3, 2, 1)] if i in (2, 7) else []
        layers.append(
            Branches(
                nn.Sequential(*_rectified(cin, one, 1)),
                nn.Sequential(*_rectified(cin, narrow3, 1), *_rectified(narrow3, three, 3)),
                nn.Sequential(*_rectified(cin, narrow5, 1), *_rectified(narrow5, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), *_rectified(cin, pooled, 1)),
            )
        )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(1024, 1000))


def densenet(blocks: Sequence[int] = (6, 12, 24, 16)) -> nn.Module:
    """8 million parameters (DenseNet-121)."""
    layers: list[nn.Module] = [*_rectified(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for i, count in enumerate(blocks):
        layers.append(Dense(channels, count, 32))
        channels += 32 * count
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if i < 3:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def efficientnet() -> nn.Module:
    """5.3 million parameters."""
    layers: list[nn.Module] = [*_normed(3, 32, 3, 2), nn.SiLU()]
    cin = 32
    for factor, cout, count, stride, kernel in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                                                (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)):  # fmt: skip
        for i in range(count):
            wide, step = cin * factor, stride if not i else 1
            body = [] if factor == 1 else [*_normed(cin, wide, 1), nn.SiLU()]
            body += [*_normed(wide, wide, kernel, step, wide), nn.SiLU(), Squeezed(wide, cin // 4)]
            body += _normed(wide, cout, 1)
            layers.append(Added(*body) if step == 1 and cin == cout else nn.Sequential(*body))
            cin = cout
    layers += [*_normed(cin, 1280, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(1280, 1000))


def convnext() -> nn.Module:
    """28.6 million parameters, normalised over channels that come last."""
    widths, layers = (96, 192, 384, 768), list[nn.Module]()
    for i, (width, count) in enumerate(zip(widths, (3, 3, 9, 3), strict=True)):
        layers += _last(widths[i - 1]) if i else []
        layers += [nn.Conv2d(widths[i - 1] if i else 3, width, 2 if i else 4, 2 if i else 4), *([] if i else _last(96))]
        for _ in range(count):
            wide = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            layers.append(
                Added(nn.Conv2d(width, width, 7, padding=3, groups=width), Places(0, 2, 3, 1), wide, Places(0, 3, 1, 2))
            )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000))


def diffusion() -> nn.Module:
    """The denoising network of a diffusion model."""
    return Diffusion()


def gan() -> nn.Module:
    """Generator and discriminator of 64 x 64."""
    return Pair()


def _rectified(cin: int, cout: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [*_normed(cin, cout, kernel, stride), nn.ReLU(inplace=True)]


def _last(channels: int) -> list[nn.Module]:
    return [Places(0, 2, 3, 1), nn.LayerNorm(channels), Places(0, 3, 1, 2)]
