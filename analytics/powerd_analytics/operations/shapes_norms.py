"""Results of normalisations on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import as_suggested, is_plain, is_real, like


def batch_norm(args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """Output, and the batch's mean and deviation."""
    x = args[0]
    if not x.is_meta or x.dim() < 2 or not _is_one_type(x, args[1:5]):
        return None
    channels = (x.shape[1],)
    if any(a is not None and tuple(a.shape) != channels for a in args[1:5]):
        return None
    return as_suggested(x), *_statistics(x, channels)


def _is_one_type(x: Tensor, others: Sequence[Tensor | None]) -> bool:
    """Real numbers; beside short ones the parameters may all be of single precision."""
    kinds = {a.dtype for a in others if a is not None}
    return x.is_floating_point() and (kinds <= {x.dtype} or (_is_short(x) and kinds <= {torch.float32}))


def _is_short(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def _statistics(x: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and deviation: of short types in single precision, as accelerators keep them."""
    kind = torch.float32 if _is_short(x) else x.dtype
    return x.new_empty(shape, dtype=kind), x.new_empty(shape, dtype=kind)


def batch_norm_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias."""
    x, mask = args[1], args[9]
    return _gradients(args[0], x, args[2], (x.shape[1],), mask, as_suggested)


def layer_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Output, and mean and deviation over the last dimensions, which stay with length 1."""
    x, over = args[0], args[1]
    if any(a is not None and tuple(a.shape) != tuple(over) for a in args[2:4]) or not _is_one_type(x, args[2:4]):
        return None
    if not x.is_meta or tuple(x.shape[x.dim() - len(over) :]) != tuple(over):
        return None
    kept = (*x.shape[: x.dim() - len(over)], *(1 for _ in over))
    return like(x), *_statistics(x, kept)


def layer_norm_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias."""
    grad, x, over, weight, mask = args[0], args[1], args[2], args[5], args[7]
    return _gradients(grad, x, weight, tuple(over), mask, like)


def group_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Output, and mean and deviation of each group."""
    x, n, channels, places, groups = args[0], *args[3:7]
    if any(a is not None and tuple(a.shape) != (channels,) for a in args[1:3]) or tuple(x.shape[:2]) != (n, channels):
        return None
    if not x.is_meta or x.numel() != n * channels * places or channels % groups or not is_real([x, *args[1:3]]):
        return None
    return as_suggested(x), x.new_empty((n, groups)), x.new_empty((n, groups))


def group_norm_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias."""
    grad, x, weight, channels, mask = args[0], args[1], args[4], args[6], args[9]
    return _gradients(grad, x, weight, (channels,), mask, as_suggested)


def _gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    shape: tuple[int, ...],
    mask: Sequence[bool],
    layout: Callable[[Tensor], Tensor],
) -> tuple[Tensor | None, ...] | None:
    if not grad.is_meta or not x.is_meta or not x.is_floating_point():
        return None
    kind = x.dtype if weight is None else weight.dtype
    return (
        layout(x) if mask[0] else None,
        x.new_empty(shape, dtype=kind) if mask[1] else None,
        x.new_empty(shape, dtype=kind) if mask[2] else None,
    )


def weight_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """The weights, and their norms in the shape of ``g``."""
    v, g, dim = args
    fits = dim in (0, v.dim() - 1) and tuple(g.shape) == tuple(n if i == dim else 1 for i, n in enumerate(v.shape))
    return (like(v), like(g)) if fits and is_plain(v, g) and v.dtype == g.dtype == torch.float32 else None


def weight_norm_backward(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """Gradients of both."""
    v, g = args[1], args[2]
    return (like(v), like(g)) if is_plain(v, g) else None
