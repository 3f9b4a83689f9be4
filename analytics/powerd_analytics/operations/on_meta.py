"""``torch.device("meta")`` as a context, in which no check in torch.nn imports torch's compiler.

Attention with a mask of padding, and unpooling, ask `torch._check_with` whether a length is right; that imports
symbolic shapes and a computer algebra system (0.3 s of CPU, 35 MB) to learn that a plain truth value is true. Here
these functions run as copies whose check is an ``if``; torch itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.utils import _device

from powerd_analytics.operations.stand_in import StandIn


def _key_padding_mask(mask: torch.Tensor, length: int, batch: int) -> None:
    if tuple(mask.shape) != (batch, length):
        raise ValueError(f"the mask of padding has the shape {tuple(mask.shape)}, not {(batch, length)}")


def _output_size(size: Sequence[int], dimension: int) -> None:
    if size[dimension] < 0:
        raise ValueError(f"unpooling makes a length of {size[dimension]}")


CHECKS: dict[str, Callable[..., None]] = {
    "_check_key_padding_mask": _key_padding_mask,
    "_check_unpool_output_size": _output_size,
}
"""By the names that torch.nn.functional has for its own."""
_BETWEEN = ("_unpool_output_size",)
"""Functions that call such a check for others."""
_ATTENTION = "scaled_dot_product_attention"


class MetaDevice(_device.DeviceContext):  # type: ignore[misc, unused-ignore]
    """New tensors are made on ``meta``, as in ``with torch.device("meta")``."""

    def __init__(
        self, instead: Mapping[Any, Callable[..., Any]] | None = None, stand_in: StandIn | None = None
    ) -> None:
        """``instead``: what runs in the place of functions of torch, given the function, its arguments and names.

        ``stand_in`` learns the values of tensors that are made of numbers, and answers who wants an array.
        """
        self._instead = {torch.Tensor.__format__: _formatted, **(instead or {})}
        if stand_in is not None:
            self._instead |= dict.fromkeys(OF_NUMBERS, partial(_with_values, stand_in))
            self._instead |= dict.fromkeys(ARRAYS, partial(_as_array, stand_in))
        self.in_backward = False
        self._first = dict.fromkeys(("forward", "without gradients", "backward"), 0)
        super().__init__("meta")  # type: ignore[no-untyped-call, unused-ignore]
        self._constructors = frozenset(_device._device_constructors())  # type: ignore[no-untyped-call, unused-ignore]
        self._copies: dict[Any, Any] = {
            f: None for f in vars(torch.nn.functional).values() if isinstance(f, FunctionType) and _checks(f)
        }

        self._before: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        # A checkpoint enters it again in backward, for which torch's own keeps too little.
        self.prev_mode = None
        super().__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        self._before.append((self.old_device, self.prev_mode))

    def __exit__(self, *error: Any) -> None:
        self.old_device, self.prev_mode = self._before.pop()
        super().__exit__(*error)  # type: ignore[no-untyped-call, unused-ignore]

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in self._constructors and given.get("device") is None:
            given["device"] = self.device
        if func in self._copies:
            if self._copies[func] is None:
                self._copies[func] = with_own(func, {**CHECKS, _ATTENTION: partial(self._attend, attend)})
            func = self._copies[func]
        elif func in self._instead:
            return self._instead[func](func, args, given)
        elif func is attend:
            return self._attend(func, *args, **given)
        return func(*args, **given)

    def _attend(self, func: Any, query: torch.Tensor, key: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = func(query, key, *args, **kwargs)
        when = "backward" if self.in_backward else "forward" if torch.is_grad_enabled() else "without gradients"
        if when == "without gradients" or made.requires_grad:
            self._first[when] += 2 * query.numel() * key.shape[-2]
        return made

    @property
    def again(self) -> int:
        """Operations that fused attention would do in backward for the second time: query times keys.

        A reentrant checkpoint attends without gradients first, and again with them in backward; others with them twice.
        """
        return self._first["forward"] + min(self._first["backward"], self._first["without gradients"])


def _with_values(stand_in: StandIn, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A tensor of numbers that a model writes down: on ``meta``, with their values known."""
    made = func(*args, **kwargs)
    data = kwargs.get("data", args[-1] if args else None)
    if isinstance(made, torch.Tensor) and made.is_meta and not isinstance(data, torch.Tensor):
        with torch._C.DisableTorchFunction():
            stand_in.values.put(made, torch.tensor(data, dtype=made.dtype, device="cpu"))
    return made


def _as_array(stand_in: StandIn, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    x, *others = args
    with torch._C.DisableTorchFunction():
        return func(stand_in.on_cpu(x.detach()) if x.is_meta else x, *others, **kwargs)


def _formatted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A value in a message: nobody knows it, and what runs does not depend on it."""
    x, *rest = args
    if not x.is_meta or x.dim():
        return str(func(*args, **kwargs))
    return format(float("nan") if x.is_floating_point() else 0, *rest)


OF_NUMBERS: tuple[Any, ...] = (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor)
ARRAYS: tuple[Any, ...] = (torch.Tensor.numpy, torch.Tensor.__array__)


attend = torch.nn.functional.scaled_dot_product_attention


def with_own(function: FunctionType, names: dict[str, Callable[..., Any]]) -> FunctionType:
    """A copy of a function of torch.nn that meets ours where it names torch's."""
    own = function.__globals__ | names
    for name in _BETWEEN:
        if name in function.__code__.co_names and isinstance(own.get(name), FunctionType):
            own[name] = with_own(own[name], names)
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _checks(function: FunctionType) -> bool:
    named = function.__code__.co_names
    return any(name in named for name in (*CHECKS, *_BETWEEN, _ATTENTION))
