"""Results of torch's commonest kernels on ``meta``, by shape alone.

torch computes the shapes of these in Python, and the first one imports its compiler and a computer algebra system:
0.6 s and 80 MB. Whatever is out of the ordinary (other strides, types that are promoted, wrong shapes) goes to torch
itself, which also words the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Shape = Callable[[Sequence[Any]], Any]
"""The result of a kernel, or None to let torch make it."""

aten = torch.ops.aten


def _is_plain(*tensors: Tensor) -> bool:
    """On ``meta``, and of strides that a result does not inherit: it will be contiguous."""
    return all(t.is_meta and (t.is_contiguous() or _descends(t)) for t in tensors)


def _descends(x: Tensor) -> bool:
    """Dimensions in their usual order, as in a slice or an expanded tensor."""
    strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
    return strides == sorted(strides, reverse=True)


def _like(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)  # empty_like is one of those that are computed in Python


def _pick(values: Sequence[int], i: int) -> int:
    return values[i] if len(values) > 1 else values[0]


def convolution(args: Sequence[Any]) -> Tensor | None:
    """[n, cin, *in] and [cout, cin/groups, *kernel] (transposed [cin, cout/groups, *kernel]) to [n, cout, *out]."""
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    if x.dim() != weight.dim() or x.dim() < 3 or not _is_plain(x, weight) or 0 in x.shape:
        return None
    if x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups) or weight.shape[0] % groups:
        return None
    size = []
    for i, (length, kernel) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        s, p, d = _pick(stride, i), _pick(padding, i), _pick(dilation, i)
        reach = d * (kernel - 1) + 1
        if s < 1 or d < 1 or p < 0:
            return None
        if transposed:
            size.append((length - 1) * s - 2 * p + reach + _pick(output_padding, i))
        else:
            size.append((length + 2 * p - reach) // s + 1 if length + 2 * p >= reach else 0)
    if min(size) < 1:
        return None
    made: Tensor = x.new_empty((x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *size))
    return made


def convolution_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias; None for those that nobody asked for."""
    grad, x, weight, bias_sizes, mask = args[0], args[1], args[2], args[3], args[10]
    if not _is_plain(grad, x, weight) or (mask[2] and not bias_sizes):
        return None
    return (
        _like(x) if mask[0] else None,
        _like(weight) if mask[1] else None,
        grad.new_empty(bias_sizes) if mask[2] else None,
    )


def batch_norm(args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """Output, and the batch's mean and deviation."""
    x = args[0]
    if not _is_plain(x) or x.dim() < 2 or x.dtype != torch.float32:  # shorter types keep statistics in a longer one
        return None
    channels = (x.shape[1],)
    return _like(x), x.new_empty(channels), x.new_empty(channels)


def batch_norm_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias."""
    x, mask = args[1], args[9]
    if not _is_plain(args[0], x) or x.dtype != torch.float32:
        return None
    channels = (x.shape[1],)
    return (
        _like(x) if mask[0] else None,
        x.new_empty(channels) if mask[1] else None,
        x.new_empty(channels) if mask[2] else None,
    )


def like_all(args: Sequence[Any]) -> Tensor | None:
    """Element-wise, of tensors of one shape and one type of real numbers."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    first = tensors[0]
    if not first.is_floating_point() or not _is_plain(*tensors):
        return None
    return _like(first) if all(t.shape == first.shape and t.dtype == first.dtype for t in tensors) else None


def max_pool2d(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[n, c, h, w] to the largest values and where they were. Windows that overhang (``ceil_mode``) are torch's."""
    defaults: tuple[Any, ...] = ((), (), (0,), (1,), False)
    x, kernel, stride, padding, dilation, overhangs = (*args, *defaults[len(args) - 1 :])
    if not _is_plain(x) or x.dim() != 4 or overhangs:
        return None
    size = []
    for i in range(2):
        k, p, d = _pick(kernel, i), _pick(padding, i), _pick(dilation, i)
        s = _pick(stride, i) if stride else k
        reach = d * (k - 1) + 1
        if k < 1 or s < 1 or d < 1 or not 0 <= p <= k // 2 or x.shape[2 + i] + 2 * p < reach:
            return None
        size.append((x.shape[2 + i] + 2 * p - reach) // s + 1)
    shape = (*x.shape[:2], *size)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)


def in_place(args: Sequence[Any]) -> Tensor | None:
    """The first argument itself: what its values become does not matter."""
    first = args[0]
    others = [a for a in args[1:] if isinstance(a, Tensor)]
    fits = all(t.is_meta and t.shape == first.shape and t.dtype == first.dtype for t in others)
    return first if first.is_meta and fits else None


def like_second(args: Sequence[Any]) -> Tensor | None:
    """A gradient of the second argument's shape."""
    return _like(args[1]) if _is_plain(args[0], args[1]) else None


def mm(args: Sequence[Any]) -> Tensor | None:
    """[m, k] @ [k, n], or the same in batches: [b, m, k] @ [b, k, n]."""
    a, b = args
    fits = a.dim() == b.dim() and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
    return (
        a.new_empty((*a.shape[:-1], b.shape[-1])) if fits and a.is_meta and b.is_meta and a.dtype == b.dtype else None
    )


def addmm(args: Sequence[Any]) -> Tensor | None:
    """[n] + [m, k] @ [k, n]."""
    added, a, b = args
    return mm((a, b)) if added.is_meta and added.dtype == a.dtype and added.shape == b.shape[1:] else None


def layer_norm(args: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Output, and mean and deviation over the last dimensions, which stay with length 1."""
    x, over = args[0], args[1]
    if not _is_plain(x) or tuple(x.shape[x.dim() - len(over) :]) != tuple(over) or x.dtype != torch.float32:
        return None
    kept = (*x.shape[: x.dim() - len(over)], *(1 for _ in over))
    return _like(x), x.new_empty(kept), x.new_empty(kept)


def softmax(args: Sequence[Any]) -> Tensor | None:
    """A result of the first argument's shape and type."""
    return _like(args[0]) if _is_plain(args[0]) and args[0].is_floating_point() and args[2:] in ((), (False,)) else None


def reduce(args: Sequence[Any]) -> Tensor | None:
    """Over some dimensions, which stay with length 1 or vanish."""
    x, over = args[0], args[1] if len(args) > 1 else None
    if not over or not _is_plain(x) or not x.is_floating_point() or len(args) > 3:
        return None
    gone = {d % x.dim() for d in over} if x.dim() else set()
    keeps = len(args) > 2 and args[2]
    made: Tensor = x.new_empty([1 if i in gone else n for i, n in enumerate(x.shape) if keeps or i not in gone])
    return made


_ELEMENTWISE = (
    "add.Tensor sub.Tensor mul.Tensor mul.Scalar div.Tensor div.Scalar relu.default threshold_backward.default "
    "sigmoid.default sigmoid_backward.default tanh.default tanh_backward.default gelu.default gelu_backward.default "
    "silu.default silu_backward.default"
)
_IN_PLACE = "bernoulli_.float div_.Scalar relu_.default sigmoid_.default tanh_.default add_.Tensor mul_.Tensor"
SHAPES: dict[Any, Shape] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.native_batch_norm.default: batch_norm,
    aten.native_batch_norm_backward.default: batch_norm_backward,
    aten.max_pool2d_with_indices.default: max_pool2d,
    aten.max_pool2d_with_indices_backward.default: like_second,
    aten.empty_like.default: like_all,
    aten.mm.default: mm,
    aten.bmm.default: mm,
    aten.addmm.default: addmm,
    aten.native_layer_norm.default: layer_norm,
    aten._softmax.default: softmax,
    aten._log_softmax.default: softmax,
    aten._softmax_backward_data.default: like_second,
    aten._log_softmax_backward_data.default: like_second,
    aten.mean.dim: reduce,
    aten.sum.dim_IntList: reduce,
    **{getattr(getattr(aten, a), b): like_all for a, b in (name.split(".") for name in _ELEMENTWISE.split())},
    **{getattr(getattr(aten, a), b): in_place for a, b in (name.split(".") for name in _IN_PLACE.split())},
}
