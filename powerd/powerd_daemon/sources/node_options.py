"""Options of the source ``node``, and what they must fulfil together."""

from __future__ import annotations

from dataclasses import dataclass, field

from powerd_core.errors import ConfigError
from powerd_daemon.ina.sensor import Bank, Sensor, make_bank
from powerd_daemon.serial.protocol import MAX_SENSORS

READ_US = 120
"""A pointer write and a word read: 48 SCL periods at 400 kHz."""


@dataclass(frozen=True, slots=True)
class NodeSensor(Sensor):
    """One table of ``sensors``."""

    controller: int = field(default=0, metadata={"help": "I2C controller of the Pico: 0 (GP4, GP5) or 1 (GP6, GP7)"})

    def __post_init__(self) -> None:
        # Written out: a class with slots is made anew, and super() would look for the old one.
        Sensor.__post_init__(self)
        if self.controller not in (0, 1):
            raise ConfigError(f"{self.name}: controller = {self.controller}: a Pico has 0 and 1")
        if self.chip.upper() != "INA219":
            raise ConfigError(f"{self.name}: the node's firmware reads INA219 only, not {self.chip}")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A node reads eight sensors some 300 times a second; see firmware/README.md for the arithmetic."""

    port: str = field(metadata={"help": "serial port, best by its lasting name: /dev/serial/by-id/usb-..."})
    sensors: tuple[NodeSensor, ...] = field(metadata={"help": "the INA219 on the node: [[source.sensors]]"})
    rate_hz: float = field(default=250.0, metadata={"help": "scans per second"})
    baud: int = field(default=115_200, metadata={"help": "means nothing on USB; else at least 10 bits a byte"})
    device: str = field(default="gpu0", metadata={"help": "device that the lines belong to and feed"})
    marker: str = field(default="marker", metadata={"help": "name of the marker input's line; empty = leave it out"})
    clock_limit_us: float = field(
        default=1000.0,
        metadata={"help": "readings whose time is not guaranteed to this are a gap; part of each line's accuracy"},
    )
    calibration: str = field(
        default="", metadata={"help": "calibration file that `powerd calibrate` wrote; changes metadata, never codes"}
    )

    def __post_init__(self) -> None:
        if not self.port:
            raise ConfigError("port is empty: name the serial port of the node")
        if not 1 <= len(self.sensors) <= MAX_SENSORS:
            raise ConfigError(f"there are {len(self.sensors)} sensors: write 1 to {MAX_SENSORS} [[source.sensors]]")
        if not 0.1 <= self.rate_hz <= 2000:
            raise ConfigError(f"rate_hz = {self.rate_hz:g} is not between 0.1 and 2000")
        if self.baud < 1 or self.clock_limit_us <= 0:
            raise ConfigError("baud and clock_limit_us must be positive")
        names = [f"{s.device or self.device}.{s.name}" for s in self.sensors] + [f"{self.device}.{self.marker}"]
        if twins := [n for n in names if names.count(n) > 1]:
            raise ConfigError(f"two lines are called {twins[0]}: give each its own name")


def check_rate(options: NodeOptions) -> None:
    """Refuse what does not fit on the node's I2C, whatever its processor does. Raises `ConfigError`."""
    reads = 2 * len(options.sensors) + 1
    most_hz = 1e6 / (reads * READ_US)
    if options.rate_hz > most_hz:
        raise ConfigError(
            f"rate_hz = {options.rate_hz:g} does not fit: {len(options.sensors)} sensors take {reads} reads a scan "
            f"(shunt and bus each, and one check) of {READ_US} us at 400 kHz: at most {int(most_hz)} scans a second"
        )


def bank_of(sensors: tuple[NodeSensor, ...]) -> Bank:
    """The settings of all sensors, each controller's addresses checked by themselves."""
    for controller in (0, 1):
        if of_one := [s for s in sensors if s.controller == controller]:
            make_bank(of_one)
    return Bank(sensors, tuple(s.settings_of((1,)) for s in sensors))
