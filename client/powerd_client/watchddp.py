"""Communication of `DistributedDataParallel` as phases beside backward.

A communication hook says when a bucket of gradients is ready, and its future when the bucket is reduced. The phase
``communication`` is what lies between, waiting in the queue behind other buckets included. On a GPU the future's
callback runs on a stream that has waited for the reduction, so that its device time is right too. As buckets overlap
backward and each other, each has a track (a thread number) of its own, and the attribute ``overlaps`` makes them a
group of their own, outside the sums of other phases.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from powerd_client.watchmarks import Kind, Marker

if TYPE_CHECKING:
    from powerd_client.phase import Attribute

_Hook = Callable[[Any, Any], Any]

GPU_PASSES = 32
"""On a GPU one backward pass of so many is marked. An event on the stream that has waited for a reduction makes all
kernels of an iteration take longer: marked each time, ResNet-34 was 8.7 % slower on two H200 (docs/training.md).
"""

_registered: weakref.WeakKeyDictionary[DistributedDataParallel, Communication] = weakref.WeakKeyDictionary()


class Communication:
    """The communication hook of one DDP model. DDP takes one for good, so it stays when nothing is marked any more."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.marker: Marker | None = None
        self._kind = Kind(0, 0, 0)
        self._tracks: dict[int, int] = {}
        self._passes = 0
        self._marks_pass = True
        group = model.process_group
        size = group.size()

        def average(_state: object, bucket: Any) -> Any:
            # What DDP does without a hook, in the same arithmetic: gradients are the same to the last bit. (Only where
            # they are kept as views of the bucket from step to step DDP divides instead, which rounds otherwise if
            # the number of ranks is no power of two.)
            buffer = bucket.buffer().mul_(1.0 / size)
            return dist.all_reduce(buffer, group=group, async_op=True).get_future()

        self._inner: tuple[_Hook, Any] = (average, None)

    def mark_for(self, marker: Marker, attributes: Mapping[str, Attribute]) -> Callable[[], None]:
        """Mark for this marker; returns what ends that."""
        self._tracks = {}
        self._kind = marker.kind("communication", {**attributes, "overlaps": True})
        self.marker = marker

        def end() -> None:
            if self.marker is marker:
                self.marker = None

        return end

    def replace(self, state: object, hook: _Hook) -> None:
        """What `register_comm_hook` does from now on: the user's hook, marked."""
        self._inner = (hook, state)

    def reduce(self, bucket: Any) -> Any:
        """The hook itself."""
        hook, state = self._inner
        marker, kind = self.marker, self._kind
        index = bucket.index()
        if index == 0:  # the first of a pass: DDP reduces buckets in their order
            self._passes += 1
            # The second pass is the first whose buckets are cut as all later ones.
            self._marks_pass = not bucket.buffer().is_cuda or self._passes % GPU_PASSES == 2
        if marker is None or not self._marks_pass:
            # The future must hold a Python object; it does where a callback in Python made it.
            return hook(state, bucket).then(_Done(None, kind, 0))
        track = self._tracks.get(index)
        if track is None:
            track = self._tracks[index] = marker.track()
        marker.mark(kind.begin, track)
        return hook(state, bucket).then(_Done(marker, kind, track))


class _Done:
    """What a reduction's future calls: marks its end, and hands on its tensor."""

    __slots__ = ("__weakref__", "_kind", "_marker", "_track")

    def __init__(self, marker: Marker | None, kind: Kind, track: int) -> None:
        self._marker, self._kind, self._track = marker, kind, track
        _waiting.add(self)

    def __call__(self, future: Any) -> Any:
        try:
            value = future.value()
        except BaseException:
            self._mark(self._kind.cut)
            raise
        self._mark(self._kind.end)
        return value[0] if isinstance(value, list) else value

    def _mark(self, code: int) -> None:
        if self._marker is not None:
            self._marker.mark(code, self._track)


_waiting: weakref.WeakSet[_Done] = weakref.WeakSet()


def _wait_for_callbacks() -> None:
    """A backend's thread that drops its callback only when the interpreter ends would end the process with an abort."""
    deadline = time.monotonic() + 1.0
    while len(_waiting) and time.monotonic() < deadline:
        time.sleep(0.001)


atexit.register(_wait_for_callbacks)


def mark_communication(
    marker: Marker, model: DistributedDataParallel, attributes: Mapping[str, Attribute]
) -> Callable[[], None] | None:
    """Mark the reductions of a DDP model; None, and a message, where that is not possible."""
    communication = _registered.get(model)
    if communication is not None:
        return communication.mark_for(marker, attributes)
    if model._comm_hooks:
        marker.note("a communication hook was registered before watch(): communication is not marked (watch first)")
        return None
    if getattr(model, "mixed_precision", None) is not None:
        marker.note("DDP with mixed_precision has a communication hook of its own: communication is not marked")
        return None
    communication = Communication(model)
    reference = weakref.ref(communication)

    # DDP compares annotations with types, and strings are none.
    def powerd_marked(state, bucket):  # type: ignore[no-untyped-def]
        return state.reduce(bucket)

    try:
        model.register_comm_hook(communication, powerd_marked)
    except Exception as error:  # noqa: BLE001  (the training goes on with DDP's own reduction)
        marker.note(f"DDP takes no communication hook ({error}): communication is not marked")
        return None
    _registered[model] = communication
    if any(p.is_cuda for p in model.parameters()):
        text = f"communication is marked in one backward pass of {GPU_PASSES}: marking each would slow the GPU"
        marker.note(text, "info")

    def register_comm_hook(state: object, hook: _Hook) -> None:
        owner, held = weak(), reference()
        if owner is not None and held is not None:
            owner._check_comm_hook(hook)  # type: ignore[no-untyped-call]
            held.replace(state, hook)

    # DDP refuses a second hook: the user's own comes to lie inside ours.
    weak = weakref.ref(model)
    model.__dict__["register_comm_hook"] = register_comm_hook
    return communication.mark_for(marker, attributes)
