"""NVML through ``pynvml``, read only, with its errors as ours. The one module that imports the library."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

from powerd_core.calibration import GpuFile
from powerd_core.errors import SensorError
from powerd_core.model import Provenance

FI_DEV_MEMORY_TEMP = 82
FI_DEV_POWER_AVERAGE = 185
FI_DEV_POWER_INSTANT = 186
FI_DEV_POWER_REQUESTED_LIMIT = 192
FI_DEV_AT_POWER_CAP_NS = 74
FI_DEV_THERMAL_NS = (269, 270)
"""Slowed down by software and by hardware for heat."""
FI_DEV_POWER_BRAKE_NS = 271
SCOPE_GPU, SCOPE_MODULE, SCOPE_MEMORY = 0, 1, 2
TEMPERATURE_GPU = 0
CLOCK_SM, CLOCK_MEMORY = 1, 2
TOTAL_POWER_SAMPLES = 0
ARCH_AMPERE = 7
ARCH_HOPPER = 9

NOT_SUPPORTED = 3
NOT_FOUND = 6
_LOST = (1, 9, 15, 16)
"""NVML was shut down, the driver is not loaded, the GPU is lost, or it has to be reset."""
_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Where a sample's value is, by its NVML_VALUE_TYPE."""


class NvmlRefused(Exception):
    """NVML did not answer this one question. ``code`` is its return value."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Nvml:
    """Calls of NVML functions by name. ``module`` is ``pynvml`` or what stands for it in tests."""

    def __init__(self, module: Any = None) -> None:
        self._module = module

    @property
    def provenance(self) -> Provenance:
        """Simulated where what stands for the library says so."""
        return Provenance.SIMULATED if getattr(self._module, "SIMULATED", False) else Provenance.MEASURED

    def known(self, uuid: str, driver: str) -> GpuFile | None:
        """How a simulated GPU sees its power, which needs no identification; None for a real one."""
        if self.provenance is not Provenance.SIMULATED:
            return None
        from powerd_daemon.sources.sim.nvml_face import known_gpu

        return known_gpu(uuid, driver)

    def start(self) -> None:
        """Load the library. Raises `SensorError` when there is none or it has no driver to talk to."""
        try:
            self._module = self._module or import_module("pynvml")
            self._module.nvmlInit()
        except ImportError as error:
            raise SensorError("the source 'nvml' needs the package nvidia-ml-py: pip install nvidia-ml-py") from error
        except self._module.NVMLError as error:
            raise SensorError(
                f"NVML does not start ({error}): install the NVIDIA driver and check that nvidia-smi works here"
            ) from error

    def stop(self) -> None:
        """Let go of the library."""
        with suppress(self._module.NVMLError):
            self._module.nvmlShutdown()

    def call(self, function: str, *arguments: Any) -> Any:
        """The function's value. Raises `NvmlRefused`, or `SensorError` when the GPU or the driver is gone."""
        try:
            return getattr(self._module, function)(*arguments)
        except self._module.NVMLError as error:
            raise _error(int(error.value), str(error)) from error

    def ask(self, function: str, *arguments: Any) -> Any:
        """The function's value as text or number, or None when NVML or the library does not have it."""
        try:
            value = self.call(function, *arguments)
        except (NvmlRefused, AttributeError):
            return None
        return value.decode() if isinstance(value, bytes) else value

    def field(self, handle: Any, field: int, scope: int = SCOPE_GPU) -> int:
        """A field value: milliwatts for powers, degrees for temperatures."""
        value = self.call("nvmlDeviceGetFieldValues", handle, [(field, scope) if scope else field])[0]
        if value.nvmlReturn:
            raise _error(int(value.nvmlReturn), f"NVML error {value.nvmlReturn}")
        return int(value.value.uiVal)

    def counter(self, handle: Any, *fields: int) -> int:
        """The sum of field values of 64 bits, such as nanoseconds at a limit. Raises `NvmlRefused` where one is not
        counted."""
        values = self.call("nvmlDeviceGetFieldValues", handle, list(fields))
        for value in values:
            if value.nvmlReturn:
                raise _error(int(value.nvmlReturn), f"NVML error {value.nvmlReturn}")
        return sum(int(value.value.ullVal) for value in values)

    def samples(self, handle: Any, newer_than_us: int) -> list[tuple[int, int]]:
        """Wall-clock microseconds and milliwatts from the driver's buffer; 0 for what is no power of 32 bits."""
        try:
            kind, samples = self.call("nvmlDeviceGetSamples", handle, TOTAL_POWER_SAMPLES, newer_than_us)
        except NvmlRefused as error:
            if error.code == NOT_FOUND:
                return []
            raise
        values = [getattr(s.sampleValue, _UNION[kind]) for s in samples]
        powers = [int(value) if 0 < value < 1 << 32 else 0 for value in values]
        return [(int(s.timeStamp), power_mw) for s, power_mw in zip(samples, powers, strict=True)]


def _error(code: int, text: str) -> SensorError | NvmlRefused:
    if code in _LOST:
        return SensorError(f"NVML: the GPU or its driver is gone: {text}: look at the kernel's log")
    return NvmlRefused(code, text)
