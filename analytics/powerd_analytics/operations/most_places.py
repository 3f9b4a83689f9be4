"""Results of kernels whose shape depends on values, with the most places that there can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from powerd_analytics.operations.shapes_elementwise import broadcast

MASKS = (torch.bool, torch.uint8)
INDEXES = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"))
"""Kernels whose second argument may have masks among its indices."""


def asks_for_values(func: Any, args: Sequence[Any]) -> bool:
    """Whether the shape of a kernel's result depends on values on ``meta``."""
    name = func.overloadpacket.__name__
    if name in MOST_PLACES:
        return any(isinstance(a, Tensor) and a.is_meta for a in args)
    return name in INDEXES and any(i is not None and i.is_meta and i.dtype in MASKS for i in args[1])


def _all_places(args: Sequence[Any]) -> Tensor:
    """``nonzero``: a row a value."""
    x = args[0]
    return torch.empty((x.numel(), x.dim()), dtype=torch.int64, device="meta")


def _all_values(args: Sequence[Any]) -> Tensor:
    """``masked_select``: a value each place of the common shape."""
    x, mask = args[:2]
    return torch.empty((prod(broadcast([x.shape, mask.shape]) or ()),), dtype=x.dtype, device="meta")


def _all_different(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """``unique`` of all values: none twice. The places back are made where they are asked for."""
    x = args[0]
    n, gives_places, gives_counts = x.numel(), args[-2], args[-1]
    return _unique(x, (n,), x.shape if gives_places else (0,), n if gives_counts else 0)


def _all_consecutive(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """``unique_consecutive`` of all values or of slices."""
    x, gives_places, gives_counts, dim = args
    n = x.numel() if dim is None else x.shape[dim]
    places = (x.shape if dim is None else (n,)) if gives_places else (0,)
    return _unique(x, (n,) if dim is None else x.shape, places, n if gives_counts else 0)


def _all_slices(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """``unique`` of slices."""
    x, dim = args[:2]
    return _unique(x, x.shape, (x.shape[dim],), x.shape[dim])


def _unique(x: Tensor, shape: Sequence[int], places: Sequence[int], counts: int) -> tuple[Tensor, ...]:
    made = torch.empty(tuple(shape), dtype=x.dtype, device="meta")
    return made, *(torch.empty(tuple(s), dtype=torch.int64, device="meta") for s in (places, (counts,)))


MOST_PLACES: dict[str, Callable[[Sequence[Any]], Any]] = {
    "nonzero": _all_places,
    "masked_select": _all_values,
    "_unique2": _all_different,
    "_unique": lambda args: _all_different((*args, False))[:2],
    "unique_dim": _all_slices,
    "unique_consecutive": _all_consecutive,
    "unique_dim_consecutive": _all_slices,
}
"""Results of the most places that there can be, from all arguments."""
