"""Source ``ina``: INA219, INA226, INA228 and INA3221 on one I2C bus of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from powerd_core.errors import ConfigError
from powerd_core.model import Provenance
from powerd_daemon.i2c.linux import LinuxBus
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.ina.sensor import Sensor
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.rails import RailsSource


@dataclass(frozen=True, slots=True)
class InaOptions:
    """Give each bus a ``[[source]]`` of its own: each has a sampler process of its own then."""

    bus: int | str = field(metadata={"help": "number of the bus or its path, such as 2 or '/dev/i2c-2'"})
    sensors: tuple[Sensor, ...] = field(metadata={"help": "list of the sensors: name, address, chip, shunt_ohm, ..."})
    device: str = field(default="gpu0", metadata={"help": "device that the lines belong to"})
    rate_hz: float = field(default=500.0, metadata={"help": "scans per second"})
    scl_hz: float = field(default=400_000.0, metadata={"help": "clock of the bus, as the machine's boot settings say"})
    bus_every: int = field(
        default=1, metadata={"help": "read bus voltages in every so-many-th scan only; their age is then recorded"}
    )
    bus_hold: float = field(
        default=0.01, metadata={"help": "how far (relative) a bus voltage may move meanwhile, for the uncertainty"}
    )
    calibration: str = field(
        default="", metadata={"help": "calibration file that `powerd calibrate` wrote; changes metadata, never codes"}
    )
    timeout_ms: int = field(default=50, metadata={"help": "after which the adapter gives up a stuck transfer"})

    def __post_init__(self) -> None:
        if self.bus == "" or (isinstance(self.bus, int) and self.bus < 0):
            raise ConfigError(f"bus = {self.bus!r} is no bus: give the number or path of a /dev/i2c-N")
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
