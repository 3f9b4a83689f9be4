"""One source's sampler as powerd sees it: its process of the moment, and what that and those before it have sent."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from powerd_core.errors import WireError
from powerd_core.model import Device, Stream
from powerd_core.serde import from_document
from powerd_core.wire import BLOCK, GAP, Message, decode, read_header
from powerd_daemon.clock import Clock
from powerd_daemon.config import STREAMS_PER_SOURCE, SourceConfig
from powerd_daemon.log import Log
from powerd_daemon.sampling import same_streams
from powerd_daemon.store import Store

RESTART_MIN_NS = 100_000_000
RESTART_MAX_NS = 10_000_000_000
SLICE_FRAMES = 64
STOP_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _Streams:
    """The body of a sampler's message ``streams``."""

    streams: tuple[Stream, ...]
    devices: tuple[Device, ...]


class Sampler:
    """One source's sampler over all its processes. What they send goes into ``store``."""

    def __init__(self, config: SourceConfig, index: int, store: Store, clock: Clock, log: Log) -> None:
        self.config = config
        self.index = index
        self.streams: tuple[Stream, ...] | None = None
        self.devices: tuple[Device, ...] = ()
        self.statistics: Mapping[str, object] = {}
        self.restarts = 0
        self.garbage = 0
        """Frames that were dropped, for they were none that it may send."""
        self.failure = ""
        """Why there will be no further process."""
        self.is_foreign = False
        """What its last process sends is not of the streams that were described."""
        self.process: subprocess.Popen[bytes] | None = None
        self.pull: zmq.Socket[bytes] | None = None
        self.started_ns = 0
        self.heard_ns = 0
        """When its process last sent anything."""
        self.has_spoken = False
        """Whether the process is past its first open."""
        self.restart_ns: int | None = None
        self._pause_ns = RESTART_MIN_NS
        self._store = store
        self._clock = clock
        self._log = log

    @property
    def first_stream(self) -> int:
        return self.index * STREAMS_PER_SOURCE

    @property
    def state(self) -> str:
        if self.failure:
            return "stopped"
        return "running" if self.restart_ns is None else "restarting"

    def began(self, process: subprocess.Popen[bytes]) -> None:
        """A process of it was started."""
        self.process = process
        self.started_ns = self.heard_ns = self._clock.now_ns()
        self.has_spoken = False
        self.restart_ns = None

    def ended(self, status: int, now_ns: int, *, was_stable: bool) -> None:
        """Its process ended: the next one is due after a pause, which grows unless this one ran for long."""
        if was_stable:
            self._pause_ns = RESTART_MIN_NS
        if self.streams is not None:
            how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
            self._complain(f"{how}; it is restarted in {self._pause_ns / 1e9:g} s")
        self.put_off(now_ns)

    def put_off(self, now_ns: int) -> None:
        """Start the next process after a pause, and the one after that after a longer one."""
        self.restart_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 2, RESTART_MAX_NS)

    def receive(self) -> bool:
        """Take one slice of what was sent. True when there may be more."""
        if self.pull is None:
            return False
        for _ in range(SLICE_FRAMES):
            try:
                frame = self.pull.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self.heard_ns = self._clock.now_ns()
            try:
                self.take(frame)
            except WireError as error:
                self.garbage += 1
                self._log.complain(f"source {self.config.name!r} sent what was dropped: {error}")
        return True

    def take(self, frame: bytes) -> None:
        """Take one frame. Raises `WireError` for one that the sampler may not send."""
        header = read_header(frame)
        if header.kind in (BLOCK, GAP):
            if self.is_foreign:
                return
            if not any(header.stream == stream.number for stream in self.streams or ()):
                raise WireError(f"a frame of stream {header.stream}, which it did not describe")
            self._store.intakes[header.stream].accept(frame, header)
            return
        message = decode(frame)
        if not isinstance(message, Message):
            raise WireError(f"a {type(message).__name__}")
        if message.subject == "streams":
            self.has_spoken = True
            try:
                self._describe(message.body)
            except WireError as error:
                self.fail(f"what it describes cannot be sent: {error}")
        elif message.subject == "notice":
            self._log.complain(f"source {self.config.name!r}: {message.body.get('message')}")
        elif message.subject == "statistics":
            self.statistics = message.body
        elif message.subject == "failed" and (message.body.get("final") or self.streams is None):
            self.fail(str(message.body.get("message")))

    def fail(self, message: str) -> None:
        """There is no further process for this source."""
        self.failure = message
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        if self.streams is not None:
            self._log.complain(f"source {self.config.name!r} is stopped: {message}")

    def kill(self) -> None:
        """Kill the process for good, and go without it where its bus's driver does not let it die."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.kill()
        try:
            self.process.wait(STOP_NS / 1e9)
        except subprocess.TimeoutExpired:
            self._complain(f"(process {self.process.pid}) does not end: its driver hangs")

    def kill_silent(self, late_ms: int) -> None:
        """Kill a process that hangs, unless what it sent is only now on its way: its last words are waited for."""
        if self.process is None:
            return
        now_ns = self._clock.now_ns()
        if self.pull is not None:
            self.pull.poll(late_ms)
        while self.receive():
            pass
        if self.heard_ns >= now_ns:
            return
        self._complain(f"was silent for {(now_ns - self.heard_ns) / 1e9:.0f} s and is killed")
        self.process.kill()
        # A process that the kernel does not let go, since its driver hangs, is asked for again after as long.
        self.heard_ns = now_ns

    def _describe(self, body: Mapping[str, object]) -> None:
        described = from_document(_Streams, body)
        last = self.first_stream + STREAMS_PER_SOURCE
        if bad := [t.number for t in described.streams if not self.first_stream <= t.number < last]:
            self.fail(f"its stream number {bad[0]} is not between {self.first_stream} and {last - 1}")
        elif len({t.number for t in described.streams}) != len(described.streams):
            self.fail("two of its streams have the same number")
        elif self.streams is None:
            self.streams, self.devices = described.streams, described.devices
            for stream in described.streams:
                self._store.add(stream)
        elif not same_streams(self.streams, described.streams):
            self.is_foreign = True
            self.fail("after its restart it describes other lines than before")

    def _complain(self, what: str) -> None:
        self._log.complain(f"the sampler of source {self.config.name!r} {what}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names here
        return f"signal {number}"
