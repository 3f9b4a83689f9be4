"""Source ``sim``: the real INA driver on a simulated bus, by default with the eight supply lines of a graphics card."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import ClassVar, Literal

from powerd_core.errors import ConfigError
from powerd_core.model import Provenance
from powerd_core.serde import option
from powerd_daemon.clock import Deadlines
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.cpu_model import HOST_TICK_NS, PROCESS_LUMP_NS, HostCpu, ProcessCpu
from powerd_daemon.sources.ina.bus import RegisterBus
from powerd_daemon.sources.ina.sensor_accuracy import Sensor
from powerd_daemon.sources.ina.source import RailsOptions, RailsSource
from powerd_daemon.sources.sim.bus import (
    KINDS,
    NO_LOAD,
    ChipErrors,
    Faults,
    Load,
    SimBus,
    SimChip,
    SimulationClock,
    draw_errors,
)
from powerd_daemon.sources.sim.waveforms import (
    NOMINAL_V,
    SHARES,
    CardLoad,
    Constant,
    Host,
    Square,
    Telegraph,
    Training,
    TrainingOptions,
    Waveform,
)

FIRST_ADDRESS = 0x40
SIMULATED_BUS = -1
"""What stands for the bus's number in a calibration file."""
MOST_LATE_NS = 600_000_000_000
"""A machine that runs the simulation later than this is too slow for it, or stood: what lies before is missing. Others
that take most of the CPUs for minutes delay the readings, and neither change them nor make a hole."""
MOST_SCANS = 64
"""Scans that are made up for in one poll: then readings are sent on before the next."""

_WHAT = {
    "pcie_12v": "slot, 12 V",
    "pcie_3v3": "slot, 3.3 V",
} | {f"ext_12v_{i}": f"power connector, 12 V wire {i}" for i in range(1, 7)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions(RailsOptions):
    """Defaults scan 500 times a second, and each scan finds a conversion that no other scan has seen."""

    waveform: Literal["training", "constant", "square", "telegraph", "host"] = option(
        "training", "the load; 'host' follows the CPUs of this machine"
    )
    idle_w: float = option(30.0, "lowest power of the card")
    peak_w: float = option(250.0, "highest power of the card; the slot's shunt clips at 384 W")
    seed: int = option(1, "draws the chips' errors and the telegraph's steps")
    errors: Literal["datasheet", "none"] = option(
        "datasheet", "errors of the chips, within the data sheet's limits, or none"
    )
    shunt_ohm: float = option(0.05, "shunt resistance of every line")
    shunt_tolerance: float = option(0.01, "limit of the shunts' relative error")
    grade: Literal["A", "B"] = option("A", "grade of the INA219")
    shunt_adc: str = option("avg2", "shunt conversion: 9bit ... 12bit or avg2 ... avg128")
    bus_adc: str = option("10bit", "bus voltage conversion, likewise")
    pid: int = option(0, "'host' follows this process alone; 0 = the whole machine")
    cores: float = option(0.0, "busy cores at which 'host' reaches its peak; 0 = all")
    period_ms: float = option(101.3, "period of 'square'")
    duty: float = option(0.5, "share of the period for which 'square' is high")
    dwell_ms: float = option(40.0, "mean time for which 'telegraph' holds a level")
    training: TrainingOptions = option(TrainingOptions(), "phases of 'training': forward_ms, forward_level, ...")
    sensors: tuple[Sensor, ...] = option((), "sensors as for 'ina', which have equal currents; empty = the eight lines")
    adapter: Literal["combined", "single"] = option(
        "combined", "'single' refuses combined reads as the Raspberry Pi's adapter does"
    )
    fault_every_s: float = option(0.0, "mean time between faults of the bus; 0 = none")
    faults: tuple[str, ...] = option(KINDS, "which faults happen")

    def __post_init__(self) -> None:
        # Written out: a dataclass with slots is made anew, and super() would look for the old one.
        RailsOptions.__post_init__(self)
        if not 0 <= self.idle_w <= self.peak_w:
            raise ConfigError(f"idle_w = {self.idle_w:g} must be from 0 to peak_w = {self.peak_w:g}")
        if min(self.shunt_ohm, self.period_ms) <= 0 or min(self.pid, self.cores) < 0 or not 0 < self.duty < 1:
            raise ConfigError("shunt_ohm and period_ms must be positive, duty in 0 to 1, pid and cores not negative")
        if self.fault_every_s < 0 or not set(self.faults) <= set(KINDS) or not self.faults:
            raise ConfigError(f"fault_every_s must not be negative, and faults are some of {', '.join(KINDS)}")

    def all_sensors(self) -> tuple[Sensor, ...]:
        """The sensors that were given, or INA219 on the card's eight lines."""
        return self.sensors or tuple(
            Sensor(
                name=name,
                address=FIRST_ADDRESS + i,
                shunt_ohm=self.shunt_ohm,
                shunt_tolerance=self.shunt_tolerance,
                nominal_v=NOMINAL_V[name],
                shunt_adc=self.shunt_adc,
                bus_adc=self.bus_adc,
                grade=self.grade,
                description=f"{_WHAT[name]}, simulated",
            )
            for i, name in enumerate(SHARES)
        )

    def shares(self) -> dict[str, float]:
        """Each line's share of the load; sensors that were given have equal currents."""
        total_v = sum(s.nominal_v for s in self.sensors)
        return {s.name: s.nominal_v / total_v for s in self.sensors} or dict(SHARES)

    def at_load(self, sensor: str, power_w: float) -> SimOptions:
        """The same card, of which one line carries a steady power."""
        return replace(self, waveform="constant", idle_w=0.0, peak_w=power_w / self.shares()[sensor])


class SimSource(RailsSource):
    """Eight lines ``<device>.pcie_12v`` ... ``<device>.ext_12v_6`` at 0x40 ... 0x47 unless ``sensors`` are given.

    The board lives in a time of its own (`SimulationClock`): a sampler that comes late reads what the chips held at the
    moments of the scans that it has missed, so that readings and their times follow from the options and from when the
    source was opened (``host`` apart, which follows this machine's CPUs). More than `MOST_LATE_NS` is not made up.

    The stream's ``detail`` holds the load (see `waveform_from_detail`) and the errors drawn.
    """

    Options: ClassVar[type[SimOptions]] = SimOptions
    options: SimOptions
    provenance = Provenance.SIMULATED
    what = "simulated graphics card"
    catches_up = True

    def __init__(self, options: SimOptions, start: Start) -> None:
        self._real = start.clock
        super().__init__(
            options,
            replace(start, clock=SimulationClock(start.clock)),
            options.all_sensors(),
            bus=SIMULATED_BUS,
            combined=options.adapter == "combined",
        )
        self._deadlines: Deadlines | None = None
        self._host: HostCpu | None = None
        self.bus: SimBus | None = None
        """The simulated bus, once open: faults are injected here."""
        self.load: CardLoad | None = None
        """The simulated card, once open: exact joules."""

    def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
        o, clock, t0_ns, random = self.options, self.start.clock, self.start.clock.now_ns(), Random(self.options.seed)
        self.load = load = CardLoad(self._make_waveform(t0_ns), o.shares())
        chips: dict[int, SimChip] = {}
        errors: dict[int, ChipErrors] = {}
        for sensor, settings in self.bank:
            # One chip, with one set of errors, for all channels of an INA3221.
            if sensor.address in chips:
                continue
            exact, tolerance = o.errors == "none", sensor.shunt_tolerance
            errors[sensor.address] = draw_errors(
                random, settings, grade=sensor.grade, shunt_tolerance=tolerance, exact=exact
            )
            loads = [NO_LOAD] * len(settings.type.channels)
            for mate in (s for s in self.bank.sensors if s.address == sensor.address):
                loads[mate.channel - 1] = self._load(load, mate)
            chips[sensor.address] = SimChip(settings.type, loads, errors=errors[sensor.address], t_ns=t0_ns)
        # What the host did until now is spread over all of the time until now, however late this is.
        self.bus = SimBus(
            clock,
            chips,
            scl_hz=o.scl_hz,
            before=lambda end_ns: load.waveform.advance(max(end_ns, self._real.now_ns())),
            combines=o.adapter == "combined",
        )
        if o.fault_every_s:
            self.bus.trouble = Faults(o.seed, every_s=o.fault_every_s, t0_ns=t0_ns, kinds=o.faults)
        drawn = {s.name: asdict(errors[s.address]) for s in self.bank.sensors}
        return self.bus, {"seed": o.seed, "errors": o.errors, "drawn": drawn} | load.detail(t0_ns)

    def poll(self) -> None:
        """The scans that were due until now, each at its moment of the board's time."""
        now_ns, clock = self._real.now_ns(), self.start.clock
        if self._deadlines is None:
            self._deadlines = Deadlines(clock.now_ns(), self.period_ns)
        # A poll that comes a little early must not miss its turn.
        soon_ns = now_ns + self.period_ns // 2
        if now_ns - self._deadlines.next_ns > MOST_LATE_NS:
            clock.sleep_until(now_ns)
            self._deadlines.next_ns = now_ns
        for _ in range(MOST_SCANS):
            if self._deadlines.next_ns > soon_ns:
                return
            clock.sleep_until(self._deadlines.next_ns)
            self._deadlines.meet(clock.now_ns())
            super().poll()

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    @staticmethod
    def _load(card: CardLoad, sensor: Sensor) -> Load:
        """A line's average current: its share of the card's energy over the time, at its voltage."""
        a_per_w, energy_j = card.shares[sensor.name] / sensor.nominal_v * 1e9, card.waveform.energy_j
        return Load(
            lambda t0_ns, t1_ns: a_per_w * energy_j(t0_ns, t1_ns) / (t1_ns - t0_ns), sensor.nominal_v, sensor.shunt_ohm
        )

    def _make_waveform(self, t0_ns: int) -> Waveform:
        o = self.options
        match o.waveform:
            case "constant":
                return Constant(t0_ns, level_w=o.peak_w)
            case "square":
                return Square(t0_ns, low_w=o.idle_w, high_w=o.peak_w, period_ms=o.period_ms, duty=o.duty)
            case "telegraph":
                return Telegraph(t0_ns, low_w=o.idle_w, high_w=o.peak_w, dwell_ms=o.dwell_ms, seed=o.seed)
            case "host":
                self._host = None if o.pid else HostCpu()
                return Host(
                    t0_ns,
                    idle_w=o.idle_w,
                    peak_w=o.peak_w,
                    cores=o.cores or float(len(os.sched_getaffinity(0))),
                    smooth_ns=PROCESS_LUMP_NS if o.pid else HOST_TICK_NS,
                    cpu_ns=self._host or ProcessCpu(o.pid),
                )
        return Training(t0_ns, idle_w=o.idle_w, peak_w=o.peak_w, **asdict(o.training))
