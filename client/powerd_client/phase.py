"""A kind of phase, as a training script enters and leaves it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from powerd_core.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

Attribute = str | int | float | bool | None


class Phase:
    """A kind of phase: enter and leave it with ``with``, or decorate a function with it.

    It holds no state, so it may nest in itself.
    """

    __slots__ = ("_begin", "_end", "_mark")

    def __init__(self, mark: Callable[[int], None], kind: int) -> None:
        self._mark = mark
        self._begin = kind
        self._end = ~kind

    def __enter__(self) -> None:
        self._mark(self._begin)

    def __exit__(self, *_: object) -> None:
        self._mark(self._end)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Raises `ConfigError` for a coroutine function or generator: its call returns before it has run."""
        for is_later, kind in (
            (inspect.iscoroutinefunction, "a coroutine function"),
            (inspect.isgeneratorfunction, "a generator"),
            (inspect.isasyncgenfunction, "an asynchronous generator"),
        ):
            if is_later(function):
                name = getattr(function, "__qualname__", repr(function))
                raise ConfigError(
                    f"{name} is {kind}: a phase around its call would end before it has run; use `with` inside it, "
                    "around what neither awaits nor yields"
                )

        @functools.wraps(function)
        def marked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return marked
