"""Intel's and AMD's energy counters as Linux shows them: the powercap tree, read with plain file reads.

A zone is a directory such as ``intel-rapl:0`` (a package) or ``intel-rapl:0:1`` (a part of it, or its memory) with
``name``, ``energy_uj`` and ``max_energy_range_uj`` (Documentation/power/powercap/powercap.rst).
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from powerd_core.errors import SensorError

POWERCAP = Path("/sys/class/powercap")
CPUINFO = Path("/proc/cpuinfo")
_ZONE = re.compile(r"intel-rapl:(\d+)(?::(\d+))?")

_MODELLED_INTEL = {0x2A, 0x2D, 0x3A, 0x3E}
"""Models of family 6 (Sandy Bridge, Ivy Bridge) whose counters follow a model of events; later ones sense currents."""


@dataclass(frozen=True, slots=True)
class Zone:
    """One counter. ``kind`` is package, core, uncore, dram, psys or what else the kernel calls it."""

    directory: Path
    kind: str
    package: int
    """Number of the package, from the zone's name; -1 for psys."""
    range_uj: int
    """Largest value before the counter begins again."""

    @property
    def suffix(self) -> str:
        """Last part of the line's name: ``package_0``, ``dram_1``, ``psys``."""
        return self.kind if self.package < 0 else f"{self.kind}_{self.package}"


def find_zones(root: Path = POWERCAP) -> tuple[Zone, ...]:
    """All zones below ``root``, packages first. Raises `SensorError` when there is none.

    Zones of ``intel-rapl-mmio`` count the packages' energy a second time and are left out.
    """
    zones: dict[str, Zone] = {}
    packages: dict[str, int] = {}
    try:
        names = sorted((p.name for p in root.iterdir()) if root.is_dir() else (), key=_order)
    except OSError as error:
        raise SensorError(f"{root} cannot be read: {error.strerror}") from error
    for name in names:
        match = _ZONE.fullmatch(name)
        if match is None:
            continue
        directory = root / name
        kind, _, number = _text(directory / "name").partition("-")
        digits = _text(directory / "max_energy_range_uj")
        range_uj = int(digits) if digits.isascii() and digits.isdigit() else 0
        top = match[1]
        if match[2] is None and kind == "package":
            # package-0, or package-0-die-1 where a package has several dies that count apart.
            numbers = re.findall(r"\d+", number)
            package = int(numbers[0]) if numbers else int(top)
            if package in packages.values():
                package = max(packages.values()) + 1
            packages[top] = package
        zone = Zone(directory, re.sub(r"\W+", "_", kind) or "zone", packages.get(top, -1), range_uj)
        if zone.range_uj > 0 and zone.suffix not in zones:
            zones[zone.suffix] = zone
    if not zones:
        raise SensorError(
            f"there are no RAPL counters in {root}: load the kernel's module with `modprobe intel_rapl_msr`, "
            "or leave the source 'rapl' out (virtual machines and Arm processors have none)"
        )
    return tuple(zones.values())


class ZoneReader:
    """Microjoules of one zone. Opening raises `SensorError` with the remedy when they are not readable."""

    def __init__(self, zone: Zone) -> None:
        self.zone = zone
        self.path = zone.directory / "energy_uj"
        self._file = -1
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError as error:
            raise SensorError(
                f"{self.path} may be read by root alone (Linux since 2020: the counters can betray secrets of other "
                f"users): let one group read it, `chgrp powerd {self.path} && chmod g+r {self.path}`; "
                "docs/sources.md has the udev rule that keeps it so"
            ) from error
        except OSError as error:
            raise SensorError(f"{self.path} cannot be opened: {error.strerror}") from error

    def __call__(self) -> int | None:
        """The counter, or None when this read failed. Raises `SensorError` when the counter is gone."""
        try:
            return int(os.pread(self._file, 32, 0))
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.ENOENT):
                raise SensorError(f"{self.path} is gone: was the kernel's module unloaded?") from error
            return None
        except ValueError:
            return None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_modelled(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this processor's counters follow a model rather than sensed currents: AMD's, and Intel's before 2013."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace").partition("\n\n")[0]
    except OSError:
        return False
    facts = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in text.splitlines())}
    if facts.get("vendor_id") != "GenuineIntel":
        return True
    return facts.get("cpu family") == "6" and int(facts.get("model") or 0) in _MODELLED_INTEL


def _order(name: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", name))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
