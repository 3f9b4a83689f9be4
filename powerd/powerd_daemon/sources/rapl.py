"""Source ``rapl``: the processors' own energy counters, Intel's and AMD's, through Linux's powercap tree.

A zone is a directory such as ``intel-rapl:0`` (a package) or ``intel-rapl:0:1`` (a part of it, or its memory) with
``name``, ``energy_uj`` and ``max_energy_range_uj`` (Documentation/power/powercap/powercap.rst).
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Accuracy, Column, CounterConversion, Device, Flag, Line, Provenance, Stream
from powerd_core.serde import option
from powerd_daemon.clock import Clock
from powerd_daemon.sources.base import Source, Start

POWERCAP = Path(os.environ.get("POWERD_SYSFS", "/sys"), "class/powercap")
CPUINFO = Path("/proc/cpuinfo")
_ZONE = re.compile(r"intel-rapl:(\d+)(?::(\d+))?")

_MODELLED_INTEL = {0x2A, 0x2D, 0x3A, 0x3E}
"""Models of family 6 (Sandy Bridge, Ivy Bridge) whose counters follow a model of events; later ones sense currents."""
SEGMENT = 1 << 52
"""A counter that was set back goes on in the segment below, so that it falls, whatever it had counted: 2**52 uJ are
142 years at 1 kW."""
UPDATE_NS = 1_000_000
"""Distance at which the counters move, about (Intel SDM volume 3, section 15.10)."""
_WHAT = {
    "package": "package: cores, caches, memory controller and what else is on it",
    "core": "cores, a part of the package",
    "uncore": "graphics, a part of the package",
    "dram": "memory, beside the package",
    "psys": "platform as far as the maker wired it; contains the packages",
}
_FEEDING = ("package", "dram")
"""The kinds of zones that are added."""
STANDS_NS = 500_000_000
"""A counter of what always takes power that has not moved for so long stands still: at 1 mW one moves each 61 ms."""
_LOOK_NS = 100_000_000
"""So long a counter may take to move for the first time, before a source begins."""
_ROUND_NS, _MOST_ROUNDS = 2_000_000, 500
"""Counters that may be one are read so far apart, and so often at most: for a second."""
_ENOUGH_ROUNDS, _ENOUGH_VALUES, _LEAST_VALUES = 100, 20, 5
"""So often, with so many different values, two counters were the same where they are one; the last for slow ones."""
_LEAST_SAME = 0.8
"""In this share of the rounds at least: the two files of one counter need not change in the same instant."""
_NEAR_UJ = 10_000_000
"""Counters farther apart are two: no package takes 10 J while both of its files are read."""


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
    names = [m for m in map(_ZONE.fullmatch, os.listdir(root) if root.is_dir() else ()) if m]
    for match in sorted(names, key=lambda m: (int(m[1]), int(m[2] or -1))):
        directory = root / match[0]
        try:
            kind, _, number = (directory / "name").read_text().strip().partition("-")
            range_uj = int((directory / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
        if match[2] is None and kind == "package":
            # package-0, or package-0-die-1 where a package has several dies that count apart.
            package = int(re.match(r"\d*", number)[0] or match[1])  # type: ignore[index]
            packages[match[1]] = max(packages.values()) + 1 if package in packages.values() else package
        zone = Zone(directory, re.sub(r"\W+", "_", kind), packages.get(match[1], -1), range_uj)
        if zone.range_uj > 0:
            zones.setdefault(zone.suffix, zone)
    if not zones:
        raise SensorError(
            f"there are no RAPL counters in {root}: load the kernel's module with `modprobe intel_rapl_msr`, "
            "or leave the source 'rapl' out (virtual machines and Arm processors have none)"
        )
    return tuple(zones.values())


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


class Unwrap:
    """64-bit cumulative microjoules of one counter.

    Between two good readings the counter may begin again once; ``most_w`` says how fast it can count at most, and so
    whether it could have begun again more often. Where that cannot be told, or where it fell by more than its beginning
    again explains, the energy in between is unknown: the codes then go on at a lower value, which every reader of a
    64-bit counter takes for "was set back, unknown". Raises `SensorError` when that happened a thousand times.
    """

    def __init__(self, range_uj: int, most_w: float) -> None:
        # The largest value is the last step before 0; what a step is (15 to 61 uJ) is not told and is nothing here.
        self.range_uj = range_uj + 1
        self.most_w = most_w
        self.began_again = 0
        """How often the counter reached its largest value and went on at 0, which costs nothing."""
        self.unknown = 0
        """How often the energy between two readings could not be told."""
        self._code = 1023 * SEGMENT
        self._last: tuple[int, int] | None = None

    def __call__(self, raw_uj: int, t_ns: int) -> tuple[int, bool]:
        """The cumulative code, and whether the energy since the reading before is known."""
        last_uj, last_ns = self._last or (raw_uj, t_ns)
        self._last = raw_uj, t_ns
        # Counters move in lumps of a millisecond or so: a little more than the time allows is no fall.
        most_uj = self.most_w * (t_ns - last_ns + 5_000_000) * 1e-3
        step_uj = (raw_uj - last_uj) % self.range_uj
        if most_uj < self.range_uj and step_uj <= most_uj:
            self.began_again += raw_uj < last_uj
            self._code += step_uj
            return self._code, True
        return self.lose(), False

    def lose(self) -> int:
        """The code behind an interval of which nothing is known."""
        self.unknown += 1
        if self._code < SEGMENT:
            raise SensorError(f"an energy counter jumped {self.unknown} times by more than most_w explains")
        self._code = (self._code // SEGMENT - 1) * SEGMENT
        return self._code


class Movement:
    """Whether a counter counts at all: one of a virtual machine, or one that the kernel filters, may stand still.

    What stands counts nothing, which is another thing than no energy.
    """

    def __init__(self) -> None:
        self.stands = True
        """Whether it has not moved yet, or not for `STANDS_NS`."""
        self._last: tuple[int, int] | None = None
        """The value, and when it was first seen."""

    def see(self, raw_uj: int, t_ns: int) -> None:
        if self._last is None:
            self._last = raw_uj, t_ns
        elif raw_uj != self._last[0]:
            self._last, self.stands = (raw_uj, t_ns), False
        elif t_ns - self._last[1] >= STANDS_NS:
            self.stands = True


@dataclass(slots=True)
class _Likeness:
    """How alike two counters have been."""

    rounds: int = 0
    same: int = 0
    values_uj: set[int] = field(default_factory=set)
    """Those that both have shown."""

    def add(self, first_uj: tuple[int, int], other_uj: int) -> None:
        """Take in a reading of one counter between two of the first."""
        self.rounds += 1
        if other_uj in first_uj:
            self.same += 1
            self.values_uj.add(other_uj)

    @property
    def is_enough(self) -> bool:
        return self.rounds >= _ENOUGH_ROUNDS and (not self.same or len(self.values_uj) >= _ENOUGH_VALUES)

    @property
    def is_one_counter(self) -> bool:
        """Counters that stand still are two: nothing says otherwise, and they add no energy."""
        return len(self.values_uj) >= _LEAST_VALUES and self.same >= _LEAST_SAME * self.rounds


def find_mirrors(counters: Mapping[Zone, _Counter], clock: Clock) -> dict[Zone, Zone]:
    """The packages and memories that show the counter of another one, and that other one.

    Dies of the first Threadrippers and EPYCs are packages to the kernel, and all show the counter of the socket. Two
    counters are one where they keep showing the same value while it moves. It takes a second at most, and none where
    counters differ by more than 10 J. Raises `SensorError` when a counter is gone.
    """
    feeding = [zone for zone in counters if zone.kind in _FEEDING]
    pairs = {(a, b): _Likeness() for a, b in combinations(feeding, 2) if a.kind == b.kind}
    begin_ns = clock.now_ns()
    for i in range(_MOST_ROUNDS):
        clock.sleep_until(begin_ns + i * _ROUND_NS)
        before, after = ({zone: counters[zone].read() for zone in feeding} for _ in range(2))
        for (a, b), likeness in list(pairs.items()):
            first_uj, other_uj, last_uj = before[a], before[b], after[a]
            if first_uj is None or other_uj is None or last_uj is None:
                continue
            likeness.add((first_uj, last_uj), other_uj)
            if min(abs(first_uj - other_uj), abs(last_uj - other_uj)) > _NEAR_UJ:
                del pairs[a, b]
        if all(likeness.is_enough for likeness in pairs.values()):
            break
    mirrors: dict[Zone, Zone] = {}
    for (a, b), likeness in pairs.items():
        if likeness.is_one_counter:
            mirrors.setdefault(b, mirrors.get(a, a))
    return mirrors


class _Counter:
    """The open counter of one zone. Opening raises `SensorError` with the remedy when it is not readable."""

    def __init__(self, zone: Zone, most_w: float) -> None:
        self.path = zone.directory / "energy_uj"
        self.movement = Movement()
        self.is_part = zone.kind not in (*_FEEDING, "psys")
        """Parts of a package may take no energy, as graphics that nobody uses."""
        self.was_stale = False
        """Whether its last reading was flagged since it stood."""
        self.unwrap = Unwrap(zone.range_uj, most_w)
        self.failed = 0
        """Reads that failed."""
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SensorError(
                f"{self.path} cannot be opened ({error.strerror}): let one group read it, `chgrp powerd {self.path} && "
                f"chmod g+r {self.path}`; docs/reference/sources.md has the udev rule that keeps it so"
            ) from error

    def read(self) -> int | None:
        """Microjoules, or None when this read failed. Raises `SensorError` when the counter is gone."""
        try:
            return int(os.pread(self._file, 32, 0))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENODEV, errno.ENOENT):
                raise SensorError(f"{self.path} is gone: was the kernel's module unloaded?") from error
            self.failed += 1
            return None

    def close(self) -> None:
        os.close(self._file)


@dataclass(frozen=True, slots=True)
class RaplOptions:
    """A reading of one zone costs about a microsecond."""

    rate_hz: float = option(100.0, "readings per second")
    device: str = option("cpu0", "name of the device: all packages and their memory")
    platform: str = option("platform", "name of the device that the psys counter feeds, where there is one")
    u_gain: float = option(
        0.05, "relative standard uncertainty of every counter; nobody specifies it, see docs/reference/sources.md"
    )
    most_w: float = option(2000.0, "no zone ever takes more than this: tells how often a counter began again")
    root: Path = option(POWERCAP, "the powercap tree")

    def __post_init__(self) -> None:
        if not 0.001 <= self.rate_hz <= 1000:
            raise ConfigError(f"rate_hz = {self.rate_hz:g} is not between 0.001 and 1000, where the counters move")
        if self.u_gain <= 0 or self.most_w <= 0:
            raise ConfigError("u_gain and most_w must be positive")
        if not self.device or self.device == self.platform:
            raise ConfigError("device and platform must be different names: psys contains the packages")


class RaplSource(Source):
    """Lines ``cpu0.package_0``, ``cpu0.core_0``, ``cpu0.uncore_0``, ``cpu0.dram_0`` ... and ``platform.psys``.

    The packages and the memories beside them feed the device; cores and graphics are parts of their package, and psys
    contains it, so they are never added to it. Of lines that show one counter (`find_mirrors`) the first feeds alone.
    Codes are microjoules, unwrapped here into 64 bits, since the counters begin again at a value that is no power of
    two. A counter that stands still, as in a virtual machine, is flagged `Flag.STALE`: it counts nothing.
    """

    Options: ClassVar[type[RaplOptions]] = RaplOptions
    options: RaplOptions

    def __init__(self, options: RaplOptions, start: Start, cpuinfo: Path = CPUINFO) -> None:
        super().__init__(options, start)
        self._cpuinfo = cpuinfo
        self._counters: dict[str, _Counter] = {}
        """By line."""
        self._mirrors: dict[Zone, Zone] = {}
        self._left_out: dict[Zone, str] = {}
        """Memory that is not in the device, and why."""

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        zones = find_zones(o.root)
        by_zone: dict[Zone, _Counter] = {}
        for zone in zones:
            counter = self._counters[self._name(zone)] = _Counter(zone, o.most_w)
            if counter.read() is not None:
                by_zone[zone] = counter
            elif zone.kind in ("package", "psys") or zone is zones[0]:
                raise SensorError(f"{counter.path} does not give a number: does the kernel support this processor?")
            else:
                self._left_out[zone] = "cannot be read"
        self._await_movement(by_zone)
        mirrors = self._mirrors = find_mirrors(by_zone, self.start.clock)
        self._judge_standing(by_zone)
        provenance = Provenance.MODELLED if is_modelled(self._cpuinfo) else Provenance.MEASURED
        detail = {
            "zones": {self._name(z): z.directory.name for z in zones},
            "max_energy_range_uj": {self._name(z): z.range_uj for z in zones},
            "unwrapped": "codes are cumulative microjoules from an arbitrary start, unwrapped by the source",
            "most_w": o.most_w,
        }
        if mirrors:
            detail["mirrors"] = {self._name(zone): self._name(of) for zone, of in mirrors.items()}
        lines = [self._line(zone, provenance) for zone in zones]
        return (self.add_stream((Column("energy_uj", "Q"),), lines, self.period_ns, detail),), self._devices(zones)

    def _await_movement(self, counters: Mapping[Zone, _Counter]) -> None:
        """Read the counters until all that feed have moved, a tenth of a second at most."""
        clock = self.start.clock
        begin_ns = clock.now_ns()
        while (t_ns := clock.now_ns()) - begin_ns <= _LOOK_NS:
            for counter in counters.values():
                if (raw_uj := counter.read()) is not None:
                    counter.movement.see(raw_uj, t_ns)
            if not any(c.movement.stands for zone, c in counters.items() if zone.kind in _FEEDING):
                return
            clock.sleep_until(t_ns + _ROUND_NS)

    def _judge_standing(self, counters: Mapping[Zone, _Counter]) -> None:
        """Leave out memory and a platform whose counters stand while that of a package moves."""
        if any(zone.kind == "package" and not c.movement.stands for zone, c in counters.items()):
            standing = [zone for zone, c in counters.items() if c.movement.stands]
            self._left_out |= {zone: "stands still" for zone in standing if zone.kind in ("dram", "psys")}

    def poll(self) -> None:
        now_ns = self.start.clock.now_ns
        begin_ns = before_ns = now_ns()
        times, flags, codes = [], [], []
        for counter in self._counters.values():
            raw_uj = counter.read()
            after_ns = now_ns()
            t_ns, before_ns = (before_ns + after_ns) // 2, after_ns
            code, flag = (0, Flag.IO_ERROR) if raw_uj is None else self._take(counter, raw_uj, t_ns)
            times.append(t_ns - begin_ns)
            flags.append(flag)
            codes.append(code)
        self.builders[0].append(begin_ns, times, flags, (codes,))

    def _take(self, counter: _Counter, raw_uj: int, t_ns: int) -> tuple[int, Flag]:
        """The code of a reading, and its flag: `Flag.STALE` while the counter stands. What it did meanwhile is unknown.

        A part that does not move takes nothing, unless nothing moves here.
        """
        counter.movement.see(raw_uj, t_ns)
        code, is_known = counter.unwrap(raw_uj, t_ns)
        was_stale, wholes = counter.was_stale, (c for c in self._counters.values() if not c.is_part)
        counter.was_stale = counter.movement.stands and (not counter.is_part or all(c.movement.stands for c in wholes))
        if counter.was_stale:
            return code, Flag.STALE
        if was_stale and is_known:
            code, is_known = counter.unwrap.lose(), False
        return code, Flag(0) if is_known else Flag.RESET

    def health(self) -> dict[str, object]:
        return {
            "standing": [name for name, c in self._counters.items() if c.movement.stands],
            "mirrors": {self._name(zone): self._name(of) for zone, of in self._mirrors.items()},
            "failed_reads": {name: c.failed for name, c in self._counters.items()},
            "began_again": {name: c.unwrap.began_again for name, c in self._counters.items()},
            "unknown_steps": {name: c.unwrap.unknown for name, c in self._counters.items()},
        }

    def close(self) -> None:
        for counter in self._counters.values():
            counter.close()
        self._counters = {}

    def _device(self, zone: Zone) -> str:
        return self.options.platform if zone.kind == "psys" else self.options.device

    def _name(self, zone: Zone) -> str:
        """The line's name."""
        return f"{self._device(zone)}.{zone.suffix}"

    def _line(self, zone: Zone, provenance: Provenance) -> Line:
        o = self.options
        is_sensed = provenance is Provenance.MEASURED
        how = "sensed on the chip" if is_sensed else "modelled by the processor from its activity"
        origin = f"assumed: no maker specifies the counters' error; compared with wall meters, a few percent; {how}"
        what = _WHAT.get(zone.kind, zone.kind)
        if zone in self._mirrors:
            what = f"the counter of {self._name(self._mirrors[zone])} once more, not added"
        update_ns = UPDATE_NS if self.period_ns < UPDATE_NS else 0
        return Line(
            self._name(zone),
            self._device(zone),
            CounterConversion("energy_uj", 1e-6),
            provenance,
            Accuracy(u_gain=o.u_gain, centre_ns=UPDATE_NS, update_ns=update_ns, origin=origin),
            f"{what} (RAPL zone {zone.directory.name})",
        )

    def _devices(self, zones: tuple[Zone, ...]) -> tuple[Device, ...]:
        o = self.options
        inner = [z for z in zones if z.kind != "psys"]
        # Without a package zone whatever there is stands in, but only one: parts may contain each other.
        without = self._mirrors.keys() | self._left_out.keys()
        feeding = [z for z in inner if z.kind in _FEEDING and z not in without] or inner[:1]
        platforms = [z for z in zones if z.kind == "psys" and z not in without]
        devices = [Device(o.platform, (self._name(z),), "the platform, by RAPL") for z in platforms]
        if inner:
            feeds = tuple(map(self._name, feeding))
            once = "; zones that show one counter are counted once" if self._mirrors else ""
            once += "".join(
                f"; without {self._name(zone)}, which {why}" for zone, why in self._left_out.items() if zone in inner
            )
            devices.insert(0, Device(o.device, feeds, f"processors and their memory, by RAPL{once}"))
        return tuple(devices)
