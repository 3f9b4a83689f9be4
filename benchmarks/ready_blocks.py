"""A source of ready-made blocks: eight lines at any rate for next to no CPU, to load everything behind the sensor."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from powerd_core.model import Block, Column, Device, Gap, Line, Provenance, ScaledConversion, Stream
from powerd_daemon.sources.base import Source, Start


@dataclass(frozen=True, slots=True)
class ReadyBlocksOptions:
    """Options of the source."""

    rate_hz: float = field(default=1000.0, metadata={"help": "scans a second"})
    lines: int = field(default=8, metadata={"help": "number of lines"})
    block_ms: float = field(default=10.0, metadata={"help": "length of one block"})


class ReadyBlocks(Source):
    """Every block has the same codes and consecutive times exactly one period apart."""

    Options = ReadyBlocksOptions

    def __init__(self, options: ReadyBlocksOptions, start: Start) -> None:
        super().__init__(options, start)
        self._scan_ns = round(1e9 / options.rate_hz)
        self._scans = max(1, round(options.block_ms * 1e6 / self._scan_ns))
        lines = tuple(
            Line(f"gpu0.line_{i}", "gpu0", ScaledConversion("power_mw", 1e-3), Provenance.SIMULATED)
            for i in range(options.lines)
        )
        self._stream = Stream(start.first_stream, start.name, (Column("power_mw", "I"),), lines, self._scan_ns)
        n = self._scans * options.lines
        arrays = (array("i", bytes(4 * n)), array("H", bytes(2 * n)), array("I", [25_000] * n))
        self._rest = b"".join(a.tobytes() for a in arrays)
        self._sequence = start.next_sequence.get(start.first_stream, 0)
        self._t_ns = 0

    @property
    def period_ns(self) -> int:
        return self._scans * self._scan_ns

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        self._t_ns = self.start.clock.now_ns()
        return (self._stream,), (Device("gpu0", tuple(line.name for line in self._stream.lines)),)

    def poll(self) -> None:
        pass

    def take(self) -> list[Block | Gap]:
        made: list[Block | Gap] = []
        now = self.start.clock.now_ns()
        while self._t_ns + self.period_ns <= now:
            t = array("q", range(self._t_ns, self._t_ns + self.period_ns, self._scan_ns))
            made.append(
                Block(
                    self._stream.number, self.start.epoch, self._sequence, t[0], t[-1], len(t), self._stream.layout,
                    t.tobytes() + self._rest,
                )
            )  # fmt: skip
            self._sequence += 1
            self._t_ns += self.period_ns
        return made
