"""Source ``serial-line``: any meter that prints its readings as lines of text on a serial port."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from powerd_core.errors import ConfigError
from powerd_core.model import (
    Accuracy,
    Block,
    BlockBuilder,
    Column,
    CounterConversion,
    Device,
    Flag,
    Gap,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_daemon.meter.link import LineReader, Link, OpenLink, SerialLink
from powerd_daemon.meter.printed import CODES_PER_UNIT, LineFormat
from powerd_daemon.sources.base import Source, Start

LATENCY_NS = 16_000_000
"""What a USB serial adapter may hold bytes back."""
SILENCE = 3
"""So many times the usual distance without a line is a silence."""


@dataclass(frozen=True, slots=True)
class SerialLineOptions:
    """What the meter prints and how good it is: nobody but its manual can say."""

    port: str = field(metadata={"help": "serial port such as /dev/ttyUSB0, best by its name under /dev/serial/by-id"})
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
    decimal: Literal[".", ","] = field(default=".", metadata={"help": "the decimal sign in the meter's numbers"})
    baud: int = field(default=9600, metadata={"help": "baud rate"})
    every_ms: float = field(default=1000.0, metadata={"help": "usual distance of the meter's lines"})
    ask: str = field(
        default="",
        metadata={
            "help": r"what to send every every_ms to get a line, with its end, such as 'VAL?\r\n'; empty = nothing"
        },
    )
    ignore: str = field(default="", metadata={"help": "regular expression of lines that are no readings (headings)"})
    window_ms: float = field(default=0.0, metadata={"help": "how long one reading averages; 0 = as long as every_ms"})
    delay_ms: float = field(default=0.0, metadata={"help": "from the end of that time to the line's first character"})
    u_gain: float = field(
        default=0.01, metadata={"help": "relative standard uncertainty (the manual's ± limit divided by 1.73)"}
    )
    u_offset_w: float = field(default=0.0, metadata={"help": "standard uncertainty of the zero in watts"})
    step_w: float = field(default=0.0, metadata={"help": "smallest step of the power that the meter shows, in watts"})
    accuracy_origin: str = field(
        default="", metadata={"help": "where these figures come from, for the record; empty = assumed"}
    )
    poll_ms: float = field(default=10.0, metadata={"help": "distance of looks at the port"})
    line: str = field(default="meter", metadata={"help": "name of the power's line; the energy's is <line>_energy"})
    device: str = field(default="node", metadata={"help": "name of the device behind the meter"})

    def __post_init__(self) -> None:
        if not self.port or not self.line or not self.device:
            raise ConfigError("port, line and device must not be empty")
        if self.baud < 1 or not 1 <= self.poll_ms <= self.every_ms:
            raise ConfigError("baud must be positive, and poll_ms from 1 to every_ms")
        if min(self.window_ms, self.delay_ms, self.u_offset_w, self.step_w) < 0 or self.u_gain <= 0:
            raise ConfigError("u_gain must be positive; window_ms, delay_ms, u_offset_w and step_w not negative")
        LineFormat(self.pattern, self.units, self.decimal)
        try:
            re.compile(self.ignore)
        except re.error as error:
            raise ConfigError(f"ignore is no regular expression: {error}") from error


class _Output:
    """One line of ours: its builder, and when it last had a reading."""

    def __init__(self, builder: BlockBuilder, heard_ns: int) -> None:
        self.builder = builder
        self.heard_ns = heard_ns
        self.last_ns = -(1 << 62)

    def append(self, t_ns: int, code: int, flag: int = 0) -> None:
        if t_ns > self.last_ns:
            self.last_ns = t_ns
            self.builder.append(t_ns, (0,), (flag,), ((code,),))


class SerialLineSource(Source):
    """Lines ``meter`` (microwatts) and ``meter_energy`` (microjoules), as far as the pattern has them, a stream each.

    A line of text that neither matches nor is to be ignored is a flagged reading, and so is every stretch of
    ``every_ms`` in a silence. ``garbled`` and ``silences`` count them, ``late`` the lines whose times
    are not known. Tests give ``opener`` a link of their own.
    """

    Options: ClassVar[type[SerialLineOptions]] = SerialLineOptions
    options: SerialLineOptions

    def __init__(self, options: SerialLineOptions, start: Start, opener: OpenLink = SerialLink) -> None:
        super().__init__(options, start)
        self._opener = opener
        self._format = LineFormat(options.pattern, options.units, options.decimal)
        self._ignore = re.compile(options.ignore) if options.ignore else None
        self._ask = options.ask.replace("\\r", "\r").replace("\\n", "\n").encode()
        self._link: Link | None = None
        self._reader = LineReader(0)
        self._power: _Output | None = None
        self._energy: _Output | None = None
        self._looked_ns = self._ask_ns = 0
        self._is_first = True
        self.garbled = self.late = self.silences = 0

    @property
    def period_ns(self) -> int:
        return round(self.options.poll_ms * 1e6)

    @property
    def _every_ns(self) -> int:
        return round(self.options.every_ms * 1e6)

    @property
    def _window_ns(self) -> int:
        return round(self.options.window_ms * 1e6) or self._every_ns

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        self._link = self._opener(o.port, o.baud)
        self._link.read()
        self._reader = LineReader(self._link.byte_ns)
        self._looked_ns = self._ask_ns = self.start.clock.now_ns()
        # What is under way when the port is opened lacks its beginning; an answer to a question does not.
        self._is_first = not self._ask
        streams: list[Stream] = []
        if self._format.has_power:
            self._power = self._add(streams, o.line, ScaledConversion("power_uw", 1 / CODES_PER_UNIT), "power")
        if self._format.has_energy:
            self._energy = self._add(
                streams, f"{o.line}_energy", CounterConversion("energy_uj", 1 / CODES_PER_UNIT), "energy counter"
            )
        return tuple(streams), (Device(o.device, (streams[0].lines[0].name,), f"what is behind the meter on {o.port}"),)

    def poll(self) -> None:
        assert self._link is not None, "open comes first"
        now_ns = self.start.clock.now_ns()
        if self._ask and now_ns >= self._ask_ns:
            self._ask_ns = max(self._ask_ns + self._every_ns, now_ns)
            self._link.write(self._ask)
        before_ns, self._looked_ns = self._looked_ns, now_ns
        is_late = now_ns - before_ns > 2 * (self.period_ns + LATENCY_NS)
        for begun_ns, text in self._reader.feed(self._link.read(), before_ns, now_ns):
            self._take(begun_ns, text.decode("utf-8", "replace").strip(), now_ns, is_late)
        for output in (self._power, self._energy):
            if output is not None and now_ns - output.heard_ns > SILENCE * self._every_ns:
                self.silences += 1
                # Told again after every usual distance, in the place of the readings that did not come.
                output.heard_ns += self._every_ns
                output.append(output.heard_ns - self._window_ns // 2, 0, Flag.MISSING)

    def take(self) -> list[Block | Gap]:
        outputs = (o for o in (self._power, self._energy) if o is not None)
        blocks = (output.builder.take() for output in outputs)
        return [block for block in blocks if block]

    def health(self) -> dict[str, object]:
        return {"garbled_lines": self.garbled, "late_lines": self.late, "silences": self.silences}

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _take(self, begun_ns: int, text: str, now_ns: int, is_late: bool) -> None:
        is_first, self._is_first = self._is_first, False
        if not text or (self._ignore is not None and self._ignore.search(text)):
            return
        printed = self._format.read(text)
        if printed is None and is_first:
            return
        end_ns = begun_ns - round(self.options.delay_ms * 1e6)
        if printed is None:
            self.garbled += 1
            for output in (self._power, self._energy):
                if output is not None:
                    output.append(end_ns - self._window_ns // 2, 0, Flag.IO_ERROR)
            return
        # A look that came late does not know when its lines did: their values are true, their times are not.
        flag = int(Flag.STALE) if is_late else 0
        self.late += is_late
        if self._power is not None and printed.power is not None:
            self._power.heard_ns = now_ns
            self._power.append(end_ns - self._window_ns // 2, 0 if flag else printed.power, flag)
        if self._energy is not None and printed.energy is not None:
            self._energy.heard_ns = now_ns
            # A counter's value is that of the moment, not of a stretch before it.
            self._energy.append(end_ns, 0 if flag else printed.energy, flag)

    def _add(
        self, streams: list[Stream], name: str, conversion: ScaledConversion | CounterConversion, what: str
    ) -> _Output:
        o = self.options
        is_counter = isinstance(conversion, CounterConversion)
        accuracy = Accuracy(
            u_gain=o.u_gain,
            u_offset_w=o.u_offset_w,
            step_w=0.0 if is_counter else o.step_w,
            window_ns=0 if is_counter else self._window_ns,
            centre_ns=self.period_ns + LATENCY_NS,
            origin=o.accuracy_origin or "assumed in the configuration, not from a data sheet",
        )
        line = Line(
            name, o.device, conversion, Provenance.MEASURED, accuracy, f"{what} as printed by the meter on {o.port}"
        )
        number = self.start.first_stream + len(streams)
        stream = Stream(
            number,
            self.start.name,
            (Column(conversion.column, "q"),),
            (line,),
            self._every_ns,
            {"port": o.port, "baud": o.baud, "pattern": o.pattern, "units": dict(o.units), "ask": o.ask},
        )
        streams.append(stream)
        return _Output(self.start.builder(stream), self.start.clock.now_ns())
