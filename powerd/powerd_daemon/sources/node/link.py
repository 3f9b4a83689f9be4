"""Talking with a node: commands that are answered, echoes for the clocks, and all the rest as events.

The maths of the node's clock are those of `powerd_core.clock`, with the board in the place of the host and the node in
that of the board: an offset is board minus node time. Both are in nanoseconds; the node's is unwrapped. Readings stream
in meanwhile, so only exchanges that were already made count.
"""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError, SensorError, VersionError, WireError
from powerd_core.model import ClockExchange
from powerd_daemon.clock import Clock
from powerd_daemon.sources.node.protocol import (
    TICK_NS,
    Answer,
    Deframer,
    EchoAnswer,
    Event,
    Kind,
    NodeDescription,
    decode_body,
    encode_command,
    encode_frame,
)
from powerd_daemon.sources.port import Port

KEPT = 64
"""Exchanges that count: the last 16 s at four a second."""
E = TypeVar("E", Answer, NodeDescription)
TRIES = 4
ANSWER_NS = 400_000_000
OUTSTANDING = 8


class NodeTime:
    """Maps node times to board times by the exchanges so far.

    Beyond the last exchange the estimate goes on at the rate of the recent ones, inside the guaranteed bound, which
    there grows with the drift limit.
    """

    def __init__(self) -> None:
        self._exchanges: deque[ClockExchange] = deque(maxlen=KEPT)
        self._piece: ClockPiece | None = None
        self._us: int | None = None

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def latest_ns(self) -> int:
        """Node time of the last exchange."""
        return self._exchanges[-1].t_board_ns

    @property
    def half_ns(self) -> int:
        """Half-width of what is guaranteed of the node's clock at the last exchange."""
        return self.board_ns(self.latest_ns)[1]

    def unwrapped_us(self, time_us: int) -> int:
        """A node time of 32 bits as an ever-growing count of microseconds. Two of them must be less than 35 minutes
        apart; they may come slightly out of order."""
        if self._us is None:
            self._us = time_us + (1 << 32)  # room below, for a time before the first
        unwrapped = self._us + (time_us - self._us + (1 << 31)) % (1 << 32) - (1 << 31)
        self._us = max(self._us, unwrapped)
        return unwrapped

    def add(self, t1_board_ns: int, received_us: int, sent_us: int, t4_board_ns: int) -> None:
        """An echo: sent and received by the board, received and sent by the node (cut to whole microseconds).

        Raises `ClockError` when no offset agrees with all exchanges, as one of the clocks stepped.
        """
        # The node received within the microsecond after its stamp: the later end keeps the interval a guarantee.
        exchange = ClockExchange(0, t1_board_ns, (received_us + 1) * TICK_NS, sent_us * TICK_NS, t4_board_ns)
        self._exchanges.append(exchange)
        pieces = map_clock(tuple(self._exchanges)) if exchange.delay_ns >= 0 else ()
        if len(pieces) != 1:
            raise ClockError("the node's clock stepped against the board's")
        self._piece = pieces[0]

    def board_ns(self, node_ns: int) -> tuple[int, int]:
        """The best estimate of a node time on the board's clock, and the half-width of its guaranteed bound."""
        if self._piece is None:
            raise ClockError("there is no exchange with the node yet")
        offset, low, high = self._piece.at(node_ns)
        # From the estimate to the farther end: the estimate need not stand in the middle.
        return node_ns + round(offset), round(max(high - offset, offset - low))


class NodeLink:
    """One open port with a node behind it. ``name`` begins every error."""

    def __init__(self, port: Port, clock: Clock, name: str) -> None:
        self.port, self._clock, self._name = port, clock, name
        self.deframer = Deframer()
        self.unknown = 0
        """Good frames whose contents could not be used."""
        self.time = NodeTime()
        self._events: list[tuple[int, Event]] = []
        self._echoes: dict[int, int] = {}
        # Answers to whoever had the port before must not be taken for ours.
        self._sequence = clock.now_ns() // 1_000_000 & 0xFFFF

    def events(self, timeout_ns: int = 0) -> list[tuple[int, Event]]:
        """What has come, each with the board's time of its arrival; waits for at most ``timeout_ns``."""
        self._receive(timeout_ns)
        events, self._events = self._events, []
        return events

    def ask(self, kind: Kind, want: type[E], payload: bytes = b"") -> E:
        """Send a command until it is answered. Raises `SensorError` when it is not, or is refused.

        Everything that came before the answer is dropped: a node that was left alone may still hold old readings.
        """
        for _ in range(TRIES):
            sequence = self.send(kind, payload)
            give_up_ns = self._clock.now_ns() + ANSWER_NS
            while (left_ns := give_up_ns - self._clock.now_ns()) > 0:
                events = self.events(left_ns)
                for i, (_, event) in enumerate(events):
                    if not isinstance(event, Answer | NodeDescription) or event.sequence != sequence:
                        continue
                    if isinstance(event, Answer) and event.result:
                        raise SensorError(f"{self._name}: the node refused {kind.name.lower()}: result {event.result}")
                    if isinstance(event, want):
                        self._events = events[i + 1 :]
                        return event
        raise SensorError(f"{self._name}: no sensor node answers: is the firmware on it (firmware/README.md)?")

    def exchange(self, wait_ns: int) -> None:
        """Send an echo and wait a little for the answer; one that comes later counts too, for what it is worth."""
        t1_ns = self._clock.now_ns()
        sequence = self.send(Kind.ECHO)
        self._echoes[sequence] = t1_ns
        if len(self._echoes) > OUTSTANDING:
            del self._echoes[next(iter(self._echoes))]
        give_up_ns = t1_ns + wait_ns
        while sequence in self._echoes and (left_ns := give_up_ns - self._clock.now_ns()) > 0:
            self._receive(left_ns)

    def send(self, kind: Kind, payload: bytes = b"") -> int:
        """Send a command and wait for nothing. Returns its sequence number."""
        self._sequence = self._sequence + 1 & 0xFFFF
        # The zero in front ends whatever garbage the node may have received before.
        self.port.write(b"\0" + encode_frame(encode_command(kind, self._sequence, payload)))
        return self._sequence

    def _receive(self, timeout_ns: int) -> None:
        data = self.port.read(timeout_ns)
        arrival_ns = self._clock.now_ns()
        for body in self.deframer.feed(data):
            try:
                event = decode_body(body)
            except VersionError as error:
                raise SensorError(f"{self._name}: {error}") from error
            except WireError:
                self.unknown += 1
                continue
            if isinstance(event, EchoAnswer):
                self._compare(event, arrival_ns)
            else:
                self._events.append((arrival_ns, event))

    def _compare(self, echo: EchoAnswer, arrival_ns: int) -> None:
        t1_ns = self._echoes.pop(echo.sequence, None)
        if t1_ns is None:
            return
        sent_us = self.time.unwrapped_us(echo.sent_us)
        received_us = sent_us - ((echo.sent_us - echo.received_us) & 0xFFFFFFFF)
        try:
            self.time.add(t1_ns, received_us, sent_us, arrival_ns)
        except ClockError as error:
            raise SensorError(f"{self._name}: {error}") from error
