"""Source ``ina``: INA219, INA226, INA228 and INA3221 on one I2C bus of this machine.

`RailsSource` is what all sources of INA chips have in common, on Linux's bus or a simulated one: a bank of sensors,
the scanner that reads it, and one stream.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import ClassVar

from powerd_core.errors import ConfigError
from powerd_core.model import Accuracy, Block, Column, Device, Gap, Line, Provenance, Stream
from powerd_core.serde import option
from powerd_daemon.sources.base import LEAST_RATE_HZ, Source, Start, devices_of
from powerd_daemon.sources.ina.bus import READ_PERIODS, LinuxBus, RegisterBus
from powerd_daemon.sources.ina.chips import ChipSettings
from powerd_daemon.sources.ina.scanner import Scanner, wire_limit_hz
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, accuracy, calibrated_by, line, make_bank

MOST_BUS_EVERY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RailsOptions:
    """Options of every source of INA chips. Raises `ConfigError` for a pace that no bus has."""

    device: str = option("gpu0", "device that the lines belong to")
    rate_hz: float = option(500.0, "scans per second")
    scl_hz: float = option(400_000.0, "clock of the bus, as the machine's boot settings say")
    read_us: float = option(
        0.0, "longest time in which an adapter slower than its bus (USB) reads a register, as `powerd check` names it"
    )
    bus_every: int = option(1, "read bus voltages in every so-many-th scan only; their age is then recorded")
    bus_hold: float = option(0.01, "how far (relative) a bus voltage may move meanwhile, for the uncertainty")
    calibration: str = option("", "calibration file that `powerd calibrate` wrote; changes metadata, never codes")

    def __post_init__(self) -> None:
        for name, least, value, most in (
            ("rate_hz", LEAST_RATE_HZ, self.rate_hz, inf),
            ("scl_hz", 1, self.scl_hz, inf),
            ("read_us", 0, self.read_us, 1e6),
            ("bus_every", 1, self.bus_every, MOST_BUS_EVERY),
            ("bus_hold", 0, self.bus_hold, 0.999),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{name} = {value:g} is not between {least:g} and {most:g}")

    @property
    def read_ns(self) -> int:
        return round(self.read_us * 1000)

    def accuracy(self, sensor: Sensor, settings: ChipSettings) -> Accuracy:
        """How sure a sensor's readings are on this bus."""
        hold, period_ns = self.bus_hold if self.bus_every > 1 else 0.0, round(1e9 / self.rate_hz)
        return accuracy(sensor, settings, period_ns=period_ns, bus_hold=hold, read_ns=self.read_ns)

    @property
    def pace_hz(self) -> float:
        """The clock at which the bus would be as fast as its adapter."""
        return READ_PERIODS * 1e6 / self.read_us if self.read_us else self.scl_hz


class RailsSource(Source):
    """One stream of ``shunt`` and ``bus`` codes (16 bits, or 32 where a chip has more than 16) of all sensors of a bus.

    Where the bus voltage is read in every k-th scan only, the column ``bus_age`` says how many scans old its code is,
    and what it may have moved since is part of the lines' gain uncertainty. A subclass says how to reach the bus.
    """

    options: RailsOptions
    provenance: Provenance
    what = "power rails"
    """The devices' description."""

    def __init__(
        self,
        options: RailsOptions,
        start: Start,
        sensors: Sequence[Sensor],
        *,
        bus: int | str,
        combined: bool = True,
    ) -> None:
        """``bus`` is what a calibration file calls the bus of ``sensors``; ``combined`` is what its adapter can do."""
        super().__init__(options, start)
        calibrated, self._records = calibrated_by(options.calibration, sensors, bus=bus)
        self.bank = make_bank(calibrated)
        self._scanner: Scanner | None = None
        self._check_rate(combined)

    @abstractmethod
    def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
        """Get hold of the bus; with it, what else the stream's ``detail`` is to say. Raises `SensorError`."""

    def foresee(self) -> tuple[Line, ...]:
        o = self.options
        return tuple(line(*pair, o.device, self.provenance, o.accuracy(*pair)) for pair in self.bank)

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o, bank = self.options, self.bank
        bus, detail = self.connect()
        self._scanner = scanner = Scanner(
            bus,
            self.start.clock,
            bank,
            scl_hz=o.pace_hz,
            period_ns=self.period_ns,
            bus_every=o.bus_every,
            read_ns=o.read_ns,
        )
        scanner.open()
        self._check_rate(scanner.combined)
        is_held = o.bus_every > 1
        columns = [Column(name, code) for name, code in zip(("shunt", "bus"), scanner.typecodes, strict=True)]
        held: dict[str, object] = {}
        if is_held:
            columns.append(Column("bus_age", "B"))
            held = {"bus_age_max_ns": (o.bus_every - 1) * self.period_ns, "bus_hold": o.bus_hold}
        words_at = {sensor.address: settings.words for sensor, settings in bank}
        common: dict[str, object] = {
            "scl_hz": o.scl_hz,
            "read_us": o.read_us,
            "combined_reads": scanner.combined,
            "bus_every": o.bus_every,
            "calibration": self._records,
            "sensors": [asdict(s) for s in bank.sensors],
            "configuration": {
                f"{address:#04x}": [f"{register:#04x}={word:#06x}" for register, word in words]
                for address, words in words_at.items()
            },
        }
        stream = self.add_stream(columns, self.foresee(), self.period_ns, common | held | dict(detail))
        return (stream,), devices_of(stream, self.what)

    def poll(self) -> None:
        assert self._scanner is not None, "open comes first"
        self._scanner.scan()

    def take(self) -> list[Block | Gap]:
        if self._scanner is not None and self.builders:
            self._scanner.take(self.builders[0])
        return super().take()

    def finish(self) -> list[Block | Gap]:
        if self._scanner is not None and self.builders:
            self._scanner.finish(self.builders[0])
        return super().take()

    def health(self) -> dict[str, object]:
        if self._scanner is None:
            return {}
        left_out = {f"{address:#04x}": trouble for address, trouble in self._scanner.troubles.items()}
        return {"combined_reads": self._scanner.combined, "left_out": left_out, **asdict(self._scanner.counts)}

    def _check_rate(self, combined: bool) -> None:
        o = self.options
        limit_hz = wire_limit_hz(self.bank, o.pace_hz, combined=combined and not o.read_us, bus_every=o.bus_every)
        if o.rate_hz > limit_hz:
            how = "" if combined else " whose adapter cannot combine reads"
            pace = f"read_us = {o.read_us:g}" if o.read_us else f"scl_hz = {o.scl_hz:g}{how}"
            raise ConfigError(
                f"rate_hz = {o.rate_hz:g} does not fit on a bus of {pace}: at most {limit_hz:.1f} scans of "
                f"{len(self.bank.sensors)} sensors a second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class InaOptions(RailsOptions):
    """Give each bus a ``[[source]]`` of its own: each has a sampler process of its own then."""

    bus: int | str = field(metadata={"help": "number of the bus or its path, such as 2 or '/dev/i2c-2'"})
    sensors: tuple[Sensor, ...] = field(metadata={"help": "list of the sensors: name, address, chip, shunt_ohm, ..."})
    timeout_ms: int = option(50, "after which the adapter gives up a stuck transfer")

    def __post_init__(self) -> None:
        # Written out: a dataclass with slots is made anew, and super() would look for the old one.
        RailsOptions.__post_init__(self)
        if not 10 <= self.timeout_ms <= 5000:
            raise ConfigError(f"timeout_ms = {self.timeout_ms} is not between 10 and 5000")


class InaSource(RailsSource):
    """Measured rails. Needs `smbus2` and permission to use the bus's device file."""

    Options: ClassVar[type[InaOptions]] = InaOptions
    options: InaOptions
    provenance = Provenance.MEASURED
    what = "power rails on shunts"

    def __init__(self, options: InaOptions, start: Start) -> None:
        super().__init__(options, start, options.sensors, bus=options.bus)
        self._bus: LinuxBus | None = None

    def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
        self._bus = LinuxBus(self.options.bus, timeout_ms=self.options.timeout_ms)
        return self._bus, {"bus": self._bus.path}

    def close(self) -> None:
        if self._bus is not None:
            self._bus.close()
            self._bus = None
