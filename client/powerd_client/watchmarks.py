"""Where the watches of one meter write their marks, and what they know of each other.

Phases nest within a thread. PyTorch's engine runs the hooks of a backward pass on threads of its own where there is a
GPU, so a mark made there is written for the thread that called ``backward``, and lies inside its phase.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import _C

from powerd_client.markwriter import MarkWriter

if TYPE_CHECKING:
    from powerd_client.meter import Meter
    from powerd_client.phase import Attribute
    from powerd_client.watchupdate import Updates

graph_task: Callable[[], int] = _C._current_graph_task_id
"""The backward pass that the engine runs on this thread at the moment, -1 for none."""


def calls_of(owner: object, name: str) -> int:
    """How many calls of functions of this name, with ``owner`` as ``self``, this runs inside. For rare cases only."""
    frame, calls = sys._getframe(1), 0
    while frame is not None:
        calls += frame.f_code.co_name == name and frame.f_locals.get("self") is owner
        frame = frame.f_back  # type: ignore[assignment]
    return calls


class Kind(NamedTuple):
    """The marks of a phase kind: its begin, its end, and the end of one that an error ended."""

    begin: int
    end: int
    cut: int


class BackwardKinds(NamedTuple):
    """What belongs to a backward pass, by the phases' names."""

    backward: Kind
    gradient: Kind
    recompute: Kind


class Mark(Protocol):
    """`MarkWriter.mark`, or what stands in for it where phases are timed on a device."""

    def __call__(self, code: int, thread: int | None = None) -> None: ...


class Marker:
    """The marks of all watches of one meter. Its methods never raise."""

    def __init__(self, meter: Meter, writer: MarkWriter) -> None:
        self.mark: Mark = meter._mark
        self._meter_phase = meter.phase
        self._writer = writer
        self._noted: set[str] = set()
        self._tracks = -1
        self._running: list[int] = []
        """Threads that called a backward pass that still runs."""
        self._opened: dict[int, Kind] = {}
        """What each of them has begun: watches come and go, and what ends is what began."""
        self._layer: dict[int, Kind] = {}
        self._recomputing: dict[int, Kind] = {}
        """What is open in a backward pass, by the thread that called it."""
        self._of_watches: dict[object, dict[str, Attribute]] = {}
        self._passes: BackwardKinds | None = None
        """Of the watches as they are; made when the next pass asks for it."""
        self.updating: dict[int, Updates] = {}
        """The optimizer whose ``update`` is open, by thread."""
        self.forwards = self.backwards = 0

    def join(self, attributes: Mapping[str, Attribute]) -> Callable[[], None]:
        """A watch with these attributes begins; returns what ends it.

        Which model a backward pass belongs to, no hook says. It has the attributes that all watches have, if they have
        the same ones, and none if they differ.
        """
        key = object()
        self._of_watches[key] = dict(attributes)
        self._passes = None

        def leave() -> None:
            del self._of_watches[key]
            self._passes = None

        return leave

    def passes(self) -> BackwardKinds:
        """The kinds of a backward pass that begins now."""
        found = self._passes
        if found is None:
            first, *others = list(self._of_watches.values()) or [{}]
            shared = first if all(other == first for other in others) else {}
            found = self._passes = BackwardKinds(*(self.kind(name, shared) for name in BackwardKinds._fields))
        return found

    def kind(self, name: str, attributes: Mapping[str, Attribute] | None = None) -> Kind:
        """The marks of a phase kind, the same for the same name and attributes."""
        begin = self._meter_phase(name, **(attributes or {}))._begin
        return Kind(begin, ~begin, self._writer.cut(begin))

    def note(self, text: str, level: str = "warning") -> None:
        """Put a message into the run, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._writer.note(text, level)

    def track(self) -> int:
        """A thread number that no thread has: these are addresses, and even."""
        self._tracks += 2
        return self._tracks

    def at(self, code: int, thread: int | None) -> None:
        """Mark for ``thread``, None for the one that runs."""
        if thread is None:
            self.mark(code)
        else:
            self.mark(code, thread)

    def place(self) -> int | None:
        """The thread to whose phases a mark made here and now belongs, None for this one."""
        if not self._running or graph_task() == -1 or get_ident() in self._running:
            return None
        return self._running[-1]

    def begin(self, kind: Kind) -> None:
        """Begin a forward pass: an update that is still open was left by an exception."""
        self._leave_update()
        self.mark(kind.begin)

    def _leave_update(self) -> None:
        if self.updating and (left := self.updating.get(get_ident())) is not None:
            left.leave()

    def begin_backward(self, *, accumulates: bool) -> bool:
        """Begin ``backward``, or ``gradient`` for one whose results are handed out instead of accumulated. False inside
        another: a checkpoint's own backward is a part of it, not a second one.
        """
        thread = get_ident()
        if thread in self._running or graph_task() != -1:
            return False
        self._leave_update()
        self._running.append(thread)
        self.backwards += 1
        kind = self._opened[thread] = self.passes().backward if accumulates else self.passes().gradient
        self.mark(kind.begin)
        return True

    def end_backward(self, *, failed: bool) -> None:
        """End what `begin_backward` began, and the layer that is open in it."""
        thread = get_ident()
        kind = self._opened.pop(thread)
        self._recomputing.pop(thread, None)
        layer = self._layer.pop(thread, None)
        if layer is not None:
            self.mark(layer.cut if failed else layer.end)
        self.mark(kind.cut if failed else kind.end)
        self._running.remove(thread)

    def begin_recompute(self) -> bool:
        """Begin ``recompute`` if a forward pass here is one that a checkpoint does over in backward."""
        if graph_task() == -1:
            return False
        thread = self.place()
        caller = get_ident() if thread is None else thread
        if caller in self._recomputing:
            return False
        kind = self._recomputing[caller] = self.passes().recompute
        layer = self._layer.get(caller)
        if layer is not None:
            self.at(layer.end, thread)
        self.at(kind.begin, thread)
        return True

    def end_recompute(self) -> None:
        """End it, and go on with the layer whose backward asked for it."""
        thread = self.place()
        caller = get_ident() if thread is None else thread
        kind, layer = self._recomputing.pop(caller, None), self._layer.get(caller)
        if kind is not None:
            self.at(kind.end, thread)
        if layer is not None:
            self.at(layer.begin, thread)

    def begin_layer(self, kind: Kind) -> None:
        """The gradient has reached a layer: the one before it is done."""
        if not self._running:
            return  # a backward pass that came by another way, as from C++
        thread = self.place()
        caller = get_ident() if thread is None else thread
        before = self._layer.get(caller)
        if before is not None:
            self.at(before.end, thread)
        self._layer[caller] = kind
        self.at(kind.begin, thread)
