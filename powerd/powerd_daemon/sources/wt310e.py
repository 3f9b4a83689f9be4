"""Source ``wt310e``: a Yokogawa WT310E at the wall socket, on a serial port or USBTMC."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from powerd_core.errors import ConfigError, SensorError
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
from powerd_daemon.meter import wt310
from powerd_daemon.meter.link import OpenLink, is_usbtmc, open_link
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.wt310e_session import Session


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
    baud: int = field(default=9600, metadata={"help": "baud rate as set on the meter (serial ports alone)"})
    update_s: float = field(
        default=0.25,
        metadata={"help": "distance of the meter's updates: 0.1 (needs 19200 baud or USBTMC), 0.25, 0.5, 1, 2 or 5"},
    )
    coupling: Literal["ac", "dc"] = field(
        default="ac", metadata={"help": "ac (mode RMS, 45 to 66 Hz) or dc (mode DC): also which accuracy holds"}
    )
    crest_factor: Literal[3, 6] = field(default=3, metadata={"help": "as on the meter; 6 halves the ranges"})
    integrate: bool = field(
        default=True,
        metadata={"help": "let the meter integrate too: a line of its own watt-hours, the better run total"},
    )
    poll_ms: float = field(
        default=5.0, metadata={"help": "distance of looks for an answer: what times are uncertain by"}
    )
    line: str = field(default="wall", metadata={"help": "name of the line; the meter's energy is <line>_energy"})
    device: str = field(default="node", metadata={"help": "name of the device behind the meter"})

    def __post_init__(self) -> None:
        for what, value, known in (
            ("volts", self.volts, wt310.VOLT_RANGES[self.crest_factor]),
            ("amperes", self.amperes, wt310.AMPERE_RANGES[self.crest_factor]),
        ):
            if value not in known:
                raise ConfigError(
                    f"{what} = {value:g} is no range of a WT310E with crest factor {self.crest_factor}: "
                    f"choose from {', '.join(f'{v:g}' for v in known)}"
                )
        if self.update_s not in wt310.RATES_S:
            rates = ", ".join(f"{v:g}" for v in wt310.RATES_S)
            raise ConfigError(f"update_s = {self.update_s:g} is no update interval of a WT310E: choose from {rates}")
        if self.baud < 1200:
            raise ConfigError(f"baud = {self.baud} is not between 1200 and 57600")
        if not 1 <= self.poll_ms <= 1000 * self.update_s / 4:
            raise ConfigError(
                f"poll_ms = {self.poll_ms:g} must be from 1 to a quarter of the update, {250 * self.update_s:g}"
            )
        if not self.port or not self.line or not self.device:
            raise ConfigError("port, line and device must not be empty")
        needed_s = wt310.exchange_s(self.baud, wait=True)
        if not self.is_usb and needed_s > 0.8 * self.update_s:
            raise ConfigError(
                f"one exchange takes {1000 * needed_s:.0f} ms at {self.baud} baud, too much for update_s = "
                f"{self.update_s:g}: raise the rate on the meter and 'baud' here, or update_s"
            )

    @property
    def is_usb(self) -> bool:
        return is_usbtmc(self.port)


class Wt310eSource(Source):
    """Lines ``wall`` (power, one reading for each of the meter's updates) and ``wall_energy`` (its own integration).

    Codes are whole microwatts and micro-watt-hours. A power stands at the middle of its update, an energy at its end.
    Tests give ``opener`` a link of their own.
    """

    Options: ClassVar[type[Wt310eOptions]] = Wt310eOptions
    options: Wt310eOptions

    def __init__(self, options: Wt310eOptions, start: Start, opener: OpenLink = open_link) -> None:
        super().__init__(options, start)
        self._opener = opener
        self._session: Session | None = None
        self._builder: BlockBuilder | None = None
        self._last_ns: int | None = None
        self.missed_updates = 0
        """Updates of the meter that went by unread."""
        self.overloads = 0
        """Updates whose power was beyond the range."""

    @property
    def period_ns(self) -> int:
        return round(self.options.poll_ms * 1e6)

    @property
    def _update_ns(self) -> int:
        return round(self.options.update_s * 1e9)

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        self._session = Session(
            self._opener(o.port, o.baud),
            self.start.clock,
            update_ns=self._update_ns,
            poll_ns=self.period_ns,
            with_energy=o.integrate,
        )
        identity = self._session.begin(
            coupling="RMS" if o.coupling == "ac" else "DC",
            crest_factor=o.crest_factor,
            volts=o.volts,
            amperes=o.amperes,
            rate_s=o.update_s,
        )
        stream = self._describe(identity, self._session)
        self._builder = self.start.builder(stream)
        return (stream,), (Device(o.device, (o.line,), f"all that is behind the wall meter {identity}"),)

    def poll(self) -> None:
        assert self._session is not None, "open comes first"
        for end_ns, reply in self._session.poll():
            if reply is None:
                self._append(end_ns, (Flag.IO_ERROR, Flag.IO_ERROR), (0, 0))
            else:
                self._append(end_ns, (reply.power_flag, reply.energy_flag), (reply.power, reply.energy))

    def take(self) -> list[Block | Gap]:
        block = self._builder.take() if self._builder is not None else None
        return [block] if block else []

    def health(self) -> dict[str, object]:
        return {
            "garbled_answers": 0 if self._session is None else self._session.garbled,
            "missed_updates": self.missed_updates,
            "overloads": self.overloads,
        }

    def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            with suppress(SensorError):
                session.end()

    def _append(self, end_ns: int, flags: tuple[Flag, Flag], codes: tuple[int, int]) -> None:
        assert self._builder is not None
        lines = 2 if self.options.integrate else 1
        if self._last_ns is not None:
            distance_ns = end_ns - self._last_ns
            if distance_ns <= 0:
                return
            if distance_ns > self._update_ns * 3 // 2:
                # Updates went by unread: one flagged reading in their place says so.
                self._put(self._last_ns + distance_ns // 2, (Flag.MISSING,) * lines, (0,) * lines)
                self.missed_updates += round(distance_ns / self._update_ns) - 1
        self._last_ns = end_ns
        self.overloads += bool(flags[0] & Flag.SATURATED)
        self._put(end_ns, flags[:lines], codes[:lines])

    def _put(self, end_ns: int, flags: tuple[Flag, ...], codes: tuple[int, ...]) -> None:
        assert self._builder is not None
        half_ns = self._update_ns // 2
        self._builder.append(
            end_ns - half_ns,
            (0, half_ns)[: len(flags)],
            tuple(int(f) for f in flags),
            (tuple(0 if f else c for f, c in zip(flags, codes, strict=True)),),
        )

    def _describe(self, identity: str, session: Session) -> Stream:
        o = self.options
        centre_ns = session.uncertain_ns
        provenance = Provenance.SIMULATED if "SIMULATED" in identity.upper() else Provenance.MEASURED
        accuracy = wt310.accuracy(
            model=wt310.model_of(identity),
            is_dc=o.coupling == "dc",
            crest_factor=o.crest_factor,
            volts=o.volts,
            amperes=o.amperes,
            window_ns=self._update_ns,
            centre_ns=centre_ns,
        )
        lines = [
            Line(
                o.line,
                o.device,
                ScaledConversion("code", wt310.W_PER_POWER_CODE),
                provenance,
                accuracy,
                f"active power at the wall, one reading for each update of {o.update_s:g} s",
            )
        ]
        if o.integrate:
            energy = Accuracy(
                u_gain=accuracy.u_gain,
                u_offset_w=accuracy.u_offset_w,
                centre_ns=centre_ns,
                origin=f"{accuracy.origin}, integrated by the meter without a hole",
            )
            lines.append(
                Line(
                    f"{o.line}_energy",
                    o.device,
                    CounterConversion("code", wt310.J_PER_ENERGY_CODE),
                    provenance,
                    energy,
                    "energy at the wall as the meter integrates it",
                )
            )
        return Stream(
            self.start.first_stream,
            self.start.name,
            (Column("code", "q"),),
            tuple(lines),
            self._update_ns,
            {
                "identity": identity,
                "volt_range": o.volts,
                "ampere_range": o.amperes,
                "crest_factor": o.crest_factor,
                "coupling": o.coupling,
                "update_s": o.update_s,
                "codes": "microwatts and micro-watt-hours",
            },
        )
