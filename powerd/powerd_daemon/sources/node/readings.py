"""What a node sends as readings: its scans and its marker input, as the blocks and gaps of one stream each.

The node checks its sensors' settings one a scan, in turn; the bits of ``reset`` toggle when a check fails. A reading is
therefore held until its sensor has been checked behind it, and flagged ``RESET`` when that check failed.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
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
    """A scan that waits for the checks of its sensors."""

    t_ns: int
    span_ns: int
    flags: list[int]
    words: bytes


@dataclass(frozen=True, slots=True)
class _Lost:
    """Scans that never came, between two that did."""

    count: int
    cause: str


def _gap(builder: BlockBuilder, begin_ns: int, end_ns: int, lost: int, cause: str) -> Gap:
    """A gap with the builder's next sequence number."""
    gap = Gap(builder.stream.number, builder.epoch, builder.sequence, begin_ns, end_ns, 1, lost, cause)
    builder.sequence += 1
    return gap


class ScanReadings:
    """Turns scans into the blocks and gaps of one stream with columns ``shunt`` and ``bus``."""

    def __init__(self, builder: BlockBuilder, settings: Sequence[Settings], period_us: int) -> None:
        self._builder, self._decoder, self._count = builder, Decoder(settings), len(settings)
        self._period_us = period_us
        self._hold = 0 if period_us >= CHECK_ALL_US else self._count - 1
        """Scans after which every sensor was checked."""
        self._held: deque[_Row | _Lost] = deque()
        self._rows_held = 0
        self._ready: deque[_Row | _Lost] = deque()
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
            self._deny(toggled)
            return True
        if self._untimed:
            missing += self._untimed
            self._untimed = 0
            cause = "the node's clock was not known well enough: its echoes came late"
        if missing:
            self.lost += missing
            self._held.append(_Lost(missing, cause))
        span_ns = scan.span_us * 1000
        # Received before it ended is impossible, and so is a scan that begins within the one before.
        t_ns = max(min(t_ns, arrival_ns - span_ns), self._last_end_ns)
        self._last_end_ns = t_ns + max(span_ns, 1)
        flags = [0 if scan.valid >> i & 1 else int(Flag.IO_ERROR) for i in range(self._count)]
        self._held.append(_Row(t_ns, span_ns, flags, scan.words))
        self._rows_held += 1
        self._deny(toggled)
        while self._rows_held > self._hold:
            item = self._held.popleft()
            self._rows_held -= isinstance(item, _Row)
            self._ready.append(item)
        return True

    def take(self) -> list[Block | Gap]:
        """What is confirmed, as blocks and gaps in order."""
        events: list[Block | Gap] = []
        rows: list[_Row] = []
        while self._ready:
            item = self._ready.popleft()
            if isinstance(item, _Row):
                rows.append(item)
                continue
            following = next((r for r in (*self._ready, *self._held) if isinstance(r, _Row)), None)
            if following is None:
                self._ready.appendleft(item)
                break
            self._append_block(rows, events)
            rows = []
            end_ns = following.t_ns
            begin_ns = end_ns if self._taken_ns is None else min(self._taken_ns, end_ns)
            events.append(_gap(self._builder, begin_ns, end_ns, item.count, item.cause))
        self._append_block(rows, events)
        return events

    def _deny(self, sensors: int) -> None:
        """Flag what waits for a check that failed, by the sensors' bits."""
        for row in self._held if sensors else ():
            if isinstance(row, _Row):
                row.flags = [f | Flag.RESET if sensors >> i & 1 else f for i, f in enumerate(row.flags)]

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
        if sys.byteorder == "big":
            words.byteswap()
        # The decoder wants rows as they come over I2C: bus first, most significant byte first.
        raw = array("H", bytes(2 * len(words)))
        raw[0::2], raw[1::2] = words[1::2], words[0::2]
        if sys.byteorder == "little":
            raw.byteswap()
        wire = raw.tobytes()
        shunt, bus = self._decoder.codes(wire)
        flags = array("H", [f for r in rows for f in r.flags])
        self._decoder.flag(flags, wire, shunt, bus)
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
        block = b.take()
        if block is not None:
            self._taken_ns = block.t_last_ns
            events.append(block)


class MarkerReadings:
    """The marker input: its level at every edge, and twice a second besides, in columns ``level`` and ``edge``.

    A reading with level 1 says that the input is high from then on. The column ``edge`` counts edges modulo 2**16: a
    reading whose count is that of the one before is no edge but the node's word that there was none. So a stream in
    which nothing happens is told from one that is lost.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._events: list[Block | Gap] = []
        self._next: int | None = None
        """Number of the next edge; None until the node has said."""
        self._last_ns: int | None = None
        self.lost = 0
        """Edges in gaps."""

    def edge(self, edge: Edge, t_ns: int, cause: str) -> None:
        """An edge at ``t_ns`` of the board's clock; ``cause`` is that of edges missing in front of it, if any."""
        self._find_lost(edge.sequence, t_ns, cause)
        self._next = edge.sequence + 1 & 0xFFFF
        # An interrupt's edges may share a microsecond, or two corrections of the clock may overlap.
        self._append(t_ns if self._last_ns is None else max(t_ns, self._last_ns + 1), edge.level, self._next)

    def status(self, status: Status, t_ns: int, cause: str) -> None:
        """A status: the level at ``t_ns`` unless an edge behind that is known already."""
        self._find_lost(status.edges & 0xFFFF, t_ns, cause)
        self._next = status.edges & 0xFFFF
        if self._last_ns is None or t_ns > self._last_ns:
            self._append(t_ns, status.level, self._next)

    def take(self) -> list[Block | Gap]:
        """Everything since the last call, in order."""
        self._close_block()
        events, self._events = self._events, []
        return events

    def _find_lost(self, sequence: int, t_ns: int, cause: str) -> None:
        if self._next is None or not (lost := (sequence - self._next) & 0xFFFF):
            return
        self.lost += lost
        self._close_block()
        begin_ns = t_ns if self._last_ns is None else min(self._last_ns, t_ns)
        self._events.append(_gap(self._builder, begin_ns, max(begin_ns, t_ns), lost, cause))

    def _append(self, t_ns: int, level: int, edge: int) -> None:
        self._builder.append(t_ns, (0,), (0,), ((level,), (edge,)))
        self._last_ns = t_ns

    def _close_block(self) -> None:
        block = self._builder.take()
        if block is not None:
            self._events.append(block)
