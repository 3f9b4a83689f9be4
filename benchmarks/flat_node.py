"""Sources that cost little and have a large node's rates: rails of INA chips on two buses, and GPUs as NVML tells them.

For benchmarks of who reads them. What they tell is simulated.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from powerd_core.model import (
    Accuracy,
    Column,
    Device,
    Line,
    Provenance,
    QuantityConversion,
    ScaledConversion,
    Stream,
)
from powerd_daemon.sources.base import Source

POWER = Column("power_mw", "I")


@dataclass(frozen=True, slots=True)
class RailsOptions:
    """``lines`` rails in two streams, each of a device of its own."""

    lines: int = 16
    rate_hz: float = 1000.0


@dataclass(frozen=True, slots=True)
class GpusOptions:
    """``gpus`` GPUs, each with a stream of power and one of a limit and of why its clocks are not higher."""

    gpus: int = 8
    rate_hz: float = 50.0


def line(name: str, device: str, u_gain: float) -> Line:
    accuracy = Accuracy(u_gain, step_w=1e-3)
    return Line(name, device, ScaledConversion(POWER.name, 1e-3), Provenance.SIMULATED, accuracy)


class Rails(Source):
    Options: ClassVar[type[RailsOptions]] = RailsOptions
    options: RailsOptions

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        half = self.options.lines // 2
        self._draws = [[random.Random(i).randrange(20_000, 60_000) for _ in range(half)] for i in range(997)]
        self._at = 0
        devices = []
        for bus in range(2):
            lines = [line(f"rail{bus}.wire_{i}", f"rail{bus}", 0.004) for i in range(half)]
            self.add_stream((POWER,), lines, self.period_ns, {})
            devices.append(Device(f"rail{bus}", tuple(one.name for one in lines)))
        return tuple(builder.stream for builder in self.builders), tuple(devices)

    def poll(self) -> None:
        t_ns, self._at = self.start.clock.now_ns(), (self._at + 1) % len(self._draws)
        n = self.options.lines // 2
        for builder in self.builders:
            builder.append(t_ns, range(0, 100_000 * n, 100_000), (0,) * n, (self._draws[self._at],))


class Gpus(Source):
    Options: ClassVar[type[GpusOptions]] = GpusOptions
    options: GpusOptions

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        devices = []
        for i in range(self.options.gpus):
            own = line(f"gpu{i}.nvml", f"gpu{i}", 0.029)
            self.add_stream((POWER,), (own,), self.period_ns, {})
            devices.append(Device(own.device, (own.name,)))
        for i in range(self.options.gpus):
            told = (("power_limit", "power_limit_w", 1e-3), ("clock_events", "clock_events_bits", 1.0))
            sides = [
                Line(f"gpu{i}.{name}", f"gpu{i}", QuantityConversion(POWER.name, kind, per), Provenance.SIMULATED)
                for name, kind, per in told
            ]
            self.add_stream((POWER,), sides, 10**9, {})
        self._scans = 0
        return tuple(builder.stream for builder in self.builders), tuple(devices)

    def poll(self) -> None:
        t_ns, n = self.start.clock.now_ns(), self.options.gpus
        for i, builder in enumerate(self.builders[:n]):
            builder.append(t_ns, (0,), (0,), ((400_000 + 1000 * (self._scans * (i + 3) % 97),),))
        if self._scans % round(self.options.rate_hz) == 0:
            for builder in self.builders[n:]:
                builder.append(t_ns, (0, 0), (0, 0), ((700_000, 4),))
        self._scans += 1
