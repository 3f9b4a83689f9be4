"""One powerd: its sockets, samplers and rings in one loop, what surrounds its process, and what it says of itself.

Everything is done in one thread, by one poller: samplers' frames go into the rings, clients' requests are answered,
and what is due goes out. Only the disk of a spool may stall, and has threads of its own (`powerd_daemon.spool`).
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import zmq

from powerd_core.calibration import SensorCalibration
from powerd_core.errors import ConfigError, WireError
from powerd_core.model import CLOCK_NAME, Description, QuantityConversion, Stream
from powerd_core.protocol import Subscriber
from powerd_core.serde import from_document, read_description, to_document
from powerd_core.text import lost_text
from powerd_core.wire import HEADER_BYTES, Message, encode
from powerd_daemon.auth import ANYONE, Guard
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.config import NOTHING, Config, ServerConfig, check_lines, merge_devices, public_endpoint, release
from powerd_daemon.forward import CONTROL, Forward
from powerd_daemon.ring import FRAME_OVERHEAD_BYTES, Intake, Store
from powerd_daemon.server import Answer, Server
from powerd_daemon.sockets import bind_sockets, bound_endpoint
from powerd_daemon.spool import Spool, open_spool
from powerd_daemon.supervisor import Sampler, Supervisor


def ring_seconds(stream: Stream, ring_bytes: int, block_ns: int, overhead: int = FRAME_OVERHEAD_BYTES) -> float:
    """For how long a ring holds a stream at its nominal rate. A frame takes ``overhead`` bytes beside its own."""
    frame_ns = max(block_ns, stream.period_ns)
    frame_bytes = HEADER_BYTES + overhead + stream.scan_bytes * frame_ns / stream.period_ns
    return ring_bytes / frame_bytes * frame_ns / 1e9


def spool_seconds(streams: Sequence[Stream], spool_bytes: int, block_ns: int) -> float:
    """For how long a spool holds all streams at their nominal rates."""
    return 1 / sum(1 / ring_seconds(stream, spool_bytes, block_ns, 0) for stream in streams)


def ready_lines(description: Description, listen: str, data: str, server: ServerConfig) -> list[str]:
    """Where powerd listens, what it measures, and for how long it keeps that."""
    rows = [f"powerd {description.version} on {description.board} listens on {listen} (data on {data})"]
    for stream in description.streams:
        held = duration(ring_seconds(stream, server.ring_bytes, server.block_ns))
        provenance = ", ".join(sorted({line.provenance.value for line in stream.lines}))
        rows += [
            f"  stream {stream.number} {stream.source}: {plural(len(stream.lines), 'line')} at "
            f"{1e9 / stream.period_ns:.6g} Hz, {provenance}, the ring lasts {held}",
            f"    {', '.join(line.name for line in stream.lines)}",
        ]
    rows += [f"  device {device.name} = {' + '.join(device.feeds)}" for device in description.devices]
    if server.spool is not None:
        held = duration(spool_seconds(description.streams, server.spool_bytes, server.block_ns))
        rows.append(f"  spool {server.spool}: {server.spool_mib:.6g} MiB last {held}")
    return rows


def _stream(intake: Intake, sampler: Sampler) -> dict[str, object]:
    ring, counters = intake.ring, ("frames", "scans", "gaps", "lost_scans", "duplicates", "holes")
    return {
        "number": intake.stream.number,
        "source": intake.stream.source,
        **{name: getattr(intake, name) for name in counters},
        "ring_bytes": ring.size_bytes,
        "ring_frames": len(ring),
        "held_s": ring.held_ns / 1e9,
        "oldest": ring.oldest,
        "newest": ring.next - 1,
        "sampler": {
            "state": sampler.state,
            "pid": sampler.process.pid if sampler.process else None,
            "restarts": sampler.restarts,
            "failure": sampler.failure,
            **sampler.statistics,
        },
        **calibrations(intake.stream),
    }


def calibrations(stream: Stream) -> dict[str, object]:
    """What *stats* says of a stream's zeros: when each was last taken, and how far it had moved since the time before.
    Empty where no calibration file was loaded."""
    records = stream.detail.get("calibration")
    zeros: dict[str, object] = {}
    for name, document in records.items() if isinstance(records, dict) else ():
        with suppress(WireError, ValueError, TypeError):
            record = from_document(SensorCalibration, document)
            if record.zero is not None:
                zeros[name] = {
                    "zero_taken": record.zero.taken,
                    "zero_moved_a": record.zero_moved_a,
                    "zero_drifted": record.is_drifted,
                }
    return {"calibration": zeros} if zeros else {}


def _client(subscriber: Subscriber, now_ns: int, name: str) -> dict[str, object]:
    return {
        "name": name,
        **{name: getattr(subscriber, name) for name in ("number", "address", "frames", "bytes", "replayed", "evicted")},
        "blocked": subscriber.retry_ns is not None,
        "idle_s": (now_ns - subscriber.active_ns) / 1e9,
        "streams": [
            {"epoch": epoch, "number": number, "next": f.next, "limit": f.limit}
            for (epoch, number), f in subscriber.cursors.items()
        ],
    }


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A duration for a person: ``12.3 s``, ``4 min``, ``5.2 h``."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.3g} h"


IDLE_MS = 50
"""The longest sleep: so soon a dead sampler, a signal or the end of a parent process is noticed."""
READING_MS = 2
"""The longest sleep while a client waits for what is being read from the spool."""
FAREWELL_NS = 300_000_000
PINGS_PER_LIMIT = 3
"""A ping is sent when a third of the service manager's limit has passed, so that one may be late."""

_log = logging.getLogger(__name__)


class Notifier:
    """Tells systemd that powerd is ready and alive: datagrams to NOTIFY_SOCKET (sd_notify(3)), without libsystemd.

    Says nothing where no service manager started this process. One that went away never disturbs a measurement:
    errors of sending are ignored.
    """

    def __init__(self) -> None:
        path = os.environ.get("NOTIFY_SOCKET", "")
        # A leading @ is systemd's way of writing the zero byte of an abstract socket.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        limit_us, owner = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
        is_ours = limit_us.isdigit() and owner in ("", str(os.getpid()))
        self._ping_ns = int(limit_us) * 1000 // PINGS_PER_LIMIT if is_ours else 0
        self._due_ns = 0

    def ready(self, status: str) -> None:
        """All sources have been opened and clients are answered."""
        self._send(f"READY=1\nSTATUS={' '.join(status.split())}")

    def alive(self, now_ns: int) -> None:
        """To be called from the loop that serves, and from nowhere else: sends a ping when one is due."""
        if self._ping_ns and now_ns >= self._due_ns:
            self._due_ns = now_ns + self._ping_ns
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """powerd has been told to end and hands out what it still has."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s:
                s.sendto(message.encode(), self._address)


class ParentWatchdog:
    """Notices that the process which started powerd for itself, ``pid``, is gone. Raises `ConfigError` without one.

    By a file descriptor: a number may be given out again, and is kept for a process that nobody waits for.
    """

    def __init__(self, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--parent-pid: there is no process {pid}: {error}") from error
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def is_gone(self) -> bool:
        return bool(self._poll.poll(0))


FILES, FILES_A_SOURCE = 64, 4
"""Descriptors that powerd needs: of ZeroMQ, the sockets, the spool and some clients; of a sampler beside."""


def allow_files(config: Config) -> None:
    """Let this process open as many files as ``config`` needs. Raises `ConfigError` where that is not allowed: libzmq
    ends the process when it runs out of them."""
    needed = FILES + FILES_A_SOURCE * len(config.sources)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ConfigError(
            f"this process may open {hard} files, and powerd needs {needed}: raise the limit (ulimit -n {needed}, or "
            "LimitNOFILE= of the service)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Daemon:
    """Binds its sockets when made (`ConfigError` if it cannot); `start`, `serve` and `close` do the rest.

    All in one thread. ``stopping`` is asked at least every 50 ms.
    """

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self.description: Description | None = None
        self._config = config
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.now_ns()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Above 0, for a client's 0 means any; below 2**63, for tables of signed integers hold it.
        self.epoch = secrets.randbelow(2**63 - 1) + 1
        server = config.server
        try:
            self._guard = Guard(self._context, server)
            self._sockets = bind_sockets(self._context, server.listen, server.data, server.clock, self._guard.keys)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._spool: Spool | None = None
        self._forward = Forward(server.control)
        try:
            self._guard.watch(self._sockets)
            self._spool = open_spool(server, self.epoch, self._clock)
            self._store = Store(self.epoch, server.ring_bytes, self._spool)
            self._supervisor = Supervisor(config, self._store, self._clock)
        except BaseException:
            self._release()
            raise
        self.listen = bound_endpoint(self._sockets.control)
        self.data = bound_endpoint(self._sockets.data)
        self.clock = bound_endpoint(self._sockets.clock)
        subjects: dict[str, Answer] = {
            "describe": lambda question, caller: self._answer,
            "stats": lambda question, caller: self._stats(),
            "epochs": lambda question, caller: self._epochs(question.body),
            CONTROL: self._forward.answer,
        }
        guard = self._guard
        self._server = Server(self._sockets, self._store, self._clock, subjects, guard.may_read, guard.caller)
        self._answer = b""
        self._poller = zmq.Poller()
        self._guard.register(self._poller)

    @property
    def uptime_s(self) -> float:
        return (self._clock.now_ns() - self._began_ns) / 1e9

    def start(self, stopping: Callable[[], bool] = lambda: False) -> bool:
        """Start the samplers and wait until each has said what it measures; False when ``stopping`` came first.

        Raises `ConfigError` or `SensorError`. Clients that ask meanwhile are answered afterwards.
        """
        self._supervisor.start(self._poller)
        while not self._supervisor.is_ready:
            if stopping():
                return False
            self._poller.poll(IDLE_MS)
            self._mind_guard()
            self._supervisor.receive()
            self._supervisor.mind()
            self._supervisor.check_start()
        samplers = self._supervisor.samplers
        lines = check_lines([(s.config, s.streams or ()) for s in samplers])
        streams = tuple(stream for s in samplers for stream in s.streams or ())
        beside = {line.name for t in streams for line in t.lines if isinstance(line.conversion, QuantityConversion)}
        devices, notes = merge_devices(lines, [(s.config, s.devices) for s in samplers], self._config.devices, beside)
        for note in notes:
            _log.info(f"powerd: {note}")
        server = self._config.server
        self.description = Description(
            server.board,
            release(),
            self.epoch,
            CLOCK_NAME,
            public_endpoint(self.data),
            streams,
            devices,
            public_endpoint(self.clock),
            self._guard.readers,
        )
        body = to_document(self.description)
        try:
            read_description(body)
        except WireError as error:
            raise ConfigError(f"no client could use what is measured here: {error}") from error
        self._answer = encode(Message("description", body, self.epoch))
        for line in ready_lines(self.description, self.listen, self.data, server):
            _log.info(line)
        if self._spool is not None:
            self._spool.begin(self._answer)
        if not streams:
            _log.warning(NOTHING)
        if self._guard.readers == ANYONE:
            _log.warning("anyone who reaches these addresses can read along: it runs without keys, as told to")
        for router in (self._sockets.clock, self._sockets.control, self._sockets.data):
            self._poller.register(router, zmq.POLLIN)
        return True

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Serve until ``stopping``, then end the samplers and give clients what these still had."""
        busy = False
        while not stopping():
            busy = self._cycle(0 if busy else self._patience_ms())
        self._supervisor.stop()
        give_up_ns = self._clock.now_ns() + FAREWELL_NS
        self._cycle(0)
        while not self._server.delivery.is_drained() and self._clock.now_ns() < give_up_ns:
            self._cycle(5)
        if self._spool is not None:
            self._spool.finish()
        _log.info(self._line())
        for i in self._store.intakes.values():
            counts = f"{plural(i.scans, 'scan')} in {plural(i.frames, 'frame')}"
            _log.info(f"  stream {i.stream.number} {i.stream.source}: {counts}")

    def close(self) -> None:
        """Release everything, samplers included. Safe after any error."""
        self._supervisor.close()
        self._release(FAREWELL_NS // 1_000_000)

    def _release(self, linger_ms: int = 0) -> None:
        self._forward.close()
        if self._spool is not None:
            self._spool.close()
        self._guard.unwatch()
        self._sockets.release(linger_ms)
        self._guard.close()
        self._context.term()

    def _cycle(self, patience_ms: int) -> bool:
        self._poller.poll(patience_ms)
        self._mind_guard()
        self._server.answer()
        more = self._supervisor.receive()
        more |= self._server.cycle()
        self._supervisor.mind()
        if self._spool is not None:
            self._spool.collect()
        return more

    def _mind_guard(self) -> None:
        if self._guard.mind():
            self._server.delivery.drop_denied(self._guard.may_read)
        self._server.handshakes_failed = self._guard.handshakes_failed
        self._server.flood.mind(lambda: self._guard.connections, self._clock.now_ns())

    def _patience_ms(self) -> int:
        retry_ns = self._server.delivery.retry_ns()
        if self._spool is not None and self._spool.is_reading:
            return READING_MS
        if retry_ns is None:
            return IDLE_MS
        return min(max((retry_ns - self._clock.now_ns()) // 1_000_000, 1), IDLE_MS)

    def _epochs(self, request: Mapping[str, object]) -> bytes:
        body = {"ready": True, "epochs": []} if self._spool is None else self._spool.catalogue.answer(request)
        return encode(Message("epochs", body, self.epoch))

    def _name_of(self, subscriber: Subscriber) -> str:
        """What clients.toml calls the key of a client; empty where no keys are asked for."""
        caller = self._guard.caller(subscriber.badge) if isinstance(subscriber.badge, zmq.Frame) else None
        return "" if caller is None else caller.name

    def _stats(self) -> bytes:
        """The answer to *stats*; docs/reference/protocol.md lists its keys."""
        assert self.description is not None
        server, delivery, now_ns = self._server, self._server.delivery, self._clock.now_ns()
        samplers = {stream.number: s for s in self._supervisor.samplers for stream in s.streams or ()}
        body = {
            "board": self.description.board,
            "version": self.description.version,
            "uptime_s": self.uptime_s,
            "streams": [_stream(intake, samplers[number]) for number, intake in self._store.intakes.items()],
            "clients": [_client(s, now_ns, self._name_of(s)) for s in delivery.subscribers.values()],
            "served_clients": delivery.served_clients,
            "sent_frames": delivery.sent_frames,
            "replayed_frames": delivery.replayed_frames,
            "spool": None if self._spool is None else self._spool.stats(),
            "denied": server.denied,
            "cut_off": server.flood.cut_off,
            "handshakes_failed": server.handshakes_failed,
            "garbage": {**server.garbage, "samplers": self._supervisor.garbage},
        }
        return encode(Message("stats", body, self.epoch))

    def _line(self) -> str:
        """How it went so far, in one line."""
        intakes, samplers = self._store.intakes.values(), self._supervisor.samplers
        losses = (sum(getattr(i, name) for i in intakes) for name in ("gaps", "lost_scans", "unknown_gaps"))
        counts = (s.statistics.get("missed_deadlines") for s in samplers)
        missed = sum(count for count in counts if isinstance(count, int))
        restarts, clients = sum(s.restarts for s in samplers), len(self._server.delivery.subscribers)
        return (
            f"powerd ran for {duration(self.uptime_s)}: {sum(i.scans for i in intakes)} scans, "
            f"{lost_text(*losses)}, {plural(missed, 'missed deadline')}, "
            f"{plural(restarts, 'sampler restart')}, {plural(clients, 'client')}"
        )
