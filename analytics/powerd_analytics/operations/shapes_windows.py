"""Results of convolutions, poolings and their windows on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import (
    as_suggested,
    is_channels_last,
    is_plain,
    laid_out,
    like,
    pick,
)


def convolution(args: Sequence[Any]) -> Tensor | None:
    """[n, cin, *in] and [cout, cin/groups, *kernel] (transposed [cin, cout/groups, *kernel]) to [n, cout, *out]."""
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    if x.dim() != weight.dim() or x.dim() < 3 or not (x.is_meta and weight.is_meta) or 0 in x.shape:
        return None
    if x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups) or weight.shape[0] % groups:
        return None
    bias = args[2]
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if x.dtype != weight.dtype or 0 in weight.shape or (bias is not None and tuple(bias.shape) != (channels,)):
        return None
    size = []
    for i, (length, kernel) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        s, p, d = pick(stride, i), pick(padding, i), pick(dilation, i)
        reach = d * (kernel - 1) + 1
        if s < 1 or d < 1 or p < 0:
            return None
        if transposed:
            size.append((length - 1) * s - 2 * p + reach + pick(output_padding, i))
        else:
            size.append((length + 2 * p - reach) // s + 1 if length + 2 * p >= reach else 0)
    if min(size) < 1:
        return None
    return laid_out(x, (x.shape[0], channels, *size), channels_last=is_channels_last(x) or is_channels_last(weight))


def convolution_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias; None for those that nobody asked for."""
    grad, x, weight, bias_sizes, mask = args[0], args[1], args[2], args[3], args[10]
    if not (x.is_meta and weight.is_meta and grad.is_meta) or (mask[2] and not bias_sizes):
        return None
    is_last = is_channels_last(x) or is_channels_last(weight)
    return (
        laid_out(x, x.shape, channels_last=is_last) if mask[0] else None,
        laid_out(weight, weight.shape, channels_last=is_last) if mask[1] else None,
        grad.new_empty(bias_sizes) if mask[2] else None,
    )


def max_pool(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[n, c, *in] to the largest values and where they were."""
    x, kernel, stride, padding, dilation, overhangs = args[:6]
    made = _pooled(x, kernel, stride, padding, dilation, overhangs=overhangs)
    return None if made is None else (made, _of_places(made))


def _of_places(made: Tensor) -> Tensor:
    return laid_out(made, made.shape, channels_last=is_channels_last(made), dtype=torch.int64)


def avg_pool(args: Sequence[Any]) -> Tensor | None:
    """[n, c, *in] to the means of windows; of volumes always contiguous."""
    x, kernel, stride, padding, overhangs = args[:5]
    made = _pooled(x, kernel, stride, padding, (1,), overhangs=overhangs)
    return like(made) if made is not None and len(kernel) == 3 else made


def _pooled(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Any, *, overhangs: bool
) -> Tensor | None:
    n = len(kernel)
    if not x.is_meta or x.dim() not in (n + 1, n + 2) or 0 in x.shape:
        return None
    size = []
    for i, length in enumerate(x.shape[-n:]):
        k, p, d = kernel[i], _setting(padding, i), _setting(dilation, i)
        s = pick(stride, i) if stride else k
        reach = d * (k - 1) + 1
        if k < 1 or s < 1 or d < 1 or not 0 <= p <= k // 2 or length + 2 * p < reach:
            return None
        steps = length + 2 * p - reach
        count = (steps + s - 1) // s + 1 if overhangs else steps // s + 1
        if overhangs and (count - 1) * s >= length + p:
            count -= 1  # the last window begins inside the input, or in the padding before it
        size.append(count)
    return x.new_empty((*x.shape[:-n], *size)) if x.dim() == n + 1 else as_suggested(x, (*x.shape[:-n], *size))


def _setting(values: Any, i: int) -> int:
    return int(values if isinstance(values, int) else pick(values, i))


def with_places(rule: Any) -> Any:
    """The same result with where its values were."""

    def both(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
        made = rule(args)
        return None if made is None else (made, _of_places(made))

    return both


def im2col(args: Sequence[Any]) -> Tensor | None:
    """[n, c, h, w] to [n, c x window, places]."""
    x, kernel, dilation, padding, stride = args
    if min(*kernel, *dilation, *stride) < 1 or min(padding) < 0:
        return None
    if not is_plain(x) or x.dim() != 4 or 0 in x.shape:
        return None
    places = _places(x.shape[2:], kernel, dilation, padding, stride)
    made: Tensor | None = x.new_empty((x.shape[0], x.shape[1] * prod(kernel), places)) if places else None
    return made


def col2im(args: Sequence[Any]) -> Tensor | None:
    """[n, c x window, places] to [n, c, h, w]."""
    x, size, kernel, dilation, padding, stride = args
    window = prod(kernel)
    if min(*kernel, *dilation, *stride, *size) < 1 or min(padding) < 0:
        return None
    if not is_plain(x) or x.dim() != 3 or 0 in x.shape or x.shape[1] % window:
        return None
    if x.shape[2] != _places(size, kernel, dilation, padding, stride):
        return None
    made: Tensor = x.new_empty((x.shape[0], x.shape[1] // window, *size))
    return made


def _places(size: Sequence[int], kernel: Any, dilation: Any, padding: Any, stride: Any) -> int:
    return prod(
        max(0, (n + 2 * pick(padding, i) - pick(dilation, i) * (pick(kernel, i) - 1) - 1) // pick(stride, i) + 1)
        for i, n in enumerate(size)
    )
