"""The knobs of this machine: what can be set, to what, and how it goes back.

A knob is one class behind one contract, `Knob`. What it needs of the machine is handed to it: a module with the names
of pynvml or amdsmi, or the root of sysfs. Errors of libraries and files become `KnobError` here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, ControlError
from powerd_core.lease import UNLOCKED, Range, Setting, Value
from powerd_core.text import did_you_mean

Found = Mapping[str, Any]
"""What a knob was before: JSON that says how it goes back, and under ``value`` what it amounts to."""

_UNINITIALIZED, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _LOST = 1, 3, 4, 6, 15
_VOLTA, _AMPERE = 5, 7
"""nvmlDeviceArchitecture_t. Locked SM clocks came with Volta, locked memory clocks with Ampere."""
_GRAPHICS, _SM, _MEMORY = 0, 1, 2
"""nvmlClockType_t."""
_LIMITS = {"at_cap_s": (74,), "thermal_s": (269, 270), "brake_s": (271,)}
"""Fields that count nanoseconds at a limit (nvml.h, NVML_FI_DEV_CLOCKS_EVENT_REASON_*)."""
_IDLE, _SLOWED = 0x1, 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of nvmlClocksEventReasons: nothing to do; the power cap, heat or the power brake."""
_CLOCK_STEP_MHZ = 15
_LEAST_SHARE = 0.25
"""The least power that a processor's package is set to, of the greatest: the kernel names none."""
_REMEDY = {
    _NO_PERMISSION: "the driver refuses it: the helper has to run as root, outside a container or virtual guest",
    _NOT_SUPPORTED: "this GPU does not have it",
    _NOT_FOUND: "the driver does not know this GPU now",
    _LOST: "the GPU is lost: reset it or boot the machine anew",
}


class KnobError(ControlError):
    """A knob that could not be read or set."""


class Knob(ABC):
    """One thing about one device that can be set."""

    name: ClassVar[str]
    """As in `powerd_core.lease.UNITS`."""
    is_shared = False
    """Whether it concerns others than those who use the device by this name: a GPU that is divided (MIG)."""

    is_untold = False
    """Whether nothing tells what it is set to: the policy has to state what is found then."""

    def __init__(self, device: str, uuid: str) -> None:
        self._device, self.uuid = device, uuid

    @property
    def device(self) -> str:
        return self._device

    @cached_property
    @abstractmethod
    def range(self) -> Range:
        """What it takes. This and all below raise `KnobError`."""

    @abstractmethod
    def find(self) -> Found:
        """What has to be put back later."""

    @abstractmethod
    def set(self, value: Value) -> None:
        """Set it; whether the driver took the value is seen by `read`."""

    @abstractmethod
    def read(self) -> Setting:
        """What is requested and enforced now; None for what the driver does not say."""

    @abstractmethod
    def revert(self, found: Found) -> None:
        """Put back what was found."""

    def greatest(self, found: Found) -> float | None:
        """Above what it is never set where this was found; None for no such bound but its range."""
        return None

    def odometer(self) -> int | None:
        """A number that goes back only when the driver is loaded anew and forgets what was set; None without one."""
        return None

    def users(self) -> frozenset[int] | None:
        """The user ids of the processes that compute on the device; None where nobody can say."""
        return None

    def limited_s(self) -> dict[str, float]:
        """Seconds that the driver has counted at its limits so far: ``at_cap_s``, ``thermal_s``, ``brake_s``."""
        return {}

    def misses(self, value: Value) -> bool | None:
        """Whether the device works at another value than a locked one, and no limit explains it; None while it rests,
        and where nobody can say."""
        return None


# NVIDIA.


class Driver:
    """A module with pynvml's names."""

    def __init__(self, nvml: Any) -> None:
        self.nvml, self.opened = nvml, 0
        """``opened`` counts how often it was opened anew: cards may have other numbers after that."""

    def reopen(self) -> None:
        with suppress(self.nvml.NVMLError):
            self.nvml.nvmlInit()
        self.opened += 1

    def handles(self) -> Iterator[tuple[int, Any]]:
        """Numbers and handles of all cards; a card that is lost has none. Raises NVMLError."""
        for index in range(self.nvml.nvmlDeviceGetCount()):
            with suppress(self.nvml.NVMLError):
                yield index, self.nvml.nvmlDeviceGetHandleByIndex(index)

    def uuid_of(self, handle: Any) -> str:
        uuid = self.nvml.nvmlDeviceGetUUID(handle)
        return uuid.decode() if isinstance(uuid, bytes) else str(uuid)


_driver_of = cache(Driver)


class Gpu:
    """One GPU, by its UUID: numbers and handles are another card's after the driver was loaded anew."""

    def __init__(self, driver: Driver, uuid: str, index: int) -> None:
        self.driver, self.uuid = driver, uuid
        self._name, self._named = f"gpu{index}", driver.opened

    @property
    def device(self) -> str:
        """Its name by its number now; its UUID where the driver does not know it any more."""
        if self._named != self.driver.opened:
            self._name, self._named = self.uuid, self.driver.opened
            with suppress(KnobError):
                self._name = f"gpu{self.call('nvmlDeviceGetIndex')}"
        return self._name

    def call(self, name: str, *arguments: Any) -> Any:
        """A function of NVML for this GPU. Raises `KnobError`. After the driver was loaded anew NVML is opened once
        more."""
        nvml = self.driver.nvml
        for attempt in range(2):
            try:
                return getattr(nvml, name)(self._handle(), *arguments)
            except AttributeError:
                raise KnobError(f"{self._name}: the installed nvidia-ml-py has no {name}: update it") from None
            except nvml.NVMLError as error:
                code = getattr(error, "value", 0)
                if code != _UNINITIALIZED or attempt:
                    raise KnobError(f"{self._name}: {name}: {_REMEDY.get(code, error)}") from error
                self.driver.reopen()
        raise AssertionError

    def _handle(self) -> Any:
        """Asked for at each call, and never kept. Another card that is lost may make the driver refuse to search by
        UUID (nvml.h): all are looked at then."""
        nvml = self.driver.nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(self.uuid)
            if self.driver.uuid_of(handle) == self.uuid:
                return handle
        except nvml.NVMLError as error:
            if getattr(error, "value", 0) != _LOST:
                raise
        for _, handle in self.driver.handles():
            with suppress(nvml.NVMLError):
                if self.driver.uuid_of(handle) == self.uuid:
                    return handle
        raise nvml.NVMLError(_LOST)

    @cached_property
    def architecture(self) -> int:
        return int(self.call("nvmlDeviceGetArchitecture"))

    @cached_property
    def is_divided(self) -> bool:
        try:
            return bool(self.call("nvmlDeviceGetMigMode")[0])
        except KnobError:
            return False

    def odometer(self) -> int | None:
        """The energy counter, which counts from when the driver was loaded."""
        with suppress(KnobError):
            return int(self.call("nvmlDeviceGetTotalEnergyConsumption"))
        return None

    def users(self) -> frozenset[int] | None:
        try:
            pids = [p.pid for p in self.call("nvmlDeviceGetComputeRunningProcesses")]
        except KnobError:
            return None
        uids = set()
        for pid in pids:
            with suppress(FileNotFoundError):
                uids.add(Path(f"/proc/{pid}").stat().st_uid)
        return frozenset(uids)

    def limited_s(self) -> dict[str, float]:
        fields = [field for of in _LIMITS.values() for field in of]
        try:
            answers = dict(zip(fields, self.call("nvmlDeviceGetFieldValues", fields), strict=True))
        except KnobError:
            return {}
        counted = {f: answer.value.ullVal for f, answer in answers.items() if answer.nvmlReturn == 0}
        told = {name: of for name, of in _LIMITS.items() if counted.keys() >= set(of)}
        return {name: sum(counted[field] for field in of) / 1e9 for name, of in told.items()}

    def knobs(self) -> Iterator[Knob]:
        yield PowerCap(self)
        clock = ApplicationClock if self.architecture < _VOLTA else LockedClock
        yield clock(self, "sm_clock")
        if self.architecture < _VOLTA or self.architecture >= _AMPERE:
            yield clock(self, "mem_clock")


class GpuKnob(Knob):
    """A knob of an NVIDIA GPU."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__("", gpu.uuid)
        self.gpu, self.call, self.is_shared = gpu, gpu.call, gpu.is_divided

    @property
    def device(self) -> str:
        return self.gpu.device

    def odometer(self) -> int | None:
        return self.gpu.odometer()

    def users(self) -> frozenset[int] | None:
        return self.gpu.users()

    def limited_s(self) -> dict[str, float]:
        return self.gpu.limited_s()


class PowerCap(GpuKnob):
    """The power limit. Out of its range the driver refuses; another limiter of the machine may enforce a lower one."""

    name = "power_cap"

    @cached_property
    def range(self) -> Range:
        least, greatest = self.call("nvmlDeviceGetPowerManagementLimitConstraints")
        return Range(least / 1e3, greatest / 1e3, self.call("nvmlDeviceGetPowerManagementDefaultLimit") / 1e3)

    def find(self) -> Found:
        return {"value": self.read().requested}

    def set(self, value: Value) -> None:
        self.call("nvmlDeviceSetPowerManagementLimit", round(float(value) * 1e3))

    def read(self) -> Setting:
        requested = self.call("nvmlDeviceGetPowerManagementLimit") / 1e3
        return Setting(None, requested, self.call("nvmlDeviceGetEnforcedPowerLimit") / 1e3)

    def revert(self, found: Found) -> None:
        self.set(found["value"])


class ClockKnob(GpuKnob):
    """A clock of a GPU: the SM's or the memory's."""

    def __init__(self, gpu: Gpu, name: str) -> None:
        super().__init__(gpu)
        self.name = name  # type: ignore[misc]
        self._kind = {"sm_clock": _SM, "mem_clock": _MEMORY}[name]

    @cached_property
    def range(self) -> Range:
        memory = self.call("nvmlDeviceGetSupportedMemoryClocks")
        # The SM's list hardly depends on the memory's clock: the fastest memory has the longest.
        listed = memory if self._kind == _MEMORY else self.call("nvmlDeviceGetSupportedGraphicsClocks", max(memory))
        clocks = tuple(sorted({float(clock) for clock in listed}))
        return Range(clocks[0], clocks[-1], self._default, clocks)

    @property
    def _default(self) -> Value | None:
        return UNLOCKED

    def misses(self, value: Value) -> bool | None:
        try:
            reasons = int(self.call("nvmlDeviceGetCurrentClocksEventReasons"))
            clock = int(self.call("nvmlDeviceGetClockInfo", self._kind))
        except KnobError:
            return None
        if reasons & _IDLE or not isinstance(value, float):
            return None
        return abs(clock - value) > _CLOCK_STEP_MHZ and not reasons & _SLOWED


class LockedClock(ClockKnob):
    """A clock locked to one value. The driver does not tell a lock."""

    is_untold = True

    def find(self) -> Found:
        return {"value": UNLOCKED}

    def set(self, value: Value) -> None:
        word = "Gpu" if self._kind == _SM else "Memory"
        if value == UNLOCKED:
            self.call(f"nvmlDeviceReset{word}LockedClocks")
        else:
            self.call(f"nvmlDeviceSet{word}LockedClocks", int(value), int(value))

    def read(self) -> Setting:
        return Setting()

    def revert(self, found: Found) -> None:
        self.set(found["value"])


class ApplicationClock(ClockKnob):
    """A clock of the pair that GPUs before Volta run applications at."""

    def find(self) -> Found:
        return {"value": self.read().requested}

    def set(self, value: Value) -> None:
        pair = {kind: int(self.call("nvmlDeviceGetApplicationsClock", kind)) for kind in (_MEMORY, _GRAPHICS)}
        pair[_MEMORY if self._kind == _MEMORY else _GRAPHICS] = int(value)
        self.call("nvmlDeviceSetApplicationsClocks", pair[_MEMORY], pair[_GRAPHICS])

    def read(self) -> Setting:
        kind = _MEMORY if self._kind == _MEMORY else _GRAPHICS
        clock = float(self.call("nvmlDeviceGetApplicationsClock", kind))
        return Setting(None, clock, clock)

    def revert(self, found: Found) -> None:
        self.set(found["value"])

    @property
    def _default(self) -> Value | None:
        kind = _MEMORY if self._kind == _MEMORY else _GRAPHICS
        try:
            return float(self.call("nvmlDeviceGetDefaultApplicationsClock", kind))
        except KnobError:
            return None


# AMD. Met only a fake so far.


class AmdKnob(Knob):
    """A knob behind a module with amdsmi's names."""

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

    def find(self) -> Found:
        return {"value": self.read().requested}

    def set(self, value: Value) -> None:
        self.call("amdsmi_set_power_cap", 0, round(float(value) * 1e6))

    def read(self) -> Setting:
        cap_w = self.call("amdsmi_get_power_cap_info")["power_cap"] / 1e6
        return Setting(None, cap_w, cap_w)

    def revert(self, found: Found) -> None:
        self.set(found["value"])


class AmdClock(AmdKnob):
    """The greatest clock of the compute units. One clock set resets the other, and the way back is the performance
    level ``auto`` for all of them: this one alone is offered."""

    name = "sm_clock"
    is_untold = True

    @cached_property
    def range(self) -> Range:
        clock = self.call("amdsmi_get_clock_info", self._amdsmi.AmdSmiClkType.GFX)
        return Range(float(clock["min_clk"]), float(clock["max_clk"]), UNLOCKED)

    def find(self) -> Found:
        return {"value": UNLOCKED}

    def set(self, value: Value) -> None:
        if value == UNLOCKED:
            self.call("amdsmi_set_gpu_perf_level", self._amdsmi.AmdSmiDevPerfLevel.AUTO)
            return
        kinds = self._amdsmi
        self.call("amdsmi_set_gpu_clk_limit", kinds.AmdSmiClkType.GFX, kinds.AmdSmiClkLimitType.MAX, int(value))

    def read(self) -> Setting:
        return Setting()

    def revert(self, found: Found) -> None:
        self.set(found["value"])


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


def _uniform(values: list[float]) -> Value:
    """One number for several that are the same, else from where to where they go."""
    return values[0] if min(values) == max(values) else f"{min(values):g}-{max(values):g}"


class PackagePower(Knob):
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


class CpuFrequency(Knob):
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


class CpuGovernor(Knob):
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


# All of them.


def gpu_knobs(nvml: Any) -> Iterator[Knob | KnobError]:
    """Of NVIDIA's GPUs; an error for each card that does not answer. Raises `KnobError` where the driver does not."""
    driver = _driver_of(nvml)
    driver.reopen()
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise KnobError(f"NVML: {error}") from error
    for index in range(count):
        try:
            uuid = driver.uuid_of(nvml.nvmlDeviceGetHandleByIndex(index))
            yield from list(Gpu(driver, uuid, index).knobs())
        except nvml.NVMLError as error:
            yield KnobError(f"gpu{index}: {_REMEDY.get(getattr(error, 'value', 0), error)}")
        except KnobError as error:
            yield error


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


class Missing(Knob):
    """One that a record names and that is not here now, or not yet."""

    def __init__(self, uuid: str, name: str, why: str) -> None:
        super().__init__(uuid, uuid)
        self.name, self._why = name, why  # type: ignore[misc]

    @property
    def range(self) -> Range:
        raise KnobError(self._why)

    def find(self) -> Found:
        raise KnobError(self._why)

    def set(self, value: Value) -> None:
        raise KnobError(self._why)

    def read(self) -> Setting:
        raise KnobError(self._why)

    def revert(self, found: Found) -> None:
        raise KnobError(self._why)


class Bench:
    """All knobs of the machine, by (UUID, name). ``makers`` are asked again for what is not known: a driver, or a card,
    may come later. ``problems`` says what is wrong with whom.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Iterable[Knob | KnobError]]]) -> None:
        self._makers = makers
        self._knobs: dict[tuple[str, str], Knob] = {}
        self.problems: list[str] = []

    def all(self) -> list[Knob]:
        self.problems = []
        for maker in self._makers.values():
            try:
                for made in maker():
                    if isinstance(made, KnobError):
                        self.problems.append(str(made))
                    else:
                        self._knobs.setdefault((made.uuid, made.name), made)
            except (KnobError, OSError, ValueError) as error:
                self.problems.append(str(error))
        return list(self._knobs.values())

    def _known(self, device: str, name: str) -> Knob | None:
        of = (k for k in self._knobs.values() if k.name == name and device in (k.device, k.uuid))
        return next(of, None)

    def find(self, device: str, name: str) -> Knob:
        """The knob of a device that is named ``gpu0`` or by its UUID. Raises `ConfigError`."""
        if (known := self._known(device, name)) is not None:
            return known
        knobs = self.all()
        if (known := self._known(device, name)) is not None:
            return known
        devices = {knob.device for knob in knobs}
        if not any(device in (knob.device, knob.uuid) for knob in knobs):
            why = "".join(f"; {problem}" for problem in self.problems)
            raise ConfigError(f"there is no device {device[:60]!r} here{did_you_mean(device[:60], devices)}{why}")
        has = ", ".join(sorted(k.name for k in knobs if device in (k.device, k.uuid)))
        raise ConfigError(f"{device[:60]} has no {name}: it has {has}")

    def find_again(self, uuid: str, name: str) -> Knob:
        """The knob that a record names."""
        try:
            return self.find(uuid, name)
        except ConfigError as error:
            return Missing(uuid, name, str(error))
