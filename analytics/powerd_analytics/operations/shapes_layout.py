"""Strides of new tensors as torch's own kernels choose them, from shapes and strides alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor


def is_plain(*tensors: Tensor | None) -> bool:
    """On ``meta``, and of strides that a result does not inherit: it will be contiguous."""
    return all(t is None or (t.is_meta and (t.is_contiguous() or _descends(t))) for t in tensors)


def _descends(x: Tensor) -> bool:
    """Dimensions in their usual order, as in a slice or an expanded tensor."""
    strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    return strides == sorted(strides, reverse=True)


def like(x: Tensor) -> Tensor:
    """Contiguous, of the same shape and type."""
    return x.new_empty(x.shape)  # empty_like is one of those that are computed in Python


def is_real(tensors: Sequence[Tensor | None]) -> bool:
    """On ``meta``, the first of real numbers, and none of complex ones or of another real type."""
    given = [t for t in tensors if t is not None]
    first = given[0]
    kinds = {t.dtype for t in given if t.is_floating_point() or t.is_complex()}
    return first.is_floating_point() and kinds == {first.dtype} and all(t.is_meta for t in given)


def names(text: str) -> frozenset[str]:
    """Names with spaces between them."""
    return frozenset(text.split())


def pick(values: Sequence[int], i: int) -> int:
    """Of a setting that is given for each dimension, or once for all."""
    return values[i] if len(values) > 1 else values[0]


def elementwise_strides(
    shape: Sequence[int], tensors: Sequence[Tensor], *, with_number: bool = False
) -> tuple[int, ...] | None:
    """Strides of what an element-wise kernel makes of ``tensors``, broadcast to ``shape``; None: contiguous.

    As torch's TensorIterator: dimensions in the order of the operands' strides, the first operand that tells two apart
    decides; densely packed. ``with_number``: a plain number is an operand too.
    """
    same_shape = all(tuple(t.shape) == tuple(shape) for t in tensors) and not with_number
    if same_shape:
        if all(t.is_contiguous() for t in tensors):
            return None
        strides = tensors[0].stride()
        if _is_dense(shape, strides) and all(t.stride() == strides for t in tensors):
            return strides
    elif 1 not in shape and all(t.is_contiguous() and (not t.dim() or tuple(t.shape) == tuple(shape)) for t in tensors):
        return None
    n = len(shape)
    known = []
    for t in tensors:
        missing = n - t.dim()
        own = [0 if size == 1 and shape[missing + i] != 1 else t.stride(i) for i, size in enumerate(t.shape)]
        known.append([0] * missing + own)
    order = list(range(n))[::-1]  # the fastest first
    for i in range(1, n):
        at = i
        for j in range(i - 1, -1, -1):
            swaps = _swaps(order[j], order[at], known, shape)
            if swaps > 0:
                order[j], order[at] = order[at], order[j]
                at = j
            elif swaps < 0:
                break
    strides_of = [0] * n
    step = 1
    for dimension in order:
        strides_of[dimension] = step
        step *= shape[dimension]
    return tuple(strides_of)


def _swaps(first: int, second: int, known: Sequence[Sequence[int]], shape: Sequence[int]) -> int:
    """Whether ``second`` is the faster one: 1 yes, -1 no, 0 nobody says."""
    for strides in known:
        a, b = strides[first], strides[second]
        if a == 0 or b == 0:
            continue
        if a != b:
            return 1 if a > b else -1
        if shape[first] > shape[second]:
            return 1
    return 0


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a permutation of the dimensions is contiguous."""
    step = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return prod(shape) > 0


def strided(x: Tensor, shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype | None = None) -> Tensor:
    """Memory without contents, on the device of ``x``, and of its type unless another is given."""
    kind = x.dtype if dtype is None else dtype
    if strides is None:
        made: Tensor = x.new_empty(tuple(shape), dtype=kind)
        return made
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=kind, device=x.device)


def is_channels_last(x: Tensor) -> bool:
    """Whether kernels that know pictures and volumes take channels for the fastest dimension.

    As torch's ``suggest_memory_format``: [n, c, *places], strides growing from channels over the last place to the
    first, and then the batch.
    """
    n = x.dim()
    if n not in (4, 5) or x.stride(1) == 0 or 0 in x.shape:
        return False
    least = 0
    for d in (1, *range(n - 1, 1, -1), 0):
        if x.stride(d) < least or (d == 0 and least == x.stride(1)):
            return False
        least = x.stride(d) * max(1, x.shape[d])
    return True


def laid_out(x: Tensor, shape: Sequence[int], *, channels_last: bool, dtype: torch.dtype | None = None) -> Tensor:
    """Memory without contents of the type of ``x`` unless another is given, contiguous or with channels last."""
    kind = x.dtype if dtype is None else dtype
    if not channels_last:
        made: Tensor = x.new_empty(tuple(shape), dtype=kind)
        return made
    layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.empty(tuple(shape), dtype=kind, device=x.device, memory_format=layout)


def as_suggested(x: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Of the type of ``x``, and with channels last where it has them so; of the same shape unless another is given."""
    return laid_out(x, x.shape if shape is None else shape, channels_last=is_channels_last(x))


def on_meta(x: Tensor) -> Tensor:
    """The shape, type and order of dimensions of any tensor; what is sparse stays so."""
    if x.layout is not torch.strided:
        return x.to("meta")
    strides = elementwise_strides(x.shape, [x])
    if strides is None:
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device="meta")
