"""The sampler processes: started, listened to, restarted when they die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

import zmq

from powerd_core.document import from_document
from powerd_core.errors import SensorError, WireError
from powerd_core.model import Device, Stream
from powerd_core.wire import BLOCK, GAP, HEADER_BYTES, MAX_PAYLOAD, Message, decode, read_header
from powerd_daemon.clock import Clock
from powerd_daemon.config import STREAMS_PER_SOURCE, Config, SourceConfig
from powerd_daemon.log import Log
from powerd_daemon.sampler import Spec
from powerd_daemon.sampling import Resume, same_streams
from powerd_daemon.spawn import private_directory, spawn
from powerd_daemon.store import Store

OUTBOX_BYTES = 16 << 20
OPEN_TIMEOUT_NS = 60_000_000_000
RESTART_MIN_NS = 100_000_000
RESTART_MAX_NS = 10_000_000_000
SILENT_NS = 30_000_000_000
"""A sampler sends its statistics every second: one that is silent for so long hangs in its sensor's driver."""
LATE_MS = 200
"""So long a sampler's last words are waited for before it is killed for its silence."""
STABLE_NS = 30_000_000_000
"""A sampler that ran for so long has earned a quick restart."""
SLICE_FRAMES = 64
STOP_NS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class _Streams:
    """The body of a sampler's message ``streams``."""

    streams: tuple[Stream, ...]
    devices: tuple[Device, ...]


class Sampler:
    """One source's sampler over all its processes."""

    def __init__(self, config: SourceConfig, index: int) -> None:
        self.config = config
        self.index = index
        self.streams: tuple[Stream, ...] | None = None
        self.devices: tuple[Device, ...] = ()
        self.statistics: Mapping[str, object] = {}
        self.restarts = 0
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
        self.pause_ns = RESTART_MIN_NS

    @property
    def first_stream(self) -> int:
        return self.index * STREAMS_PER_SOURCE

    @property
    def state(self) -> str:
        if self.failure:
            return "stopped"
        return "running" if self.restart_ns is None else "restarting"


class Supervisor:
    """Runs one `Sampler` for each source of ``config`` and puts what they send into ``store``."""

    def __init__(
        self, config: Config, store: Store, context: zmq.Context[zmq.Socket[bytes]], clock: Clock, log: Log
    ) -> None:
        self.samplers = tuple(Sampler(source, i) for i, source in enumerate(config.sources))
        self.garbage = 0
        self._config = config
        self._store = store
        self._context = context
        self._clock = clock
        self._log = log
        self._poller: zmq.Poller | None = None
        self._stopped = False
        self._directory = private_directory()

    def start(self, poller: zmq.Poller) -> None:
        """Start all samplers; their sockets are watched by ``poller``."""
        self._poller = poller
        for sampler in self.samplers:
            self._start(sampler)

    @property
    def is_ready(self) -> bool:
        """Whether every source has said what it measures."""
        return all(s.streams is not None for s in self.samplers)

    def check_start(self) -> None:
        """Raise what keeps a source from starting, if anything does."""
        for s in self.samplers:
            if s.streams is None and s.failure:
                raise SensorError(f"{s.config.where}: {s.failure}" if s.config.where not in s.failure else s.failure)
            if s.streams is None and self._clock.now_ns() - s.started_ns > OPEN_TIMEOUT_NS:
                seconds = OPEN_TIMEOUT_NS // 1_000_000_000
                raise SensorError(f"{s.config.where}: the sensor did not open within {seconds} s: is it stuck?")

    def receive(self) -> bool:
        """Take one slice of what samplers sent. True when there may be more."""
        more = False
        for sampler in self.samplers:
            more |= self._receive(sampler)
        return more

    def mind(self) -> None:
        """Notice samplers that ended, and start again those whose pause is over."""
        if self._stopped:
            return
        now_ns = self._clock.now_ns()
        for s in self.samplers:
            if s.failure or s.process is None:
                continue
            if s.restart_ns is None:
                if (status := s.process.poll()) is not None:
                    self._ended(s, status, now_ns)
                elif now_ns - s.heard_ns > (SILENT_NS if s.has_spoken else OPEN_TIMEOUT_NS):
                    self._kill_silent(s, now_ns)
            elif now_ns >= s.restart_ns:
                while self._receive(s):
                    pass
                if s.streams is None and not s.failure:
                    s.failure = f"its sampler ended with status {s.process.returncode} before it opened the sensor"
                if not s.failure:
                    s.restarts += 1
                    self._start_again(s, now_ns)

    def stop(self) -> None:
        """End all samplers, taking what they still send; kill those that do not end in time."""
        self._stopped = True
        for s in self.samplers:
            if s.process is not None and s.process.poll() is None:
                s.process.terminate()
        give_up_ns = self._clock.now_ns() + STOP_NS
        alive = [s for s in self.samplers if s.process is not None]
        while alive and self._clock.now_ns() < give_up_ns:
            self.receive()
            alive = [s for s in alive if s.process is not None and s.process.poll() is None]
            self._clock.sleep_until(self._clock.now_ns() + 2_000_000)
        for s in alive:
            self._end(s)
        while self.receive():
            pass

    def close(self) -> None:
        """Kill what still runs and remove the private directory."""
        for s in self.samplers:
            if s.process is not None and s.process.poll() is None:
                self._end(s)
            self._close_pull(s)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, s: Sampler) -> None:
        """Kill a process for good, and go without it where its bus's driver does not let it die."""
        if s.process is None:
            return
        s.process.kill()
        try:
            s.process.wait(STOP_NS / 1e9)
        except subprocess.TimeoutExpired:
            self._log.complain(
                f"the sampler of source {s.config.name!r} (process {s.process.pid}) does not end: its driver hangs"
            )

    def _start(self, s: Sampler) -> None:
        # Each process has a socket of its own: whatever its predecessor left on the way cannot be mistaken for its own.
        self._close_pull(s)
        endpoint = f"ipc://{self._directory / f'{s.index}.{s.restarts}'}"
        s.pull = self._context.socket(zmq.PULL)
        s.pull.set(zmq.LINGER, 0)
        s.pull.set(zmq.MAXMSGSIZE, MAX_PAYLOAD + HEADER_BYTES)
        s.pull.bind(endpoint)
        assert self._poller is not None
        self._poller.register(s.pull, zmq.POLLIN)
        intakes = [self._store.intakes[stream.number] for stream in s.streams or ()]
        spec = Spec(
            kind=s.config.kind,
            name=s.config.name,
            where=s.config.where,
            options=s.config.options,
            epoch=self._store.epoch,
            first_stream=s.first_stream,
            endpoint=endpoint,
            block_ns=self._config.server.block_ns,
            outbox_bytes=min(OUTBOX_BYTES, self._config.server.ring_bytes),
            parent_pid=os.getpid(),
            resume=tuple(Resume(i.stream.number, i.ring.next, i.t_last_ns) for i in intakes),
            priority=s.config.sampler.priority,
            lock_memory=s.config.sampler.lock_memory,
        )
        s.process = spawn(spec)
        s.started_ns = s.heard_ns = self._clock.now_ns()
        s.has_spoken = False
        s.restart_ns = None

    def _start_again(self, s: Sampler, now_ns: int) -> None:
        try:
            self._start(s)
        except (OSError, zmq.ZMQError) as error:
            # Out of processes or file descriptors, which strangers that connect can bring about: that may pass.
            s.restart_ns = now_ns + s.pause_ns
            s.pause_ns = min(s.pause_ns * 2, RESTART_MAX_NS)
            self._log.complain(f"the sampler of source {s.config.name!r} cannot be started now: {error}")

    def _ended(self, s: Sampler, status: int, now_ns: int) -> None:
        if now_ns - s.started_ns > STABLE_NS:
            s.pause_ns = RESTART_MIN_NS
        s.restart_ns = now_ns + s.pause_ns
        if s.streams is not None:
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            seconds = s.pause_ns / 1e9
            self._log.complain(f"the sampler of source {s.config.name!r} {how}; it is restarted in {seconds:g} s")
        s.pause_ns = min(s.pause_ns * 2, RESTART_MAX_NS)

    def _kill_silent(self, s: Sampler, now_ns: int) -> None:
        """End a process that hangs; `mind` then finds it ended and starts the next one."""
        # If powerd itself was stopped for so long, what was sent meanwhile is only now on its way into the socket.
        if s.pull is not None:
            s.pull.poll(LATE_MS)
        while self._receive(s):
            pass
        if s.heard_ns >= now_ns or s.process is None:
            return
        seconds = (now_ns - s.heard_ns) / 1e9
        self._log.complain(f"the sampler of source {s.config.name!r} was silent for {seconds:.0f} s and is killed")
        s.process.kill()
        # A process that the kernel does not let go, since its driver hangs, is asked for again after as long.
        s.heard_ns = now_ns

    def _receive(self, s: Sampler) -> bool:
        if s.pull is None:
            return False
        for _ in range(SLICE_FRAMES):
            try:
                frame = s.pull.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            s.heard_ns = self._clock.now_ns()
            try:
                self._take(s, frame)
            except WireError as error:
                self.garbage += 1
                self._log.complain(f"source {s.config.name!r} sent what was dropped: {error}")
        return True

    def _take(self, s: Sampler, frame: bytes) -> None:
        header = read_header(frame)
        if header.kind in (BLOCK, GAP):
            if s.is_foreign:
                return
            if not any(header.stream == stream.number for stream in s.streams or ()):
                raise WireError(f"a frame of stream {header.stream}, which it did not describe")
            self._store.intakes[header.stream].accept(frame, header)
            return
        message = decode(frame)
        if not isinstance(message, Message):
            raise WireError(f"a {type(message).__name__}")
        if message.subject == "streams":
            s.has_spoken = True
            try:
                self._describe(s, message.body)
            except WireError as error:
                self._fail(s, f"what it describes cannot be sent: {error}")
        elif message.subject == "notice":
            self._log.complain(f"source {s.config.name!r}: {message.body.get('message')}")
        elif message.subject == "statistics":
            s.statistics = message.body
        elif message.subject == "failed" and (message.body.get("final") or s.streams is None):
            self._fail(s, str(message.body.get("message")))

    def _describe(self, s: Sampler, body: Mapping[str, object]) -> None:
        described = from_document(_Streams, body)
        last = s.first_stream + STREAMS_PER_SOURCE
        if bad := [t.number for t in described.streams if not s.first_stream <= t.number < last]:
            self._fail(s, f"its stream number {bad[0]} is not between {s.first_stream} and {last - 1}")
        elif len({t.number for t in described.streams}) != len(described.streams):
            self._fail(s, "two of its streams have the same number")
        elif s.streams is None:
            s.streams, s.devices = described.streams, described.devices
            for stream in described.streams:
                self._store.add(stream)
        elif not same_streams(s.streams, described.streams):
            s.is_foreign = True
            self._fail(s, "after its restart it describes other lines than before")

    def _fail(self, s: Sampler, message: str) -> None:
        """No further process for this source."""
        s.failure = message
        if s.process is not None and s.process.poll() is None:
            s.process.terminate()
        if s.streams is not None:
            self._log.complain(f"source {s.config.name!r} is stopped: {message}")

    def _close_pull(self, s: Sampler) -> None:
        if s.pull is not None:
            if self._poller is not None and s.pull in self._poller:
                self._poller.unregister(s.pull)
            s.pull.close()
            s.pull = None
