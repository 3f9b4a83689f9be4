"""The sampler processes as powerd sees them: started, listened to, restarted when they die or hang.

Each source has a process of its own, so that a driver that hangs or crashes costs no other source a reading. A process
sends frames and rare messages through a pipe of its own; whatever its predecessor left on the way cannot be mistaken
for its own. A process that ends is started again after a pause, which grows unless it ran for long.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import zmq

from powerd_core.errors import SensorError, WireError
from powerd_core.model import Block, Device, Gap, Stream
from powerd_core.serde import from_document, to_document
from powerd_core.wire import Event, FrameReader, Garbage, Message
from powerd_daemon.clock import Clock
from powerd_daemon.config import STREAMS_PER_SOURCE, Config, ServerConfig, SourceConfig
from powerd_daemon.ring import Store
from powerd_daemon.sampler import Resume, Spec, same_streams
from powerd_daemon.sensor_watch import changes
from powerd_daemon.sources.base import FIRST_GARBLED

OUTBOX_BYTES = 16 << 20
SLICE_BYTES = 1 << 16
"""What is taken of one sampler in a turn."""
PIPE_BYTES = 1 << 20
"""Room in a sampler's pipe, if the kernel grants it: a sampler fills it once in a block, and Linux gives 64 KiB."""
RESTART_MIN_NS = 100_000_000
RESTART_MAX_NS = 10_000_000_000
STOP_NS = 2_000_000_000
OPEN_TIMEOUT_NS = 60_000_000_000
SILENT_NS = 30_000_000_000
"""A sampler sends its statistics every second: one that is silent for so long hangs in its sensor's driver."""
SUSPENDED_NS = 5_000_000_000
"""Powerd itself was stopped when it looks so late: what its samplers sent meanwhile is still on its way."""
STABLE_NS = 30_000_000_000
"""A sampler that ran for so long has earned a quick restart."""

_log = logging.getLogger(__name__)


def spawn(spec: Spec) -> subprocess.Popen[bytes]:
    """A sampler process that has been told what to do."""
    # Its own process group: Ctrl-C in the terminal reaches powerd alone, which then ends its samplers in order.
    # What a driver prints must not get among the frames.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "powerd_daemon.sampler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,
        pass_fds=(spec.out,),
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as stdin:
        stdin.write(json.dumps(to_document(spec)).encode())
    return process


@dataclass(frozen=True, slots=True)
class _Streams:
    """The body of a sampler's message ``streams``."""

    streams: tuple[Stream, ...]
    devices: tuple[Device, ...]


class Sampler:
    """One source's sampler over all its processes. What they send goes into ``store``."""

    def __init__(self, config: SourceConfig, index: int, store: Store, clock: Clock) -> None:
        self.config = config
        self.streams: tuple[Stream, ...] | None = None
        self.devices: tuple[Device, ...] = ()
        self.statistics: Mapping[str, object] = {}
        self.restarts = 0
        self.garbage = 0
        """Frames that were dropped, for they were none that it may send."""
        self.failure = ""
        """Why there will be no further process."""
        self.process: subprocess.Popen[bytes] | None = None
        self.started_ns = self.heard_ns = 0
        """When its process began, and when that last sent anything."""
        self.has_opened = False
        """Whether the process is past its first open."""
        self._has_told_garbled = False
        self.restart_ns: int | None = None
        self._numbers = range(index * STREAMS_PER_SOURCE, (index + 1) * STREAMS_PER_SOURCE)
        self._is_foreign = False
        self._pause_ns = RESTART_MIN_NS
        self._pipe: int | None = None
        """Where its process is heard."""
        self._reader = FrameReader()
        self._poller = zmq.Poller()
        self._store = store
        self._clock = clock

    @property
    def state(self) -> str:
        if self.failure:
            return "stopped"
        return "running" if self.restart_ns is None else "restarting"

    @property
    def is_left_out(self) -> bool:
        """Whether powerd goes on without it."""
        return self.config.sampler.optional and self.streams is None and bool(self.failure)

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, server: ServerConfig, poller: zmq.Poller) -> None:
        """Start a process, which goes on where its predecessor stopped; ``poller`` minds its pipe. Raises `OSError`."""
        self.close()
        rings = [self._store.intakes[stream.number].ring for stream in self.streams or ()]
        self._pipe, out = os.pipe()
        with suppress(OSError):  # one user's pipes together may be limited
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            os.set_blocking(self._pipe, False)
            self.process = spawn(
                Spec(
                    source=self.config,
                    epoch=self._store.epoch,
                    first_stream=self._numbers[0],
                    out=out,
                    block_ns=server.block_ns,
                    outbox_bytes=min(OUTBOX_BYTES, server.ring_bytes),
                    parent_pid=os.getpid(),
                    resume=tuple(Resume(ring.stream, ring.next, ring.t_last_ns) for ring in rings),
                )
            )
        finally:
            os.close(out)
        self._reader, self._poller = FrameReader(), poller
        poller.register(self._pipe, zmq.POLLIN)
        self.started_ns = self.heard_ns = self._clock.now_ns()
        self.has_opened = False
        self.restart_ns = None

    def close(self) -> None:
        """Close the pipe of the last process."""
        if self._pipe is not None:
            if self._pipe in self._poller:
                self._poller.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = None

    def ended(self, status: int, now_ns: int) -> None:
        """Its process ended: the next one is due after a pause, which grows unless this one ran for long."""
        if now_ns - self.started_ns > STABLE_NS:
            self._pause_ns = RESTART_MIN_NS
        if self.streams is not None:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            self._warn(f"{how}; it is restarted in {self._pause_ns / 1e9:g} s")
        self.postpone(now_ns)

    def postpone(self, now_ns: int) -> None:
        """Start the next process after a pause, and the one after that after a longer one."""
        self.restart_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 2, RESTART_MAX_NS)

    def receive(self) -> bool:
        """Take one slice of what was sent. True when there may be more."""
        if self._pipe is None:
            return False
        try:
            data = os.read(self._pipe, SLICE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()  # its process is gone, and all that it sent was taken
            return False
        self.heard_ns = self._clock.now_ns()
        for event, frame in self._reader.feed(data):
            if isinstance(event, Garbage):
                self._drop(event.reason)
                continue
            try:
                self.take(event, frame)
            except WireError as error:
                self._drop(str(error))
        return len(data) == SLICE_BYTES

    def take(self, event: Event, frame: bytes) -> None:
        """Take one event and its frame. Raises `WireError` for one that the sampler may not send."""
        if isinstance(event, Block | Gap):
            if self._is_foreign:
                return
            if all(event.stream != stream.number for stream in self.streams or ()):
                raise WireError(f"a frame of stream {event.stream}, which it did not describe")
            self._store.intakes[event.stream].accept(frame, event)
        elif isinstance(event, Message):
            self._hear(event)
        else:
            raise WireError(f"a {type(event).__name__}")

    def _hear(self, message: Message) -> None:
        body = message.body
        if message.subject == "streams":
            self.has_opened = True
            try:
                self._describe(from_document(_Streams, body))
            except WireError as error:
                self.fail(f"what it describes cannot be sent: {error}")
        elif message.subject == "notice":
            self._warn(f"says: {body.get('message')}")
        elif message.subject == "statistics":
            self._tell_changes(body)
            self.statistics = body
        elif message.subject == "failed" and (body.get("final") or self.streams is None):
            self.fail(str(body.get("message")))

    def _tell_changes(self, body: Mapping[str, object]) -> None:
        """One line for each sensor that dies, sticks or clips, and for a source that is lost."""
        for is_fault, text in changes(self.statistics.get("lines"), body.get("lines")):
            _log.log(logging.WARNING if is_fault else logging.INFO, "%s%s", "" if is_fault else "powerd: ", text)
        error, before = body.get("error"), self.statistics.get("error")
        if error and not before:
            _log.warning("source %r is lost: %s; it is tried again", self.config.name, error)
        sensors = body.get("sensors")
        garbled = sensors.get(FIRST_GARBLED) if isinstance(sensors, dict) else None
        if garbled and not self._has_told_garbled:
            self._has_told_garbled = True
            text = "source %r got %r, which is no reading: such lines are flagged (options: pattern, ignore)"
            _log.warning(text, self.config.name, garbled)

    def _describe(self, described: _Streams) -> None:
        numbers = [stream.number for stream in described.streams]
        if len(set(numbers) & set(self._numbers)) < len(numbers):
            self.fail(f"its streams need different numbers of {self._numbers}, not {numbers}")
        elif self.streams is None:
            self.streams, self.devices = described.streams, described.devices
            for stream in described.streams:
                self._store.add(stream)
        elif not same_streams(self.streams, described.streams):
            self._is_foreign = True
            self.fail("after its restart it describes other lines than before")

    def fail(self, message: str) -> None:
        """There is no further process for this source."""
        self.failure = message
        if self.process is not None and self.is_alive:
            self.process.terminate()
        if self.streams is not None or self.is_left_out:
            _log.warning("source %r is %s: %s", self.config.name, "stopped" if self.streams else "left out", message)

    def kill(self) -> None:
        """Kill the process for good, and go without it where its bus's driver does not let it die."""
        if self.process is None or not self.is_alive:
            return
        self.process.kill()
        try:
            self.process.wait(STOP_NS / 1e9)
        except subprocess.TimeoutExpired:
            self._warn(f"(process {self.process.pid}) does not end: its driver hangs")

    def kill_silent(self, now_ns: int) -> None:
        """Kill a process that hangs."""
        assert self.process is not None
        self._warn(f"was silent for {(now_ns - self.heard_ns) / 1e9:.0f} s and is killed")
        self.process.kill()
        # A process that the kernel does not let go, since its driver hangs, is asked for again after as long.
        self.heard_ns = now_ns

    def _drop(self, why: str) -> None:
        self.garbage += 1
        self._warn(f"sent what was dropped: {why}")

    def _warn(self, what: str) -> None:
        _log.warning("the sampler of source %r %s", self.config.name, what)


class Supervisor:
    """Runs one `Sampler` for each source of ``config`` and puts what they send into ``store``."""

    def __init__(self, config: Config, store: Store, clock: Clock) -> None:
        self.samplers = tuple(Sampler(source, i, store, clock) for i, source in enumerate(config.sources))
        self._server = config.server
        self._clock = clock
        self._poller = zmq.Poller()
        self._has_stopped = False
        self._minded_ns = clock.now_ns()

    def start(self, poller: zmq.Poller) -> None:
        """Start all samplers; their pipes are watched by ``poller``."""
        self._poller = poller
        for sampler in self.samplers:
            sampler.start(self._server, poller)

    @property
    def garbage(self) -> int:
        """Frames of samplers that were dropped."""
        return sum(s.garbage for s in self.samplers)

    @property
    def is_ready(self) -> bool:
        """Whether every source has said what it measures, or is left out."""
        return all(s.streams is not None or s.is_left_out for s in self.samplers)

    def check_start(self) -> None:
        """Raise what keeps a source from starting, if anything does."""
        for s in self.samplers:
            if s.streams is not None:
                continue
            if not s.failure and self._clock.now_ns() - s.started_ns > OPEN_TIMEOUT_NS:
                s.fail("the sensor did not open within a minute: is it stuck?")
            if s.failure and not (s.is_left_out and any(not other.failure for other in self.samplers)):
                raise SensorError(s.failure if s.config.where in s.failure else f"{s.config.where}: {s.failure}")

    def receive(self) -> bool:
        """Take one slice of what samplers sent. True when there may be more."""
        return True in [sampler.receive() for sampler in self.samplers]

    def mind(self) -> None:
        """Notice samplers that ended or hang, and start again those whose pause is over."""
        if self._has_stopped:
            return
        now_ns = self._clock.now_ns()
        was_suspended, self._minded_ns = now_ns - self._minded_ns > SUSPENDED_NS, now_ns
        for s in self.samplers:
            if was_suspended:
                s.heard_ns = now_ns
            # Asked in any case: a process that ended is not laid to rest before.
            status = None if s.process is None else s.process.poll()
            if s.failure or s.process is None:
                continue
            if s.restart_ns is not None:
                if now_ns >= s.restart_ns:
                    self._restart(s, now_ns)
            elif status is not None:
                s.ended(status, now_ns)
            elif now_ns - s.heard_ns > (SILENT_NS if s.has_opened else OPEN_TIMEOUT_NS):
                s.kill_silent(now_ns)

    def _restart(self, s: Sampler, now_ns: int) -> None:
        """Start a sampler's next process, once all that the last one sent was taken."""
        assert s.process is not None
        while s.receive():
            pass
        if s.streams is None and not s.failure:
            s.fail(f"its sampler ended with status {s.process.returncode} before it opened the sensor")
        if s.failure:
            return
        s.restarts += 1
        try:
            s.start(self._server, self._poller)
        except OSError as error:
            # Out of processes or file descriptors, which strangers can bring about: that may pass.
            s.postpone(now_ns)
            _log.warning("the sampler of source %r cannot be started now: %s", s.config.name, error)

    def stop(self) -> None:
        """End all samplers, taking what they still send; kill those that do not end in time."""
        self._has_stopped = True
        for s in self.samplers:
            if s.process is not None:
                s.process.terminate()
        give_up_ns = self._clock.now_ns() + STOP_NS
        while any(s.is_alive for s in self.samplers) and self._clock.now_ns() < give_up_ns:
            self.receive()
            self._clock.sleep_until(self._clock.now_ns() + 2_000_000)
        for s in self.samplers:
            s.kill()
        while self.receive():
            pass

    def close(self) -> None:
        """Kill what still runs."""
        for s in self.samplers:
            s.kill()
            s.close()
