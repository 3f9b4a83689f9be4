"""One powerd as its client sees it: description, clock exchanges, and the streams by pull and resume.

Nothing is lost while the daemon's ring holds it: every stream is asked for from the next number that is missing, and a
number out of turn, a silence or a reconnection only make the link ask again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from powerd_client.hostclock import now_ns
from powerd_core import wire
from powerd_core.document import read_description
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, VersionError, WireError
from powerd_core.model import Block, ClockExchange, Description, Gap, Stream

WINDOW = 512
"""Frames that a daemon may send beyond the one that was asked for."""
_WANT_AGAIN_NS = 100_000_000
_SILENCE_NS = 1_000_000_000


@dataclass(slots=True)
class StreamState:
    """Where a stream's reception stands."""

    stream: Stream
    next: int = wire.CURRENT
    t_last_board_ns: int = 0
    asked_ns: int = 0
    heard_ns: int = 0
    granted: int = 0

    @property
    def patience_ns(self) -> int:
        """How long silence is nothing to wonder about."""
        return max(_SILENCE_NS, 5 * self.stream.period_ns)


class BoardLink:
    """A connection to the powerd at ``url`` (its control endpoint, ``tcp://host:port`` or ``ipc://path``)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str, *, client: str = "powerd_client") -> None:
        self.url = url
        self.client = client
        self.description: Description | None = None
        self.streams: dict[int, StreamState] = {}
        self.refused = 0
        """Frames that were damaged or out of turn."""
        self.control = self._socket(context, url)
        self.data: zmq.Socket[bytes] | None = None
        self._context = context
        self._data_endpoint = ""
        self._described_ns = 0

    def _socket(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.rcvhwm = 4 * WINDOW
        socket.maxmsgsize = wire.MAX_PAYLOAD + wire.HEADER_BYTES
        if endpoint.startswith("tcp:"):
            socket.heartbeat_ivl, socket.heartbeat_timeout = 200, 600
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise ConfigError(f"{endpoint!r} is no address of a powerd ({error}): try tcp://HOST:7360") from error
        return socket

    def describe(self, timeout_s: float = 3.0) -> Description:
        """Ask what the daemon measures, and connect to its streams.

        Raises `PeerTimeout` when nobody answers, `VersionError` when it speaks another version of the wire format.
        """
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        self.ask_description()
        while (left_ns := deadline_ns - now_ns()) > 0:
            if self.control.poll(left_ns // 1_000_000 + 1):
                event = self.receive_control()
                if isinstance(event, Description):
                    return event
        raise PeerTimeout(
            f"no powerd answers at {self.url} within {timeout_s:g} s: is it running there, and is that its address?"
        )

    def ask_description(self) -> None:
        """Send a request whose answer `receive_control` will give."""
        self._described_ns = now_ns()
        self._send(self.control, wire.encode(wire.Message("describe", {"client": self.client})))

    def receive_control(self) -> Description | ClockExchange | None:
        """One message of the control socket: a new description (taken over), a finished clock exchange, or neither.

        Raises `VersionError` and, for what the daemon refuses, `PeerError`.
        """
        frame = self.control.recv(zmq.NOBLOCK)
        t4 = now_ns()
        try:
            event = wire.decode(frame)
            if isinstance(event, ClockExchange):
                return ClockExchange(event.epoch, event.t1_host_ns, event.t2_board_ns, event.t3_board_ns, t4)
            if isinstance(event, wire.Message) and event.subject == "description":
                return self._take_description(read_description(event.body))
        except VersionError as error:
            raise VersionError(f"{self.url}: {error}") from error
        except WireError:
            self.refused += 1
            return None
        if isinstance(event, wire.Message) and event.subject == "error":
            raise PeerError(f"the powerd at {self.url} refuses: {event.body.get('message', 'no reason given')}")
        return None

    def _take_description(self, description: Description) -> Description:
        if self.description is None or self.description.epoch != description.epoch:
            # A restarted daemon: everything that it still holds is new to us.
            first = wire.CURRENT if self.description is None else 0
            self.streams = {s.number: StreamState(s, first) for s in description.streams}
            self.description = description
        endpoint = description.data_endpoint
        if endpoint.startswith("tcp://*:"):
            host = self.url.removeprefix("tcp://").rpartition(":")[0]
            endpoint = f"tcp://{host}:{endpoint.rpartition(':')[2]}"
        if endpoint != self._data_endpoint:
            if self.data is not None:
                self.data.close()
            self.data = self._socket(self._context, endpoint)
            self._data_endpoint = endpoint
        return description

    def exchange(self, timeout_ms: int = 3) -> ClockExchange | None:
        """One exchange of four timestamps, or None when the answer does not come at once (it may come later)."""
        t1 = now_ns()
        if not self._send(self.control, wire.encode(ClockExchange(0, t1))):
            return None
        if not self.control.poll(timeout_ms):
            return None
        event = self.receive_control()
        return event if isinstance(event, ClockExchange) and event.t1_host_ns == t1 else None

    def ask(self) -> None:
        """Ask for what is missing wherever it is time to."""
        if self.description is None or self.data is None:
            return
        now = now_ns()
        for state in self.streams.values():
            silent = now - max(state.heard_ns, state.asked_ns) > state.patience_ns
            fresh = state.asked_ns == 0
            used = state.next != wire.CURRENT and state.granted - state.next < WINDOW // 2
            if fresh or silent:
                self._want(state, reset=True)
                if silent and now - self._described_ns > _SILENCE_NS:
                    self.ask_description()
            elif used and now - state.asked_ns > _WANT_AGAIN_NS // 10:
                self._want(state, reset=False)

    def _want(self, state: StreamState, *, reset: bool) -> None:
        assert self.description is not None
        assert self.data is not None
        want = wire.Want(state.stream.number, self.description.epoch, state.next, WINDOW, reset)
        if self._send(self.data, wire.encode(want)):
            state.asked_ns = now_ns()
            if state.next != wire.CURRENT:
                state.granted = state.next + WINDOW

    def _send(self, socket: zmq.Socket[bytes], frame: bytes) -> bool:
        try:
            socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self, limit: int = 256) -> Iterator[tuple[Block | Gap, bytes]]:
        """Whatever has arrived in turn, at most ``limit`` frames, each with its bytes."""
        for _ in range(limit):
            if self.data is None:
                return
            try:
                frame = self.data.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                event = wire.decode(frame)
            except WireError:
                self.refused += 1
                continue
            if isinstance(event, Block | Gap) and self._is_next(event):
                yield event, frame

    def _is_next(self, event: Block | Gap) -> bool:
        if self.description is None or event.epoch != self.description.epoch:
            if now_ns() - self._described_ns > _WANT_AGAIN_NS:
                self.ask_description()
            return False
        state = self.streams.get(event.stream)
        if state is None:
            self.refused += 1
            return False
        state.heard_ns = now_ns()
        if state.next == wire.CURRENT:
            state.next = event.sequence
            state.granted = event.sequence + WINDOW
        if event.sequence != state.next:
            self.refused += 1
            # Behind: a repetition after a reset. Ahead: a frame was lost on the way, so go back to it.
            if event.sequence > state.next and state.heard_ns - state.asked_ns > _WANT_AGAIN_NS:
                self._want(state, reset=True)
            return False
        state.next += event.span if isinstance(event, Gap) else 1
        state.t_last_board_ns = event.t_last_ns
        return True

    def close(self) -> None:
        self.control.close()
        if self.data is not None:
            self.data.close()
