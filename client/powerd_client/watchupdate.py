"""The ``update`` phases of one optimizer, with closures and gradient scaling."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch.compiler import is_compiling

from powerd_client.watchmarks import Kind, Marker, calls_of


class Updates:
    """Marks the steps of one optimizer by its step hooks and, under a `GradScaler`, around the scaler's calls.

    One update is open at a time in a thread: of two optimizers that are unscaled first and stepped later, the first
    one's update is in two pieces.
    """

    def __init__(self, marker: Marker, kind: Kind, name: str) -> None:
        self.marker = marker
        self._kind = kind
        self._name = name
        self._in_scaler = self._is_held = self._stepped = self._began = False
        self._depth = 0
        """Step hooks that this is in: a subclass whose step calls its parent's has them called twice."""
        self._passes = (0, 0)
        self._skipped = self._steps = 0
        self._undo: list[Callable[[], None]] = []

    def before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The optimizer's step pre-hook. With a closure, the update begins when the closure returns: the forward and
        backward in it are phases of their own."""
        if is_compiling():
            return None
        if self._depth and calls_of(optimizer, "wrapper") > 1:
            self._depth += 1
            return None
        self._began = self._is_held
        if not self._is_held:
            self.leave()
        self._depth = 1
        if self._is_held:
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._around(kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._around(args[1]), *args[2:]), kwargs
        self._begin()
        return None

    def after_step(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The optimizer's step post-hook."""
        if is_compiling():
            return
        self._stepped = True
        self._depth -= 1
        if self._depth > 0:
            return
        if not self._in_scaler:
            self._finish()
        if not self._began:
            self.marker.note(f"{self._name} did not call its closure: that step is not marked as update")
        self._look_for_unseen_passes()

    def _look_for_unseen_passes(self) -> None:
        marker, (forwards, backwards) = self.marker, self._passes
        self._passes = marker.forwards, marker.backwards
        if marker.backwards == backwards:
            marker.note(
                f"{self._name} made a step with no backward pass that could be marked before it: its work ran where "
                "hooks do not reach (the replay of a CUDA graph, a compiled step, the autograd engine called from C++)"
            )
        elif marker.forwards == forwards:
            marker.note(
                f"{self._name} made a step with no forward pass of a watched model in training mode before it (a model "
                "compiled after watch(), called by another wrapper, or replayed as a CUDA graph)"
            )

    def _around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def marked() -> Any:
            self._finish()
            result = closure()
            self._begin()
            return result

        return marked

    def _begin(self) -> None:
        marker, thread = self.marker, get_ident()
        other = marker.updating.get(thread)
        if other is not None and other is not self:
            other._finish()
        marker.updating[thread] = self
        self._began = True
        marker.mark(self._kind.begin)

    def _finish(self) -> None:
        self._is_held = False
        if self._close_here():
            self.marker.mark(self._kind.end)

    def _is_open_here(self) -> bool:
        return self.marker.updating.get(get_ident()) is self

    def _close_here(self) -> bool:
        """Whether this update was open in this thread; it is not any more."""
        if not self._is_open_here():
            return False
        del self.marker.updating[get_ident()]
        return True

    def leave(self) -> None:
        """Cut an update that something else ended: an exception, or a step that never came after `unscale_`."""
        self._is_held = self._in_scaler = False
        self._depth = 0
        if self._close_here():
            self.marker.mark(self._kind.cut)
            self.marker.note(
                f"an update of {self._name} did not come to its end (an exception, or unscale_ without step): it is cut"
            )

    def begin_unscale(self) -> None:
        """``scaler.unscale_(optimizer)``: the update is open from here to the end of the scaler's step."""
        if not self._in_scaler:
            self._begin_held()

    def begin_scaled_step(self) -> None:
        """``scaler.step(optimizer)``."""
        self._begin_held()
        self._in_scaler, self._stepped = True, False

    def _begin_held(self) -> None:
        if not (self._is_held and self._is_open_here()):
            self._begin()
            self._is_held = True

    def end_scaled_step(self, *, failed: bool) -> None:
        """``scaler.step`` has returned or raised."""
        self._in_scaler = False
        if failed:
            self.leave()
            return
        self._finish()
        self._steps += 1
        if not self._stepped:
            self._skipped += 1
            self.marker.note(
                f"GradScaler skipped a step of {self._name} (gradients not finite): its update is only the check"
            )

    def on_close(self, *undo: Callable[[], None]) -> None:
        """What `close` shall do."""
        self._undo += undo

    def close(self) -> None:
        """Take the hooks away, and say what is known only at the end."""
        while self._undo:
            self._undo.pop()()
        if self._skipped > 1:
            self.marker.note(f"GradScaler skipped {self._skipped} of {self._steps} steps of {self._name}")
