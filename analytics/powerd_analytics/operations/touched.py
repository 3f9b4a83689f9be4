"""Bytes that a kernel moves and values that it works on: each tensor once, of a table only the rows that are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_indexing import indexed_shape

Args = Sequence[Any]
Places = Callable[[Args, Any], int | None]
"""How many values of a table a kernel touches, from its arguments and its result; None: all of them."""


def _all_of_result(_args: Args, out: Any) -> int:
    return int(out.numel())


def _bags(indices_at: int, width_of: int) -> Places:
    """As many rows as there are indices."""
    return lambda args, _out: int(args[indices_at].numel() * args[width_of].shape[1])


def _index_values(args: Args, _out: Any) -> int:
    return int(args[2].numel())


def _source_values(args: Args, _out: Any) -> int:
    return int(args[3].numel())


def _slices(args: Args, _out: Any) -> int:
    x, dim, index = args[:3]
    return int(index.numel() * (x.numel() // max(1, x.shape[dim])))


def _put(args: Args, _out: Any) -> int | None:
    shape = indexed_shape(args[0], args[1])
    return None if shape is None else prod(shape)


PICKS: dict[str, tuple[int, Places]] = {
    "embedding": (0, _all_of_result),
    "gather": (0, _all_of_result),
    "index": (0, _all_of_result),
    "index_select": (0, _all_of_result),
    "take": (0, _all_of_result),
    "_embedding_bag": (0, _bags(1, 0)),
    "_embedding_bag_forward_only": (0, _bags(1, 0)),
    "_embedding_bag_per_sample_weights_backward": (1, _bags(2, 1)),
}
"""Kernels that read a few values of the argument at this place."""
PUTS: dict[str, Places] = {
    "index_put": _put,
    "_index_put_impl": _put,
    "index_add": _source_values,
    "index_copy": _source_values,
    "index_fill": _slices,
    "scatter": _index_values,
    "scatter_add": _index_values,
    "scatter_reduce": _index_values,
}
"""Kernels that write a few values of their first argument; in place (with an underscore behind) no others."""
_SUMS = ("index_add_", "scatter_add_", "scatter_reduce_")
"""Of these, those that read before they write; so does ``index_put_`` where it accumulates."""
ADDS: dict[str, Places] = {
    "embedding_dense_backward": lambda args, _out: int(args[0].numel()),
    "_embedding_bag_backward": _bags(1, 0),
    "_embedding_bag_dense_backward": _bags(1, 0),
}
"""Kernels that write a whole table of zeros and add a few values."""


def touched(name: str, args: Args, out: Any) -> tuple[int, int]:
    """Bytes read and written by the kernel of that name, and the values that it worked on."""
    if name in PICKS:
        at, places = PICKS[name]
        values = places(args, out)
        if values is not None:
            rest = [a for i, a in enumerate(args) if i != at]
            return _sizes(rest)[0] + values * args[at].element_size() + _sizes((out,))[0], values
    read, widest_in = _sizes(args)
    written, widest_out = _sizes((out,))
    of = ADDS.get(name) or PUTS.get(name.removesuffix("_"))
    values = of(args, out) if of is not None else None
    if values is None:
        return read + written, max(widest_in, widest_out)
    if name.endswith("_"):
        size = args[0].element_size()
        times = 2 if name in _SUMS or (_put is of and len(args) > 3 and args[3]) else 1
        return read - args[0].numel() * size + times * values * size, values
    return read + written, values


def is_dense(args: Args) -> bool:
    """Whether all tensors hold every value: of others nobody knows how many there are."""
    return all(
        a.layout is torch.strided if isinstance(a, Tensor) else not isinstance(a, tuple | list) or is_dense(a)
        for a in args
    )


def _sizes(values: Any) -> tuple[int, int]:
    """Bytes of all tensors, and the values of the largest."""
    total = widest = 0
    for value in values:
        if isinstance(value, Tensor):
            n = value.numel()
            total += n * value.element_size()
            widest = max(widest, n)
        elif isinstance(value, tuple | list):
            inner, n = _sizes(value)
            total += inner
            widest = max(widest, n)
    return total, widest
