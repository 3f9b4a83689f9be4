"""One conversation with a WT310E: set it up, then one answer for each of its updates, with the moment it ended."""

from __future__ import annotations

from contextlib import suppress

from powerd_core.errors import SensorError
from powerd_daemon.clock import Clock
from powerd_daemon.meter import wt310
from powerd_daemon.meter.link import LineReader, Link

ANSWER_NS = 1_000_000_000
LOOK_NS = 2_000_000
ERRORS_NS = 10_000_000_000
"""How often the meter's error queue is asked for."""
LATENCY_NS = 16_000_000
"""What a USB serial adapter or the meter may hold an answer back."""
SOON_NS = 4_000_000
"""A meter that answers within this had not to wait for its update."""
GARBLED = 5


class Session:
    """``update_ns`` is the distance of the meter's updates, ``poll_ns`` that of calls of `poll`.

    On a serial port the meter is asked to answer when its next update ends (``:COMM:WAIT``), so the answer's arrival
    tells the moment. A read from USBTMC would block meanwhile: there the event register is asked at every look.
    """

    def __init__(self, link: Link, clock: Clock, *, update_ns: int, poll_ns: int, with_energy: bool) -> None:
        self._link, self._clock = link, clock
        self._update_ns, self._poll_ns, self._with_energy = update_ns, poll_ns, with_energy
        self._lines = LineReader(link.byte_ns)
        self._asked_ns: int | None = None
        self._heard_ns = self._looked_ns = clock.now_ns()
        self._ended_ns: int | None = None
        self._errors_ns = clock.now_ns() + ERRORS_NS
        self._asked_errors = False
        self.garbled = 0
        """Answers that made no sense, in all."""
        self._garbled_in_turn = 0

    @property
    def uncertain_ns(self) -> int:
        """How far the end of an update may be from the time that it is given."""
        return self._poll_ns // 2 + LATENCY_NS

    def begin(self, *, coupling: str, crest_factor: int, volts: float, amperes: float, rate_s: float) -> str:
        """Set the meter up and start its integration. Returns its identity; raises `SensorError`."""
        identity = self._greet()
        if self.ask(":INTEG:STAT?").rpartition(" ")[2].upper().startswith("STAR"):
            self.tell(":INTEG:STOP")
        self.tell(":INTEG:RES")
        commands = wt310.setup(
            coupling=coupling, crest_factor=crest_factor, volts=volts, amperes=amperes, rate_s=rate_s
        )
        for command in (*commands, *wt310.items(self._with_energy)):
            self.tell(command)
        for command, wanted in ((":INP:VOLT:RANG?", volts), (":INP:CURR:RANG?", amperes), (":SAMP:RATE?", rate_s)):
            answer = self.ask(command)
            if not _is_close(answer, wanted):
                raise SensorError(f"{self._link.name}: the meter answers {answer!r} to {command}, {wanted:g} was set")
        if self._with_energy:
            self.tell(":INTEG:MODE NORM")
            self.tell(":INTEG:TIM 0,0,0")
            self._send(":INTEG:STAR")
            self._wait(round(wt310.START_S * 1e9) + self._wire_ns(":INTEG:STAR"))
            self._check(":INTEG:STAR")
            state = self.ask(":INTEG:STAT?")
            if not state.rpartition(" ")[2].upper().startswith("STAR"):
                raise SensorError(f"{self._link.name}: the meter does not integrate, its state is {state!r}")
        self.ask(":STAT:EESR?")
        self._heard_ns = self._looked_ns = self._clock.now_ns()
        return identity

    def poll(self) -> list[tuple[int, wt310.Reply | None]]:
        """The updates that ended since the last call: when, and the answer (None for one that nobody understands).

        Raises `SensorError` when the meter does not answer, or reports an error.
        """
        if self._asked_ns is None:
            self._request()
        now_ns = self._clock.now_ns()
        data = self._link.read()
        if self._link.blocks:
            now_ns = self._clock.now_ns()
        lines = self._lines.feed(data, self._looked_ns, now_ns)
        before_ns, self._looked_ns = self._looked_ns, now_ns
        found: list[tuple[int, wt310.Reply | None]] = []
        for begun_ns, line in lines:
            if self._asked_ns is not None:
                at_ns = (before_ns + now_ns) // 2 if self._link.blocks else begun_ns
                self._take(at_ns, now_ns - before_ns, line, found)
        if now_ns - self._heard_ns > 2 * self._update_ns + ANSWER_NS:
            raise SensorError(
                f"{self._link.name}: the meter has not answered for {(now_ns - self._heard_ns) / 1e9:.1f} s: "
                "is it on, connected, and set to this baud rate?"
            )
        return found

    def end(self) -> None:
        """Stop the integration and give the keys back, as far as the meter still listens; let go of the port."""
        try:
            if self._with_energy:
                self._send(":INTEG:STOP")
            self._send(":COMM:REM OFF")
        finally:
            self._link.close()

    def ask(self, question: str) -> str:
        """The answer to a query during set-up. Raises `SensorError` when there is none."""
        self._send(question)
        return self._answer(question)

    def tell(self, command: str) -> None:
        """A command during set-up, checked. Raises `SensorError` when the meter refuses it."""
        self._send(command)
        self._check(command)

    def _check(self, command: str) -> None:
        number, words = wt310.parse_error(self.ask(":STAT:ERR?"))
        if number:
            raise SensorError(f"{self._link.name}: the meter refuses {command!r}: error {number}, {words}")

    def _greet(self) -> str:
        # It may still owe an answer to somebody before us, and hold half a command of theirs.
        for attempt in range(3):
            self._send("")
            self._send("*CLS")
            self._wait(self._wire_ns("*CLS") + (self._update_ns if attempt else LATENCY_NS))
            if not self._link.blocks:
                self._link.read()
            self._lines = LineReader(self._link.byte_ns)
            self._send("*IDN?")
            with suppress(SensorError):
                return wt310.check_identity(self._answer("*IDN?"))
        self._send("*IDN?")
        return wt310.check_identity(self._answer("*IDN?"))

    def _request(self) -> None:
        now_ns = self._clock.now_ns()
        self._asked_errors = now_ns >= self._errors_ns
        if self._asked_errors:
            self._errors_ns = now_ns + ERRORS_NS
        wait = "" if self._link.blocks else wt310.WAIT
        self._send(wait + wt310.VALUES + (wt310.ERRORS if self._asked_errors else ""))
        self._asked_ns = now_ns

    def _take(self, at_ns: int, look_ns: int, line: bytes, found: list[tuple[int, wt310.Reply | None]]) -> None:
        try:
            reply = wt310.parse_reply(
                line.decode("ascii"), with_energy=self._with_energy, with_errors=self._asked_errors
            )
        except ValueError:
            self._asked_ns = None
            self.garbled += 1
            self._garbled_in_turn += 1
            if self._garbled_in_turn >= GARBLED:
                raise SensorError(f"{self._link.name}: the meter's answers make no sense: {line[:60]!r}") from None
            found.append((at_ns, None))
            return
        self._garbled_in_turn = 0
        self._heard_ns = self._looked_ns
        asked_ns = self._asked_ns or at_ns
        self._asked_ns = None
        if reply.error:
            raise SensorError(f"{self._link.name}: the meter reports error {reply.error}: it is set up anew")
        if not reply.is_new:
            return
        end_ns = self._settle(at_ns, look_ns, asked_ns)
        if end_ns is not None:
            self._ended_ns = end_ns
            found.append((end_ns, reply))

    def _settle(self, at_ns: int, look_ns: int, asked_ns: int) -> int | None:
        """The end of the update behind an answer that came at ``at_ns``, in a look ``look_ns`` after the one before.

        Updates are regular: where the answer's arrival does not tell, the last end does. None when neither does.
        """
        first, update_ns = self._ended_ns, self._update_ns
        if look_ns > self._poll_ns + LATENCY_NS:
            # Nobody looked for a while, and the answer came at some moment of it.
            if first is None or self._link.blocks:
                self._ended_ns = None
                return None
            end_ns = first + update_ns
            if asked_ns < end_ns and abs(end_ns - at_ns) <= look_ns // 2 + LATENCY_NS:
                return end_ns
            self._ended_ns = None
            return None
        came_at_once = at_ns - asked_ns <= self._wire_ns(wt310.WAIT + wt310.VALUES) + SOON_NS
        if self._link.blocks or first is None or not came_at_once:
            return at_ns
        # It ended before the question arrived.
        return min(at_ns, first + max(1, (at_ns - first) // update_ns) * update_ns)

    def _send(self, text: str) -> None:
        self._link.write(text.encode("ascii") + (b"\n" if self._link.blocks else b"\r\n"))

    def _wire_ns(self, text: str) -> int:
        return (len(text) + 2) * self._link.byte_ns

    def _wait(self, duration_ns: int) -> None:
        self._clock.sleep_until(self._clock.now_ns() + duration_ns)

    def _answer(self, question: str) -> str:
        give_up_ns = self._clock.now_ns() + ANSWER_NS + self._wire_ns(question)
        while self._clock.now_ns() < give_up_ns:
            if not self._link.blocks:
                self._wait(LOOK_NS)
            now_ns = self._clock.now_ns()
            for _, line in self._lines.feed(self._link.read(), now_ns, now_ns):
                return line.decode("ascii", "replace").strip()
        raise SensorError(
            f"{self._link.name}: the meter does not answer {question!r}: "
            "is it on, connected, and set to this baud rate?"
        )


def _is_close(answer: str, wanted: float) -> bool:
    try:
        return abs(float(answer.rpartition(" ")[2]) - wanted) < 1e-3 * wanted
    except ValueError:
        return False
