"""Source ``cpu-model``: power modelled from CPU time, for machines without a sensor. Never a measurement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import (
    Accuracy,
    Block,
    Column,
    CounterConversion,
    Device,
    Flag,
    Gap,
    Line,
    Provenance,
    Stream,
)
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.cpu_time import HOST_TICK_NS, PROCESS_LUMP_NS, HostCpu, ProcessCpu


@dataclass(frozen=True, slots=True)
class CpuModelOptions:
    """power_w = background_w + watts_per_core * (busy cores)."""

    pid: int = field(
        default=0,
        metadata={"help": "process whose CPU time counts (its threads, not its children); 0 = the whole host"},
    )
    watts_per_core: float = field(default=8.0, metadata={"help": "assumed watts of one busy core above idle"})
    background_w: float = field(default=10.0, metadata={"help": "assumed watts that flow even when nothing runs"})
    u_gain: float = field(default=0.3, metadata={"help": "relative standard uncertainty of watts_per_core"})
    rate_hz: float = field(default=200.0, metadata={"help": "readings per second"})
    device: str = field(default="cpu0", metadata={"help": "name of the device"})

    def __post_init__(self) -> None:
        if self.pid < 0:
            raise ConfigError(f"pid = {self.pid} is no process: give its number, or 0 for the whole host")
        if not 0.001 <= self.rate_hz <= 10_000:
            raise ConfigError(f"rate_hz = {self.rate_hz:g} is not between 0.001 and 10000")
        if self.watts_per_core <= 0 or self.background_w < 0 or self.u_gain < 0:
            raise ConfigError("watts_per_core must be positive, background_w and u_gain not negative")


class CpuModelSource(Source):
    """One line ``<device>.model``: a counter of CPU nanoseconds."""

    Options: ClassVar[type[CpuModelOptions]] = CpuModelOptions
    options: CpuModelOptions

    def __init__(self, options: CpuModelOptions, start: Start) -> None:
        super().__init__(options, start)
        self._reader: ProcessCpu | HostCpu | None = None
        self._gone = False
        self._stream = self._describe()
        self._builder = start.builder(self._stream)

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.options.rate_hz)

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        self._reader = ProcessCpu(self.options.pid) if self.options.pid else HostCpu()
        self._reader()
        line = self._stream.lines[0]
        return (self._stream,), (Device(self.options.device, (line.name,), line.description),)

    def poll(self) -> None:
        assert self._reader is not None, "open comes first"
        begin_ns = self.start.clock.now_ns()
        cpu_ns, flag = 0, Flag(0)
        if not self._gone:
            try:
                cpu_ns = self._reader()
            except SensorError:
                # Its number may soon be another's: once gone, gone for good.
                self._gone = True
        if self._gone:
            flag = Flag.MISSING
        t_ns = (begin_ns + self.start.clock.now_ns()) // 2
        self._builder.append(t_ns, (0,), (flag,), ((cpu_ns,),))

    def take(self) -> list[Block | Gap]:
        block = self._builder.take()
        return [block] if block else []

    def close(self) -> None:
        if isinstance(self._reader, HostCpu):
            self._reader.close()
        self._reader = None

    def _describe(self) -> Stream:
        o = self.options
        whose = f"process {o.pid}" if o.pid else "the whole host"
        model = f"{o.background_w:g} W + {o.watts_per_core:g} W per busy core"
        line = Line(
            f"{o.device}.model",
            o.device,
            CounterConversion("cpu_ns", o.watts_per_core * 1e-9, background_w=o.background_w),
            Provenance.MODELLED,
            Accuracy(
                u_gain=o.u_gain,
                u_offset_w=o.u_gain * o.background_w,
                step_w=0.0,
                centre_ns=PROCESS_LUMP_NS if o.pid else HOST_TICK_NS,
                update_ns=HOST_TICK_NS if not o.pid and self.period_ns < HOST_TICK_NS else 0,
                origin=f"assumed model, not a measurement: {model}, both uncertain by {o.u_gain:.0%}",
            ),
            f"modelled from the CPU time of {whose}: {model}",
        )
        return Stream(
            self.start.first_stream,
            self.start.name,
            (Column("cpu_ns", "Q"),),
            (line,),
            self.period_ns,
            {"pid": o.pid, "watts_per_core": o.watts_per_core, "background_w": o.background_w},
        )
