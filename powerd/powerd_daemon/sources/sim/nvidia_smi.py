"""The `nvidia-smi` of simulated GPUs, for programs that ask it: ``--help``, ``-L``, ``--query-gpu``; it sets nothing.

`powerd sim-gpu` puts it before the installed one, and it asks the process that $POWERD_SIM_GPU names.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from powerd_core.errors import ConfigError, PeerError, PowerdError
from powerd_daemon.sources.sim.as_pynvml.pynvml import Refusal
from powerd_daemon.sources.sim.gpu_socket import SimGpu

Ask = Callable[..., Any]
"""From a function of NVML, without ``nvmlDevice``, and its arguments behind the device, to its value."""
_NOTHING = "[N/A]"


def _watts(function: str) -> Callable[[Ask], str]:
    return lambda ask: f"{ask(function) / 1e3:.2f} W"


def _limit(which: int) -> Callable[[Ask], str]:
    return lambda ask: f"{ask('GetPowerManagementLimitConstraints')[which] / 1e3:.2f} W"


def _mhz(function: str, kind: int) -> Callable[[Ask], str]:
    return lambda ask: f"{ask(function, kind)} MHz"


def _memory(which: str) -> Callable[[Ask], str]:
    return lambda ask: f"{ask('GetMemoryInfo')[which] >> 20} MiB"


def _percent(which: str) -> Callable[[Ask], str]:
    return lambda ask: f"{ask('GetUtilizationRates')[which]} %"


FIELDS: Mapping[str, Callable[[Ask], str]] = {
    "timestamp": lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000"),
    "driver_version": lambda ask: ask("nvmlSystemGetDriverVersion"),
    "count": lambda ask: str(ask("nvmlDeviceGetCount")),
    "index": lambda ask: str(ask("GetIndex")),
    "name": lambda ask: ask("GetName"),
    "uuid": lambda ask: ask("GetUUID"),
    "pci.bus_id": lambda ask: ask("GetPciInfo")["busId"],
    "pstate": lambda ask: f"P{ask('GetPerformanceState')}",
    "compute_mode": lambda _: "Default",
    "compute_cap": lambda ask: ".".join(map(str, ask("GetCudaComputeCapability"))),
    "persistence_mode": lambda ask: "Enabled" if ask("GetPersistenceMode") else "Disabled",
    "temperature.gpu": lambda ask: str(ask("GetTemperature", 0)),
    "power.draw": _watts("GetPowerUsage"),
    "power.draw.instant": lambda ask: f"{ask('GetFieldValues', [186])[0]['value']['uiVal'] / 1e3:.2f} W",
    "power.draw.average": lambda ask: f"{ask('GetFieldValues', [185])[0]['value']['uiVal'] / 1e3:.2f} W",
    "power.limit": _watts("GetPowerManagementLimit"),
    "enforced.power.limit": _watts("GetEnforcedPowerLimit"),
    "power.default_limit": _watts("GetPowerManagementDefaultLimit"),
    "power.min_limit": _limit(0),
    "power.max_limit": _limit(1),
    "clocks.gr": _mhz("GetClockInfo", 0),
    "clocks.sm": _mhz("GetClockInfo", 1),
    "clocks.mem": _mhz("GetClockInfo", 2),
    "clocks.max.gr": _mhz("GetMaxClockInfo", 0),
    "clocks.max.sm": _mhz("GetMaxClockInfo", 1),
    "clocks.max.mem": _mhz("GetMaxClockInfo", 2),
    "utilization.gpu": _percent("gpu"),
    "utilization.memory": _percent("memory"),
    "memory.total": _memory("total"),
    "memory.used": _memory("used"),
    "memory.free": _memory("free"),
}
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "clocks.current.sm": "clocks.sm"}
_ALIASES |= {"clocks.current.graphics": "clocks.gr", "clocks.current.memory": "clocks.mem"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="Simulated GPUs of `powerd sim-gpu`; sets nothing.")
    parser.add_argument("-L", "--list-gpus", action="store_true", help="a line for each GPU")
    parser.add_argument("--query-gpu", metavar="FIELDS", help=", ".join(FIELDS))
    parser.add_argument("--format", default="csv", help="csv, noheader, nounits")
    parser.add_argument("-i", "--id", help="number or UUID of a GPU")
    arguments = parser.parse_args(argv)
    try:
        _print(arguments)
    except PowerdError as error:
        print(f"nvidia-smi: {error}", file=sys.stderr)
        return 2
    return 0


def _print(arguments: argparse.Namespace) -> None:
    gpu = SimGpu.here()
    numbers = _numbers(gpu, arguments.id)
    if arguments.list_gpus:
        for number in numbers:
            ask = _ask(gpu, number)
            print(f"GPU {number}: {ask('GetName')} (UUID: {ask('GetUUID')})")
        return
    names = (arguments.query_gpu or "index,name,power.draw,power.limit,clocks.sm,temperature.gpu").split(",")
    names = [_ALIASES.get(name.strip(), name.strip()) for name in names]
    if unknown := [name for name in names if name not in FIELDS]:
        raise ConfigError(f'Field "{unknown[0]}" is not a valid field to query; there is {", ".join(FIELDS)}')
    style = arguments.format.split(",")
    if "noheader" not in style:
        print(", ".join(names))
    for number in numbers:
        cells = [_cell(FIELDS[name], _ask(gpu, number)) for name in names]
        print(", ".join(cell.partition(" ")[0] if _is_amount(cell) and "nounits" in style else cell for cell in cells))


def _numbers(gpu: SimGpu, wanted: str | None) -> list[int]:
    try:
        numbers = list(range(gpu.call("nvmlDeviceGetCount", [])))
    except Refusal as refusal:
        raise PeerError(f"no simulated GPU answers: {refusal}") from refusal
    if wanted is None:
        return numbers
    found = [n for n in numbers if wanted in (str(n), gpu.call("nvmlDeviceGetUUID", [n]))]
    if not found:
        raise ConfigError(f"No devices were found: there is no GPU {wanted}")
    return found


def _ask(gpu: SimGpu, number: int) -> Ask:
    def ask(function: str, *arguments: Any) -> Any:
        if function.startswith("nvml"):
            return gpu.call(function, [])
        return gpu.call(f"nvmlDevice{function}", [number, *arguments])

    return ask


def _cell(of: Callable[[Ask], str], ask: Ask) -> str:
    try:
        return of(ask)
    except Refusal:
        return _NOTHING


def _is_amount(cell: str) -> bool:
    number, _, unit = cell.partition(" ")
    return unit in ("W", "MHz", "MiB", "%") and number.replace(".", "").isdigit()


if __name__ == "__main__":
    sys.exit(main())
