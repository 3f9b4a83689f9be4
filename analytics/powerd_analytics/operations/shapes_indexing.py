"""Results of picking from tensors and writing into them on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_elementwise import broadcast
from powerd_analytics.operations.shapes_layout import (
    is_plain,
    like,
)

_INTEGERS = (torch.int64, torch.int32)


def gather(args: Sequence[Any]) -> Tensor | None:
    """Of the index's shape."""
    x, dim, index = args[:3]
    made: Tensor | None = x.new_empty(index.shape) if _reaches(x, dim, index) else None
    return made


def scatter(args: Sequence[Any]) -> Tensor | None:
    """The first argument with other values in places."""
    x, dim, index, source = args[:4]
    if not _reaches(x, dim, index):
        return None
    if isinstance(source, Tensor) and (source.dtype != x.dtype or not _is_inside(index, source)):
        return None
    return like(x)


def scatter_in_place(args: Sequence[Any]) -> Tensor | None:
    """The first argument itself."""
    return args[0] if scatter(args) is not None and 0 not in args[0].stride() else None


def _reaches(x: Tensor, dim: int, index: Tensor) -> bool:
    n = x.dim()
    if not x.is_meta or not index.is_meta or index.dtype != torch.int64 or index.dim() != n or not n:
        return False
    return -n <= dim < n and all(index.shape[i] <= x.shape[i] for i in range(n) if i != dim % n)


def _is_inside(index: Tensor, source: Tensor) -> bool:
    return source.dim() == index.dim() and all(a <= b for a, b in zip(index.shape, source.shape, strict=True))


def index(args: Sequence[Any]) -> Tensor | None:
    """``x[:, i, j]``: places of integers beside each other become those of the indices."""
    x, indices = args[:2]
    shape = indexed_shape(x, indices)
    made: Tensor | None = x.new_empty(shape) if shape is not None and x.is_contiguous() else None
    return made


def index_put(args: Sequence[Any]) -> Tensor | None:
    """The first argument with other values in places."""
    x, indices, values = args[:3]
    shape = indexed_shape(x, indices)
    if shape is None or not is_plain(x) or values.dtype != x.dtype or broadcast([values.shape, shape]) != shape:
        return None
    return like(x)


def indexed_shape(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, ...] | None:
    """The shape of ``x[indices]`` for integers beside each other, else None."""
    at = [i for i, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if not at or at != list(range(at[0], at[-1] + 1)) or len(indices) > x.dim() or not x.is_meta:
        return None
    if any(i.dtype not in _INTEGERS or not i.is_contiguous() or not i.is_meta for i in given):
        return None
    places = broadcast([i.shape for i in given])
    return None if places is None else (*x.shape[: at[0]], *places, *x.shape[at[-1] + 1 :])


def along(args: Sequence[Any]) -> Tensor | None:
    """``index_add`` and ``index_copy``: as many slices of the first argument as the index has places."""
    x, dim, index, source = args[:4]
    n = x.dim()
    if not is_plain(x) or index.dtype not in _INTEGERS or index.dim() != 1 or not n or not -n <= dim < n:
        return None
    wanted = [index.shape[0] if i == dim % n else size for i, size in enumerate(x.shape)]
    return like(x) if list(source.shape) == wanted and source.dtype == x.dtype else None


def along_in_place(args: Sequence[Any]) -> Tensor | None:
    """The first argument itself."""
    return args[0] if along(args) is not None and 0 not in args[0].stride() else None


def index_fill(args: Sequence[Any]) -> Tensor | None:
    """A number in some slices."""
    x, dim, index = args[:3]
    fits = is_plain(x) and index.dtype == torch.int64 and index.dim() < 2 and -x.dim() <= dim < x.dim()
    return like(x) if fits else None


def masked_scatter(args: Sequence[Any]) -> Tensor | None:
    """The first argument with other values where the mask is true."""
    x, mask, source = args
    fits = mask.dtype == torch.bool and mask.shape == x.shape and source.dtype == x.dtype
    return like(x) if fits and is_plain(x, mask) else None


def embedding(args: Sequence[Any]) -> Tensor | None:
    """[rows, width] and any indices to [*indices, width]."""
    weight, indices = args[:2]
    fits = weight.dim() == 2 and weight.is_meta and indices.is_meta and indices.dtype in _INTEGERS
    return weight.new_empty((*indices.shape, weight.shape[1])) if fits and is_plain(weight, indices) else None


def embedding_bag(args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """[rows, width], indices and where bags begin to [bags, width], and what backward needs, as on an accelerator."""
    weight, indices, offsets, mode, includes_last = args[0], args[1], args[2], args[4], args[7]
    if not is_plain(weight, indices, offsets) or indices.dim() != 1 or offsets.dim() != 1:
        return None
    bags = offsets.shape[0] - bool(includes_last)
    if bags < 1 or indices.dtype != offsets.dtype or not weight.is_floating_point():
        return None
    largest = (bags, weight.shape[1]) if mode == 2 else (0,)
    return (
        weight.new_empty((bags, weight.shape[1])), offsets.new_empty(indices.shape), offsets.new_empty((bags,)),
        offsets.new_empty(largest),
    )  # fmt: skip


def embedding_bag_backward(args: Sequence[Any]) -> Tensor | None:
    """[bags, width] to [rows, width]; a sparse gradient is torch's."""
    grad, rows, is_sparse = args[0], args[6], args[9]
    return grad.new_empty((rows, grad.shape[1])) if grad.is_meta and not is_sparse else None


def back_into(args: Sequence[Any]) -> Tensor | None:
    """A gradient with zeros where nothing was picked."""
    made: Tensor | None = args[0].new_empty(tuple(args[1])) if args[0].is_meta else None
    return made


def drawn(args: Sequence[Any]) -> Tensor | None:
    """``multinomial``: so many numbers of columns for each row."""
    x, count, again = args[:3]
    if not x.is_meta or x.dim() not in (1, 2) or not x.is_floating_point() or count < 1:
        return None
    if not again and count > x.shape[-1]:
        return None
    made: Tensor = x.new_empty((*x.shape[:-1], count), dtype=torch.int64)
    return made


def places_in(args: Sequence[Any]) -> Tensor | None:
    """``searchsorted``: where each value of the second belongs in the rows of the first."""
    rows, x, short = args[:3]
    fits = rows.dim() == 1 or (rows.dim() == x.dim() and rows.shape[:-1] == x.shape[:-1])
    return x.new_empty(x.shape, dtype=torch.int32 if short else torch.int64) if fits and is_plain(rows, x) else None
