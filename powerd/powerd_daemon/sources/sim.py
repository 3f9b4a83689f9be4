"""Source ``sim``: the real INA219 driver on a simulated bus with the eight supply lines of a graphics card."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, ClassVar, Literal

from powerd_core.blocks import BlockBuilder
from powerd_core.errors import ConfigError
from powerd_core.model import Block, Column, Device, Gap, Line, Provenance, Stream
from powerd_daemon.ina.bus import READ_PERIODS
from powerd_daemon.ina.ina219 import Settings, accuracy, conversion
from powerd_daemon.ina.scanner import Chip, Scanner
from powerd_daemon.sim.bus import SimBus
from powerd_daemon.sim.chip import ChipErrors, SimIna219, draw_errors
from powerd_daemon.sim.host import Host
from powerd_daemon.sim.shapes import Constant, Square, Training, TrainingOptions, Waveform
from powerd_daemon.sim.telegraph import Telegraph
from powerd_daemon.sim.waveform import NOMINAL_V, SHARES, CardLoad
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.cpu_time import HOST_TICK_NS, PROCESS_LUMP_NS, HostCpu, ProcessCpu, or_last

FIRST_ADDRESS = 0x40
WAKE_EARLY_NS = 150_000
"""Room for the latency of a real clock's sleep and for working out the registers, which a real bus does not need."""

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

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.peak_w:
            raise ConfigError(f"idle_w = {self.idle_w:g} and peak_w = {self.peak_w:g}: the first must not be larger")
        if min(self.rate_hz, self.scl_hz, self.shunt_ohm, self.period_ms) <= 0:
            raise ConfigError("rate_hz, scl_hz, shunt_ohm and period_ms must be positive")
        if not 0 < self.duty < 1:
            raise ConfigError(f"duty = {self.duty:g} is not between 0 and 1")
        if self.pid < 0 or self.cores < 0:
            raise ConfigError("pid and cores must not be negative")


class SimSource(Source):
    """Eight lines ``<device>.pcie_12v`` ... ``<device>.ext_12v_6`` at 0x40 ... 0x47, all of which feed the device.

    The stream's ``detail`` holds the load (`powerd_daemon.sim.waveform.waveform_from_detail`) and the errors drawn.
    """

    Options: ClassVar[type[SimOptions]] = SimOptions
    options: SimOptions

    def __init__(self, options: SimOptions, start: Start) -> None:
        super().__init__(options, start)
        self._settings = Settings(options.shunt_adc, options.bus_adc)
        most_hz = options.scl_hz / (2 * READ_PERIODS * len(SHARES))
        if options.rate_hz > most_hz:
            raise ConfigError(
                f"rate_hz = {options.rate_hz:g} does not fit on a bus of scl_hz = {options.scl_hz:g}: "
                f"at most {int(most_hz)} scans of {len(SHARES)} chips a second"
            )
        self._host: HostCpu | None = None
        self._scanner: Scanner | None = None
        self._builder: BlockBuilder | None = None
        self.bus: SimBus | None = None
        """The simulated bus, once open: faults are injected here."""
        self.load: CardLoad | None = None
        """The simulated card, once open: exact joules."""

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.options.rate_hz)

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o, clock, t0_ns = self.options, self.start.clock, self.start.clock.now_ns()
        random = Random(o.seed)
        drawn = {
            name: draw_errors(
                random,
                self._settings,
                grade=o.grade,
                shunt_tolerance=o.shunt_tolerance,
                exact=o.errors == "none",
            )
            for name in SHARES
        }
        self.load = CardLoad(self._make_waveform(t0_ns), SHARES)
        chips = {
            FIRST_ADDRESS + i: SimIna219(
                _mean_a(self.load.waveform.energy_j, SHARES[name], NOMINAL_V[name]),
                bus_v=NOMINAL_V[name],
                shunt_ohm=o.shunt_ohm,
                errors=drawn[name],
                t_ns=t0_ns,
            )
            for i, name in enumerate(SHARES)
        }
        self.bus = SimBus(clock, chips, scl_hz=o.scl_hz, wake_early_ns=WAKE_EARLY_NS, before=self.load.waveform.advance)
        self._scanner = Scanner(
            self.bus, clock, [Chip(a, self._settings) for a in chips], scl_hz=o.scl_hz, period_ns=self.period_ns
        )
        self._scanner.open()
        stream = self._describe(t0_ns, self.load, drawn)
        number = self.start.first_stream
        self._builder = BlockBuilder(stream, self.start.epoch, self.start.next_sequence.get(number, 0))
        device = Device(o.device, tuple(line.name for line in stream.lines), "simulated graphics card")
        return (stream,), (device,)

    def poll(self) -> None:
        assert self._scanner is not None, "open comes first"
        self._scanner.scan()

    def take(self) -> list[Block | Gap]:
        if self._scanner is None or self._builder is None:
            return []
        self._scanner.take(self._builder)
        block = self._builder.take()
        return [block] if block else []

    def close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None

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

    def _describe(self, t0_ns: int, load: CardLoad, drawn: dict[str, ChipErrors]) -> Stream:
        o = self.options
        lines = tuple(
            Line(
                f"{o.device}.{name}",
                o.device,
                conversion(o.shunt_ohm),
                Provenance.SIMULATED,
                accuracy(
                    self._settings,
                    shunt_ohm=o.shunt_ohm,
                    nominal_v=NOMINAL_V[name],
                    period_ns=self.period_ns,
                    grade=o.grade,
                    shunt_tolerance=o.shunt_tolerance,
                ),
                f"{_WHAT[name]} (simulated, INA219 at {FIRST_ADDRESS + i:#04x})",
            )
            for i, name in enumerate(SHARES)
        )
        detail: dict[str, Any] = {
            "chip": "INA219",
            "config": f"{self._settings.word:#06x}",
            "settings": asdict(self._settings),
            "scl_hz": o.scl_hz,
            "seed": o.seed,
            "errors": o.errors,
            "drawn": {name: asdict(errors) for name, errors in drawn.items()},
        }
        return Stream(
            self.start.first_stream,
            self.start.name,
            (Column("shunt", "h"), Column("bus", "H")),
            lines,
            self.period_ns,
            detail | load.detail(t0_ns),
        )


def _mean_a(energy_j: Callable[[int, int], float], share: float, bus_v: float) -> Callable[[int, int], float]:
    """A line's average current: its share of the card's energy over the time, at its voltage."""
    amperes_per_w = share / bus_v * 1e9

    def mean_a(t0_ns: int, t1_ns: int) -> float:
        return amperes_per_w * energy_j(t0_ns, t1_ns) / (t1_ns - t0_ns)

    return mean_a
