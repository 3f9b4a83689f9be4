"""What a simulated WT310E does with each command: its settings, its error queue, and what it measures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf, nan

from powerd_daemon.meter.scpi import header_pattern
from powerd_daemon.meter.simulated_inputs import NOT_NOW, OUT_OF_RANGE, Input, Inputs, Refused, Registers

IDENTITY = "YOKOGAWA,WT310E,SIMULATED,F1.01"
NO_ERROR = (0, "NO ERROR")
UNDEFINED = (113, "Undefined header")
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


class Commands:
    """Carries out one command after the other. ``connected`` is what is measured, from ``t_ns`` on."""

    def __init__(self, connected: Input, t_ns: int) -> None:
        self.errors: deque[tuple[int, str]] = deque()
        self.settings = {spec: default for spec, (default, _) in _SETTINGS.items()}
        self.registers = Registers()
        self.inputs = Inputs(connected, t_ns, self.settings, self.registers)
        self.wait = 0
        """Events of which one has to come before the message goes on."""
        self.started_ns: int | None = None
        """When an integration was started last."""
        self._items: list[str] = ["U", "I", "P"]
        self._count = 3
        self._time_ns = t_ns

    def carry_out(self, unit: str, t_ns: int) -> str | None:
        """One unit of a message at its time; its answer, if it has one. Raises `Refused`."""
        self._time_ns = t_ns
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
            ":NUMeric[:NORMal]:NUMber": (lambda _d, _n: str(self._count), self._set_count),
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
            self.wait = int(data)

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
        self._count = int(data)

    def _set_item(self, data: str, number: int) -> None:
        name, _, element = data.upper().partition(",")
        if not number or name not in ("U", "I", "P", "WH", "TIME") or element not in ("", "1"):
            raise Refused(OUT_OF_RANGE)
        self._items += ["NONE"] * (number - len(self._items))
        self._items[number - 1] = name

    def _get_values(self, _data: str, _number: int) -> str:
        known = self.inputs.values
        names = (self._items + ["NONE"] * self._count)[: self._count]
        return ",".join(_shown(known.get(name, nan)) for name in names)

    def _set_timer(self, data: str, _number: int) -> None:
        parts = data.split(",")
        if len(parts) != 3 or not all(p.strip().isdigit() for p in parts):
            raise Refused(OUT_OF_RANGE)
        if self.inputs.integration != "RESET":
            raise Refused(NOT_NOW)

    def _start(self, _data: str, _number: int) -> None:
        self.inputs.start(self._time_ns)
        self.started_ns = self._time_ns

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
