"""Source ``cpu-model``: power modelled from CPU time, for machines without a sensor. Never a measurement."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy, Column, CounterConversion, Device, Flag, Line, Provenance, Stream
from powerd_core.serde import option
from powerd_daemon.sources.base import LEAST_RATE_HZ, Source, Start

HOST_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
"""Step of the host's counters."""

PROCESS_LUMP_NS = 4_000_000
"""A process that runs on another CPU is accounted for at scheduler ticks: its clock moves in lumps of some
milliseconds (2 ms median and 13 ms p99 were seen), though its unit is the nanosecond."""


LOOK_S = 0.25
"""Between two looks for new children of a process. What one has run until it is found counts from then on."""


class OneCpu:
    """All threads of one process, by its CPU-time clock; its children are not in it.

    Calling it raises `SensorError` once the process is gone, or its number is another's.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # The kernel's encoding of "CPU time of this process": include/linux/posix-timers.h, CPUCLOCK_SCHED.
        self._clock_id = (~pid << 3) | 2
        self.last_ns = 0

    def __call__(self) -> int:
        try:
            cpu_ns = time.clock_gettime_ns(self._clock_id)
        except (OSError, OverflowError, TypeError) as error:  # from 3.13 on a number beyond 32 bits is a TypeError
            raise SensorError(f"process {self.pid} is not there: give the pid of one that runs") from error
        if cpu_ns < self.last_ns:
            raise SensorError(f"process {self.pid} has ended")
        self.last_ns = cpu_ns
        return cpu_ns


class ProcessCpu:
    """A process and its children, theirs too, as a loader's workers are; without the one that powerd itself runs in.

    Of a child that has ended, what it had run at the last reading stays counted. Calling it raises `SensorError` once
    the process is gone.
    """

    def __init__(self, pid: int, look_every: int = 1) -> None:
        """New children are looked for at every so many readings."""
        self._process = OneCpu(pid)
        self._children: dict[int, OneCpu] = {}
        self._ended_ns = 0
        self._look_every, self._readings = look_every, 0
        self._own = _ancestors()
        self.sees_children = Path(f"/proc/{pid}/task/{pid}/children").exists()
        """Whether the kernel lists them (CONFIG_PROC_CHILDREN)."""

    def __call__(self) -> int:
        cpu_ns = self._process()
        if self.sees_children and self._readings % self._look_every == 0:
            for pid in _descendants(self._process.pid, self._own) - self._children.keys():
                self._children[pid] = OneCpu(pid)
        self._readings += 1
        for pid, child in list(self._children.items()):
            try:
                child()
            except SensorError:
                self._ended_ns += child.last_ns
                del self._children[pid]
        return cpu_ns + self._ended_ns + sum(child.last_ns for child in self._children.values())


def _descendants(pid: int, without: Collection[int]) -> set[int]:
    """The children of a process, and theirs, but for some and their children. Those that come or go meanwhile may be
    missing."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for path in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = {int(text) for text in path.read_text(encoding="ascii").split()}
                new = children - found - {*without}
                found |= new
                waiting += new
    return found


def _ancestors() -> set[int]:
    """This process and those that it was begun by: a recorder, and the training around it."""
    found, pid = set[int](), os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])  # behind the name, which may hold anything
    return found


class HostCpu:
    """Busy time of all CPUs from /proc/stat: user, nice, system, interrupts; without idle, waiting and stolen time."""

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SensorError(f"{path} cannot be read: {error.strerror}") from error

    def __call__(self) -> int:
        fields = os.pread(self._file, 256, 0).partition(b"\n")[0].split()
        if fields[:1] != [b"cpu"] or len(fields) < 8:
            raise SensorError(f"{self._path} does not begin with the CPUs' times")
        user, nice, system, _idle, _iowait, irq, softirq = map(int, fields[1:8])
        return (user + nice + system + irq + softirq) * HOST_TICK_NS

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class CpuModelOptions:
    """power_w = background_w + watts_per_core * (busy cores)."""

    pid: int = option(0, "process whose CPU time counts, with its children; 0 = the whole host")
    watts_per_core: float = option(8.0, "assumed watts of one busy core above idle")
    background_w: float = option(10.0, "assumed watts that flow even when nothing runs")
    u_gain: float = option(0.3, "relative standard uncertainty of watts_per_core")
    rate_hz: float = option(200.0, "readings per second")
    device: str = option("cpu0", "name of the device")

    def __post_init__(self) -> None:
        if min(self.pid, self.background_w, self.u_gain) < 0 or self.watts_per_core <= 0:
            raise ConfigError("watts_per_core must be positive, and pid, background_w and u_gain not negative")
        if not LEAST_RATE_HZ <= self.rate_hz <= 10_000:
            raise ConfigError(f"rate_hz = {self.rate_hz:g} is not between {LEAST_RATE_HZ:g} and 10000")


class CpuModelSource(Source):
    """One line ``<device>.model``: a counter of CPU nanoseconds."""

    Options: ClassVar[type[CpuModelOptions]] = CpuModelOptions
    options: CpuModelOptions

    def __init__(self, options: CpuModelOptions, start: Start) -> None:
        super().__init__(options, start)
        self._reader: ProcessCpu | HostCpu | None = None
        self._gone = False

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        whose = "the whole host"
        if o.pid:
            self._reader = reader = ProcessCpu(o.pid, max(1, round(o.rate_hz * LOOK_S)))
            whose = f"process {o.pid} {'and its' if reader.sees_children else 'without its'} children"
        else:
            self._reader = HostCpu()
        self._reader()
        model = f"{o.background_w:g} W + {o.watts_per_core:g} W per busy core"
        line = Line(
            f"{o.device}.model",
            o.device,
            CounterConversion("cpu_ns", o.watts_per_core * 1e-9, background_w=o.background_w),
            Provenance.MODELLED,
            Accuracy(
                u_gain=o.u_gain,
                u_offset_w=o.u_gain * o.background_w,
                centre_ns=PROCESS_LUMP_NS if o.pid else HOST_TICK_NS,
                update_ns=HOST_TICK_NS if not o.pid and self.period_ns < HOST_TICK_NS else 0,
                origin=f"assumed model, not a measurement: {model}, both uncertain by {o.u_gain:.0%}",
            ),
            f"modelled from the CPU time of {whose}: {model}",
        )
        detail = {"pid": o.pid, "watts_per_core": o.watts_per_core, "background_w": o.background_w}
        stream = self.add_stream((Column("cpu_ns", "Q"),), (line,), self.period_ns, detail)
        return (stream,), (Device(o.device, (line.name,), line.description),)

    def poll(self) -> None:
        assert self._reader is not None, "open comes first"
        begin_ns, cpu_ns = self.start.clock.now_ns(), 0
        if not self._gone:
            try:
                cpu_ns = self._reader()
            except SensorError:
                # Its number may soon be another's: once gone, gone for good.
                self._gone = True
        t_ns = (begin_ns + self.start.clock.now_ns()) // 2
        self.builders[0].append(t_ns, (0,), (Flag.MISSING if self._gone else 0,), ((cpu_ns,),))

    def close(self) -> None:
        if isinstance(self._reader, HostCpu):
            self._reader.close()
        self._reader = None
