"""Source ``rapl``: the processors' own energy counters, through Linux's powercap tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import (
    Accuracy,
    Block,
    BlockBuilder,
    Column,
    CounterConversion,
    Device,
    Flag,
    Gap,
    Line,
    Provenance,
    Stream,
)
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.rapl_unwrap import Unwrap
from powerd_daemon.sources.rapl_zones import CPUINFO, POWERCAP, Zone, ZoneReader, find_zones, is_modelled

UPDATE_NS = 1_000_000
"""Distance at which the counters move, about (Intel SDM volume 3, section 15.10)."""

_WHAT = {
    "package": "package: cores, caches, memory controller and what else is on it",
    "core": "cores, a part of the package",
    "uncore": "graphics, a part of the package",
    "dram": "memory, beside the package",
    "psys": "platform as far as the maker wired it; contains the packages",
}


@dataclass(frozen=True, slots=True)
class RaplOptions:
    """A reading of one zone costs about a microsecond."""

    rate_hz: float = field(default=100.0, metadata={"help": "readings per second"})
    device: str = field(default="cpu0", metadata={"help": "name of the device: all packages and their memory"})
    platform: str = field(
        default="platform", metadata={"help": "name of the device that the psys counter feeds, where there is one"}
    )
    u_gain: float = field(
        default=0.05,
        metadata={"help": "relative standard uncertainty of every counter; nobody specifies it, see docs/sources.md"},
    )
    most_w: float = field(
        default=2000.0, metadata={"help": "no zone ever takes more than this: tells how often a counter began again"}
    )
    root: Path = field(default=POWERCAP, metadata={"help": "the powercap tree"})

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
    contains it, so they are never added to it. Codes are microjoules, unwrapped here into 64 bits, since the counters
    begin again at a value that is no power of two.
    """

    Options: ClassVar[type[RaplOptions]] = RaplOptions
    options: RaplOptions

    def __init__(self, options: RaplOptions, start: Start, cpuinfo: Path = CPUINFO) -> None:
        super().__init__(options, start)
        self._cpuinfo = cpuinfo
        self._readers: list[ZoneReader] = []
        self._unwraps: list[Unwrap] = []
        self._failed: list[int] = []
        self._builder: BlockBuilder | None = None

    @property
    def period_ns(self) -> int:
        return round(1e9 / self.options.rate_hz)

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o = self.options
        zones = find_zones(o.root)
        for zone in zones:
            self._readers.append(ZoneReader(zone))
            self._unwraps.append(Unwrap(zone.range_uj, o.most_w))
        self._failed = [0] * len(zones)
        failed = [r.path for r in self._readers if r() is None]
        if failed:
            raise SensorError(f"{failed[0]} does not give a number: does the kernel support this processor?")
        provenance = Provenance.MODELLED if is_modelled(self._cpuinfo) else Provenance.MEASURED
        stream = Stream(
            self.start.first_stream,
            self.start.name,
            (Column("energy_uj", "Q"),),
            tuple(self._line(zone, provenance) for zone in zones),
            self.period_ns,
            self._detail(zones),
        )
        self._builder = self.start.builder(stream)
        return (stream,), self._devices(zones)

    def poll(self) -> None:
        assert self._builder is not None, "open comes first"
        now_ns = self.start.clock.now_ns
        begin_ns = before_ns = now_ns()
        times, flags, codes = [], [], []
        for i, (reader, unwrap) in enumerate(zip(self._readers, self._unwraps, strict=True)):
            raw_uj = reader()
            after_ns = now_ns()
            t_ns = (before_ns + after_ns) // 2
            before_ns = after_ns
            code, flag = 0, Flag.IO_ERROR
            if raw_uj is None:
                self._failed[i] += 1
            else:
                code, is_known = unwrap(raw_uj, t_ns)
                flag = Flag(0) if is_known else Flag.RESET
            times.append(t_ns - begin_ns)
            flags.append(int(flag))
            codes.append(code)
        self._builder.append(begin_ns, times, flags, (codes,))

    def take(self) -> list[Block | Gap]:
        block = self._builder.take() if self._builder is not None else None
        return [block] if block else []

    def health(self) -> dict[str, object]:
        if self._builder is None:
            return {}
        names = [line.name for line in self._builder.stream.lines]
        return {
            "failed_reads": dict(zip(names, self._failed, strict=True)),
            "began_again": {n: u.began_again for n, u in zip(names, self._unwraps, strict=True)},
            "unknown_steps": {n: u.unknown for n, u in zip(names, self._unwraps, strict=True)},
        }

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _device(self, zone: Zone) -> str:
        return self.options.platform if zone.kind == "psys" else self.options.device

    def _line(self, zone: Zone, provenance: Provenance) -> Line:
        o = self.options
        how = (
            "sensed on the chip" if provenance is Provenance.MEASURED else "modelled by the processor from its activity"
        )
        origin = f"assumed: no maker specifies the counters' error; compared with wall meters, a few percent; {how}"
        update_ns = UPDATE_NS if self.period_ns < UPDATE_NS else 0
        device = self._device(zone)
        return Line(
            f"{device}.{zone.suffix}",
            device,
            CounterConversion("energy_uj", 1e-6),
            provenance,
            Accuracy(u_gain=o.u_gain, centre_ns=UPDATE_NS, update_ns=update_ns, origin=origin),
            f"{_WHAT.get(zone.kind, zone.kind)} (RAPL zone {zone.directory.name})",
        )

    def _detail(self, zones: tuple[Zone, ...]) -> dict[str, Any]:
        return {
            "zones": {f"{self._device(z)}.{z.suffix}": z.directory.name for z in zones},
            "max_energy_range_uj": {f"{self._device(z)}.{z.suffix}": z.range_uj for z in zones},
            "unwrapped": "codes are cumulative microjoules since the source was opened, unwrapped by it",
            "most_w": self.options.most_w,
        }

    def _devices(self, zones: tuple[Zone, ...]) -> tuple[Device, ...]:
        o = self.options
        feeds = tuple(f"{o.device}.{z.suffix}" for z in zones if z.kind in ("package", "dram"))
        inner = tuple(f"{o.device}.{z.suffix}" for z in zones if z.kind != "psys")
        found = []
        if inner:
            # Without a package zone whatever there is stands in, but only one: parts may contain each other.
            found.append(Device(o.device, feeds or inner[:1], "processors and their memory, by RAPL"))
        if any(z.kind == "psys" for z in zones):
            found.append(Device(o.platform, (f"{o.platform}.psys",), "the platform, by RAPL"))
        return tuple(found)
