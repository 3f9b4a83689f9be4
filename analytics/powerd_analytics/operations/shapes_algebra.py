"""Results of Fourier transforms, complex numbers and linear algebra on ``meta``, by shape alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_elementwise import elementwise
from powerd_analytics.operations.shapes_layout import is_plain, like, strided

_COMPLEX = {
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}
_REAL = {kind: real for real, kind in _COMPLEX.items()}


def fourier(args: Sequence[Any]) -> Tensor | None:
    """Complex to complex: of the same shape."""
    x, dims = args[:2]
    return like(x) if x.is_complex() and x.is_contiguous() and x.is_meta and _are_dimensions(x, dims) else None


def fourier_of_real(args: Sequence[Any]) -> Tensor | None:
    """Real to complex: all frequencies of the last of the dimensions, or the half that tells the others."""
    x, dims, _, is_half = args
    if not x.is_contiguous() or not x.is_meta or not _are_dimensions(x, dims) or x.dtype not in _COMPLEX:
        return None
    made: Tensor = x.new_empty(
        _with(x, dims[-1], x.shape[dims[-1]] // 2 + 1 if is_half else None), dtype=_COMPLEX[x.dtype]
    )
    return made


def fourier_to_real(args: Sequence[Any]) -> Tensor | None:
    """Complex to real, with so many values along the last of the dimensions."""
    x, dims, _, size = args
    if not x.is_contiguous() or not x.is_meta or not _are_dimensions(x, dims) or x.dtype not in _REAL:
        return None
    made: Tensor = x.new_empty(_with(x, dims[-1], size), dtype=_REAL[x.dtype])
    return made


def _are_dimensions(x: Tensor, dims: Sequence[int]) -> bool:
    """The last ones of three at most in their order: others come out in another order of dimensions."""
    last = [d % x.dim() if -x.dim() <= d < x.dim() else -1 for d in dims]
    return bool(dims) and x.dim() < 4 and last == list(range(x.dim()))[-len(last) :] and 0 not in x.shape


def _with(x: Tensor, dim: int, size: int | None) -> list[int]:
    shape = [*x.shape]
    if size is not None:
        shape[dim] = size
    return shape


def to_complex(args: Sequence[Any]) -> Tensor | None:
    """``complex`` and ``polar``: of two real tensors of one type."""
    made = elementwise("complex", args[:2]) if args[0].dtype == args[1].dtype else None
    return None if made is None or made.dtype not in _COMPLEX else strided(
        made, made.shape, made.stride(), _COMPLEX[made.dtype])  # fmt: skip


def to_real(name: str) -> Any:
    """A rule for ``abs`` or ``angle``: of complex tensors real ones."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        if not args[0].is_complex():
            return elementwise(name, args)
        made = elementwise("neg", args)
        return None if made is None else strided(made, made.shape, made.stride(), _REAL[made.dtype])

    return rule


def polygamma(args: Sequence[Any]) -> Tensor | None:
    """A derivative of so high an order."""
    order, x = args
    return elementwise("polygamma", [x]) if order >= 0 and x.is_floating_point() else None


def determinant(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """[..., n, n] to [...], the factors and the order of rows."""
    a = args[0]
    if not _is_square(a):
        return None
    return a.new_empty(a.shape[:-2]), _by_columns(a), a.new_empty(a.shape[:-1], dtype=torch.int32)


def solution(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """[..., n, n] and [..., n, k] to [..., n, k], the factors, the order of rows, and whether it went well."""
    a, b, is_left = args[:3]
    if not _is_square(a) or not is_left or not _fits(a, b):
        return None
    return (
        _by_columns(b), _by_columns(a), a.new_empty(a.shape[:-1], dtype=torch.int32),
        a.new_empty(a.shape[:-2], dtype=torch.int32),
    )  # fmt: skip


def inverse(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[..., n, n] to the same, and whether it went well."""
    a = args[0]
    return (_by_columns(a), a.new_empty(a.shape[:-2], dtype=torch.int32)) if _is_square(a) else None


def solved(args: Sequence[Any]) -> Tensor | None:
    """``linalg_lu_solve``: the factors [..., n, n], the order of rows and [..., n, k] to [..., n, k]."""
    factors, order, b, is_left = args[:4]
    is_whole = order.dtype == torch.int32 and order.shape == factors.shape[:-1]
    return _by_columns(b) if is_whole and is_left and _is_square(factors) and _fits(factors, b) else None


def solved_by_triangle(args: Sequence[Any]) -> Tensor | None:
    """``linalg_solve_triangular``."""
    a, b, is_left = args[0], args[1], args[3]
    size = b.shape[-2] if is_left else b.shape[-1]
    is_same = a.shape[:-2] == b.shape[:-2] and a.dim() == b.dim() and a.dtype == b.dtype and size == a.shape[-1]
    return _by_columns(b) if is_same and _is_square(a) and b.is_meta else None


def _fits(a: Tensor, b: Tensor) -> bool:
    return b.is_meta and b.dim() == a.dim() and b.shape[:-1] == a.shape[:-1] and b.dtype == a.dtype


def cross(args: Sequence[Any]) -> Tensor | None:
    """Of vectors of three numbers."""
    a, b, dim = args
    fits = a.dim() == b.dim() and -a.dim() <= dim < a.dim() and a.shape[dim] == b.shape[dim] == 3
    return elementwise("cross", [a, b]) if fits and a.dtype == b.dtype and is_plain(a, b) else None


def _is_square(a: Tensor) -> bool:
    return (
        a.dtype in (torch.float32, torch.float64)
        and a.is_meta
        and a.dim() > 1
        and a.shape[-1] == a.shape[-2]
        and 0 not in a.shape
    )


def _by_columns(a: Tensor) -> Tensor:
    """Matrices as LAPACK takes them: columns behind each other."""
    shape = [*a.shape[:-2], a.shape[-1], a.shape[-2]]
    made: Tensor = a.new_empty(shape).transpose(-2, -1)
    return made
