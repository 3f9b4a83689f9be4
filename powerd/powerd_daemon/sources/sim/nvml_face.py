"""NVML's functions on simulated GPUs, by their names: what a driver would answer, as plain values.

`NvmlFace` is the driver's side. `make_module` puts pynvml's names, exceptions and structures around it in this process,
`as_pynvml` around a `powerd sim-gpu` at the other end of a socket.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from powerd_core.calibration import GpuFile, GpuGain, GpuResponse
from powerd_core.errors import SensorError
from powerd_daemon.sources.sim.as_pynvml.pynvml import Call, Refusal, fill
from powerd_daemon.sources.sim.gpu import (
    GPU_IS_LOST,
    INVALID,
    LOW_PASS_S,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNINITIALIZED,
    SimulatedGpu,
    SimulatedNode,
)

_VOLTA, _AMPERE = 5, 7
_GRAPHICS, _SM, _MEMORY, _VIDEO = 0, 1, 2, 3
_CURRENT, _CUSTOMER_MOST = 0, 3
"""nvmlClockId_t."""
_CAPABILITY = {4: (6, 0), 5: (7, 0), 6: (7, 5), 7: (8, 0), 9: (9, 0)}
"""Of CUDA, by nvmlDeviceArchitecture_t."""
_MEMORY_BYTES, _OF_A_PROCESS = 24 << 30, 4 << 30
_PROCESS = {"usedGpuMemory": _OF_A_PROCESS, "gpuInstanceId": None, "computeInstanceId": None}
_GPU_IDLE = 0x1
"""nvml.h, nvmlClocksEventReasonGpuIdle."""
_THRESHOLDS_C = {0: 95, 1: 89, 2: 95, 3: 87}
"""nvmlTemperatureThresholds_t: shutdown, slowdown, memory, GPU."""
_TAKEN = "2026-01-01T00:00:00Z"
"""A date, where one is shown."""
READINGS = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetSamples")


class NvmlFace:
    """Answers for a node whose clock is brought up to date before each call."""

    def __init__(self, node: SimulatedNode, now_s: Callable[[], float], wall_s: Callable[[], float] = time.time):
        self.node, self._now_s, self._wall_s = node, now_s, wall_s
        self._loads = node.loads
        """Of the driver when NVML was opened: one face for each who opens it."""

    def call(self, name: str, arguments: list[Any]) -> Any:
        """The value of a function. Raises `Refusal`."""
        function = getattr(self, f"_{name}", None)
        if not name.startswith("nvml") or function is None:
            raise Refusal(NOT_SUPPORTED)
        self.node.advance(self._now_s())
        if self._loads != self.node.loads and name != "nvmlInit":
            raise Refusal(UNINITIALIZED)
        if name.startswith(("nvmlDeviceGet", "nvmlDeviceSet", "nvmlDeviceReset")) and "Handle" not in name:
            if name == "nvmlDeviceGetCount":
                return len(self.node.gpus)
            gpu, *arguments = arguments
            return function(self._gpu(gpu), *arguments)
        return function(*arguments)

    def _gpu(self, handle: Any) -> SimulatedGpu:
        """By its number, as a handle."""
        if not isinstance(handle, int) or not 0 <= handle < len(self.node.gpus):
            raise Refusal(INVALID)
        gpu = self.node.gpus[handle]
        if gpu.is_lost:
            raise Refusal(GPU_IS_LOST)
        return gpu

    # The library.

    def _nvmlInit(self) -> None:
        self._loads = self.node.loads

    def _nvmlShutdown(self) -> None: ...

    def _nvmlSystemGetDriverVersion(self) -> str:
        return "580.0 (simulated)"

    def _nvmlSystemGetNVMLVersion(self) -> str:
        return "13.580.0"

    def _nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def _nvmlDeviceGetCount(self) -> int:
        return len(self.node.gpus)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._gpu(index)
        return index

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        for gpu in self.node.gpus:
            if gpu.uuid == uuid:
                return gpu.index
        raise Refusal(6)

    def _nvmlDeviceGetHandleByPciBusId(self, bus: str) -> int:
        for gpu in self.node.gpus:
            if _bus_id(gpu) == bus:
                return gpu.index
        raise Refusal(6)

    # What it is.

    def _nvmlDeviceGetName(self, gpu: SimulatedGpu) -> str:
        return gpu.card.name

    def _nvmlDeviceGetUUID(self, gpu: SimulatedGpu) -> str:
        return gpu.uuid

    def _nvmlDeviceGetIndex(self, gpu: SimulatedGpu) -> int:
        return gpu.index

    def _nvmlDeviceGetMinorNumber(self, gpu: SimulatedGpu) -> int:
        return gpu.index

    def _nvmlDeviceGetArchitecture(self, gpu: SimulatedGpu) -> int:
        return gpu.card.architecture

    def _nvmlDeviceGetPciInfo(self, gpu: SimulatedGpu) -> dict[str, Any]:
        return {"busId": _bus_id(gpu), "domain": 0, "bus": gpu.index + 1, "device": 0}

    def _nvmlDeviceGetMemoryInfo(self, gpu: SimulatedGpu, version: int = 1) -> dict[str, Any]:
        used = _OF_A_PROCESS * len(gpu.processes)
        return {"version": version, "total": _MEMORY_BYTES, "reserved": 0, "free": _MEMORY_BYTES - used, "used": used}

    def _nvmlDeviceGetBAR1MemoryInfo(self, gpu: SimulatedGpu) -> dict[str, Any]:
        return {"bar1Total": 256 << 20, "bar1Free": 256 << 20, "bar1Used": 0}

    def _nvmlDeviceGetBrand(self, gpu: SimulatedGpu) -> int:
        words = {"Tesla": 2, "GeForce": 5, "Quadro RTX": 12}
        return next((brand for word, brand in words.items() if word in gpu.card.name), 14)

    def _nvmlDeviceGetCudaComputeCapability(self, gpu: SimulatedGpu) -> list[int]:
        return list(_CAPABILITY.get(gpu.card.architecture, (9, 0)))

    def _nvmlDeviceGetComputeMode(self, gpu: SimulatedGpu) -> int:
        return 0

    # Power and energy.

    def _nvmlDeviceGetPowerUsage(self, gpu: SimulatedGpu) -> int:
        return round(1e3 * (gpu.average_w if gpu.card.architecture >= _AMPERE else gpu.instant_w))

    def _nvmlDeviceGetTotalEnergyConsumption(self, gpu: SimulatedGpu) -> int:
        if gpu.card.architecture < _VOLTA:
            raise Refusal(NOT_SUPPORTED)
        return gpu.energy_mj

    def _nvmlDeviceGetSamples(self, gpu: SimulatedGpu, kind: int, newer_than_us: int) -> list[Any]:
        if kind != 0:
            raise Refusal(NOT_SUPPORTED)
        ahead_s = self._wall_s() - gpu.now_s
        samples = [(round(1e6 * (t_s + ahead_s)), round(1e3 * power_w)) for t_s, power_w in gpu.samples]
        newer = [{"timeStamp": t_us, "sampleValue": {"uiVal": mw}} for t_us, mw in samples if t_us > newer_than_us]
        if not newer:
            raise Refusal(6)
        return [1, newer]

    def _nvmlDeviceGetFieldValues(self, gpu: SimulatedGpu, fields: list[Any]) -> list[dict[str, Any]]:
        now, loaded = gpu.truth, gpu.loaded
        at_cap_ns = round(1e9 * (now.at_cap_s - loaded.at_cap_s))
        thermal_ns = round(1e9 * (now.thermal_s - loaded.thermal_s))
        brake_ns = round(1e9 * (now.brake_s - loaded.brake_s))
        least, default, greatest = (round(1e3 * w) for w in gpu.card.limits_w)
        known = {
            74: at_cap_ns,
            75: 0,
            76: 0,
            185: round(1e3 * gpu.average_w),
            186: round(1e3 * gpu.instant_w),
            187: least,
            188: greatest,
            189: default,
            190: round(1e3 * gpu.enforced_w),
            192: round(1e3 * gpu.set_to.limit_w),
            269: thermal_ns,
            270: 0,
            271: brake_ns,
        }
        answers = []
        for field in fields:
            number, scope = field if isinstance(field, list | tuple) else (field, 0)
            value = known.get(number) if scope == 0 else None
            members = dict.fromkeys(("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"), value or 0)
            code = 0 if value is not None else NOT_SUPPORTED
            answers.append({"fieldId": number, "scopeId": scope, "nvmlReturn": code, "value": members})
        return answers

    # The power limit.

    def _nvmlDeviceGetPowerManagementLimit(self, gpu: SimulatedGpu) -> int:
        return round(1e3 * gpu.set_to.limit_w)

    def _nvmlDeviceGetEnforcedPowerLimit(self, gpu: SimulatedGpu) -> int:
        return round(1e3 * gpu.enforced_w)

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, gpu: SimulatedGpu) -> int:
        return round(1e3 * gpu.card.limits_w[1])

    def _nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: SimulatedGpu) -> list[int]:
        return [round(1e3 * gpu.card.limits_w[0]), round(1e3 * gpu.card.limits_w[2])]

    def _nvmlDeviceSetPowerManagementLimit(self, gpu: SimulatedGpu, limit_mw: int) -> None:
        if not gpu.card.limits_w[0] <= limit_mw / 1e3 <= gpu.card.limits_w[2]:
            raise Refusal(INVALID)
        gpu.change("limit_w", limit_mw / 1e3)

    # Clocks.

    def _nvmlDeviceGetSupportedMemoryClocks(self, gpu: SimulatedGpu) -> list[int]:
        return list(gpu.card.memory_mhz[::-1])

    def _nvmlDeviceGetSupportedGraphicsClocks(self, gpu: SimulatedGpu, memory_mhz: int) -> list[int]:
        if memory_mhz not in gpu.card.memory_mhz:
            raise Refusal(INVALID)
        return list(gpu.card.core_mhz[::-1])

    def _nvmlDeviceGetMaxClockInfo(self, gpu: SimulatedGpu, kind: int) -> int:
        return gpu.card.memory_mhz[-1] if kind == _MEMORY else gpu.card.core_mhz[-1]

    def _nvmlDeviceGetClockInfo(self, gpu: SimulatedGpu, kind: int) -> int:
        if kind == _MEMORY:
            return round(gpu.g * gpu.card.memory_mhz[-1])
        return round(gpu.f * gpu.card.core_mhz[-1])

    def _nvmlDeviceGetClock(self, gpu: SimulatedGpu, kind: int, which: int = 0) -> int:
        if which == _CURRENT:
            return self._nvmlDeviceGetClockInfo(gpu, kind)
        if which == _CUSTOMER_MOST:
            return self._nvmlDeviceGetMaxClockInfo(gpu, kind)
        raise Refusal(NOT_SUPPORTED)

    def _nvmlDeviceGetMaxCustomerBoostClock(self, gpu: SimulatedGpu, kind: int) -> int:
        return self._nvmlDeviceGetMaxClockInfo(gpu, kind)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, gpu: SimulatedGpu) -> int:
        return gpu.reasons | (_GPU_IDLE if gpu.is_idle else 0)

    _nvmlDeviceGetCurrentClocksThrottleReasons = _nvmlDeviceGetCurrentClocksEventReasons

    def _nvmlDeviceGetSupportedClocksEventReasons(self, gpu: SimulatedGpu) -> int:
        return 0x1FF

    def _nvmlDeviceSetGpuLockedClocks(self, gpu: SimulatedGpu, least: int, greatest: int) -> None:
        self._lock(gpu, "core_mhz", _VOLTA, (least, greatest), gpu.card.core_mhz)

    def _nvmlDeviceResetGpuLockedClocks(self, gpu: SimulatedGpu) -> None:
        self._lock(gpu, "core_mhz", _VOLTA, None, gpu.card.core_mhz)

    def _nvmlDeviceSetMemoryLockedClocks(self, gpu: SimulatedGpu, least: int, greatest: int) -> None:
        self._lock(gpu, "memory_mhz", _AMPERE, (least, greatest), gpu.card.memory_mhz)

    def _nvmlDeviceResetMemoryLockedClocks(self, gpu: SimulatedGpu) -> None:
        self._lock(gpu, "memory_mhz", _AMPERE, None, gpu.card.memory_mhz)

    @staticmethod
    def _lock(gpu: SimulatedGpu, name: str, since: int, pair: tuple[int, int] | None, listed: tuple[int, ...]) -> None:
        if gpu.card.architecture < since:
            raise Refusal(NOT_SUPPORTED)
        if pair is not None:
            least, greatest = pair
            if least > greatest or greatest < listed[0] or least > listed[-1]:
                raise Refusal(INVALID)
            pair = (least, min(listed, key=lambda clock: abs(clock - greatest)))
        gpu.change(name, pair)

    def _nvmlDeviceGetApplicationsClock(self, gpu: SimulatedGpu, kind: int) -> int:
        if gpu.card.architecture >= _VOLTA:
            raise Refusal(NOT_SUPPORTED)
        pair = gpu.set_to.applications_mhz or (gpu.card.memory_mhz[-1], gpu.card.core_mhz[-1])
        return pair[0] if kind == _MEMORY else pair[1]

    def _nvmlDeviceGetDefaultApplicationsClock(self, gpu: SimulatedGpu, kind: int) -> int:
        return gpu.card.memory_mhz[-1] if kind == _MEMORY else gpu.card.core_mhz[-1]

    def _nvmlDeviceSetApplicationsClocks(self, gpu: SimulatedGpu, memory_mhz: int, core_mhz: int) -> None:
        if gpu.card.architecture >= _VOLTA:
            raise Refusal(NOT_SUPPORTED)
        if memory_mhz not in gpu.card.memory_mhz or core_mhz not in gpu.card.core_mhz:
            raise Refusal(INVALID)
        gpu.change("applications_mhz", (memory_mhz, core_mhz))

    def _nvmlDeviceResetApplicationsClocks(self, gpu: SimulatedGpu) -> None:
        if gpu.card.architecture >= _VOLTA:
            raise Refusal(NOT_SUPPORTED)
        gpu.change("applications_mhz", None)

    # The rest.

    def _nvmlDeviceGetTemperature(self, gpu: SimulatedGpu, sensor: int) -> int:
        return round(gpu.temperature_c)

    def _nvmlDeviceGetTemperatureV(self, gpu: SimulatedGpu, sensor: int, version: int = 0) -> int:
        return self._nvmlDeviceGetTemperature(gpu, sensor)

    def _nvmlDeviceGetMarginTemperature(self, gpu: SimulatedGpu) -> int:
        return round(gpu.card.slowdown_c - gpu.temperature_c)

    def _nvmlDeviceGetTemperatureThreshold(self, gpu: SimulatedGpu, which: int) -> int:
        if which not in _THRESHOLDS_C:
            raise Refusal(NOT_SUPPORTED)
        return _THRESHOLDS_C[which]

    def _nvmlDeviceGetUtilizationRates(self, gpu: SimulatedGpu) -> dict[str, int]:
        return {"gpu": 0 if gpu.is_idle else 100, "memory": 0 if gpu.is_idle else 60}

    def _nvmlDeviceGetPersistenceMode(self, gpu: SimulatedGpu) -> int:
        return int(gpu.is_persistent)

    def _nvmlDeviceSetPersistenceMode(self, gpu: SimulatedGpu, mode: int) -> None:
        if "no-permission" in gpu.faults:
            raise Refusal(NO_PERMISSION)
        gpu.is_persistent = bool(mode)

    def _nvmlDeviceGetPerformanceState(self, gpu: SimulatedGpu) -> int:
        return 8 if gpu.is_idle else 0

    _nvmlDeviceGetPowerState = _nvmlDeviceGetPerformanceState

    def _nvmlDeviceGetComputeRunningProcesses(self, gpu: SimulatedGpu) -> list[dict[str, Any]]:
        return [{**_PROCESS, "pid": pid} for pid in sorted(gpu.processes)]

    def _nvmlDeviceGetGraphicsRunningProcesses(self, gpu: SimulatedGpu) -> list[Any]:
        return []

    _nvmlDeviceGetComputeRunningProcesses_v2 = _nvmlDeviceGetComputeRunningProcesses
    _nvmlDeviceGetComputeRunningProcesses_v3 = _nvmlDeviceGetComputeRunningProcesses
    _nvmlDeviceGetGraphicsRunningProcesses_v2 = _nvmlDeviceGetGraphicsRunningProcesses
    _nvmlDeviceGetGraphicsRunningProcesses_v3 = _nvmlDeviceGetGraphicsRunningProcesses
    _nvmlDeviceGetMPSComputeRunningProcesses = _nvmlDeviceGetGraphicsRunningProcesses
    _nvmlDeviceGetMPSComputeRunningProcesses_v3 = _nvmlDeviceGetGraphicsRunningProcesses

    def _nvmlDeviceGetMaxMigDeviceCount(self, gpu: SimulatedGpu) -> int:
        return 0


def _bus_id(gpu: SimulatedGpu) -> str:
    return f"00000000:{gpu.index + 1:02X}:00.0"


FUNCTIONS = tuple(name.removeprefix("_") for name in dir(NvmlFace) if name.startswith("_nvml"))
"""Those that a simulated GPU answers."""


def make_module(call: Call) -> ModuleType:
    """A module with pynvml's names that answers by ``call``. Raises `SensorError` without an installed nvidia-ml-py."""
    module = ModuleType("pynvml")
    try:
        fill(module.__dict__, call, FUNCTIONS)
    except ImportError as error:
        raise SensorError(str(error)) from error
    return module


def known_gpu(uuid: str, driver: str) -> GpuFile:
    """How a simulated GPU's driver sees its power: a low-pass of `LOW_PASS_S`, and no error of gain."""
    tau_ms = 1e3 * LOW_PASS_S
    times = (tau_ms, 0.01, 0.0, 0.0, tau_ms, 1.0, 0.0, 1.0, 0.0)
    reference = "its own truth (simulated)"
    return GpuFile(
        (
            GpuResponse(uuid, driver, "nvml_samples", "low-pass", *times, _TAKEN),
            GpuResponse(uuid, driver, "nvml", "low-pass", *times, _TAKEN),
        ),
        (
            GpuGain(uuid, "nvml_samples", 1.0, 1e-4, reference, _TAKEN),
            GpuGain(uuid, "nvml", 1.0, 1e-4, reference, _TAKEN),
            GpuGain(uuid, "nvml_energy", 1.0, 1e-4, reference, _TAKEN),
        ),
    )
