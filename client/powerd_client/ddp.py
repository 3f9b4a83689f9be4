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
from typing import Any

import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from powerd_client.phase import Attribute
from powerd_client.torch_marks import PhaseCodes, TorchMarks

_Hook = Callable[[Any, Any], Any]

GPU_PASSES = 32
"""On a GPU one backward pass of so many is marked. An event on the stream that has waited for a reduction makes all
kernels of an iteration take longer: marked each time, ResNet-34 was 8.7 % slower on two H200 (docs/training.md).
"""

_registered: weakref.WeakKeyDictionary[DistributedDataParallel, Communication] = weakref.WeakKeyDictionary()


class Communication:
    """The communication hook of one DDP model. DDP takes one for good, so it stays when nothing is marked any more."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self.marks: TorchMarks | None = None
        self._codes = PhaseCodes(0, 0, 0)
        self._tracks: dict[int, int] = {}
        self._passes = 0
        self._is_marked = True
        group = model.process_group
        size = group.size()

        def average(_state: object, bucket: Any) -> Any:
            # What DDP does without a hook, in the same arithmetic: gradients are the same to the last bit. (Only where
            # they are kept as views of the bucket from step to step DDP divides instead, which rounds otherwise if
            # the number of ranks is no power of two.)
            buffer = bucket.buffer().mul_(1.0 / size)
            return dist.all_reduce(buffer, group=group, async_op=True).get_future()

        self.inner: tuple[_Hook, Any] = (average, None)
        """What reduces: DDP's own arithmetic, or the user's hook, and that one's state."""

    def mark_for(self, marks: TorchMarks, attributes: Mapping[str, Attribute]) -> list[Callable[[], None]]:
        """Mark here from now on; returns what ends that."""
        self._tracks = {}
        self._codes = marks.codes("communication", {**attributes, "overlaps": True})
        self.marks = marks

        def end() -> None:
            if self.marks is marks:
                self.marks = None

        return [end]

    def reduce(self, bucket: Any) -> Any:
        """The hook itself."""
        hook, state = self.inner
        marks, codes = self.marks, self._codes
        index = bucket.index()
        if index == 0:  # the first of a pass: DDP reduces buckets in their order
            self._passes += 1
            # The second pass is the first whose buckets are cut as all later ones.
            self._is_marked = not bucket.buffer().is_cuda or self._passes % GPU_PASSES == 2
        if marks is None or not self._is_marked:
            # The future must hold a Python object; it does where a callback in Python made it.
            return hook(state, bucket).then(_Done(None, codes, 0))
        track = self._tracks.get(index)
        if track is None:
            track = self._tracks[index] = marks.track()
        marks.mark(codes.begin, track)
        return hook(state, bucket).then(_Done(marks, codes, track))


class _Done:
    """What a reduction's future calls: marks its end, and hands on its tensor."""

    __slots__ = ("__weakref__", "_codes", "_marks", "_track")

    def __init__(self, marks: TorchMarks | None, codes: PhaseCodes, track: int) -> None:
        self._marks, self._codes, self._track = marks, codes, track
        _waiting.add(self)

    def __call__(self, future: Any) -> Any:
        try:
            value = future.value()
        except BaseException:
            self._mark(self._codes.cut)
            raise
        self._mark(self._codes.end)
        return value[0] if isinstance(value, list) else value

    def _mark(self, code: int) -> None:
        if self._marks is not None:
            self._marks.mark(code, self._track)


_waiting: weakref.WeakSet[_Done] = weakref.WeakSet()


def _wait_for_callbacks() -> None:
    """A backend's thread that drops its callback only when the interpreter ends would end the process with an abort."""
    deadline = time.monotonic() + 1.0
    while len(_waiting) and time.monotonic() < deadline:
        time.sleep(0.001)


atexit.register(_wait_for_callbacks)


def mark_communication(
    marks: TorchMarks, model: Module, attributes: Mapping[str, Attribute]
) -> list[Callable[[], None]]:
    """Mark the reductions of a DDP model; returns what ends that. Where it is not possible, a message says so."""
    if not isinstance(model, DistributedDataParallel):
        return []
    communication = _registered.get(model)
    if communication is not None:
        return communication.mark_for(marks, attributes)
    if model._comm_hooks:
        marks.note(
            "communication is not marked: a hook for it was registered before watch() (watch first), or by DDP itself "
            "for mixed_precision"
        )
        return []
    communication = Communication(model)

    # DDP compares annotations with types, and strings are none.
    def powerd_marked(state, bucket):  # type: ignore[no-untyped-def]
        return state.reduce(bucket)

    try:
        model.register_comm_hook(communication, powerd_marked)
    except Exception as error:  # noqa: BLE001  (the training goes on with DDP's own reduction)
        marks.note(f"DDP takes no communication hook ({error}): communication is not marked")
        return []
    _registered[model] = communication
    if any(p.is_cuda for p in model.parameters()):
        text = f"communication is marked in one backward pass of {GPU_PASSES}: marking each would slow the GPU"
        marks.note(text, "info")

    def register_comm_hook(state: object, hook: _Hook) -> None:
        owner = weak()
        if owner is not None:
            owner._check_comm_hook(hook)  # type: ignore[no-untyped-call]
            communication.inner = hook, state

    # DDP refuses a second hook: the user's own comes to lie inside ours.
    weak = weakref.ref(model)
    model.__dict__["register_comm_hook"] = register_comm_hook
    return communication.mark_for(marks, attributes)
