"""What NVML tells of one GPU: each quantity is a stream of one line that is polled at its own pace.

What one reading shows was fitted on one H200 (driver 580) against loads switched at known times; other architectures
get wide limits that say so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from powerd_core.model import (
    Accuracy,
    BlockBuilder,
    Column,
    Conversion,
    CounterConversion,
    Flag,
    Line,
    Provenance,
    ScaledConversion,
    Stream,
)
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml_api import Nvml, NvmlRefused

UPDATE_NS = 100_000_000
"""Distance at which the driver renews the instant power and the energy counter."""
U_GAIN = 0.05 / sqrt(3)
GAIN_ORIGIN = "gain published as +-5 %, not calibrated"
FILTER_NS = 13_000_000
"""On an H200 a value is what a low-pass of first order has made of the power. Fitted to matrix products, copies and
waiting that took turns every 5 to 50 ms (`benchmarks/bench_folding_gpu.py`): samples 12 to 13.5 ms, instant power 12 to
17 ms."""
FITTED = "low-pass fitted on one H200, driver 580"
UNKNOWN = "window not characterised for this architecture"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its name in lines (``gpu0``), NVML's handle, architecture, and what is known of it."""

    name: str
    handle: Any
    architecture: int
    detail: Mapping[str, object]


class Quantity(ABC):
    """One way in which NVML tells a GPU's power."""

    suffix: ClassVar[str]
    column: ClassVar[Column]

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        """Asks NVML once. Raises `NvmlRefused` when the GPU does not have the quantity."""
        self.nvml, self.clock, self.gpu, self.interval_ns = nvml, clock, gpu, interval_ns
        self.due_ns = 0
        self.refused = 0
        """Questions that NVML did not answer, though the GPU has the quantity."""
        self._last_ns = -(1 << 62)
        self._builder: BlockBuilder | None = None

    @property
    def name(self) -> str:
        """The line's name."""
        return f"{self.gpu.name}.{self.suffix}"

    @property
    def period_ns(self) -> int:
        """Nominal distance of two readings."""
        return self.interval_ns

    @property
    @abstractmethod
    def description(self) -> str: ...

    @property
    @abstractmethod
    def accuracy(self) -> Accuracy: ...

    @abstractmethod
    def poll(self) -> None:
        """Ask once and append what is new."""

    @property
    def conversion(self) -> Conversion:
        return ScaledConversion(self.column.name, 1e-3)

    def describe(self, number: int, source: str) -> Stream:
        line = Line(self.name, self.gpu.name, self.conversion, Provenance.MEASURED, self.accuracy, self.description)
        return Stream(number, source, (self.column,), (line,), self.period_ns, self.gpu.detail)

    def build(self, builder: BlockBuilder) -> None:
        self._builder = builder

    def append(self, t_ns: int, code: int, flag: int = 0) -> None:
        """One reading, unless it is not later than the one before."""
        if t_ns > self._last_ns and self._builder is not None:
            self._last_ns = t_ns
            self._builder.append(t_ns, (0,), (flag,), ((code,),))


class EnergyCounter(Quantity):
    """Millijoules since the driver was loaded. A call costs milliseconds, so it is made rarely."""

    suffix = "nvml_energy"
    column = Column("energy_mj", "Q")

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self._read()

    def _read(self) -> int:
        return int(self.nvml.call("nvmlDeviceGetTotalEnergyConsumption", self.gpu.handle))

    @property
    def conversion(self) -> Conversion:
        return CounterConversion(self.column.name, 1e-3)

    @property
    def description(self) -> str:
        return "energy counter of the driver (NVML)"

    @property
    def accuracy(self) -> Accuracy:
        origin = f"{GAIN_ORIGIN}; the counter is renewed every 100 ms (one H200, driver 580)"
        return Accuracy(U_GAIN, 0.0, 0.0, 0, UPDATE_NS, UPDATE_NS if self.interval_ns < UPDATE_NS else 0, origin)

    def poll(self) -> None:
        begin_ns = self.clock.now_ns()
        try:
            value, flag = self._read(), 0
        except NvmlRefused:
            self.refused += 1
            value, flag = 0, Flag.IO_ERROR
        self.append((begin_ns + self.clock.now_ns()) // 2, value, flag)
