"""The tensors in what a model returns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

STACK_BYTES = 512 * 2**20
"""Address space, of which only what is used becomes memory."""
NO_TENSOR = "the model returned a {}, in which there is no tensor: backward is not counted"


def tensors_of(output: Any, depth: int = 8) -> Iterator[Tensor]:
    """Those in containers, dataclasses and attributes of other objects, such as distributions, each once."""
    seen: set[int] = set()
    for tensor in _tensors(output, depth, seen):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor


def let_go(held: list[Any]) -> None:
    """Empty the list, in a thread with room for it.

    A graph whose nodes Python has seen is freed node within node: of some 10,000 steps, deeper than a stack of 8 MiB.
    """
    before = threading.stack_size(STACK_BYTES)
    try:
        thread = threading.Thread(target=held.clear)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()


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
