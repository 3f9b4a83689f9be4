"""Meters that print their readings as lines of text, and source ``serial-line``: those on a serial port.

`LineFormat` finds the numbers in a line, as whole microwatts and microjoules; `LineSource` times it by its arrival.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from typing import ClassVar, Literal

from powerd_core.errors import ConfigError
from powerd_core.model import (
    Accuracy,
    Column,
    CounterConversion,
    Device,
    Flag,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_core.serde import option
from powerd_core.text import printable
from powerd_daemon.sources.base import FIRST_GARBLED, LineOutput, Source, Start
from powerd_daemon.sources.polled import CODES_PER_UNIT, SILENCE, micro_code
from powerd_daemon.sources.port import LineReader, OpenPort, Port, SerialPort

_UNITS = {
    # Without VA: apparent power says nothing of AC's power without the power factor.
    "power": {"uW": "1e-6", "mW": "1e-3", "W": "1", "kW": "1e3"},
    "energy": {"mJ": "1e-3", "J": "1", "kJ": "1e3", "mWh": "3.6", "Wh": "3600", "kWh": "3.6e6"},
    "volts": {"mV": "1e-3", "V": "1"},
    "amps": {"uA": "1e-6", "mA": "1e-3", "A": "1"},
}
_DEFAULTS = {"power": "W", "energy": "J", "volts": "V", "amps": "A"}
_GROUPS = ({"power"}, {"energy"}, {"power", "energy"}, {"volts", "amps"}, {"volts", "amps", "energy"})
"""What a pattern may read: never the power in two ways."""
_MOST_SHOWN = 100
"""Characters of a line that is no reading."""
LATENCY_NS = 16_000_000
"""What a USB serial adapter may hold bytes back."""


class LineFormat:
    """A pattern whose named groups are numbers: ``power``, ``energy``, or ``volts`` and ``amps``.

    ``units`` says each group's unit; a group ``power_unit`` (``energy_unit``, ...) in the pattern catches the unit that
    the meter prints itself. Raises `ConfigError` for a pattern or units that cannot be used.
    """

    def __init__(self, pattern: str, units: Mapping[str, str], decimal: str = ".") -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"pattern is no regular expression: {error}") from error
        groups = self._pattern.groupindex.keys()
        if unknown := sorted(groups - {*_UNITS, *(f"{name}_unit" for name in _UNITS)}):
            known = ", ".join(_UNITS)
            raise ConfigError(f"pattern has a group {unknown[0]!r}: groups are {known}, each also with _unit")
        numbers = set(groups & _UNITS.keys())
        if numbers not in _GROUPS:
            raise ConfigError("pattern has no group power, energy, or both groups volts and amps (then without power)")
        self._scales: dict[str, Decimal] = {}
        for name, unit in {**_DEFAULTS, **units}.items():
            if name in units and name not in groups:
                raise ConfigError(f"units: the pattern has no group {name!r}")
            if unit not in _UNITS[name]:
                raise ConfigError(f"units: {unit!r} is no unit of {name}: choose from {', '.join(_UNITS[name])}")
            self._scales[name] = Decimal(_UNITS[name][unit])
        self._decimal = decimal
        self.quantities = [q for q, group in (("power", {"power", "volts"}), ("energy", {"energy"})) if numbers & group]
        """What a line may say: ``power``, ``energy`` or both."""

    def read(self, text: str) -> dict[str, int]:
        """A line's codes by quantity; empty for one that does not match or holds what is no number."""
        match = self._pattern.search(text)
        if match is None:
            return {}
        groups, values = match.groupdict(), {}
        try:
            for name in _UNITS:
                if (number := groups.get(name)) is not None:
                    unit = groups.get(f"{name}_unit")
                    scale = self._scales[name] if unit is None else Decimal(_UNITS[name][unit])
                    values[name] = Decimal(number.strip().replace(self._decimal, ".")) * scale
            if "volts" in values and "amps" in values:
                values["power"] = values["volts"] * values["amps"]
            return {q: micro_code(values[q]) for q in self.quantities if q in values}
        except (DecimalException, ValueError, KeyError):
            return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOptions:
    """What a meter prints and how good it is: nobody but its manual can say."""

    pattern: str = field(
        metadata={
            "help": "regular expression that finds the numbers in a line, by named groups: power, energy (a counter "
            "that only grows), or volts and amps (DC: their product is the power)"
        }
    )
    units: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "help": "unit of each group: power uW mW W kW, energy mJ J kJ mWh Wh kWh, volts mV V, amps uA mA A; "
            "a group power_unit (energy_unit, ...) in the pattern catches the unit that is printed"
        },
    )
    decimal: Literal[".", ","] = option(".", "the decimal sign in the meter's numbers")
    every_ms: float = option(1000.0, "usual distance of the meter's lines")
    ignore: str = option("", "regular expression of lines that are no readings (headings)")
    window_ms: float = option(0.0, "how long one reading averages; 0 = as long as every_ms")
    delay_ms: float = option(0.0, "from the end of that time to the line's first character")
    u_gain: float = option(0.01, "relative standard uncertainty (the manual's ± limit divided by 1.73)")
    u_offset_w: float = option(0.0, "standard uncertainty of the zero in watts")
    step_w: float = option(0.0, "smallest step of the power that the meter shows, in watts")
    accuracy_origin: str = option("", "where these figures come from, for the record; empty = assumed")
    poll_ms: float = option(10.0, "distance of looks at what was printed")
    line: str = option("meter", "name of the power's line; the energy's is <line>_energy")
    device: str = option("node", "name of the device behind the meter")

    def __post_init__(self) -> None:
        if not self.line or not self.device:
            raise ConfigError("line and device must not be empty")
        if not 1 <= self.poll_ms <= self.every_ms:
            raise ConfigError("poll_ms must be from 1 to every_ms")
        if min(self.window_ms, self.delay_ms, self.u_offset_w, self.step_w) < 0 or self.u_gain <= 0:
            raise ConfigError("u_gain must be positive; window_ms, delay_ms, u_offset_w and step_w not negative")
        LineFormat(self.pattern, self.units, self.decimal)
        try:
            re.compile(self.ignore)
        except re.error as error:
            raise ConfigError(f"ignore is no regular expression: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialLineOptions(LineOptions):
    """Of the port and of what is sent."""

    port: str = field(metadata={"help": "serial port such as /dev/ttyUSB0, best by its name under /dev/serial/by-id"})
    baud: int = option(9600, "baud rate")
    ask: str = option(
        "", r"what to send every every_ms to get a line, with its end, such as 'VAL?\r\n'; empty = nothing"
    )

    def __post_init__(self) -> None:
        if not self.port or self.baud < 1:
            raise ConfigError("port must not be empty, and baud must be positive")
        LineOptions.__post_init__(self)


class LineSource(Source):
    """Lines ``meter`` (microwatts) and ``meter_energy`` (microjoules), as far as the pattern has them, a stream each.

    A line of text that neither matches nor is to be ignored is a flagged reading, and so is every stretch of
    ``every_ms`` in a silence. ``garbled`` and ``silences`` count them, ``late`` the lines whose times
    are not known. A subclass says where lines come from.
    """

    options: LineOptions
    ask = b""
    """What is sent every ``every_ms`` to get a line."""

    def __init__(self, options: LineOptions, start: Start) -> None:
        super().__init__(options, start)
        self._format = LineFormat(options.pattern, options.units, options.decimal)
        self._ignore = re.compile(options.ignore) if options.ignore else None
        self._port: Port | None = None
        self._detail: Mapping[str, object] = {}
        self._reader = LineReader(0)
        self._outputs: dict[str, LineOutput] = {}
        self._heard_ns: dict[str, int] = {}
        """When each quantity last had a reading."""
        self._every_ns = round(options.every_ms * 1e6)
        self._window_ns = round(options.window_ms * 1e6) or self._every_ns
        self._looked_ns = self._ask_ns = 0
        self._is_first = True
        self.garbled = self.late = self.silences = 0
        self._first_garbled = ""

    @property
    def period_ns(self) -> int:
        return round(self.options.poll_ms * 1e6)

    @abstractmethod
    def connect(self) -> tuple[Port, Mapping[str, object]]:
        """Get hold of what prints; with it, what the streams' ``detail`` is to say of it. Raises `SensorError`."""

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        self._port, self._detail = self.connect()
        self._port.read()
        self._reader = LineReader(self._port.byte_ns)
        self._looked_ns = self._ask_ns = self.start.clock.now_ns()
        # What is under way when the port is opened lacks its beginning; an answer to a question does not.
        self._is_first = not self.ask
        streams = tuple(self._add(quantity) for quantity in self._format.quantities)
        return streams, (
            Device(o.device, (streams[0].lines[0].name,), f"what is behind the meter on {self._port.name}"),
        )

    def poll(self) -> None:
        assert self._port is not None, "open comes first"
        now_ns = self.start.clock.now_ns()
        if self.ask and now_ns >= self._ask_ns:
            self._ask_ns = max(self._ask_ns + self._every_ns, now_ns)
            self._port.write(self.ask)
        before_ns, self._looked_ns = self._looked_ns, now_ns
        is_late = now_ns - before_ns > 2 * (self.period_ns + LATENCY_NS)
        for begun_ns, text in self._reader.feed(self._port.read(), before_ns, now_ns):
            self._take(begun_ns, text.decode("utf-8", "replace").strip(), now_ns, is_late)
        for quantity, output in self._outputs.items():
            if now_ns - self._heard_ns[quantity] > SILENCE * self._every_ns:
                self.silences += 1
                # Told again after every usual distance, in the place of the readings that did not come.
                self._heard_ns[quantity] += self._every_ns
                output.append(self._heard_ns[quantity] - self._window_ns // 2, 0, Flag.MISSING)

    def health(self) -> dict[str, object]:
        counts = {"garbled_lines": self.garbled, "late_lines": self.late, "silences": self.silences}
        return {**counts, FIRST_GARBLED: self._first_garbled} if self.garbled else dict(counts)

    def read_line(self, text: str) -> dict[str, int]:
        """A line's codes by quantity; empty for one that is no reading."""
        return self._format.read(text)

    def close(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _take(self, begun_ns: int, text: str, now_ns: int, is_late: bool) -> None:
        is_first, self._is_first = self._is_first, False
        if not text or (self._ignore is not None and self._ignore.search(text)):
            return
        codes = self.read_line(text)
        if not codes and is_first:
            return
        end_ns = begun_ns - round(self.options.delay_ms * 1e6)
        if not codes:
            self.garbled += 1
            self._first_garbled = self._first_garbled or printable(text, limit=_MOST_SHOWN)
            for output in self._outputs.values():
                output.append(end_ns - self._window_ns // 2, 0, Flag.IO_ERROR)
        # A look that came late does not know when its lines did: their values are true, their times are not.
        self.late += is_late and bool(codes)
        for quantity, code in codes.items():
            self._heard_ns[quantity] = now_ns
            # A counter's value is that of the moment, not of a stretch before it.
            t_ns = end_ns if quantity == "energy" else end_ns - self._window_ns // 2
            self._outputs[quantity].append(t_ns, 0 if is_late else code, Flag.STALE if is_late else 0)

    def _add(self, quantity: str) -> Stream:
        assert self._port is not None
        o, is_counter = self.options, quantity == "energy"
        accuracy = Accuracy(
            u_gain=o.u_gain,
            u_offset_w=o.u_offset_w,
            step_w=0.0 if is_counter else o.step_w,
            window_ns=0 if is_counter else self._window_ns,
            centre_ns=self.period_ns + LATENCY_NS,
            origin=o.accuracy_origin or "assumed in the configuration, not from a data sheet",
        )
        kind, column = (CounterConversion, "energy_uj") if is_counter else (ScaledConversion, "power_uw")
        name, what = (f"{o.line}_energy", "energy counter") if is_counter else (o.line, "power")
        description = f"{what} as printed by the meter on {self._port.name}"
        conversion = kind(column, 1 / CODES_PER_UNIT)
        line = Line(name, o.device, conversion, Provenance.MEASURED, accuracy, description)
        detail = {"pattern": o.pattern, "units": dict(o.units), **self._detail}
        stream = self.add_stream((Column(column, "q"),), (line,), self._every_ns, detail)
        self._outputs[quantity], self._heard_ns[quantity] = LineOutput(self.builders[-1]), self._looked_ns
        return stream


class SerialLineSource(LineSource):
    """Lines ``meter`` (power) and ``meter_energy`` of any meter that prints its readings on a serial port. Tests give
    ``open_port`` a port of their own."""

    Options: ClassVar[type[SerialLineOptions]] = SerialLineOptions
    options: SerialLineOptions

    def __init__(self, options: SerialLineOptions, start: Start, open_port: OpenPort = SerialPort) -> None:
        super().__init__(options, start)
        self._open_port = open_port
        self.ask = options.ask.replace("\\r", "\r").replace("\\n", "\n").encode()

    def connect(self) -> tuple[Port, Mapping[str, object]]:
        o = self.options
        return self._open_port(o.port, o.baud), {"port": o.port, "baud": o.baud, "ask": o.ask}
