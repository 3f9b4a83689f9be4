"""What is done for chips that fail, forget their settings or are left out, so that they are read rightly again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from powerd_core.model import Flag
from powerd_daemon.clock import Clock
from powerd_daemon.ina.chip import Chip
from powerd_daemon.ina.scanlog import ScanLog

GIVE_UP_AFTER = 3
"""Failures in a row after which a chip is set up again, or left out."""
PROBE_NS = 1_000_000_000


@dataclass(slots=True)
class Counts:
    """How often something went wrong or was mended since the bus was opened."""

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


class Keeper:
    """The chips of a bank, by index. What it finds wrong with readings goes into ``log``.

    After any of its calls ``active`` may have changed: the reads have to be planned anew then. Checks and set-ups move
    the chips' register pointers.
    """

    def __init__(self, chips: Sequence[Chip], clock: Clock, log: ScanLog, counts: Counts) -> None:
        self.chips = tuple(chips)
        self.troubles: dict[int, str] = {}
        """Addresses that are left out, and why."""
        self.active = list(range(len(self.chips)))
        """The chips that are to be read."""
        self._clock, self._log, self._counts = clock, log, counts
        self._failures = [0] * len(self.chips)
        self._settled_ns: dict[int, int] = {}
        self._next_check = 0
        self._probe_ns = 0

    @property
    def is_settling(self) -> bool:
        """Whether some chip may not have converted anything since it was set up again."""
        return bool(self._settled_ns)

    def set_up(self) -> None:
        """Set up all chips; those that cannot be are left out for now."""
        for chip in self.chips:
            if trouble := chip.set_up():
                self.troubles[chip.address] = trouble
        self._select()
        self._probe_ns = self._clock.now_ns() + PROBE_NS

    def succeeded(self, c: int) -> None:
        """A chip was read by itself."""
        self._failures[c] = 0

    def failed(self, c: int) -> None:
        """A transfer with a chip failed, and it was surely this chip's."""
        self._counts.failed_reads += 1
        self._failures[c] += 1

    def mend_failed(self) -> bool:
        """Set up the chips again that failed too often. False when these are all there are: the bus is lost."""
        active = self.active
        failed = [c for c in active if self._failures[c] >= GIVE_UP_AFTER]
        if len(failed) == len(active):
            for c in failed:
                self._log.give_up(c)
            return False
        for c in failed:
            self._set_up_again(c)
        return True

    def check_next(self) -> bool:
        """Check the chip whose turn it is, or try one that is left out. False: the same one again soon."""
        self._next_check += 1
        active = self.active
        if self.troubles and self._clock.now_ns() >= self._probe_ns:
            self._probe()
        elif active and not self._check(active[self._next_check % len(active)]):
            self._next_check -= 1
            return False
        return True

    def check_all(self) -> None:
        """Confirm what was read from each chip, or flag it: nothing is read after this."""
        for c in self.active:
            if not self._check(c):
                self._log.deny(c, Flag.IO_ERROR)

    def flag_unsettled(self, start_ns: int) -> None:
        """Flag what a scan that began at ``start_ns`` read from chips without a conversion behind it."""
        for c, settled_ns in list(self._settled_ns.items()):
            if start_ns >= settled_ns:
                del self._settled_ns[c]
            else:
                self._log.flag_last(c, Flag.RESET)

    def _check(self, c: int) -> bool:
        """Read one chip's configuration back, and confirm what was read from it or flag it. False: try again soon."""
        try:
            is_as_set = self.chips[c].is_as_set()
        except OSError:
            self.failed(c)
            if self._failures[c] >= GIVE_UP_AFTER:
                self._set_up_again(c)
            return False
        if is_as_set:
            self._log.confirm(c)
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
                    self._log.confirm(c)
                    return
        self._log.deny(c, Flag.IO_ERROR if fell_silent else Flag.RESET)
        if trouble := chip.set_up():
            self.troubles[chip.address] = trouble
            self._select()
            self._counts.given_up += 1
            self._probe_ns = self._clock.now_ns() + PROBE_NS
            return
        self._mended(c)

    def _probe(self) -> None:
        """Try one chip that is left out; each has its turn about once a second."""
        self._probe_ns = self._clock.now_ns() + PROBE_NS // len(self.troubles)
        address = next(iter(self.troubles))
        c = next(i for i, chip in enumerate(self.chips) if chip.address == address)
        trouble = self.chips[c].set_up()
        del self.troubles[address]
        if trouble:
            # To the end of the queue.
            self.troubles[address] = trouble
            return
        self._select()
        self._mended(c)

    def _select(self) -> None:
        self.active = [c for c, chip in enumerate(self.chips) if chip.address not in self.troubles]

    def _mended(self, c: int) -> None:
        self._counts.set_up_again += 1
        self._settled_ns[c] = self._clock.now_ns() + self.chips[c].settings.longest_cycle_ns
