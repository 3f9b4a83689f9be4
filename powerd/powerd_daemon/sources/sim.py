"""Source ``sim``: the real INA driver on a simulated bus, by default with the eight supply lines of a graphics card."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from random import Random
from typing import ClassVar, Literal

from powerd_core.errors import ConfigError
from powerd_core.model import Provenance
from powerd_daemon.clock import SystemClock
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.ina.plan import wire_limit_hz
from powerd_daemon.ina.sensor import Sensor
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import ChipErrors, Load, SimChip, draw_errors
from powerd_daemon.sim.faults import KINDS, Faults
from powerd_daemon.sim.host import Host
from powerd_daemon.sim.shapes import Constant, Square, Training, TrainingOptions, Waveform
from powerd_daemon.sim.telegraph import Telegraph
from powerd_daemon.sim.waveform import NOMINAL_V, SHARES, CardLoad
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.cpu_time import HOST_TICK_NS, PROCESS_LUMP_NS, HostCpu, ProcessCpu, or_last
from powerd_daemon.sources.rails import RailsSource

FIRST_ADDRESS = 0x40
SIMULATED_BUS = -1
"""What stands for the bus's number in a calibration file."""
WAKE_EARLY_NS = 150_000
"""Room for the latency of a real clock's sleep and for working out the registers, which a real bus does not need."""
PUNCTUAL_NS = 70_000
"""The same for a sampler with real-time priority, which wakes up sooner and must not wait busily all the time."""
BUSY = 0.8
"""Above this share of the wire's limit, the bus keeps time to the end of each transfer, waiting busily."""

_WHAT = {
    "pcie_12v": "slot, 12 V",
    "pcie_3v3": "slot, 3.3 V",
} | {f"ext_12v_{i}": f"power connector, 12 V wire {i}" for i in range(1, 7)}


@dataclass(frozen=True, slots=True)
class SimOptions:
    """Defaults scan 500 times a second, and each scan finds a conversion that no other scan has seen."""

    waveform: Literal["training", "constant", "square", "telegraph", "host"] = field(
        default="training", metadata={"help": "the load; 'host' follows the CPUs of this machine"}
    )
    idle_w: float = field(default=30.0, metadata={"help": "lowest power of the card"})
    peak_w: float = field(
        default=250.0, metadata={"help": "highest power of the card; the slot's shunt clips at 384 W"}
    )
    seed: int = field(default=1, metadata={"help": "draws the chips' errors and the telegraph's steps"})
    errors: Literal["datasheet", "none"] = field(
        default="datasheet", metadata={"help": "errors of the chips, within the data sheet's limits, or none"}
    )
    rate_hz: float = field(default=500.0, metadata={"help": "scans per second"})
    scl_hz: float = field(default=400_000.0, metadata={"help": "clock of the simulated I2C bus"})
    shunt_ohm: float = field(default=0.05, metadata={"help": "shunt resistance of every line"})
    shunt_tolerance: float = field(default=0.01, metadata={"help": "limit of the shunts' relative error"})
    grade: Literal["A", "B"] = field(default="A", metadata={"help": "grade of the INA219"})
    shunt_adc: str = field(default="avg2", metadata={"help": "shunt conversion: 9bit ... 12bit or avg2 ... avg128"})
    bus_adc: str = field(default="10bit", metadata={"help": "bus voltage conversion, likewise"})
    device: str = field(default="gpu0", metadata={"help": "name of the simulated device"})
    pid: int = field(default=0, metadata={"help": "'host' follows this process alone; 0 = the whole machine"})
    cores: float = field(default=0.0, metadata={"help": "busy cores at which 'host' reaches its peak; 0 = all"})
    period_ms: float = field(default=101.3, metadata={"help": "period of 'square'"})
    duty: float = field(default=0.5, metadata={"help": "share of the period for which 'square' is high"})
    dwell_ms: float = field(default=40.0, metadata={"help": "mean time for which 'telegraph' holds a level"})
    training: TrainingOptions = field(
        default=TrainingOptions(), metadata={"help": "phases of 'training': forward_ms, forward_level, ..."}
    )

    calibration: str = field(
        default="", metadata={"help": "calibration file that `powerd calibrate` wrote with this seed; metadata only"}
    )
    sensors: tuple[Sensor, ...] = field(
        default=(),
        metadata={"help": "sensors of any types as for 'ina', which share the load; empty = the eight lines"},
    )
    bus_every: int = field(default=1, metadata={"help": "read bus voltages in every so-many-th scan only"})
    bus_hold: float = field(default=0.01, metadata={"help": "how far (relative) a bus voltage may move meanwhile"})
    adapter: Literal["combined", "single"] = field(
        default="combined", metadata={"help": "'single' refuses combined reads as the Raspberry Pi's adapter does"}
    )
    fault_every_s: float = field(default=0.0, metadata={"help": "mean time between faults of the bus; 0 = none"})
    faults: tuple[str, ...] = field(default=KINDS, metadata={"help": "which faults happen"})

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.peak_w:
            raise ConfigError(f"idle_w = {self.idle_w:g} and peak_w = {self.peak_w:g}: the first must not be larger")
        if min(self.rate_hz, self.scl_hz, self.shunt_ohm, self.period_ms) <= 0:
            raise ConfigError("rate_hz, scl_hz, shunt_ohm and period_ms must be positive")
        if not 0 < self.duty < 1:
            raise ConfigError(f"duty = {self.duty:g} is not between 0 and 1")
        if self.pid < 0 or self.cores < 0:
            raise ConfigError("pid and cores must not be negative")
        if self.fault_every_s < 0 or set(self.faults) - set(KINDS):
            raise ConfigError(f"fault_every_s must not be negative, and faults are {', '.join(KINDS)}")

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
        """Each line's share of the load; sensors that were given have equal ones."""
        return {s.name: 1 / len(self.sensors) for s in self.sensors} if self.sensors else dict(SHARES)


class SimSource(RailsSource):
    """Eight lines ``<device>.pcie_12v`` ... ``<device>.ext_12v_6`` at 0x40 ... 0x47 unless ``sensors`` are given.

    The stream's ``detail`` holds the load (`powerd_daemon.sim.waveform.waveform_from_detail`) and the errors drawn.
    """

    Options: ClassVar[type[SimOptions]] = SimOptions
    options: SimOptions
    provenance = Provenance.SIMULATED
    what = "simulated graphics card"

    def __init__(self, options: SimOptions, start: Start) -> None:
        super().__init__(
            options, start, options.all_sensors(), bus=SIMULATED_BUS, combined=options.adapter == "combined"
        )
        self._host: HostCpu | None = None
        self.bus: SimBus | None = None
        """The simulated bus, once open: faults are injected here."""
        self.load: CardLoad | None = None
        """The simulated card, once open: exact joules."""

    def connect(self) -> tuple[RegisterBus, Mapping[str, object]]:
        o, clock, t0_ns, random = self.options, self.start.clock, self.start.clock.now_ns(), Random(self.options.seed)
        self.load = load = CardLoad(self._make_waveform(t0_ns), o.shares())
        chips: dict[int, SimChip] = {}
        drawn: dict[str, ChipErrors] = {}
        for sensor, settings in zip(self.bank.sensors, self.bank.settings, strict=True):
            # One set of errors a chip: the channels of an INA3221 share theirs.
            if sensor.address not in chips:
                shared = draw_errors(
                    random,
                    settings,
                    grade=sensor.grade,
                    shunt_tolerance=sensor.shunt_tolerance,
                    exact=o.errors == "none",
                )
                mates = {s.channel: s for s in self.bank.sensors if s.address == sensor.address}
                loads = [
                    self._load(load, mates[c]) if c in mates else Load(lambda _a, _b: 0.0, 0.0, 1.0)
                    for c in range(1, len(settings.type.channels) + 1)
                ]
                chips[sensor.address] = SimChip(settings.type, loads, errors=shared, t_ns=t0_ns)
            drawn[sensor.name] = shared
        limit_hz = wire_limit_hz(self.bank, o.scl_hz, combined=o.adapter == "combined", bus_every=o.bus_every)
        punctual = isinstance(clock, SystemClock) and o.rate_hz > BUSY * limit_hz
        self.bus = SimBus(
            clock,
            chips,
            scl_hz=o.scl_hz,
            wake_early_ns=PUNCTUAL_NS if punctual and os.sched_getscheduler(0) == os.SCHED_FIFO else WAKE_EARLY_NS,
            punctual=punctual,
            before=load.waveform.advance,
            combines=o.adapter == "combined",
        )
        if o.fault_every_s:
            self.bus.trouble = Faults(o.seed, every_s=o.fault_every_s, t0_ns=t0_ns, kinds=o.faults)
        detail = {"seed": o.seed, "errors": o.errors, "drawn": {n: asdict(e) for n, e in drawn.items()}}
        return self.bus, detail | load.detail(t0_ns)

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

    @staticmethod
    def _load(load: CardLoad, sensor: Sensor) -> Load:
        share = load.shares[sensor.name]
        return Load(_mean_a(load.waveform.energy_j, share, sensor.nominal_v), sensor.nominal_v, sensor.shunt_ohm)

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
                return self._follow_host(t0_ns)
        return Training(t0_ns, idle_w=o.idle_w, peak_w=o.peak_w, **asdict(o.training))

    def _follow_host(self, t0_ns: int) -> Host:
        o = self.options
        if o.pid:
            cpu_ns: Callable[[], int] = or_last(ProcessCpu(o.pid))
        else:
            cpu_ns = self._host = HostCpu()
        return Host(
            t0_ns,
            idle_w=o.idle_w,
            peak_w=o.peak_w,
            cores=o.cores or float(len(os.sched_getaffinity(0))),
            smooth_ns=PROCESS_LUMP_NS if o.pid else HOST_TICK_NS,
            cpu_ns=cpu_ns,
        )


def _mean_a(energy_j: Callable[[int, int], float], share: float, bus_v: float) -> Callable[[int, int], float]:
    """A line's average current: its share of the card's energy over the time, at its voltage."""
    amperes_per_w = share / bus_v * 1e9

    def mean_a(t0_ns: int, t1_ns: int) -> float:
        return amperes_per_w * energy_j(t0_ns, t1_ns) / (t1_ns - t0_ns)

    return mean_a
