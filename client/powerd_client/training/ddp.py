"""Communication of `DistributedDataParallel` as phases beside backward.

The phase ``communication`` lasts from a communication hook, called when a bucket of gradients is ready, to its future's
callback, which on a GPU runs on a stream that has waited for the reduction. As buckets overlap backward and each other,
each has a track (a thread number) of its own, and the attribute ``overlaps`` keeps them out of other phases' sums.
"""

from __future__ import annotations

import atexit
import functools
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch.distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from powerd_client.energies.phase import Attribute, PhaseCodes

_Hook = Callable[[Any, Any], Any]

GPU_PASSES = 32
"""On a GPU one backward pass of so many is marked. An event on the stream that has waited for a reduction makes all
kernels of an iteration take longer: marked each time, ResNet-34 was 8.7 % slower on two H200 (docs/howto/training.md).
"""


class Marks(Protocol):
    """What marks: `powerd_client.training.torch_hooks.TorchMarks`."""

    @property
    def mark(self) -> Callable[..., object]: ...

    def codes(self, name: str, attributes: Mapping[str, Attribute]) -> PhaseCodes: ...

    def track(self) -> int: ...

    def note(self, text: str, level: str = "warning") -> None: ...

    def event(self, name: str, values: Mapping[str, object]) -> None: ...


class Communication:
    """The communication hook of one DDP model. DDP takes one for good, so it stays when nothing is marked any more."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._marks: Marks | None = None
        self._codes: PhaseCodes | None = None
        self._tracks: dict[int, int] = {}
        self._passes = 0
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
        self.has_users_hook = False

    def mark_for(self, marks: Marks, attributes: Mapping[str, Attribute]) -> None:
        """Mark here from now on."""
        self._tracks = {}
        self._codes = marks.codes("communication", {**attributes, "overlaps": True})
        self._marks = marks

    def stop(self, marks: Marks) -> None:
        """Mark no longer, unless it is for somebody else by now."""
        if self._marks is marks:
            self._marks = None

    def reduce(self, bucket: Any) -> Any:
        """The hook itself."""
        hook, state = self.inner
        marks, codes, index = self._marks, self._codes, bucket.index()
        if index == 0:  # the first of a pass: DDP reduces buckets in their order
            self._passes += 1
        # The second pass is the first whose buckets are cut as all later ones.
        is_marked = not bucket.buffer().is_cuda or self._passes % GPU_PASSES == 2
        if marks is None or codes is None or not is_marked:
            # The future must hold a Python object; it does where a callback in Python made it.
            return hook(state, bucket).then(_Done(None, 0, 0, 0))
        if index not in self._tracks:
            self._tracks[index] = marks.track()
        marks.mark(codes.begin, self._tracks[index])
        return hook(state, bucket).then(_Done(marks.mark, codes.end, codes.cut, self._tracks[index]))


class _Done:
    """What a reduction's future calls: marks its end, and hands on its tensor."""

    __slots__ = ("__weakref__", "_cut", "_end", "_mark", "_track")

    def __init__(self, mark: Callable[..., object] | None, end: int, cut: int, track: int) -> None:
        self._mark, self._end, self._cut, self._track = mark, end, cut, track
        _waiting.add(self)

    def __call__(self, future: Any) -> Any:
        code = self._cut
        try:
            value = future.value()
            code = self._end
        finally:
            if self._mark is not None:
                self._mark(code, self._track)
        return value[0] if isinstance(value, list) else value


_registered: weakref.WeakKeyDictionary[DistributedDataParallel, Communication] = weakref.WeakKeyDictionary()
_waiting: weakref.WeakSet[_Done] = weakref.WeakSet()


@atexit.register
def _wait_for_callbacks() -> None:
    """A backend's thread that drops its callback only when the interpreter ends would end the process with an abort."""
    deadline = time.monotonic() + 1.0
    while len(_waiting) and time.monotonic() < deadline:
        time.sleep(0.001)


def mark_communication(
    marks: Marks, model: Module, attributes: Mapping[str, Attribute], *, is_asked: bool
) -> Callable[[], None] | None:
    """Mark the reductions of a DDP model until what is returned is called. Where it is not possible, a message says so
    and None is returned, as for other models.

    A hook runs Python for every bucket of every pass, also of those that are not marked. On GPUs, which the host has to
    feed meanwhile, it is therefore registered only where it ``is_asked`` for; else DDP's own timers are read last.
    """
    if not isinstance(model, DistributedDataParallel):
        return None
    if not is_asked and any(p.is_cuda for p in model.parameters()):
        return functools.partial(tell_timers, marks, model)
    communication = _registered.get(model) or _register(marks, model)
    if communication is None:
        return None
    communication.mark_for(marks, attributes)
    return lambda: communication.stop(marks)


_TIMERS = {
    "communication_s": "avg_backward_comm_time",
    "overlap_s": "avg_backward_compute_comm_overlap_time",
    "backward_s": "avg_backward_compute_time",
}
"""What DDP itself times, in C++ and in one backward pass of a hundred (`_get_ddp_logging_data`), in ns."""


def tell_timers(marks: Marks, model: DistributedDataParallel) -> None:
    """Put the means of DDP's own timers into the run: an event ``ddp-timers``, and a message."""
    try:
        data = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        seconds = {name: int(data[key]) * 1e-9 for name, key in _TIMERS.items()}
    except Exception:  # noqa: BLE001  (it is torch's own business, and may be gone)
        return
    if seconds["communication_s"] > 0:
        marks.event("ddp-timers", seconds)
        marks.note(
            "communication by DDP's own timers, in the mean of one backward pass of 100: "
            f"{seconds['communication_s'] * 1e3:.3g} ms, {seconds['overlap_s'] * 1e3:.3g} ms of it beside "
            f"{seconds['backward_s'] * 1e3:.3g} ms of computation; watch(communication=True) marks it as a phase",
            "info",
        )


def _register(marks: Marks, model: DistributedDataParallel) -> Communication | None:
    if model._comm_hooks:
        marks.note(
            "communication is not marked: a hook for it was registered before watch() (watch first), or by DDP itself "
            "for mixed_precision"
        )
        return None
    communication = Communication(model)

    # DDP compares annotations with types, and strings are none.
    def powerd_marked(state, bucket):  # type: ignore[no-untyped-def]
        return state.reduce(bucket)

    try:
        model.register_comm_hook(communication, powerd_marked)
    except Exception as error:  # noqa: BLE001  (the training goes on with DDP's own reduction)
        marks.note(f"DDP takes no communication hook ({error}): communication is not marked")
        return None
    _registered[model] = communication
    _patch_ddp()
    if any(p.is_cuda for p in model.parameters()):
        text = f"communication is marked in one backward pass of {GPU_PASSES}: marking each would slow the GPU"
        marks.note(text, "info")
    return communication


@functools.cache
def _patch_ddp() -> None:
    ddp: Any = DistributedDataParallel
    register, state_of = ddp.register_comm_hook, ddp.__getstate__

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: object, hook: _Hook) -> None:
        """DDP refuses a second hook: the user's own comes to lie inside ours."""
        communication = _registered.get(self)
        if communication is None:
            register(self, state, hook)
            return
        self._check_comm_hook(hook)
        communication.inner, communication.has_users_hook = (hook, state), True

    @functools.wraps(state_of)
    def getstate(self: Any) -> dict[str, Any]:
        """What is copied, saved or sent has the user's hook, not ours."""
        attributes: dict[str, Any] = state_of(self)
        if (communication := _registered.get(self)) is not None:
            attributes["_comm_hooks"] = [communication.inner] if communication.has_users_hook else []
        return attributes

    ddp.register_comm_hook, ddp.__getstate__ = register_comm_hook, getstate
