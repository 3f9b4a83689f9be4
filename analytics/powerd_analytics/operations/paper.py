"""The equations of Castro et al. for one layer and one sample: operations, values read and values written."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import LayerCount

if TYPE_CHECKING:
    import torch


class PaperHook:
    """Collects a `LayerCount` for each call of a module without modules inside."""

    def __init__(self, batch_size: int = 0) -> None:
        """``batch_size``: samples in the first dimension of what the model is given; 0: whatever a layer has there."""
        self.batch_size = batch_size
        self.is_open = True
        """False in backward, whose calls (of checkpoints) are no part of the convention."""
        self.layers: list[LayerCount] = []
        self.not_counted: dict[str, None] = {}
        self.seen: set[str] = set()

    def hook(self, name: str) -> Callable[..., None]:
        """A forward hook for the module of that name."""

        def leave(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            import torch

            if not self.is_open:
                return
            kind = type(module).__name__
            self.seen.add(name)
            count = None
            both = (inputs[0] if inputs else None, output)
            # Nested tensors have dimensions that are no numbers.
            if all(isinstance(t, torch.Tensor) and not t.is_nested for t in both):
                count = operations_of(module, inputs[0], output)
            if count is None:
                self.not_counted.setdefault(f"{name} ({kind})")
                return
            x, y = tuple(inputs[0].shape[1:]), tuple(output.shape[1:])
            times = self._times(inputs[0])
            read = times * prod(x) + weights_of(module)
            layer = LayerCount(name, kind, times * count, x, y, read, times * prod(y))
            self.layers.append(layer)

        return leave

    def _times(self, x: torch.Tensor) -> int:
        """How often one sample comes in the first dimension: once, or more where others were folded into it."""
        n, batch = x.shape[0] if x.dim() else 1, self.batch_size
        return n // batch if batch and n and not n % batch else 1


def has_equation(module: torch.nn.Module) -> bool:
    """Whether it is a convolution or fully connected, even with modules inside: normalised or quantised weights."""
    from torch import nn
    from torch.nn.modules import conv

    return isinstance(module, conv._ConvNd | nn.Linear)


def operations_of(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> int | None:
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


def weights_of(module: torch.nn.Module) -> int:
    """Weights of convolutions and fully connected layers, as the layer has them (kw*kh*cin*cout / groups); no biases.

    The paper prints kw*kh*cin, but the megabytes of its table 1 follow only with kw*kh*cin*cout.
    """
    from torch import nn
    from torch.nn.modules import conv

    m: Any = module
    if isinstance(module, conv._ConvNd):
        return int(prod(m.kernel_size) * m.in_channels * m.out_channels // m.groups)
    # By its lengths: a weight that is made from others would be made once more.
    return int(m.in_features * m.out_features) if isinstance(module, nn.Linear) else 0
