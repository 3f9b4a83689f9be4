"""The functions of PyTorch that have no hook: replaced while at least one meter watches, restored with the last.

`torch.autograd.backward` is what `Tensor.backward`, DDP, Lightning and Trainer come to. `GradScaler.step` calls an
optimizer only when the gradients are finite, so the optimizer's hooks cannot tell a step that was skipped. A checkpoint
calls the function that it recomputes from a place that no module's hook sees.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.utils import checkpoint

from powerd_client.watchmarks import Marker
from powerd_client.watchupdate import Updates

_Any = Callable[..., Any]

_lock = threading.RLock()
"""Taken again by the thread that has it where the garbage collector ends the watch of a model meanwhile."""
_restorers: list[Callable[[], None]] = []
_uses: dict[Marker, int] = {}
_markers: tuple[Marker, ...] = ()
optimizers: weakref.WeakKeyDictionary[Any, list[Updates]] = weakref.WeakKeyDictionary()
"""The updates to mark, by optimizer: one for each meter that watches it."""


def use(marker: Marker) -> None:
    """Mark the passes for this marker too, until it was `release`d as often."""
    global _markers  # noqa: PLW0603  (the functions replaced are global as well)
    with _lock:
        _uses[marker] = _uses.get(marker, 0) + 1
        _markers = tuple(_uses)
        if not _restorers:
            _install()
        if not hasattr(checkpoint, "_checkpoint_without_reentrant_generator"):
            marker.note("this PyTorch's checkpoints cannot be marked: recomputation is counted as backward")


def release(marker: Marker) -> None:
    """Undo one `use`."""
    global _markers  # noqa: PLW0603
    with _lock:
        _uses[marker] -= 1
        if not _uses[marker]:
            del _uses[marker]
        _markers = tuple(_uses)
        while not _uses and _restorers:
            _restorers.pop()()


def _install() -> None:
    _replace(torch.autograd, "backward", functools.partial(_marked_pass, accumulates=True))
    _replace(torch.autograd, "grad", functools.partial(_marked_pass, accumulates=False))
    _replace(torch.amp.GradScaler, "step", _marked_step)
    _replace(torch.amp.GradScaler, "unscale_", _marked_unscale)
    if hasattr(checkpoint, "_checkpoint_without_reentrant_generator"):
        _replace(checkpoint, "_checkpoint_without_reentrant_generator", _recomputing)
    _replace_apply()


def _replace(owner: Any, name: str, make: Callable[[_Any], _Any]) -> None:
    original = getattr(owner, name)
    ours = make(original)
    setattr(owner, name, ours)

    def restore() -> None:
        # What somebody else has put over ours keeps calling it; it then only passes the call on.
        if getattr(owner, name) is ours:
            setattr(owner, name, original)

    _restorers.append(restore)


def _replace_apply() -> None:
    """`CheckpointFunction` inherits ``apply``: ours shadows it and is deleted again."""
    function = checkpoint.CheckpointFunction
    ours = staticmethod(_recomputing(function.apply))
    function.apply = ours  # type: ignore[method-assign]

    def restore() -> None:
        if function.__dict__.get("apply") is ours:
            del function.apply

    _restorers.append(restore)


def _marked_pass(original: _Any, *, accumulates: bool) -> _Any:
    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        begun = [marker for marker in _markers if marker.begin_backward(accumulates=accumulates)]
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
        finally:
            for marker in begun:
                marker.end_backward(failed=failed)
        return result

    return marked


def _recomputing(original: _Any) -> _Any:
    """``original`` takes the function that it will call again in backward as its first argument."""

    @functools.wraps(original)
    def marked(function: _Any, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function, updated=())
        def recomputed(*inner: Any, **named: Any) -> Any:
            if is_compiling():
                return function(*inner, **named)
            begun = [marker for marker in _markers if marker.begin_recompute()]
            try:
                return function(*inner, **named)
            finally:
                for marker in begun:
                    marker.end_recompute()

        return original(recomputed, *args, **kwargs)

    return marked


def _marked_step(original: _Any) -> _Any:
    @functools.wraps(original)
    def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        watched = () if is_compiling() or not scaler.is_enabled() else optimizers.get(optimizer, ())
        for updates in watched:
            updates.begin_scaled_step()
        failed = True
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            failed = False
        finally:
            for updates in watched:
                updates.end_scaled_step(failed=failed)
        return result

    return step


def _marked_unscale(original: _Any) -> _Any:
    @functools.wraps(original)
    def unscale_(scaler: Any, optimizer: Any) -> Any:
        watched = () if is_compiling() or not scaler.is_enabled() else optimizers.get(optimizer, ())
        for updates in watched:
            updates.begin_unscale()
        try:
            return original(scaler, optimizer)
        except BaseException:
            for updates in watched:
                updates.leave()
            raise

    return unscale_
