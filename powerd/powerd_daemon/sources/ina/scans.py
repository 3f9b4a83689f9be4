"""Scans of a bank of INA chips: how they are read, when each word was on the wire, and what the raw rows mean.

`PreparedRead` is one combined read of some lines, `Decoder` turns raw rows into columns and flags, and `PendingScans`
holds what was read until each chip is confirmed behind it.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence

from powerd_core.model import BlockBuilder, Flag
from powerd_daemon.sources.ina.bus import BUS_FREE_PERIODS, Read, RegisterBus, scan_periods, singly, split
from powerd_daemon.sources.ina.chips import CNVR, OVF, Settings
from powerd_daemon.sources.ina.sensor import Bank

MOST_MISSING = 1000
"""Rows that stand for scans that did not take place; when there are more of these, the rows are farther apart."""
_NEVER = 1 << 62
_UNUSUAL = bytes((low & (CNVR | OVF)) ^ CNVR for low in range(256))
"""Maps the low byte of an INA219's BUS word to 0 where it says 'converted, no overflow'."""


def reads_of(bank: Bank, lines: Iterable[int], *, with_bus: bool = True) -> list[Read]:
    """BUS, then SHUNT of each line, so that the pointer is left at SHUNT; or SHUNT alone where it was left so.

    A chip of several channels has one pointer for all of them, which is written each time.
    """
    reads = []
    for i in lines:
        sensor, settings = bank.sensors[i], bank.settings[i]
        size = settings.type.code_bytes
        shunt, bus = settings.type.channels[sensor.channel - 1]
        if with_bus:
            reads.append(Read(sensor.address, bus, size))
        pointer_stays = not with_bus and len(settings.channels) == 1
        reads.append(Read(sensor.address, None if pointer_stays else shunt, size))
    return reads


def mean_periods(bank: Bank, *, combined: bool, bus_every: int = 1) -> float:
    """SCL periods of a scan, averaged over those with and without bus voltages."""
    lines = range(len(bank.sensors))
    full = scan_periods(reads_of(bank, lines), combined=combined)
    shunts = scan_periods(reads_of(bank, lines, with_bus=False), combined=combined)
    return (full + (bus_every - 1) * shunts) / bus_every


def wire_limit_hz(bank: Bank, scl_hz: float, *, combined: bool, bus_every: int = 1) -> float:
    """Scans a second that fill the bus without any pause, read-backs of the configuration apart."""
    return scl_hz / mean_periods(bank, combined=combined, bus_every=bus_every)


def flag_stale(
    flags: array[int],
    starts_ns: Sequence[int],
    offsets_ns: Sequence[int],
    fresh_ns: list[int],
    cycles_ns: Sequence[int],
) -> None:
    """Flag readings whose conversion may be that of a reading before.

    Times are ``starts_ns`` of scans plus ``offsets_ns`` of each reading. By line: ``fresh_ns`` is the last reading that
    is not stale, and goes on; ``cycles_ns`` is the longest conversion cycle.
    """
    count = len(cycles_ns)
    for k, start_ns in enumerate(starts_ns):
        for i in range(count):
            at = k * count + i
            if flags[at] & (Flag.IO_ERROR | Flag.MISSING):
                continue
            t_ns = start_ns + offsets_ns[at]
            if t_ns - fresh_ns[i] < cycles_ns[i]:
                flags[at] |= Flag.STALE
            else:
                fresh_ns[i] = t_ns


class PreparedRead:
    """``call`` reads the lines. ``offsets_ns`` are those of all lines of the bank, relative to the call's start."""

    def __init__(
        self,
        bus: RegisterBus,
        bank: Bank,
        lines: Sequence[int],
        *,
        with_bus: bool,
        scl_hz: float,
        combined: bool,
        cycle_ratios: Mapping[int, float],
    ) -> None:
        """``cycle_ratios`` has what was measured of chips' cycles by address, relative to the nominal ones."""
        self.lines = tuple(lines)
        self.with_bus = with_bus
        reads = reads_of(bank, lines, with_bus=with_bus)
        self.call = bus.prepare(reads) if combined else singly(bus, reads)
        self._nominal_ns = scan_periods(reads, combined=combined) * 1e9 / scl_hz
        self._shortest_ns = _NEVER
        self._calls = 0
        self._ages_ns = [
            round(settings.age_ns(sensor.channel) * cycle_ratios.get(sensor.address, 1.0)) for sensor, settings in bank
        ]
        self._middles_ns = [0.0] * len(bank.sensors)
        line_of_read = iter([i for i in self.lines for _ in range(2 if with_bus else 1)])
        periods = 0.0
        for transaction in split(reads) if combined else [[r] for r in reads]:
            for read in transaction:
                # SHUNT comes last of a line's reads, so its middle is what stays.
                self._middles_ns[next(line_of_read)] = (periods + read.periods / 2) * 1e9 / scl_hz
                periods += read.periods
            periods += 1 + BUS_FREE_PERIODS

    def excess_ns(self, elapsed_ns: int) -> float:
        """A call lasted so long: by how much that is longer than it has to be."""
        # The first call has only the bus clock to be compared with: it may itself be the late one.
        usual_ns = self._nominal_ns if self._shortest_ns == _NEVER else max(self._nominal_ns, self._shortest_ns)
        self._shortest_ns = min(self._shortest_ns, elapsed_ns)
        self._calls += 1
        return elapsed_ns - usual_ns

    def offsets_ns(self) -> list[int]:
        """Each line's time: the middle of its SHUNT transfer less the mean age of what the register holds.

        The call's end is late by however long the process took to wake up, its beginning is not. So the transfer is
        taken to last as long as the bus clock says, or the shortest call so far when the bus is slower than that. One
        call alone does not tell a slow bus from a late call: readings behind it would lie before those it gave.
        """
        shortest_ns = self._shortest_ns if self._calls > 1 else 0
        slower = max(1.0, shortest_ns / self._nominal_ns) if self.lines else 1.0
        return [
            round(middle_ns * slower) - age_ns
            for middle_ns, age_ns in zip(self._middles_ns, self._ages_ns, strict=True)
        ]


class Decoder:
    """Raw rows of many scans into the columns and flags of a block.

    A row holds each line's BUS register and then its SHUNT register, most significant byte first.
    """

    def __init__(self, settings: Sequence[Settings]) -> None:
        self.settings = tuple(settings)
        self.widths = [s.type.code_bytes for s in self.settings]
        self.begins: list[int] = []
        """Where each line's BUS register begins in a row; SHUNT follows."""
        self.row_bytes = 0
        for width in self.widths:
            self.begins.append(self.row_bytes)
            self.row_bytes += 2 * width
        self._is_wide = max(self.widths) > 2
        self.typecodes = ("i", "I") if self._is_wide else ("h", "H")
        """Of the columns ``shunt`` and ``bus``: 16 bits, or 32 where some chip has more."""
        self._limit = min(s.shunt.full_scale for s in self.settings)
        self._bus_limit = min(s.bus.full_scale << s.type.bus_shift for s in self.settings)
        self._with_status = [i for i, s in enumerate(self.settings) if s.chip == "INA219"]

    def codes(self, raw: bytes) -> tuple[array[int], array[int]]:
        """Shunt codes (sign-extended) and bus codes (the whole register)."""
        if self._is_wide:
            return self._wide_codes(raw)
        words = array("H", raw)
        if sys.byteorder == "little":
            words.byteswap()
        shunt = array("h")
        shunt.frombytes(words[1::2].tobytes())
        return shunt, words[0::2]

    def flag(self, flags: array[int], raw: bytes, shunt: array[int], bus: array[int]) -> None:
        """Set SATURATED, OVERFLOW and RESET from the codes.

        An INA219's CNVR is cleared by a reset or a write of the mode alone (POWER is never read), so a reading
        without it has no conversion behind it.
        """
        count = len(self.settings)
        if max(shunt) >= self._limit or min(shunt) <= -self._limit:
            for i, code in enumerate(shunt):
                if abs(code) >= self.settings[i % count].shunt.full_scale:
                    flags[i] |= Flag.SATURATED
        if max(bus) >= self._bus_limit:
            for i, word in enumerate(bus):
                s = self.settings[i % count]
                if word >> s.type.bus_shift >= s.bus.full_scale:
                    flags[i] |= Flag.SATURATED
        for line in self._with_status:
            status = raw[self.begins[line] + 1 :: self.row_bytes].translate(_UNUSUAL)
            for k in (k for k, low in enumerate(status) if low) if status.strip(b"\0") else ():
                i = k * count + line
                if not flags[i] & (Flag.IO_ERROR | Flag.MISSING):
                    flags[i] |= (Flag.OVERFLOW if bus[i] & OVF else 0) | (0 if bus[i] & CNVR else Flag.RESET)

    def _wide_codes(self, raw: bytes) -> tuple[array[int], array[int]]:
        """Registers of two and three bytes into 32 bits."""
        shunt, bus = array("i"), array("I")
        for row in range(0, len(raw), self.row_bytes):
            for begin, width in zip(self.begins, self.widths, strict=True):
                at = row + begin
                bus.append(int.from_bytes(raw[at : at + width]))
                shunt.append(int.from_bytes(raw[at + width : at + 2 * width], signed=True))
        return shunt, bus


class PendingScans:
    """Scans that were read and are not given out yet, with what is known to be wrong with some of their readings.

    Scans have numbers that count up for ever. A scan is given out when each watched chip is confirmed beyond it.
    Chips are meant by their index in ``lines_of``, which has the lines of each.
    """

    def __init__(self, bank: Bank, decoder: Decoder, lines_of: Sequence[Sequence[int]], *, with_age: bool) -> None:
        self._decoder, self._lines_of, self._with_age = decoder, lines_of, with_age
        self._lines = len(bank.sensors)
        self._cycles_ns = [s.longest_cycle_ns for s in bank.settings]
        self._first = 0
        """Number of the first scan that is held."""
        self._raw = bytearray()
        self._start_ns: array[int] = array("q")
        self._reads: list[PreparedRead | list[int]] = []
        """What read each scan, or the offsets of a scan that was not read by one call."""
        self._bus_ages: array[int] = array("B")
        self._next_bus_age = 0
        self._last_row = b""
        self._flags: dict[int, int] = {}
        """By scan number * lines + line."""
        self._watched = set(range(len(lines_of)))
        self._confirmed = [0] * len(lines_of)
        """The scan number below which a chip's readings are confirmed or flagged."""
        self._fresh_ns = [-_NEVER] * self._lines

    @property
    def total(self) -> int:
        """Number of scans so far: the number of the next one."""
        return self._first + len(self._start_ns)

    def add(self, read: PreparedRead, start_ns: int, words: bytes | bytearray | memoryview) -> None:
        """A scan that one call read."""
        if not read.with_bus or len(read.lines) < self._lines:
            row = bytearray(self._decoder.row_bytes)
            if not read.with_bus:
                # Bus codes that were not read are those of the scan before.
                row[:] = self._raw[-len(row) :] if self._raw else self._last_row
            self._fill(row, read, words)
            words = row
            for line in set(range(self._lines)) - set(read.lines):
                self._flag(self.total, line, Flag.IO_ERROR)
        self._append(words, start_ns, read, 0 if read.with_bus else self._next_bus_age)

    def add_singly(
        self, start_ns: int, reads: Sequence[PreparedRead], words_of: Mapping[int, tuple[int, bytes]]
    ) -> None:
        """A scan of a transfer for each chip: when each began and what it read; the lines of other chips failed."""
        row = bytearray(self._decoder.row_bytes)
        offsets_ns = [0] * self._lines
        for c, read in enumerate(reads):
            began_ns, words = words_of.get(c, (start_ns, b""))
            shifts_ns = read.offsets_ns()
            for line in read.lines:
                offsets_ns[line] = began_ns - start_ns + shifts_ns[line]
                if not words:
                    self._flag(self.total, line, Flag.IO_ERROR)
            if words:
                self._fill(row, read, words)
        self._append(row, start_ns, offsets_ns, 0)

    def add_missing(self, last_ns: int, next_ns: int, period_ns: int, read: PreparedRead) -> int:
        """Rows in place of the scans that should have been between two that are too far apart. A scan by ``read``, of
        all lines, follows.

        Returns how many scans are missing; there may be fewer rows.
        """
        missing = round((next_ns - last_ns) / period_ns) - 1
        count = min(missing, MOST_MISSING)
        for k in range(1, count + 1):
            for line in range(self._lines):
                self._flag(self.total, line, Flag.MISSING)
            row = bytes(self._decoder.row_bytes)
            self._append(row, last_ns + k * (next_ns - last_ns) // (count + 1), read, 0)
        return missing

    def flag_last(self, lines: Iterable[int], flag: Flag) -> None:
        """Flag the latest reading of some lines."""
        for line in lines:
            self._flag(self.total - 1, line, flag)

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
            for line in self._lines_of[c]:
                self._flag(scan, line, flag)
        self._confirmed[c] = self.total

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
        for at in [at for at in self._flags if at < end]:
            flags[at - begin] |= self._flags.pop(at)
        self._decoder.flag(flags, raw, shunt, bus)
        offsets_ns = self._offsets(self._reads[:scans])
        flag_stale(flags, self._start_ns[:scans], offsets_ns, self._fresh_ns, self._cycles_ns)
        builder.t_ns.extend(self._start_ns[:scans])
        builder.dt_ns.extend(offsets_ns)
        builder.flags.extend(flags)
        builder.columns[0].extend(shunt)
        builder.columns[1].extend(bus)
        if self._with_age:
            for age in self._bus_ages[:scans]:
                builder.columns[2].extend([age] * self._lines)
        self._last_row = raw[-self._decoder.row_bytes :]
        del self._raw[:used], self._start_ns[:scans], self._reads[:scans], self._bus_ages[:scans]
        self._first += scans

    def _append(
        self, row: bytes | bytearray | memoryview, start_ns: int, read: PreparedRead | list[int], bus_age: int
    ) -> None:
        self._raw += row
        self._start_ns.append(start_ns)
        self._reads.append(read)
        self._bus_ages.append(bus_age)
        self._next_bus_age = bus_age + 1

    def _fill(self, row: bytearray, read: PreparedRead, words: bytes | bytearray | memoryview) -> None:
        """Put what was read at its place in a row."""
        at = 0
        for line in read.lines:
            begin, width = self._decoder.begins[line], self._decoder.widths[line]
            end = begin + 2 * width
            begin += 0 if read.with_bus else width
            row[begin:end] = words[at : at + end - begin]
            at += end - begin

    def _flag(self, scan: int, line: int, flag: Flag) -> None:
        at = scan * self._lines + line
        self._flags[at] = self._flags.get(at, 0) | flag

    def _offsets(self, reads: Iterable[PreparedRead | list[int]]) -> array[int]:
        known: dict[PreparedRead, list[int]] = {}
        offsets_ns: array[int] = array("i")
        for read in reads:
            if isinstance(read, PreparedRead):
                if read not in known:
                    known[read] = read.offsets_ns()
                offsets_ns.extend(known[read])
            else:
                offsets_ns.extend(read)
        return offsets_ns
