"""Sources for tests, named in configurations as ``steady_source:SteadySource``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import BlockBuilder, Column, Device, Line, Provenance, ScaledConversion, Stream
from powerd_daemon.sources.base import Source, Start


def steady_stream(number: int = 0, source: str = "steady", lines: tuple[str, ...] = ("a",)) -> Stream:
    """A stream of 1 mW codes, 1 kHz."""
    made = tuple(Line(n, "dev", ScaledConversion("mw", 0.001), Provenance.SIMULATED) for n in lines)
    return Stream(number, source, (Column("mw", "H"),), made, 1_000_000)


@dataclass(frozen=True)
class SteadyOptions:
    """Options of the test source."""

    lines: tuple[str, ...] = ("a",)
    """names of its lines"""
    rate_hz: float = 1000.0
    script: Path | None = None
    """a file whose words say what goes wrong: ``open`` no open succeeds, ``poll`` no poll, ``lines`` other lines are
    described, ``huge`` a number that no message holds, ``bug`` a poll raises what no source may raise"""
    unfit: bool = False


class SteadySource(Source):
    """Counts scans in its only column. Its script can be changed while it runs."""

    Options = SteadyOptions
    options: SteadyOptions

    def __init__(self, options: SteadyOptions, start: Start) -> None:
        super().__init__(options, start)
        if options.unfit:
            raise ConfigError("these options do not fit together")

    def _script(self) -> str:
        path = self.options.script
        return path.read_text() if path is not None and path.exists() else ""

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        script = self._script()
        if "open" in script:
            raise SensorError("the sensor does not answer")
        lines = ("other",) if "lines" in script else self.options.lines
        stream = steady_stream(self.start.first_stream, self.start.name, lines)
        if "huge" in script:
            stream = replace(stream, period_ns=10**21)
        self.builders = [BlockBuilder(stream, self.start.epoch, self.start.next_sequence.get(stream.number, 0))]
        self._count = 0
        return (stream,), (Device("dev", lines),)

    def poll(self) -> None:
        if self.options.script is not None:
            script = self._script()
            if "poll" in script:
                raise SensorError("the sensor fell silent")
            if "bug" in script:
                raise KeyError("a driver's own fault")
        n = len(self.options.lines)
        self._count = (self._count + 1) & 0xFFFF
        self.builders[0].append(self.start.clock.now_ns(), [0] * n, [0] * n, [[self._count] * n])

    def close(self) -> None:
        if self.options.script is not None:
            self.options.script.with_suffix(".closed").touch()
