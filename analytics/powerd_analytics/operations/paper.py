"""Operations of layers by equations 1 to 7 of Castro et al., "Energy-based tuning of convolutional neural networks on
multi-GPUs": for one sample, forward, a multiply-add as one operation."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import LayerCount

if TYPE_CHECKING:
    import torch


class PaperHook:
    """Collects a `LayerCount` for each call of a module without modules inside."""

    def __init__(self, batch_size: int) -> None:
        """``batch_size``: samples in the first dimension of what the model is given."""
        self.batch_size = batch_size
        self.is_open = True
        """False in backward, whose calls (of checkpoints) are no part of the convention."""
        self.layers: list[LayerCount] = []
        self.not_counted: dict[str, None] = {}
        self.seen: set[str] = set()

    def hook(self, name: str) -> Callable[..., None]:
        """A forward hook for the module of that name."""
        import torch

        def leave(module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not self.is_open:
                return
            self.seen.add(name)
            kind = type(module).__name__
            x: Any = inputs[0] if inputs else None
            count = None
            # Nested tensors have dimensions that are no numbers.
            if all(isinstance(t, torch.Tensor) and not t.is_nested for t in (x, output)):
                count = operations_of(module, x, output)
            if count is None or x is None:
                self.not_counted.setdefault(f"{name} ({kind})")
                return
            # A sample comes once in the first dimension, or more often where others were folded into it.
            n = x.shape[0] if x.dim() else 1
            times = n // self.batch_size if n and not n % self.batch_size else 1
            x_shape, y_shape = tuple(x.shape[1:]), tuple(output.shape[1:])
            read, written = times * prod(x_shape) + weights_of(module), times * prod(y_shape)
            self.layers.append(LayerCount(name, kind, times * count, x_shape, y_shape, read, written))

        return leave


def has_equation(module: torch.nn.Module) -> bool:
    """Whether it is a convolution or fully connected, even with modules inside: normalised or quantised weights."""
    from torch import nn

    return isinstance(module, nn.modules.conv._ConvNd | nn.Linear)


def operations_of(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> int | None:
    """Operations of one layer for one sample; None when the convention has no equation for it."""
    from torch import nn
    from torch.nn.modules import batchnorm, conv, dropout, pooling

    m: Any = module
    values_in, values_out = prod(x.shape[1:]), prod(y.shape[1:])
    if isinstance(module, conv._ConvNd):
        # kw * kh * wout * hout * cin * cout / groups; transposed the same products are seen from the input.
        is_transposed = isinstance(module, conv._ConvTransposeNd)
        values = values_in * m.out_channels if is_transposed else values_out * m.in_channels
        # The paper's equation adds cout for a bias, not one addition a value.
        return int(prod(m.kernel_size) * values // m.groups + (m.out_channels if m.bias is not None else 0))
    if isinstance(module, nn.Linear):
        # On a sequence it works once a position.
        return int(prod(y.shape[1:-1]) * m.in_features * m.out_features)
    if isinstance(module, pooling._MaxPoolNd | pooling._AvgPoolNd):
        size = m.kernel_size
        return int(values_out * (prod(size) if isinstance(size, tuple) else size ** (y.dim() - 2)))
    if isinstance(module, nn.ReLU | nn.ReLU6 | nn.LeakyReLU | dropout._DropoutNd):
        return values_in
    if isinstance(module, pooling._AdaptiveAvgPoolNd | pooling._AdaptiveMaxPoolNd):
        return values_in  # its windows tile the input: every value is taken once
    if isinstance(module, batchnorm._NormBase | nn.LocalResponseNorm):
        return 2 * values_in
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmax2d):
        return 3 * values_in
    return 0 if isinstance(module, nn.Identity | nn.Flatten | nn.Unflatten) else None


def weights_of(module: torch.nn.Module) -> int:
    """Weights of convolutions and fully connected layers, as the layer has them (kw*kh*cin*cout / groups); no biases.

    The paper prints kw*kh*cin, but the megabytes of its table 1 follow only with kw*kh*cin*cout.
    """
    m: Any = module
    if not has_equation(module):
        return 0
    # By its lengths: a weight that is made from others would be made once more.
    if hasattr(m, "in_features"):
        return int(m.in_features * m.out_features)
    return int(prod(m.kernel_size) * m.in_channels * m.out_channels // m.groups)
