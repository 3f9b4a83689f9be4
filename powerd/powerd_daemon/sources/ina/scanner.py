"""Scans of a bank of INA chips: every line's shunt and bus registers, in one combined transaction where that works.

A scan only appends what came over the bus; `Scanner.take` decodes many at once. A reading is given out when its chip's
configuration was read back *after* it (`powerd_daemon.sources.ina.recovery`). What is flagged:

- ``IO_ERROR``: the transfer failed, or nothing confirmed the chip's configuration any more.
- ``RESET``: the configuration was not what was written, or nothing was converted since a reset or set-up.
- ``STALE``: less than the chip's longest conversion cycle has passed since its last reading that was not stale, so
  an unflagged reading is certain to have a conversion of its own behind it.
- ``MISSING``: no scan took place when one was due, or a transfer took longer than usual by more than the line's
  ``centre_ns``, so that its moment is not known.
- ``SATURATED``, ``OVERFLOW``: from the codes, see `powerd_daemon.sources.ina.scans.Decoder`.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress

from powerd_core.errors import SensorError
from powerd_core.model import BlockBuilder, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.ina.bus import RegisterBus
from powerd_daemon.sources.ina.recovery import Chip, Counts, Recovery, cycle_ratio
from powerd_daemon.sources.ina.scans import Decoder, PendingScans, PreparedRead
from powerd_daemon.sources.ina.sensor import Bank, accuracy

VERIFY_NS = 100_000_000
"""How often each chip's configuration is read back."""
LATE = 1.75
"""Scans this many periods apart have one missing between them."""


class Scanner:
    """Reads a bank into the columns ``shunt``, ``bus`` and, where bus voltages are not read in every scan, ``bus_age``.

    ``scl_hz`` is the bus clock and ``period_ns`` the intended distance of scans. With ``bus_every`` = k > 1, BUS is
    read in every k-th scan only and the others read SHUNT where the pointer was left; ``bus_age`` counts the scans
    since, below k for every good reading.
    """

    def __init__(
        self, bus: RegisterBus, clock: Clock, bank: Bank, *, scl_hz: float, period_ns: int, bus_every: int = 1
    ) -> None:
        self._bus, self._clock, self._bank, self._scl_hz = bus, clock, bank, scl_hz
        self._period_ns, self._bus_every = period_ns, bus_every
        settings_at = {sensor.address: settings for sensor, settings in bank}
        self._lines_of = [[i for i, s in enumerate(bank.sensors) if s.address == a] for a in settings_at]
        decoder = Decoder(bank.settings)
        self.typecodes = decoder.typecodes
        self._scans = PendingScans(bank, decoder, self._lines_of, with_age=bus_every > 1)
        self.counts = Counts()
        chips = [Chip(bus, clock, address, settings) for address, settings in settings_at.items()]
        self._recovery = Recovery(chips, clock, self._scans, self.counts)
        self._cycle_ratios: dict[int, float] = {}
        self._active: list[int] = []
        self.combined = True
        """Whether the adapter takes several reads in one transaction; known once open."""
        self._until_bus = self._until_check = 0
        """Scans until BUS is read again, and until the next check of a chip."""
        self._last_ns = 0
        self._centres_ns = [accuracy(sensor, settings, period_ns=period_ns).centre_ns for sensor, settings in bank]
        self._least_centre_ns = min(self._centres_ns)
        self._late_ns = round(period_ns * LATE)

    @property
    def troubles(self) -> dict[int, str]:
        """Addresses that are left out, and why."""
        return self._recovery.troubles

    def open(self) -> tuple[int, ...]:
        """Set up all chips, find out what the adapter can do, and wait for the first conversion.

        Returns the addresses that are left out for now. Raises `SensorError` when there is no chip at all.
        """
        recovery = self._recovery
        recovery.set_up()
        if not recovery.active:
            troubles = (f"{address:#04x} {trouble}" for address, trouble in self.troubles.items())
            raise SensorError(f"{'; '.join(troubles)}: check the bus number, the wiring and the supply")
        self._prepare()
        try:
            self._full.call()
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise SensorError(f"the bus failed while it was opened: {error.strerror or error}") from error
            self.combined = False
        for chip in (recovery.chips[c] for c in self._active):
            # A chip that fails now is flagged by the first scan that meets it.
            with suppress(OSError):
                self._cycle_ratios[chip.address] = cycle_ratio(self._bus, self._clock, chip.address, chip.settings)
        self._prepare()
        self._clock.sleep_until(self._clock.now_ns() + 2 * self._bank.longest_cycle_ns)
        self._last_ns = self._clock.now_ns()
        self._until_check = self._check_every
        return tuple(self.troubles)

    def scan(self) -> None:
        """Read all lines once. Raises `SensorError` when not one chip answers any more."""
        now = self._clock.now_ns
        read = self._shunts if self._until_bus > 0 else self._full
        start_ns = now()
        if start_ns - self._last_ns > self._late_ns:
            read = self._full
            self.counts.missing_scans += self._scans.add_missing(self._last_ns, start_ns, self._period_ns, read)
        self._last_ns = start_ns
        try:
            words = read.call()
        except OSError:
            self._scan_singly(start_ns)
        else:
            excess_ns = read.excess_ns(now() - start_ns)
            self._scans.add(read, start_ns, words)
            self._flag_late(range(len(self._centres_ns)), excess_ns)
            self._until_bus = self._bus_every - 1 if read.with_bus else self._until_bus - 1
        if self._recovery.settled_ns:
            # A bus code without a conversion behind it must not be held.
            self._until_bus = 0
            self._recovery.flag_unsettled(start_ns, self._lines_of)
        self._until_check -= 1
        # A check moves the pointer, so it waits until the bus voltages' turn comes.
        if self._until_check <= 0 and self._until_bus <= 0:
            self._until_check = self._check_every if self._recovery.check_next() else 0
            self._prepare_anew()

    def take(self, builder: BlockBuilder) -> None:
        """Append what is confirmed to ``builder``."""
        self._scans.take(builder)

    def finish(self, builder: BlockBuilder) -> None:
        """Confirm and append everything: the last call before the bus is let go."""
        self._recovery.check_all()
        self._prepare_anew()
        self._scans.take(builder)

    def _prepare_anew(self) -> None:
        """After checks and set-ups the pointers may stand anywhere, and other chips may be there."""
        self._until_bus = 0
        if self._recovery.active != self._active:
            self._prepare()

    def _prepare(self) -> None:
        """Prepare the reads of the chips that answer."""
        self._active = self._recovery.active
        lines = sorted(i for c in self._active for i in self._lines_of[c])

        def prepared(lines: Sequence[int], with_bus: bool) -> PreparedRead:
            return PreparedRead(
                self._bus,
                self._bank,
                lines,
                with_bus=with_bus,
                scl_hz=self._scl_hz,
                combined=self.combined,
                cycle_ratios=self._cycle_ratios,
            )

        self._full = prepared(lines, True)
        self._shunts = prepared(lines, False)
        self._singles = [prepared(of_chip, True) for of_chip in self._lines_of]
        self._until_bus = 0
        self._scans.watch(self._active)
        self._check_every = max(1, round(VERIFY_NS / self._period_ns / max(1, len(self._active))))

    def _scan_singly(self, start_ns: int) -> None:
        """A scan after a failed one: each chip in a transfer of its own. What was failing is dealt with."""
        self.counts.failed_scans += 1
        words_of: dict[int, tuple[int, bytes]] = {}
        excess_ns: dict[int, float] = {}
        for c in self._active:
            began_ns = self._clock.now_ns()
            try:
                words_of[c] = began_ns, bytes(self._singles[c].call())
                excess_ns[c] = self._singles[c].excess_ns(self._clock.now_ns() - began_ns)
            except OSError:
                self._recovery.was_read(c, False)
            else:
                self._recovery.was_read(c, True)
        self._scans.add_singly(start_ns, self._singles, words_of)
        for c, of_chip_ns in excess_ns.items():
            self._flag_late(self._lines_of[c], of_chip_ns)
        if not self._recovery.recover_failed():
            raise SensorError("no chip answers any more: check the bus and the supply")
        self._prepare_anew()

    def _flag_late(self, lines: Sequence[int], excess_ns: float) -> None:
        """Nobody knows whether a transfer began late or its end was noticed late: beyond what a line says of its
        times, there is no reading of this moment."""
        if excess_ns > self._least_centre_ns:
            self.counts.late_reads += 1
            self._scans.flag_last([i for i in lines if excess_ns > self._centres_ns[i]], Flag.MISSING)
