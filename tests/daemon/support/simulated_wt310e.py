"""A WT310E in software: bytes in and out, on any clock.

It knows the headers that powerd sends, in their short form. What it is strict about: unknown headers and bad data go to
the error queue and get no answer, a message that comes before the last answer was sent throws that answer away, values
exist only after an update with the present settings, inputs clip at their ranges, nothing can be set while it
integrates, and it hears nothing for 0.2 s after an integration was started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, nan

from powerd_core.errors import SensorError
from powerd_daemon.clock import Clock
from powerd_daemon.sources.wt310e import AMPERE_RANGES, INTEGRATING, OVER_RANGE, RATES_S, START_S, UPDATED, VOLT_RANGES

IDENTITY = "YOKOGAWA,WT310E,SIMULATED,F1.01"
UNDEFINED, OUT_OF_RANGE, NOT_NOW, INTERRUPTED, DEAF = 113, 222, 813, 410, 810
CLIP = 1.4
"""A range shows up to this much of itself."""
UPDATING_NS = 5_000_000
"""How long before its end an update shows in the condition register."""
VOLTS = 230.0
_SWITCH = ("ON", "OFF")
_SETTINGS = {
    ":COMM:REM": _SWITCH,
    ":COMM:HEAD": _SWITCH,
    ":COMM:VERB": _SWITCH,
    ":SYST:COMM:COMM": ("WT300",),
    ":NUM:FORM": ("ASCII",),
    ":HOLD": _SWITCH,
    ":MEAS:MHOL": _SWITCH,
    ":MEAS:AVER:STAT": _SWITCH,
    ":INP:CFAC": ("3", "6"),
    ":INP:MODE": ("RMS", "DC"),
    ":INP:VOLT:AUTO": _SWITCH,
    ":INP:CURR:AUTO": _SWITCH,
    ":STAT:FILT1": ("FALL",),
    ":NUM:NORM:NUM": ("1", "2"),
    ":NUM:NORM:ITEM1": ("P,1",),
    ":NUM:NORM:ITEM2": ("WH,1",),
    ":INTEG:MODE": ("NORM",),
    ":INTEG:TIM": ("0,0,0",),
}


class Refused(Exception):
    """A command that goes to the error queue."""

    def __init__(self, error: int) -> None:
        super().__init__(str(error))
        self.error = error


class Meter:
    """Measures what is connected, one update after the other, and carries out one command after the other."""

    def __init__(self, energy_j: Callable[[int, int], float], t_ns: int) -> None:
        self.errors: deque[int] = deque()
        self.settings = {":COMM:HEAD": "ON", ":HOLD": "OFF", ":INP:CFAC": "3", ":NUM:NORM:NUM": "2"}
        self.volts, self.amperes, self.rate_s = 600.0, 20.0, 0.5
        self.integration = "RESET"
        self.started_ns: int | None = None
        """When an integration was started last."""
        self.wait = 0
        """Events of which one has to come before the message goes on."""
        self.condition = self.events = 0
        self.update_ns = t_ns + self.period_ns
        """When the update under way ends."""
        self._energy_j = energy_j
        self._shown_w = self._wh = nan
        self._integrated_j = 0.0
        self._integrated_to_ns = t_ns
        self._skip_update = False

    @property
    def period_ns(self) -> int:
        return round(self.rate_s * 1e9)

    def carry_out(self, unit: str, t_ns: int) -> str | None:
        """One unit of a message at its time; its answer, if it has one. Raises `Refused`."""
        header, _, data = unit.partition(" ")
        if header.endswith("?"):
            return self._query(header)
        if header == "*CLS":
            self.errors.clear()
            self.events = 0
        elif header == ":COMM:WAIT":
            self.wait = 0 if self.events & int(data) else int(data)
        elif header.startswith(":INTEG:ST") or header == ":INTEG:RES":
            self._integration(header.removeprefix(":INTEG:"), t_ns)
        elif header in (":INP:VOLT:RANG", ":INP:CURR:RANG", ":SAMP:RATE"):
            self._set_range(header, float(data), t_ns)
        elif header not in _SETTINGS:
            raise Refused(UNDEFINED)
        elif data not in _SETTINGS[header]:
            raise Refused(OUT_OF_RANGE)
        else:
            if header.startswith(":INP"):
                self._remeasure()
            self.settings[header] = data
        return None

    def advance(self, t_ns: int) -> int | None:
        """Do what is due next by ``t_ns``. Returns the end of an update that ended, -1 for less, None for nothing."""
        if self.update_ns - UPDATING_NS <= t_ns and not self.condition & UPDATED:
            self.condition |= UPDATED
            return -1
        if self.update_ns > t_ns:
            return None
        end_ns = self.update_ns
        self.update_ns += self.period_ns
        self.integrate(end_ns)
        self.condition &= ~(UPDATED | OVER_RANGE)
        self.events |= UPDATED
        if not self._skip_update and self.settings[":HOLD"] == "OFF":
            power_w = self._energy_j(end_ns - self.period_ns, end_ns) / self.rate_s
            is_over = abs(power_w) / VOLTS > CLIP * self.amperes or CLIP * self.volts < VOLTS
            self._shown_w = inf if is_over else power_w
            self.condition |= OVER_RANGE & 0x40 if is_over else 0
            if self.integration != "RESET":
                self._wh = self._integrated_j / 3600
        self._skip_update = False
        return end_ns

    def integrate(self, t_ns: int) -> None:
        if self.integration == "START":
            self._integrated_j += self._energy_j(self._integrated_to_ns, t_ns)
            self._integrated_to_ns = t_ns

    def stop(self, t_ns: int) -> None:
        self.integrate(t_ns)
        self.integration = "STOP"
        self.condition &= ~INTEGRATING

    def _query(self, header: str) -> str:
        match header:
            case "*IDN?":
                return IDENTITY
            case ":STAT:ERR?":
                return f'{self.errors.popleft()},"ERROR"' if self.errors else '0,"NO ERROR"'
            case ":STAT:EESR?":
                events, self.events = self.events, 0
                return str(events)
            case ":STAT:COND?":
                return str(self.condition)
            case ":INTEG:STAT?":
                return self.integration
            case ":NUM:NORM:VAL?":
                return ",".join(map(_shown, (self._shown_w, self._wh)[: int(self.settings[":NUM:NORM:NUM"])]))
        raise Refused(UNDEFINED)

    def _integration(self, what: str, t_ns: int) -> None:
        if what == "STAR" and self.integration != "START":
            self.integration, self.started_ns, self._integrated_to_ns = "START", t_ns, t_ns
            self.condition |= INTEGRATING
        elif what == "STOP" and self.integration == "START":
            self.stop(t_ns)
        elif what == "RES" and self.integration != "START":
            self.integration, self._integrated_j, self._wh = "RESET", 0.0, nan
        else:
            raise Refused(NOT_NOW)

    def _set_range(self, header: str, value: float, t_ns: int) -> None:
        crest_factor = int(self.settings[":INP:CFAC"])
        known = {":INP:VOLT:RANG": VOLT_RANGES[crest_factor], ":INP:CURR:RANG": AMPERE_RANGES[crest_factor]}
        if value not in known.get(header, RATES_S):
            raise Refused(OUT_OF_RANGE)
        self._remeasure()
        if header == ":INP:VOLT:RANG":
            self.volts = value
        elif header == ":INP:CURR:RANG":
            self.amperes = value
        else:
            self.rate_s, self.update_ns, self._skip_update = value, t_ns + round(value * 1e9), False

    def _remeasure(self) -> None:
        """Something changed: what was measured before is no longer shown, nor what the update under way measures."""
        if self.integration == "START":
            raise Refused(NOT_NOW)
        self._shown_w, self._skip_update = nan, True


def _shown(value: float) -> str:
    return {"nan": "NAN", "inf": "INF"}.get(str(abs(value)), f"{value:.4E}")


class SimWt310:
    """`receive` and `transmit` are told the time; whatever is due until then has happened.

    ``byte_ns`` is one character on the wire, both ways (0: a bus that takes no time).
    """

    def __init__(
        self, energy_j: Callable[[int, int], float], t_ns: int, *, byte_ns: int = 1_041_667, latency_ns: int = 2_000_000
    ) -> None:
        self.byte_ns = byte_ns
        self.latency_ns = latency_ns
        self.heard: list[str] = []
        """Every message that was carried out."""
        self.meter = Meter(energy_j, t_ns)
        self._time_ns = t_ns
        self._received = b""
        self._line_free_ns = t_ns
        self._messages: deque[tuple[int, list[str]]] = deque()
        self._current: tuple[list[str], list[str]] | None = None
        self._sending: deque[tuple[int, bytes]] = deque()

    def receive(self, data: bytes, t_ns: int) -> None:
        """Bytes that the other side began to send at ``t_ns``: no more than one message."""
        self._advance(t_ns)
        self._line_free_ns = max(t_ns, self._line_free_ns) + len(data) * self.byte_ns
        *messages, self._received = (self._received + data).split(b"\r\n")
        for text in (message.decode("ascii", "replace").strip() for message in messages):
            if text:
                self._messages.append((self._line_free_ns, [unit.strip() for unit in text.split(";")]))

    def transmit(self, t_ns: int) -> bytes:
        """What has reached the other side by ``t_ns`` and was not taken before."""
        self._advance(t_ns)
        arrived = b""
        while self._sending and self._sending[0][0] <= t_ns:
            arrived += self._sending.popleft()[1]
        return arrived

    def _advance(self, t_ns: int) -> None:
        while True:
            ready_ns = self._ready_ns()
            if ready_ns is not None and ready_ns <= min(t_ns, self.meter.update_ns):
                self._time_ns = max(self._time_ns, ready_ns)
                self._step()
            elif (end_ns := self.meter.advance(t_ns)) is None:
                return
            elif self.meter.wait and end_ns > 0:
                # An update's end may be what a message waits for: it goes on from here.
                self._time_ns = max(self._time_ns, end_ns)

    def _ready_ns(self) -> int | None:
        """When the next unit can be carried out; None when nothing is there or it waits for an event."""
        if self._current is not None:
            wait = self.meter.wait
            return None if wait and not self.meter.events & wait else self._time_ns
        return max(self._messages[0][0], self._time_ns) if self._messages else None

    def _step(self) -> None:
        if self._current is None:
            arrived_ns, units = self._messages.popleft()
            started_ns = self.meter.started_ns
            if started_ns is not None and arrived_ns < started_ns + round(START_S * 1e9):
                self.meter.errors.append(DEAF)
                return
            if any(at_ns > arrived_ns for at_ns, _ in self._sending):
                self._sending.clear()
                self.meter.errors.append(INTERRUPTED)
            self.heard.append(";".join(units))
            self._current = (list(units), [])
        self.meter.wait = 0
        units, answers = self._current
        if units:
            try:
                answer = self.meter.carry_out(units.pop(0), self._time_ns)
            except Refused as refused:
                self.meter.errors.append(refused.error)
                units.clear()
            else:
                if answer is not None:
                    answers.append(answer)
        if not units and not self.meter.wait:
            self._current = None
            self._answer(";".join(answers))

    def _answer(self, text: str) -> None:
        if text:
            at_ns = self._time_ns + self.latency_ns
            for value in text.encode() + b"\r\n":
                at_ns += self.byte_ns
                self._sending.append((at_ns, bytes((value,))))


class SimLink:
    """A serial line to a `SimWt310`, which can be pulled out and made to garble; with ``blocks`` a USBTMC one, whose
    reads wait in virtual time."""

    def __init__(self, meter: SimWt310, clock: Clock, *, blocks: bool = False) -> None:
        self.name = "/dev/usbtmc0" if blocks else "/dev/ttySIM"
        self.blocks = blocks
        self.byte_ns = meter.byte_ns
        self._meter, self._clock = meter, clock
        self.is_out = self.is_deaf = False
        self.garbles = False
        """Spoil the next bytes that come."""
        self.is_closed = False

    def read(self) -> bytes:
        self._check()
        answer = self._meter.transmit(self._clock.now_ns())
        give_up_ns = self._clock.now_ns() + 5_000_000_000
        while self.blocks and not answer.endswith(b"\n") and self._clock.now_ns() < give_up_ns:
            self._clock.sleep_until(self._clock.now_ns() + 200_000)
            answer += self._meter.transmit(self._clock.now_ns())
        if self.garbles and answer:
            answer, self.garbles = b"#" * len(answer), False
        return b"" if self.is_deaf else answer

    def write(self, data: bytes) -> None:
        self._check()
        # The bus itself ends a USBTMC message; the simulated meter knows the serial line's way alone.
        self._meter.receive(data.replace(b"\n", b"\r\n") if self.blocks else data, self._clock.now_ns())

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.is_out:
            raise SensorError(f"{self.name} is gone")
