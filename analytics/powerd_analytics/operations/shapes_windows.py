"""Results of convolutions, poolings, paddings and resizings on ``meta``, by shape alone. None: torch should say."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_layout import is_plain, is_real, like, pick


def convolution(args: Sequence[Any]) -> Tensor | None:
    """[n, cin, *in] and [cout, cin/groups, *kernel] (transposed [cin, cout/groups, *kernel]) to [n, cout, *out]."""
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    if x.dim() != weight.dim() or x.dim() < 3 or not is_plain(x, weight) or 0 in x.shape:
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
    made: Tensor = x.new_empty((x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *size))
    return made


def convolution_backward(args: Sequence[Any]) -> tuple[Tensor | None, ...] | None:
    """Gradients of input, weight and bias; None for those that nobody asked for."""
    grad, x, weight, bias_sizes, mask = args[0], args[1], args[2], args[3], args[10]
    if not is_plain(x, weight) or not grad.is_meta or (mask[2] and not bias_sizes):
        return None
    return (
        like(x) if mask[0] else None,
        like(weight) if mask[1] else None,
        grad.new_empty(bias_sizes) if mask[2] else None,
    )


def max_pool(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
    """[n, c, *in] to the largest values and where they were."""
    x, kernel, stride, padding, dilation, overhangs = args[:6]
    made = _pooled(x, kernel, stride, padding, dilation, overhangs=overhangs)
    return None if made is None else (made, made.new_empty(made.shape, dtype=torch.int64))


def avg_pool(args: Sequence[Any]) -> Tensor | None:
    """[n, c, *in] to the means of windows."""
    x, kernel, stride, padding, overhangs = args[:5]
    return _pooled(x, kernel, stride, padding, (1,), overhangs=overhangs)


def _pooled(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Any, dilation: Any, *, overhangs: bool
) -> Tensor | None:
    n = len(kernel)
    if not is_plain(x) or x.dim() not in (n + 1, n + 2) or 0 in x.shape:
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
    made: Tensor = x.new_empty((*x.shape[:-n], *size))
    return made


def _setting(values: Any, i: int) -> int:
    return int(values if isinstance(values, int) else pick(values, i))


def resized(n: int, size_at: int = 1) -> Any:
    """A rule for [n, c, *in] to [n, c, *size], the last ``n`` dimensions as the argument at ``size_at`` says."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        x, size = args[0], args[size_at]
        if not is_plain(x) or x.dim() not in (n + 1, n + 2) or len(size) != n or min(size) < 1 or 0 in x.shape:
            return None
        made: Tensor = x.new_empty((*x.shape[:-n], *size))
        return made

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


def with_places(rule: Any) -> Any:
    """The same result with where its values were."""

    def both(args: Sequence[Any]) -> tuple[Tensor, Tensor] | None:
        made = rule(args)
        return None if made is None else (made, made.new_empty(made.shape, dtype=torch.int64))

    return both


def sized_as(at: int) -> Any:
    """A rule for a gradient whose shape is an argument."""

    def rule(args: Sequence[Any]) -> Tensor | None:
        made: Tensor | None = args[0].new_empty(tuple(args[at])) if is_plain(args[0]) else None
        return made

    return rule


def padded(args: Sequence[Any]) -> Tensor | None:
    """Reflection and replication: [..., *in] with so many more before and after, from the last dimension on."""
    x, pad = args[0], args[1]
    n = len(pad) // 2
    if not is_plain(x) or x.dim() not in (n + 1, n + 2) or 0 in x.shape or min(pad) < 0 or x.dtype == torch.bool:
        return None
    shape = [*x.shape]
    for i in range(n):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    made: Tensor = x.new_empty(shape)
    return made


def reflected(args: Sequence[Any]) -> Tensor | None:
    """No more than what is there can be reflected."""
    x, pad = args[0], args[1]
    return padded(args) if all(p < x.shape[-1 - i // 2] for i, p in enumerate(pad)) else None


def padded_with_number(args: Sequence[Any]) -> Tensor | None:
    """The same with a number, which may also cut off."""
    x, pad = args[0], args[1]
    if not is_plain(x) or len(pad) % 2 or len(pad) > 2 * x.dim():
        return None
    shape = [*x.shape]
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    made: Tensor | None = x.new_empty(shape) if min(shape, default=1) > 0 else None
    return made


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


def pixel_shuffle(args: Sequence[Any]) -> Tensor | None:
    """[..., c f^2, h, w] to [..., c, h f, w f]."""
    x, f = args
    if not is_plain(x) or x.dim() < 3 or f < 1 or x.shape[-3] % f**2:
        return None
    made: Tensor = x.new_empty((*x.shape[:-3], x.shape[-3] // f**2, x.shape[-2] * f, x.shape[-1] * f))
    return made


def pixel_unshuffle(args: Sequence[Any]) -> Tensor | None:
    """[..., c, h f, w f] to [..., c f^2, h, w]."""
    x, f = args
    if not is_plain(x) or x.dim() < 3 or f < 1 or x.shape[-2] % f or x.shape[-1] % f:
        return None
    made: Tensor = x.new_empty((*x.shape[:-3], x.shape[-3] * f**2, x.shape[-2] // f, x.shape[-1] // f))
    return made


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
        or not is_plain(x, grid)
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
    return (like(x) if mask[0] else None, like(grid)) if is_plain(args[0], x, grid) else None


def affine_grid(args: Sequence[Any]) -> Tensor | None:
    """[n, d, d + 1] and the output's size [n, c, *out] to [n, *out, d]."""
    theta, size = args[0], args[1]
    n = len(size) - 2
    fits = is_real([theta]) and min(size) > 0 and tuple(theta.shape) == (size[0], n, n + 1)
    made: Tensor | None = theta.new_empty((size[0], *size[2:], n)) if fits else None
    return made
