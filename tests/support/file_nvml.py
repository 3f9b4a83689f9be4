"""A module with pynvml's names whose GPUs live in a file, so that they outlive every process that turns their knobs.

``$POWERD_FAKE_NVML`` names the file, JSON as `fresh` makes it. Faults stand in it under ``faults``, by name of the
function: ``"refuse"`` (an error code), ``"ignore"``, ``"clamp"`` (the value that is taken instead), ``"halfway"`` (it
clamps between what was and what is asked), ``"slow_s"``. What was called stands under ``calls``. `hook` is called
before and after each setter, for who wants to die there.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DEFAULT_MW, LEAST_MW, GREATEST_MW = 260_000, 100_000, 300_000
SM_CLOCKS = list(range(300, 2101, 15))
MEMORY_CLOCKS = [7001, 5001, 405]


def hook(name: str) -> None: ...


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def fresh(path: Path, gpus: int = 1, architecture: int = 7) -> Path:
    """A machine that was just booted."""
    gpu = {"limit_mw": DEFAULT_MW, "out_of_band_mw": GREATEST_MW, "lock": None, "memory_lock": None}
    gpu |= {"energy_mj": 1_000_000, "applications": [MEMORY_CLOCKS[0], SM_CLOCKS[-1]], "counters": {}, "clock": 2100}
    state = {"gpus": [dict(gpu) for _ in range(gpus)], "architecture": architecture, "faults": {}, "calls": []}
    path.write_text(json.dumps(state))
    return path


def path_here() -> Path:
    return Path(os.environ["POWERD_FAKE_NVML"])


@contextmanager
def opened(path: Path | None = None) -> Iterator[dict[str, Any]]:
    """The machine, to be looked at and changed."""
    path = path or path_here()
    with open(path, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        state = json.load(file)
        yield state
        file.seek(0)
        file.truncate()
        json.dump(state, file)


def reload_driver(path: Path | None = None) -> None:
    """All settings are gone, and counters begin anew."""
    with opened(path) as state:
        for gpu in state["gpus"]:
            gpu |= {"limit_mw": DEFAULT_MW, "lock": None, "memory_lock": None, "energy_mj": 0}


def _ask(index: int, name: str) -> Any:
    with opened() as state:
        fault = state["faults"].get(name, {})
        if "refuse" in fault:
            raise NVMLError(fault["refuse"])
        state["gpus"][index]["energy_mj"] += 10
        return dict(state["gpus"][index], architecture=state["architecture"])


def _set(index: int, name: str, **values: Any) -> None:
    hook(f"before {name}")
    with opened() as state:
        state["calls"].append([name, index, list(values.values())])
        fault = state["faults"].get(f"{name} {index}", state["faults"].get(name, {}))
        gpu = state["gpus"][index]
    time.sleep(fault.get("slow_s", 0.0))
    if "refuse" in fault:
        raise NVMLError(fault["refuse"])
    if "ignore" not in fault:
        with opened() as state:
            gpu = state["gpus"][index]
            for key, value in values.items():
                gpu[key] = (gpu[key] + value) // 2 if "halfway" in fault else fault.get("clamp", value)
    hook(f"after {name}")


def nvmlInit() -> None: ...


def nvmlDeviceGetCount() -> int:
    with opened() as state:
        return len(state["gpus"])


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetHandleByUUID(uuid: str) -> int:
    return int(uuid[4:12])


def nvmlDeviceGetIndex(gpu: int) -> int:
    return gpu


def nvmlDeviceGetUUID(gpu: int) -> str:
    return f"GPU-0000000{gpu}-fake"


def nvmlDeviceGetArchitecture(gpu: int) -> int:
    return _ask(gpu, "nvmlDeviceGetArchitecture")["architecture"]


def nvmlDeviceGetMigMode(gpu: int) -> list[int]:
    raise NVMLError(3)


def nvmlDeviceGetPowerManagementLimitConstraints(gpu: int) -> list[int]:
    return [LEAST_MW, GREATEST_MW]


def nvmlDeviceGetPowerManagementDefaultLimit(gpu: int) -> int:
    return DEFAULT_MW


def nvmlDeviceGetPowerManagementLimit(gpu: int) -> int:
    return _ask(gpu, "nvmlDeviceGetPowerManagementLimit")["limit_mw"]


def nvmlDeviceGetEnforcedPowerLimit(gpu: int) -> int:
    state = _ask(gpu, "nvmlDeviceGetEnforcedPowerLimit")
    return min(state["limit_mw"], state["out_of_band_mw"])


def nvmlDeviceSetPowerManagementLimit(gpu: int, limit_mw: int) -> None:
    if not LEAST_MW <= limit_mw <= GREATEST_MW:
        raise NVMLError(2)
    _set(gpu, "nvmlDeviceSetPowerManagementLimit", limit_mw=limit_mw)


def nvmlDeviceGetTotalEnergyConsumption(gpu: int) -> int:
    return _ask(gpu, "nvmlDeviceGetTotalEnergyConsumption")["energy_mj"]


def nvmlDeviceGetSupportedMemoryClocks(gpu: int) -> list[int]:
    return MEMORY_CLOCKS


def nvmlDeviceGetSupportedGraphicsClocks(gpu: int, memory_mhz: int) -> list[int]:
    return SM_CLOCKS


def nvmlDeviceSetGpuLockedClocks(gpu: int, least: int, greatest: int) -> None:
    _set(gpu, "nvmlDeviceSetGpuLockedClocks", lock=greatest, clock=greatest)


def nvmlDeviceResetGpuLockedClocks(gpu: int) -> None:
    _set(gpu, "nvmlDeviceResetGpuLockedClocks", lock=None, clock=SM_CLOCKS[-1])


def nvmlDeviceSetMemoryLockedClocks(gpu: int, least: int, greatest: int) -> None:
    _set(gpu, "nvmlDeviceSetMemoryLockedClocks", memory_lock=greatest)


def nvmlDeviceResetMemoryLockedClocks(gpu: int) -> None:
    _set(gpu, "nvmlDeviceResetMemoryLockedClocks", memory_lock=None)


def nvmlDeviceGetApplicationsClock(gpu: int, kind: int) -> int:
    return _ask(gpu, "nvmlDeviceGetApplicationsClock")["applications"][0 if kind == 2 else 1]


def nvmlDeviceGetDefaultApplicationsClock(gpu: int, kind: int) -> int:
    return MEMORY_CLOCKS[0] if kind == 2 else SM_CLOCKS[-1]


def nvmlDeviceSetApplicationsClocks(gpu: int, memory_mhz: int, sm_mhz: int) -> None:
    _set(gpu, "nvmlDeviceSetApplicationsClocks", applications=[memory_mhz, sm_mhz])


def nvmlDeviceGetFieldValues(gpu: int, fields: list[int]) -> list[SimpleNamespace]:
    counters = _ask(gpu, "nvmlDeviceGetFieldValues")["counters"]
    return [
        SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=counters.get(str(field), 0))) for field in fields
    ]


def nvmlDeviceGetCurrentClocksEventReasons(gpu: int) -> int:
    return 0


def nvmlDeviceGetClockInfo(gpu: int, kind: int) -> int:
    return _ask(gpu, "nvmlDeviceGetClockInfo")["clock"]


def nvmlDeviceGetComputeRunningProcesses(gpu: int) -> list[SimpleNamespace]:
    return []
