"""Results of joining, repeating and ordering tensors on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import (
    as_suggested,
    elementwise_strides,
    is_channels_last,
    is_plain,
    laid_out,
    like,
    strided,
)


def cat(args: Sequence[Any]) -> Tensor | None:
    """Tensors behind each other."""
    tensors, dim = args
    first = tensors[0]
    n = first.dim()
    if (
        not n
        or not -n <= dim < n
        or not all(t.is_meta for t in tensors)
        or any(t.dtype != first.dtype or t.dim() != n for t in tensors)
    ):
        return None
    at = dim % n
    if any(t.shape[i] != first.shape[i] for t in tensors for i in range(n) if i != at):
        return None
    length = sum(t.shape[at] for t in tensors)
    shape = [length if i == at else size for i, size in enumerate(first.shape)]
    return laid_out(first, shape, channels_last=all(is_channels_last(t) for t in tensors))


def stack(args: Sequence[Any]) -> Tensor | None:
    """Tensors of one shape along a new dimension."""
    tensors, dim = args
    first = tensors[0]
    n = first.dim() + 1
    if not -n <= dim < n or not all(t.is_meta for t in tensors):
        return None
    if any(t.dtype != first.dtype or t.shape != first.shape for t in tensors):
        return None
    at = dim % n
    joined = cat((tensors, at)) if at < first.dim() and all(is_channels_last(t) for t in tensors) else None
    if joined is not None:  # torch joins them along a dimension that is there, which then becomes two
        return joined.view((*joined.shape[:at], len(tensors), first.shape[at], *joined.shape[at + 1 :]))
    shape = [*first.shape]
    shape.insert(at, len(tensors))
    made: Tensor = first.new_empty(shape)
    return made


def packed(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[t, n, *] to [sum of lengths, *], and the sequences that there are in each step; lengths have values."""
    x, lengths, is_batch_first = args
    if (
        lengths.is_meta
        or lengths.dtype != torch.int64
        or lengths.dim() != 1
        or not x.is_meta
        or x.dim() < 2
        or 0 in x.shape
    ):
        return None
    known: list[int] = lengths.tolist()
    steps, batch = x.shape[1 if is_batch_first else 0], x.shape[0 if is_batch_first else 1]
    if len(known) != batch or known[-1] < 1 or known[0] > steps or known != sorted(known, reverse=True):
        return None
    ends = [0] * known[0]
    for n in known:
        ends[n - 1] += 1
    sizes = list(accumulate(reversed(ends)))[::-1]
    return x.new_empty((sum(known), *x.shape[2:])), torch.tensor(sizes, device="cpu")


def repeat(args: Sequence[Any]) -> Tensor | None:
    """Each dimension so many times."""
    x, times = args
    missing = len(times) - x.dim()
    if missing < 0 or min(times, default=0) < 1 or not x.is_meta:
        return None
    made: Tensor = x.new_empty([a * b for a, b in zip((*[1] * missing, *x.shape), times, strict=True)])
    return made


def same(args: Sequence[Any]) -> Tensor | None:
    """Of the first argument's shape, type and order of dimensions."""
    x = args[0]
    return strided(x, x.shape, elementwise_strides(x.shape, [x])) if x.is_meta else None


def rolled(args: Sequence[Any]) -> Tensor | None:
    """Values moved along dimensions that are there."""
    x, shifts, dims = args
    fits = x.is_meta and all(-x.dim() <= d < x.dim() for d in dims) and len(shifts) == (len(dims) or 1)
    return as_suggested(x) if fits else None


def flipped(args: Sequence[Any]) -> Tensor | None:
    """Values in the opposite order along dimensions that are there."""
    x, dims = args
    fits = all(-x.dim() <= d < x.dim() for d in dims) and len({d % x.dim() for d in dims}) == len(dims)
    return same(args) if fits else None


def half_turns(args: Sequence[Any]) -> Tensor | None:
    """``rot90`` by an even number."""
    x, k, dims = args
    fits = k % 2 == 0 and len(dims) == 2 and all(-x.dim() <= d < x.dim() for d in dims)
    fits = fits and dims[0] % x.dim() != dims[1] % x.dim()
    return like(x) if fits and is_plain(x) else None


def triangle(args: Sequence[Any]) -> Tensor | None:
    """Of the same shape."""
    x = args[0]
    return like(x) if x.is_meta and x.dim() > 1 else None


def diag_embed(args: Sequence[Any]) -> Tensor | None:
    """[..., k] to [..., k + |offset|, k + |offset|] in the places of two dimensions."""
    x, offset, first, second = args
    n = x.dim() + 1
    if not x.is_meta or not x.dim() or not all(-n <= d < n for d in (first, second)):
        return None
    places = sorted((first % n, second % n))
    if places[0] == places[1]:
        return None
    shape = [*x.shape[:-1]]
    for at in places:
        shape.insert(at, x.shape[-1] + abs(offset))
    made: Tensor = x.new_empty(shape)
    return made


def ordered(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """``sort``: values, and where they were."""
    x, dim = args[:2]
    fits = x.is_meta and (-x.dim() <= dim < x.dim() or not x.dim())
    strides = elementwise_strides(x.shape, [x])
    return (strided(x, x.shape, strides), strided(x, x.shape, strides, torch.int64)) if fits else None


def largest(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """``topk``: so many values, and where they were."""
    x, k, dim = args[:3]
    n = x.dim()
    if not x.is_meta or not n or not -n <= dim < n or not 0 < k <= x.shape[dim]:
        return None
    shape = [k if i == dim % n else size for i, size in enumerate(x.shape)]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def one_of(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """``kthvalue``: a value, and where it was."""
    x, k, dim, keeps = args
    n = x.dim()
    if not x.is_meta or not n or not -n <= dim < n or not 0 < k <= x.shape[dim]:
        return None
    shape = [1 if i == dim % n else size for i, size in enumerate(x.shape) if keeps or i != dim % n]
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)
