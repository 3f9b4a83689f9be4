"""Phases on the GPU's own timeline: a CUDA event at every mark, tied to the host's clock by anchors, no waiting.

A kernel launch returns long before the kernel runs, so the host's time at a mark says when work was queued. Beside that
host mark an event is recorded on the current stream. A thread resolves events once the GPU has passed them, and writes
(number of the mark, device time) as frames into a file that the recorder copies into its journal. The device's clock is
one more clock: an *anchor* is an event on an idle stream with the host's time before and after it, which is a clock
exchange, and `powerd_core.clock` maps the one clock to the other with a guaranteed bound.

`elapsed_time` gives milliseconds in float32, so times are chained from anchor to anchor, where its rounding stays below
0.01 us.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from powerd_client.framefile import FrameFile
from powerd_client.gpus import pci_of
from powerd_client.hostclock import now_ns
from powerd_client.markwriter import MarkWriter
from powerd_core.marks import Edges
from powerd_core.model import ClockExchange
from powerd_core.wire import Message

ANCHOR_NS: Final = 100_000_000
"""Distance of anchors: two clocks 100 ppm apart then widen the bound by 5 us half-way."""
FIRST_ANCHORS: Final = 20
FIRST_ANCHOR_NS: Final = 5_000_000
HARVEST_S: Final = 0.05
ANCHOR_WAIT_NS: Final = 50_000
"""An anchor takes 10 us. One that takes longer waits behind work of other streams (up to 16 ms were seen beside DDP's
communication): it is dropped."""
NEXT_ANCHOR_NS: Final = 20_000_000
"""The next try after one that was dropped."""
LAST_ANCHOR_NS: Final = 1_000_000_000
"""At the end nothing is held up by waiting."""
EVENT_NS: Final = 500
"""Resolution of an event's time stamp (CUDA runtime API, cudaEventElapsedTime: about 0.5 us)."""
MAX_PENDING: Final = 200_000
"""Marks that the GPU has not passed yet. Beyond that, something is stuck, and events would only use up memory."""
ORIGIN_NS: Final = 1_000_000_000
"""A device clock begins here: no record may hold time 0, which means unwritten."""


@dataclass(slots=True)
class _Clock:
    """One device's clock, counted from its first anchor."""

    stream: Any
    """Nothing but anchors runs on it."""
    latest: Any = None
    """The newest anchor that has been resolved."""
    latest_ns: int = ORIGIN_NS
    taken: deque[tuple[Any, int, int]] = field(default_factory=deque)
    """Anchors to resolve: event, host time before and after."""
    count: int = 0
    due_ns: int = 0
    pool: list[Any] = field(default_factory=list)
    """Events to use again; an event belongs to the device that it was recorded on first."""
    epoch: int = field(default_factory=lambda: secrets.randbelow(2**63 - 1) + 1)
    """Names this clock in the run, as a powerd's epoch names a board's."""


class DeviceTimer:
    """Marks with host and device time. ``torch`` is the module, with CUDA available.

    `mark` costs a host mark and about 1.5 us for the event. It never raises: what goes wrong ends device timing, is
    kept in ``failure``, and marks go on with the host's time.
    """

    def __init__(self, writer: MarkWriter, file: FrameFile, torch: Any) -> None:
        self.failure: str | None = None
        self.unresolved = 0
        """Marks that have only the host's time: made while a CUDA graph was captured, or never passed by the GPU."""
        self._writer = writer
        self._file = file
        self._torch = torch
        self._device = torch._C._cuda_getDevice
        self._raw_stream = torch._C._cuda_getCurrentRawStream
        self._capturing = torch._C._cuda_isCurrentStreamCapturing
        self._record = torch._C._CudaEventBase.record
        self._event = torch.cuda.Event
        self._streams: dict[tuple[int, int], Any] = {}
        self._clocks: dict[int, _Clock] = {}
        self._pending: deque[tuple[int, _Clock, Any]] = deque()
        self._working = True
        self._stop = threading.Event()
        self._resolving = threading.Lock()
        self._thread = threading.Thread(target=self._harvest, name="powerd-device-timing", daemon=True)
        self._thread.start()

    def mark(self, code: int, thread: int | None = None) -> None:
        """Mark now on the host, and where the current stream of the current device gets to."""
        number = self._writer.mark_at(code, now_ns(), thread)
        if not self._working or number < 0:
            return
        try:
            self._mark_device(number)
        except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
            self._fail(f"phases are timed by the host from here on: {error}")

    def _mark_device(self, number: int) -> None:
        device = self._device()
        raw = self._raw_stream(device)
        if self._capturing():
            self.unresolved += 1
            return
        stream = self._streams.get((device, raw))
        if stream is None:
            stream = self._streams[device, raw] = self._torch.cuda.current_stream(device)
        clock = self._clocks.get(device)
        if clock is None:
            clock = self._begin_clock(device)
        try:
            event = clock.pool.pop()
        except IndexError:
            event = self._event(enable_timing=True)
        self._record(event, stream)
        if now_ns() >= clock.due_ns:
            # Before the event can be resolved: milliseconds in float32, counted from an anchor of long ago, are coarse.
            self._anchor(clock)
        self._pending.append((number, clock, event))
        if len(self._pending) > MAX_PENDING:
            raise RuntimeError(f"{MAX_PENDING} marks wait for the GPU")

    def _begin_clock(self, device: int) -> _Clock:
        clock = self._clocks[device] = _Clock(self._torch.cuda.Stream(device))
        found = self._torch.cuda.get_device_properties(device)
        body = {
            "process": self._writer.token,
            "clock": clock.epoch,
            "index": device,
            "name": found.name,
            "uuid": str(getattr(found, "uuid", "")),
            "pci": pci_of(found),
        }
        self._file.write(Message("device-clock", body, clock.epoch))
        return clock

    def _anchor(self, clock: _Clock, wait_ns: int = ANCHOR_WAIT_NS) -> None:
        """About 10 us: the stream is idle, so nothing that trains is waited for.

        Taken by the thread that marks. In a thread of its own, the wait for the interpreter's lock would be in it.
        """
        event = self._event(enable_timing=True)
        before = now_ns()
        self._record(event, clock.stream)
        while not event.query():
            if now_ns() - before > wait_ns:
                clock.due_ns = now_ns() + NEXT_ANCHOR_NS
                return
        after = now_ns()
        clock.taken.append((event, before, after))
        clock.count += 1
        clock.due_ns = after + (FIRST_ANCHOR_NS if clock.count < FIRST_ANCHORS else ANCHOR_NS)

    def _harvest(self) -> None:
        while not self._stop.wait(HARVEST_S):
            try:
                self._resolve()
            except Exception as error:  # noqa: BLE001  (as above)
                self._fail(f"phases are timed by the host from here on: {error}")
                return

    def _resolve(self) -> None:
        """Write down the device times of all events that the GPU has passed."""
        with self._resolving:
            for clock in list(self._clocks.values()):
                while clock.taken:
                    self._file.write(self._resolve_anchor(clock, *clock.taken.popleft()))
            resolved: dict[int, list[tuple[int, int]]] = {}
            pending = self._pending
            while pending:
                number, clock, event = pending[0]
                if clock.latest is None or not event.query():
                    break
                pending.popleft()
                t_ns = clock.latest_ns + round(clock.latest.elapsed_time(event) * 1e6)
                resolved.setdefault(clock.epoch, []).append((number, t_ns))
                clock.pool.append(event)
            for epoch, edges in resolved.items():
                self._file.write(Edges.of(self._writer.token, epoch, edges))

    def _resolve_anchor(self, clock: _Clock, event: Any, before_ns: int, after_ns: int) -> ClockExchange:
        elapsed_ns = 0 if clock.latest is None else round(clock.latest.elapsed_time(event) * 1e6)
        clock.latest, clock.latest_ns = event, clock.latest_ns + elapsed_ns
        return ClockExchange(clock.epoch, before_ns - EVENT_NS, clock.latest_ns, clock.latest_ns, after_ns + EVENT_NS)

    def _fail(self, reason: str) -> None:
        self._working = False
        self.failure = self.failure or reason

    def close(self) -> None:
        """Wait for the GPU to pass the last mark, and resolve what is left."""
        self._stop.set()
        self._thread.join()
        if self._working:
            try:
                for clock in self._clocks.values():
                    self._anchor(clock, LAST_ANCHOR_NS)
                for _, _, event in list(self._pending)[-len(self._streams) :]:
                    event.synchronize()
                self._resolve()
            except Exception as error:  # noqa: BLE001  (the training is over; the run file says it)
                self._fail(f"the last phases are timed by the host: {error}")
        self._working = False
        self.unresolved += len(self._pending)
        self._pending.clear()
        self._file.close()
