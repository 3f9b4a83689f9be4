"""A WT310E in software, strict about its protocol: bytes in and out, on any clock.

What it is strict about: messages end with CR LF, unknown headers and bad data go to the error queue and get no answer,
a message that comes before the last answer was sent throws that answer away, values exist only after an update with the
present settings, inputs clip at their ranges, ranges cannot change while it integrates, and it hears nothing for 0.2 s
after an integration was started.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, nan

from powerd_daemon.meter.scpi import header_pattern
from powerd_daemon.meter.simulated_inputs import NOT_NOW, OUT_OF_RANGE, Input, Inputs, Refused, Registers
from powerd_daemon.meter.wt310 import START_S

IDENTITY = "YOKOGAWA,WT310E,SIMULATED,F1.01"
NO_ERROR = (0, "NO ERROR")
SYNTAX, UNDEFINED = (102, "Syntax error"), (113, "Undefined header")
INTERRUPTED, DEAF = (410, "Query INTERRUPTED"), (810, "Busy")
_SWITCHES = {"0": "0", "OFF": "0", "1": "1", "ON": "1"}
_SETTINGS = {
    ":COMMunicate:REMote": ("0", _SWITCHES),
    ":COMMunicate:HEADer": ("1", _SWITCHES),
    ":COMMunicate:VERBose": ("1", _SWITCHES),
    ":SYSTem:COMMunicate:COMMand": ("WT300", {"WT300": "WT300", "WT200": "WT200"}),
    ":STATus:QMESsage": ("1", _SWITCHES),
    ":NUMeric:FORMat": ("ASCII", {"ASC": "ASCII", "ASCII": "ASCII"}),
    ":HOLD": ("0", _SWITCHES),
    ":MEASure:MHOLd": ("0", _SWITCHES),
    ":MEASure:AVERaging:STATe": ("0", _SWITCHES),
    ":INPut:CFACtor": ("3", {"3": "3", "6": "6"}),
    ":INPut:MODE": ("RMS", {"RMS": "RMS", "VME": "VMEAN", "VMEAN": "VMEAN", "DC": "DC"}),
    ":INPut:VOLTage:AUTO": ("1", _SWITCHES),
    ":INPut:CURRent:AUTO": ("1", _SWITCHES),
    ":INTEGrate:MODE": ("NORMAL", {"NORM": "NORMAL", "NORMAL": "NORMAL", "CONT": "CONTINUOUS"}),
}
_MEASURING = (":INPut:CFACtor", ":INPut:MODE", ":INPut:VOLTage:AUTO", ":INPut:CURRent:AUTO")
"""Settings that a running integration keeps, and after which the next update is waited for."""


class SimWt310:
    """`receive` and `transmit` are told the time; whatever is due until then has happened.

    ``byte_ns`` is one character on the wire, both ways (0: a bus that takes no time).
    """

    def __init__(self, connected: Input, t_ns: int, *, byte_ns: int = 1_041_667, latency_ns: int = 2_000_000) -> None:
        self.byte_ns = byte_ns
        self.latency_ns = latency_ns
        self.errors: deque[tuple[int, str]] = deque()
        self.heard: list[str] = []
        """Every message that was carried out."""
        self.settings = {spec: default for spec, (default, _) in _SETTINGS.items()}
        self.registers = Registers()
        self.inputs = Inputs(connected, t_ns, self.settings, self.registers)
        self.items: list[str] = ["U", "I", "P"]
        self.count = 3
        self._wait = 0
        self._deaf_until_ns = t_ns
        self._time_ns = t_ns
        self._received = b""
        self._line_free_ns = t_ns
        self._messages: deque[tuple[int, list[str]]] = deque()
        self._current: tuple[list[str], list[str]] | None = None
        self._sending: deque[tuple[int, bytes]] = deque()

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
            elif self._wait and end_ns > 0:
                # An update's end may be what a message waits for: it goes on from here.
                self._time_ns = max(self._time_ns, end_ns)

    def _ready_ns(self) -> int | None:
        """When the next unit can be carried out; None when nothing is there or it waits for an event."""
        if self._current is not None:
            return None if self._wait and not self.registers.events & self._wait else self._time_ns
        return max(self._messages[0][0], self._time_ns) if self._messages else None

    def _step(self) -> None:
        if self._current is None:
            arrived_ns, units = self._messages.popleft()
            if arrived_ns < self._deaf_until_ns:
                self.errors.append(DEAF)
                return
            if any(at_ns > arrived_ns for at_ns, _ in self._sending):
                self._sending.clear()
                self.errors.append(INTERRUPTED)
            self.heard.append(";".join(units))
            self._current = (list(units), [])
        self._wait = 0
        units, answers = self._current
        if units:
            try:
                answer = self._carry_out(units.pop(0))
            except Refused as refused:
                self.errors.append(refused.error)
                units.clear()
            else:
                if answer is not None:
                    answers.append(answer)
        if not units and not self._wait:
            self._current = None
            self._answer(";".join(answers))

    def _answer(self, text: str) -> None:
        if text:
            at_ns = self._time_ns + self.latency_ns
            for value in text.encode() + b"\r\n":
                at_ns += self.byte_ns
                self._sending.append((at_ns, bytes((value,))))

    def _carry_out(self, unit: str) -> str | None:
        header, _, data = unit.partition(" ")
        is_query, header, data = header.endswith("?"), header.rstrip("?"), data.strip()
        # Common commands such as *IDN have no colon in front.
        header = f":{header}" if header.startswith("*") else header
        for spec, (_, known) in _SETTINGS.items():
            if header_pattern(spec).fullmatch(header):
                if is_query:
                    return self._named(spec, self.settings[spec])
                if data.upper() not in known:
                    raise Refused(OUT_OF_RANGE)
                if spec in _MEASURING:
                    self.inputs.remeasure()
                self.settings[spec] = known[data.upper()]
                return None
        for spec, (query, set_it) in self._commands().items():
            if match := header_pattern(spec).fullmatch(header):
                act = query if is_query else set_it
                if act is None:
                    raise Refused(UNDEFINED)
                number = int(match[1]) if match.re.groups and match[1] else 0
                return act(data, number)
        raise Refused(UNDEFINED)

    def _commands(self) -> dict[str, tuple[Callable[[str, int], str | None] | None, ...]]:
        """Query and command of each header; both are given the data and the header's number."""
        return {
            ":*IDN": (lambda _d, _n: IDENTITY, None),
            ":*CLS": (None, self._clear),
            ":STATus:ERRor": (
                lambda _d, _n: '{},"{}"'.format(*(self.errors.popleft() if self.errors else NO_ERROR)),
                None,
            ),
            ":STATus:FILTer<x>": (None, self._set_filter),
            ":STATus:EESR": (self._take_events, None),
            ":STATus:CONDition": (lambda _d, _n: str(self.registers.condition), None),
            ":COMMunicate:WAIT": (None, self._set_wait),
            ":INPut:VOLTage:RANGe": (
                lambda _d, _n: self._named("VOLT:RANG", f"{self.inputs.volts:.1E}"),
                self._set_volts,
            ),
            ":INPut:CURRent:RANGe": (
                lambda _d, _n: self._named("CURR:RANG", f"{self.inputs.amperes:.1E}"),
                self._set_amperes,
            ),
            "[:SAMPle]:RATE": (lambda _d, _n: self._named("RATE", f"{self.inputs.rate_s:.2E}"), self._set_rate),
            ":NUMeric[:NORMal]:NUMber": (lambda _d, _n: str(self.count), self._set_count),
            ":NUMeric[:NORMal]:ITEM<x>": (None, self._set_item),
            ":NUMeric[:NORMal]:VALue": (self._get_values, None),
            ":INTEGrate:STATe": (lambda _d, _n: self._named("INTEG:STAT", self.inputs.integration), None),
            ":INTEGrate:TIMer": (None, self._set_timer),
            ":INTEGrate:STARt": (None, self._start),
            ":INTEGrate:STOP": (None, self._stop),
            ":INTEGrate:RESet": (None, self._reset),
        }

    def _named(self, spec: str, value: str) -> str:
        return f":{spec.strip(':').upper()} {value}" if self.settings[":COMMunicate:HEADer"] == "1" else value

    def _clear(self, _data: str, _number: int) -> None:
        self.errors.clear()
        self.registers.take()

    def _set_filter(self, data: str, number: int) -> None:
        self.registers.filter(number, data)

    def _take_events(self, _data: str, _number: int) -> str:
        return str(self.registers.take())

    def _set_wait(self, data: str, _number: int) -> None:
        if not data.isdigit() or not 0 < int(data) < 1 << 16:
            raise Refused(OUT_OF_RANGE)
        if not self.registers.events & int(data):
            self._wait = int(data)

    def _set_volts(self, data: str, _number: int) -> None:
        self.inputs.set_volts(_amount(data))
        self.settings[":INPut:VOLTage:AUTO"] = "0"

    def _set_amperes(self, data: str, _number: int) -> None:
        self.inputs.set_amperes(_amount(data))
        self.settings[":INPut:CURRent:AUTO"] = "0"

    def _set_rate(self, data: str, _number: int) -> None:
        self.inputs.set_rate(_amount(data), self._time_ns)

    def _set_count(self, data: str, _number: int) -> None:
        if not data.isdigit() or not 1 <= int(data) <= 255:
            raise Refused(OUT_OF_RANGE)
        self.count = int(data)

    def _set_item(self, data: str, number: int) -> None:
        name, _, element = data.upper().partition(",")
        if not number or name not in ("U", "I", "P", "WH", "TIME") or element not in ("", "1"):
            raise Refused(OUT_OF_RANGE)
        self.items += ["NONE"] * (number - len(self.items))
        self.items[number - 1] = name

    def _get_values(self, _data: str, _number: int) -> str:
        known = self.inputs.values
        names = (self.items + ["NONE"] * self.count)[: self.count]
        return ",".join(_shown(known.get(name, nan)) for name in names)

    def _set_timer(self, data: str, _number: int) -> None:
        parts = data.split(",")
        if len(parts) != 3 or not all(p.strip().isdigit() for p in parts):
            raise Refused(OUT_OF_RANGE)
        if self.inputs.integration != "RESET":
            raise Refused(NOT_NOW)

    def _start(self, _data: str, _number: int) -> None:
        self.inputs.start(self._time_ns)
        self._deaf_until_ns = self._time_ns + round(START_S * 1e9)

    def _stop(self, _data: str, _number: int) -> None:
        self.inputs.stop(self._time_ns)

    def _reset(self, _data: str, _number: int) -> None:
        self.inputs.reset()


def _amount(text: str) -> float:
    try:
        return float(text.upper().removesuffix("S").removesuffix("V").removesuffix("A"))
    except ValueError:
        raise Refused(OUT_OF_RANGE) from None


def _shown(value: float) -> str:
    if value != value:  # noqa: PLR0124  (NaN is what differs from itself)
        return "NAN"
    return "INF" if abs(value) == inf else f"{value:.4E}"
