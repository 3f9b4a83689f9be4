"""A WT310E in software, strict about its protocol: bytes in and out, on any clock.

What it is strict about: messages end with CR LF, unknown headers and bad data go to the error queue and get no answer,
a message that comes before the last answer was sent throws that answer away, values exist only after an update with the
present settings, inputs clip at their ranges, ranges cannot change while it integrates, and it hears nothing for 0.2 s
after an integration was started.
"""

from __future__ import annotations

from collections import deque

from powerd_daemon.meter.simulated_commands import Commands
from powerd_daemon.meter.simulated_inputs import Input, Inputs, Refused
from powerd_daemon.meter.wt310 import START_S

SYNTAX = (102, "Syntax error")
INTERRUPTED, DEAF = (410, "Query INTERRUPTED"), (810, "Busy")


class SimWt310:
    """`receive` and `transmit` are told the time; whatever is due until then has happened.

    ``byte_ns`` is one character on the wire, both ways (0: a bus that takes no time).
    """

    def __init__(self, connected: Input, t_ns: int, *, byte_ns: int = 1_041_667, latency_ns: int = 2_000_000) -> None:
        self.byte_ns = byte_ns
        self.latency_ns = latency_ns
        self.heard: list[str] = []
        """Every message that was carried out."""
        self.commands = Commands(connected, t_ns)
        self._time_ns = t_ns
        self._received = b""
        self._line_free_ns = t_ns
        self._messages: deque[tuple[int, list[str]]] = deque()
        self._current: tuple[list[str], list[str]] | None = None
        self._sending: deque[tuple[int, bytes]] = deque()

    @property
    def inputs(self) -> Inputs:
        """What it measures."""
        return self.commands.inputs

    @property
    def errors(self) -> deque[tuple[int, str]]:
        """Its error queue."""
        return self.commands.errors

    def receive(self, data: bytes, t_ns: int) -> None:
        """Bytes that the other side began to send at ``t_ns``."""
        self._advance(t_ns)
        at_ns = max(t_ns, self._line_free_ns)
        for value in data:
            at_ns += self.byte_ns
            self._received += bytes((value,))
            if value not in b"\r\n":
                continue
            if self._received.endswith(b"\r\n"):
                self._accept(self._received[:-2], at_ns)
            elif value == 0x0A and self._received.strip():
                self.errors.append(SYNTAX)
            elif value == 0x0D:
                continue
            self._received = b""
        self._line_free_ns = at_ns

    def transmit(self, t_ns: int) -> bytes:
        """What has reached the other side by ``t_ns`` and was not taken before."""
        self._advance(t_ns)
        arrived = b""
        while self._sending and self._sending[0][0] <= t_ns:
            arrived += self._sending.popleft()[1]
        return arrived

    def _accept(self, message: bytes, t_ns: int) -> None:
        try:
            text = message.decode("ascii").strip()
        except UnicodeDecodeError:
            self.errors.append(SYNTAX)
            return
        if b"\r" in message:
            self.errors.append(SYNTAX)
        elif text:
            self._messages.append((t_ns, [unit.strip() for unit in text.split(";")]))

    def _advance(self, t_ns: int) -> None:
        while True:
            ready_ns = self._ready_ns()
            if ready_ns is not None and ready_ns <= min(t_ns, self.inputs.update_ns):
                self._time_ns = max(self._time_ns, ready_ns)
                self._step()
            elif (end_ns := self.inputs.advance(t_ns)) is None:
                return
            elif self.commands.wait and end_ns > 0:
                # An update's end may be what a message waits for: it goes on from here.
                self._time_ns = max(self._time_ns, end_ns)

    def _ready_ns(self) -> int | None:
        """When the next unit can be carried out; None when nothing is there or it waits for an event."""
        if self._current is not None:
            wait = self.commands.wait
            return None if wait and not self.commands.registers.events & wait else self._time_ns
        return max(self._messages[0][0], self._time_ns) if self._messages else None

    def _step(self) -> None:
        if self._current is None:
            arrived_ns, units = self._messages.popleft()
            started_ns = self.commands.started_ns
            if started_ns is not None and arrived_ns < started_ns + round(START_S * 1e9):
                self.errors.append(DEAF)
                return
            if any(at_ns > arrived_ns for at_ns, _ in self._sending):
                self._sending.clear()
                self.errors.append(INTERRUPTED)
            self.heard.append(";".join(units))
            self._current = (list(units), [])
        self.commands.wait = 0
        units, answers = self._current
        if units:
            try:
                answer = self.commands.carry_out(units.pop(0), self._time_ns)
            except Refused as refused:
                self.errors.append(refused.error)
                units.clear()
            else:
                if answer is not None:
                    answers.append(answer)
        if not units and not self.commands.wait:
            self._current = None
            self._answer(";".join(answers))

    def _answer(self, text: str) -> None:
        if text:
            at_ns = self._time_ns + self.latency_ns
            for value in text.encode() + b"\r\n":
                at_ns += self.byte_ns
                self._sending.append((at_ns, bytes((value,))))
