"""Results of kernels that make new tensors on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import elementwise_strides, strided


def of_size(at: int = 0, dtype: str = "") -> Any:
    """A rule for a new tensor whose size is the argument at ``at``; the four after it are those of all factories."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        size = args[at] if not isinstance(args[at], int) else (args[at],)
        return _made(size, args[at + 1 :], getattr(torch, dtype) if dtype else torch.get_default_dtype())

    return rule


def square(args: Sequence[Any]) -> Tensor | None:
    """``eye``."""
    return _made((args[0], args[0]), args[1:], torch.get_default_dtype())


def drawn_numbers(with_low: bool) -> Any:
    """A rule for ``randint``."""
    made = of_size(1 + with_low, "int64")
    return lambda args: made(args) if (args[0] if with_low else 0) < args[int(with_low)] else None


def normal_like(args: Sequence[Any]) -> Tensor | None:
    """``rand_like`` and ``randn_like``, which integers cannot be."""
    made = new_like(args)
    return made if made is not None and made.is_floating_point() else None


def counting(with_start: bool, with_step: bool) -> Any:
    """A rule for ``arange``."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        n = 1 + with_start + with_step
        start, end, step = (args[0] if with_start else 0), args[int(with_start)], (args[2] if with_step else 1)
        if not all(isinstance(v, int | float) and isfinite(v) for v in (start, end, step)) or not step:
            return None
        length = ceil((end - start) / step)
        kind = torch.int64 if all(isinstance(v, int) for v in (start, end, step)) else torch.get_default_dtype()
        return _made((length,), args[n:], kind) if length >= 0 else None

    return rule


def _made(size: Any, options: Sequence[Any], dtype: torch.dtype) -> Tensor | None:
    kind, layout, device, is_pinned = options[:4]
    if is_pinned or device is None or torch.device(device).type != "meta" or layout not in (None, torch.strided):
        return None
    return torch.empty(tuple(size), dtype=kind if isinstance(kind, torch.dtype) else dtype, device="meta")


def new_like(args: Sequence[Any]) -> Tensor | None:
    """``zeros_like`` and its kind: of the first argument's shape and order of dimensions, maybe of another type."""
    x = args[0]
    dtype, layout, device, is_pinned, memory = args[-5:]
    if (
        is_pinned
        or not x.is_meta
        or layout not in (None, torch.strided)
        or (device is not None and torch.device(device).type != "meta")
    ):
        return None
    strides = elementwise_strides(x.shape, [x])
    if memory is torch.contiguous_format:
        strides = None
    elif memory not in (None, torch.preserve_format):
        return None
    return strided(x, x.shape, strides, dtype)


def copied(args: Sequence[Any]) -> Tensor | None:
    """``clone``."""
    x, memory = args
    if not x.is_meta or memory not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    return strided(x, x.shape, None if memory is torch.contiguous_format else elementwise_strides(x.shape, [x]))
