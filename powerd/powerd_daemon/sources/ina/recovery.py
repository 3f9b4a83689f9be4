"""Single chips that fail, forget their settings or are left out, and how they are recovered so as to be read rightly.

A reading counts when its chip's configuration was read back *after* it, so each chip is checked about ten times a
second. One that fails three times in a row, or lost its settings, is set up again; where that fails it is left out and
tried again about once a second. The others go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from powerd_core.model import Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.ina.bus import Read, RegisterBus, singly
from powerd_daemon.sources.ina.chips import CNVR, CONFIG, RST, Settings
from powerd_daemon.sources.ina.scans import PendingScans

RESET_NS = 400_000
"""After a software reset, the slowest type (INA228) needs 300 us."""
GIVE_UP_AFTER = 3
"""Failures in a row after which a chip is set up again, or left out."""
PROBE_NS = 1_000_000_000
CYCLES = 32
"""How many conversion cycles are timed; their ends are told to a look or two, so the mean is good to about half a per
cent."""
LIMIT_NS = 150_000_000
"""Time after which a chip is taken at its nominal cycle."""
_BUS, _POWER = 2, 3
_LOOKS_A_CYCLE = 3
"""A cycle must have room for this many looks, or its end cannot be told from the next one's."""


class Chip:
    """A chip by its address and what it is to be. All transfers are single: chips come and go one by one."""

    def __init__(self, bus: RegisterBus, clock: Clock, address: int, settings: Settings) -> None:
        self.address = address
        self.settings = settings
        self._bus, self._clock = bus, clock
        self._config = bus.prepare([Read(address, CONFIG)])
        self._identity = [(bus.prepare([Read(address, r)]), value, mask) for r, value, mask in settings.type.identity]
        self._read_back = singly(bus, [Read(address, register) for register, _ in settings.words])
        self._expected = b"".join(word.to_bytes(2, "big") for _, word in settings.words)

    def set_up(self) -> str:
        """Reset, identify and configure the chip. Returns what is wrong, or nothing; a failed transfer is wrong too."""
        kind = self.settings.type
        try:
            self._bus.write_word(self.address, CONFIG, RST)
            self._clock.sleep_until(self._clock.now_ns() + RESET_NS)
            if (config := int.from_bytes(self._config())) != kind.resets[CONFIG]:
                return f"is no {kind.name}: CONFIG is {config:#06x} after a reset, not {kind.resets[CONFIG]:#06x}"
            for read, value, mask in self._identity:
                if (word := int.from_bytes(read())) & mask != value & mask:
                    return f"is no {kind.name}: it identifies itself as {word:#06x}, not {value:#06x}"
            for register, word in self.settings.words:
                self._bus.write_word(self.address, register, word)
            if not self.is_as_set():
                return "does not keep its configuration: check its supply"
        except OSError as error:
            return f"does not answer ({error.strerror or error})"
        return ""

    def is_as_set(self) -> bool:
        """Whether its configuration reads back as written. Raises `OSError` when the transfer fails."""
        return bytes(self._read_back()) == self._expected


def cycle_ratio(bus: RegisterBus, clock: Clock, address: int, settings: Settings) -> float:
    """An INA219's conversion cycle over the nominal one, or 1.0 where it cannot be measured. Raises `OSError`.

    Its clock may be 10 % off, which shifts the middle of its window. A shift of 0.1 ms is no error of a steady power,
    but at the edge of a phase it moves joules to the wrong side: 0.1 ms of the step, at every edge, the same way. CNVR
    tells when a cycle ends. Only reading POWER clears it; the value that is read there is not used. The other types'
    ready flags are cleared by what would be read anyway.
    """
    if settings.chip != "INA219" or settings.cycle_ns * CYCLES * 2 > LIMIT_NS:
        return 1.0
    clear, look = (bus.prepare([Read(address, register)]) for register in (_POWER, _BUS))
    timed_ns = cycles = 0
    last_ns: int | None = None
    deadline_ns = clock.now_ns() + LIMIT_NS
    clear()
    while cycles < CYCLES and (start_ns := clock.now_ns()) < deadline_ns:
        is_converted = bytes(look())[1] & CNVR
        now_ns = clock.now_ns()
        if (now_ns - start_ns) * _LOOKS_A_CYCLE > settings.cycle_ns:
            last_ns = None  # the process was held up: cycles may have gone by unseen
        elif not is_converted:
            continue
        else:
            if last_ns is not None:
                timed_ns, cycles = timed_ns + now_ns - last_ns, cycles + 1
            last_ns = now_ns
        clear()
        if clock.now_ns() - now_ns > settings.cycle_ns // _LOOKS_A_CYCLE:
            last_ns = None
    ratio = timed_ns / max(cycles, 1) / settings.cycle_ns
    return 1.0 if cycles < CYCLES // 2 or abs(ratio - 1) > 1.2 * settings.type.clock_tolerance else ratio


@dataclass(slots=True)
class Counts:
    """How often something failed or was recovered since the bus was opened."""

    failed_scans: int = 0
    """Scans whose combined read failed, so that each chip was read once more."""
    failed_reads: int = 0
    """Reads of single chips that failed, those of their settings included."""
    late_reads: int = 0
    """Transfers that took so much longer than usual that the moment of some reading is not known."""
    missing_scans: int = 0
    """Scans that were due and did not take place."""
    lost_settings: int = 0
    """How often a chip was found without its settings."""
    given_up: int = 0
    """How often a chip was left out, to be tried about once a second."""
    set_up_again: int = 0


class Recovery:
    """The chips of a bank, by index. What is found wrong with readings goes into ``scans``.

    After any call ``active`` may have changed: the reads have to be prepared anew then. Checks and set-ups move the
    chips' register pointers.
    """

    def __init__(self, chips: Sequence[Chip], clock: Clock, scans: PendingScans, counts: Counts) -> None:
        self.chips = tuple(chips)
        self.troubles: dict[int, str] = {}
        """Addresses that are left out, and why."""
        self._clock, self._scans, self._counts = clock, scans, counts
        self._failures = [0] * len(self.chips)
        self.settled_ns: dict[int, int] = {}
        """When each chip that was set up again will have converted something."""
        self._next_check = 0
        self._probe_ns = 0

    @property
    def active(self) -> list[int]:
        """The chips that are to be read."""
        return [c for c, chip in enumerate(self.chips) if chip.address not in self.troubles]

    def set_up(self) -> None:
        """Set up all chips; those that cannot be are left out for now."""
        for chip in self.chips:
            if trouble := chip.set_up():
                self.troubles[chip.address] = trouble
        self._probe_ns = self._clock.now_ns() + PROBE_NS

    def was_read(self, c: int, is_good: bool) -> None:
        """A transfer with one chip alone succeeded or failed."""
        self._counts.failed_reads += not is_good
        self._failures[c] = 0 if is_good else self._failures[c] + 1

    def recover_failed(self) -> bool:
        """Set up the chips again that failed too often. False when these are all there are: the bus is lost."""
        active = self.active
        failed = [c for c in active if self._failures[c] >= GIVE_UP_AFTER]
        is_lost = len(failed) == len(active)
        for c in failed:
            if is_lost:
                self._scans.deny(c, Flag.IO_ERROR)
            else:
                self._set_up_again(c)
        return not is_lost

    def check_next(self) -> bool:
        """Check the chip whose turn it is, or try one that is left out. False: the same one again soon."""
        self._next_check += 1
        if self.troubles and self._clock.now_ns() >= self._probe_ns:
            self._probe()
        elif (active := self.active) and not self._check(active[self._next_check % len(active)]):
            self._next_check -= 1
            return False
        return True

    def check_all(self) -> None:
        """Confirm what was read from each chip, or flag it: nothing is read after this."""
        for c in self.active:
            if not self._check(c):
                self._scans.deny(c, Flag.IO_ERROR)

    def flag_unsettled(self, start_ns: int, lines_of: Sequence[Sequence[int]]) -> None:
        """Flag what a scan that began at ``start_ns`` read from chips without a conversion behind it."""
        for c, settled_ns in list(self.settled_ns.items()):
            if start_ns >= settled_ns:
                del self.settled_ns[c]
            else:
                self._scans.flag_last(lines_of[c], Flag.RESET)

    def _check(self, c: int) -> bool:
        """Read one chip's configuration back, and confirm what was read from it or flag it. False: try again soon."""
        try:
            is_as_set = self.chips[c].is_as_set()
        except OSError:
            self.was_read(c, False)
            if self._failures[c] >= GIVE_UP_AFTER:
                self._set_up_again(c)
            return False
        if is_as_set:
            self._scans.confirm(c)
        else:
            self._counts.lost_settings += 1
            self._set_up_again(c)
        return True

    def _set_up_again(self, c: int) -> None:
        """Set up a chip that fell silent or forgot its settings; leave it out when that fails."""
        chip = self.chips[c]
        fell_silent, self._failures[c] = self._failures[c] > 0, 0
        if fell_silent:
            with suppress(OSError):
                if chip.is_as_set():
                    self._scans.confirm(c)
                    return
        self._scans.deny(c, Flag.IO_ERROR if fell_silent else Flag.RESET)
        if trouble := chip.set_up():
            self.troubles[chip.address] = trouble
            self._counts.given_up += 1
            self._probe_ns = self._clock.now_ns() + PROBE_NS
        else:
            self._settle(c)

    def _probe(self) -> None:
        """Try one chip that is left out; each has its turn about once a second."""
        self._probe_ns = self._clock.now_ns() + PROBE_NS // len(self.troubles)
        address = next(iter(self.troubles))
        c = next(i for i, chip in enumerate(self.chips) if chip.address == address)
        trouble = self.chips[c].set_up()
        del self.troubles[address]
        if trouble:
            self.troubles[address] = trouble  # to the end of the queue
        else:
            self._settle(c)

    def _settle(self, c: int) -> None:
        self._counts.set_up_again += 1
        self.settled_ns[c] = self._clock.now_ns() + self.chips[c].settings.longest_cycle_ns
