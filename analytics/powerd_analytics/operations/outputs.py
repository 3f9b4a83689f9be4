"""The tensors in what a model returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

NO_TENSOR = "the model returned a {}, in which there is no tensor: backward is not counted"


def tensors_of(output: Any, depth: int = 8) -> Iterator[Tensor]:
    """Those in containers, dataclasses and attributes of other objects, such as distributions, each once."""
    seen: set[int] = set()
    for tensor in _tensors(output, depth, seen):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def _tensors(output: Any, depth: int, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
        return
    if depth == 0 or id(output) in seen or isinstance(output, str | bytes | int | float | complex | None | type):
        return
    seen.add(id(output))
    inside: Any = ()
    if isinstance(output, Mapping):
        inside = output.values()
    elif isinstance(output, tuple | list | set | frozenset):
        inside = output
    elif is_dataclass(output):
        inside = [getattr(output, f.name) for f in fields(output)]
    elif hasattr(output, "__dict__") and not callable(output):
        inside = vars(output).values()
    for value in inside:
        yield from _tensors(value, depth - 1, seen)
