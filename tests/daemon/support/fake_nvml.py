"""NVML at its function boundary: what ``pynvml`` would answer for GPUs whose power is known at any time.

Modelled on one H200: instant power and the counter change every 100 ms, samples are taken every 20 ms and stamped with
the wall clock's microseconds then or later, and a sample asked for again comes with a slightly different timestamp.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from powerd_daemon.sources.sim.bus import VirtualClock

HOPPER, VOLTA, AMPERE = 9, 5, 7
MS = 1_000_000


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """``refuse`` maps function names, fields such as 186, or fields of a scope such as (186, 2), to the return value
    they fail with."""

    NVMLError = NVMLError

    def __init__(self, clock: VirtualClock, *, gpus: int = 1, architecture: int = HOPPER) -> None:
        self.clock, self.gpus, self.architecture = clock, gpus, architecture
        self.power_w: Callable[[int], float] = lambda t_ns: 100.0 + t_ns // (100 * MS) % 50
        # As on an H200: the memory has an average power alone, and there is no module.
        self.refuse: dict[str | int | tuple[int, int], int] = dict.fromkeys(((186, 1), (185, 1), (186, 2)), 3)
        self.calls: list[str] = []
        self.mig: list[str] | None = None
        """UUIDs of the instances of every GPU, with a place that is free between them; None where MIG is off."""
        self.running = 0
        self.jitter_us: Callable[[], int] = lambda: 0
        # How far the stamp of the sample at a time is ahead of it: by the wall clock as it is now, unless told.
        self.stamp_ahead_ns: Callable[[int], int] = lambda t_ns: self.clock.wall_ns() - self.clock.t_ns
        self.in_read: Callable[[], None] = lambda: None
        self.silent_from_ns = 1 << 62
        # How long after its moment a sample is stamped.
        self.late_ns: Callable[[int], int] = lambda t_ns: 0
        # Two seconds of samples before the clock's first moment, and plenty after it.
        self.samples = [clock.t_ns - 2_400 * MS + i * 20 * MS for i in range(2_000)]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in self.refuse:
                raise NVMLError(self.refuse[name])
            return getattr(self, "_" + name)(*arguments)

        if not hasattr(type(self), "_" + name):
            raise AttributeError(name)
        return call

    def _nvmlInit(self) -> None:
        self.running += 1

    def _nvmlShutdown(self) -> None:
        self.running -= 1

    def _nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _nvmlDeviceGetName(self, handle: int | str) -> bytes:
        return b"NVIDIA Fake" if isinstance(handle, int) else b"NVIDIA Fake MIG 3g.40gb"

    def _nvmlDeviceGetUUID(self, handle: int | str) -> str:
        return f"GPU-{handle}" if isinstance(handle, int) else handle

    def _nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        return [int(self.mig is not None)] * 2

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> str:
        if self.mig is None or index % 2 or index // 2 >= len(self.mig):
            raise NVMLError(6)
        return self.mig[index // 2]

    def _nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=b"00000000:01:00.0")

    def _nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def _nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def _nvmlDeviceGetArchitecture(self, handle: int) -> int:
        return self.architecture

    def _nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        return 650_000

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:
        return 700_000

    def _nvmlDeviceGetPowerManagementLimitConstraints(self, handle: int) -> list[int]:
        return [200_000, 700_000]

    def _instant_mw(self) -> int:
        return round(self.power_w(self.clock.t_ns // (100 * MS) * 100 * MS) * 1000)

    def _nvmlDeviceGetFieldValues(self, handle: int, fields: list[int | tuple[int, int]]) -> list[SimpleNamespace]:
        counters = {74: 5_000_000_000, 269: 1_000_000_000, 270: 500_000_000, 271: 0}
        if fields[0] in counters:
            codes = [self.refuse.get(field, 0) for field in fields]
            values = [SimpleNamespace(ullVal=counters[field]) for field in fields]
            return [SimpleNamespace(nvmlReturn=c, value=v) for c, v in zip(codes, values, strict=True)]
        asked = fields[0]
        field, scope = asked if isinstance(asked, tuple) else (asked, 0)
        code = self.refuse.get(field if not scope else (field, scope), 0)
        value = {(82, 0): 43, (192, 0): 650_000, (185, 2): self._instant_mw() // 3}.get(
            (field, scope), self._instant_mw()
        )
        return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=0 if code else value))]

    def _nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == 0
        return 40 + self.clock.t_ns // (5_000 * MS) % 10

    def _nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 650_000

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return 0x4

    def _nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._instant_mw()

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        self.clock.t_ns += 4 * MS
        return self.clock.t_ns // (100 * MS) * 10_000

    def _nvmlDeviceGetSamples(self, handle: int, kind: int, newer_than_us: int) -> tuple[int, list[SimpleNamespace]]:
        assert kind == 0
        self.in_read()
        now = min(self.clock.t_ns, self.silent_from_ns)
        near = self.samples[bisect(self.samples, now - 2_600 * MS) : bisect(self.samples, now)]
        held = [(t, t + self.late_ns(t)) for t in near if now - 2_400 * MS < t + self.late_ns(t) <= now]
        found = [
            SimpleNamespace(timeStamp=t_us, sampleValue=SimpleNamespace(uiVal=round(self.power_w(t) * 1000)))
            for t, stamped in held
            if (t_us := (stamped + self.stamp_ahead_ns(stamped)) // 1000 + self.jitter_us()) > newer_than_us
        ]
        if not found:
            raise NVMLError(6)
        return 1, found

    def sample_times_ns(self, begin_ns: int, end_ns: int) -> list[int]:
        return [t for t in self.samples if begin_ns < t <= end_ns]
