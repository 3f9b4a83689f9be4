"""Knobs that have met no hardware yet, fakes alone: loaded only where the policy names them, or a record does.

``amd``   power caps and clocks of AMD's GPUs
``cpu``   the power of a processor's package (RAPL), and the frequencies and governors of its cores
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from powerd_control.knobs import Found, Knob, KnobError
from powerd_core.hold import UNLOCKED, Range, Setting, Value

_LEAST_SHARE = 0.25
"""The least power that a processor's package is set to, of the greatest: the kernel names none."""


# AMD.


class AmdKnob(Knob):
    """A knob behind a module with amdsmi's names."""

    driver = "amd"

    def __init__(self, amdsmi: Any, handle: Any, device: str) -> None:
        self._amdsmi, self._handle = amdsmi, handle
        super().__init__(device, str(self.call("amdsmi_get_gpu_device_uuid")))

    def call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._amdsmi, name)(self._handle, *arguments)
        except self._amdsmi.AmdSmiException as error:
            raise KnobError(f"{name}: {error}") from error


class AmdPowerCap(AmdKnob):
    """Watts outside, microwatts in the library. Some boards refuse lower caps, or take them as a wish."""

    name = "power_cap"

    @cached_property
    def range(self) -> Range:
        cap = self.call("amdsmi_get_power_cap_info")
        return Range(cap["min_power_cap"] / 1e6, cap["max_power_cap"] / 1e6, cap["default_power_cap"] / 1e6)

    def set(self, value: Value) -> None:
        self.call("amdsmi_set_power_cap", 0, round(float(value) * 1e6))

    def read(self) -> Setting:
        cap_w = self.call("amdsmi_get_power_cap_info")["power_cap"] / 1e6
        return Setting(None, cap_w, cap_w)


class AmdClock(AmdKnob):
    """The greatest clock of the compute units. One clock set resets the other, and the way back is the performance
    level ``auto`` for all of them: this one alone is offered."""

    name = "sm_clock"
    is_untold = True

    @cached_property
    def range(self) -> Range:
        clock = self.call("amdsmi_get_clock_info", self._amdsmi.AmdSmiClkType.GFX)
        return Range(float(clock["min_clk"]), float(clock["max_clk"]), UNLOCKED)

    def set(self, value: Value) -> None:
        if value == UNLOCKED:
            self.call("amdsmi_set_gpu_perf_level", self._amdsmi.AmdSmiDevPerfLevel.AUTO)
            return
        kinds = self._amdsmi
        self.call("amdsmi_set_gpu_clk_limit", kinds.AmdSmiClkType.GFX, kinds.AmdSmiClkLimitType.MAX, int(value))

    def read(self) -> Setting:
        return Setting()


# Processors: files of sysfs.


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise KnobError(f"{path}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    """Raises `KnobError` where the kernel refuses it, or says nothing and keeps another value (a lock of the BIOS)."""
    try:
        path.write_text(text)
    except OSError as error:
        raise KnobError(f"{path}: {error.strerror}") from error


class CpuKnob(Knob):
    """A knob that files of sysfs make."""

    driver = "cpu"


def _uniform(values: list[float]) -> Value:
    """One number for several that are the same, else from where to where they go."""
    return values[0] if min(values) == max(values) else f"{min(values):g}-{max(values):g}"


class PackagePower(CpuKnob):
    """RAPL's limit of a processor's package: the long and the short constraint, since either alone is exceeded."""

    name = "package_power"

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(f"cpu{number}", f"rapl-package-{number}")
        self._folder = folder
        self._limits = sorted(folder.glob("constraint_[01]_power_limit_uw"))

    @cached_property
    def range(self) -> Range:
        greatest = float(_read(self._folder / "constraint_0_max_power_uw")) / 1e6
        if greatest <= 0:
            raise KnobError(f"{self.device}: the kernel does not say how much power this processor may take")
        return Range(_LEAST_SHARE * greatest, greatest)

    def greatest(self, found: Found) -> float | None:
        return min(float(found["files"][path.name]) / 1e6 for path in self._limits)

    def find(self) -> Found:
        files = [*self._limits, self._folder / "enabled"]
        return {"value": self.read().requested, "files": {path.name: _read(path) for path in files}}

    def set(self, value: Value) -> None:
        for path in self._limits:
            _write(path, str(round(float(value) * 1e6)))
        _write(self._folder / "enabled", "1")

    def read(self) -> Setting:
        requested = _uniform([float(_read(path)) / 1e6 for path in self._limits])
        return Setting(None, requested, requested if _read(self._folder / "enabled") == "1" else None)

    def revert(self, found: Found) -> None:
        for name, text in found["files"].items():
            _write(self._folder / name, text)


class CpuFrequency(CpuKnob):
    """All cores at one frequency: least and greatest of every policy of cpufreq."""

    name = "cpu_clock"

    def __init__(self, policies: list[Path]) -> None:
        super().__init__("cpu", "cpufreq")
        self._policies = policies

    @cached_property
    def range(self) -> Range:
        least = max(float(_read(p / "cpuinfo_min_freq")) for p in self._policies) / 1e3
        return Range(least, min(float(_read(p / "cpuinfo_max_freq")) for p in self._policies) / 1e3)

    def find(self) -> Found:
        limits = {p.name: [_read(p / "scaling_min_freq"), _read(p / "scaling_max_freq")] for p in self._policies}
        return {"value": self.read().requested, "limits": limits}

    def set(self, value: Value) -> None:
        khz = str(round(float(value) * 1e3))
        for policy in self._policies:
            self._limit(policy, khz, khz)

    @staticmethod
    def _limit(policy: Path, least: str, greatest: str) -> None:
        # The kernel refuses a least above the greatest: down with it first.
        _write(policy / "scaling_min_freq", _read(policy / "cpuinfo_min_freq"))
        _write(policy / "scaling_max_freq", greatest)
        _write(policy / "scaling_min_freq", least)

    def read(self) -> Setting:
        names = ("scaling_min_freq", "scaling_max_freq")
        limits = _uniform([float(_read(p / name)) / 1e3 for p in self._policies for name in names])
        return Setting(None, limits, limits)

    def revert(self, found: Found) -> None:
        for policy in self._policies:
            if policy.name in found["limits"]:
                self._limit(policy, *found["limits"][policy.name])


class CpuGovernor(CpuKnob):
    """The governor of every policy of cpufreq."""

    name = "cpu_governor"

    def __init__(self, policies: list[Path]) -> None:
        super().__init__("cpu", "cpufreq")
        self._policies = policies

    @cached_property
    def range(self) -> Range:
        return Range(words=tuple(_read(self._policies[0] / "scaling_available_governors").split()))

    def find(self) -> Found:
        governors = {p.name: _read(p / "scaling_governor") for p in self._policies}
        return {"value": self.read().requested, "governors": governors}

    def set(self, value: Value) -> None:
        for policy in self._policies:
            _write(policy / "scaling_governor", str(value))

    def read(self) -> Setting:
        governors = "+".join(sorted({_read(p / "scaling_governor") for p in self._policies}))
        return Setting(None, governors, governors)

    def revert(self, found: Found) -> None:
        for policy in self._policies:
            if policy.name in found["governors"]:
                _write(policy / "scaling_governor", found["governors"][policy.name])


def amd_knobs(amdsmi: Any) -> Iterator[Knob]:
    try:
        amdsmi.amdsmi_init()
        handles = amdsmi.amdsmi_get_processor_handles()
    except amdsmi.AmdSmiException as error:
        raise KnobError(f"amdsmi: {error}") from error
    for index, handle in enumerate(handles):
        yield AmdPowerCap(amdsmi, handle, f"gpu{index}")
        yield AmdClock(amdsmi, handle, f"gpu{index}")


def cpu_knobs(sysfs: Path) -> Iterator[Knob]:
    """Of processors, as far as the kernel offers them to whoever runs this."""
    packages = [p for p in sorted(sysfs.glob("class/powercap/intel-rapl:?")) if (p / "name").exists()]
    for folder in packages:
        if (folder / "constraint_0_power_limit_uw").exists() and _read(folder / "name").startswith("package-"):
            yield PackagePower(folder, int(_read(folder / "name").removeprefix("package-")))
    policies = sorted(sysfs.glob("devices/system/cpu/cpufreq/policy*"))
    if policies:
        yield CpuFrequency(policies)
        yield CpuGovernor(policies)
