"""Counts of the layers of one batch by the equations of Castro et al. (`powerd_client.training.layer_operations`)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from powerd_analytics.operations.counts import LayerCount
from powerd_client.training.layer_operations import operations_of, weights_of

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
