"""Sources ``hwmon`` and ``iio``: power sensors for which the kernel has a driver, as files below /sys/class.

Which files there are and their units: Documentation/hwmon/sysfs-interface.rst, ina2xx.rst, ina3221.rst and
acpi_power_meter.rst, Documentation/ABI/testing/sysfs-bus-iio. The kernel does not say which rail contains which, so
nothing is added unless the option ``feeds`` says what adds up.
"""

from __future__ import annotations

import errno
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from math import hypot, sqrt
from pathlib import Path
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy, CounterConversion, Device, ScaledConversion
from powerd_core.serde import option
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.chips import CHIPS, ChipType
from powerd_daemon.sources.polled import (
    ENERGY,
    POWER,
    Meter,
    MeterAnswer,
    MeterChannel,
    PolledSource,
    Unanswered,
    check_pace,
    micro_code,
)

SYS = Path(os.environ.get("POWERD_SYSFS", "/sys"))
UNKNOWN_WINDOW_NS = 1_000_000_000
"""What a driver that does not say how long it averages is taken to average over."""
ASSUMED_GAIN, SHUNT_TOLERANCE = 0.05, 0.01
"""Half-widths: of a sensor of which no data sheet is known, and of a shunt resistor of which nothing is said."""
_CHANNELS_OF_RAILS = {"ina3221": 3}
"""Drivers whose ``inN_input`` and ``currN_input`` are of one rail, up to this N; behind it are sums and shunts."""
_SHUNT_STEP_V = {"INA3221": 40e-6}
"""The step of a shunt voltage where it is more than one code."""


@dataclass(frozen=True, slots=True)
class SysfsOptions:
    """Nothing is set: how often a chip converts stays as its driver has it."""

    rate_hz: float = option(10.0, "readings per second")
    chips: tuple[str, ...] = option((), "names of drivers or folders (ina3221, hwmon3); empty = all that tell a power")
    feeds: tuple[str, ...] = option((), "labels of the lines that add up to the device (VDD_IN); empty = each its own")
    device: str = option("node", "name of the device that the lines of 'feeds' add up to")
    u_gain: float = option(0.0, "relative standard uncertainty; 0 = by the chip's data sheet where it is known")
    root: Path = option(SYS, "where the kernel's files are")

    def __post_init__(self) -> None:
        check_pace(self.rate_hz)
        if self.u_gain < 0 or not self.device:
            raise ConfigError("u_gain must not be negative, and device not empty")


@dataclass(frozen=True, slots=True)
class Rail:
    """One power, or energy, that a chip tells: files whose numbers, multiplied, are micro-units once scaled."""

    folder: Path
    chip: str
    label: str
    files: tuple[str, ...]
    scale: Decimal = Decimal(1)
    """Micro-units in the product of the numbers."""
    conversion: ScaledConversion | CounterConversion = POWER
    window_ns: int = 0
    """How long a reading averages; 0 where the driver does not say."""
    volts_file: str = ""
    """A file of the rail's voltage in millivolts."""
    shunt_file: str = ""
    """A file of the shunt's resistance in ``shunt_unit`` ohms."""
    shunt_unit: float = 1.0
    accuracy_file: str = ""


class SysfsMeter(Meter):
    """One rail."""

    def __init__(self, rail: Rail, channel: MeterChannel, period_ns: int) -> None:
        self.rail, self.channels, self.period_ns = rail, (channel,), period_ns
        self.detail = {
            "folder": str(rail.folder),
            "chip": rail.chip,
            "label": rail.label,
            "codes": f"micro-units: {' * '.join(rail.files)} * {rail.scale}",
        }

    def ask(self) -> Iterable[MeterAnswer]:
        return (MeterAnswer({self.channels[0].line: read_code(self.rail)}),)


def read_code(rail: Rail) -> int:
    """A rail's micro-units now. Raises `Unanswered`, also where its chip is gone: it may come back."""
    value = rail.scale
    for name in rail.files:
        path = rail.folder / name
        try:
            value *= Decimal(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError, DecimalException) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENODEV, errno.ENOENT, errno.ENXIO):
                raise Unanswered(f"{path} is gone: was the kernel's module unloaded?") from error
            raise Unanswered(f"{path} does not give a number: {error}") from error
    try:
        return micro_code(value / 1_000_000)
    except ValueError as error:
        raise Unanswered(f"{rail.folder}: {error}") from error


def _read_one(rails: Sequence[Rail]) -> None:
    """Raises `Unanswered` where none of them can be read: one that cannot now may be read later."""
    for i, rail in enumerate(rails, 1):
        try:
            read_code(rail)
        except Unanswered:
            if i == len(rails):
                raise
        else:
            return


def accuracy_of(rail: Rail, u_gain: float) -> Accuracy:
    """Of a rail: by the option, the chip's data sheet, the driver's own words, or an assumption that says so."""
    is_power = isinstance(rail.conversion, ScaledConversion)
    window_ns = rail.window_ns or UNKNOWN_WINDOW_NS
    window = "" if rail.window_ns else "; its driver does not say how long it averages, taken as 1 s at most"
    chip = next((kind for name, kind in CHIPS.items() if rail.chip.upper().startswith(name)), None)
    stated = re.match(r"(\d+(?:\.\d+)?)\s*%", _text(rail, rail.accuracy_file))
    zero_w = step_w = 0.0
    if u_gain:
        origin = "given in the configuration"
    elif chip:
        grade = next(iter(chip.grades.values()))
        u_gain = hypot(grade.current_gain, grade.bus_gain, SHUNT_TOLERANCE) / sqrt(3)
        zero_w, step_w = _zero_and_step_w(rail, chip)
        origin = f"{chip.name} data sheet {chip.data_sheet} over temperature, a shunt of ±{SHUNT_TOLERANCE:.0%} assumed"
        origin += "" if zero_w else "; without the zero's limit: the driver tells no shunt or no voltage"
    elif stated and float(stated[1]) < 100:
        u_gain = (1 - float(stated[1]) / 100) / sqrt(3)
        origin = f"the platform's firmware states {stated[1]} % (ACPI power meter)"
    else:
        u_gain, origin = (
            ASSUMED_GAIN / sqrt(3),
            f"assumed ±{ASSUMED_GAIN:.0%}: no data sheet of {rail.chip!r} is known here",
        )
    if not is_power:
        return Accuracy(u_gain=u_gain, centre_ns=window_ns, origin=origin + window)
    return Accuracy(u_gain, zero_w / sqrt(3), step_w, window_ns, window_ns, 0, origin + window)


def _zero_and_step_w(rail: Rail, chip: ChipType) -> tuple[float, float]:
    """The zero's limit and the step in watts, at the rail's voltage as it is; 0 where its shunt is not told."""
    try:
        shunt_ohm = float(_text(rail, rail.shunt_file)) * rail.shunt_unit
        rail_v = float(_text(rail, rail.volts_file)) * 1e-3
    except ValueError:
        return 0.0, 0.0
    if shunt_ohm <= 0:
        return 0.0, 0.0
    widest = list(chip.shunt_ranges)[-1]
    zero_v = next(iter(chip.grades.values())).offset_v[widest]
    step_v = _SHUNT_STEP_V.get(chip.name, chip.shunt_ranges[widest].lsb_v)
    return zero_v / shunt_ohm * abs(rail_v), step_v / shunt_ohm * abs(rail_v)


def _text(rail: Rail, name: str) -> str:
    """What a file of a rail's folder says; empty where there is none."""
    return _read(rail.folder / name) if name else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float:
    """What a file says; 0 where there is none."""
    try:
        return float(_read(path))
    except ValueError:
        return 0.0


class SysfsSource(PolledSource):
    """What both trees have in common. A subclass says where its chips are and what one of them tells."""

    Options: ClassVar[type[SysfsOptions]] = SysfsOptions
    options: SysfsOptions
    pattern: ClassVar[str]
    """The chips' folders below the root."""

    def __init__(self, options: SysfsOptions, start: Start) -> None:
        super().__init__(options, start)
        self._labels: dict[str, str] = {}
        """Of each line."""

    @abstractmethod
    def rails_of(self, folder: Path, chip: str) -> Iterator[Rail]:
        """What one chip tells."""

    def find_meters(self) -> Sequence[Meter]:
        o = self.options
        folders = sorted(o.root.glob(self.pattern), key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
        named = [(folder, _read(folder / "name") or folder.name) for folder in folders]
        rails = [
            rail
            for folder, chip in named
            if not o.chips or {chip, folder.name} & set(o.chips)
            for rail in self.rails_of(folder, chip)
        ]
        if not rails:
            there = ", ".join(sorted({chip for _, chip in named})) or "none"
            raise SensorError(
                f"no sensor in {o.root / self.pattern} tells a power (chips here: {there}): is its driver loaded?"
            )
        lacking = set(o.feeds) - {rail.label for rail in rails}
        if lacking:
            labels = ", ".join(rail.label for rail in rails)
            raise SensorError(f"feeds: no line has the label {min(lacking)!r}: here are {labels}")
        _read_one(rails)
        powers = [rail for rail in rails if rail.conversion is POWER]
        energies = [rail for rail in rails if rail.conversion is ENERGY]
        return [
            self._meter(rail, name, f"{self.start.name}.{name}{suffix}")
            for kind, suffix in ((powers, ""), (energies, "_energy"))
            for rail, name in zip(kind, _names(kind), strict=True)
        ]

    def _meter(self, rail: Rail, name: str, line: str) -> SysfsMeter:
        o = self.options
        self._labels[line] = rail.label
        channel = MeterChannel(
            line,
            o.device if o.feeds else name,
            f"{rail.label} of {rail.chip} ({rail.folder.name}) by the kernel's {self.start.name}",
            accuracy_of(rail, o.u_gain),
            rail.conversion,
            age_ns=(rail.window_ns or UNKNOWN_WINDOW_NS) // 2 if rail.conversion is POWER else 0,
        )
        return SysfsMeter(rail, channel, self.period_ns)

    def describe_devices(self, channels: Sequence[MeterChannel]) -> tuple[Device, ...]:
        o = self.options
        if not o.feeds:
            return super().describe_devices(channels)
        feeds = tuple(c.line for c in channels if self._labels[c.line] in o.feeds)
        return (Device(o.device, feeds, f"sum of {', '.join(o.feeds)} by the kernel's drivers"),)


def _names(rails: Sequence[Rail]) -> list[str]:
    """What the rails are called: their labels, with the chip's place on its bus where two are alike."""
    names = [_slug(rail.label) for rail in rails]
    counts = Counter(names)
    placed = [
        f"{name}_{_slug(_place(rail.folder))}" if counts[name] > 1 else name
        for name, rail in zip(names, rails, strict=True)
    ]
    seen = Counter[str]()
    unique = []
    for name in placed:
        seen[name] += 1
        unique.append(f"{name}_{seen[name]}" if seen[name] > 1 else name)
    return unique


def _place(folder: Path) -> str:
    """Where a chip is, in words that stay the same after a restart: ``1-0040`` for one on an I2C bus."""
    device = folder / "device"
    return device.resolve().name if device.exists() else folder.resolve().parent.name


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text.strip().lower()).strip("_") or "power"


class HwmonSource(SysfsSource):
    """A line for each power, and each energy counter, of the kernel's hwmon drivers: Jetson's INA3221, other INA chips,
    power supplies on PMBus, a server's ACPI power meter, Grace's sockets and modules."""

    pattern: ClassVar[str] = "class/hwmon/hwmon*"

    def rails_of(self, folder: Path, chip: str) -> Iterator[Rail]:
        update_ns = round(_number(folder / "update_interval") * 1e6)
        numbers = sorted({int(m[1]) for m in _matches(folder, r"power(\d+)_(?:average|input)")})
        for n in numbers:
            label = _read(folder / f"power{n}_label") or _read(folder / f"power{n}_oem_info") or f"{chip} power{n}"
            averaged = (folder / f"power{n}_average").exists()
            interval_ns = round(_number(folder / f"power{n}_average_interval") * 1e6) if averaged else update_ns
            file = f"power{n}_{'average' if averaged else 'input'}"
            yield Rail(
                folder, chip, label, (file,), window_ns=interval_ns, volts_file="in1_input",
                shunt_file="shunt_resistor", shunt_unit=1e-6, accuracy_file=f"power{n}_accuracy",
            )  # fmt: skip
        for n in range(1, _CHANNELS_OF_RAILS.get(chip, 0) * (not numbers) + 1):
            files = (f"in{n}_input", f"curr{n}_input")
            if all((folder / file).exists() for file in files):
                label = _read(folder / f"in{n}_label") or f"{chip} channel {n}"
                # Millivolts times milliamperes are microwatts.
                yield Rail(
                    folder, chip, label, files, window_ns=update_ns, volts_file=files[0],
                    shunt_file=f"shunt{n}_resistor", shunt_unit=1e-6,
                )  # fmt: skip
        for match in _matches(folder, r"energy(\d+)_input"):
            label = _read(folder / f"energy{match[1]}_label") or f"{chip} energy{match[1]}"
            yield Rail(folder, chip, label, (match[0],), conversion=ENERGY, window_ns=update_ns)


class IioSource(SysfsSource):
    """A line for each power of the kernel's industrial I/O drivers: the INA3221 of older Jetsons, ina2xx-adc."""

    pattern: ClassVar[str] = "bus/iio/devices/iio:device*"

    def rails_of(self, folder: Path, chip: str) -> Iterator[Rail]:
        rate_hz = _number(folder / "sampling_frequency") or _number(folder / "in_sampling_frequency")
        window_ns = round(1e9 / rate_hz) if rate_hz > 0 else 0
        for match in _matches(folder, r"in_power(\d+)_(input|raw)"):
            n = match[1]
            scale = Decimal(1)
            if match[2] == "raw":
                scale = Decimal(_read(folder / f"in_power{n}_scale") or "1")
            label = _read(folder / f"rail_name_{n}") or _read(folder / f"in_power{n}_label") or f"{chip} power{n}"
            # Powers are in milliwatts.
            yield Rail(
                folder, chip, label, (match[0],), scale * 1000, window_ns=window_ns,
                volts_file=f"in_voltage{n}_input", shunt_file="in_shunt_resistor",
            )  # fmt: skip


def _matches(folder: Path, pattern: str) -> list[re.Match[str]]:
    """The files of a folder whose whole name matches, by their numbers."""
    names = os.listdir(folder) if folder.is_dir() else []
    found: Mapping[str, re.Match[str]] = {m[0]: m for m in (re.fullmatch(pattern, name) for name in names) if m}
    return sorted(found.values(), key=lambda m: int(m[1]))
