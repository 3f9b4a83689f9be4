"""Operations of a model, counted on torch's ``meta`` device: shapes without memory, the user's model untouched."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from powerd_core.errors import AnalysisError

if TYPE_CHECKING:
    import torch

CONVENTION = "paper"
"""One multiply-add is one operation, forward pass only: equations 1 to 7 of Castro et al., "Energy-based tuning of
convolutional neural networks on multi-GPUs"."""


@dataclass(frozen=True, slots=True)
class LayerCount:
    """One call of one layer for one sample."""

    name: str
    kind: str
    operations: int
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Operations of one forward pass for one sample, by layer."""

    layers: tuple[LayerCount, ...]
    not_counted: tuple[str, ...]
    """Layers that ran, or hold parameters, and for which the convention has no equation: ``name (Kind)``."""
    convention: str = CONVENTION

    @property
    def total(self) -> int:
        """Sum over the layers that are counted."""
        return sum(layer.operations for layer in self.layers)


def count_operations(model: torch.nn.Module, sample_shape: Sequence[int]) -> OperationCount:
    """Count a model's operations for one sample of ``sample_shape`` (without the batch dimension).

    Raises `AnalysisError` when the model does not run on a sample of that shape.
    """
    import torch

    try:
        shadow = copy.deepcopy(model, _meta_memo(model)).to("meta").eval()
    except Exception as error:
        raise AnalysisError(f"the model cannot be copied to count its operations: {error}") from error
    layers: list[LayerCount] = []
    not_counted: dict[str, None] = {}
    seen: set[str] = set()
    for name, module in shadow.named_modules():
        if not any(True for _ in module.children()):
            module.register_forward_hook(_hook(name or type(module).__name__, layers, not_counted, seen))
    try:
        with torch.no_grad():
            shadow(torch.empty(1, *sample_shape, device="meta"))
    except Exception as error:
        raise AnalysisError(f"the model does not run on a sample of shape {tuple(sample_shape)}: {error}") from error
    for name, module in shadow.named_modules():
        own = any(True for _ in module.parameters(recurse=False))
        label = f"{name or type(module).__name__} ({type(module).__name__})"
        if own and name not in seen and (name or type(module).__name__) not in seen:
            not_counted.setdefault(label)
    return OperationCount(tuple(layers), tuple(not_counted))


def _meta_memo(model: torch.nn.Module) -> dict[int, Any]:
    """A memo with which deepcopy puts a shape in the place of each parameter and buffer: nothing is allocated."""
    import torch

    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = torch.nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    for b in model.buffers():
        memo[id(b)] = torch.empty_like(b, device="meta")
    return memo


def _hook(name: str, layers: list[LayerCount], not_counted: dict[str, None], seen: set[str]) -> Callable[..., None]:
    def hook(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        import torch

        kind = type(module).__name__
        seen.add(name)
        if not inputs or not isinstance(inputs[0], torch.Tensor) or not isinstance(output, torch.Tensor):
            not_counted.setdefault(f"{name} ({kind})")
            return
        count = _operations(module, inputs[0], output)
        if count is None:
            not_counted.setdefault(f"{name} ({kind})")
            return
        layers.append(LayerCount(name, kind, count, tuple(inputs[0].shape[1:]), tuple(output.shape[1:])))

    return hook


def _operations(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> int | None:
    """Operations of one layer for one sample; None when the convention has no equation for it."""
    from torch import nn
    from torch.nn.modules import batchnorm, conv, dropout, pooling

    m: Any = module
    values_in, values_out = prod(x.shape[1:]), prod(y.shape[1:])
    # The paper's equation adds cout for a convolution's bias, not one addition a value.
    bias = m.out_channels if isinstance(module, conv._ConvNd) and m.bias is not None else 0
    if isinstance(module, conv._ConvTransposeNd):
        # The same products seen from the input: each of its values meets kernel x cout / groups weights.
        return int(values_in * prod(m.kernel_size) * m.out_channels // m.groups + bias)
    if isinstance(module, conv._ConvNd):
        # kw * kh * wout * hout * cin * cout / groups
        return int(prod(m.kernel_size) * values_out * m.in_channels // m.groups + bias)
    if isinstance(module, nn.Linear):
        # On a sequence it works once a position.
        return int(prod(y.shape[1:-1]) * m.in_features * m.out_features)
    if isinstance(module, pooling._MaxPoolNd | pooling._AvgPoolNd):
        size = m.kernel_size
        spatial = y.dim() - 2
        return int(values_out * (prod(size) if isinstance(size, tuple) else size**spatial))
    if isinstance(module, pooling._AdaptiveAvgPoolNd | pooling._AdaptiveMaxPoolNd):
        # Its windows tile the input: every value is taken once.
        return values_in
    if isinstance(module, nn.ReLU | nn.ReLU6 | nn.LeakyReLU | dropout._DropoutNd):
        return values_in
    if isinstance(module, batchnorm._NormBase | nn.LocalResponseNorm):
        return 2 * values_in
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmax2d):
        return 3 * values_in
    if isinstance(module, nn.Identity | nn.Flatten | nn.Unflatten):
        return 0
    return None
