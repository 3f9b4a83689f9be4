"""Results of padding, resizing and reordering pictures on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import (
    as_suggested,
    is_plain,
    is_real,
    like,
)


def resized(n: int, size_at: int = 1) -> Any:
    """A rule for [n, c, *in] to [n, c, *size], the last ``n`` dimensions as the argument at ``size_at`` says."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        x, size = args[0], args[size_at]
        if not x.is_meta or x.dim() not in (n + 1, n + 2) or len(size) != n or min(size) < 1 or 0 in x.shape:
            return None
        shape = (*x.shape[:-n], *size)
        return as_suggested(x, shape) if x.dim() == n + 2 else x.new_empty(shape)

    return rule


def fractional(n: int) -> Any:
    """The same for pooling in windows of uneven distances, of which the draws [n, c, dimensions] are an argument."""
    plain = resized(n, 2)

    def rule(args: Sequence[Any]) -> Tensor | None:
        x, kernel, size, draws = args
        reach = all(out + k - 1 <= length for out, k, length in zip(size, kernel, x.shape[-n:], strict=True))
        fits = x.dim() == n + 2 and tuple(draws.shape) == (*x.shape[:2], n) and min(kernel) > 0 and reach
        return plain(args) if fits and x.is_floating_point() and draws.dtype == x.dtype else None

    return rule


def unpooled(n: int) -> Any:
    """The same for values put back into their places."""
    plain = resized(n, 2)

    def rule(args: Sequence[Any]) -> Tensor | None:
        x, places = args[:2]
        fits = x.shape == places.shape and places.dtype == torch.int64 and places.is_meta
        windows = all(s > 0 for s in args[3]) and all(p >= 0 for p in args[4]) if n == 3 else True
        return plain(args) if fits and windows else None

    return rule


def upsampled(n: int) -> Any:
    """The same for upsampling, which takes only batches."""
    plain = resized(n)
    return lambda args: plain(args) if args[0].dim() == n + 2 else None


def plain_volumes(rule: Any) -> Any:
    """The same result, contiguous."""

    def contiguous(args: Sequence[Any]) -> Tensor | None:
        made = rule(args)
        return None if made is None else like(made)

    return contiguous


def sized_as(at: int) -> Any:
    """A rule for a gradient whose shape is an argument."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        return as_suggested(args[0], tuple(args[at])) if args[0].is_meta else None

    return rule


def padded(args: Sequence[Any]) -> Tensor | None:
    """Reflection and replication: [..., *in] with so many more before and after, from the last dimension on."""
    x, pad = args[0], args[1]
    n = len(pad) // 2
    if not x.is_meta or x.dim() not in (n + 1, n + 2) or 0 in x.shape or min(pad) < 0 or x.dtype == torch.bool:
        return None
    shape = [*x.shape]
    for i in range(n):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    return as_suggested(x, shape)


def reflected(args: Sequence[Any]) -> Tensor | None:
    """No more than what is there can be reflected."""
    x, pad = args[0], args[1]
    return padded(args) if all(p < x.shape[-1 - i // 2] for i, p in enumerate(pad)) else None


def padded_with_number(args: Sequence[Any]) -> Tensor | None:
    """The same with a number, which may also cut off."""
    x, pad = args[0], args[1]
    if not x.is_meta or len(pad) % 2 or len(pad) > 2 * x.dim():
        return None
    shape = [*x.shape]
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    return as_suggested(x, shape) if min(shape, default=1) > 0 else None


def pixel_shuffle(args: Sequence[Any]) -> Tensor | None:
    """[..., c f^2, h, w] to [..., c, h f, w f]."""
    x, f = args
    if not x.is_meta or x.dim() < 3 or f < 1 or x.shape[-3] % f**2:
        return None
    return as_suggested(x, (*x.shape[:-3], x.shape[-3] // f**2, x.shape[-2] * f, x.shape[-1] * f))


def pixel_unshuffle(args: Sequence[Any]) -> Tensor | None:
    """[..., c, h f, w f] to [..., c f^2, h, w]."""
    x, f = args
    if not x.is_meta or x.dim() < 3 or f < 1 or x.shape[-2] % f or x.shape[-1] % f:
        return None
    return as_suggested(x, (*x.shape[:-3], x.shape[-3] * f**2, x.shape[-2] // f, x.shape[-1] // f))


def channel_shuffle(args: Sequence[Any]) -> Tensor | None:
    """[n, c, ...] with channels in another order."""
    x, groups = args
    return like(x) if is_plain(x) and x.dim() > 2 and groups > 0 and x.shape[1] % groups == 0 else None


def grid_sampler(args: Sequence[Any]) -> Tensor | None:
    """[n, c, *in] at [n, *out, dimensions] to [n, c, *out]."""
    x, grid = args[0], args[1]
    n = x.dim() - 2
    if args[2] not in (0, 1, 2) or args[3] not in (0, 1, 2):
        return None
    if (
        not is_real([x, grid])
        or not is_real([grid])
        or grid.dim() != x.dim()
        or grid.shape[-1] != n
        or grid.shape[0] != x.shape[0]
    ):
        return None
    made: Tensor | None = x.new_empty((*x.shape[:2], *grid.shape[1:-1])) if 0 not in x.shape else None
    return made


def grid_sampler_backward(args: Sequence[Any]) -> tuple[Tensor | None, Tensor] | None:
    """Gradients of input and grid."""
    x, grid, mask = args[1], args[2], args[6]
    return (like(x) if mask[0] else None, like(grid)) if args[0].is_meta and x.is_meta and grid.is_meta else None


def affine_grid(args: Sequence[Any]) -> Tensor | None:
    """[n, d, d + 1] and the output's size [n, c, *out] to [n, *out, d]."""
    theta, size = args[0], args[1]
    n = len(size) - 2
    fits = is_real([theta]) and min(size) > 0 and tuple(theta.shape) == (size[0], n, n + 1)
    made: Tensor | None = theta.new_empty((size[0], *size[2:], n)) if fits else None
    return made
