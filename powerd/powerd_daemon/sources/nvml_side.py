"""What explains a GPU's power and is none: temperatures, clocks, the power limit, and why the clocks are held back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from powerd_core.model import Accuracy, Column, Flag, Line, Provenance, QuantityConversion, Stream
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml_api import (
    CLOCK_MEMORY,
    CLOCK_SM,
    FI_DEV_MEMORY_TEMP,
    NOT_SUPPORTED,
    TEMPERATURE_GPU,
    Nvml,
    NvmlRefused,
)
from powerd_daemon.sources.nvml_quantity import Gpu, Quantity

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
class Channel:
    """One quantity beside the power; ``read`` raises `NvmlRefused`."""

    name: str
    conversion: QuantityConversion
    description: str
    read: Callable[[], int]


class SideChannels(Quantity):
    """One stream with a line for each quantity that the GPU has. Read rarely: a first read can take 1.5 ms, later ones
    take a microsecond or two (one H200, driver 580)."""

    suffix = "nvml_side"
    column = Column("code", "Q")

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self.channels = [channel for channel in self._possible() if _answers(channel)]
        if not self.channels:
            raise NvmlRefused(NOT_SUPPORTED, "neither temperature, clocks nor limits")

    def _possible(self) -> list[Channel]:
        nvml, handle = self.nvml, self.gpu.handle

        def call(function: str, *arguments: int) -> Callable[[], int]:
            return lambda: int(nvml.call(function, handle, *arguments))

        def events() -> int:
            try:
                return call("nvmlDeviceGetCurrentClocksEventReasons")()
            except NvmlRefused as error:
                if error.code != NOT_SUPPORTED:
                    raise
                # Its name before release 12.
                return call("nvmlDeviceGetCurrentClocksThrottleReasons")()

        def quantity(name: str, per_code: float = 1.0) -> QuantityConversion:
            return QuantityConversion(self.column.name, name, per_code)

        return [
            Channel(
                "temperature",
                quantity("temperature_c"),
                "temperature of the GPU",
                call("nvmlDeviceGetTemperature", TEMPERATURE_GPU),
            ),
            Channel(
                "memory_temperature",
                quantity("temperature_c"),
                "temperature of the memory",
                lambda: nvml.field(handle, FI_DEV_MEMORY_TEMP),
            ),
            Channel(
                "sm_clock",
                quantity("clock_hz", 1e6),
                "clock of the multiprocessors",
                call("nvmlDeviceGetClockInfo", CLOCK_SM),
            ),
            Channel(
                "memory_clock",
                quantity("clock_hz", 1e6),
                "clock of the memory",
                call("nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            ),
            Channel(
                "power_limit",
                quantity("power_limit_w", 1e-3),
                "power limit that the driver enforces",
                call("nvmlDeviceGetEnforcedPowerLimit"),
            ),
            Channel("clock_events", quantity("clock_events_bits"), "why the clocks are not higher", events),
        ]

    @property
    def description(self) -> str:
        return "temperatures, clocks, power limit and throttle reasons by NVML"

    @property
    def accuracy(self) -> Accuracy:
        return Accuracy(origin="as the driver tells it, of unstated accuracy")

    def describe(self, number: int, source: str) -> Stream:
        gpu = self.gpu.name
        lines = tuple(
            Line(f"{gpu}.{c.name}", gpu, c.conversion, Provenance.MEASURED, self.accuracy, f"{c.description}, by NVML")
            for c in self.channels
        )
        bits = {f"{gpu}.{c.name}": CLOCK_EVENTS for c in self.channels if c.conversion.quantity.endswith("_bits")}
        return Stream(number, source, (self.column,), lines, self.period_ns, {**self.gpu.detail, "bits": bits})

    def poll(self) -> None:
        begin_ns = before_ns = self.clock.now_ns()
        times, flags, codes = [], [], []
        for channel in self.channels:
            try:
                code, flag = channel.read(), 0
            except NvmlRefused:
                self.refused += 1
                code, flag = 0, int(Flag.IO_ERROR)
            after_ns = self.clock.now_ns()
            times.append((before_ns + after_ns) // 2 - begin_ns)
            flags.append(flag)
            codes.append(code)
            before_ns = after_ns
        if self._builder is not None:
            self._builder.append(begin_ns, times, flags, (codes,))


def _answers(channel: Channel) -> bool:
    try:
        channel.read()
    except NvmlRefused:
        return False
    return True
