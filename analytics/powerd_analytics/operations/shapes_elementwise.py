"""Results of element-wise kernels: shapes by broadcasting, types by torch's promotion, strides by the operands'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import elementwise_strides, names, strided

_TRUTH = names(
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite isposinf isneginf signbit"
)
_INTEGERS = names(
    "add sub mul rsub remainder fmod floor_divide maximum minimum neg abs sign sgn clamp clamp_min clamp_max "
    "bitwise_and bitwise_or bitwise_xor bitwise_not where masked_fill pow fill "
    "__lshift__ __rshift__ bitwise_left_shift bitwise_right_shift"
)
"""Whose result is of the operands' type where that is an integer; others divide, or make floating-point numbers."""
_ROOTS = names(
    "div true_divide exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal sigmoid logit sin cos tan asin acos "
    "atan sinh cosh tanh asinh acosh atanh erf erfc erfinv sinc lgamma digamma i0 deg2rad rad2deg atan2 angle"
)
"""That make floating-point numbers of integers and of truths."""
_DRAWS = names("fill zero random bernoulli logical_and logical_or logical_not eq ne lt le gt ge")
_SHIFTS = names("__lshift__ __rshift__ bitwise_left_shift bitwise_right_shift")
_NEVER_REAL = names("bitwise_and bitwise_or bitwise_xor") | _SHIFTS
_MIXED = names("add sub mul div rsub pow where")
"""That make floating-point numbers of integers and a number that is none."""
_TRUTHS_TOO = names("bitwise_and bitwise_or bitwise_xor bitwise_not mul where masked_fill")
_NOT_OF_ONE_TYPE = _TRUTH | _NEVER_REAL
_COMPLEX = names("add sub mul div neg sgn where masked_fill")
_TYPE_IS_FIRSTS = frozenset(("masked_fill", "fill", "copy"))
_NOT_COUNTED_AMONG_OPERANDS = frozenset(("where", "masked_fill"))
# Their second argument is a number that takes no part in the type, or their result is no plain function of operands.
EXCLUDED = names(
    "real imag view_as_real ldexp frexp isclose heaviside float_power "
    "_conj_physical conj_physical bucketize searchsorted special_polygamma nextafter gcd lcm _to_copy to_sparse"
)


def elementwise(name: str, args: Sequence[Any]) -> Tensor | None:
    """What the element-wise kernel ``name`` makes of ``args``; None where torch should say."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    first, is_imaginary = tensors[0], any(isinstance(a, complex) for a in args)
    # Most calls: of one shape and type, in order.
    if first.is_floating_point() and name not in _NOT_OF_ONE_TYPE and not is_imaginary:
        kind, size = first.dtype, first.shape
        if all(t.is_meta and t.dtype == kind and t.shape == size and t.is_contiguous() for t in tensors):
            made: Tensor = first.new_empty(size)
            return made
    has_meta = any(t.is_meta for t in tensors)
    if not has_meta or any(not t.is_meta and t.dim() for t in tensors):
        return None
    number = any(isinstance(a, int | float | complex) for a in args[:2])
    shape = broadcast([t.shape for t in tensors])
    dtype = _dtype(name, args, tensors)
    if shape is None or dtype is None:
        return None
    on = next(t for t in tensors if t.is_meta)
    return strided(on, shape, elementwise_strides(shape, tensors, with_number=number), dtype)


def in_place(name: str, args: Sequence[Any]) -> Tensor | None:
    """The first argument itself: what its values become does not matter."""
    first = args[0]
    others = [a for a in args[1:] if isinstance(a, Tensor)]
    if not first.is_meta or any(not t.is_meta and t.dim() for t in others):
        return None
    if broadcast([first.shape, *(t.shape for t in others)]) != tuple(first.shape):
        return None
    if not first.is_floating_point() and name not in _INTEGERS | _DRAWS:
        return None
    if 0 in first.stride() or (
        first.is_complex() and name not in _COMPLEX
    ):  # torch refuses to write where several values are one
        return None
    if first.dtype == torch.bool and name not in _TRUTHS_TOO | _DRAWS:
        return None
    if name == "fill" and any(t.dim() for t in others):
        return None
    kinds = {_category(t.dtype) for t in others} | {_category(type(a)) for a in args[1:] if isinstance(a, int | float)}
    return first if all(k <= _category(first.dtype) for k in kinds) else None


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """The common shape, None where there is none."""
    if len({tuple(s) for s in shapes}) == 1:
        return tuple(shapes[0])
    n = max(len(s) for s in shapes)
    found = [1] * n
    for shape in shapes:
        for i, size in enumerate(shape, n - len(shape)):
            if size != 1 and found[i] not in (1, size):
                return None
            found[i] = size if size != 1 else found[i]
    return tuple(found)


def _dtype(name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> torch.dtype | None:
    if name in _TRUTH:
        return torch.bool
    if name == "div" and any(isinstance(a, str) for a in args):
        name = "floor_divide"
    operands = [a for a in args if isinstance(a, Tensor | int | float | complex)]
    if name in _NOT_COUNTED_AMONG_OPERANDS:  # the condition
        condition = 0 if name == "where" else 1
        if not isinstance(args[condition], Tensor) or args[condition].dtype != torch.bool:
            return None
        operands = [a for i, a in enumerate(args) if i != condition]
        tensors = [a for a in operands if isinstance(a, Tensor)]
    if name in _TYPE_IS_FIRSTS:
        kinds = [_category(a.dtype if isinstance(a, Tensor) else type(a)) for a in operands]
        return tensors[0].dtype if max(kinds) <= kinds[0] else None
    dtypes = {t.dtype for t in tensors}
    if name in _NEVER_REAL and any(d.is_floating_point or d.is_complex for d in dtypes):
        return None
    if name in _SHIFTS and torch.bool in dtypes:
        return None
    if name in _ROOTS and not any(t.is_floating_point() or t.is_complex() for t in tensors):
        return torch.get_default_dtype() if not any(isinstance(a, complex) for a in operands) else None
    if len(dtypes) == 1 and tensors[0].is_floating_point() and not any(isinstance(a, complex) for a in operands):
        return tensors[0].dtype
    if len(dtypes) == 1 and len(operands) == len(tensors):
        dtype = tensors[0].dtype
    elif len(operands) == 2 or (name in ("add", "sub") and len(operands) == 3):
        dtype = torch.result_type(operands[0], operands[1])
    else:
        return None
    if dtype.is_floating_point:
        is_real = any(t.is_floating_point() for t in tensors)
        return dtype if name in _MIXED or (is_real and len(operands) == len(tensors)) else None
    known = _COMPLEX if dtype.is_complex else _TRUTHS_TOO if dtype == torch.bool else _INTEGERS
    return dtype if name in known else None


def _category(dtype: Any) -> int:
    """Truth, integer, real, complex: what a type can be written into without loss of kind."""
    if isinstance(dtype, torch.dtype):
        return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype == torch.bool else 1
    return {bool: 0, int: 1, float: 2}.get(dtype, 3)
