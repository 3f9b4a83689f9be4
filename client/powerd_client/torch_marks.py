"""Where PyTorch's hooks mark, and the functions of PyTorch that have no hook.

`TorchMarks` writes the marks of all watches of one meter, and knows what is open in them. Phases nest within a thread.
PyTorch's engine runs the hooks of a backward pass on threads of its own where there is a GPU, so a mark made there is
written for the thread that called ``backward``, and lies inside its phase.

`UpdateMarks` marks the steps of one optimizer, with closures and gradient scaling.

What has no hook is replaced when the first meter watches, for good; where no meter watches, it only passes calls on.
`torch.autograd.backward` is what `Tensor.backward`, DDP, Lightning and Trainer come to. `GradScaler.step` calls an
optimizer only when the gradients are finite, so the optimizer's hooks cannot tell a step that was skipped. A checkpoint
calls the function that it recomputes from a place that no module's hook sees.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import _C
from torch.compiler import is_compiling
from torch.utils import checkpoint

from powerd_client.marks import MarkWriter
from powerd_client.phase import Attribute, Phase

graph_task: Callable[[], int] = _C._current_graph_task_id
"""The backward pass that the engine runs on this thread at the moment, -1 for none."""


def calls_of(owner: object, name: str) -> int:
    """How many calls of functions of this name, with ``owner`` as ``self``, this runs inside. For rare cases only."""
    frame, calls = sys._getframe(1), 0
    while frame is not None:
        calls += frame.f_code.co_name == name and frame.f_locals.get("self") is owner
        frame = frame.f_back  # type: ignore[assignment]
    return calls


class PhaseCodes(NamedTuple):
    """The codes of a phase kind's marks: its begin, its end, and the end of one that an error ended."""

    begin: int
    end: int
    cut: int


@dataclass(slots=True)
class _Pass:
    """A backward pass that runs, and what is open in it. Watches come and go, and what ends is what began."""

    codes: PhaseCodes
    layer: PhaseCodes | None = None
    recompute: PhaseCodes | None = None


class TorchMarks:
    """The marks of all watches of one meter. Its methods never raise."""

    def __init__(self, mark: Callable[..., None], phase: Callable[..., Phase], writer: MarkWriter) -> None:
        self.mark = mark
        self._phase = phase
        self._writer = writer
        self._noted: set[str] = set()
        self._tracks = -1
        self._passes: dict[int, _Pass] = {}
        """By the thread that called it."""
        self.watches: dict[Any, dict[str, Attribute]] = {}
        """The watches that go on, with their attributes."""
        self.updating: dict[int, UpdateMarks] = {}
        """The optimizer whose ``update`` is open, by thread."""
        _meters.append(self)
        _patch_torch()

    def close(self) -> None:
        """End all watches."""
        for watch in list(self.watches):
            watch.remove()
        _meters.remove(self)

    def _backward_codes(self, name: str) -> PhaseCodes:
        """The codes of a backward pass, or of what belongs to it, that begins now.

        Which model a backward pass belongs to, no hook says. It has the attributes that all watches have, if they have
        the same ones, and none if they differ.
        """
        first, *others = list(self.watches.values()) or [{}]
        return self.codes(name, first if all(other == first for other in others) else {})

    def codes(self, name: str, attributes: Mapping[str, Attribute]) -> PhaseCodes:
        """The codes of a phase kind, the same for the same name and attributes."""
        begin = self._phase(name, **attributes)._begin
        return PhaseCodes(begin, ~begin, self._writer.cut(begin))

    def note(self, text: str, level: str = "warning") -> None:
        """Put a message into the run, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._writer.note(text, level)

    def track(self) -> int:
        """A thread number that no thread has: these are addresses, and even."""
        self._tracks += 2
        return self._tracks

    def caller(self) -> int:
        """The thread to whose phases a mark made here and now belongs: this one, or in a backward pass that the engine
        runs on a thread of its own the one that called it."""
        thread = get_ident()
        if thread in self._passes or graph_task() == -1:
            return thread
        return next(reversed(self._passes), thread)

    def begin(self, codes: PhaseCodes) -> None:
        """Begin a forward pass: an update that is still open was left by an exception."""
        self._cut_update()
        self.mark(codes.begin)

    def _cut_update(self) -> None:
        if self.updating and (abandoned := self.updating.get(get_ident())) is not None:
            abandoned.cut()

    def begin_backward(self, *, accumulates: bool) -> bool:
        """Begin ``backward``, or ``gradient`` for one whose results are handed out instead of accumulated. False inside
        another: a checkpoint's own backward is a part of it, not a second one.
        """
        thread = get_ident()
        if not self.watches or thread in self._passes or graph_task() != -1:
            return False
        self._cut_update()
        codes = self._backward_codes("backward" if accumulates else "gradient")
        self._passes[thread] = _Pass(codes)
        self.mark(codes.begin)
        return True

    def end_backward(self, *, failed: bool) -> None:
        """End what `begin_backward` began, and the layer that is open in it."""
        ended = self._passes.pop(get_ident())
        for codes in (ended.layer, ended.codes):
            if codes is not None:
                self.mark(codes.cut if failed else codes.end)

    def begin_recompute(self) -> bool:
        """Begin ``recompute`` if a forward pass here is one that a checkpoint does over in backward."""
        caller = self.caller()
        running = self._passes.get(caller)
        if running is None or running.recompute is not None:
            return False
        running.recompute = self._backward_codes("recompute")
        if running.layer is not None:
            self.mark(running.layer.end, caller)
        self.mark(running.recompute.begin, caller)
        return True

    def end_recompute(self) -> None:
        """End it, and go on with the layer whose backward asked for it."""
        caller = self.caller()
        running = self._passes.get(caller)
        if running is not None and running.recompute is not None:
            self.mark(running.recompute.end, caller)
            running.recompute = None
            if running.layer is not None:
                self.mark(running.layer.begin, caller)

    def begin_layer(self, codes: PhaseCodes) -> None:
        """The gradient has reached a layer: the one before it is done."""
        caller = self.caller()
        running = self._passes.get(caller)
        if running is not None:  # else it came by another way, as from C++
            if running.layer is not None:
                self.mark(running.layer.end, caller)
            running.layer = codes
            self.mark(codes.begin, caller)


class UpdateMarks:
    """Marks the steps of one optimizer by its step hooks and, under a `GradScaler`, around the scaler's calls.

    One update is open at a time in a thread: of two optimizers that are unscaled first and stepped later, the first
    one's update is in two pieces.
    """

    def __init__(self, marks: TorchMarks, codes: PhaseCodes, optimizer: Any) -> None:
        """Hooks the optimizer, instead of what marked its steps for the same meter before."""
        self.marks = marks
        self._codes = codes
        self._name = type(optimizer).__name__
        self._is_held = False
        """Whether the update goes on until a scaler's step returns."""
        self._has_stepped = False
        """Whether the scaler has called the optimizer since."""
        self._depth = 0
        """Step hooks that this is in: a subclass whose step calls its parent's has them called twice."""
        for earlier in _updates_of(optimizer):
            if earlier.marks is marks:
                earlier.close()
        self._hooks = (
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
        )

    def close(self) -> None:
        """Take the hooks away. Again does nothing."""
        for hook in self._hooks:
            hook.remove()

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
        if not self._is_held:
            self.cut()
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
        self._has_stepped = True
        self._depth -= 1
        if self._depth <= 0 and not self._is_held:
            self._end()

    def _around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def marked() -> Any:
            self._end()
            result = closure()
            self._begin()
            return result

        return marked

    def _begin(self) -> None:
        thread = get_ident()
        other = self.marks.updating.get(thread)
        if other is not None and other is not self:
            other._end()
        self.marks.updating[thread] = self
        self.marks.mark(self._codes.begin)

    def _end(self, code: int | None = None) -> bool:
        """End this update, if it is open in this thread. Whether it was."""
        self._is_held = False
        is_open = self.marks.updating.get(get_ident()) is self
        if is_open:
            del self.marks.updating[get_ident()]
            self.marks.mark(self._codes.end if code is None else code)
        return is_open

    def cut(self) -> None:
        """Cut an update that something else ended: an exception, or a step that never came after `unscale_`."""
        self._depth = 0
        if self._end(self._codes.cut):
            self.marks.note(
                f"an update of {self._name} did not come to its end (an exception, or unscale_ without step): it is cut"
            )

    def hold(self) -> None:
        """``scaler.unscale_(optimizer)`` or ``scaler.step(optimizer)`` begins: the update is open from the first of
        them to the end of the scaler's step."""
        if not (self._is_held and self.marks.updating.get(get_ident()) is self):
            self._begin()
            self._is_held, self._has_stepped = True, False

    def end_scaled_step(self) -> None:
        """``scaler.step`` has returned."""
        self._end()
        if not self._has_stepped:
            self.marks.note(
                f"GradScaler skipped a step of {self._name} (gradients not finite): its update is only the check"
            )


def _updates_of(optimizer: Any) -> list[UpdateMarks]:
    """What marks an optimizer's steps: one for each meter that watches it."""
    hooks = getattr(optimizer, "_optimizer_step_pre_hooks", {}).values()
    owners = [getattr(hook, "__self__", None) for hook in hooks]
    return [owner for owner in owners if isinstance(owner, UpdateMarks)]


_Function = Callable[..., Any]

_meters: list[TorchMarks] = []
"""Of the meters that are open. Other threads may append and remove: what goes through it takes a copy."""


@functools.cache
def _patch_torch() -> None:
    torch.autograd.backward = _marked_pass(torch.autograd.backward, accumulates=True)
    torch.autograd.grad = _marked_pass(torch.autograd.grad, accumulates=False)
    scaler: Any = torch.amp.GradScaler
    scaler.step = _marked_scaler(scaler.step, UpdateMarks.end_scaled_step)
    scaler.unscale_ = _marked_scaler(scaler.unscale_)
    saved: Any = checkpoint
    saved._checkpoint_without_reentrant_generator = _recomputing(saved._checkpoint_without_reentrant_generator)
    saved.CheckpointFunction.apply = staticmethod(_recomputing(saved.CheckpointFunction.apply))


def _marked_pass(original: _Function, *, accumulates: bool) -> _Function:
    @functools.wraps(original)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        begun = [marks for marks in list(_meters) if marks.begin_backward(accumulates=accumulates)]
        failed = True
        try:
            result = original(*args, **kwargs)
            failed = False
        finally:
            for marks in begun:
                marks.end_backward(failed=failed)
        return result

    return marked


def _recomputing(original: _Function) -> _Function:
    """``original`` takes the function that it will call again in backward as its first argument."""

    @functools.wraps(original)
    def marked(function: _Function, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function, updated=())
        def recomputed(*inner: Any, **named: Any) -> Any:
            if is_compiling():
                return function(*inner, **named)
            begun = [marks for marks in list(_meters) if marks.begin_recompute()]
            try:
                return function(*inner, **named)
            finally:
                for marks in begun:
                    marks.end_recompute()

        return original(recomputed, *args, **kwargs)

    return marked


def _marked_scaler(original: _Function, end: Callable[[UpdateMarks], None] | None = None) -> _Function:
    """A method of `GradScaler` that is called with an optimizer, as a part of its update."""

    @functools.wraps(original)
    def marked(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        is_marked = not is_compiling() and scaler.is_enabled()
        scaled = _updates_of(optimizer) if is_marked else []
        for updates in scaled:
            updates.hold()
        try:
            result = original(scaler, optimizer, *args, **kwargs)
        except BaseException:
            for updates in scaled:
                updates.cut()
            raise
        if end is not None:
            for updates in scaled:
                end(updates)
        return result

    return marked
