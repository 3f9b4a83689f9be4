"""What NVML tells of one GPU: each quantity is a stream that is polled at its own pace.

What one reading shows was fitted on one H200 (driver 580) against loads switched at known times; other architectures
get wide limits that say so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, ClassVar

from powerd_core.calibration import GpuFile, GpuResponse
from powerd_core.model import (
    Accuracy,
    Column,
    Conversion,
    CounterConversion,
    Flag,
    Line,
    QuantityConversion,
    ScaledConversion,
)
from powerd_daemon.clock import Clock
from powerd_daemon.sources.base import LineOutput
from powerd_daemon.sources.nvml.api import (
    ARCH_AMPERE,
    ARCH_HOPPER,
    CLOCK_MEMORY,
    CLOCK_SM,
    FI_DEV_AT_POWER_CAP_NS,
    FI_DEV_MEMORY_TEMP,
    FI_DEV_POWER_AVERAGE,
    FI_DEV_POWER_BRAKE_NS,
    FI_DEV_POWER_INSTANT,
    FI_DEV_POWER_REQUESTED_LIMIT,
    FI_DEV_THERMAL_NS,
    NOT_SUPPORTED,
    SCOPE_GPU,
    SCOPE_MEMORY,
    SCOPE_MODULE,
    TEMPERATURE_GPU,
    Nvml,
    NvmlRefused,
)

UPDATE_NS = 100_000_000
"""Distance at which the driver renews the instant power and the energy counter."""
SCOPES = {SCOPE_MEMORY: "memory", SCOPE_MODULE: "module"}
"""What a power is of where it is not the GPU's."""
U_GAIN = 0.05 / sqrt(3)
GAIN_ORIGIN = "gain published as +-5 %, not calibrated"
U95 = 1.96
"""Half of a 95 % interval over the standard uncertainty."""
FILTER_NS = 13_000_000
"""On an H200 a value is what a low-pass of first order has made of the power. Fitted to matrix products, copies and
waiting that took turns every 5 to 50 ms (release 0.1.0): samples 12 to 13.5 ms, instant power 12 to
17 ms."""
FITTED = "low-pass fitted on one H200, driver 580"
UNKNOWN = "window not characterised for this architecture"
CLOCK_EVENTS = {
    "gpu_idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake": 0x80,
    "display_clock": 0x100,
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReasons)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU: its name in lines (``gpu0``), NVML's handle, architecture, and what is known of it."""

    name: str
    handle: Any
    architecture: int
    detail: Mapping[str, object]
    known: GpuFile = field(default_factory=GpuFile)
    """What was found of it with this driver."""


class Quantity(ABC):
    """One way in which NVML tells a GPU's power, or something about it."""

    suffix: ClassVar[str]
    """Of the line's name, behind the GPU's."""
    column: ClassVar[Column] = Column("power_mw", "I")
    conversion: Conversion = ScaledConversion("power_mw", 1e-3)
    description: str
    accuracy: Accuracy
    output: LineOutput
    """Where readings go; there once the source is open."""

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        """Asks NVML once. Raises `NvmlRefused` when the GPU does not have the quantity."""
        self.nvml, self.clock, self.gpu, self.interval_ns = nvml, clock, gpu, interval_ns
        self.name = f"{gpu.name}.{self.suffix}"
        self.period_ns = interval_ns
        """Nominal distance of two readings."""
        self.detail: Mapping[str, object] = gpu.detail
        self.response = next((r for r in gpu.known.response if r.field == self.suffix), None)
        """As it was identified."""
        gain = self.gain = next((g for g in gpu.known.gain if g.field == self.suffix), None)
        self.u_gain, self.gain_origin = U_GAIN, GAIN_ORIGIN
        self.age_ns = 0
        """From the centre of what a reading shows to the moment at which it is taken or renewed."""
        if gain is not None:
            self.u_gain = gain.u_gain
            self.gain_origin = f"gain {gain.gain:.4f} calibrated {gain.taken[:10]} against {gain.reference}"
            if isinstance(self.conversion, ScaledConversion):
                self.conversion = ScaledConversion(self.conversion.column, self.conversion.w_per_code * gain.gain)
            elif isinstance(self.conversion, CounterConversion):
                self.conversion = CounterConversion(self.conversion.column, self.conversion.j_per_code * gain.gain)
        self.due_ns = 0
        self.refused = 0
        """Questions that NVML did not answer, though the GPU has the quantity."""

    @abstractmethod
    def poll(self) -> None:
        """Ask once and append what is new."""

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of its stream."""
        return (self.line(self.suffix, self.conversion, self.accuracy, self.description),)

    def calibration(self) -> dict[str, object]:
        """For a run's description: whether its response and its gain were found for this very GPU."""
        return {
            "response": "assumed" if self.response is None else f"identified {self.response.taken[:10]}",
            "gain": "published" if self.gain is None else f"calibrated {self.gain.taken[:10]}",
            "age_ns": self.age_ns,
            "factor": 1.0 if self.gain is None else self.gain.gain,
        }

    def identified(self, response: GpuResponse) -> Accuracy:
        """Of a power whose response was identified."""
        self.age_ns = round(response.age_ms * 1e6)
        return Accuracy(
            u_gain=self.u_gain,
            step_w=1e-3,
            window_ns=round(response.window_ms * 1e6),
            centre_ns=round(response.u95_age_ms * 1e6),
            origin=f"{self.gain_origin}; response identified {response.taken[:10]}: {response.text}",
            filter_ns=round(response.tau_ms * 1e6),
            u_filter=response.u95_tau_ms / response.tau_ms / U95 if response.tau_ms else 0.0,
        )

    def line(self, suffix: str, conversion: Conversion, accuracy: Accuracy, description: str) -> Line:
        gpu = self.gpu.name
        return Line(f"{gpu}.{suffix}", gpu, conversion, self.nvml.provenance, accuracy, description)


class EnergyCounter(Quantity):
    """Millijoules since the driver was loaded. A call costs milliseconds, so it is made rarely."""

    suffix = "nvml_energy"
    column = Column("energy_mj", "Q")
    conversion = CounterConversion("energy_mj", 1e-3)
    description = "energy counter of the driver (NVML)"

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self._read()
        origin = f"{self.gain_origin}; the counter is renewed every 100 ms (one H200, driver 580)"
        update_ns = UPDATE_NS if interval_ns < UPDATE_NS else 0
        self.accuracy = Accuracy(self.u_gain, 0.0, 0.0, 0, UPDATE_NS, update_ns, origin)

    def _read(self) -> int:
        return int(self.nvml.call("nvmlDeviceGetTotalEnergyConsumption", self.gpu.handle))

    def poll(self) -> None:
        begin_ns = self.clock.now_ns()
        try:
            value, flag = self._read(), 0
        except NvmlRefused:
            self.refused += 1
            value, flag = 0, Flag.IO_ERROR
        self.output.append((begin_ns + self.clock.now_ns()) // 2, value, flag)


@dataclass(frozen=True, slots=True)
class Filter:
    """What one value shows of the power."""

    age_ns: int
    """From the centre of what it shows to its renewal,"""
    centre_ns: int
    """which is certain to this and the distance of polls."""
    window_ns: int
    low_pass_ns: int
    """Time constant of first order; 0 where it is a mean over the window."""
    origin: str


LOW_PASS = Filter(20_000_000, 3_000_000, 1_000_000, FILTER_NS, FITTED)
ONE_SECOND = Filter(500_000_000, 100_000_000, 1_000_000_000, 0, "window by NVIDIA's documentation")
UNKNOWN_WINDOW = Filter(0, 50_000_000, 100_000_000, 0, UNKNOWN)


class InstantPower(Quantity):
    """The driver's momentary power, a reading for each time it is renewed.

    It is polled more often than it changes, which tells when it changed to within one poll. A value that stays the
    same over a renewal is a new value all the same, and is appended at the time at which it was due.
    """

    suffix, scope, what = "nvml", SCOPE_GPU, "power of the GPU"

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self.period_ns = max(UPDATE_NS, interval_ns)
        if self.scope in SCOPES:
            self.detail = {**gpu.detail, "scope": SCOPES[self.scope]}
        for way in self._ways():
            with suppress(NvmlRefused):
                some_power(way[0]())
                break
        else:
            raise NvmlRefused(NOT_SUPPORTED, "NVML tells no power of it")
        self._read, shown, self.description = way
        self.age_ns = shown.age_ns
        origin = f"{self.gain_origin}; response assumed: {shown.origin}"
        centre_ns = shown.centre_ns + interval_ns
        self.accuracy = Accuracy(self.u_gain, 0.0, 1e-3, shown.window_ns, centre_ns, 0, origin, shown.low_pass_ns)
        if self.response is not None:
            # The renewals of an H200 jumped by 10 to 21 ms within runs of 20 s, and an identification sees one of them.
            self.accuracy = replace(self.identified(self.response), centre_ns=centre_ns)
        self._value: int | None = None
        self._polled_ns = self._renewed_ns = clock.now_ns()
        """When it last answered, and when the value was renewed."""

    def _ways(self) -> Iterator[tuple[Callable[[], int], Filter, str]]:
        """The ways to ask, best first: how, what the answer shows, and its description."""
        nvml, handle, architecture, scope = self.nvml, self.gpu.handle, self.gpu.architecture, self.scope
        is_fitted = scope == SCOPE_GPU and architecture == ARCH_HOPPER
        shown = LOW_PASS if is_fitted else UNKNOWN_WINDOW
        text = f"{self.what}: instant power (field 186) by NVML"
        yield lambda: nvml.field(handle, FI_DEV_POWER_INSTANT, scope), shown, text
        if scope != SCOPE_GPU:
            text = f"{self.what}: average power over one second (field 185) by NVML"
            yield lambda: nvml.field(handle, FI_DEV_POWER_AVERAGE, scope), ONE_SECOND, text
            return
        # The usage averages over a second from Ampere on.
        shown, average = (ONE_SECOND, ", an average over one second") if architecture >= ARCH_AMPERE else (shown, "")
        text = f"{self.what}: nvmlDeviceGetPowerUsage{average}; this GPU has no instant power"
        yield lambda: int(nvml.call("nvmlDeviceGetPowerUsage", handle)), shown, text

    def poll(self) -> None:
        now_ns = self.clock.now_ns()
        try:
            value = some_power(self._read())
        except NvmlRefused:
            self.refused += 1
            if now_ns - max(self._polled_ns, self._renewed_ns) >= UPDATE_NS:
                self._lose(now_ns, Flag.IO_ERROR)
            return
        before_ns, self._polled_ns = self._polled_ns, now_ns
        if self._value is not None and now_ns - before_ns >= UPDATE_NS + 2 * self.interval_ns:
            # Renewals were slept through.
            self._lose(now_ns, Flag.MISSING)
        if self._value is None:
            # Nobody knows how old the first value is.
            self._value, self._renewed_ns = value, now_ns
        elif value != self._value:
            self._value, self._renewed_ns = value, (max(before_ns, now_ns - UPDATE_NS) + now_ns) // 2
            self.output.append(self._renewed_ns - self.age_ns, value)
        elif now_ns - self._renewed_ns >= UPDATE_NS * 3 // 2:
            self._renewed_ns = max(self._renewed_ns + UPDATE_NS, now_ns - UPDATE_NS)
            self.output.append(self._renewed_ns - self.age_ns, value)

    def _lose(self, now_ns: int, flag: Flag) -> None:
        """Nobody knows any more how old the value is that comes next."""
        self._value, self._renewed_ns = None, now_ns
        self.output.append(now_ns - self.age_ns, 0, flag)


def some_power(value_mw: int) -> int:
    """The value, unless it is 0: a GPU that can be asked takes some power, so NVML does not know it. Raises
    `NvmlRefused`."""
    if not value_mw:
        raise NvmlRefused(NOT_SUPPORTED, "NVML tells 0 W")
    return value_mw


class MemoryPower(InstantPower):
    """A part of the GPU's power, never added to it. An H200 has its average over one second alone."""

    suffix, scope, what = "nvml_memory", SCOPE_MEMORY, "memory of the GPU, a part of its power"


class ModulePower(InstantPower):
    """The GPU and what shares its module (the CPU of a Grace Hopper): contains the GPU's power."""

    suffix, scope, what = "nvml_module", SCOPE_MODULE, "module with the GPU on it, which contains the GPU's power"


@dataclass(frozen=True, slots=True)
class Channel:
    """One auxiliary channel; ``read`` raises `NvmlRefused`."""

    name: str
    quantity: str
    description: str
    read: Callable[[Nvml, Any], Any]
    per_code: float = 1.0


def _call(function: str, *arguments: int) -> Callable[[Nvml, Any], Any]:
    return lambda nvml, handle: nvml.call(function, handle, *arguments)


_SM, _MEMORY = _call("nvmlDeviceGetClockInfo", CLOCK_SM), _call("nvmlDeviceGetClockInfo", CLOCK_MEMORY)
_TEMPERATURE = _call("nvmlDeviceGetTemperature", TEMPERATURE_GPU)
_EVENTS = _call("nvmlDeviceGetCurrentClocksEventReasons")
_LIMIT = _call("nvmlDeviceGetEnforcedPowerLimit")
CHANNELS = (
    Channel("temperature", "temperature_c", "temperature of the GPU", _TEMPERATURE),
    Channel(
        "memory_temperature", "temperature_c", "temperature of the memory", lambda n, h: n.field(h, FI_DEV_MEMORY_TEMP)
    ),
    Channel("sm_clock", "clock_hz", "clock of the multiprocessors", _SM, 1e6),
    Channel("memory_clock", "clock_hz", "clock of the memory", _MEMORY, 1e6),
    Channel("power_limit", "power_limit_w", "power limit that the driver enforces", _LIMIT, 1e-3),
    Channel(
        "power_limit_requested",
        "power_limit_w",
        "power limit that was requested",
        lambda n, h: n.field(h, FI_DEV_POWER_REQUESTED_LIMIT),
        1e-3,
    ),
    Channel(
        "at_power_cap", "limited_s", "time at the power cap", lambda n, h: n.counter(h, FI_DEV_AT_POWER_CAP_NS), 1e-9
    ),
    Channel("thermal", "limited_s", "time slowed down by heat", lambda n, h: n.counter(h, *FI_DEV_THERMAL_NS), 1e-9),
    Channel(
        "power_brake",
        "limited_s",
        "time slowed down by the power brake",
        lambda n, h: n.counter(h, FI_DEV_POWER_BRAKE_NS),
        1e-9,
    ),
    Channel("clock_events", "clock_events_bits", "why the clocks are not higher", _EVENTS),
)


class AuxiliaryChannels(Quantity):
    """What explains a GPU's power and is none: one stream with a line for each channel that the GPU has. Read rarely: a
    first read can take 1.5 ms, later ones take a microsecond or two (one H200, driver 580)."""

    suffix = "nvml_side"
    column = Column("code", "Q")
    accuracy = Accuracy(origin="as the driver tells it, of unstated accuracy")

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self.channels = [channel for channel in CHANNELS if self._read(channel) is not None]
        self.refused = 0
        if not self.channels:
            raise NvmlRefused(NOT_SUPPORTED, "neither temperature, clocks nor limits")
        bits = {f"{gpu.name}.{c.name}": CLOCK_EVENTS for c in self.channels if c.quantity.endswith("_bits")}
        self.detail = {**gpu.detail, "bits": bits}

    @property
    def lines(self) -> tuple[Line, ...]:
        of = [(c, QuantityConversion(self.column.name, c.quantity, c.per_code)) for c in self.channels]
        return tuple(self.line(c.name, conversion, self.accuracy, f"{c.description}, by NVML") for c, conversion in of)

    def poll(self) -> None:
        begin_ns = before_ns = self.clock.now_ns()
        times, flags, codes = [], [], []
        for channel in self.channels:
            code = self._read(channel)
            after_ns = self.clock.now_ns()
            times.append((before_ns + after_ns) // 2 - begin_ns)
            flags.append(int(Flag.IO_ERROR) if code is None else 0)
            codes.append(code or 0)
            before_ns = after_ns
        self.output.builder.append(begin_ns, times, flags, (codes,))

    def _read(self, channel: Channel) -> int | None:
        """A channel's code, or None where NVML refused it."""
        try:
            return int(channel.read(self.nvml, self.gpu.handle))
        except NvmlRefused:
            self.refused += 1
            return None
