"""What sources of INA chips have in common, on Linux's bus or a simulated one: a bank, its scanner, one stream."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from powerd_core.errors import ConfigError
from powerd_core.model import Block, BlockBuilder, Column, Device, Gap, Provenance, Stream
from powerd_daemon.calibration_file import calibrated_by
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.ina.plan import wire_limit_hz
from powerd_daemon.ina.scanner import Scanner
from powerd_daemon.ina.sensor import Sensor, line, make_bank
from powerd_daemon.sources.base import Source, Start

MOST_BUS_EVERY = 200
LEAST_RATE_HZ = 0.001
"""Of every source that is read at a pace: a reading in a quarter of an hour."""


class RailsOptions(Protocol):
    """What the options of all sources of INA chips have."""

    @property
    def device(self) -> str: ...
    @property
    def rate_hz(self) -> float: ...
    @property
    def scl_hz(self) -> float: ...
    @property
    def bus_every(self) -> int: ...
    @property
    def bus_hold(self) -> float: ...
    @property
    def calibration(self) -> str: ...


def check_pace(options: RailsOptions) -> None:
    """Raise `ConfigError` for a pace that no bus has."""
    if options.rate_hz < LEAST_RATE_HZ:
        raise ConfigError(f"rate_hz must be at least {LEAST_RATE_HZ:g}")
    if options.scl_hz < 1:
        raise ConfigError("scl_hz must be at least 1")
    if not 1 <= options.bus_every <= MOST_BUS_EVERY:
        raise ConfigError(f"bus_every = {options.bus_every} is not between 1 and {MOST_BUS_EVERY}")
    if not 0 <= options.bus_hold < 1:
        raise ConfigError(f"bus_hold = {options.bus_hold:g} is not between 0 and 1")


class RailsSource(Source):
    """One stream of ``shunt`` and ``bus`` codes (16 bits, or 32 where a chip has more than 16) of all sensors of a bus.

    Where the bus voltage is read in every k-th scan only, the column ``bus_age`` says how many scans old its code is,
    and what it may have moved since is part of the lines' gain uncertainty. A subclass says how to reach the bus.
    """

    provenance: Provenance

    def __init__(
        self,
        options: RailsOptions,
        start: Start,
        sensors: Sequence[Sensor],
        *,
        bus: int | str,
        combined: bool = True,
    ) -> None:
        """``bus`` is what a calibration file calls the bus of ``sensors``."""
        super().__init__(options, start)
        known, self._records = calibrated_by(options.calibration, sensors, bus=bus)
        self.bank = bank = make_bank(known)
        rate_hz, scl_hz = options.rate_hz, options.scl_hz
        bus_every, bus_hold = options.bus_every, options.bus_hold
        check_pace(options)
        most_hz = wire_limit_hz(bank, scl_hz, combined=combined, bus_every=bus_every)
        if rate_hz > most_hz:
            raise ConfigError(
                f"rate_hz = {rate_hz:g} does not fit on a bus of scl_hz = {scl_hz:g}: at most {int(most_hz)} scans of "
                f"{len(bank.sensors)} sensors a second ({scl_hz / most_hz:.0f} clock periods each)"
            )
        self._device, self._rate_hz, self._scl_hz, self._bus_every = options.device, rate_hz, scl_hz, bus_every
        self._bus_hold = bus_hold if bus_every > 1 else 0.0
        self._scanner: Scanner | None = None
        self._builder: BlockBuilder | None = None

    @property
    def period_ns(self) -> int:
        return round(1e9 / self._rate_hz)

    @abstractmethod
    def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
        """Get hold of the bus; with it, what else the stream's ``detail`` is to say. Raises `SensorError`."""

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        bus, detail = self.connect()
        self._scanner = scanner = Scanner(
            bus, self.start.clock, self.bank, scl_hz=self._scl_hz, period_ns=self.period_ns, bus_every=self._bus_every
        )
        scanner.open()
        self._refuse_single_reads(scanner)
        stream = self._describe(scanner, detail)
        self._builder = self.start.builder(stream)
        owners = dict.fromkeys(made.device for made in stream.lines)
        devices = tuple(Device(o, tuple(m.name for m in stream.lines if m.device == o), self.what) for o in owners)
        return (stream,), devices

    what = "power rails"
    """The devices' description."""

    def poll(self) -> None:
        assert self._scanner is not None, "open comes first"
        self._scanner.scan()

    def take(self) -> list[Block | Gap]:
        if self._scanner is None or self._builder is None:
            return []
        self._scanner.take(self._builder)
        block = self._builder.take()
        return [block] if block else []

    def finish(self) -> list[Block | Gap]:
        if self._scanner is None or self._builder is None:
            return []
        self._scanner.finish(self._builder)
        block = self._builder.take()
        return [block] if block else []

    def health(self) -> dict[str, object]:
        if self._scanner is None:
            return {}
        out = {f"{address:#04x}": trouble for address, trouble in self._scanner.troubles.items()}
        counts = asdict(self._scanner.counts)
        return {"combined_reads": self._scanner.combined, "left_out": out, **counts}

    def _refuse_single_reads(self, scanner: Scanner) -> None:
        """Probing found an adapter that cannot combine reads: what is asked may be more than it carries."""
        most_hz = wire_limit_hz(self.bank, self._scl_hz, combined=False, bus_every=self._bus_every)
        if not scanner.combined and self._rate_hz > most_hz:
            raise ConfigError(
                f"rate_hz = {self._rate_hz:g} is more than this bus can carry: its adapter cannot combine reads, and "
                f"{self._scl_hz / most_hz:.0f} clock periods a scan at scl_hz = {self._scl_hz:g} allow {int(most_hz)} "
                "scans a second"
            )

    def _describe(self, scanner: Scanner, detail: Mapping[str, object]) -> Stream:
        lines = tuple(
            line(
                sensor,
                settings,
                device=self._device,
                provenance=self.provenance,
                period_ns=self.period_ns,
                bus_hold=self._bus_hold,
            )
            for sensor, settings in zip(self.bank.sensors, self.bank.settings, strict=True)
        )
        shunt, bus = scanner.typecodes
        columns = [Column("shunt", shunt), Column("bus", bus)]
        common: dict[str, object] = {
            "scl_hz": self._scl_hz,
            "combined_reads": scanner.combined,
            "bus_every": self._bus_every,
            "calibration": self._records,
            "sensors": [asdict(s) for s in self.bank.sensors],
            "configuration": {
                f"{s.address:#04x}": [f"{register:#04x}={word:#06x}" for register, word in settings.words]
                for s, settings in zip(self.bank.sensors, self.bank.settings, strict=True)
            },
        }
        if self._bus_every > 1:
            columns.append(Column("bus_age", "B"))
            common["bus_age_max_ns"] = (self._bus_every - 1) * self.period_ns
            common["bus_hold"] = self._bus_hold
        return Stream(
            self.start.first_stream, self.start.name, tuple(columns), lines, self.period_ns, common | dict(detail)
        )
