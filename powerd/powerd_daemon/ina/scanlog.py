"""What was read and is not given out yet: rows of many scans, and what is known to be wrong with some of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from powerd_core.model import BlockBuilder, Flag
from powerd_daemon.ina.decode import Decoder
from powerd_daemon.ina.plan import Plan
from powerd_daemon.ina.sensor import Bank

_LONG_AGO = -(1 << 62)
MOST_MISSING = 1000
"""Rows that stand for scans that did not take place; when there are more of these, the rows are farther apart."""


class ScanLog:
    """Scans have numbers that count up for ever. A scan is given out when each watched chip is confirmed beyond it."""

    def __init__(self, bank: Bank, decoder: Decoder, chip_of: Sequence[int], *, with_age: bool) -> None:
        self._decoder, self._chip_of, self._with_age = decoder, tuple(chip_of), with_age
        self._lines = len(chip_of)
        self._cycles_ns = [s.longest_cycle_ns for s in bank.settings]
        self._longest_ns = max(self._cycles_ns)
        self._slices = [
            (slice(at, at + width), slice(at + width, at + 2 * width))
            for at, width in zip(decoder.at, (s.type.code_bytes for s in decoder.settings), strict=True)
        ]
        self._first = 0
        self._raw = bytearray()
        self._start_ns: array[int] = array("q")
        self._plans: list[Plan | None] = []
        self._ages: array[int] = array("B")
        self._ages_next = 0
        self._held = b""
        self._flags: dict[int, int] = {}
        """By scan number * lines + line."""
        self._offsets_ns: dict[int, list[int]] = {}
        """Of scans that were not read by one plan, by scan number."""
        self._confirmed = dict.fromkeys(range(max(chip_of) + 1), 0)
        self._watched: set[int] = set(self._confirmed)
        self._fresh_ns = [_LONG_AGO] * self._lines

    @property
    def total(self) -> int:
        """Number of scans so far: the number of the next one."""
        return self._first + len(self._start_ns)

    def add(self, plan: Plan, start_ns: int, words: bytes | bytearray | memoryview) -> None:
        """A scan that one plan read."""
        if plan.with_bus and len(plan.lines) == self._lines:
            self._raw += words
        else:
            self._raw += self._row(plan, words)
        self._start_ns.append(start_ns)
        self._plans.append(plan)
        self._ages.append(0 if plan.with_bus else self._ages_next)
        self._ages_next = self._ages[-1] + 1

    def add_singly(self, start_ns: int, plans: Sequence[Plan], found: Mapping[int, tuple[int, bytes]]) -> None:
        """A scan of transfers by chip: when each began and what it read; lines of other chips failed."""
        row = bytearray(self._decoder.row_bytes)
        offsets_ns = [0] * self._lines
        at = self.total * self._lines
        for c, plan in enumerate(plans):
            began_ns, words = found.get(c, (start_ns, b""))
            shifts_ns = plan.offsets_ns()
            used = 0
            for line in plan.lines:
                offsets_ns[line] = began_ns - start_ns + shifts_ns[line]
                both = self._slices[line]
                if words:
                    size = both[1].stop - both[0].start
                    row[both[0].start : both[1].stop] = words[used : used + size]
                    used += size
                else:
                    self._flags[at + line] = self._flags.get(at + line, 0) | Flag.IO_ERROR
        self._offsets_ns[self.total] = offsets_ns
        self._raw += row
        self._start_ns.append(start_ns)
        self._plans.append(None)
        self._ages.append(0)
        self._ages_next = 1

    def add_missing(self, last_ns: int, next_ns: int, period_ns: int, plan: Plan) -> int:
        """Rows in place of the scans that should have been between two that are too far apart. A scan by ``plan``, of
        all lines, follows.

        Returns how many scans are missing; there may be fewer rows.
        """
        missing = round((next_ns - last_ns) / period_ns) - 1
        count = min(missing, MOST_MISSING)
        for k in range(1, count + 1):
            for at in range(self.total * self._lines, (self.total + 1) * self._lines):
                self._flags[at] = Flag.MISSING
            self._raw += bytes(self._decoder.row_bytes)
            self._start_ns.append(last_ns + k * (next_ns - last_ns) // (count + 1))
            self._plans.append(plan)
            self._ages.append(0)
        return missing

    def flag_line(self, line: int, flag: Flag) -> None:
        """Flag the latest reading of a line."""
        at = (self.total - 1) * self._lines + line
        self._flags[at] = self._flags.get(at, 0) | flag

    def flag_last(self, c: int, flag: Flag) -> None:
        """Flag the latest reading of a chip."""
        self._flag(c, self.total - 1, flag)

    def watch(self, chips: Iterable[int]) -> None:
        """From now on these chips' readings wait to be confirmed; those of others are flagged as they come."""
        watched = set(chips)
        for c in watched - self._watched:
            self._confirmed[c] = self.total
        self._watched = watched

    def confirm(self, c: int) -> None:
        """What was read from a chip so far is right."""
        self._confirmed[c] = self.total

    def deny(self, c: int, flag: Flag) -> None:
        """What was read from a chip since it was last confirmed cannot be trusted."""
        for scan in range(max(self._confirmed[c], self._first), self.total):
            self._flag(c, scan, flag)
        self._confirmed[c] = self.total

    def give_up(self, c: int) -> None:
        """The chip is lost and will not be asked again."""
        self.deny(c, Flag.IO_ERROR)

    def take(self, builder: BlockBuilder) -> None:
        """Decode the scans that are confirmed for all chips and append them."""
        scans = min((self._confirmed[c] for c in self._watched), default=self.total) - self._first
        if scans <= 0:
            return
        used = scans * self._decoder.row_bytes
        raw = bytes(self._raw[:used])
        shunt, bus = self._decoder.codes(raw)
        flags = array("H", bytes(2 * scans * self._lines))
        begin, end = self._first * self._lines, (self._first + scans) * self._lines
        if self._flags:
            for at in [at for at in self._flags if at < end]:
                flags[at - begin] |= self._flags.pop(at)
        self._decoder.flag(flags, raw, shunt, bus)
        offsets_ns = self._offsets(scans)
        self._flag_stale(flags, scans, offsets_ns)
        builder.t_ns.extend(self._start_ns[:scans])
        builder.dt_ns.extend(offsets_ns)
        builder.flags.extend(flags)
        builder.columns[0].extend(shunt)
        builder.columns[1].extend(bus)
        if self._with_age:
            for age in self._ages[:scans]:
                builder.columns[2].extend([age] * self._lines)
        if self._with_age:
            self._held = raw[-self._decoder.row_bytes :]
        del self._raw[:used], self._start_ns[:scans], self._plans[:scans], self._ages[:scans]
        self._first += scans

    def _row(self, plan: Plan, words: bytes | bytearray | memoryview) -> bytearray:
        """A whole row from a plan that has not read all of it: held bus codes stay, absent lines are flagged."""
        if plan.with_bus:
            row, at = bytearray(self._decoder.row_bytes), 0
            for line in plan.lines:
                both = self._slices[line]
                size = both[1].stop - both[0].start
                row[both[0].start : both[1].stop] = words[at : at + size]
                at += size
        else:
            row, at = bytearray(self._last_row()), 0
            for line in plan.lines:
                part = self._slices[line][1]
                size = part.stop - part.start
                row[part] = words[at : at + size]
                at += size
        if len(plan.lines) < self._lines:
            base = self.total * self._lines
            for line in set(range(self._lines)) - set(plan.lines):
                self._flags[base + line] = self._flags.get(base + line, 0) | Flag.IO_ERROR
        return row

    def _last_row(self) -> bytes | bytearray:
        return self._raw[-self._decoder.row_bytes :] if self._raw else self._held

    def _flag(self, c: int, scan: int, flag: Flag) -> None:
        for line, chip in enumerate(self._chip_of):
            if chip == c:
                at = scan * self._lines + line
                self._flags[at] = self._flags.get(at, 0) | flag

    def _offsets(self, scans: int) -> array[int]:
        plans = self._plans[:scans]
        first = plans[0]
        if first is not None and plans.count(first) == scans:
            return array("i", first.offsets_ns()) * scans
        known: dict[Plan, list[int]] = {}
        offsets_ns: array[int] = array("i")
        for k, plan in enumerate(plans):
            if plan is None:
                offsets_ns.extend(self._offsets_ns.pop(self._first + k))
            else:
                offsets_ns.extend(known.setdefault(plan, known.get(plan) or plan.offsets_ns()))
        return offsets_ns

    def _flag_stale(self, flags: array[int], scans: int, offsets_ns: array[int]) -> None:
        """Flag readings whose conversion may be that of a reading before."""
        count, fresh_ns, first = self._lines, self._fresh_ns, self._plans[0]
        if first is not None and self._plans[:scans].count(first) == scans:
            # All read alike: scans that are far enough apart are so for every line.
            starts, shifts = self._start_ns[:scans], offsets_ns[:count]
            apart = all(b - a >= self._longest_ns for a, b in pairwise(starts))
            if apart and all(starts[0] + d - f >= n for d, f, n in zip(shifts, fresh_ns, self._cycles_ns, strict=True)):
                self._fresh_ns = [starts[-1] + d for d in shifts]
                return
        for k in range(scans):
            for i in range(count):
                if flags[k * count + i] & (Flag.IO_ERROR | Flag.MISSING):
                    continue
                t_ns = self._start_ns[k] + offsets_ns[k * count + i]
                if t_ns - fresh_ns[i] < self._cycles_ns[i]:
                    flags[k * count + i] |= Flag.STALE
                else:
                    fresh_ns[i] = t_ns
