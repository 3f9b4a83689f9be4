"""Talking with a node: commands that are answered, echoes for the clocks, and all the rest as events."""

from __future__ import annotations

from typing import TypeVar

from powerd_core.errors import ClockError, SensorError, VersionError, WireError
from powerd_daemon.clock import Clock
from powerd_daemon.serial.framing import Deframer, encode_frame
from powerd_daemon.serial.node_clock import NodeTime, Unwrapper
from powerd_daemon.serial.port import Port
from powerd_daemon.serial.protocol import (
    Answer,
    EchoAnswer,
    Event,
    Kind,
    NodeDescription,
    decode_body,
    encode_command,
)

E = TypeVar("E", Answer, NodeDescription)

TRIES = 4
ANSWER_NS = 400_000_000
OUTSTANDING = 8
MAX_EVENTS = 20_000
"""Of what comes while a command waits for its answer: 40 s of scans."""


class NodeLink:
    """One open port with a node behind it. ``name`` begins every error."""

    def __init__(self, port: Port, clock: Clock, name: str) -> None:
        self._port, self._clock, self._name = port, clock, name
        self.deframer = Deframer()
        self.unknown = 0
        """Good frames whose contents could not be used."""
        self.time = NodeTime()
        self.unwrapper = Unwrapper()
        self._events: list[tuple[int, Event]] = []
        self._echoes: dict[int, int] = {}
        # Answers to whoever had the port before must not be taken for ours.
        self._sequence = clock.now_ns() // 1_000_000 & 0xFFFF

    def events(self, timeout_ns: int = 0) -> list[tuple[int, Event]]:
        """What has come, each with the board's time of its arrival; waits for at most ``timeout_ns``."""
        self._receive(timeout_ns)
        found, self._events = self._events, []
        return found

    def ask(self, kind: Kind, want: type[E], payload: bytes = b"") -> E:
        """Send a command until it is answered. Raises `SensorError` when it is not, or is refused.

        Everything that came before the answer is dropped: a node that was left alone may still hold old readings.
        """
        for _ in range(TRIES):
            sequence = self._send(kind, payload)
            give_up_ns = self._clock.now_ns() + ANSWER_NS
            while (left_ns := give_up_ns - self._clock.now_ns()) > 0:
                seen = len(self._events)
                self._receive(left_ns)
                for i in range(seen, len(self._events)):
                    event = self._events[i][1]
                    if isinstance(event, Answer | NodeDescription) and event.sequence == sequence:
                        del self._events[: i + 1]
                        if isinstance(event, want):
                            return self._accepted(kind, event)
                        raise SensorError(f"{self._name}: the node refused {kind.name.lower()}: {_said(event)}")
        raise SensorError(
            f"{self._name}: no sensor node answers: is the firmware on it (firmware/README.md), and is this its port?"
        )

    def tell(self, kind: Kind) -> None:
        """Send a command and wait for nothing."""
        self._send(kind)

    def exchange(self, wait_ns: int) -> None:
        """Send an echo and wait a little for the answer; one that comes later counts too, for what it is worth."""
        t1_ns = self._clock.now_ns()
        sequence = self._send(Kind.ECHO)
        self._echoes[sequence] = t1_ns
        while len(self._echoes) > OUTSTANDING:
            del self._echoes[next(iter(self._echoes))]
        give_up_ns = t1_ns + wait_ns
        while sequence in self._echoes and (left_ns := give_up_ns - self._clock.now_ns()) > 0:
            self._receive(left_ns)

    def _send(self, kind: Kind, payload: bytes = b"") -> int:
        self._sequence = self._sequence + 1 & 0xFFFF
        # The zero in front ends whatever garbage the node may have received before.
        self._port.write(b"\0" + encode_frame(encode_command(kind, self._sequence, payload)))
        return self._sequence

    def _receive(self, timeout_ns: int) -> None:
        data = self._port.read(timeout_ns)
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
            elif len(self._events) < MAX_EVENTS:
                self._events.append((arrival_ns, event))

    def _compare(self, echo: EchoAnswer, arrival_ns: int) -> None:
        t1_ns = self._echoes.pop(echo.sequence, None)
        if t1_ns is None:
            return
        sent_us = self.unwrapper.us(echo.sent_us)
        received_us = sent_us - ((echo.sent_us - echo.received_us) & 0xFFFFFFFF)
        try:
            self.time.add(t1_ns, received_us, sent_us, arrival_ns)
        except ClockError as error:
            raise SensorError(f"{self._name}: {error}") from error

    def _accepted(self, kind: Kind, event: E) -> E:
        if isinstance(event, Answer) and event.result:
            raise SensorError(f"{self._name}: the node refused {kind.name.lower()}: {event.said}")
        return event


def _said(event: Answer | NodeDescription) -> str:
    return event.said if isinstance(event, Answer) else "it described itself instead"
