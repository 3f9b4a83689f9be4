"""How phases are timed: by the host's clock, by the host's clock after waiting for the device, or by events on a GPU.

CUDA (and ROCm, which is `torch.cuda` too) has events. `DeviceTimer` records one on the current stream beside every host
mark, without waiting; where that would slow the training, in some iterations alone (`event_sampling`). A thread
resolves events once the GPU has passed them, and writes (number of the mark, device time) as frames into a file that
the recorder copies into its journal. The device's clock is one more clock: an *anchor*
is an event on an idle stream with the host's time before and after it, which is a clock exchange. When a run ends,
`DeviceTimes` maps the one clock to the other with a guaranteed bound. `elapsed_time` gives milliseconds in float32, so
times are chained from anchor to anchor, where its rounding stays below 0.01 us. Of other accelerators only their
`synchronize` is relied on, before every mark.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, Final

from powerd_client.host.hostclock import now_ns
from powerd_client.host.log import tell
from powerd_client.host.visible_gpus import pci_of
from powerd_client.journals.event_sampling import EventSampling
from powerd_client.journals.journal import FrameFile
from powerd_client.journals.marks import MarkWriter
from powerd_core.clock_comparison import ClockPiece, map_clock, piece_at
from powerd_core.errors import ClockError, ConfigError
from powerd_core.marks import RECORD, Edges, Mark, Marks
from powerd_core.model import ClockExchange
from powerd_core.wire import Message

DEVICE: Final = "device"
"""The timing of phases whose edges are events on a device's stream."""
HOST: Final = "host"
SYNCHRONISED: Final = "host-synchronised"


@dataclass(frozen=True, slots=True)
class Timing:
    """How phases are timed."""

    name: str
    """As the run file has it: ``device``, ``host`` or ``host-synchronised``."""
    torch: Any = None
    """The module whose CUDA events time the phases."""
    synchronize: Callable[[], object] | None = None
    """What is called before every mark."""
    remark: str = ""
    """What the run shall say of it, and the user be told."""
    is_sampled: bool = False
    """Whether iterations may go without events where these would slow the training (`EventSampling`)."""


def choose_timing(device: str, synchronize: Callable[[], object] | None = None) -> Timing:
    """What ``Meter(device=..., synchronize=...)`` means here. Raises `ConfigError`."""
    if device not in ("auto", "cuda", "accelerator", "host"):
        raise ConfigError(f"device={device!r}: phases are timed by 'cuda', 'accelerator', 'host' or 'auto'")
    if synchronize is not None:
        return Timing(SYNCHRONISED, synchronize=synchronize)
    # A script that trains on a device has imported torch; importing it here would cost seconds and tell nothing.
    torch: Any = sys.modules.get("torch")
    if device in ("auto", "cuda") and torch is not None and torch.cuda.is_available():
        return Timing(DEVICE, torch, is_sampled=device == "auto")
    if device in ("auto", "accelerator") and (name := _accelerator(torch)):
        remark = (
            f"every mark waits for {name} to be done (synchronize), and is timed by the host; "
            "Meter(device='host') would not wait"
        )
        return Timing(SYNCHRONISED, None, torch.accelerator.synchronize, remark if device == "auto" else "")
    if device in ("cuda", "accelerator"):
        raise ConfigError(f"device={device!r}: torch has no such device here, or was not imported before the Meter")
    return Timing(HOST)


def _accelerator(torch: Any) -> str:
    """Name of the accelerator that torch (from 2.6 on) works with, empty for none."""
    try:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "" if device is None or device.type == "cpu" else str(device.type)
    except Exception:  # noqa: BLE001  (there is no such module, or a driver that is half there)
        return ""


class Synchronized:
    """Waits for the device before each mark, and keeps a failure of that from the training."""

    def __init__(self, synchronize: Callable[[], object], writer: MarkWriter) -> None:
        self._synchronize = synchronize
        self._writer = writer

    def __call__(self, code: int, thread: int | None = None) -> int:
        """As `MarkWriter.mark`."""
        if self._writer.is_open:  # a forked child must not touch its parent's device
            try:
                self._synchronize()
            except Exception as error:  # noqa: BLE001  (the training's next call will raise it too)
                self._writer.disable(f"synchronize() failed: {error}")
        return self._writer.mark(code, thread)


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

    def __init__(self, writer: MarkWriter, file: FrameFile, torch: Any, sampling: EventSampling | None = None) -> None:
        """Without ``sampling`` every mark has an event."""
        self.failure: str | None = None
        self._sampling = sampling
        self._is_told = False
        """Whether the run knows that marks may be without an event."""
        self._before = self._newest = None
        """The last two events."""
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
        self._beginning = threading.Lock()
        self._pending: deque[tuple[int, _Clock, Any]] = deque()
        self._working = True
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._harvest, name="powerd-device-timing", daemon=True)
        self._thread.start()

    def mark(self, code: int, thread: int | None = None) -> int:
        """Mark now on the host, and where the current stream of the current device gets to. Returns the number."""
        number = self._writer.mark(code, thread)
        if not self._working or number < 0 or (self._sampling is not None and self._sampling.leaves_out(code)):
            return number
        try:
            self._mark_device(number)
        except Exception as error:  # noqa: BLE001  (a training step must not fail for its measurement)
            self._fail("phases are timed by the host from here on", error)
        return number

    def turn(self, code: int) -> None:
        """The mark ``code``, just made, has ended an iteration of the training."""
        sampling = self._sampling
        if sampling is None or not (self._working and self._writer.is_open):
            return
        try:
            sampling.turn(code, now_ns(), self._has_passed)
            if sampling.is_sampling and not self._is_told:
                self._is_told = True
                self._file.write(Message("device-sampling", {"process": self._writer.token}, 0))
        except Exception as error:  # noqa: BLE001  (as above)
            self._fail("phases are timed by the host from here on", error)

    def _has_passed(self) -> bool:
        """Whether the GPU has come to where the host was at the last mark but one."""
        return self._before is None or bool(self._before.query())

    def _mark_device(self, number: int) -> None:
        if self._capturing():
            return  # a CUDA graph: its edges have the host's time alone
        device = self._device()
        raw = self._raw_stream(device)
        stream = self._streams.get((device, raw))
        if stream is None:
            stream = self._streams[device, raw] = self._torch.cuda.current_stream(device)
        clock = self._clocks.get(device)
        if clock is None:
            with self._beginning:  # two threads may come to a device's first mark at once
                clock = self._clocks.get(device) or self._begin_clock(device)
        try:
            event = clock.pool.pop()  # by any thread: asking first whether there is one would be a race
        except IndexError:
            event = self._event(enable_timing=True)
        self._record(event, stream)
        self._before, self._newest = self._newest, event
        if now_ns() >= clock.due_ns:
            # Before the event can be resolved: milliseconds in float32, counted from an anchor of long ago, are coarse.
            self._anchor(clock)
        self._pending.append((number, clock, event))

    def _begin_clock(self, device: int) -> _Clock:
        clock = self._clocks[device] = _Clock(self._torch.cuda.Stream(device))
        properties = self._torch.cuda.get_device_properties(device)
        body = {
            "process": self._writer.token,
            "clock": clock.epoch,
            "index": device,
            "name": properties.name,
            "uuid": str(getattr(properties, "uuid", "")),
            "pci": pci_of(properties),
        }
        self._file.write(Message("device-clock", body, clock.epoch))
        return clock

    def _anchor(self, clock: _Clock, wait_ns: int = ANCHOR_WAIT_NS) -> None:
        """About 10 us: the stream is idle. In a thread of its own, it would wait for the interpreter's lock."""
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
                self._fail("phases are timed by the host from here on", error)
                return

    def _resolve(self) -> None:
        """Write down the device times of all events that the GPU has passed. By one thread at a time."""
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

    def _fail(self, what: str, error: Exception) -> None:
        self._working = False
        self.failure = self.failure or f"{what}: {error}"

    def close(self) -> None:
        """Wait for the GPU to pass the last mark, and resolve what is left."""
        self._stop.set()
        self._thread.join()
        if self._working:
            try:
                for clock in self._clocks.values():
                    self._anchor(clock, LAST_ANCHOR_NS)
                for _, _, event in list(self._pending):  # of several streams: the last one need not be passed last
                    event.synchronize()
                self._resolve()
            except Exception as error:  # noqa: BLE001  (the training is over; the run file says it)
                self._fail("the last phases are timed by the host", error)
        self._working = False
        if self._sampling is not None and self._sampling.remark:
            self._writer.note(self._sampling.remark, "info")
        self._file.close()


def begin_timing(
    choice: Timing, writer: MarkWriter, journal: Path, *, tells: bool
) -> tuple[Callable[..., int], DeviceTimer | None, str]:
    """What writes a mark, the timer of a GPU if there is one, and the timing's name in the run; it never raises.

    ``tells``: this process tells the user what is worth telling.
    """
    if choice.remark:
        writer.note(choice.remark, "info")
        if tells:
            tell(choice.remark)
    if choice.synchronize is not None:
        return Synchronized(choice.synchronize, writer), None, choice.name
    if choice.torch is not None:
        try:
            sampling = EventSampling() if choice.is_sampled else None
            timer = DeviceTimer(writer, FrameFile(journal, writer.token), choice.torch, sampling)
        except (OSError, RuntimeError) as error:  # a file or a thread that cannot be made
            writer.note(f"phases are timed by the host: {error}")
        else:
            return timer.mark, timer, choice.name
    return writer.mark, None, HOST


_LEAST_LAGS = 8
"""Edges of a kind with an event from which the lag of the others is taken."""


def _lag_of(lags: list[int], bound_ns: int) -> tuple[int, int]:
    """The median, and how far a single one may be from it: the spread (1.4826 times the median distance) and the bound
    of the device's clock."""
    middle = median(lags)
    spread = 1.4826 * median(abs(lag - middle) for lag in lags)
    return round(middle), bound_ns + ceil(spread)


@dataclass(slots=True)
class DeviceTimes:
    """When devices passed marks, on the host's clock: the edges of all processes, and the clocks of their devices."""

    clocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By epoch: what `device-clock` says."""
    edges: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """By process and number of the mark: epoch of the clock and the device's time."""
    unresolved: int = 0
    """Marks of device-timed phases that only the host's time is known of."""
    moved: int = 0
    """Marks without an event that the lag of others has moved."""
    spread_ns: int = 0
    """The largest spread of such lags."""
    sampled: set[int] = field(default_factory=set)
    """The processes whose marks may be without an event on purpose."""
    pieces: dict[int, tuple[ClockPiece, ...]] = field(default_factory=dict)
    """By epoch: the mapping, once `map_all` has made it."""

    def add_clock(self, epoch: int, body: Mapping[str, Any]) -> None:
        """Raises KeyError or ValueError for what describes no clock."""
        clock = {
            "name": str(body["name"]),
            "index": int(body["index"]),
            "process": body.get("process"),
            **{key: str(body.get(key, "")) for key in ("uuid", "pci")},
        }
        self.clocks.setdefault(epoch, clock)

    def devices_of(self, process: int) -> list[dict[str, Any]]:
        """The devices that a process timed its phases on: ``index``, ``uuid`` and ``pci``."""
        own = [c for c in self.clocks.values() if c["process"] == process]
        return [{key: clock[key] for key in ("index", "uuid", "pci")} for clock in own]

    def add_edges(self, event: Edges) -> None:
        known = self.edges.setdefault(event.process, {})
        for number, t_ns in event:
            known[number] = event.clock, t_ns

    def add_sampling(self, body: Mapping[str, Any]) -> None:
        """Raises KeyError or ValueError for what names no process."""
        self.sampled.add(int(body["process"]))

    def map_all(self, exchanges: Mapping[int, list[ClockExchange]]) -> None:
        """Map each device's clock; one without a usable anchor stays unmapped."""
        for epoch in self.clocks:
            with contextlib.suppress(ClockError):
                self.pieces[epoch] = map_clock(exchanges.get(epoch, []))

    def marks(self, process: int, records: Mapping[int, bytes], timings: Mapping[int, str]) -> Iterator[Mark]:
        """The marks of a process in order, each with its device's time where it is timed by one and that is known.

        ``records``: raw records by the number of the first; what two pieces both hold is taken once. ``timings``: by
        kind in that process.
        """
        edges, behind = self.edges.get(process, {}), 0
        lags = self._lags(process, records) if process in self.sampled else {}
        for first in sorted(records):
            skip = max(0, behind - first)
            piece = Marks(process, first + skip, records[first][skip * RECORD.size :])
            behind = max(behind, first + len(records[first]) // RECORD.size)
            for number, mark in enumerate(piece, piece.first):
                if timings.get(mark.kind) != DEVICE:
                    yield mark
                    continue
                edge = self._host_ns(*edges[number]) if number in edges else None
                if edge is None and (lag := lags.get((mark.kind, mark.is_begin))) is not None:
                    edge = mark.t_host_ns + lag[0], lag[1]
                    self.moved, self.spread_ns = self.moved + 1, max(self.spread_ns, lag[1])
                self.unresolved += edge is None
                t_ns, bound_ns = edge or (mark.t_host_ns, -1)
                yield mark._replace(t_host_ns=t_ns, bound_ns=bound_ns)

    def _lags(self, process: int, records: Mapping[int, bytes]) -> dict[tuple[int, bool], tuple[int, int]]:
        """How far the GPU was behind the host at the edges of a kind, by those with an event: the median, and its bound
        with the spread of single ones. Kinds that begin and those that end are apart; of few there is none."""
        edges = self.edges.get(process, {})
        lags: dict[tuple[int, bool], list[int]] = {}
        bounds: dict[tuple[int, bool], int] = {}
        for first in sorted(records):
            for number, mark in enumerate(Marks(process, first, records[first]), first):
                if number in edges and (edge := self._host_ns(*edges[number])) is not None:
                    of = mark.kind, mark.is_begin
                    lags.setdefault(of, []).append(edge[0] - mark.t_host_ns)
                    bounds[of] = max(bounds.get(of, 0), edge[1])
        return {of: _lag_of(own, bounds[of]) for of, own in lags.items() if len(own) >= _LEAST_LAGS}

    def _host_ns(self, epoch: int, t_ns: int) -> tuple[int, int] | None:
        """The host's time of a device's time, and how far it may be from that: what the anchors guarantee, and the
        event's own resolution. None where the clock is not mapped."""
        with contextlib.suppress(ClockError):
            if piece := piece_at(self.pieces.get(epoch, ()), t_ns):
                offset, low, high = piece.at(t_ns)
                # One more nanosecond: both the event's time and the offset were rounded to whole ones.
                return t_ns + round(offset), ceil(max(high - offset, offset - low)) + EVENT_NS + 1
        return None
