"""One powerd: its sockets, samplers and rings in one loop. `powerd run` is this and its command line."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import zmq

from powerd_core.errors import ConfigError, WireError
from powerd_core.model import CLOCK_NAME, Description, QuantityConversion
from powerd_core.serde import read_description, to_document
from powerd_core.wire import Message, encode
from powerd_daemon import reports, sizing
from powerd_daemon.access import Role, Subject
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.config import Config
from powerd_daemon.control import Control
from powerd_daemon.devices import check_lines, merge_devices
from powerd_daemon.endpoints import public_endpoint
from powerd_daemon.log import Log
from powerd_daemon.release import release
from powerd_daemon.security import ANYONE, Guard
from powerd_daemon.server import Server
from powerd_daemon.sockets import bind_sockets, bound_endpoint
from powerd_daemon.spool import Spool, open_spool
from powerd_daemon.store import Store
from powerd_daemon.supervisor import Supervisor

IDLE_MS = 50
"""The longest sleep: so soon a dead sampler, a signal or the end of a parent process is noticed."""
READING_MS = 2
"""The longest sleep while a client waits for what is being read from the spool."""
STATUS_NS = 2_000_000_000
FAREWELL_NS = 300_000_000


class Daemon:
    """Binds its sockets when made (`ConfigError` if it cannot); `start`, `serve` and `close` do the rest.

    All in one thread. ``stopping`` is asked at least every 50 ms.
    """

    def __init__(self, config: Config, log: Log, clock: Clock | None = None, control: Control | None = None) -> None:
        self.description: Description | None = None
        self._config = config
        self._log = log
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.now_ns()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Above 0, for a client's 0 means any; below 2**63, for tables of signed integers hold it.
        self.epoch = secrets.randbelow(2**63 - 1) + 1
        server = config.server
        try:
            self._guard = Guard(self._context, server, log)
            self._sockets = bind_sockets(self._context, server.listen, server.data, server.clock, self._guard.keys)
        except BaseException:
            self._context.destroy(linger=0)
            raise
        self._spool: Spool | None = None
        try:
            self._guard.watch(self._sockets)
            self._spool = open_spool(server, self.epoch, self._clock, log)
            self._store = Store(self.epoch, server.ring_bytes, self._spool)
            self._supervisor = Supervisor(config, self._store, self._context, self._clock, log)
        except BaseException:
            self._release()
            raise
        self.listen = bound_endpoint(self._sockets.control)
        self.data = bound_endpoint(self._sockets.data)
        self.clock = bound_endpoint(self._sockets.clock)
        subjects = {"describe": Subject(Role.READ, self._describe), "stats": Subject(Role.READ, self._stats)}
        subjects["epochs"] = Subject(Role.READ, self._epochs)
        if control is not None:
            subjects |= control.subjects(self.epoch)
        self._server = Server(self._sockets, self._store, self._clock, log, subjects, self._guard.access)
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
            self._log.note(f"powerd: {note}")
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
        for line in reports.ready_lines(self.description, self.listen, self.data, server.ring_bytes, server.block_ns):
            self._log.note(line)
        for line in sizing.advice(streams, server):
            self._log.note(f"powerd: {line}")
        if line := sizing.large_rings(len(streams), server.ring_bytes, sizing.available_bytes()):
            self._log.complain(line)
        if self._spool is not None:
            self._spool.begin(self._answer)
            self._log.note(reports.spool_line(server, streams))
        if self._guard.readers == ANYONE:
            self._log.complain("anyone who reaches these addresses can read along: it runs without keys, as told to")
        for router in (self._sockets.clock, self._sockets.control, self._sockets.data):
            self._poller.register(router, zmq.POLLIN)
        return True

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Serve until ``stopping``, then end the samplers and give clients what these still had."""
        status_ns = self._clock.now_ns() + STATUS_NS
        busy = False
        while not stopping():
            busy = self._cycle(0 if busy else self._patience_ms())
            if self._log.is_terminal and self._clock.now_ns() >= status_ns:
                status_ns += STATUS_NS
                self._log.status(reports.status_line(self._store, self._supervisor, self._server, self.uptime_s))
        self._supervisor.stop()
        give_up_ns = self._clock.now_ns() + FAREWELL_NS
        self._cycle(0)
        while not self._server.delivery.is_drained() and self._clock.now_ns() < give_up_ns:
            self._cycle(5)
        if self._spool is not None:
            self._spool.finish()
        for line in reports.summary_lines(self._store, self._supervisor, self._server, self.uptime_s):
            self._log.note(line)

    def close(self) -> None:
        """Release everything, samplers included. Safe after any error."""
        self._supervisor.close()
        self._release(FAREWELL_NS // 1_000_000)

    def _release(self, linger_ms: int = 0) -> None:
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
            self._server.drop_denied()
        self._server.handshakes_failed = self._guard.handshakes_failed
        self._server.flood.mind(lambda: self._guard.connections, self._clock.now_ns())

    def _patience_ms(self) -> int:
        retry_ns = self._server.delivery.retry_ns()
        if self._spool is not None and self._spool.is_reading:
            return READING_MS
        if retry_ns is None:
            return IDLE_MS
        return min(max((retry_ns - self._clock.now_ns()) // 1_000_000, 1), IDLE_MS)

    def _describe(self, request: Mapping[str, object]) -> bytes:
        return self._answer

    def _epochs(self, request: Mapping[str, object]) -> bytes:
        body = {"ready": True, "epochs": []} if self._spool is None else self._spool.archive.answer(request)
        return encode(Message("epochs", body, self.epoch))

    def _stats(self, request: Mapping[str, object]) -> bytes:
        assert self.description is not None
        body = reports.stats(
            self.description, self._store, self._supervisor, self._server, self.uptime_s, self._clock.now_ns()
        )
        return encode(Message("stats", body, self.epoch))
