"""Kernels run on ``meta``: by our own rules where there is one, else by torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from powerd_analytics.operations.shapes import shaped
from powerd_analytics.operations.shapes_layout import on_meta


def run_shapes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a kernel returns on ``meta``: by our own rules, else by torch's."""
    out = shaped(func, args, kwargs)
    if out is not None:
        return out
    return run_as_torch(func, args, kwargs)


def run_as_torch(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What torch's own kernel on ``meta`` returns."""
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        if not any(isinstance(a, Tensor) and not a.is_meta for a in args):
            raise
        # A tensor that the model keeps as a plain attribute was left where it is: its shape serves as well.
        moved = tree_map_only(Tensor, lambda t: t if t.is_meta else on_meta(t), args)
        return func(*moved, **kwargs)


class ShapesMode(TorchDispatchMode):  # type: ignore[misc, no-untyped-call, unused-ignore]
    """Makes a model by shapes alone where our rules know the kernel, and counts nothing."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            made = shaped(func, args, kwargs or {})
            return made if made is not None else func(*args, **(kwargs or {}))
