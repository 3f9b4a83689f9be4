"""What a node sends as readings: its scans and its marker input, as the blocks and gaps of one stream each.

The node checks its sensors' settings one a scan, in turn; the bits of ``reset`` toggle when a check fails. A reading is
therefore held until its sensor has been checked behind it, and flagged ``RESET`` when that check failed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from powerd_core.model import Block, BlockBuilder, Flag, Gap
from powerd_daemon.sources.ina.chips import Settings
from powerd_daemon.sources.ina.scanner import Decoder, flag_stale
from powerd_daemon.sources.node.protocol import Edge, Scan, Status

CHECK_ALL_US = 20_000
"""With periods from here on the node checks all its sensors in each scan."""
_LONG_AGO = -(1 << 62)


@dataclass(slots=True)
class _Row:
    """A scan that waits for the checks of its sensors, and how many never came in front of it."""

    t_ns: int
    span_ns: int
    flags: list[int]
    words: bytes
    lost: int
    cause: str


def _gap(builder: BlockBuilder, begin_ns: int, end_ns: int, lost: int, cause: str) -> Gap:
    """A gap with the builder's next sequence number."""
    gap = Gap(builder.stream.number, builder.epoch, builder.sequence, min(begin_ns, end_ns), end_ns, 1, lost, cause)
    builder.sequence += 1
    return gap


class ScanReadings:
    """Turns scans into the blocks and gaps of one stream with columns ``shunt`` and ``bus``."""

    def __init__(self, builder: BlockBuilder, settings: Sequence[Settings], period_us: int) -> None:
        self._builder, self._decoder, self._count = builder, Decoder(settings), len(settings)
        self._period_us = period_us
        self._hold = 0 if period_us >= CHECK_ALL_US else self._count - 1
        """Scans after which every sensor was checked."""
        self._rows: list[_Row] = []
        self._last: Scan | None = None
        self._last_us = 0
        """When the last scan began, by the node's clock; and, by the board's, when it ended."""
        self._last_end_ns = _LONG_AGO
        self._untimed = 0
        """Scans whose times are not known, since the last that is held."""
        self.valid = (1 << self._count) - 1
        """Bit i: sensor i was read by the latest scan."""
        self.lost = 0
        """Scans in gaps."""
        self.unfit = 0
        """Scans that were dropped, since they fit neither the sensors nor the scans before."""
        self._fresh_ns = [_LONG_AGO] * self._count
        self._taken_ns: int | None = None
        """Last reading that was given out."""
        self._ages_ns = [s.age_ns() for s in settings]
        self._cycles_ns = [max(s.longest_cycle_ns for s in settings)] * self._count

    def add(self, scan: Scan, node_us: int, t_ns: int | None, arrival_ns: int, cause: str) -> bool:
        """Take a scan that began at ``t_ns`` of the board's clock (None: not known well enough).

        ``cause`` is that of the scans missing in front of it, if any. False for one that does not fit: it is dropped.
        """
        if len(scan.words) != 4 * self._count or (self._last and node_us <= self._last_us):
            self.unfit += 1
            return False
        self.valid = scan.valid
        missing = self._missing(scan, node_us)
        toggled = scan.reset ^ self._last.reset if self._last else 0
        self._last, self._last_us = scan, node_us
        if t_ns is None:
            self._untimed += 1 + missing
        else:
            if self._untimed:
                missing, self._untimed = missing + self._untimed, 0
                cause = "the node's clock was not known well enough: its echoes came late"
            self.lost += missing
            span_ns = scan.span_us * 1000
            # Received before it ended is impossible, and so is a scan that begins within the one before.
            t_ns = max(min(t_ns, arrival_ns - span_ns), self._last_end_ns)
            self._last_end_ns = t_ns + max(span_ns, 1)
            flags = [0 if scan.valid >> i & 1 else int(Flag.IO_ERROR) for i in range(self._count)]
            self._rows.append(_Row(t_ns, span_ns, flags, scan.words, missing, cause))
        # What waits for a check that failed is of a sensor without its settings.
        checked = len(self._rows) - self._hold - (t_ns is not None)
        for row in self._rows[max(checked, 0) :] if toggled else ():
            row.flags = [f | Flag.RESET if toggled >> i & 1 else f for i, f in enumerate(row.flags)]
        return True

    def take(self) -> list[Block | Gap]:
        """What is confirmed, as blocks and gaps in order."""
        count = max(0, len(self._rows) - self._hold)
        rows, self._rows = self._rows[:count], self._rows[count:]
        events: list[Block | Gap] = []
        first = 0
        for k, row in enumerate(rows):
            if row.lost:
                self._append_block(rows[first:k], events)
                first = k
                begin_ns = row.t_ns if self._taken_ns is None else self._taken_ns
                events.append(_gap(self._builder, begin_ns, row.t_ns, row.lost, row.cause))
        self._append_block(rows[first:], events)
        return events

    def _missing(self, scan: Scan, node_us: int) -> int:
        """Scans that the node took since the last one."""
        if self._last is None:
            return 0
        jump = (scan.sequence - self._last.sequence - 1) & 0xFFFF
        # A sequence number comes round after some minutes; the time tells how often it did.
        by_time = round((node_us - self._last_us) / self._period_us) - 1
        return jump + 0x10000 * max(0, round((by_time - jump) / 0x10000))

    def _append_block(self, rows: Sequence[_Row], events: list[Block | Gap]) -> None:
        if not rows:
            return
        b, n = self._builder, self._count
        words = array("H", b"".join(r.words for r in rows))
        shunt, bus = array("h", words[0::2].tobytes()), words[1::2]
        flags = array("H", [f for r in rows for f in r.flags])
        self._decoder.flag(flags, shunt, bus)
        # What the codes of a failed reading look like says nothing.
        flags = array("H", [int(Flag.IO_ERROR) if f & Flag.IO_ERROR else f for f in flags])
        for row in rows:
            b.t_ns.append(row.t_ns)
            # The shunt word is the first of the two: its middle is a quarter into the sensor's share of the scan.
            b.dt_ns.extend(row.span_ns * (4 * i + 1) // (4 * n) - age_ns for i, age_ns in enumerate(self._ages_ns))
        flag_stale(flags, b.t_ns, b.dt_ns, self._fresh_ns, self._cycles_ns)
        b.flags.extend(flags)
        b.columns[0].extend(shunt)
        b.columns[1].extend(bus)
        if block := b.take():
            self._taken_ns = block.t_last_ns
            events.append(block)


class MarkerReadings:
    """The marker input: its level at every edge, and twice a second besides, in columns ``level`` and ``edge``.

    A reading with level 1 says that the input is high from then on. The column ``edge`` counts edges modulo 2**16: a
    reading whose count is that of the one before is no edge but the node's word that there was none. So a stream in
    which nothing happens is told from one that is lost.
    """

    CAUSE = "edges were lost on the way, too fast for the node, or at times that are not known well enough"

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._events: list[Block | Gap] = []
        self._next: int | None = None
        """Number of the next edge; None until the node has said."""
        self._last_ns: int | None = None
        self.lost = 0
        """Edges in gaps."""

    def add(self, event: Edge | Status, t_ns: int) -> None:
        """An edge at ``t_ns`` of the board's clock, or a status: the level then unless a later edge is known."""
        is_edge = isinstance(event, Edge)
        number = event.sequence if isinstance(event, Edge) else event.edges & 0xFFFF
        last_ns = t_ns - 1 if self._last_ns is None else self._last_ns
        if self._next is not None and (lost := (number - self._next) & 0xFFFF):
            self.lost += lost
            self._close_block()
            self._events.append(_gap(self._builder, last_ns, max(last_ns, t_ns), lost, self.CAUSE))
        self._next = number + is_edge & 0xFFFF
        if is_edge or t_ns > last_ns:
            # An interrupt's edges may share a microsecond, or two corrections of the clock may overlap.
            self._last_ns = max(t_ns, last_ns + 1)
            self._builder.append(self._last_ns, (0,), (0,), ((event.level,), (self._next,)))

    def take(self) -> list[Block | Gap]:
        """Everything since the last call, in order."""
        self._close_block()
        events, self._events = self._events, []
        return events

    def _close_block(self) -> None:
        if block := self._builder.take():
            self._events.append(block)
