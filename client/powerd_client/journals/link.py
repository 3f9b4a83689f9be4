"""The link to one powerd: its sockets, the keys for them, clock exchanges, and the streams by pull and resume.

A link has three sockets. `Connection.control` of the URL carries questions and answers; the description that it brings
says where data and clock are. Nothing is lost while the daemon's ring holds it: every stream is asked for from the next
number that is missing, and a number out of turn, a silence or a reconnection only make the link ask again. Of an epoch
that is over (powerd was started anew, or another board answers) the rest is fetched while the new one already flows.

A link never waits, but for `BoardLink.describe` and for a few milliseconds in `BoardLink.exchange`.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import zmq

from powerd_client.host.hostclock import now_ns
from powerd_client.host.ownership import read_small
from powerd_core import wire
from powerd_core.clock_comparison import DRIFT_PPM
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, VersionError, WireError
from powerd_core.keys import Credentials, explain_refusal, find_credentials, keys_directory, read_monitor
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Description, Gap
from powerd_core.protocol import OTHER_BOARD, RING_LOST, SILENCE_NS, Backfill, PastEpoch, StreamReceiver
from powerd_core.serde import read_description

_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OTHER_MECHANISM = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_HUNG_UP = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_HANG_UPS = 3
"""A powerd that ends hangs up once; one that cannot read what we send, at every attempt."""
_QUESTIONS = 8
"""So many questions may wait for a connection: those of a long cut would all be answered when it is over."""
_DEAF_NS, _REFUSED_NS = 2_000_000_000, 1_000_000_000
"""A socket on which nothing has come for so long (or that was refused) is connected anew: libzmq gives up for good on a
peer that refused it or broke the protocol, be it that the way damaged a single byte."""
_OPEN_EXCHANGES = 64
"""Exchanges that may wait for their answers; on a slow way there are always some."""
_DESCRIBE_AGAIN_NS = 100_000_000
_LATEST = 10
"""Exchanges that say what the offset of a clock is now; the run file has a better estimate."""
_STEP_NS = 1_000_000
"""Two exchanges whose offsets are farther apart than they can be, and this for the clocks' drift: one has stepped."""


def credentials_for(url: str, keys: str | os.PathLike[str] | None = None) -> Credentials | None:
    """What the directory ``keys`` (default: $POWERD_KEYS, else ~/.config/powerd) has for the board at ``url``.

    None for a board that it does not know: that one must do without keys. Raises `ConfigError`.
    """
    directory = Path(keys or keys_directory(os.environ, str(Path.home()))).expanduser().absolute()
    return find_credentials(url, str(directory), lambda name, is_secret: _read_key(directory / name, is_secret))


def _read_key(path: Path, is_secret: bool) -> str | None:
    """A file of keys, None when there is none. Refuses what others could have read or changed."""
    try:
        mode = path.stat().st_mode
        if is_secret and mode & 0o077:
            raise ConfigError(f"{path}: others could read this secret: run `chmod 600 {path}`, or make new keys")
        for place, its_mode in ((path, mode), (path.parent, path.parent.stat().st_mode)):
            if its_mode & 0o022:
                raise ConfigError(f"{place}: others can change it: run `chmod go-w {place}` and check the keys")
        return read_small(path).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


class Connection:
    """A connection to one endpoint, to be used through ``socket``: connected, refused, gone silent, connected anew."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, credentials: Credentials | None, queue: int
    ) -> None:
        """At most ``queue`` messages wait for it to come about. Raises `ConfigError` for what is no endpoint."""
        self.endpoint = endpoint
        self.heard_ns = 0
        """When something came last, or it was connected; 0 before anybody waited for something."""
        self._credentials = credentials
        self._monitor: zmq.Socket[bytes] | None = None
        self._hang_ups = 0
        self._refusal: str | None = None
        self.socket = socket = context.socket(zmq.DEALER)
        socket.linger = 0
        # What was asked for bounds what waits: a window of each stream. With less room libzmq stops reading, misses
        # heartbeats, connects anew, and aborts the process (zeromq/libzmq issue 3937; 4.3.5).
        socket.sndhwm, socket.rcvhwm = queue, 0
        socket.maxmsgsize = wire.MAX_PAYLOAD + wire.HEADER_BYTES
        if endpoint.startswith("tcp:"):
            socket.heartbeat_ivl, socket.heartbeat_timeout = 200, 600
            # The kernel's own patience grows during a long cut; the first moment after it shall do.
            socket.connect_timeout, socket.handshake_ivl = 1000, 2000
            socket.ipv6 = "[" in endpoint
            if credentials is not None:
                socket.set(zmq.CURVE_PUBLICKEY, credentials.own.public.encode())
                socket.set(zmq.CURVE_SECRETKEY, credentials.own.secret.encode())
                socket.set(zmq.CURVE_SERVERKEY, credentials.board.encode())
            self._monitor = socket.get_monitor_socket(
                _DENIED | _OTHER_MECHANISM | _HUNG_UP | zmq.EVENT_HANDSHAKE_SUCCEEDED
            )
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"{endpoint!r} is no address of a powerd ({error}): try tcp://HOST:7360") from error

    def send(self, event: wire.Event) -> bool:
        """Whether there was room for it."""
        try:
            self.socket.send(wire.encode(event), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def refusal(self) -> str | None:
        """Why the other side refused our keys at the last attempt, and what to do; None when it did not.

        Ask now and then: when some two thousand events wait to be looked at, libzmq's own thread waits too, and nothing
        goes through any connection of its context."""
        while self._monitor is not None and self._monitor.poll(0):
            event, _ = read_monitor(self._monitor.recv_multipart(zmq.NOBLOCK))
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._hang_ups, self._refusal = 0, None
                continue
            self._hang_ups += event == _HUNG_UP
            if event != _HUNG_UP or (self._credentials is not None and self._hang_ups >= _HANG_UPS):
                self._refusal = explain_refusal(self.endpoint, self._credentials, is_denied=event == _DENIED)
        return self._refusal

    def renew(self, now: int, patience_ns: int = _DEAF_NS) -> bool:
        """Connect anew where it seems to be connected to nobody. The first call begins to wait for something."""
        self.heard_ns = self.heard_ns or now
        is_deaf = now - self.heard_ns > (_REFUSED_NS if self.refusal() else patience_ns)
        if is_deaf:
            self.reconnect()
        return is_deaf

    def reconnect(self) -> None:
        """Connect anew."""
        self.heard_ns = now_ns()
        for connect in (self.socket.disconnect, self.socket.connect):
            # libzmq may have forgotten it already; and it could be connected once: the next attempt is soon.
            with contextlib.suppress(zmq.ZMQError):
                connect(self.endpoint)

    def close(self) -> None:
        """Let go of the connection."""
        if self._monitor is not None:
            self.refusal()  # libzmq may wait for room for an event, under a lock that the next line needs
            self.socket.disable_monitor()
            self._monitor.close()
        self.socket.close()


class Exchanges:
    """Clock exchanges with one powerd: answered at once, later, or never, and what they tell of the board's clock.

    Asks and takes answers on the clock socket that each call is given.
    """

    def __init__(self) -> None:
        self.refused = 0
        """Frames that were none."""
        self.heard_ns = 0
        """When anything came last."""
        self._open: deque[int] = deque(maxlen=_OPEN_EXCHANGES)
        self._late: list[ClockExchange] = []
        self._latest: dict[int, deque[ClockExchange]] = {}
        """By epoch, since its clock was last seen to step."""
        self._quickest: dict[int, ClockExchange] = {}
        """Of these. It is asked for with each frame."""

    def make(self, clock: zmq.Socket[bytes], timeout_ms: int) -> ClockExchange | None:
        """One exchange, or None when the answer does not come at once: it is then among `late`."""
        t1 = now_ns()
        try:
            clock.send(wire.encode(ClockExchange(0, t1)), zmq.NOBLOCK)
        except zmq.Again:
            return None
        self._open.append(t1)
        # Bounded by time too: whoever answers without end must not keep us here.
        while clock.poll(timeout_ms) and now_ns() - t1 < 10 * timeout_ms * 1_000_000:
            if (exchange := self._take(clock)) is not None:
                if exchange.t1_host_ns == t1:
                    return exchange
                self._late.append(exchange)
        return None

    def late(self, clock: zmq.Socket[bytes]) -> list[ClockExchange]:
        """Those whose answers took longer than `make` waited. Ask as soon as the socket has something."""
        for _ in range(_OPEN_EXCHANGES):
            if not clock.poll(0):
                break
            if (exchange := self._take(clock)) is not None:
                self._late.append(exchange)
        late, self._late = self._late, []
        return late

    def offset_ns(self, epoch: int) -> float | None:
        """Host minus board time by the quickest of the latest exchanges; None before there are any."""
        quickest = self._quickest.get(epoch)
        return None if quickest is None else quickest.offset_ns

    def least_offset_ns(self, epoch: int) -> float | None:
        """The least that host minus board time can be by any of the latest exchanges; None before there are any."""
        latest = self._latest.get(epoch)
        if not latest:
            return None
        drift, end_ns = DRIFT_PPM * 1e-6, latest[-1].t4_host_ns
        return max(e.offset_ns - e.delay_ns / 2 - drift * (end_ns - e.t1_host_ns) for e in latest)

    def board_now_ns(self, epoch: int) -> int:
        """Now on the clock of an epoch."""
        offset = self.offset_ns(epoch)
        return UNKNOWN_TIME_NS if offset is None else now_ns() - round(offset)

    def _take(self, clock: zmq.Socket[bytes]) -> ClockExchange | None:
        frame = clock.recv(zmq.NOBLOCK)
        t4 = self.heard_ns = now_ns()
        try:
            event = wire.decode(frame)
        except WireError:
            self.refused += 1
            return None
        if not isinstance(event, ClockExchange) or event.t1_host_ns not in self._open:
            return None
        self._open.remove(event.t1_host_ns)
        exchange = replace(event, t4_host_ns=t4)
        latest = self._latest.setdefault(exchange.epoch, deque(maxlen=_LATEST))
        if (
            latest
            and abs(exchange.offset_ns - latest[-1].offset_ns) > exchange.delay_ns + latest[-1].delay_ns + _STEP_NS
        ):
            latest.clear()
            self._quickest.pop(exchange.epoch, None)
        if exchange.delay_ns >= 0:  # else its clock stepped in the middle of it
            latest.append(exchange)
            self._quickest[exchange.epoch] = min(latest, key=lambda e: e.delay_ns)
        return exchange


@dataclass(slots=True)
class LinkMemory:
    """What an earlier recorder's journal knows of an address: the link goes on from there."""

    description: Description
    streams: dict[int, StreamReceiver]
    earlier: dict[int, PastEpoch] = field(default_factory=dict)
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
        self.streams: dict[int, StreamReceiver] = {}
        self.earlier = Backfill(url)
        self.replayed = 0
        """Frames that came late: asked for again, or held back by a cut."""
        self._refused = 0
        self._context = context
        self._credentials = credentials_for(url, keys)
        self._control = Connection(context, url, self._credentials, _QUESTIONS)
        self._data: Connection | None = None
        self._clock: Connection | None = None
        self._described_ns = 0
        self._exchanges = Exchanges()
        if memory is not None:
            self.description, self.streams = memory.description, memory.streams
            self.earlier.open, self.earlier.known = memory.earlier, memory.known
            self._connect_streams(memory.description)

    @property
    def control(self) -> zmq.Socket[bytes]:
        """Questions and their answers: `receive_control` when something has come."""
        return self._control.socket

    @property
    def data(self) -> zmq.Socket[bytes] | None:
        """The streams, once it has been described: `receive` when something has come."""
        return self._data.socket if self._data is not None else None

    @property
    def clock(self) -> zmq.Socket[bytes] | None:
        """Clock exchanges, once it has been described: `late_exchanges` when something has come."""
        return self._clock.socket if self._clock is not None else None

    def _connect_streams(self, description: Description) -> None:
        """Connect to the endpoints of a description, where that is not done yet. Raises `PeerError` and `ConfigError`
        for those that cannot be used.
        """
        self._data = self._connect(description.data_endpoint, self._data, 1000)
        self._clock = self._connect(description.clock_endpoint, self._clock, _QUESTIONS)

    def _connect(self, endpoint: str, old: Connection | None, queue: int) -> Connection:
        if endpoint.startswith("tcp://*:"):  # a port of the host at which the control socket answered
            host = self.url.removeprefix("tcp://").rpartition(":")[0]
            endpoint = f"tcp://{host}:{endpoint.rpartition(':')[2]}"
        elif self.url.startswith("tcp:"):
            # A board must not send its clients to other machines, nor to sockets of their own.
            raise PeerError(f"the powerd at {self.url} names the address {endpoint[:200]!r}: only a port is taken")
        if old is not None and old.endpoint == endpoint:
            return old
        # The new one first: an endpoint that cannot be used leaves us the one that we have.
        connection = Connection(self._context, endpoint, self._credentials, queue)
        if old is not None:
            old.close()
        return connection

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
        raise PeerTimeout(
            f"no powerd answers at {self.url} within {timeout_s:g} s: is it running there, and is that its address?"
        )

    def refusal(self) -> str | None:
        """Why the board refuses this client's keys, and what to do; None when it does not."""
        connections = [c for c in (self._control, self._data, self._clock) if c is not None]
        return next((reason for c in connections if (reason := c.refusal())), None)

    def ask_description(self) -> None:
        """Send a request whose answer `receive_control` will give."""
        self._described_ns = now_ns()
        self._control.send(wire.Message("describe", {"client": self.client}))

    def receive_control(self) -> Description | None:
        """One message of the control socket: a description (taken over), or something else.

        Raises `VersionError`, and `PeerError` for what the daemon refuses and a description that cannot be read.
        """
        frame = self.control.recv(zmq.NOBLOCK)
        try:
            event = wire.decode(frame)
            if not isinstance(event, wire.Message):
                return None
            if event.subject == "epochs" and self.description is not None:
                self.earlier.take_answer(event.body, self.description.epoch)
        except VersionError as error:
            raise VersionError(f"{self.url}: {error}") from error
        except WireError:
            self._refused += 1
            return None
        if event.subject == "error":
            raise PeerError(f"the powerd at {self.url} refuses: {event.body.get('message', 'no reason given')}")
        if event.subject != "description":
            return None
        try:
            description = read_description(event.body)
        except WireError as error:
            raise PeerError(f"{self.url} says what this release of powerd cannot read: {error}") from error
        self._take_description(description)
        return description

    def _take_description(self, new: Description) -> None:
        old = self.description
        if old is None or old.epoch != new.epoch:
            returned = self.earlier.take_back(new.epoch)
            same_board = old is not None and old.board == new.board
            if old is not None:
                cause = RING_LOST if same_board else OTHER_BOARD
                self.earlier.leave(PastEpoch(old, self.streams, self._exchanges.board_now_ns(old.epoch), cause))
            # A restarted daemon: everything that it holds is new to us. Of a strange board only what comes from now on.
            first = 0 if same_board else wire.CURRENT
            self.streams = returned or {s.number: StreamReceiver(s, new.epoch, first) for s in new.streams}
            for state in self.streams.values():
                state.end, state.asked_ns = None, 0
            self.description = new
            self.earlier.begin(new, live=True)
        self._connect_streams(new)

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
        """Host minus board time, as well as it is known by now; over a bad network that is off by milliseconds."""
        return None if self.description is None else self._exchanges.offset_ns(self.description.epoch)

    @property
    def least_offset_ns(self) -> float | None:
        """The least that host minus board time can be: what it says of a run's end is certain."""
        return None if self.description is None else self._exchanges.least_offset_ns(self.description.epoch)

    def ask(self) -> None:
        """Ask for what is missing wherever it is time to."""
        now = now_ns()
        self._renew(now)
        if self.description is None:
            return
        for state in chain(self.streams.values(), self.earlier.receivers()):
            self._ask_for(state, now)
        if self.earlier.open and self.earlier.question_is_due(now):
            self._control.send(wire.Message("epochs", {"client": self.client}))

    def _renew(self, now: int) -> None:
        """Connect anew what seems to be connected to nobody; the control socket, which is mostly silent, with them."""
        is_refused = self._control.refusal() is not None
        if self._data is None or self._clock is None:
            if is_refused:
                self._control.renew(now, _DEAF_NS)
            return
        slow_ns = min((5 * s.stream.period_ns for s in self.streams.values()), default=0)
        self._clock.heard_ns = max(self._clock.heard_ns, self._exchanges.heard_ns)
        are_deaf = self._data.renew(now, max(_DEAF_NS, slow_ns)), self._clock.renew(now, _DEAF_NS)
        if any(are_deaf):
            self._control.reconnect()

    def _ask_for(self, state: StreamReceiver, now: int) -> None:
        if state.epoch in self.earlier.open and state.end is None:
            return  # it is not known yet whether anybody holds it
        want = state.due(now)
        if want is None or self._data is None:
            return
        silent = state.is_silent(now)
        if self._data.send(want):
            state.asked(want, now)
        if silent and now - self._described_ns > SILENCE_NS:
            self.ask_description()

    def receive(self, limit: int = 256) -> Iterator[tuple[Block | Gap, bytes]]:
        """Whatever has arrived in turn, at most ``limit`` frames, each with its bytes."""
        for _ in range(limit):
            if self._data is None:
                return
            try:
                frame = self._data.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._data.heard_ns = now_ns()
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
        state = self.streams.get(event.stream) if live else self.earlier.receiver(event.epoch, event.stream)
        if state is None:
            self._refused += live
            if event.epoch not in self.earlier.known and now - self._described_ns > _DESCRIBE_AGAIN_NS:
                self.ask_description()
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
        for connection in (self._control, self._data, self._clock):
            if connection is not None:
                connection.close()
