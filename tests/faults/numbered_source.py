"""A source whose readings are numbered: `tests/faults` knows by them which scans a run file should hold.

Scan n belongs to the moment n * period of the board's clock, whoever reads it: what is missing between two readings is
the difference of their numbers, across restarts too.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from powerd_core.model import Block, BlockBuilder, Column, Device, Gap, Line, Provenance, ScaledConversion, Stream
from powerd_daemon.sources.base import Source

POLL_NS = 5_000_000
SLEPT_NS = 500_000_000
"""A chip that has not been read for so long has forgotten what it measured meanwhile."""
NUMBER_BITS = 32
SLEPT = "the sensor was not read in time"
ROW = struct.Struct("<qqq")
"""Of the ledger: the first and the last number of scans in a row, and 1 where they were read, 0 where they were slept
through."""


@dataclass(frozen=True)
class NumberedOptions:
    """Options of the numbered source."""

    lines: int = 4
    """how many lines read the same number"""
    rate_hz: float = 500.0


class NumberedSource(Source):
    """Every line of scan n reads the code n (its lowest 32 bits).

    Scans are written into a ledger under ``$FAULTS_LEDGER``, where that is set, before anybody is given them: what this
    source counted out is known whatever becomes of its process, its stream's numbers and the run file.
    """

    Options = NumberedOptions
    options: NumberedOptions

    @property
    def period_ns(self) -> int:
        return POLL_NS

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        self._scan_ns = round(1e9 / self.options.rate_hz)
        names = tuple(f"dev.l{i}" for i in range(self.options.lines))
        conversion = ScaledConversion("number", 1e-6)
        lines = tuple(Line(name, "dev", conversion, Provenance.SIMULATED) for name in names)
        number = self.start.first_stream
        stream = Stream(number, self.start.name, (Column("number", "I"),), lines, self._scan_ns)
        self._builder = BlockBuilder(stream, self.start.epoch, self.start.next_sequence.get(number, 0))
        self._next: int | None = None
        self._made: list[Block | Gap] = []
        directory = os.environ.get("FAULTS_LEDGER")
        self._ledger = Path(directory, f"numbered-{os.getpid()}").open("ab", buffering=0) if directory else None  # noqa: SIM115
        return (stream,), (Device("dev", names),)

    def poll(self) -> None:
        reached = self.start.clock.now_ns() // self._scan_ns
        if self._next is None:
            # Later than every gap that tells of what was before.
            self._next = reached + 1
            return
        if (reached - self._next) * self._scan_ns > SLEPT_NS:
            self._forget(self._next, reached)
            self._next = reached
        self._write_down(self._next, reached, is_read=True)
        n = self.options.lines
        while self._next <= reached:
            self._builder.append(self._next * self._scan_ns, [0] * n, [0] * n, [[self._next % (1 << NUMBER_BITS)] * n])
            self._next += 1

    def _write_down(self, first: int, last: int, *, is_read: bool) -> None:
        if self._ledger is not None and last >= first:
            self._ledger.write(ROW.pack(first, last, is_read))

    def _forget(self, first: int, behind: int) -> None:
        self._write_down(first, behind - 1, is_read=False)
        self._made += self.take()
        builder = self._builder
        t_last_ns = (first - 1) * self._scan_ns
        gap = Gap(
            builder.stream.number,
            builder.epoch,
            builder.sequence,
            t_last_ns,
            behind * self._scan_ns,
            1,
            behind - first,
            SLEPT,
        )
        builder.sequence += 1
        self._made.append(gap)

    def take(self) -> list[Block | Gap]:
        made, self._made = self._made, []
        block = self._builder.take()
        return [*made, block] if block is not None else made
