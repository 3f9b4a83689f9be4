"""One powerd as its client sees it: description, clock exchanges, and the streams by pull and resume.

Nothing is lost while the daemon's ring holds it: every stream is asked for from the next number that is missing, and a
number out of turn, a silence or a reconnection only make the link ask again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

import zmq

from powerd_client.earlier import OTHER_BOARD, RING_LOST, Earlier, EarlierEpochs
from powerd_client.exchanges import Exchanges
from powerd_client.hostclock import now_ns
from powerd_client.keys import RefusalWatch, apply_credentials, credentials_for
from powerd_client.pull import SILENCE_NS, WINDOW, StreamState
from powerd_core import wire
from powerd_core.document import read_description
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, VersionError, WireError
from powerd_core.model import Block, ClockExchange, Description, Gap

_DESCRIBE_AGAIN_NS = 100_000_000
_DEAF_NS = 2_000_000_000
"""A socket on which nothing has come for so long is connected anew: libzmq gives up for good on a peer that broke the
protocol, be it that the way damaged a single byte."""
_QUESTIONS = 8
"""So many questions may wait for a connection: those of a long cut would all be answered when it is over."""


@dataclass(slots=True)
class LinkMemory:
    """What an earlier recorder's journal knows of an address: the link goes on from there."""

    description: Description
    streams: dict[int, StreamState]
    earlier: dict[int, Earlier] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)


class BoardLink:
    """A connection to the powerd at ``url`` (its control endpoint, ``tcp://host:port`` or ``ipc://path``).

    With ``memory`` it need not be described before it asks for what is missing.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        url: str,
        *,
        client: str = "powerd_client",
        memory: LinkMemory | None = None,
        keys: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = url
        self.client = client
        self.description: Description | None = None
        self.streams: dict[int, StreamState] = {}
        self.earlier = EarlierEpochs(url)
        self._refused = 0
        self.replayed = 0
        """Frames that came late: asked for again, or held back by a cut."""
        self._credentials = credentials_for(url, keys)
        self._watches: dict[zmq.Socket[bytes], RefusalWatch] = {}
        self._heard_ns: dict[zmq.Socket[bytes], int] = {}
        """When something came last on a socket, or it was connected."""
        self.control = self._socket(context, url, queue=_QUESTIONS)
        self.data: zmq.Socket[bytes] | None = None
        self.clock: zmq.Socket[bytes] | None = None
        self._context = context
        self._data_endpoint = self._clock_endpoint = ""
        self._described_ns = 0
        self._questions = 0
        """For the description, not answered yet."""
        self._unreadable = ""
        """What was wrong with the last description that could not be taken over."""
        self._exchanges = Exchanges()
        if memory is not None:
            self.description, self.streams = memory.description, memory.streams
            self.earlier.open, self.earlier.known = memory.earlier, memory.known
            self._connect(memory.description)

    def _socket(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, queue: int = 1000
    ) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm, socket.rcvhwm = queue, 4 * WINDOW
        socket.maxmsgsize = wire.MAX_PAYLOAD + wire.HEADER_BYTES
        if endpoint.startswith("tcp:"):
            socket.heartbeat_ivl, socket.heartbeat_timeout = 200, 600
            # The kernel's own patience grows during a long cut; the first moment after it shall do.
            socket.connect_timeout, socket.handshake_ivl = 1000, 2000
            socket.ipv6 = "[" in endpoint
            apply_credentials(socket, self._credentials)
            self._watches[socket] = RefusalWatch(socket, endpoint, self._credentials)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._close(socket)
            raise ConfigError(f"{endpoint!r} is no address of a powerd ({error}): try tcp://HOST:7360") from error
        return socket

    def describe(self, timeout_s: float = 3.0, give_up: Callable[[], bool] = lambda: False) -> Description:
        """Ask what the daemon measures, and connect to its streams.

        Raises `PeerTimeout` when nobody answers (or ``give_up``, asked now and then, is true), `PeerError` when our
        keys are refused or its description cannot be read, `VersionError` when it speaks another version of the wire
        format.
        """
        deadline_ns = now_ns() + int(timeout_s * 1e9)
        self.ask_description()
        while (left_ns := deadline_ns - now_ns()) > 0 and not give_up():
            if self.control.poll(min(left_ns // 1_000_000 + 1, 100)):
                event = self.receive_control()
                if isinstance(event, Description):
                    return event
            elif (reason := self.refusal()) is not None:
                raise PeerError(reason)
            elif now_ns() - self._described_ns > SILENCE_NS // 2:
                self.ask_description()  # the first may have gone to a powerd that was just ending
        if self._unreadable:
            raise PeerError(
                f"what the powerd at {self.url} says of itself cannot be read ({self._unreadable}): use the same "
                "release of powerd there and here"
            )
        raise PeerTimeout(
            f"no powerd answers at {self.url} within {timeout_s:g} s: is it running there, and is that its address?"
        )

    def refusal(self) -> str | None:
        """Why the board refuses this client's keys, and what to do; None when it does not."""
        return next((reason for watch in self._watches.values() if (reason := watch.reason())), None)

    def ask_description(self) -> None:
        """Send a request whose answer `receive_control` will give."""
        self._described_ns = now_ns()
        self._questions += 1
        self._send(self.control, wire.encode(wire.Message("describe", {"client": self.client})))

    def receive_control(self) -> Description | None:
        """One message of the control socket: a description (taken over), or something else.

        Raises `VersionError` and, for what the daemon refuses, `PeerError`.
        """
        frame = self.control.recv(zmq.NOBLOCK)
        try:
            event = wire.decode(frame)
            if isinstance(event, wire.Message) and event.subject == "description":
                if not self._questions:
                    self._refused += 1  # nobody asked: epochs shall not come faster than we ask
                    return None
                self._questions -= 1
                try:
                    description = read_description(event.body)
                except WireError as error:
                    self._unreadable = str(error)
                    raise
                return self._take_description(description)
            if isinstance(event, wire.Message) and event.subject == "epochs" and self.description is not None:
                self.earlier.take_answer(event.body, self.description.epoch)
        except VersionError as error:
            raise VersionError(f"{self.url}: {error}") from error
        except WireError:
            self._refused += 1
            return None
        if isinstance(event, wire.Message) and event.subject == "error":
            reason = str(event.body.get("message", "no reason given"))
            if self.description is not None and reason.startswith("unknown subject 'epochs'"):
                with contextlib.suppress(WireError):  # a second answer of this kind says nothing new
                    self.earlier.take_answer({"ready": True, "epochs": []}, self.description.epoch)
                return None
            raise PeerError(f"the powerd at {self.url} refuses: {reason}")
        return None

    def _take_description(self, new: Description) -> Description:
        old = self.description
        if old is None or old.epoch != new.epoch:
            returned = self.earlier.take_back(new.epoch)
            same_board = old is not None and old.board == new.board
            if old is not None:
                cause = RING_LOST if same_board else OTHER_BOARD
                self.earlier.leave(Earlier(old, self.streams, self._exchanges.board_now_ns(old.epoch), cause))
            # A restarted daemon: everything that it holds is new to us. Of a strange board only what comes from now on.
            first = 0 if same_board else wire.CURRENT
            self.streams = returned or {s.number: StreamState(s, new.epoch, first) for s in new.streams}
            for state in self.streams.values():
                state.end, state.asked_ns = None, 0
            self.description = new
            self.earlier.begin(new, live=True)
        self._connect(new)
        return new

    def _connect(self, description: Description) -> None:
        # The new socket first: an endpoint that cannot be used leaves us those that we have.
        if (endpoint := self._reachable(description.data_endpoint)) != self._data_endpoint:
            made = self._socket(self._context, endpoint)
            if self.data is not None:
                self._close(self.data)
            self.data, self._data_endpoint = made, endpoint
        if (endpoint := self._reachable(description.clock_endpoint)) != self._clock_endpoint:
            made = self._socket(self._context, endpoint, queue=_QUESTIONS)
            if self.clock is not None:
                self._close(self.clock)
            self.clock, self._clock_endpoint = made, endpoint

    def _reachable(self, endpoint: str) -> str:
        """An endpoint of the description, with the host at which the control socket answered."""
        if not endpoint.startswith("tcp://*:"):
            if self.url.startswith("tcp:"):
                # A board must not send its clients to other machines, nor to sockets of their own.
                raise PeerError(f"the powerd at {self.url} names the address {endpoint[:200]!r}: only a port is taken")
            return endpoint
        host = self.url.removeprefix("tcp://").rpartition(":")[0]
        return f"tcp://{host}:{endpoint.rpartition(':')[2]}"

    def exchange(self, timeout_ms: int = 3) -> ClockExchange | None:
        """One exchange of four timestamps, or None when the answer does not come at once: see `late_exchanges`."""
        return None if self.clock is None else self._exchanges.make(self.clock, timeout_ms)

    def late_exchanges(self) -> list[ClockExchange]:
        """Those whose answers took longer. Ask as soon as the clock socket has something."""
        return [] if self.clock is None else self._exchanges.late(self.clock)

    @property
    def refused(self) -> int:
        """Frames that were damaged or out of turn."""
        return self._refused + self._exchanges.refused

    @property
    def offset_ns(self) -> float | None:
        """Host minus board time, as well as it is known by now: good enough to know when to stop."""
        return None if self.description is None else self._exchanges.offset_ns(self.description.epoch)

    def ask(self) -> None:
        """Ask for what is missing wherever it is time to."""
        for watch in self._watches.values():
            watch.try_again()
        if self.description is None or self.data is None:
            return
        now = now_ns()
        self._renew_deaf(now)
        for state in chain(self.streams.values(), self.earlier.states()):
            self._ask_for(state, now)
        if self.earlier.open and self.earlier.question_is_due(now):
            self._send(self.control, wire.encode(wire.Message("epochs", {"client": self.client})))

    def _renew_deaf(self, now: int) -> None:
        """Connect anew what seems to be connected to nobody; the control socket, which is mostly silent, with them."""
        slow_ns = min((5 * s.stream.period_ns for s in self.streams.values()), default=0)
        deaf = False
        for socket, endpoint in ((self.data, self._data_endpoint), (self.clock, self._clock_endpoint)):
            if socket is None:
                continue
            heard_ns = self._heard_ns.setdefault(socket, now)
            if socket is self.clock:
                heard_ns = max(heard_ns, self._exchanges.heard_ns)
            if now - heard_ns > (max(_DEAF_NS, slow_ns) if socket is self.data else _DEAF_NS):
                self._renew(socket, endpoint, now)
                deaf = True
        if deaf:
            self._renew(self.control, self.url, now)

    def _renew(self, socket: zmq.Socket[bytes], endpoint: str, now: int) -> None:
        self._heard_ns[socket] = now
        with suppress(zmq.ZMQError):  # libzmq may have forgotten it already
            socket.disconnect(endpoint)
        with suppress(zmq.ZMQError):  # it could be connected once; the next attempt is soon
            socket.connect(endpoint)

    def _ask_for(self, state: StreamState, now: int) -> None:
        if state.epoch in self.earlier.open and state.end is None:
            return  # it is not known yet whether anybody holds it
        want = state.due(now)
        if want is None or self.data is None:
            return
        silent = state.is_silent(now)
        if self._send(self.data, wire.encode(want)):
            state.asked(want, now)
        if silent:
            self._describe_again(now, SILENCE_NS)

    def _describe_again(self, now: int, pause_ns: int) -> None:
        if now - self._described_ns > pause_ns:
            self.ask_description()

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
            self._heard_ns[self.data] = now_ns()
            try:
                event = wire.decode(frame)
            except WireError:
                self._refused += 1
                continue
            if isinstance(event, Block | Gap) and self._is_next(event):
                yield event, frame

    def _is_next(self, event: Block | Gap) -> bool:
        now = now_ns()
        live = self.description is not None and event.epoch == self.description.epoch
        state = self.streams.get(event.stream) if live else self.earlier.state(event.epoch, event.stream)
        if state is None:
            self._refused += live
            if not live and event.epoch not in self.earlier.known:
                self._describe_again(now, _DESCRIBE_AGAIN_NS)
            return False
        replayed = state.replayed
        if not state.take(event, now):
            self._refused += 1
            self._ask_for(state, now)  # a hole is asked for at once
            return False
        offset = self._exchanges.offset_ns(event.epoch)
        late = offset is not None and now - event.t_last_ns - offset > state.patience_ns
        self.replayed += late or state.replayed > replayed
        if state.is_over:
            self.earlier.settle()
        return True

    def take_notes(self) -> list[wire.Event]:
        """What the journal must be told beside what was received: new epochs, and what is lost of earlier ones."""
        notes, self.earlier.notes = self.earlier.notes, []
        return notes

    def close(self) -> None:
        for socket in (self.control, self.data, self.clock):
            if socket is not None:
                self._close(socket)

    def _close(self, socket: zmq.Socket[bytes]) -> None:
        if (watch := self._watches.pop(socket, None)) is not None:
            watch.close()
        self._heard_ns.pop(socket, None)
        socket.close()
