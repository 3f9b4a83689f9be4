"""The sampler process: one source, polled at absolute deadlines, and nothing else.

The supervisor starts it, tells it on stdin what to do (`Spec`) and takes what it sends through a pipe. Three parts: the
`Outbox` holds what waits to be sent, in bounded memory and without a silent loss; `Sampling` is the loop, on any clock
and without a process: open, poll, take, reopen after an interruption; `main` is the process around them.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from powerd_core.errors import ConfigError, PowerdError, SensorError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Device, Gap, Stream
from powerd_core.serde import from_document, to_document
from powerd_core.wire import Message, encode
from powerd_daemon.clock import Deadlines, SystemClock
from powerd_daemon.config import SourceConfig, make_source
from powerd_daemon.sensor_watch import SensorWatch
from powerd_daemon.sources.base import Source, Start, find_source

OVERFLOW = "powerd did not take the sampler's readings in time"
MAX_CAUSE = 300
STATISTICS_NS = 1_000_000_000
LINGER_MS = 500
REOPEN_MIN_NS = 100_000_000
REOPEN_MAX_NS = 5_000_000_000
HELD_UP_NS = 1_000_000_000
"""A sampler that was not run for so long (it was stopped, or the machine stood) says so, unless its source has the
readings all the same."""
GAP_TOLD_WITHIN_NS = 1_000_000_000
"""The gap of an interruption waits for the reading that ends it, but not longer than this."""


class Outbox:
    """Holds at most ``max_bytes`` of frames a stream; the oldest give way, and one gap takes all their numbers."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.dropped_frames = 0
        self._messages: deque[bytes] = deque()
        self._statistics: bytes | None = None
        self._waiting: dict[int, deque[tuple[bytes, Gap]]] = {}
        """By stream: each frame with the gap that would take its place."""
        self._bytes: dict[int, int] = {}
        self._dropped: dict[int, Gap] = {}
        """The gaps that stand for what was dropped in front of a stream's frames."""

    def put(self, event: Block | Gap) -> None:
        """Queue a block or gap. A block that is too large for a frame becomes a gap that says so."""
        try:
            frame, stand_in = encode(event), _gap_instead(event, OVERFLOW)
        except WireError as error:
            stand_in = _gap_instead(event, str(error))
            frame = encode(stand_in)
        number = event.stream
        waiting = self._waiting.setdefault(number, deque())
        waiting.append((frame, stand_in))
        self._bytes[number] = self._bytes.get(number, 0) + len(frame)
        while self._bytes[number] > self.max_bytes and len(waiting) > 1:
            frame, gap = waiting.popleft()
            self._bytes[number] -= len(frame)
            self._dropped[number] = _joined_gap(self._dropped[number], gap) if number in self._dropped else gap
            self.dropped_frames += 1

    def put_message(self, message: Message) -> None:
        """Queue a rare message, in front of all frames."""
        self._messages.append(encode(message))

    def put_statistics(self, message: Message) -> None:
        """Keep a message to be sent when there is room; a newer one replaces it."""
        self._statistics = encode(message)

    def drain(self, send: Callable[[bytes], bool]) -> bool:
        """Give frames to ``send`` until it says no or nothing is left (then True)."""
        while self._messages:
            if not send(self._messages[0]):
                return False
            self._messages.popleft()
        for number, waiting in self._waiting.items():
            if number in self._dropped:
                if not send(encode(self._dropped[number])):
                    return False
                del self._dropped[number]
            while waiting:
                if not send(waiting[0][0]):
                    return False
                self._bytes[number] -= len(waiting.popleft()[0])
        if self._statistics is not None and send(self._statistics):
            self._statistics = None
        return True


def _gap_instead(event: Block | Gap, cause: str) -> Gap:
    if isinstance(event, Gap):
        return replace(event, cause=f"{cause}; {event.cause}"[:MAX_CAUSE])
    times = event.t_first_ns, event.t_last_ns
    return Gap(event.stream, event.epoch, event.sequence, *times, 1, event.count, cause[:MAX_CAUSE])


def _joined_gap(first: Gap, second: Gap) -> Gap:
    lost = -1 if -1 in (first.lost, second.lost) else first.lost + second.lost
    cause = first.cause
    if second.cause not in cause:
        cause = f"{cause}; {second.cause.removeprefix(OVERFLOW + '; ')}"[:MAX_CAUSE]
    return replace(first, t_last_ns=second.t_last_ns, span=first.span + second.span, lost=lost, cause=cause)


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a stream stood when its sampler ended. ``t_last_ns`` may be UNKNOWN_TIME_NS."""

    stream: int
    next_sequence: int
    t_last_ns: int


def same_streams(one: Iterable[Stream], other: Iterable[Stream]) -> bool:
    """Whether blocks of the one mean the same in the other; settings in ``detail`` may differ."""

    def key(stream: Stream) -> tuple[object, ...]:
        lines = tuple((line.name, line.device, line.conversion, line.provenance) for line in stream.lines)
        return stream.number, stream.columns, lines

    return [key(s) for s in one] == [key(s) for s in other]


class Sampling:
    """Drives one source. All it produces goes into ``outbox``.

    ``make`` builds the source from a `Start`; it is called again for every reopening. With ``resume`` the loop goes on
    where a sampler that died had stopped: an error of the first open is then like any later one, and each stream
    begins with a gap.
    """

    def __init__(
        self,
        make: Callable[[Start], Source],
        start: Start,
        outbox: Outbox,
        *,
        block_ns: int,
        resume: Sequence[Resume] = (),
        on_open: Callable[[tuple[Stream, ...], tuple[Device, ...]], None] = lambda _streams, _devices: None,
    ) -> None:
        self._make = make
        self._start = start
        self._clock = start.clock
        self._outbox = outbox
        self._block_ns = block_ns
        self._on_open = on_open
        self._source: Source | None = None
        self._watch = SensorWatch(self._clock.now_ns())
        self._last_health: dict[str, object] = {}
        self._catches_up = False
        self._streams: tuple[Stream, ...] | None = None
        self._next = {r.stream: r.next_sequence for r in resume}
        self._t_last_ns = {r.stream: r.t_last_ns for r in resume}
        self._cause = "sampler restarted" if resume else ""
        self._pause_ns = REOPEN_MIN_NS
        self._retry_ns = self._clock.now_ns()
        self._flush_ns = self._retry_ns + block_ns
        self._untold: dict[int, tuple[int, str]] = {}
        """By stream: when its source was opened again and why it had to be, until the gap before that is told."""
        self._held_up: set[int] = set()
        """Streams whose next reading shows what was lost while the sampler was not run."""
        self._shift: dict[int, int] = {}
        """By stream: how many numbers were given to such gaps, of which the source does not know."""
        self.deadlines: Deadlines | None = None
        self.reopened = 0

    def open(self) -> None:
        """Open the source and begin a new grid of deadlines. Raises what the source raises."""
        # A gap that tells of an interruption takes one number of each stream; the source goes on behind it.
        begin = {number: sequence + 1 for number, sequence in self._next.items()}
        source = self._make(replace(self._start, next_sequence=begin))
        try:
            streams, devices = source.open()
            self._check(streams)
        except BaseException:
            with suppress(PowerdError):
                source.close()
            raise
        self._source, self._streams, self._catches_up = source, streams, source.catches_up
        self._held_up, self._shift = set(), {}
        self._watch.add(streams)
        for stream in streams:
            self._next.setdefault(stream.number, 0)
        self._on_open(streams, devices)
        now_ns = self._clock.now_ns()
        if self.deadlines is None:
            self.deadlines = Deadlines(now_ns, source.period_ns)
        else:
            self.deadlines.next_ns = now_ns

    def _check(self, streams: tuple[Stream, ...]) -> None:
        now, before = (sum(len(stream.lines) for stream in some or ()) for some in (streams, self._streams))
        if 0 < now < before:
            raise SensorError(f"{now} of its {before} lines are there again: it waits for the others")
        if not streams or (self._streams is not None and not same_streams(self._streams, streams)):
            raise ConfigError("the source has no lines, or after an interruption describes other lines than before")

    def step(self) -> None:
        """Sleep until something is due and do it: never longer than one block."""
        polls = self._source is not None
        due_ns = self.deadlines.next_ns if polls and self.deadlines else self._retry_ns
        self._clock.sleep_until(min(due_ns, self._flush_ns))
        now_ns = self._clock.now_ns()
        if now_ns >= due_ns:
            if polls:
                self._poll(now_ns)
            else:
                self._reopen()
            now_ns = self._clock.now_ns()
        if now_ns >= self._flush_ns:
            self._flush_ns += self._block_ns
            if self._flush_ns <= now_ns:
                self._flush_ns = now_ns + self._block_ns
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Move what the source has into the outbox; the ``last`` time also what it holds back."""
        if self._source is None:
            return
        try:
            events = self._source.finish() if last else self._source.take()
        except SensorError as error:
            self._lose(error)
            return
        for event in events:
            if event.stream in self._untold:
                self._tell_gap(event.stream, first_ns=event.t_first_ns)
            if event.stream in self._held_up:
                self._tell_held_up(event)
            self._put(replace(event, sequence=event.sequence + self._shift.get(event.stream, 0)))
        if last or (self._untold and self._clock.now_ns() - min(self._untold.values())[0] > GAP_TOLD_WITHIN_NS):
            self._tell_gaps()

    def close(self) -> None:
        """Take what is left and let go of the sensor."""
        self.flush(last=True)
        self._let_go()

    def abandon(self) -> None:
        """Let go of the sensor of a source that has failed in a way it must not: nothing more is asked of it."""
        self._tell_gaps()
        if self._source is not None:
            with suppress(Exception):
                self._source.close()

    def statistics(self) -> dict[str, object]:
        """What the stats of powerd say about this sampler."""
        d = self.deadlines or Deadlines(0, 1)
        return {
            "polls": d.lateness.count,
            "missed_deadlines": 0 if self._catches_up else d.missed,
            "rate_hz": d.rate_hz,
            "lateness_mean_us": d.lateness.mean_ns / 1000,
            "lateness_p99_us": d.lateness.quantile_ns(0.99) / 1000,
            "lateness_max_us": d.lateness.max_ns / 1000,
            "jitter_us": d.lateness.deviation_ns / 1000,
            "reopened": self.reopened,
            "dropped_frames": self._outbox.dropped_frames,
            "error": self._cause if self._source is None else "",
            "lines": self._watch.states(self._clock.now_ns()),
            "sensors": self._last_health if self._source is None else self._source.health(),
        }

    def _poll(self, now_ns: int) -> None:
        assert self._source is not None
        assert self.deadlines is not None
        if self.deadlines.meet(now_ns) * self.deadlines.period_ns >= HELD_UP_NS:
            self.flush()  # what was read before
            if self._source is None:
                return
            self._held_up = set(self._next)
        try:
            self._source.poll()
        except SensorError as error:
            self.flush()
            if self._source is not None:
                self._lose(error)

    def _lose(self, error: SensorError) -> None:
        self._tell_gaps()
        self._let_go()
        self._cause = str(error) or "the sensor was lost"
        self._pause_ns = REOPEN_MIN_NS
        self._retry_ns = self._clock.now_ns() + self._pause_ns

    def _let_go(self) -> None:
        if self._source is not None:
            # What a sensor counted before it was lost may be why.
            self._last_health = self._source.health()
            with suppress(PowerdError):
                self._source.close()
            self._source = None

    def _reopen(self) -> None:
        error = ""
        try:
            self.open()
        except SensorError as refusal:
            error = str(refusal) or self._cause
        now_ns = self._clock.now_ns()
        self._untold = dict.fromkeys(self._next, (now_ns, self._cause[:MAX_CAUSE]))
        self._cause = error
        if self._source is not None:
            self.reopened += 1
            return
        # A failed attempt leaves a gap too: whoever reads along learns within seconds why nothing comes.
        self._tell_gaps()
        self._retry_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 2, REOPEN_MAX_NS)

    def _tell_held_up(self, event: Block | Gap) -> None:
        """The gap in front of the first ``event`` behind a hold-up. There is none where the source caught up, or tells
        of it by itself."""
        number, streams = event.stream, {stream.number: stream for stream in self._streams or ()}
        self._held_up.discard(number)
        last_ns = self._t_last_ns.get(number, UNKNOWN_TIME_NS)
        hole_ns = event.t_first_ns - last_ns
        if last_ns == UNKNOWN_TIME_NS or hole_ns < HELD_UP_NS or isinstance(event, Gap):
            return
        lost = max(round(hole_ns / streams[number].period_ns) - 1, 0)
        cause = f"the sampler was not run for {hole_ns / 1e9:.3g} s: it was stopped, or its machine stood"
        times = last_ns, event.t_first_ns
        self._put(Gap(number, self._start.epoch, self._next[number], *times, 1, lost, cause))
        self._shift[number] = self._shift.get(number, 0) + 1

    def _tell_gaps(self) -> None:
        for number in list(self._untold):
            self._tell_gap(number)

    def _tell_gap(self, number: int, first_ns: int | None = None) -> None:
        """The interruption of one stream, up to its first reading where that is of a moment before the opening: what a
        sensor gives out is as old as its conversion."""
        end_ns, cause = self._untold.pop(number)
        end_ns = end_ns if first_ns is None else min(end_ns, first_ns)
        begin_ns = self._t_last_ns.get(number, UNKNOWN_TIME_NS)
        self._put(Gap(number, self._start.epoch, self._next[number], begin_ns, max(end_ns, begin_ns), 1, -1, cause))

    def _put(self, event: Block | Gap) -> None:
        if isinstance(event, Block):
            self._watch.see(event)
        self._outbox.put(event)
        self._next[event.stream] = event.sequence + (event.span if isinstance(event, Gap) else 1)
        self._t_last_ns[event.stream] = event.t_last_ns


def sharpen_timers() -> None:
    """Let this process's sleeps end within a microsecond of their time, not the 50 us that Linux allows itself."""
    pr_set_timerslack = 29
    ctypes.CDLL(None).prctl(pr_set_timerslack, 1000, 0, 0, 0)


def make_realtime(priority: int, lock_memory: bool) -> list[str]:
    """SCHED_FIFO at ``priority`` (0 leaves the scheduling alone) and locked memory, for this process.

    Returns what was not permitted, each as one line with the remedy: readings without it are later, not wrong.
    """
    refused = []
    if priority:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(priority))
        except OSError as error:
            permit = f"give powerd CAP_SYS_NICE or LimitRTPRIO={priority} in its systemd unit"
            refused.append(f"priority = {priority} is not permitted ({error.strerror}): {permit}")
    mcl_current, mcl_future = 1, 2
    if lock_memory and ctypes.CDLL(None).mlockall(mcl_current | mcl_future) != 0:
        refused.append("lock_memory is not permitted: give powerd CAP_IPC_LOCK or LimitMEMLOCK=infinity")
    return refused


@dataclass(frozen=True, slots=True)
class Spec:
    """What the supervisor writes to the sampler's stdin, as a JSON object."""

    source: SourceConfig
    epoch: int
    first_stream: int
    out: int
    """The descriptor of the pipe to the supervisor."""
    block_ns: int
    outbox_bytes: int
    parent_pid: int
    resume: tuple[Resume, ...] = ()

    @property
    def is_orphan(self) -> bool:
        """Whether the supervisor is gone."""
        return os.getppid() != self.parent_pid


def main() -> int:
    """Run until SIGTERM or until the parent is gone. Status 0; 2 when the source cannot be used."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return _run(from_document(Spec, json.load(sys.stdin)), stop)


class Pipe:
    """The way to the supervisor, which takes as many bytes as there is room for."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""
        """Of a frame that was begun."""

    def send(self, frame: bytes) -> bool:
        """Whether a frame was begun, which it is when the one before was sent to its end."""
        if not self.flush():
            return False
        self._rest = frame
        self.flush()
        return True

    def flush(self) -> bool:
        """Whether nothing is left of the last frame."""
        try:
            while self._rest:
                self._rest = self._rest[os.write(self._descriptor, self._rest) :]
        except OSError:  # there is no room now, or the supervisor is gone, which the loop will notice
            return False
        return True


def _run(spec: Spec, stop: threading.Event) -> int:
    outbox, pipe, clock, status = Outbox(spec.outbox_bytes), Pipe(spec.out), SystemClock(), 2

    def announce(streams: tuple[Stream, ...], devices: tuple[Device, ...]) -> None:
        outbox.put_message(Message("streams", to_document({"streams": streams, "devices": devices})))
        # What exists by now lives as long as the process: no collection shall walk it between two deadlines.
        gc.collect()
        gc.freeze()

    sharpen_timers()
    for refused in make_realtime(spec.source.sampler.priority, spec.source.sampler.lock_memory):
        outbox.put_message(Message("notice", {"message": refused}))
    sampling: Sampling | None = None
    try:
        cls = find_source(spec.source.kind)
        sampling = Sampling(
            lambda start: make_source(spec.source, cls, start),
            Start(spec.source.name, spec.epoch, spec.first_stream, clock),
            outbox,
            block_ns=spec.block_ns,
            resume=spec.resume,
            on_open=announce,
        )
        if not spec.resume:
            sampling.open()
        statistics_ns = clock.now_ns()
        while not stop.is_set() and not spec.is_orphan:
            sampling.step()
            now_ns = clock.now_ns()
            if now_ns >= statistics_ns:
                outbox.put_statistics(Message("statistics", sampling.statistics()))
                statistics_ns = now_ns + STATISTICS_NS
            outbox.drain(pipe.send)
            pipe.flush()
        sampling.close()
        outbox.put_statistics(Message("statistics", sampling.statistics()))
        status = 0
    except PowerdError as error:
        outbox.put_message(Message("failed", {"message": str(error), "final": True}))
    except Exception as error:  # noqa: BLE001
        # The fault of a driver that does not keep to its contract: its author needs the traceback.
        traceback.print_exc()
        outbox.put_message(Message("failed", {"message": f"{type(error).__name__}: {error}", "final": False}))
    if sampling is not None:
        sampling.abandon()
    give_up_ns = clock.now_ns() + LINGER_MS * 1_000_000
    while not (outbox.drain(pipe.send) and pipe.flush()) and not spec.is_orphan and clock.now_ns() < give_up_ns:
        clock.sleep_until(clock.now_ns() + 5_000_000)
    return status


if __name__ == "__main__":
    sys.exit(main())
