"""Powers that NVML tells for a part of the GPU (its memory) or for more than it (the module it sits on)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from powerd_daemon.sources.nvml_api import (
    FI_DEV_POWER_AVERAGE,
    FI_DEV_POWER_INSTANT,
    NOT_SUPPORTED,
    SCOPE_MEMORY,
    SCOPE_MODULE,
    NvmlRefused,
)
from powerd_daemon.sources.nvml_instant import InstantPower, some_power


class ScopePower(InstantPower):
    """The instant power of a scope, or its average over one second where that is all there is (an H200's memory)."""

    scope: ClassVar[int]
    what: ClassVar[str]

    def _choose(self) -> tuple[Callable[[], int], bool]:
        def reader(field: int) -> Callable[[], int]:
            return lambda: self.nvml.field(self.gpu.handle, field, self.scope)

        for field in (FI_DEV_POWER_INSTANT, FI_DEV_POWER_AVERAGE):
            read = reader(field)
            try:
                some_power(read())
            except NvmlRefused:
                continue
            return read, field == FI_DEV_POWER_INSTANT
        raise NvmlRefused(NOT_SUPPORTED, f"NVML tells no power of the {self.what}")

    @property
    def _fitted(self) -> bool:
        return False

    @property
    def _is_slow(self) -> bool:
        return not self._is_instant

    @property
    def description(self) -> str:
        how = "instant power (field 186)" if self._is_instant else "average power over one second (field 185)"
        return f"{self.what}: {how} by NVML"


class MemoryPower(ScopePower):
    """A part of the GPU's power: never added to it."""

    suffix = "nvml_memory"
    scope = SCOPE_MEMORY
    what = "memory of the GPU, a part of its power"


class ModulePower(ScopePower):
    """The GPU and what shares its module (the CPU of a Grace Hopper): contains the GPU's power."""

    suffix = "nvml_module"
    scope = SCOPE_MODULE
    what = "module with the GPU on it, which contains the GPU's power"
