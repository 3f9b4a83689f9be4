"""Networks of many layers, for `bench_operations.py --models all`.

After He et al. (2016, ResNet-152), Huang et al. (2017, DenseNet-201), Dosovitskiy et al. (2021, ViT-L/16), Radford et
al. (2019, GPT-2 XL), Liu et al. (2021, Swin-T) and van den Oord et al. (2016, WaveNet).
"""

from __future__ import annotations

import torch
from operation_models import Vit
from operation_models_language import Gpt
from operation_models_vision import densenet
from torch import Tensor, nn

from powerd_analytics.operations.zoo_resnet import ResNet


class Windows(nn.Module):
    """Attention inside windows of 7 x 7 places of [n, h, w, c], shifted by half of one or not, and a wide part."""

    def __init__(self, width: int, *, shifted: bool) -> None:
        super().__init__()
        self.heads, self.shift = width // 32, 3 if shifted else 0
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.places = nn.Parameter(torch.zeros(self.heads, 49, 49))
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        y = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2)) if self.shift else self.norm1(x)
        y = y.view(n, h // 7, 7, w // 7, 7, c).transpose(2, 3).reshape(-1, 49, c)
        q, k, v = self.qkv(y).view(-1, 49, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = ((q @ k.transpose(-1, -2)) * (c // self.heads) ** -0.5 + self.places).softmax(-1) @ v
        y = self.out(y.transpose(1, 2).reshape(-1, 49, c))
        y = y.view(n, h // 7, w // 7, 7, 7, c).transpose(2, 3).reshape(n, h, w, c)
        x = x + (torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y)
        made: Tensor = x + self.wide(self.norm2(x))
        return made


class Swin(nn.Module):
    """[n, 3, 224, 224] to [n, 1000] in four stages; two by two places are joined between them."""

    def __init__(self, blocks: tuple[int, ...] = (2, 2, 6, 2), width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.stages, self.join = nn.ModuleList(), nn.ModuleList()
        for i, count in enumerate(blocks):
            self.stages.append(nn.Sequential(*(Windows(width << i, shifted=bool(j % 2)) for j in range(count))))
            wide = 4 * (width << i)
            is_last = i == len(blocks) - 1
            self.join.append(
                nn.Identity() if is_last else nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, wide // 2, bias=False))
            )
        last = width << (len(blocks) - 1)
        self.norm, self.classifier = nn.LayerNorm(last), nn.Linear(last, 1000)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).permute(0, 2, 3, 1)
        for i, (stage, join) in enumerate(zip(self.stages, self.join, strict=True)):
            y = stage(y)
            if i < len(self.stages) - 1:
                y = join(torch.cat([y[:, a::2, b::2] for b in (0, 1) for a in (0, 1)], -1))
        made: Tensor = self.classifier(self.norm(y).mean((1, 2)))
        return made


class Gated(nn.Module):
    """[n, c, t] to the same and to what is added up: a dilated convolution that sees only what was, and gates."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((dilation, 0), 0.0)
        self.both = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.stay, self.skip = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, 256, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.both(self.pad(x)).chunk(2, 1)
        y = torch.tanh(a) * torch.sigmoid(b)
        return x + self.stay(y), self.skip(y)


class WaveNet(nn.Module):
    """[n, t] samples of 256 kinds to [n, 256, t]: dilations 1 to 512, five times."""

    def __init__(self) -> None:
        super().__init__()
        self.samples = nn.Embedding(256, 64)
        self.layers = nn.ModuleList(Gated(64, 1 << (i % 10)) for i in range(50))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(256, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.samples(x).transpose(1, 2)
        total: Tensor | None = None
        for layer in self.layers:
            y, skipped = layer(y)
            total = skipped if total is None else total + skipped
        made: Tensor = self.head(total)
        return made


def resnet152() -> nn.Module:
    """60.2 million parameters."""
    return ResNet((3, 8, 36, 3), bottleneck=True)


def densenet201() -> nn.Module:
    """20 million parameters."""
    return densenet((6, 12, 48, 32))


def vit_large() -> nn.Module:
    """304 million parameters."""
    return Vit(1024, 24)


def gpt2_xl() -> nn.Module:
    """1558 million parameters."""
    return Gpt(1600, 48, 25)


def encoder96() -> nn.Module:
    """96 layers of torch's encoder, width 512."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 96, enable_nested_tensor=False)


def swin() -> nn.Module:
    """28 million parameters."""
    return Swin()


def wavenet() -> nn.Module:
    """3.1 million parameters."""
    return WaveNet()
