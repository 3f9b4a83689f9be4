"""One small model for each kind of layer and tensor function, for what counting must do with all of them.

`LAYERS` and `FUNCTIONS`: name -> (what makes a model, shapes of its inputs with the batch of 2, an ``i`` before
those of integers and a ``b`` before those of truth values).
"""

from __future__ import annotations

import math

import torch
from torch import nn

F = nn.functional


class Behind(nn.Module):
    """A layer behind a factor that is learned, so that its input needs a gradient; of several outputs all are."""

    def __init__(self, inner):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*(x * self.factor if x.is_floating_point() else x for x in inputs))


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


_KINDS = {"i": torch.int64, "b": torch.bool}


def inputs(shapes, device="meta"):
    """Tensors of a model's inputs, on ``meta`` without asking torch for more than memory."""
    made = []
    for shape in shapes:
        dtype = _KINDS.get(shape[0] if shape else None)
        size = shape if dtype is None else shape[1:]
        empty = torch.empty(size, dtype=dtype or torch.float32, device=device)
        made.append(empty if device == "meta" else empty.uniform_() if dtype is None else empty.zero_())
    return made


_LINE, _IMAGE, _VOLUME, _TOKENS = (2, 4, 12), (2, 4, 8, 8), (2, 4, 6, 6, 6), (2, 5, 16)

_ACTIVATIONS = (
    nn.ELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardtanh, nn.Hardswish, nn.LeakyReLU, nn.LogSigmoid, nn.PReLU, nn.ReLU,
    nn.ReLU6, nn.RReLU, nn.SELU, nn.CELU, nn.GELU, nn.Sigmoid, nn.SiLU, nn.Mish, nn.Softplus, nn.Softshrink,
    nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.GLU,
)  # fmt: skip
_INPLACE = (nn.ELU, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.CELU,
            nn.SiLU, nn.Mish, nn.RReLU)  # fmt: skip


def _layers():
    found = {}

    def add(name, make, *shapes):
        found[name] = (make, shapes)

    for n, (conv, transposed, shape) in enumerate(
        [
            (nn.Conv1d, nn.ConvTranspose1d, _LINE),
            (nn.Conv2d, nn.ConvTranspose2d, _IMAGE),
            (nn.Conv3d, nn.ConvTranspose3d, _VOLUME),
        ],
        1,
    ):
        for mode in ("zeros", "reflect", "replicate", "circular"):
            add(f"conv{n}d {mode}", lambda c=conv, m=mode: c(4, 6, 3, padding=1, padding_mode=m), shape)
        add(f"conv{n}d same", lambda c=conv: c(4, 6, 3, padding="same"), shape)
        add(f"conv{n}d groups", lambda c=conv: c(4, 8, 3, stride=2, dilation=2, groups=2, bias=False), shape)
        add(f"conv{n}d depthwise", lambda c=conv: c(4, 4, 3, groups=4), shape)
        add(f"conv{n}d without batch", lambda c=conv: c(4, 6, 3), shape[1:])
        add(f"conv{n}d transposed", lambda c=transposed: c(4, 6, 3, stride=2, padding=1, output_padding=1), shape)
        add(f"conv{n}d transposed groups", lambda c=transposed: c(4, 6, 3, groups=2, dilation=2), shape)
    for kind in _ACTIVATIONS:
        add(kind.__name__, kind, _TOKENS)
    for kind in _INPLACE:
        add(f"{kind.__name__} in place", lambda k=kind: nn.Sequential(nn.Linear(16, 16), k(inplace=True)), _TOKENS)
    add("PReLU of channels", lambda: nn.PReLU(4), _IMAGE)
    add("GELU tanh", lambda: nn.GELU("tanh"), _TOKENS)
    for kind in (nn.Softmax, nn.LogSoftmax, nn.Softmin):
        add(kind.__name__, lambda k=kind: k(-1), _TOKENS)
    add("Softmax2d", nn.Softmax2d, _IMAGE)
    add("Threshold", lambda: nn.Threshold(0.1, 20), _TOKENS)
    add("AdaptiveLogSoftmaxWithLoss", lambda: nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5]).log_prob, (6, 16))
    for n, shape in ((1, _LINE), (2, _IMAGE), (3, _VOLUME)):
        batch, instance = getattr(nn, f"BatchNorm{n}d"), getattr(nn, f"InstanceNorm{n}d")
        add(f"BatchNorm{n}d", lambda k=batch: k(4), shape)
        add(f"BatchNorm{n}d evaluating", lambda k=batch: k(4).eval(), shape)
        add(f"BatchNorm{n}d of batches", lambda k=batch: k(4, track_running_stats=False, affine=False), shape)
        add(f"InstanceNorm{n}d", lambda k=instance: k(4), shape)
        add(f"InstanceNorm{n}d affine", lambda k=instance: k(4, affine=True, track_running_stats=True), shape)
        for name in ("MaxPool", "AvgPool", "LPPool"):
            kind = getattr(nn, f"{name}{n}d", None)
            if kind is None:  # not every release of torch has all of them
                continue
            add(f"{name}{n}d", lambda k=kind, lp=name == "LPPool": k(2, 3) if lp else k(3), shape)
            add(f"{name}{n}d ceil", lambda k=kind, lp=name == "LPPool": (
                k(2, 3, 2, True) if lp else k(3, 2, 1, ceil_mode=True)), shape)  # fmt: skip
        for name in ("AdaptiveMaxPool", "AdaptiveAvgPool"):
            for size in (1, 3):
                adaptive = getattr(nn, f"{name}{n}d")
                add(f"{name}{n}d {size}", lambda k=adaptive, s=size: k(s), shape)
        if n > 1:
            fractional = getattr(nn, f"FractionalMaxPool{n}d")
            add(f"FractionalMaxPool{n}d", lambda k=fractional: k(2, output_size=3), shape)
            add(f"Dropout{n}d", getattr(nn, f"Dropout{n}d"), shape)
        add(f"MaxUnpool{n}d", lambda m=n: Unpooled(m), shape)
        for name in ("Reflection", "Replication", "Zero", "Constant", "Circular"):
            kind = getattr(nn, f"{name}Pad{n}d")
            add(f"{name}Pad{n}d", lambda k=kind, c=name == "Constant": k(1, 2.0) if c else k(1), shape)
    for kind in (nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout):
        add(kind.__name__, kind, _LINE)
    add("Dropout in place", lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5, inplace=True)), _TOKENS)
    add("SyncBatchNorm evaluating", lambda: nn.SyncBatchNorm(4).eval(), _IMAGE)
    add("GroupNorm", lambda: nn.GroupNorm(2, 4), _IMAGE)
    add("LayerNorm", lambda: nn.LayerNorm(16), _TOKENS)
    add("LayerNorm plain", lambda: nn.LayerNorm(16, elementwise_affine=False), _TOKENS)
    if hasattr(nn, "RMSNorm"):
        add("RMSNorm", lambda: nn.RMSNorm(16), _TOKENS)
    add("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), _IMAGE)
    add("CrossMapLRN2d", lambda: nn.CrossMapLRN2d(3), _IMAGE)
    add("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(16, 8)), _TOKENS)
    add("spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 8)), _TOKENS)
    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        for options in ({}, {"num_layers": 2, "dropout": 0.1}, {"bidirectional": True, "batch_first": True},
                        {"bias": False}):  # fmt: skip
            name = f"{kind.__name__} {' '.join(options)}"
            add(name.strip(), lambda k=kind, o=options: k(16, 8, **o), _TOKENS)
    add("RNN relu", lambda: nn.RNN(16, 8, nonlinearity="relu"), _TOKENS)
    add("LSTM proj", lambda: nn.LSTM(16, 8, proj_size=4), _TOKENS)
    for kind in (nn.RNNCell, nn.LSTMCell, nn.GRUCell):
        add(kind.__name__, lambda k=kind: k(16, 8), (2, 16))
    add("Linear", lambda: nn.Linear(16, 8), _TOKENS)
    add("Linear without bias", lambda: nn.Linear(16, 8, bias=False), (2, 16))
    add("Linear of a vector", lambda: nn.Linear(16, 8), (16,))
    add("Bilinear", lambda: nn.Bilinear(16, 16, 8), (2, 16), (2, 16))
    add("Patches", lambda: nn.Sequential(nn.Conv2d(4, 6, 2, 2), nn.Flatten(2), Turned()), _IMAGE)
    add(
        "Unflatten",
        lambda: nn.Sequential(nn.Linear(16, 8), nn.Identity(), nn.Flatten(), nn.Unflatten(1, (4, 10))),
        _TOKENS,
    )
    add("Embedding", lambda: nn.Embedding(20, 16, padding_idx=0), ("i", 2, 5))
    add("Embedding max_norm", lambda: nn.Embedding(20, 16, scale_grad_by_freq=True), ("i", 2, 5))
    for mode in ("sum", "mean", "max"):
        add(f"EmbeddingBag {mode}", lambda m=mode: nn.EmbeddingBag(20, 16, mode=m), ("i", 2, 5))
    add("EmbeddingBag offsets", lambda: nn.EmbeddingBag(20, 16), ("i", 10), ("i", 3))
    for mode, shape in (("nearest", _LINE), ("linear", _LINE), ("nearest", _IMAGE), ("nearest-exact", _IMAGE),
                        ("bilinear", _IMAGE), ("bicubic", _IMAGE), ("nearest", _VOLUME), ("trilinear", _VOLUME),
                        ("area", _IMAGE)):  # fmt: skip
        add(f"Upsample {mode} {len(shape) - 2}d", lambda m=mode: nn.Upsample(scale_factor=2, mode=m), shape)
        add(f"Upsample to {mode} {len(shape) - 2}d", lambda m=mode: nn.Upsample(5, mode=m), shape)
    add("Upsample aligned", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), _IMAGE)
    add("interpolate antialias", lambda: Call(lambda x: F.interpolate(x, 5, mode="bilinear", antialias=True)), _IMAGE)
    for n, shape in ((1, _LINE), (3, _VOLUME)):
        add(f"Upsample nearest-exact {n}d", lambda: nn.Upsample(scale_factor=2, mode="nearest-exact"), shape)
    add(
        "interpolate bicubic antialias",
        lambda: Call(lambda x: F.interpolate(x, 5, mode="bicubic", antialias=True)),
        _IMAGE,
    )
    add("PixelShuffle", lambda: nn.PixelShuffle(2), _IMAGE)
    add("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), _IMAGE)
    add("ChannelShuffle", lambda: nn.ChannelShuffle(2), _IMAGE)
    add("Unfold", lambda: nn.Unfold(3, padding=1), _IMAGE)
    add("Fold", lambda: nn.Fold(8, 2, stride=2), (2, 16, 16))
    add("CosineSimilarity", nn.CosineSimilarity, _TOKENS, _TOKENS)
    add("PairwiseDistance", nn.PairwiseDistance, _TOKENS, _TOKENS)
    _attention(add)
    _losses(add)
    return found


class Turned(nn.Module):
    """Places before channels, as a transformer of pictures has them."""

    def forward(self, x):
        return x.transpose(1, 2) * 2


class Unpooled(nn.Module):
    """Pooled with the places of the largest values, and back."""

    def __init__(self, n):
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{n}d")(2, return_indices=True)
        self.back = getattr(nn, f"MaxUnpool{n}d")(2)

    def forward(self, x):
        return self.back(*self.pool(x))


def _attention(add):
    def multi(**options):
        mask = options.pop("mask", None)
        layer = nn.MultiheadAttention(16, 4, batch_first=True, **options)
        call = Call(lambda x: layer(x, x, x, need_weights=mask == "weights", **_masks(mask, x)))
        call.layer = layer
        return call

    for mask in (None, "weights", "added", "boolean", "padding"):
        add(f"MultiheadAttention {mask}", lambda m=mask: multi(mask=m), _TOKENS)
    add("MultiheadAttention bias_kv", lambda: multi(add_bias_kv=True, add_zero_attn=True, dropout=0.1), _TOKENS)
    add("MultiheadAttention kdim", lambda: Cross(nn.MultiheadAttention(16, 4, kdim=8, vdim=8, batch_first=True)),
        _TOKENS, (2, 7, 8))  # fmt: skip
    add("MultiheadAttention evaluating", lambda: multi().eval(), _TOKENS)
    for activation in ("relu", "gelu"):
        add(f"TransformerEncoderLayer {activation}", lambda a=activation: nn.TransformerEncoderLayer(
            16, 4, 32, activation=a, batch_first=True), _TOKENS)  # fmt: skip
    add("TransformerEncoderLayer norm_first", lambda: nn.TransformerEncoderLayer(16, 4, 32, norm_first=True), _TOKENS)
    add("TransformerEncoderLayer evaluating", lambda: nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True).eval(), _TOKENS)  # fmt: skip
    add("TransformerEncoder", lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, nn.LayerNorm(16)), _TOKENS)  # fmt: skip
    add("TransformerEncoder causal", lambda: Causal(nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)), _TOKENS)  # fmt: skip
    add("TransformerDecoder", lambda: nn.TransformerDecoder(
        nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2), _TOKENS, (2, 7, 16))  # fmt: skip
    add("Transformer", lambda: nn.Transformer(16, 4, 1, 1, 32, batch_first=True), _TOKENS, (2, 7, 16))


class Cross(nn.Module):
    """Attention of one sequence on another."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, y):
        return self.layer(x, y, y)


class Causal(nn.Module):
    """An encoder in which each token sees those before it."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layer(x, mask=mask, is_causal=True)


def _masks(kind, x):
    s = x.shape[1]
    if kind == "added":
        return {"attn_mask": torch.full((s, s), -math.inf).triu(1)}
    if kind == "boolean":
        return {"attn_mask": torch.ones(s, s, dtype=torch.bool).triu(1)}
    if kind == "padding":
        return {"key_padding_mask": torch.zeros(x.shape[0], s, dtype=torch.bool)}
    return {}


def _losses(add):
    same = (2, 16)
    for kind in (nn.L1Loss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss, nn.KLDivLoss,
                 nn.PoissonNLLLoss):  # fmt: skip
        for reduction in ("mean", "none"):
            add(f"{kind.__name__} {reduction}", lambda k=kind, r=reduction: k(reduction=r), same, same)
    add("SoftMarginLoss", lambda: Call(lambda x, y: F.soft_margin_loss(x, y.detach())), same, same)
    add("BCELoss", lambda: Call(lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid())), same, same)
    add("GaussianNLLLoss", lambda: Call(lambda x, y: F.mse_loss(x, y) / y.exp().clamp(min=1e-6).mean()), same, same)
    for reduction in ("mean", "none"):
        add(f"CrossEntropyLoss {reduction}", lambda r=reduction: nn.CrossEntropyLoss(reduction=r), same, ("i", 2))
    add("CrossEntropyLoss smoothed", lambda: nn.CrossEntropyLoss(label_smoothing=0.1), same, ("i", 2))
    add("CrossEntropyLoss weighted", lambda: nn.CrossEntropyLoss(weight=torch.ones(16), ignore_index=0), same, ("i", 2))
    add("CrossEntropyLoss of probabilities", nn.CrossEntropyLoss, same, same)
    add("CrossEntropyLoss of images", nn.CrossEntropyLoss, _IMAGE, ("i", 2, 8, 8))
    add("NLLLoss", nn.NLLLoss, same, ("i", 2))
    add("MultiMarginLoss", nn.MultiMarginLoss, same, ("i", 2))
    add("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, same, ("i", 2, 16))
    add("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, same, same)
    add("HingeEmbeddingLoss", nn.HingeEmbeddingLoss, same, same)
    add("CosineEmbeddingLoss", nn.CosineEmbeddingLoss, same, same, ("i", 2))
    add("MarginRankingLoss", nn.MarginRankingLoss, same, same, ("i", 2, 16))
    add("TripletMarginLoss", nn.TripletMarginLoss, same, same, same)
    add("CTCLoss", lambda: Call(lambda x: F.ctc_loss(
        x.log_softmax(-1), torch.ones(2, 3, dtype=torch.int64), (7, 7), (3, 3))), (7, 2, 16))  # fmt: skip


_UNARY_NAMES = """
    abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square sin cos tan asin acos atan sinh cosh asinh
    acosh atanh ceil floor round trunc frac sign erf erfc erfinv sinc reciprocal logit lgamma digamma i0 nan_to_num
    deg2rad isnan isinf isfinite logical_not signbit
"""
_BINARY_NAMES = """
    add sub mul div pow fmod remainder maximum minimum atan2 hypot logaddexp
    eq ne lt le gt ge logical_and logical_or xlogy copysign fmax fmin
"""


def _functions():
    t, m, k = (2, 5, 16), (2, 5), ("i", 2, 5, 16)
    found = {}

    def add(name, function, *shapes):
        found[name] = (lambda: Call(function), shapes)

    for name in _UNARY_NAMES.split():
        add(name, getattr(torch, name), t)
    for name in _BINARY_NAMES.split():
        add(name, getattr(torch, name), t, t)
        add(f"{name} broadcast", getattr(torch, name), t, (5, 1))
        function = getattr(torch, name)
        add(f"{name} scalar", lambda x, f=function: f(x, torch.tensor(2.0)), t)
    for name in ("sum", "mean", "prod", "amax", "amin", "std", "var", "all", "any", "argmax", "argmin", "max", "min",
                 "median", "logsumexp", "cumsum", "cumprod", "norm", "aminmax", "count_nonzero", "nansum",
                 "nanmean", "logcumsumexp", "cummax", "cummin"):  # fmt: skip
        function = getattr(torch, name)
        if name not in ("logsumexp", "cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"):
            add(f"{name} of all", function, t)
        add(f"{name} of one", lambda x, f=function: f(x, dim=1), t)
        if name in ("sum", "mean", "amax", "std", "var", "norm"):
            add(f"{name} kept", lambda x, f=function: f(x, dim=(0, 2), keepdim=True), t)
    for name, other in (("mixed", ("i", 2, 5, 16)), ("of truth", ("b", 2, 5, 16))):
        add(f"add {name}", lambda x, y: x + y, t, other)
        add(f"mul {name}", lambda x, y: x * y, t, other)
    add("truths", lambda x: x * torch._is_all_true(x > 0) + x * torch._is_any_true(x > 0), t)
    add("numbers", lambda x: (1 - x) / 3 + x**2 + 2**x + (x - 1) * 2, t)
    add("half", lambda x: (x.half() * x.half()).float() + x.bfloat16(), t)
    add("double", lambda x: x.double() * x, t)
    add("integers", lambda x: (x + 1) * 2 // 3 % 2, k)
    add("floor_divide", lambda x, y: x + torch.floor_divide(x, y).detach() + torch.floor_divide(y, 2).detach(), t, t)
    add("lerp", lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y) + torch.addcdiv(x, x, y.exp()), t, t)
    add("clamp", lambda x: x.clamp(0, 1) + x.clamp(min=0) + x.clip(max=x.detach()), t)
    add("where", lambda x, y: torch.where(x > 0, x, y) + torch.where(x > 0, x, 0.0), t, t)
    add("masked_fill", lambda x: x.masked_fill(x > 0, -math.inf).masked_fill_(x < 0, 0.0), t)
    add("masked_scatter", lambda x, y: x.masked_scatter(x > 0, y), t, t)
    add("tri", lambda x: x.tril() + x.triu(1), (2, 5, 5))
    add("bmm", torch.bmm, (2, 5, 6), (2, 6, 7))
    add("mm", torch.mm, (5, 6), (6, 7))
    add("mv", torch.mv, (5, 6), (6,))
    add("dot", torch.dot, (6,), (6,))
    add("outer", torch.outer, (5,), (6,))
    add("addmm", torch.addmm, (5, 7), (5, 6), (6, 7))
    add("baddbmm", lambda x, y, z: torch.baddbmm(x, y, z, alpha=0.5), (2, 5, 7), (2, 5, 6), (2, 6, 7))
    add("matmul", torch.matmul, (3, 2, 5, 6), (2, 6, 7))
    add("matmul of a vector", torch.matmul, (3, 2, 5, 6), (6,))
    add("matmul transposed", lambda x, y: x @ y.mT, t, t)
    add("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), t, t)
    add("einsum of four", lambda x, y: torch.einsum("bhid,bhjd->bhij", x, y), (2, 3, 5, 4), (2, 3, 6, 4))
    add("einsum outer", lambda x, y: torch.einsum("bi,bj->bij", x, y), m, m)
    add("tensordot", lambda x, y: torch.tensordot(x, y, dims=2), t, (5, 16, 3))
    add("kron", torch.kron, (2, 3), (4, 5))
    add("cdist", torch.cdist, t, (2, 6, 16))
    add("attention", F.scaled_dot_product_attention, (2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    add("attention causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (2, 4, 5, 8))
    add("attention masked", lambda q: F.scaled_dot_product_attention(q, q, q, torch.ones(5, 5).tril().bool()),
        (2, 4, 5, 8))  # fmt: skip
    add("attention dropout", lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1), (2, 4, 5, 8))
    add("gather", lambda x, i: x.gather(1, i), t, ("i", 2, 3, 16))
    add("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 1), t, ("i", 2, 3, 16))
    add("scatter", lambda x, y, i: x.scatter(1, i, y), t, (2, 3, 16), ("i", 2, 3, 16))
    add("scatter of a number", lambda x, i: x.scatter(1, i, 1.0), t, ("i", 2, 3, 16))
    add("scatter_add", lambda x, y, i: x.scatter_add(1, i, y), t, (2, 3, 16), ("i", 2, 3, 16))
    add("scatter_reduce", lambda x, y, i: x.scatter_reduce(1, i, y, "amax"), t, (2, 3, 16), ("i", 2, 3, 16))
    add("scatters in place", lambda x, y, i: x.clone().scatter_(1, i, y).scatter_add_(1, i, y).scatter_reduce_(
        1, i, y.detach(), "sum"), t, (2, 3, 16), ("i", 2, 3, 16))  # fmt: skip
    add("index_copy in place", lambda x, y, i: x.clone().index_copy_(1, i, y), t, (2, 3, 16), ("i", 3))
    add("truth of several", lambda x: x + (x.any(dim=(0, 1)) & x.all(dim=(0, 1))) + x.count_nonzero(dim=(0, 1)), t)
    add("index", lambda x, i: x[:, i], t, ("i", 3))
    add("index of two", lambda x, i: x[i, i], t, ("i", 3))
    add("index_select", lambda x, i: x.index_select(1, i), t, ("i", 3))
    add("index_put", lambda x, y, i: x.clone().index_put((i,), y), t, (3, 5, 16), ("i", 3))
    add("assignment", _assigned, t)
    add("index_add", lambda x, y, i: x.index_add(1, i, y), t, (2, 3, 16), ("i", 3))
    add("index_copy", lambda x, y, i: x.index_copy(1, i, y), t, (2, 3, 16), ("i", 3))
    add("index_fill", lambda x, i: x.index_fill(1, i, 0.0), t, ("i", 3))
    add("sort", lambda x: x.sort(1)[0], t)
    add("argsort", lambda x: x.gather(1, x.argsort(1)), t)
    add("topk", lambda x: x.topk(3)[0], t)
    add("kthvalue", lambda x: x.kthvalue(2)[0], t)
    add("searchsorted", lambda x, y: torch.searchsorted(x, y) + torch.bucketize(y, x[0, 0]), t, t)
    add("one_hot", lambda x, i: torch.zeros(2, 5, 7).scatter(2, i.unsqueeze(2), 1.0).sum() * x, t, ("i", 2, 5))
    add("cat", lambda x, y: torch.cat([x, y], 1), t, (2, 3, 16))
    add("stack", lambda x, y: torch.stack([x, y], 1), t, t)
    add("split", lambda x: [p * 2 for p in x.split(2, 1)] + list(x.chunk(4, 2)), t)
    add("unbind", lambda x: sum(x.unbind(1)), t)
    add("repeat", lambda x: x.repeat(2, 1, 3), t)
    add("repeat_interleave", lambda x: x.repeat_interleave(2, 1), t)
    add("tile", lambda x: x.tile(2, 2), t)
    add("expand", lambda x: x.unsqueeze(1).expand(2, 3, 5, 16) * 2, t)
    add("permuted", lambda x: (x.permute(2, 0, 1) * 2).contiguous().flatten().view(5, 32).relu(), t)
    add("transposed sums", lambda x: (x.mT + x.mT).softmax(-1).sum(0), t)
    add("channels last", lambda x: F.relu(x.to(memory_format=torch.channels_last) * 2), _IMAGE)
    add("reshaped", lambda x: x.mT.reshape(2, 80).unflatten(1, (8, 10)).movedim(1, 2).squeeze(), t)
    add("strided", lambda x: x[:, ::2, 1:-1] * x[:, ::2, :-2], t)
    add("narrow", lambda x: x.narrow(1, 1, 3) + x.select(1, 0).unsqueeze(1) + x.diagonal(dim1=1, dim2=2).sum(), t)
    add("unfold", lambda x: x.unfold(1, 3, 1).mean(-1), t)
    add("flip", lambda x: x.flip(1) + x.roll(1, 2) + torch.rot90(x, 2, (1, 2)), t)
    add("pad", lambda x: F.pad(x, (1, 2)) + F.pad(x, (2, 1), value=3.0), t)
    add("diag", lambda x: torch.diag_embed(x) + torch.diag(x[0]), m)
    add("meshgrid", lambda x: torch.meshgrid(x, x, indexing="ij")[0], (5,))
    add("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), _IMAGE, (2, 5, 5, 2))
    add("grid_sample of volumes", lambda x, g: F.grid_sample(x, g, align_corners=True), _VOLUME, (2, 5, 5, 5, 3))
    add("affine_grid", lambda x: F.affine_grid(x, [2, 3, 5, 5], align_corners=False), (2, 2, 3))
    add("normalize", lambda x: F.normalize(x, dim=1), t)
    add("norms", lambda x: torch.linalg.norm(x, dim=-1) + torch.linalg.vector_norm(x, 1, -1), t)
    add(
        "made",
        lambda x: (
            x
            + torch.arange(16)
            + torch.linspace(0, 1, 16)
            + torch.ones(16)
            + torch.eye(16)[0]
            + torch.full_like(x, 2)
            + torch.zeros_like(x)
            + torch.rand_like(x)
            + torch.randn(16)
            + torch.randint(3, (16,))
            + torch.randn_like(x)
            + torch.randint(1, 3, (16,))
            + torch.ones_like(x)
        ),
        t,
    )
    add("positions", _positions, t)
    add("rotary", _rotary, (2, 5, 4, 8))
    add("gumbel_softmax", lambda x: F.gumbel_softmax(x, hard=True), t)
    add("dropouts", lambda x: F.dropout(x, 0.2) + F.alpha_dropout(x, 0.2, training=True), t)
    add("multinomial", lambda x: x.softmax(-1).multinomial(2).float() + x.mean(), m)
    add("packed", lambda x: nn.utils.rnn.pack_padded_sequence(x, [5, 3], batch_first=True).data, t)
    add("packed steps first", lambda x: nn.utils.rnn.pack_padded_sequence(x, [2, 2, 1, 1, 1]).data, t)
    add("bernoulli", lambda x: x.sigmoid().bernoulli() * x, t)
    add("detached", lambda x: x + x.detach().clone(), t)
    add("softmax of halves", lambda x: x.half().softmax(-1, dtype=torch.float32), t)
    add("lstsq", lambda x: torch.linalg.solve(x + torch.eye(5), x), (2, 5, 5))
    add("inverse", lambda x: torch.linalg.inv(x) + torch.linalg.det(x)[:, None, None], (2, 5, 5))
    add("cholesky", lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(5)), (2, 5, 5))
    add("cumulative", lambda x: x.cumsum(1).cumprod(2).diff(dim=1), t)
    add("cross", torch.linalg.cross, (2, 3), (2, 3))
    add("histogram", lambda x: x + x.detach().abs().sum(-1, keepdim=True).clamp_min(1).log2().ceil(), t)
    for name in ("fft", "rfft", "fft2", "rfft2", "fftn", "ifft"):
        function = getattr(torch.fft, name)
        add(f"fft {name}", lambda x, f=function: torch.view_as_real(f(x).resolve_conj()), t)
    add("fft back", lambda x: torch.fft.irfft(torch.fft.rfft(x)), t)
    add("complex", lambda x, y: (torch.complex(x, y) * torch.complex(y, x)).abs() + torch.polar(x, y).angle(), t, t)
    add("stft", lambda x: torch.stft(x, 8, window=torch.ones(8), return_complex=True).abs(), (2, 64))
    return found


def _assigned(x):
    y = x.clone()
    y[:, 0] = 0.0
    y[:, 1] += 1.0
    y[..., 2:4] = x[..., 4:6]
    return y.add_(x).mul_(2).div_(3.0).sub_(1).clamp_(0, 1)


def _positions(x):
    at = torch.arange(x.shape[1]).unsqueeze(1)
    rates = torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))
    return x + torch.cat([torch.sin(at * rates), torch.cos(at * rates)], -1)


def _rotary(x):
    a, b = x.chunk(2, -1)
    angle = torch.outer(torch.arange(5.0), torch.arange(4.0))[None, :, None, :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


LAYERS = _layers()
FUNCTIONS = _functions()
