"""The layers of `layer_zoo` on what they are fed less often: other orders of dimensions, other types of values.

`LAYOUTS` and `TYPES`, as its `LAYERS`: name -> (what makes a model, shapes of its inputs).
"""

from __future__ import annotations

import torch
from layer_zoo import Call, Unpooled
from torch import nn

F = nn.functional
_LINE, _IMAGE, _VOLUME, _TOKENS = (2, 4, 12), (2, 4, 8, 6), (2, 4, 6, 5, 7), (2, 5, 16)


class Turned(nn.Module):
    """What is inside sees its input with channels last, or with two dimensions exchanged."""

    def __init__(self, inner, layout):
        super().__init__()
        self.inner, self.layout = inner, layout

    def forward(self, x):
        if self.layout == "last":
            last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
            return self.inner(x.contiguous(memory_format=last))
        if self.layout == "cut":
            last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
            return self.inner(torch.cat([x, x], 1).contiguous(memory_format=last)[:, : x.shape[1]])
        a, b = self.layout
        return self.inner(x.transpose(a, b).contiguous().transpose(a, b))


class As(nn.Module):
    """What is inside, of another type, fed with values of that type."""

    def __init__(self, inner, dtype):
        super().__init__()
        self.inner, self.dtype = inner.to(dtype), dtype

    def forward(self, x, *others):
        return self.inner(x.to(self.dtype), *others)


def _of_places():
    """Layers of pictures and volumes."""
    found = {}
    for n, shape in ((2, _IMAGE), (3, _VOLUME)):
        conv, turned = getattr(nn, f"Conv{n}d"), getattr(nn, f"ConvTranspose{n}d")
        found |= {
            f"conv{n}d": (lambda c=conv: c(4, 6, 3, padding=1), shape),
            f"conv{n}d groups": (lambda c=conv: c(4, 8, 3, stride=2, groups=2, bias=False), shape),
            f"conv{n}d depthwise": (lambda c=conv: c(4, 4, 3, groups=4), shape),
            f"conv{n}d transposed": (lambda c=turned: c(4, 6, 3, stride=2), shape),
            f"GroupNorm {n}d": (lambda: nn.GroupNorm(2, 4), shape),
            f"Upsample {n}d": (lambda: nn.Upsample(scale_factor=2), shape),
            f"Upsample smooth {n}d": (
                lambda m="bilinear" if n == 2 else "trilinear": nn.Upsample(scale_factor=2, mode=m),
                shape,
            ),
        }
        for name, options in (("BatchNorm", (4,)), ("InstanceNorm", (4,)), ("MaxPool", (2,)), ("AvgPool", (2,)),
                              ("AdaptiveAvgPool", (3,)), ("AdaptiveMaxPool", (3,)), ("Dropout", ()), ("ZeroPad", (1,)),
                              ("ReplicationPad", (1,))):  # fmt: skip
            kind = getattr(nn, f"{name}{n}d")
            found[f"{name}{n}d"] = (lambda k=kind, o=options: k(*o), shape)
    return found | {
        "conv2d of one place": (lambda: nn.Conv2d(4, 6, 1), _IMAGE),
        "PReLU": (lambda: nn.PReLU(4), _IMAGE),
        "MaxUnpool2d": (lambda: Unpooled(2), _IMAGE),
        "PixelShuffle": (lambda: nn.PixelShuffle(2), _IMAGE),
        "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), _IMAGE),
        "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), _IMAGE),
        "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), _IMAGE),
        "Linear": (lambda: nn.Linear(6, 3), _IMAGE),
        "LayerNorm": (lambda: nn.LayerNorm(6), _IMAGE),
        "Softmax": (lambda: nn.Softmax(1), _IMAGE),
        "GLU": (lambda: nn.GLU(1), _IMAGE),
        "cat": (lambda: Call(lambda x: torch.cat([x, x * 2], 1)), _IMAGE),
        "cat of two orders": (lambda: Call(lambda x: torch.cat([x, x.contiguous()], 1)), _IMAGE),
        "stack": (lambda: Call(lambda x: torch.stack([x, x * 2], 1)), _IMAGE),
        "stack last": (lambda: Call(lambda x: torch.stack([x, x * 2], -1)), _IMAGE),
        "roll and flip": (lambda: Call(lambda x: x.roll(1, 2) + x.flip(3)), _IMAGE),
        "grid_sample": (lambda: Call(lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1))), _IMAGE),
    }


def _layouts():
    found = {}
    for name, (make, shape) in _of_places().items():
        for said, layout in (("channels last", "last"), ("cut", "cut"), ("turned", (2, 3)), ("turned from 1", (1, 2))):
            found[f"{name}, {said}"] = (lambda m=make, a=layout: Turned(m(), a), (shape,))
    sequences = {
        "Conv1d": (lambda: nn.Conv1d(4, 6, 3), _LINE),
        "Conv1d groups": (lambda: nn.Conv1d(4, 6, 3, groups=2, padding=1), _LINE),
        "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 6, 3, stride=2), _LINE),
        "BatchNorm1d": (lambda: nn.BatchNorm1d(4), _LINE),
        "GroupNorm": (lambda: nn.GroupNorm(2, 4), _LINE),
        "LayerNorm": (lambda: nn.LayerNorm(12), _LINE),
        "RMSNorm": (lambda: nn.RMSNorm(12), _LINE),
        "MaxPool1d": (lambda: nn.MaxPool1d(2), _LINE),
        "AvgPool1d": (lambda: nn.AvgPool1d(2), _LINE),
        "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(3), _LINE),
        "GLU": (lambda: nn.GLU(1), _LINE),
        "LSTM": (lambda: nn.LSTM(12, 8, batch_first=True), _LINE),
        "GRU": (lambda: nn.GRU(12, 8, batch_first=True), _LINE),
        "MultiheadAttention": (lambda: Call(_attends()), _LINE),
        "reductions": (lambda: Call(lambda x: x.sum(1) + x.mean(1) + x.amax(1) + x.std(1) + x.cumsum(1)[:, 0]), _LINE),
        "stack": (lambda: Call(lambda x: torch.stack([x, x], 1).flatten(1)), _LINE),
        "scatter and gather": (lambda: Call(_picks), _LINE),
        "sorted": (lambda: Call(lambda x: x.sort(1)[0] + x.tril() + x.flip(1)), _LINE),
    }
    for name, (make, shape) in sequences.items():
        found[f"{name} of a sequence, turned"] = (lambda m=make: Turned(m(), (1, 2)), (shape,))
    return found


def _attends():
    layer = nn.MultiheadAttention(12, 4, batch_first=True)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def _picks(x):
    at = torch.zeros(2, 4, 12, dtype=torch.int64)
    return x.gather(1, at) + x.scatter(1, at, x) + torch.where(x > 0, x, 0.0)


def _types():
    found = {}
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        layers = {
            "Linear": (lambda: nn.Linear(16, 8), _TOKENS),
            "LayerNorm": (lambda: nn.LayerNorm(16), _TOKENS),
            "RMSNorm": (lambda: nn.RMSNorm(16), _TOKENS),
            "GroupNorm": (lambda: nn.GroupNorm(2, 4), _IMAGE),
            "BatchNorm2d": (lambda: nn.BatchNorm2d(4), _IMAGE),
            "BatchNorm2d evaluating": (lambda: nn.BatchNorm2d(4).eval(), _IMAGE),
            "Conv2d": (lambda: nn.Conv2d(4, 6, 3), _IMAGE),
            "GELU": (nn.GELU, _TOKENS),
            "Softmax": (lambda: nn.Softmax(-1), _TOKENS),
            "Dropout": (nn.Dropout, _TOKENS),
            "LSTM": (lambda: nn.LSTM(16, 8), _TOKENS),
            "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), _TOKENS),
            "MaxPool2d": (lambda: nn.MaxPool2d(2), _IMAGE),
            "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(1), _IMAGE),
            "softmax in float32": (lambda: Call(lambda x: x.float().softmax(-1).to(x.dtype)), _TOKENS),
            "norm in float32": (lambda: Call(_norm), _TOKENS),
        }
        for name, (make, shape) in layers.items():
            found[f"{name} of {dtype}"] = (lambda m=make, d=dtype: As(m(), d), (shape,))
    k = ("i", 2, 5, 16)
    integers = {
        "divided": lambda x, i: x + i / 128 + i / 2.0 + 1 / (i + 1),
        "absolute": lambda x, i: x * i.abs() + (-i).clamp(min=0),
        "roots": lambda x, i: x + i.sqrt() + i.exp() + torch.sin(i) + torch.log(i + 1) + i.sigmoid(),
        "powers": lambda x, i: x + 10000 ** (-(i / 128)) + i**2 + 2.0**i + i**0.5,
        "compared": lambda x, i: x * (i > 2) * (i == 0).float() + (i % 2 == 0) * x,
        "shifted": lambda x, i: x + (i << 1) + (i >> 1) + (i & 3) + (i | 1) + (i ^ 1),
        "floored": lambda x, i: x + i // 2 + i % 3 + torch.div(i, 2, rounding_mode="floor") + (i + 1) // (i + 1),
        "reduced": lambda x, i: x + i.sum(-1, keepdim=True) + i.amax(-1, keepdim=True) + i.argmax(-1, keepdim=True)
        + i.float().mean() + i.cumsum(-1) + i.max(-1, keepdim=True)[0] + i.max() + i.min(),
        "truths": lambda x, i: x * (~(i > 0)) * ((i > 0) & (i < 3)) + (i > 0).sum(-1, keepdim=True) + (i > 0).cumsum(1),
        "mixed": lambda x, i: (x.half() + i) + x.double() * i + x.half() * 2 + (x > 0) * 3 + (i > 0) * 2.5,
        "chosen": lambda x, i: torch.where(i > 0, x, 0) + torch.where(i > 0, 1.0, 0.0) + torch.where(i > 0, i, -i),
        "buckets": lambda x, i: x + torch.min(i, torch.full_like(i, 3)) + torch.maximum(i, i + 1)
        + (torch.log(i.float() + 1) * 3).to(torch.long),
        "imaginary": lambda x, i: (x * 1j + i * 2j).abs() + (x + 1j).real + (i + 0j).imag,
        "one_hot": lambda x, i: x + (i.unsqueeze(-1) == torch.arange(4)).to(x.dtype).sum(-1),
    }  # fmt: skip
    for name, function in integers.items():
        found[f"integers {name}"] = (lambda f=function: Call(f), (_TOKENS, k))
    return found


def _norm(x):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * 2


LAYOUTS = _layouts()
TYPES = _types()
