"""torch without its compiler, while a model is counted.

Some of torch's functions (``torch.utils.checkpoint``, shapes of kernels that are computed in Python) import the
compiler when they are first called, only to be kept out of it: half a second of CPU and 45 MB. What to call instead
they ask through ``getattr`` in `torch._compile`. While a model is counted, that module has a ``getattr`` of its own,
which gives threads that count the function itself, and all others what they had before.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import _compile

ASKED = "__dynamo_disable"
"""The attribute with which torch remembers what it calls in a function's place."""
CHECKPOINT = "torch.utils.checkpoint"
_FUNCTIONS = ("checkpoint", "_run_fn_with_dynamo_disabled", "_checkpoint_without_reentrant_generator")
_CLASSES = ("CheckpointFunction", "_recomputation_hook", "_checkpoint_hook")
_METHODS = ("__init__", "forward", "backward")
"""Of the classes; what names the compiler, or calls what does."""


@contextmanager
def without_compiler() -> Iterator[None]:
    """What this thread calls in here does not import torch's compiler, unless it uses it. May be nested."""
    if "torch._dynamo" in sys.modules:
        yield
        return
    with _asking:
        yield


class _Asking:
    """Stands for ``getattr`` in `torch._compile` while any thread counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._active = 0
        self._here = threading.local()

    def __call__(self, target: Any, name: str, *default: Any) -> Any:
        if name != ASKED or not getattr(self._here, "depth", 0) or "torch._dynamo" in sys.modules:
            return builtins.getattr(target, name, *default)
        is_checkpoint = target.__module__ == CHECKPOINT and target.__name__ in _FUNCTIONS
        return _copies(sys.modules[CHECKPOINT])[target.__name__] if is_checkpoint else target

    def __enter__(self) -> None:
        with self._lock:
            self._active += 1
            vars(_compile)["getattr"] = self
        self._here.depth = getattr(self._here, "depth", 0) + 1

    def __exit__(self, *_error: object) -> None:
        self._here.depth -= 1
        with self._lock:
            self._active -= 1
            if not self._active:
                del vars(_compile)["getattr"]


_asking = _Asking()


def _copies(module: ModuleType) -> dict[str, Any]:
    """The module's names as they are now, its settings among them; what names the compiler meets `_Torch` for torch."""
    own: dict[str, Any] = {**vars(module), "torch": _Torch()}
    for name in _FUNCTIONS:
        value = vars(module).get(name)
        if value is not None:
            own[name] = _copied(getattr(value, "__wrapped__", value), own)
    for name in _CLASSES:
        value = vars(module).get(name)
        if value is not None:
            methods = ((k, v) for k, v in vars(value).items() if k in _METHODS)
            own[name] = type(name, (value,), {k: _copied(v, own) for k, v in methods})
    return own


def _copied(function: Any, own: dict[str, Any]) -> Any:
    if isinstance(function, staticmethod):
        return staticmethod(_copied(function.__func__, own))
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Torch:
    """torch, but for a compiler that is not there and a backward pass that imports nothing."""

    def __init__(self) -> None:
        self._dynamo = _Compiler()
        self.autograd = _Autograd()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _Compiler:
    """What a checkpoint asks of the compiler."""

    config = SimpleNamespace(error_on_nested_fx_trace=True)

    @staticmethod
    def disable(function: Any) -> Any:
        """There is no compiler that it would have to be kept from."""
        return function


class _Autograd:
    def __getattr__(self, name: str) -> Any:
        return getattr(torch.autograd, name)

    @staticmethod
    def backward(tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
        run_backward(tensors, gradients)


def run_backward(roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]) -> None:
    """What `torch.autograd.backward` ends in; before that it imports a computer algebra system (0.3 s, 40 MB)."""
    engine = getattr(torch.autograd.graph, "_engine_run_backward", None)
    if engine is None or any(g is None for g in gradients):
        torch.autograd.backward(roots, gradients)  # type: ignore[no-untyped-call, unused-ignore]
        return
    engine(tuple(roots), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True)
