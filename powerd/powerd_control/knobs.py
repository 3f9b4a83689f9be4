"""The knobs of this machine: what can be set, to what, and how it goes back.

A knob is one class behind one contract, `Knob`; those of NVIDIA's GPUs are here, others in `powerd_control.untested`.
What a knob needs of the machine is handed to it, such as a module with pynvml's names. Errors of libraries and files
become `KnobError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, ControlError
from powerd_core.hold import UNITS, UNLOCKED, Range, Setting, Value, option_of, text_of

Found = Mapping[str, Any]
"""What a knob was before: JSON that says how it goes back, and under ``value`` what it amounts to."""

_UNINITIALIZED, _NOT_SUPPORTED, _NO_PERMISSION, _NOT_FOUND, _LOST = 1, 3, 4, 6, 15
_VOLTA, _AMPERE = 5, 7
"""nvmlDeviceArchitecture_t. Locked SM clocks came with Volta, locked memory clocks with Ampere."""
_GRAPHICS, _SM, _MEMORY = 0, 1, 2
"""nvmlClockType_t."""
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
    """As in `powerd_core.hold.UNITS`."""
    driver: ClassVar[str] = "nvml"
    """Who makes it: a name of the `Bench`'s makers."""
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

    def check(self, value: Value) -> None:
        """Raises `ConfigError` for what it does not take."""
        of = self.range
        if isinstance(value, str):
            words = of.words or tuple(word for word in (of.default,) if isinstance(word, str))
            is_taken, what = value in words, ", ".join(words) or "a number"
        elif of.listed:
            is_taken, what = (
                value in of.listed,
                f"a listed value from {of.least:g} to {text_of(of.greatest, self.name)}",
            )
        else:
            is_taken = not of.words and of.least - 1e-6 <= value <= of.greatest + 1e-6
            what = f"{of.least:g} to {text_of(of.greatest, self.name)}"
        if not is_taken:
            raise ConfigError(f"{option_of(self.name)} takes {what}, not {text_of(value, self.name)[:60]}")

    def find(self) -> Found:
        """What has to be put back later."""
        return {"value": self.read().requested}

    @abstractmethod
    def set(self, value: Value) -> None:
        """Set it; whether the driver took the value is seen by `read`."""

    @abstractmethod
    def read(self) -> Setting:
        """What is requested and enforced now; None for what the driver does not say."""

    def revert(self, found: Found) -> None:
        """Put back what was found."""
        self.set(found["value"])

    def greatest(self, found: Found) -> float | None:
        """Above what it is never set where this was found; None for no such bound but its range."""
        return None

    def odometer(self) -> int | None:
        """A number that goes back only when the driver is loaded anew and forgets what was set; None without one."""
        return None

    def users(self) -> frozenset[int] | None:
        """The user ids of the processes that compute on the device; None where nobody can say."""
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


class PowerCap(GpuKnob):
    """The power limit. Out of its range the driver refuses; another limiter of the machine may enforce a lower one."""

    name = "power_cap"

    @cached_property
    def range(self) -> Range:
        least, greatest = self.call("nvmlDeviceGetPowerManagementLimitConstraints")
        return Range(least / 1e3, greatest / 1e3, self.call("nvmlDeviceGetPowerManagementDefaultLimit") / 1e3)

    def set(self, value: Value) -> None:
        self.call("nvmlDeviceSetPowerManagementLimit", round(float(value) * 1e3))

    def read(self) -> Setting:
        enforced = self.call("nvmlDeviceGetEnforcedPowerLimit") / 1e3
        # The request is read last: somebody else's, a moment before it is set, is seen.
        return Setting(None, self.call("nvmlDeviceGetPowerManagementLimit") / 1e3, enforced)


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


class LockedClock(ClockKnob):
    """A clock locked to one value. The driver does not tell a lock."""

    is_untold = True

    def set(self, value: Value) -> None:
        word = "Gpu" if self._kind == _SM else "Memory"
        if value == UNLOCKED:
            self.call(f"nvmlDeviceReset{word}LockedClocks")
        else:
            self.call(f"nvmlDeviceSet{word}LockedClocks", int(value), int(value))

    def read(self) -> Setting:
        return Setting()


class ApplicationClock(ClockKnob):
    """A clock of the pair that GPUs before Volta run applications at."""

    def set(self, value: Value) -> None:
        pair = {kind: int(self.call("nvmlDeviceGetApplicationsClock", kind)) for kind in (_MEMORY, _GRAPHICS)}
        pair[_MEMORY if self._kind == _MEMORY else _GRAPHICS] = int(value)
        self.call("nvmlDeviceSetApplicationsClocks", pair[_MEMORY], pair[_GRAPHICS])

    def read(self) -> Setting:
        kind = _MEMORY if self._kind == _MEMORY else _GRAPHICS
        clock = float(self.call("nvmlDeviceGetApplicationsClock", kind))
        return Setting(None, clock, clock)

    @property
    def _default(self) -> Value | None:
        kind = _MEMORY if self._kind == _MEMORY else _GRAPHICS
        try:
            return float(self.call("nvmlDeviceGetDefaultApplicationsClock", kind))
        except KnobError:
            return None


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


class Missing(Knob):
    """One that a record names and that is not here now, or not yet."""

    def __init__(self, driver: str, uuid: str, name: str, why: str) -> None:
        super().__init__(uuid, uuid)
        self.driver, self.name, self._why = driver, name, why  # type: ignore[misc]

    @property
    def range(self) -> Range:
        raise KnobError(self._why)

    def set(self, value: Value) -> None:
        raise KnobError(self._why)

    def read(self) -> Setting:
        raise KnobError(self._why)


Maker = Callable[[], Iterable[Knob | KnobError]]


class Bench:
    """All knobs of the machine, by (UUID, name). Makers are asked again for what is not known: a driver, or a card, may
    come later. ``problems`` says what is wrong with whom.
    """

    def __init__(self, makers: Mapping[str, Maker], untested: Mapping[str, Maker] | None = None) -> None:
        """``makers`` by their names. Those that are ``untested`` on hardware make nothing before `admit` names them."""
        self._makers, self._untested = dict(makers), untested or {}
        self._knobs: dict[tuple[str, str], Knob] = {}
        self.problems: list[str] = []

    def admit(self, names: Iterable[str]) -> None:
        self._makers |= {name: self._untested[name] for name in names if name in self._untested}

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
        has = sorted(option_of(knob.name) for knob in knobs if device in (knob.device, knob.uuid))
        if has:
            name = option_of(name) if name in UNITS else name
            raise ConfigError(f"{device[:60]} has no {name}: it has {', '.join(has)}")
        devices = ", ".join(sorted({knob.device for knob in knobs})) or "none"
        raise ConfigError("; ".join([f"there is no device {device[:60]!r} here: there is {devices}", *self.problems]))

    def find_again(self, driver: str, uuid: str, name: str) -> Knob:
        """The knob that a record names."""
        self.admit([driver])
        try:
            return self.find(uuid, name)
        except ConfigError as error:
            return Missing(driver, uuid, name, str(error))
