"""Source ``wt310e``: a Yokogawa WT310E at the wall socket, on a serial port or USBTMC.

First what the meter understands and answers, as far as powerd uses it (IM WT310E-17EN); then the source.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from math import sqrt
from typing import ClassVar, Literal

from powerd_core.errors import ConfigError, SensorError
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
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.port import LineReader, OpenPort, Port, is_usbtmc, open_port

RATES_S = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
VOLT_RANGES = {3: (15.0, 30.0, 60.0, 150.0, 300.0, 600.0), 6: (7.5, 15.0, 30.0, 75.0, 150.0, 300.0)}
AMPERE_RANGES = {
    3: (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    6: (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
}
"""Ranges by crest factor."""

UPDATED, INTEGRATING, OVER_RANGE = 0x1, 0x2, 0x40 | 0x80 | 0x100
"""Bits of the condition and extended event registers (section 7.4): UPD, set while an update is being written, so that
its fall is the end; ITG; OVR1, POV1, POA1. A filter's number is its bit's plus one."""

CODES_PER_UNIT = 1_000_000
"""Readings are kept as whole microwatts and micro-watt-hours: the meter's digits, exactly."""
J_PER_ENERGY_CODE = 3600 / CODES_PER_UNIT
W_PER_POWER_CODE = 1 / CODES_PER_UNIT

START_S = 0.2
"""How long the meter is deaf after an integration was started."""

VALUES = ":STAT:EESR?;:STAT:COND?;:NUM:NORM:VAL?"
WAIT = ":COMM:WAIT 1;"
REPLY_CHARS = 36
"""Length of an answer to `VALUES` with two items, about."""
POWER_FACTOR = 0.9
"""What the 80 PLUS programme asks of a supply at half its load."""
ANSWER_NS = 1_000_000_000
LOOK_NS = 2_000_000
LATENCY_NS = 16_000_000
"""What a USB serial adapter or the meter may hold an answer back."""
SOON_NS = 4_000_000
"""A meter that answers within this had not to wait for its update."""
GREETINGS = 4


@dataclass(frozen=True, slots=True)
class Wt310eOptions:
    """Ranges are fixed: a meter that changes its range in a run measures nothing meanwhile."""

    port: str = field(
        metadata={"help": "serial port such as /dev/ttyUSB0 (best by /dev/serial/by-id), or /dev/usbtmc0"}
    )
    volts: float = field(metadata={"help": "voltage range: 300 for a 230 V socket, 150 for 120 V"})
    amperes: float = field(
        metadata={"help": "current range: what the node takes at most, and not more, since the error is a share of it"}
    )
    baud: int = option(9600, "baud rate as set on the meter (serial ports alone)")
    update_s: float = option(
        0.25, "distance of the meter's updates: 0.1 (needs 19200 baud or USBTMC), 0.25, 0.5, 1, 2 or 5"
    )
    coupling: Literal["ac", "dc"] = option(
        "ac", "ac (mode RMS, 45 to 66 Hz) or dc (mode DC): also which accuracy holds"
    )
    crest_factor: Literal[3, 6] = option(3, "as on the meter; 6 halves the ranges")
    integrate: bool = option(True, "let the meter integrate too: a line of its own watt-hours, the better run total")
    poll_ms: float = option(5.0, "distance of looks for an answer: what times are uncertain by")
    line: str = option("wall", "name of the line; the meter's energy is <line>_energy")
    device: str = option("node", "name of the device behind the meter")

    def __post_init__(self) -> None:
        for what, value, known in (
            ("volts", self.volts, VOLT_RANGES[self.crest_factor]),
            ("amperes", self.amperes, AMPERE_RANGES[self.crest_factor]),
            ("update_s", self.update_s, RATES_S),
        ):
            if value not in known:
                ranges = ", ".join(f"{v:g}" for v in known)
                raise ConfigError(f"{what} = {value:g}: a WT310E with crest factor {self.crest_factor} has {ranges}")
        if self.baud < 1 or not 1 <= self.poll_ms <= 1000 * self.update_s / 4:
            raise ConfigError("baud must be positive, and poll_ms from 1 to a quarter of the update")
        if not self.port or not self.line or not self.device:
            raise ConfigError("port, line and device must not be empty")
        # A question and its answer on a serial line of 10 bits a character.
        needed_s = (len(WAIT + VALUES) + REPLY_CHARS + 4) * 10 / self.baud
        if not is_usbtmc(self.port) and needed_s > 0.8 * self.update_s:
            raise ConfigError(
                f"one exchange takes {1000 * needed_s:.0f} ms at {self.baud} baud, too much for update_s = "
                f"{self.update_s:g}: raise the rate on the meter and 'baud' here, or update_s"
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer to `VALUES`. Codes are meaningless where their flag is not 0."""

    is_new: bool
    power: int
    power_flag: Flag
    energy: int
    energy_flag: Flag


def parse_reply(text: str, *, with_energy: bool) -> Reply:
    """The answer to `VALUES`. Raises ValueError for anything else."""
    event_bits, condition_bits, numbers = text.strip().split(";")
    events, condition = int(event_bits), int(condition_bits)
    values = [parse_value(number) for number in numbers.split(",")]
    if len(values) != (2 if with_energy else 1):
        raise ValueError(f"{text!r} has {len(values)} values")
    power, power_flag = values[0]
    if (condition | events) & OVER_RANGE:
        power_flag |= Flag.SATURATED
    energy, energy_flag = values[-1] if with_energy else (0, Flag(0))
    if with_energy and not condition & INTEGRATING:
        energy_flag |= Flag.MISSING
    return Reply(bool(events & UPDATED), power, power_flag, energy, energy_flag)


def parse_value(text: str) -> tuple[int, Flag]:
    """A number of the meter in `CODES_PER_UNIT`, or 0 with the flag that says why there is none. Raises ValueError."""
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    # Binary formats know 9.9E+37 for "over range" and 9.91E+37 for "no data"; ASCII says INF and NAN.
    if value.is_nan() or value == Decimal("9.91E+37"):
        return 0, Flag.MISSING
    if value.is_infinite() or value.copy_abs() >= Decimal("1E+12"):
        return 0, Flag.SATURATED
    return int((value * CODES_PER_UNIT).to_integral_value()), Flag(0)


def power_accuracy(model: str, o: Wt310eOptions, centre_ns: int) -> Accuracy:
    """Of the power, as standard uncertainties, from the limits that the maker states for twelve months.

    IM WT310E-02EN and IM WT310-02EN, section 7.3.2. The range of a power is the product of both ranges. A crest factor
    of 6 doubles the share of the range. AC is stated for a power factor of 1; with another, 0.1 % of the reactive power
    are added (the share of the range stays as for 1, which is the larger).
    """
    is_old, is_large, is_dc = "E" not in model.upper(), "H" in model.upper(), o.coupling == "dc"
    reading = 0.003 if is_dc and is_large else 0.001
    share = 0.002 if is_dc else 0.001 if is_old else 0.0005
    if o.crest_factor == 6:
        share *= 2
    phase = 0.0 if is_dc else 0.001 * sqrt(1 / POWER_FACTOR**2 - 1)
    range_w = o.volts * o.amperes
    what = "DC" if is_dc else f"AC of 45-66 Hz, power factor {POWER_FACTOR:g} or more"
    return Accuracy(
        u_gain=(reading + phase) / sqrt(3),
        u_offset_w=share * range_w / sqrt(3),
        step_w=range_w * 1e-5,
        window_ns=round(o.update_s * 1e9),
        centre_ns=centre_ns,
        origin=f"{model} specification, {what}: "
        f"±({reading + phase:.2%} of reading + {share:.2%} of the {range_w:g} W range)",
    )


class Wt310eSource(Source):
    """Lines ``wall`` (power, one reading for each of the meter's updates) and ``wall_energy`` (its own integration).

    Codes are whole microwatts and micro-watt-hours. A power stands at the middle of its update, an energy at its end.
    On a serial port the meter is asked to answer when its next update ends (``:COMM:WAIT``), so the answer's arrival
    tells the moment. A read from USBTMC would block meanwhile: there the event register is asked at every look.
    Tests give ``open_with`` a port of their own.
    """

    Options: ClassVar[type[Wt310eOptions]] = Wt310eOptions
    options: Wt310eOptions

    def __init__(self, options: Wt310eOptions, start: Start, open_with: OpenPort = open_port) -> None:
        super().__init__(options, start)
        self._open_with = open_with
        self._update_ns = round(options.update_s * 1e9)
        self._port: Port | None = None
        self._lines = LineReader(0)
        self._asked_ns: int | None = None
        self._heard_ns = self._looked_ns = 0
        self._ended_ns: int | None = None
        """End of the last update that was understood."""
        self._last_ns: int | None = None
        """The last reading of any kind."""
        self.garbled = 0
        """Answers that made no sense. A meter that gives no others counts as silent."""
        self.missed_updates = 0
        """Updates of the meter that went by unread."""
        self.overloads = 0
        """Updates whose power was beyond the range."""

    @property
    def period_ns(self) -> int:
        return round(self.options.poll_ms * 1e6)

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        port = self._port = self._open_with(o.port, o.baud)
        identity = self._greet(port)
        if _is_integrating(self._query(port, ":INTEG:STAT?")):
            self._command(port, ":INTEG:STOP")
        values = ("P", "WH") if o.integrate else ("P",)
        for command in (
            ":INTEG:RES",
            ":COMM:REM ON",
            ":COMM:HEAD OFF",
            ":SYST:COMM:COMM WT300",
            ":COMM:VERB ON",
            ":NUM:FORM ASCII",
            ":HOLD OFF",
            ":MEAS:MHOL OFF",
            ":MEAS:AVER:STAT OFF",
            f":INP:CFAC {o.crest_factor}",
            f":INP:MODE {'RMS' if o.coupling == 'ac' else 'DC'}",
            ":INP:VOLT:AUTO OFF",
            ":INP:CURR:AUTO OFF",
            f":INP:VOLT:RANG {o.volts:g}",
            f":INP:CURR:RANG {o.amperes:g}",
            f":SAMP:RATE {o.update_s:g}",
            ":STAT:FILT1 FALL",
            f":NUM:NORM:NUM {len(values)}",
            *(f":NUM:NORM:ITEM{i} {name},1" for i, name in enumerate(values, 1)),
            *((":INTEG:MODE NORM", ":INTEG:TIM 0,0,0") if o.integrate else ()),
        ):
            self._command(port, command)
        if o.integrate:
            self._command(port, ":INTEG:STAR", deaf_ns=round(START_S * 1e9))
            if not _is_integrating(state := self._query(port, ":INTEG:STAT?")):
                raise SensorError(f"{port.name}: the meter does not integrate, its state is {state!r}")
        self._query(port, ":STAT:EESR?")  # what it tells of is from before
        self._heard_ns = self._looked_ns = self.start.clock.now_ns()
        return (self._describe(identity),), (
            Device(o.device, (o.line,), f"all that is behind the wall meter {identity}"),
        )

    def poll(self) -> None:
        port, clock = self._port, self.start.clock
        assert port is not None, "open comes first"
        if self._asked_ns is None:
            self._asked_ns = clock.now_ns()
            self._send(port, VALUES if port.blocks else WAIT + VALUES)
        now_ns = clock.now_ns()
        data = port.read()
        if port.blocks:
            now_ns = clock.now_ns()
        before_ns, self._looked_ns = self._looked_ns, now_ns
        for begun_ns, line in self._lines.feed(data, before_ns, now_ns):
            if self._asked_ns is not None:
                at_ns = (before_ns + now_ns) // 2 if port.blocks else begun_ns
                self._accept(port, at_ns, now_ns - before_ns, line)
        if now_ns - self._heard_ns > 2 * self._update_ns + ANSWER_NS:
            raise SensorError(f"{port.name}: the meter gives no answer any more that makes sense: is it connected?")

    def health(self) -> dict[str, object]:
        return {
            "garbled_answers": self.garbled,
            "missed_updates": self.missed_updates,
            "overloads": self.overloads,
        }

    def close(self) -> None:
        """Stop the integration and give the keys back, as far as the meter still listens; let go of the port."""
        port, self._port = self._port, None
        if port is not None:
            with suppress(SensorError):
                if self.options.integrate:
                    self._send(port, ":INTEG:STOP")
                self._send(port, ":COMM:REM OFF")
            port.close()

    def _greet(self, port: Port) -> str:
        """The meter's identity. It may still owe an answer to somebody before us, and hold half a command of theirs."""
        identity = ""
        for attempt in range(GREETINGS):
            self._send(port, "")
            self._send(port, "*CLS")
            self._wait((self._update_ns if attempt else LATENCY_NS) + 6 * port.byte_ns)
            if not port.blocks:
                port.read()
            self._lines = LineReader(port.byte_ns)
            try:
                identity = self._query(port, "*IDN?")
            except SensorError:
                if attempt == GREETINGS - 1:
                    raise
            if identity.upper().startswith(("YOKOGAWA,WT31", "YOKOGAWA,WT33")):
                return identity
        raise SensorError(f"{port.name}: the meter says it is {identity!r}, which is no Yokogawa WT310E")

    def _accept(self, port: Port, at_ns: int, look_ns: int, line: bytes) -> None:
        """One answer, which came at ``at_ns`` in a look that was ``look_ns`` after the one before."""
        asked_ns, self._asked_ns = self._asked_ns or at_ns, None
        try:
            reply = parse_reply(line.decode("ascii"), with_energy=self.options.integrate)
        except ValueError:
            self.garbled += 1
            self._append(at_ns, Reply(True, 0, Flag.IO_ERROR, 0, Flag.IO_ERROR))
            return
        self._heard_ns = self._looked_ns
        end_ns = self._end_of_update(port, at_ns, look_ns, asked_ns) if reply.is_new else None
        if end_ns is not None:
            self._ended_ns = end_ns
            self._append(end_ns, reply)

    def _end_of_update(self, port: Port, at_ns: int, look_ns: int, asked_ns: int) -> int | None:
        """The end of the update behind an answer. Updates are regular: where the answer's arrival does not tell, the
        last end does. None when neither does."""
        last_ns, update_ns = self._ended_ns, self._update_ns
        if look_ns > self.period_ns + LATENCY_NS:
            # Nobody looked for a while, and the answer came at some moment of it.
            if last_ns is None or port.blocks:
                return None
            end_ns = last_ns + update_ns
            return end_ns if asked_ns < end_ns and abs(end_ns - at_ns) <= look_ns // 2 + LATENCY_NS else None
        came_at_once = at_ns - asked_ns <= len(WAIT + VALUES) * port.byte_ns + SOON_NS
        if port.blocks or last_ns is None or not came_at_once:
            return at_ns
        # It ended before the question arrived.
        return min(at_ns, last_ns + max(1, (at_ns - last_ns) // update_ns) * update_ns)

    def _append(self, end_ns: int, reply: Reply) -> None:
        last_ns, update_ns = self._last_ns, self._update_ns
        if last_ns is not None and end_ns <= last_ns:
            return
        if last_ns is not None and end_ns - last_ns > update_ns * 3 // 2:
            # Updates went by unread: one flagged reading in their place says so.
            self._put((last_ns + end_ns) // 2, Reply(True, 0, Flag.MISSING, 0, Flag.MISSING))
            self.missed_updates += round((end_ns - last_ns) / update_ns) - 1
        self._last_ns = end_ns
        self.overloads += bool(reply.power_flag & Flag.SATURATED)
        self._put(end_ns, reply)

    def _put(self, end_ns: int, r: Reply) -> None:
        half_ns = self._update_ns // 2
        lines = 2 if self.options.integrate else 1
        codes = (0 if r.power_flag else r.power, 0 if r.energy_flag else r.energy)
        flags = (int(r.power_flag), int(r.energy_flag))
        self.builders[0].append(end_ns - half_ns, (0, half_ns)[:lines], flags[:lines], (codes[:lines],))

    def _send(self, port: Port, text: str) -> None:
        port.write(text.encode("ascii") + (b"\n" if port.blocks else b"\r\n"))

    def _wait(self, duration_ns: int) -> None:
        self.start.clock.sleep_until(self.start.clock.now_ns() + duration_ns)

    def _command(self, port: Port, command: str, *, deaf_ns: int = 0) -> None:
        """A command during set-up, checked. Raises `SensorError` when the meter refuses it."""
        self._send(port, command)
        if deaf_ns:
            self._wait(deaf_ns + (len(command) + 2) * port.byte_ns)
        if not (error := self._query(port, ":STAT:ERR?")).startswith("0"):
            raise SensorError(f"{port.name}: the meter refuses {command!r}: error {error}")

    def _query(self, port: Port, question: str) -> str:
        """The answer to a query during set-up. Raises `SensorError` when there is none."""
        clock = self.start.clock
        self._send(port, question)
        give_up_ns = clock.now_ns() + ANSWER_NS + (len(question) + 2) * port.byte_ns
        while clock.now_ns() < give_up_ns:
            if not port.blocks:
                self._wait(LOOK_NS)
            now_ns = clock.now_ns()
            for _, line in self._lines.feed(port.read(), now_ns, now_ns):
                return line.decode("ascii", "replace").strip()
        raise SensorError(
            f"{port.name}: the meter does not answer {question!r}: is it on, connected, and at this baud rate?"
        )

    def _describe(self, identity: str) -> Stream:
        o = self.options
        provenance = Provenance.SIMULATED if "SIMULATED" in identity.upper() else Provenance.MEASURED
        accuracy = power_accuracy(identity.split(",")[1].strip(), o, self.period_ns // 2 + LATENCY_NS)
        text = f"active power at the wall, one reading for each update of {o.update_s:g} s"
        lines = [Line(o.line, o.device, ScaledConversion("code", W_PER_POWER_CODE), provenance, accuracy, text)]
        if o.integrate:
            origin = f"{accuracy.origin}, integrated by the meter without a hole"
            energy = replace(accuracy, step_w=0.0, window_ns=0, origin=origin)
            counter, text = (
                CounterConversion("code", J_PER_ENERGY_CODE),
                "energy at the wall as the meter integrates it",
            )
            lines.append(Line(f"{o.line}_energy", o.device, counter, provenance, energy, text))
        detail = {
            "identity": identity,
            "volt_range": o.volts,
            "ampere_range": o.amperes,
            "crest_factor": o.crest_factor,
            "coupling": o.coupling,
            "update_s": o.update_s,
            "codes": "microwatts and micro-watt-hours",
        }
        return self.add_stream((Column("code", "q"),), lines, self._update_ns, detail)


def _is_integrating(state: str) -> bool:
    return state.rpartition(" ")[2].upper().startswith("STAR")
