"""A sensor as the configuration gives it: a channel of a chip with its shunt, its calibration and what it feeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from powerd_core.calibration import Calibration
from powerd_core.errors import ConfigError
from powerd_core.serde import option
from powerd_daemon.sources.ina.chips import Settings, chip_type


@dataclass(frozen=True, slots=True)
class Sensor:
    """One table of a source's ``sensors``."""

    name: str = field(metadata={"help": "name of the line, after the device's: gpu0.<name>"})
    address: int = field(metadata={"help": "7-bit address on the bus, such as 0x40"})
    chip: str = option("INA219", "INA219, INA226, INA228 or INA3221")
    channel: int = option(1, "channel of an INA3221: 1 to 3")
    shunt_ohm: float = option(0.05, "resistance of the shunt")
    shunt_tolerance: float = option(0.01, "limit of the shunt's relative error")
    nominal_v: float = option(12.0, "voltage of the line")
    shunt_adc: str = option("", "shunt conversion: INA219 9bit ... avg128, others 140us ...")
    bus_adc: str = option("", "bus voltage conversion, likewise")
    averages: int = option(1, "conversions that are averaged (INA226, INA228; for the INA219 see shunt_adc)")
    shunt_range: str = option("", "such as 320mV (INA219) or 41mV (INA228); empty = widest")
    bus_range: str = option("", "16V or 32V (INA219); empty = widest")
    grade: str = option("", "grade of an INA219: A or B")
    device: str = option("", "device that the line belongs to; empty = the source's")
    description: str = option("", "what the line is, in words")
    calibration: Calibration = option(Calibration(), "what a calibration found")

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a sensor needs a name")
        kind = chip_type(self.chip)
        first, last = kind.addresses
        if not first <= self.address <= last:
            raise ConfigError(f"{self.name}: address {self.address:#04x} is not of an {kind.name}")
        if not (self.shunt_ohm > 0 and self.nominal_v > 0 and 0 <= self.shunt_tolerance < 1):
            raise ConfigError(f"{self.name}: shunt_ohm and nominal_v must be positive, shunt_tolerance in 0 to 1")
        self.settings_of((self.channel,)).grade(self.grade)

    def settings_of(self, channels: tuple[int, ...]) -> Settings:
        """The chip's settings when these channels of it are converted. Raises `ConfigError`."""
        try:
            return Settings(
                self.chip, self.shunt_adc, self.bus_adc, self.averages, self.shunt_range, self.bus_range, channels
            )
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class Bank:
    """The sensors of one bus: each with its chip's settings, in the order of the configuration."""

    sensors: tuple[Sensor, ...]
    settings: tuple[Settings, ...]

    def __iter__(self) -> Iterator[tuple[Sensor, Settings]]:
        return zip(self.sensors, self.settings, strict=True)

    @property
    def longest_cycle_ns(self) -> int:
        """After this long, every sensor has a new pair of codes."""
        return max(s.longest_cycle_ns for s in self.settings)


def make_bank(sensors: Sequence[Sensor]) -> Bank:
    """Check that the sensors fit together on one bus. Raises `ConfigError`."""
    if not sensors:
        raise ConfigError("there are no sensors: add [[source.sensors]] with 'name' and 'address'")
    for i, one in enumerate(sensors):
        for other in sensors[:i]:
            if (one.device, one.name) == (other.device, other.name):
                raise ConfigError(f"two sensors are called {one.name!r}: give each its own name")
            if one.address != other.address:
                continue
            if one.channel == other.channel:
                raise ConfigError(f"{other.name} and {one.name} are both at {one.address:#04x}")
            if one.settings_of((1,)) != other.settings_of((1,)):
                raise ConfigError(f"{other.name} and {one.name} share a chip and must have the same settings")
    channels = {s.address: tuple(sorted(o.channel for o in sensors if o.address == s.address)) for s in sensors}
    return Bank(tuple(sensors), tuple(s.settings_of(channels[s.address]) for s in sensors))
