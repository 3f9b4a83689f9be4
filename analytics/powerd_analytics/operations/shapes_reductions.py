"""Results of sums, products and losses on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_elementwise import broadcast, elementwise
from powerd_analytics.operations.shapes_layout import is_plain, is_real, like


def reduction(dtype: str = "same", *, over: int | None = 1, keeps: int = 2, kind: int | None = None) -> Any:
    """A rule for a reduction whose dimensions, ``keepdim`` and ``dtype`` are the arguments at these places.

    ``dtype``: ``own``; ``same``, of real numbers alone; ``sum``, integers become int64; or the name of a type.
    """

    def rule(args: Sequence[Any]) -> Tensor | None:
        x = args[0]
        if not x.is_meta or x.is_complex() or 0 in x.shape:
            return None
        given = args[kind] if kind is not None else None
        made = given or _reduced_dtype(x, dtype)
        dims = args[over] if over is not None else None
        shape = reduced(x, dims, keeps=over is not None and bool(args[keeps]))
        return None if made is None or shape is None else x.new_empty(shape, dtype=made)

    return rule


def _reduced_dtype(x: Tensor, dtype: str) -> torch.dtype | None:
    if dtype == "own":
        return x.dtype
    if dtype == "same":
        return x.dtype if x.is_floating_point() else None
    if dtype == "sum":
        return x.dtype if x.is_floating_point() else torch.int64
    if dtype == "bool" and x.dtype == torch.uint8:
        return None
    made: torch.dtype = getattr(torch, dtype)
    return made


def reduced(x: Tensor, dims: Any, *, keeps: bool) -> list[int] | None:
    """The shape without ``dims`` (none named: all), or with 1 for each."""
    n = x.dim()
    dims = [dims] if isinstance(dims, int) else list(dims or range(n))
    if n and (any(not -n <= d < n for d in dims) or len({d % n for d in dims}) < len(dims)):
        return None
    gone = {d % n for d in dims} if n else set()
    return [1 if i in gone else size for i, size in enumerate(x.shape) if keeps or i not in gone]


def both_extremes(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """``aminmax``."""
    x, dim, keeps = args
    shape = reduced(x, dim, keeps=keeps)
    return (x.new_empty(shape), x.new_empty(shape)) if x.is_meta and 0 not in x.shape and shape is not None else None


def running(args: Sequence[Any]) -> Tensor | None:
    """Sums and products of what is before each value."""
    x, dim, dtype = args
    n = x.dim()
    if not x.is_meta or x.is_complex() or not (-n <= dim < n):
        return None
    made: Tensor = x.new_empty(x.shape, dtype=dtype or (x.dtype if x.is_floating_point() else torch.int64))
    return made


def softmax(args: Sequence[Any]) -> Tensor | None:
    """A result of the first argument's shape and type."""
    x, dim = args[0], args[1]
    fits = (-x.dim() <= dim < x.dim() or not x.dim()) and not args[2]
    return like(x) if fits and x.is_meta and x.is_floating_point() else None


def softmax_backward(args: Sequence[Any]) -> Tensor | None:
    """A gradient of the type of softmax's input."""
    grad, output, _, kind = args
    fits = grad.is_meta and grad.shape == output.shape and kind == grad.dtype == output.dtype
    return like(output) if fits else None


def glu(args: Sequence[Any]) -> Tensor | None:
    """Half as long in one dimension."""
    x, dim = args
    if not x.is_meta or not x.is_floating_point() or not -x.dim() <= dim < x.dim() or x.shape[dim] % 2:
        return None
    half = x.shape[dim] // 2
    return elementwise("mul", [x.narrow(dim, 0, half), x.narrow(dim, half, half)])


def mm(args: Sequence[Any]) -> Tensor | None:
    """[m, k] @ [k, n], or the same in batches: [b, m, k] @ [b, k, n]."""
    a, b = args[:2]
    fits = a.dim() == b.dim() and a.dim() > 1 and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    if not fits or not a.is_meta or not b.is_meta or a.dtype != b.dtype or a.layout != b.layout:
        return None
    return a.new_empty((*a.shape[:-1], b.shape[-1])) if a.layout is torch.strided else None


def addmm(args: Sequence[Any]) -> Tensor | None:
    """Something that broadcasts to it + [m, k] @ [k, n], also in batches."""
    added, a, b = args[:3]
    made = mm((a, b))
    if made is None or not added.is_meta or added.dtype != a.dtype:
        return None
    return made if broadcast([added.shape, made.shape]) == tuple(made.shape) else None


def mv(args: Sequence[Any]) -> Tensor | None:
    """[m, k] @ [k]."""
    a, b = args
    fits = a.dim() == 2 and b.dim() == 1 and a.shape[1] == b.shape[0] and a.dtype == b.dtype
    return a.new_empty(a.shape[:1]) if fits and a.is_meta and b.is_meta else None


def dot(args: Sequence[Any]) -> Tensor | None:
    """[k] @ [k]."""
    a, b = args
    fits = a.dim() == b.dim() == 1 and a.shape == b.shape and a.dtype == b.dtype
    return a.new_empty(()) if fits and a.is_meta and b.is_meta else None


def cdist(args: Sequence[Any]) -> Tensor | None:
    """[..., p, d] and [..., r, d] to [..., p, r]."""
    a, b = args[:2]
    fits = a.dim() == b.dim() > 1 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-1]
    return a.new_empty((*a.shape[:-1], b.shape[-2])) if fits and is_plain(a, b) and a.dtype == b.dtype else None


def trilinear(args: Sequence[Any]) -> Tensor | None:
    """Three factors, each with further dimensions of length 1 in places, multiplied and summed over some."""
    shapes = []
    n = len(args[3]) + args[0].dim()
    if any(len(set(p)) < len(p) or max(p, default=0) >= n or min(p, default=0) < 0 for p in args[3:7]):
        return None
    for x, places in zip(args[:3], args[3:6], strict=True):
        if x.dim() + len(places) != n:
            return None
        shape = [*x.shape]
        for at in places:
            shape.insert(at, 1)
        shapes.append(shape)
    whole = broadcast(shapes)
    if whole is None or not all(is_real([x, args[0]]) for x in args[:3]):
        return None
    if any(
        n != whole[i] for shape, at in zip(shapes, args[3:6], strict=True) for i, n in enumerate(shape) if i not in at
    ):
        return None
    made: Tensor = args[0].new_empty([size for i, size in enumerate(whole) if i not in args[6]])
    return made


def loss(reduction_at: int) -> Any:
    """A rule for a loss of values and targets of one shape: a number, or without reduction one for each."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        tensors = [a for a in args if isinstance(a, Tensor)]
        made = elementwise("loss", tensors) if is_real(tensors) and is_real(tensors[::-1]) else None
        if made is None or args[reduction_at] not in (0, 1, 2):
            return None
        return made if args[reduction_at] == 0 else made.new_empty(())

    return rule


def class_loss(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[n, classes, ...] and [n, ...] (or [classes] and []) to a loss, and the weights' sum."""
    x, target, reduction_ = args[0], args[1], args[3]
    batched = x.dim() > 1
    places = (x.shape[0], *x.shape[2:]) if batched else ()
    if tuple(target.shape) != tuple(places) or not is_plain(x, target) or not _is_classes(x, target, reduction_):
        return None
    return x.new_empty(places if reduction_ == 0 else ()), x.new_empty(())


def _is_classes(x: Tensor, target: Tensor, reduction_: int) -> bool:
    return x.is_floating_point() and target.dtype == torch.int64 and reduction_ in (0, 1, 2)


def margin_loss(args: Sequence[Any]) -> Tensor | None:
    """[n, classes] and [n] to a loss."""
    x, target, power, reduction_ = args[0], args[1], args[2], args[5]
    if x.dim() != 2 or tuple(target.shape) != (x.shape[0],) or not is_plain(x, target) or 0 in x.shape:
        return None
    if not _is_classes(x, target, reduction_) or power not in (1, 2):
        return None
    made: Tensor = x.new_empty((x.shape[0],) if reduction_ == 0 else ())
    return made


def labels_loss(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[n, classes] and as many labels to a loss, and which are meant."""
    x, target, reduction_ = args
    if x.dim() != 2 or target.shape != x.shape or not is_plain(x, target) or not _is_classes(x, target, reduction_):
        return None
    return x.new_empty((x.shape[0],) if reduction_ == 0 else ()), like(x)


def of_truths(args: Sequence[Any]) -> Tensor | None:
    """Whether all, or any, of a mask is true: one truth value."""
    x: Tensor = args[0]
    return x.new_empty(()) if x.is_meta and x.dtype == torch.bool else None
