"""One powerd: its sockets, samplers and rings in one loop. `powerd run` is this and its command line."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import zmq

from powerd_core.document import to_document
from powerd_core.model import CLOCK_NAME, Description, QuantityConversion
from powerd_core.wire import Message, encode
from powerd_daemon import reports
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.config import Config
from powerd_daemon.devices import check_lines, merge_devices
from powerd_daemon.endpoints import public_endpoint
from powerd_daemon.log import Log
from powerd_daemon.release import release
from powerd_daemon.server import Server
from powerd_daemon.sockets import bind_router, bound_endpoint
from powerd_daemon.sockets import release as release_socket
from powerd_daemon.store import Store
from powerd_daemon.supervisor import Supervisor

IDLE_MS = 50
"""The longest sleep: so soon a dead sampler, a signal or the end of a parent process is noticed."""
STATUS_NS = 2_000_000_000
FAREWELL_NS = 300_000_000


class Daemon:
    """Binds its sockets when made (`ConfigError` if it cannot); `start`, `serve` and `close` do the rest.

    All in one thread. ``stopping`` is asked at least every 50 ms.
    """

    def __init__(self, config: Config, log: Log, clock: Clock | None = None) -> None:
        self.description: Description | None = None
        self._config = config
        self._log = log
        self._clock = clock or SystemClock()
        self._began_ns = self._clock.now_ns()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Above 0, for a client's 0 means any; below 2**63, for tables of signed integers hold it.
        self.epoch = secrets.randbelow(2**63 - 1) + 1
        self._store = Store(self.epoch, config.server.ring_bytes)
        try:
            self._control = bind_router(self._context, config.server.listen, mandatory=False)
            try:
                self._data = bind_router(self._context, config.server.data, mandatory=True)
            except BaseException:
                release_socket(self._control)
                raise
        except BaseException:
            self._context.term()
            raise
        self.listen = bound_endpoint(self._control)
        self.data = bound_endpoint(self._data)
        self._supervisor = Supervisor(config, self._store, self._context, self._clock, log)
        subjects = {"describe": self._describe, "stats": self._stats}
        self._server = Server(self._control, self._data, self._store, self._clock, log, subjects)
        self._answer = b""
        self._poller = zmq.Poller()

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
            server.board, release(), self.epoch, CLOCK_NAME, public_endpoint(self.data), streams, devices
        )
        self._answer = encode(Message("description", to_document(self.description), self.epoch))
        for line in reports.ready_lines(self.description, self.listen, self.data, server.ring_bytes, server.block_ns):
            self._log.note(line)
        self._poller.register(self._control, zmq.POLLIN)
        self._poller.register(self._data, zmq.POLLIN)
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
        while not self._server.is_drained() and self._clock.now_ns() < give_up_ns:
            self._cycle(5)
        for line in reports.summary_lines(self._store, self._supervisor, self._server, self.uptime_s):
            self._log.note(line)

    def close(self) -> None:
        """Release everything, samplers included. Safe after any error."""
        self._supervisor.close()
        release_socket(self._control, FAREWELL_NS // 1_000_000)
        release_socket(self._data, FAREWELL_NS // 1_000_000)
        self._context.term()

    def _cycle(self, patience_ms: int) -> bool:
        self._poller.poll(patience_ms)
        self._server.answer()
        more = self._supervisor.receive()
        more |= self._server.cycle()
        self._supervisor.mind()
        return more

    def _patience_ms(self) -> int:
        retry_ns = self._server.retry_ns()
        if retry_ns is None:
            return IDLE_MS
        return min(max((retry_ns - self._clock.now_ns()) // 1_000_000, 1), IDLE_MS)

    def _describe(self) -> bytes:
        return self._answer

    def _stats(self) -> bytes:
        assert self.description is not None
        body = reports.stats(
            self.description, self._store, self._supervisor, self._server, self.uptime_s, self._clock.now_ns()
        )
        return encode(Message("stats", body, self.epoch))
