"""Scans of a node as readings: times, flags and gaps.

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
from powerd_daemon.ina.decode import Decoder
from powerd_daemon.ina.settings import Settings
from powerd_daemon.serial.protocol import Scan

CHECK_ALL_US = 20_000
"""With periods from here on the node checks all its sensors in each scan."""


@dataclass(slots=True)
class _Row:
    """A scan that waits for the checks of its sensors."""

    t_ns: int
    span_ns: int
    flags: list[int]
    words: bytes


@dataclass(frozen=True, slots=True)
class _Hole:
    """Scans that never came, between two that did."""

    lost: int
    cause: str


class ScanRows:
    """Turns scans into the blocks and gaps of one stream with columns ``shunt`` and ``bus``."""

    def __init__(self, builder: BlockBuilder, settings: Sequence[Settings], period_us: int) -> None:
        self._builder, self._settings = builder, tuple(settings)
        self._decoder = Decoder(settings)
        self._count = len(self._settings)
        self._period_us = period_us
        self._hold = 0 if period_us >= CHECK_ALL_US else self._count - 1
        self._held: deque[_Row | _Hole] = deque()
        self._rows_held = 0
        self._ready: deque[_Row | _Hole] = deque()
        self._last: tuple[int, int] | None = None
        self._last_ns = -(1 << 62)
        self._reset: int | None = None
        self._unknown = 0
        self.valid = (1 << self._count) - 1
        """Bit i: sensor i was read by the latest scan."""
        self.lost = 0
        """Scans in gaps."""
        self.unfit = 0
        """Scans that were dropped, since they fit neither the sensors nor the scans before."""
        self._fresh_ns = [-(1 << 62)] * self._count
        self._taken_ns: int | None = None
        self._ages_ns = [s.age_ns() for s in self._settings]
        self._longest_ns = max(s.longest_cycle_ns for s in self._settings)

    def add(self, scan: Scan, node_us: int, t_ns: int | None, arrival_ns: int, cause: str) -> bool:
        """Take a scan that began at ``t_ns`` of the board's clock (None: not known well enough).

        ``cause`` is that of the scans missing in front of it, if any. False for one that does not fit: it is dropped.
        """
        if len(scan.words) != 4 * self._count or (self._last and node_us <= self._last[1]):
            self.unfit += 1
            return False
        self.valid = scan.valid
        missing = self._missing(scan, node_us)
        if t_ns is None:
            self._note(scan, node_us)
            self._unknown += 1 + missing
            return True
        if self._unknown:
            self._hole(self._unknown + missing, "the node's clock was not known well enough: its echoes came late")
            self._unknown = 0
        elif missing:
            self._hole(missing, cause)
        span_ns = scan.span_us * 1000
        # Received before it ended is impossible, and so is a scan that begins within the one before.
        t_ns = max(min(t_ns, arrival_ns - span_ns), self._last_ns)
        self._last_ns = t_ns + max(span_ns, 1)
        flags = [0 if scan.valid >> i & 1 else int(Flag.IO_ERROR) for i in range(self._count)]
        self._held.append(_Row(t_ns, span_ns, flags, scan.words))
        self._rows_held += 1
        toggled = 0 if self._reset is None else scan.reset ^ self._reset
        if toggled:
            self._deny(toggled)
        self._note(scan, node_us)
        while self._rows_held > self._hold:
            item = self._held.popleft()
            self._rows_held -= isinstance(item, _Row)
            self._ready.append(item)
        return True

    def take(self) -> list[Block | Gap]:
        """What is confirmed, as blocks and gaps in order."""
        made: list[Block | Gap] = []
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
            self._block(rows, made)
            rows = []
            end_ns = following.t_ns
            begin_ns = end_ns if self._taken_ns is None else min(self._taken_ns, end_ns)
            made.append(self._gap(begin_ns, end_ns, item))
        self._block(rows, made)
        return made

    def _missing(self, scan: Scan, node_us: int) -> int:
        if self._last is None:
            return 0
        jump = (scan.sequence - self._last[0] - 1) & 0xFFFF
        # A sequence number comes round after some minutes; the time tells how often it did.
        by_time = round((node_us - self._last[1]) / self._period_us) - 1
        return jump + 0x10000 * max(0, round((by_time - jump) / 0x10000))

    def _note(self, scan: Scan, node_us: int) -> None:
        self._last = scan.sequence, node_us
        self._reset = scan.reset

    def _hole(self, lost: int, cause: str) -> None:
        self.lost += lost
        self._held.append(_Hole(lost, cause))

    def _deny(self, sensors: int) -> None:
        for item in self._held:
            if isinstance(item, _Row):
                for i in range(self._count):
                    if sensors >> i & 1:
                        item.flags[i] |= Flag.RESET

    def _gap(self, begin_ns: int, end_ns: int, hole: _Hole) -> Gap:
        b = self._builder
        gap = Gap(b.stream.number, b.epoch, b.sequence, begin_ns, end_ns, 1, hole.lost, hole.cause)
        b.sequence += 1
        return gap

    def _block(self, rows: Sequence[_Row], made: list[Block | Gap]) -> None:
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
        for k, row in enumerate(rows):
            b.t_ns.append(row.t_ns)
            # The shunt word is the first of the two: its middle is a quarter into the sensor's share of the scan.
            dt_ns = [row.span_ns * (4 * i + 1) // (4 * n) - age for i, age in enumerate(self._ages_ns)]
            b.dt_ns.extend(dt_ns)
            for i in range(n):
                if flags[k * n + i] & Flag.IO_ERROR:
                    # What its codes look like says nothing.
                    flags[k * n + i] = Flag.IO_ERROR
                    continue
                t_ns = row.t_ns + dt_ns[i]
                if t_ns - self._fresh_ns[i] < self._longest_ns:
                    flags[k * n + i] |= Flag.STALE
                else:
                    self._fresh_ns[i] = t_ns
        b.flags.extend(flags)
        b.columns[0].extend(shunt)
        b.columns[1].extend(bus)
        block = b.take()
        if block is not None:
            self._taken_ns = block.t_last_ns
            made.append(block)
