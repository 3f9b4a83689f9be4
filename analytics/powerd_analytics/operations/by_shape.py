"""Kernels run on ``meta``: by our own rules where there is one, else by torch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from powerd_analytics.operations.most_places import asks_for_values
from powerd_analytics.operations.refusals import LackError
from powerd_analytics.operations.shapes import shaped
from powerd_analytics.operations.shapes_layout import on_meta
from powerd_analytics.operations.stand_in import StandIn


def run_shapes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a kernel returns on ``meta``: by our own rules, else by torch's."""
    out = shaped(func, args, kwargs)
    if out is not None:
        return out
    if asks_for_values(func, args):
        raise LackError(f"{func} depends on values")  # torch takes longer to say so: it imports its compiler first
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

    def __init__(self, stand_in: StandIn | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._stand_in = stand_in
        self.has_failed = False
        """A kernel raised, whether somebody caught that or not."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        def go(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            return run_shapes(func, args, kwargs)

        with torch._C.DisableTorchFunction():
            if self._stand_in is None:
                try:
                    return go(args, kwargs or {})
                except Exception:
                    self.has_failed = True
                    raise
            return self._stand_in.run(func, args, kwargs or {}, go, lambda _out: None)
