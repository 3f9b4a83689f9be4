"""Readings of single lines for a calibration: currents by the nominal conversion, out of blocks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from powerd_core.errors import ConfigError
from powerd_core.model import BAD, Block, Flag, ShuntConversion, Stream, columns
from powerd_daemon.clock import Clock
from powerd_daemon.sources.base import Source


@dataclass(slots=True)
class Readings:
    """What one line gave: currents by the nominal conversion, in order, and how many readings were no values."""

    current_a: list[float] = field(default_factory=list)
    bus_v: list[float] = field(default_factory=list)
    saturated: int = 0
    bad: int = 0


def read_lines(source: Source, clock: Clock, seconds: float, lines: Sequence[str]) -> dict[str, Readings]:
    """Poll a source for some seconds. Raises `ConfigError` for a line that it does not have or that has no shunt."""
    try:
        collector = Collector(source.open()[0], lines)
        due_ns = clock.now_ns()
        polls = max(1, round(seconds * 1e9 / source.period_ns))
        for k in range(polls):
            clock.sleep_until(due_ns)
            due_ns += source.period_ns
            source.poll()
            if k % 50 == 49 or k == polls - 1:
                for block in source.take() if k < polls - 1 else source.finish():
                    if isinstance(block, Block):
                        collector.add(block)
    finally:
        source.close()
    return collector.found


class Collector:
    """Takes the readings of some lines out of blocks. Raises `ConfigError` for a line that does not exist or has no
    shunt.
    """

    def __init__(self, streams: Sequence[Stream], lines: Sequence[str]) -> None:
        self.found = {line: Readings() for line in lines}
        self._streams = {stream.number: stream for stream in streams}
        self._places = {line: _place(streams, line) for line in lines}

    @property
    def numbers(self) -> set[int]:
        """The streams that the lines belong to."""
        return {stream.number for stream, _, _ in self._places.values()}

    def add(self, block: Block) -> None:
        """Raises `WireError` for a block that does not fit its stream."""
        stream = self._streams[block.stream]
        views = columns(block, stream)
        types = {"flags": "H"} | {c.name: c.typecode for c in stream.columns}
        arrays = {name: array(t, bytes(views[name])) for name, t in types.items()}
        for line, (of, at, c) in self._places.items():
            if of.number == stream.number:
                flags, shunt, bus = (arrays[n][at :: len(stream.lines)] for n in ("flags", c.shunt, c.bus))
                _collect(self.found[line], c, flags, shunt, bus)


def _collect(
    found: Readings, c: ShuntConversion, flags: Sequence[int], shunt: Sequence[int], bus: Sequence[int]
) -> None:
    good = [i for i, flag in enumerate(flags) if not flag & BAD]
    saturated = sum(bool(flag & Flag.SATURATED) for flag in flags)
    # A reading that repeats a conversion is no fault of the sensor; it is only no further value.
    stale = sum(flag & BAD == Flag.STALE for flag in flags)
    found.current_a += (shunt[i] * c.shunt_lsb_v / c.shunt_ohm for i in good)
    found.bus_v += ((bus[i] >> c.bus_shift) * c.bus_lsb_v for i in good)
    found.saturated += saturated
    found.bad += len(flags) - len(good) - saturated - stale


def _place(streams: Sequence[Stream], line: str) -> tuple[Stream, int, ShuntConversion]:
    for stream in streams:
        for at, known in enumerate(stream.lines):
            if known.name == line:
                if not isinstance(known.conversion, ShuntConversion):
                    raise ConfigError(f"line {line!r} has no shunt: only INA sensors can be calibrated")
                return stream, at, replace(known.conversion, offset_a=0.0, gain=1.0)
    names = ", ".join(known.name for stream in streams for known in stream.lines)
    raise ConfigError(f"unknown line {line!r} (there are: {names})")
