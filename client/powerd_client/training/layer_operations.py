"""Operations of a model's layers by equations 1 to 7 of Castro et al., "Energy-based tuning of convolutional neural
networks on multi-GPUs": for one sample, forward, a multiply-add as one operation. And the layers of a watched model,
with their classes, shapes and operations, as its first forward pass in training shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from powerd_client.energies.phase import Attribute

if TYPE_CHECKING:
    import torch

WATCHED_MODEL = "watched-model"
"""The event that says what a watched model is made of: ``model``, ``operations_per_sample`` where all of its layers
have an equation, else ``not_counted``, and ``layers``."""
MOST_LAYERS = 400
"""In the event: a line of a table each, and an event has a limit."""


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


class FirstPass:
    """What one forward pass of a model shows of its layers. It hears of every call by a hook of PyTorch that is there
    during this pass alone, so that nothing of the model itself is changed."""

    def __init__(
        self, model: torch.nn.Module, label: str, attributes: Mapping[str, Attribute], batch_size: int
    ) -> None:
        """``label``: the model's name; ``batch_size``: as it is stated, 0 where it is not."""
        from torch.nn.modules.module import register_module_forward_hook

        self._label, self._batch_size = label, batch_size
        self._is_stated = "operations_per_sample" in attributes
        names = {id(module): name for name, module in model.named_modules()}
        leaves = [m for m in model.modules() if next(m.children(), None) is None or has_equation(m)]
        self._names = {id(module): names[id(module)] or type(module).__name__ for module in leaves}
        self._layers: dict[str, list[object]] = {}
        self._operations = 0
        self._not_counted: dict[str, None] = {}
        self._handle = register_module_forward_hook(self._heard)

    def _heard(self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        import torch

        name = self._names.get(id(module))
        if name is None or torch.compiler.is_compiling():
            return
        try:
            self._count(name, module, inputs[0] if inputs else None, output)
        except Exception:  # noqa: BLE001  (whatever tensors are: a training step must not fail for its description)
            self._not_counted.setdefault(f"{name} ({type(module).__name__})")

    def _count(self, name: str, module: torch.nn.Module, x: Any, y: Any) -> None:
        import torch

        is_plain = all(isinstance(t, torch.Tensor) and not t.is_nested for t in (x, y))
        operations = operations_of(module, x, y) if is_plain else None
        if operations is None and any(True for _ in module.parameters(recurse=False)):
            self._not_counted.setdefault(f"{name} ({type(module).__name__})")
        self._layers.setdefault(name, [type(module).__name__, list(y.shape[1:]) if is_plain else None])
        if operations is not None:
            rows = x.shape[0] if x.dim() else 1
            # A sample comes once in the first dimension, or more often where others were folded into it.
            self._batch_size = self._batch_size or rows
            self._operations += operations * (rows // self._batch_size if rows % self._batch_size == 0 else 1)

    def end(self) -> dict[str, object] | None:
        """The values of the event `WATCHED_MODEL`; None where nothing was seen."""
        self._handle.remove()
        if not self._layers:
            return None
        layers = [[name, *about] for name, about in list(self._layers.items())[:MOST_LAYERS]]
        event: dict[str, object] = {"model": self._label, "layers": layers}
        if self._not_counted:
            event["not_counted"] = list(self._not_counted)[:20]
        elif self._operations and not self._is_stated:
            event["operations_per_sample"] = self._operations
        return event
