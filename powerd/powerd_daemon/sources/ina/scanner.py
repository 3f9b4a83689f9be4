"""Scans of a bank of INA chips: every line's shunt and bus registers, in one combined transaction where that works.

A reading counts when its chip's configuration was read back *after* it, so each chip is checked about ten times a
second. One that fails three times in a row, or lost its settings, is set up again; where that fails it is left out and
tried again about once a second. The others go on meanwhile. What is flagged:

- ``IO_ERROR``: the transfer failed, or nothing confirmed the chip's configuration any more.
- ``RESET``: the configuration was not what was written, or nothing was converted since a reset or set-up.
- ``STALE``: less than the chip's longest conversion cycle has passed since its last reading that was not stale, so
  an unflagged reading is certain to have a conversion of its own behind it.
- ``MISSING``: no scan took place when one was due, or a transfer took longer than it has to by more than the line's
  ``centre_ns``, so that its moment is not known. On an adapter that is slower than its bus, a read that took longer
  than ``read_ns``.
- ``SATURATED``, ``OVERFLOW``: from the codes, see `Decoder`.

The times of each line increase by construction: a reading lies between the beginning and the end of its transfer, as
long as the fastest so far took, less the same age of the code for ever; the next scan begins when this one has ended.
Where the adapter is slower than its bus (``read_ns``), when in its transfer a register was read is not known: each read
is timed by itself then, and its reading lies in its middle, give or take a half.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import sub
from typing import NamedTuple

from powerd_core.errors import SensorError
from powerd_core.model import BlockBuilder, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.ina.bus import BUS_FREE_PERIODS, Read, ReadWords, RegisterBus, scan_periods, singly, split
from powerd_daemon.sources.ina.chips import CNVR, CONFIG, OVF, RST, ChipSettings
from powerd_daemon.sources.ina.sensor_accuracy import Bank, accuracy

VERIFY_NS = 100_000_000
"""How often each chip's configuration is read back."""
LATE = 1.75
"""Readings this many periods apart have one missing between them."""
MOST_SLOW = 4.0
"""So much longer than its clock says do transfers take at most: a bus of 100 kHz where 400 kHz are configured."""
SPEED_CALLS = 5
"""Calls at opening that tell how fast the bus is; at least one of them is hardly held up."""
MOST_MISSING = 1000
"""Rows that stand for scans that did not take place; when there are more of these, the rows are farther apart."""
RESET_NS = 400_000
"""After a software reset, the slowest type (INA228) needs 300 us."""
OPEN_RESET_NS = 500_000_000
"""While a bus is opened, a chip that still shows the reset it was asked for is looked at again for so long: a chip that
another processor plays (a bridge, an emulator) resets when that one gets to it."""
BETWEEN_ATTEMPTS_NS = 10_000_000
"""While a bus is opened: another master has it for a few milliseconds."""
GIVE_UP_AFTER = 3
"""Failures in a row after which a chip is set up again, or left out."""
PROBE_NS = 1_000_000_000
CYCLES = 32
"""How many conversion cycles are timed; their ends are told to a look or two, so the mean is good to about half a per
cent."""
CYCLES_LIMIT_NS = 150_000_000
"""Time after which a chip is taken at its nominal cycle."""
LOOKS_A_CYCLE = 3
"""A cycle must have room for this many looks, or its end cannot be told from the next one's."""
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


def wire_limit_hz(bank: Bank, scl_hz: float, *, combined: bool, bus_every: int = 1) -> float:
    """Scans a second that fill the bus without any pause, read-backs of the configuration apart; on average over those
    with and without bus voltages."""
    lines = range(len(bank.sensors))
    full = scan_periods(reads_of(bank, lines), combined=combined)
    shunts = scan_periods(reads_of(bank, lines, with_bus=False), combined=combined)
    return scl_hz * bus_every / (full + (bus_every - 1) * shunts)


def flag_stale(
    flags: array[int], starts_ns: Sequence[int], offsets_ns: Sequence[int], fresh_ns: list[int], cycles_ns: list[int]
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


class Decoder:
    """Raw rows of many scans into the columns and flags of a block.

    A row holds each line's BUS register and then its SHUNT register, most significant byte first. All machines that
    powerd supports keep the least significant one first.
    """

    def __init__(self, settings: Sequence[ChipSettings]) -> None:
        self.settings = tuple(settings)
        self.begins: list[int] = []
        """Where each line's BUS register begins in a row; SHUNT follows."""
        self.row_bytes = 0
        for s in self.settings:
            self.begins.append(self.row_bytes)
            self.row_bytes += 2 * s.type.code_bytes
        self._is_wide = max(s.type.code_bytes for s in self.settings) > 2
        self.typecodes = ("i", "I") if self._is_wide else ("h", "H")
        """Of the columns ``shunt`` and ``bus``: 16 bits, or 32 where some chip has more."""
        self._limit = min(s.shunt.full_scale for s in self.settings)
        self._bus_limit = min(s.bus.full_scale << s.type.bus_shift for s in self.settings)

    def codes(self, raw: bytes) -> tuple[array[int], array[int]]:
        """Shunt codes (sign-extended) and bus codes (the whole register)."""
        if not self._is_wide:
            words = array("H", raw)
            words.byteswap()
            return array("h", words[1::2].tobytes()), words[0::2]
        shunt, bus = array("i"), array("I")
        for row in range(0, len(raw), self.row_bytes):
            for begin, s in zip(self.begins, self.settings, strict=True):
                at, width = row + begin, s.type.code_bytes
                bus.append(int.from_bytes(raw[at : at + width]))
                shunt.append(int.from_bytes(raw[at + width : at + 2 * width], signed=True))
        return shunt, bus

    def flag(self, flags: array[int], shunt: array[int], bus: array[int]) -> None:
        """Set SATURATED, OVERFLOW and RESET from the codes.

        An INA219's CNVR is cleared by a reset or a write of the mode alone (POWER is never read), so a reading
        without it has no conversion behind it.
        """
        count = len(self.settings)
        if max(shunt) >= self._limit or min(shunt) <= -self._limit or max(bus) >= self._bus_limit:
            for i, (code, word) in enumerate(zip(shunt, bus, strict=True)):
                s = self.settings[i % count]
                if abs(code) >= s.shunt.full_scale or word >> s.type.bus_shift >= s.bus.full_scale:
                    flags[i] |= Flag.SATURATED
        low_bytes = bus.tobytes()[:: bus.itemsize]
        for line in (i for i, s in enumerate(self.settings) if s.chip == "INA219"):
            unusual = low_bytes[line::count].translate(_UNUSUAL)
            for k in (k for k, low in enumerate(unusual) if low) if unusual.strip(b"\0") else ():
                i = k * count + line
                if not flags[i] & (Flag.IO_ERROR | Flag.MISSING):
                    flags[i] |= (Flag.OVERFLOW if bus[i] & OVF else 0) | (0 if bus[i] & CNVR else Flag.RESET)


class Chip:
    """A chip by its address, what it is to be, and its lines. All its own transfers are single."""

    def __init__(self, bus: RegisterBus, clock: Clock, address: int, settings: ChipSettings, lines: list[int]) -> None:
        self.address, self.settings, self.lines = address, settings, lines
        self.failures = 0
        """Transfers in a row that failed."""
        self.confirmed = 0
        """Number of the first scan whose reading of this chip is neither confirmed nor flagged."""
        self.settled_ns = 0
        """When it will have converted something, after it was set up again."""
        self.cycle_ratio = 1.0
        self._bus, self._clock = bus, clock
        self._read_back = singly(bus, [Read(address, register) for register, _ in settings.words])
        self._expected = b"".join(word.to_bytes(2, "big") for _, word in settings.words)

    def set_up_at_opening(self) -> str:
        """As `set_up`, with the patience that nobody has who reads other chips meanwhile."""
        trouble = self.set_up(OPEN_RESET_NS)
        for _ in range(GIVE_UP_AFTER - 1):
            if trouble:
                self._clock.sleep_until(self._clock.now_ns() + BETWEEN_ATTEMPTS_NS)
                trouble = self.set_up(OPEN_RESET_NS)
        return trouble

    def set_up(self, reset_ns: int = RESET_NS) -> str:
        """Reset, identify and configure the chip. Returns what is wrong, or nothing; a failed transfer is wrong too.

        The chip may take ``reset_ns`` for the reset.
        """
        kind = self.settings.type
        try:
            self._bus.write_word(self.address, CONFIG, RST)
            self._await_reset(reset_ns)
            for register, value, mask in ((CONFIG, kind.resets[CONFIG], 0xFFFF), *kind.identity):
                word = int.from_bytes(self._bus.prepare([Read(self.address, register)])())
                if word & mask != value & mask:
                    return f"is no {kind.name}: register {register:#04x} is {word:#06x}, not {value:#06x}"
            for register, word in self.settings.words:
                self._bus.write_word(self.address, register, word)
            if not self.is_as_set():
                return "does not keep its configuration: check its supply"
        except OSError as error:
            return f"does not answer ({error.strerror or error})"
        return ""

    def _await_reset(self, limit_ns: int) -> None:
        """Wait until RST, which clears itself, no longer reads back. Raises `OSError` when the transfer fails."""
        read = self._bus.prepare([Read(self.address, CONFIG)])
        began_ns = self._clock.now_ns()
        self._clock.sleep_until(began_ns + RESET_NS)
        while self._clock.now_ns() - began_ns < limit_ns and int.from_bytes(read()) == RST:
            self._clock.sleep_until(self._clock.now_ns() + RESET_NS)

    def is_as_set(self) -> bool:
        """Whether its configuration reads back as written. Raises `OSError` when the transfer fails."""
        return bytes(self._read_back()) == self._expected


def cycle_ratio(bus: RegisterBus, clock: Clock, address: int, settings: ChipSettings) -> float:
    """An INA219's conversion cycle over the nominal one, or 1.0 where it cannot be measured. Raises `OSError`.

    Its clock may be 10 % off, which shifts the middle of its window. A shift of 0.1 ms is no error of a steady power,
    but at the edge of a phase it moves joules to the wrong side: 0.1 ms of the step, at every edge, the same way. CNVR
    tells when a cycle ends. Only reading POWER clears it; the value that is read there is not used. The other types'
    ready flags are cleared by what would be read anyway.
    """
    if settings.chip != "INA219" or settings.cycle_ns * CYCLES * 2 > CYCLES_LIMIT_NS:
        return 1.0
    clear, look = bus.prepare([Read(address, 3)]), bus.prepare([Read(address, 2)])  # POWER, BUS
    timed_ns = cycles = 0
    last_ns: int | None = None
    deadline_ns = clock.now_ns() + CYCLES_LIMIT_NS
    clear()
    while cycles < CYCLES and (start_ns := clock.now_ns()) < deadline_ns:
        is_converted = bytes(look())[1] & CNVR
        now_ns = clock.now_ns()
        if (now_ns - start_ns) * LOOKS_A_CYCLE > settings.cycle_ns:
            last_ns = None  # the process was held up: cycles may have gone by unseen
        elif not is_converted:
            continue
        else:
            if last_ns is not None:
                timed_ns, cycles = timed_ns + now_ns - last_ns, cycles + 1
            last_ns = now_ns
        clear()
        if clock.now_ns() - now_ns > settings.cycle_ns // LOOKS_A_CYCLE:
            last_ns = None
    ratio = timed_ns / max(cycles, 1) / settings.cycle_ns
    return 1.0 if cycles < CYCLES // 2 or abs(ratio - 1) > 1.2 * settings.type.clock_tolerance else ratio


class PreparedRead:
    """One call that reads some lines of a bank, with or without their bus voltages."""

    def __init__(
        self,
        bus: RegisterBus,
        bank: Bank,
        lines: Sequence[int],
        *,
        with_bus: bool,
        scl_hz: float,
        combined: bool,
        timed_by: Clock | None,
    ) -> None:
        self.lines, self.with_bus = tuple(lines), with_bus
        reads = reads_of(bank, lines, with_bus=with_bus)
        self.spans_ns: dict[int, tuple[int, int]] = {}
        """When each line's SHUNT read began and ended in the last call, where reads are timed."""
        self.call = bus.prepare(reads) if combined else singly(bus, reads)
        if timed_by is not None:
            self.call = self._timed([bus.prepare([read]) for read in reads], timed_by)
        self.nominal_ns = scan_periods(reads, combined=combined) * 1e9 / scl_hz
        """How long the transfers take by the bus clock."""
        self.middles_ns: dict[int, float] = {}
        """The middle of each line's SHUNT transfer from the call's beginning, by the bus clock."""
        line_of_read = iter([i for i in self.lines for _ in range(2 if with_bus else 1)])
        periods = 0.0
        for transaction in split(reads) if combined else [[r] for r in reads]:
            for read in transaction:
                # SHUNT comes last of a line's reads, so its middle is what stays.
                self.middles_ns[next(line_of_read)] = (periods + read.periods / 2) * 1e9 / scl_hz
                periods += read.periods
            periods += 1 + BUS_FREE_PERIODS

    def _timed(self, calls: Sequence[ReadWords], clock: Clock) -> ReadWords:
        """The same calls one by one, each with the moments of its beginning and its end."""

        def call() -> bytes:
            words = []
            for k, read in enumerate(calls):
                begin_ns = clock.now_ns()
                words.append(bytes(read()))
                # SHUNT comes last of a line's reads, so its span is what stays.
                self.spans_ns[self.lines[k * len(self.lines) // len(calls)]] = begin_ns, clock.now_ns()
            return b"".join(words)

        return call


class Transfer(NamedTuple):
    """A call of a prepared read that worked, the time until its end was noticed, and `PreparedRead.spans_ns` of it."""

    read: PreparedRead
    began_ns: int
    elapsed_ns: int
    spans_ns: Mapping[int, tuple[int, int]]


@dataclass(slots=True)
class Row:
    """One scan that waits to be confirmed: its registers, its lines' flags, and the transfers that worked."""

    start_ns: int
    end_ns: int
    words: bytearray
    flags: list[int]
    transfers: list[Transfer]
    with_bus: bool = True
    bus_age: int = 0


class Times(NamedTuple):
    """When the lines of a row were read."""

    offsets_ns: list[int]
    """From the row's start."""
    late_ns: list[float]
    """Beyond an ordinary scan of all chips."""


@dataclass(slots=True)
class Counts:
    """How often something failed or was recovered since the bus was opened, as in docs/reference/protocol.md."""

    failed_scans: int = 0
    failed_reads: int = 0
    late_reads: int = 0
    missing_scans: int = 0
    lost_settings: int = 0
    given_up: int = 0
    set_up_again: int = 0


class Scanner:
    """Reads a bank into the columns ``shunt``, ``bus`` and, where bus voltages are not read in every scan, ``bus_age``.

    ``scl_hz`` is the bus clock and ``period_ns`` the intended distance of scans. With ``bus_every`` = k > 1, BUS is
    read in every k-th scan only and the others read SHUNT where the pointer was left; ``bus_age`` counts the scans
    since, below k for every good reading. With ``read_ns`` the adapter takes up to so long for a register, and each is
    read and timed by itself.
    """

    def __init__(
        self,
        bus: RegisterBus,
        clock: Clock,
        bank: Bank,
        *,
        scl_hz: float,
        period_ns: int,
        bus_every: int = 1,
        read_ns: int = 0,
    ) -> None:
        self._read_ns = read_ns
        self._bus, self._clock, self._bank, self._scl_hz = bus, clock, bank, scl_hz
        self._period_ns, self._bus_every = period_ns, bus_every
        self._decoder = Decoder(bank.settings)
        self.typecodes = self._decoder.typecodes
        lines_at: dict[int, list[int]] = {}
        for i, sensor in enumerate(bank.sensors):
            lines_at.setdefault(sensor.address, []).append(i)
        self._chips = {a: Chip(bus, clock, a, bank.settings[lines[0]], lines) for a, lines in lines_at.items()}
        self._chip_of = [self._chips[sensor.address] for sensor in bank.sensors]
        self.counts = Counts()
        self.troubles: dict[int, str] = {}
        """Addresses that are left out, and why."""
        self.combined = not read_ns
        """Whether the adapter takes several reads in one transaction; known once open."""
        self._active: list[Chip] = []
        self._rows: list[Row] = []
        self._given = 0
        """Scans that were given out; scans have numbers that count up for ever."""
        self._words = bytearray(self._decoder.row_bytes)
        """Those of the last scan."""
        self._until_bus = self._until_check = 0
        """Scans until BUS is read again, and until the next check of a chip."""
        self._checks = self._last_ns = self._probe_ns = self._settled_ns = 0
        self._slowness = MOST_SLOW
        """How much longer than the bus clock says the fastest transfer so far took. The mean would follow the load of
        the machine: a call's end is noticed late by however long the process took to wake up."""
        self._ordinary: dict[PreparedRead, Times] = {}
        """Times of rows that are one transfer, at this speed."""
        self._fresh_ns = [-_NEVER] * len(bank.sensors)
        self._cycles_ns = [s.longest_cycle_ns for s in bank.settings]
        self._centres_ns = [accuracy(sensor, settings, period_ns=period_ns).centre_ns for sensor, settings in bank]
        self._least_centre_ns = min(self._centres_ns)

    def open(self) -> tuple[int, ...]:
        """Set up all chips, find out what the adapter can do, and wait for the first conversion.

        Returns the addresses that are left out for now. Raises `SensorError` when there is no chip at all.
        """
        for chip in self._chips.values():
            if trouble := chip.set_up_at_opening():
                self.troubles[chip.address] = trouble
        if len(self.troubles) == len(self._chips):
            troubles = (f"{address:#04x} {trouble}" for address, trouble in self.troubles.items())
            raise SensorError(f"{'; '.join(troubles)}: check the bus number, the wiring and the supply")
        self._probe_ns = self._clock.now_ns() + PROBE_NS
        self._prepare()
        self.combined &= self._can_combine()
        for chip in self._active:
            # A chip that fails now is flagged by the first scan that meets it.
            with suppress(OSError):
                chip.cycle_ratio = cycle_ratio(self._bus, self._clock, chip.address, chip.settings)
        self._prepare()
        every = range(len(self._chip_of))
        self._usual_ns = [list(self._prepared(every, with_bus=b).middles_ns.values()) for b in (False, True)]
        self._ages_ns = [
            round(settings.age_ns(sensor.channel) * chip.cycle_ratio)
            for (sensor, settings), chip in zip(self._bank, self._chip_of, strict=True)
        ]
        with suppress(OSError):
            for _ in range(SPEED_CALLS):
                self._transfer(self._full, self._clock.now_ns())
        self._clock.sleep_until(self._clock.now_ns() + 2 * self._bank.longest_cycle_ns)
        self._last_ns = self._start_ns = self._clock.now_ns()
        self._times = Times([-age_ns for age_ns in self._ages_ns], [0.0 for _ in every])
        self._until_check = self._check_every
        return tuple(self.troubles)

    def _can_combine(self) -> bool:
        """Whether the adapter takes the reads of a scan in one transaction. Raises `SensorError`."""
        failure: OSError | None = None
        for _ in range(GIVE_UP_AFTER):
            try:
                self._full.call()
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    return False
                failure = error
                self._clock.sleep_until(self._clock.now_ns() + BETWEEN_ATTEMPTS_NS)
            else:
                return True
        assert failure is not None
        raise SensorError(f"the bus failed while it was opened: {failure.strerror or failure}") from failure

    def scan(self) -> None:
        """Read all lines once. Raises `SensorError` when not one chip answers any more."""
        start_ns = self._clock.now_ns()
        if start_ns - self._last_ns > LATE * self._period_ns:
            self._until_bus = 0
        self._last_ns = start_ns
        read = self._shunts if self._until_bus > 0 else self._full
        try:
            words, transfer = self._transfer(read, start_ns)
        except OSError:
            self._scan_singly(start_ns)
        else:
            # Bus codes that are not read are those of the scan before.
            row = self._add(start_ns, bytearray(len(self._words)) if read.with_bus else self._words.copy())
            row.end_ns, row.with_bus = start_ns + transfer.elapsed_ns, read.with_bus
            row.transfers.append(transfer)
            row.bus_age = 0 if read.with_bus else self._bus_every - self._until_bus
            self._fill(row, read, words)
            for address in self.troubles:
                _flag(row, self._chips[address].lines, Flag.IO_ERROR)
            self._words = row.words
            self._until_bus = self._bus_every - 1 if read.with_bus else self._until_bus - 1
        if start_ns < self._settled_ns:
            # A bus code without a conversion behind it must not be held.
            self._until_bus = 0
            for chip in self._active:
                if start_ns < chip.settled_ns:
                    _flag(self._rows[-1], chip.lines, Flag.RESET)
        self._until_check -= 1
        # A check moves the pointer, so it waits until the bus voltages' turn comes.
        if self._until_check <= 0 and self._until_bus <= 0:
            self._until_check = self._check_every if self._check_next() else 0

    def take(self, builder: BlockBuilder) -> None:
        """Append what is confirmed for all chips to ``builder``."""
        count = min((chip.confirmed for chip in self._active), default=self._total) - self._given
        if count <= 0:
            return
        rows, self._rows = self._rows[:count], self._rows[count:]
        self._given += count
        rows, offsets_ns = self._timed(rows)
        flags, starts_ns = array("H"), [row.start_ns for row in rows]
        for row in rows:
            flags.extend(row.flags)
        shunt, bus = self._decoder.codes(b"".join([row.words for row in rows]))
        self._decoder.flag(flags, shunt, bus)
        flag_stale(flags, starts_ns, offsets_ns, self._fresh_ns, self._cycles_ns)
        builder.t_ns.extend(starts_ns)
        builder.dt_ns.extend(offsets_ns)
        builder.flags.extend(flags)
        builder.columns[0].extend(shunt)
        builder.columns[1].extend(bus)
        if self._bus_every > 1:
            for row in rows:
                builder.columns[2].extend([row.bus_age] * len(row.flags))

    def finish(self, builder: BlockBuilder) -> None:
        """Confirm or flag everything and append it: the last call before the bus is let go."""
        for chip in list(self._active):
            if not self._check(chip):
                self._deny(chip, Flag.IO_ERROR)
        self._until_bus = 0
        self.take(builder)

    @property
    def _total(self) -> int:
        """Number of the next scan."""
        return self._given + len(self._rows)

    def _prepare(self) -> None:
        """Prepare the reads of the chips that answer. After checks and set-ups the pointers may stand anywhere, so the
        next scan has to set them."""
        self._until_bus = 0
        active = [chip for chip in self._chips.values() if chip.address not in self.troubles]
        lines = sorted(i for chip in active for i in chip.lines)
        self._active = active
        self._ordinary.clear()
        self._full, self._shunts = self._prepared(lines), self._prepared(lines, with_bus=False)
        self._singles = {chip.address: self._prepared(chip.lines) for chip in active}
        self._check_every = max(1, round(VERIFY_NS / self._period_ns / max(1, len(active))))

    def _prepared(self, lines: Sequence[int], *, with_bus: bool = True) -> PreparedRead:
        return PreparedRead(
            self._bus,
            self._bank,
            lines,
            with_bus=with_bus,
            scl_hz=self._scl_hz,
            combined=self.combined,
            timed_by=self._clock if self._read_ns else None,
        )

    def _transfer(self, read: PreparedRead, began_ns: int) -> tuple[bytes | bytearray | memoryview, Transfer]:
        words = read.call()
        elapsed_ns = self._clock.now_ns() - began_ns
        if self._slowness > 1 and elapsed_ns < read.nominal_ns * self._slowness:
            self._slowness = max(1.0, elapsed_ns / read.nominal_ns)
            self._ordinary.clear()
        return words, Transfer(read, began_ns, elapsed_ns, dict(read.spans_ns))

    def _add(self, start_ns: int, words: bytearray) -> Row:
        self._rows.append(Row(start_ns, start_ns, words, [0] * len(self._chip_of), []))
        return self._rows[-1]

    def _timed(self, rows: Iterable[Row]) -> tuple[list[Row], array[int]]:
        """Rows, with others in place of the scans that should have been, and each line's time from its row's start.

        By now the speed of the bus is known better than when they were read.
        """
        timed: list[Row] = []
        offsets_ns = array("i")
        for row in rows:
            times, since_ns = self._times_of(row), row.start_ns - self._start_ns
            if times is not self._times or not 0 < since_ns <= LATE * self._period_ns:
                before = zip(times.offsets_ns, self._times.offsets_ns, strict=True)
                steps_ns = [since_ns + offset_ns - last_ns for offset_ns, last_ns in before]
                if min(steps_ns) <= 0:  # a bus that is faster than its clock says, or a clock that goes back
                    self.counts.missing_scans += 1
                    continue
                later_ns = since_ns + max(map(sub, times.late_ns, self._times.late_ns))
                missing = round(later_ns / self._period_ns) - 1 if later_ns > LATE * self._period_ns else 0
                self.counts.missing_scans += missing
                parts = min(missing, MOST_MISSING, min(steps_ns) - 1) + 1
                for k in range(1, parts):
                    shift_ns = k * since_ns // parts
                    flags = [int(Flag.MISSING)] * len(row.flags)
                    timed.append(Row(self._start_ns + shift_ns, 0, bytearray(len(row.words)), flags, []))
                    before = zip(self._times.offsets_ns, steps_ns, strict=True)
                    offsets_ns.extend(last_ns + k * step_ns // parts - shift_ns for last_ns, step_ns in before)
            self._start_ns, self._times = row.start_ns, times
            timed.append(row)
            offsets_ns.extend(times.offsets_ns)
        return timed, offsets_ns

    def _times_of(self, row: Row) -> Times:
        """When the lines of a row were read. Those whose transfer came too late are flagged."""
        if self._read_ns:
            return self._timed_singly(row)
        for read, _, elapsed_ns, _ in row.transfers:
            # Nobody knows whether it began late or its end was noticed late: beyond what a line says of its times,
            # there is no reading of this moment.
            excess_ns = elapsed_ns - read.nominal_ns * self._slowness
            if excess_ns > self._least_centre_ns:
                self.counts.late_reads += 1
                _flag(row, [i for i in read.lines if excess_ns > self._centres_ns[i]], Flag.MISSING)
        if len(row.transfers) != 1 or row.transfers[0].began_ns != row.start_ns:
            begins_ns = [(t.read, t.began_ns - row.start_ns) for t in row.transfers]
            return self._times_from(begins_ns, row.end_ns - row.start_ns, with_bus=row.with_bus)
        read = row.transfers[0].read
        if read not in self._ordinary:
            whole_ns = read.nominal_ns * self._slowness
            self._ordinary[read] = self._times_from([(read, 0)], whole_ns, with_bus=read.with_bus)
        return self._ordinary[read]

    def _timed_singly(self, row: Row) -> Times:
        """When the lines of a row were read, each by its own transfer, and flags for those that took too long."""
        # A line that was not read has the time at which it would have been.
        whole_ns, usual_ns = row.end_ns - row.start_ns, self._usual_ns[row.with_bus]
        middles_ns = [min(round(u), whole_ns) for u in usual_ns]
        for transfer in row.transfers:
            for i, (begin_ns, end_ns) in transfer.spans_ns.items():
                middles_ns[i] = (begin_ns + end_ns) // 2 - row.start_ns
                if end_ns - begin_ns > self._read_ns:
                    self.counts.late_reads += 1
                    _flag(row, [i], Flag.MISSING)
        offsets_ns = [middle_ns - age_ns for middle_ns, age_ns in zip(middles_ns, self._ages_ns, strict=True)]
        return Times(offsets_ns, list(map(sub, middles_ns, usual_ns)))

    def _times_from(self, transfers: Iterable[tuple[PreparedRead, int]], whole_ns: float, *, with_bus: bool) -> Times:
        """Times of lines from the beginnings of their transfers, in a scan that lasted ``whole_ns``."""
        usual_ns = [middle_ns * self._slowness for middle_ns in self._usual_ns[with_bus]]
        middles_ns = {
            i: began_ns + middle_ns * self._slowness
            for read, began_ns in transfers
            for i, middle_ns in read.middles_ns.items()
        }
        # A line that was not read has the time at which it would have been, in a scan that was as late as this one.
        late_ns = max([0.0, *(middle_ns - usual_ns[i] for i, middle_ns in middles_ns.items())])
        every_ns = [middles_ns.get(i, min(late_ns + usual, whole_ns)) for i, usual in enumerate(usual_ns)]
        return Times(
            [round(middle_ns) - age_ns for middle_ns, age_ns in zip(every_ns, self._ages_ns, strict=True)],
            list(map(sub, every_ns, usual_ns)),
        )

    def _fill(self, row: Row, read: PreparedRead, words: bytes | bytearray | memoryview) -> None:
        """Put what was read at its place in a row."""
        if len(words) == len(row.words):
            row.words[:] = words
            return
        at = 0
        for line in read.lines:
            width = self._decoder.settings[line].type.code_bytes
            begin, end = self._decoder.begins[line], self._decoder.begins[line] + 2 * width
            begin += 0 if read.with_bus else width
            row.words[begin:end] = words[at : at + end - begin]
            at += end - begin

    def _scan_singly(self, start_ns: int) -> None:
        """A scan after a failed one: each chip in a transfer of its own. What was failing is dealt with."""
        self.counts.failed_scans += 1
        row = self._add(start_ns, bytearray(len(self._words)))
        row.flags = [int(Flag.IO_ERROR)] * len(row.flags)
        for chip in self._active:
            try:
                words, transfer = self._transfer(self._singles[chip.address], self._clock.now_ns())
            except OSError:
                self._failed(chip)
                continue
            chip.failures = 0
            self._fill(row, transfer.read, words)
            row.transfers.append(transfer)
            for i in chip.lines:
                row.flags[i] = 0
        row.end_ns = self._clock.now_ns()
        self._words = row.words
        failed = [chip for chip in self._active if chip.failures >= GIVE_UP_AFTER]
        if len(failed) == len(self._active):
            for chip in failed:
                self._deny(chip, Flag.IO_ERROR)
            raise SensorError("no chip answers any more: check the bus and the supply")
        for chip in failed:
            self._set_up_again(chip)
        self._until_bus = 0

    def _failed(self, chip: Chip) -> None:
        self.counts.failed_reads += 1
        chip.failures += 1

    def _check_next(self) -> bool:
        """Check the chip whose turn it is, or try one that is left out. False: the same one again soon."""
        self._until_bus = 0
        if self.troubles and self._clock.now_ns() >= self._probe_ns:
            self._probe()
        elif self._active and not self._check(self._active[self._checks % len(self._active)]):
            return False
        self._checks += 1
        return True

    def _check(self, chip: Chip) -> bool:
        """Read a chip's configuration back, and confirm what was read from it or flag it. False: try again soon."""
        try:
            is_as_set = chip.is_as_set()
        except OSError:
            self._failed(chip)
            if chip.failures >= GIVE_UP_AFTER:
                self._set_up_again(chip)
            return False
        if is_as_set:
            chip.confirmed = self._total
        else:
            self.counts.lost_settings += 1
            self._set_up_again(chip)
        return True

    def _deny(self, chip: Chip, flag: Flag) -> None:
        """What was read from a chip since it was last confirmed cannot be trusted."""
        for row in self._rows[max(0, chip.confirmed - self._given) :]:
            _flag(row, chip.lines, flag)
        chip.confirmed = self._total

    def _set_up_again(self, chip: Chip) -> None:
        """Set up a chip that fell silent or forgot its settings; leave it out when that fails."""
        fell_silent, chip.failures = chip.failures > 0, 0
        if fell_silent:
            with suppress(OSError):
                if chip.is_as_set():
                    chip.confirmed = self._total
                    return
        self._deny(chip, Flag.IO_ERROR if fell_silent else Flag.RESET)
        if trouble := chip.set_up():
            self.troubles[chip.address] = trouble
            self.counts.given_up += 1
            self._probe_ns = self._clock.now_ns() + PROBE_NS
            self._prepare()
        else:
            self._settle(chip)

    def _probe(self) -> None:
        """Try one chip that is left out; each has its turn about once a second."""
        self._probe_ns = self._clock.now_ns() + PROBE_NS // len(self.troubles)
        chip = self._chips[next(iter(self.troubles))]
        del self.troubles[chip.address]
        if trouble := chip.set_up():
            self.troubles[chip.address] = trouble  # to the end of the queue
        else:
            chip.confirmed = self._total
            self._settle(chip)
            self._prepare()

    def _settle(self, chip: Chip) -> None:
        self.counts.set_up_again += 1
        chip.settled_ns = self._clock.now_ns() + chip.settings.longest_cycle_ns
        self._settled_ns = max(self._settled_ns, chip.settled_ns)


def _flag(row: Row, lines: Iterable[int], flag: Flag) -> None:
    for i in lines:
        row.flags[i] |= flag
