"""Results of picking, joining and sorting tensors on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_elementwise import broadcast
from powerd_analytics.operations.shapes_layout import elementwise_strides, is_plain, like, strided

_INTEGERS = (torch.int64, torch.int32)


def gather(args: Sequence[Any]) -> Tensor | None:
    """Of the index's shape."""
    x, dim, index = args[:3]
    made: Tensor | None = x.new_empty(index.shape) if _reaches(x, dim, index) else None
    return made


def scatter(args: Sequence[Any]) -> Tensor | None:
    """The first argument with other values in places."""
    x, dim, index, source = args[:4]
    if not is_plain(x) or not _reaches(x, dim, index):
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
    shape = _indexed(x, indices)
    made: Tensor | None = x.new_empty(shape) if shape is not None and x.is_contiguous() else None
    return made


def index_put(args: Sequence[Any]) -> Tensor | None:
    """The first argument with other values in places."""
    x, indices, values = args[:3]
    shape = _indexed(x, indices)
    if shape is None or not is_plain(x) or values.dtype != x.dtype or broadcast([values.shape, shape]) != shape:
        return None
    return like(x)


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> tuple[int, ...] | None:
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


def cat(args: Sequence[Any]) -> Tensor | None:
    """Tensors behind each other."""
    tensors, dim = args
    first = tensors[0]
    n = first.dim()
    if (
        not n
        or not -n <= dim < n
        or not _joins(tensors)
        or any(t.dtype != first.dtype or t.dim() != n for t in tensors)
    ):
        return None
    at = dim % n
    if any(t.shape[i] != first.shape[i] for t in tensors for i in range(n) if i != at):
        return None
    length = sum(t.shape[at] for t in tensors)
    made: Tensor = first.new_empty([length if i == at else size for i, size in enumerate(first.shape)])
    return made


def _joins(tensors: Sequence[Tensor]) -> bool:
    """Whether what is joined is contiguous: all but tensors whose channels are the fastest dimension."""
    return is_plain(*tensors) or (all(t.is_meta for t in tensors) and tensors[0].dim() < 4)


def stack(args: Sequence[Any]) -> Tensor | None:
    """Tensors of one shape along a new dimension."""
    tensors, dim = args
    first = tensors[0]
    n = first.dim() + 1
    if not -n <= dim < n or not is_plain(*tensors):
        return None
    if any(t.dtype != first.dtype or t.shape != first.shape for t in tensors):
        return None
    shape = [*first.shape]
    shape.insert(dim % n, len(tensors))
    made: Tensor = first.new_empty(shape)
    return made


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
    """Values in another order along dimensions that are there."""
    x = args[0]
    dims = args[-1]
    return like(x) if is_plain(x) and all(-x.dim() <= d < x.dim() for d in dims) else None


def half_turns(args: Sequence[Any]) -> Tensor | None:
    """``rot90`` by an even number."""
    x, k, dims = args
    fits = k % 2 == 0 and len(dims) == 2 and all(-x.dim() <= d < x.dim() for d in dims)
    fits = fits and dims[0] % x.dim() != dims[1] % x.dim()
    return like(x) if fits and is_plain(x) else None


def triangle(args: Sequence[Any]) -> Tensor | None:
    """Of the same shape."""
    x = args[0]
    return like(x) if is_plain(x) and x.dim() > 1 else None


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


def back_into(args: Sequence[Any]) -> Tensor | None:
    """A gradient with zeros where nothing was picked."""
    made: Tensor | None = args[0].new_empty(tuple(args[1])) if args[0].is_meta else None
    return made


def ordered(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """``sort``: values, and where they were."""
    x, dim = args[:2]
    fits = is_plain(x) and (-x.dim() <= dim < x.dim() or not x.dim())
    return (like(x), x.new_empty(x.shape, dtype=torch.int64)) if fits else None


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
