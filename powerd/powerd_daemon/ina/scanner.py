"""Scans of a bank of INA chips: every line's shunt and bus registers, in one combined transaction where that works.

A scan only appends what came over the bus; `Scanner.take` decodes many at once. A reading is given out when its chip's
configuration was read back *after* it (each chip about ten times a second), because a chip that was reset in between
may have converted something else, in another range, or answered with another register. What is flagged:

- ``IO_ERROR``: the transfer failed, or nothing confirmed the chip's configuration any more. After a failed combined
  read every chip is read once more, singly, so that one chip never costs the others a reading. A chip that fails
  three times in a row is set up again; if that fails it is left out and tried again about once a second.
- ``RESET``: the configuration was not what was written, or nothing was converted since a reset or set-up.
- ``STALE``: less than the chip's longest conversion cycle has passed since its last reading that was not stale, so
  an unflagged reading is certain to have a conversion of its own behind it.
- ``MISSING``: no scan took place when one was due, because the one before took too long or the process was held up;
  or a transfer took longer than usual by more than the line's ``centre_ns``, so that its moment is not known.
- ``SATURATED``, ``OVERFLOW``: from the codes, see `powerd_daemon.ina.decode`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from contextlib import suppress

from powerd_core.errors import SensorError
from powerd_core.model import BlockBuilder, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import RegisterBus
from powerd_daemon.ina.chip import Chip
from powerd_daemon.ina.cycle import cycle_ratio
from powerd_daemon.ina.decode import Decoder
from powerd_daemon.ina.keeper import Counts, Keeper
from powerd_daemon.ina.plan import Plan
from powerd_daemon.ina.scanlog import ScanLog
from powerd_daemon.ina.sensor import Bank, accuracy

VERIFY_NS = 100_000_000
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
        addresses = list(dict.fromkeys(s.address for s in bank.sensors))
        of = {s.address: settings for s, settings in zip(bank.sensors, bank.settings, strict=True)}
        self._chip_of = [addresses.index(s.address) for s in bank.sensors]
        self._lines_of = [[i for i, c in enumerate(self._chip_of) if c == k] for k in range(len(addresses))]
        self._decoder = Decoder(bank.settings)
        self._log = ScanLog(bank, self._decoder, self._chip_of, with_age=bus_every > 1)
        self.counts = Counts()
        self._keeper = Keeper([Chip(bus, clock, a, of[a]) for a in addresses], clock, self._log, self.counts)
        self._cycle_ratios: dict[int, float] = {}
        self._active: list[int] = []
        self.combined = True
        """Whether the adapter takes several reads in one transaction; known once open."""
        self._until_bus = self._until_check = 0
        self._last_ns = 0
        self._centres_ns = [
            accuracy(sensor, settings, period_ns=period_ns).centre_ns
            for sensor, settings in zip(bank.sensors, bank.settings, strict=True)
        ]
        self._least_centre_ns = min(self._centres_ns)
        self._late_ns = round(period_ns * LATE)

    @property
    def typecodes(self) -> tuple[str, str]:
        """Of the columns ``shunt`` and ``bus``."""
        return self._decoder.typecodes

    @property
    def troubles(self) -> dict[int, str]:
        """Addresses that are left out, and why."""
        return self._keeper.troubles

    def open(self) -> tuple[int, ...]:
        """Set up all chips, find out what the adapter can do, and wait for the first conversion.

        Returns the addresses that are left out for now. Raises `SensorError` when there is no chip at all.
        """
        self._keeper.set_up()
        if not self._keeper.active:
            raise SensorError(f"{self._all_troubles()}: check the bus number, the wiring and the supply")
        self._choose()
        try:
            self._full.call()
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise SensorError(f"the bus failed while it was opened: {error.strerror or error}") from error
            self.combined = False
        self._measure_cycles()
        self._choose()
        self._clock.sleep_until(self._clock.now_ns() + 2 * self._bank.longest_cycle_ns)
        self._last_ns = self._clock.now_ns()
        self._until_check = self._check_every
        return tuple(self.troubles)

    def _measure_cycles(self) -> None:
        for c in self._active:
            chip = self._keeper.chips[c]
            # A chip that fails now is flagged by the first scan that meets it.
            with suppress(OSError):
                self._cycle_ratios[chip.address] = cycle_ratio(self._bus, self._clock, chip.address, chip.settings)

    def scan(self) -> None:
        """Read all lines once. Raises `SensorError` when not one chip answers any more."""
        now = self._clock.now_ns
        plan = self._cached if self._until_bus > 0 else self._full
        start_ns = now()
        if start_ns - self._last_ns > self._late_ns:
            plan = self._full
            self.counts.missing_scans += self._log.add_missing(self._last_ns, start_ns, self._period_ns, plan)
        self._last_ns = start_ns
        try:
            words = plan.call()
        except OSError:
            self._scan_singly(start_ns)
        else:
            late_ns = plan.took(now() - start_ns)
            self._log.add(plan, start_ns, words)
            if late_ns > self._least_centre_ns:
                self._flag_late(range(len(self._centres_ns)), late_ns)
            self._until_bus = self._bus_every - 1 if plan.with_bus else self._until_bus - 1
        if self._keeper.is_settling:
            # A bus code without a conversion behind it must not be held.
            self._until_bus = 0
            self._keeper.flag_unsettled(start_ns)
        self._until_check -= 1
        # A check moves the pointer, so it waits until the bus voltages' turn comes.
        if self._until_check <= 0 and self._until_bus <= 0:
            self._until_check = self._check_every if self._keeper.check_next() else 0
            self._plan_anew()

    def take(self, builder: BlockBuilder) -> None:
        """Append what is confirmed to ``builder``."""
        self._log.take(builder)

    def finish(self, builder: BlockBuilder) -> None:
        """Confirm and append everything: the last call before the bus is let go."""
        self._keeper.check_all()
        self._plan_anew()
        self._log.take(builder)

    def _plan_anew(self) -> None:
        """After the keeper's work the pointers may stand anywhere, and other chips may be there."""
        self._until_bus = 0
        if self._keeper.active != self._active:
            self._choose()

    def _choose(self) -> None:
        """Plan the reads of the chips that answer."""
        self._active = self._keeper.active
        lines = [i for i, c in enumerate(self._chip_of) if c in self._active]

        def plan(lines: Sequence[int], with_bus: bool) -> Plan:
            return Plan(
                self._bus,
                self._bank,
                lines,
                with_bus=with_bus,
                scl_hz=self._scl_hz,
                combined=self.combined,
                cycle_ratios=self._cycle_ratios,
            )

        self._full = plan(lines, True)
        self._cached = plan(lines, False)
        self._singles = [plan(of_chip, True) for of_chip in self._lines_of]
        self._until_bus = 0
        self._log.watch(self._active)
        self._check_every = max(1, round(VERIFY_NS / self._period_ns / max(1, len(self._active))))

    def _scan_singly(self, start_ns: int) -> None:
        """A scan after a failed one: each chip in a transfer of its own. What was failing is dealt with."""
        self.counts.failed_scans += 1
        found: dict[int, tuple[int, bytes]] = {}
        late: dict[int, float] = {}
        for c in self._active:
            began_ns = self._clock.now_ns()
            try:
                found[c] = began_ns, bytes(self._singles[c].call())
                late_ns = self._singles[c].took(self._clock.now_ns() - began_ns)
                if late_ns > self._least_centre_ns:
                    late[c] = late_ns
            except OSError:
                self._keeper.failed(c)
            else:
                self._keeper.succeeded(c)
        self._log.add_singly(start_ns, self._singles, found)
        for c, late_ns in late.items():
            self._flag_late(self._lines_of[c], late_ns)
        if not self._keeper.mend_failed():
            raise SensorError(f"no chip answers any more at {self._addresses()}: check the bus and the supply")
        self._plan_anew()

    def _flag_late(self, lines: Iterable[int], late_ns: float) -> None:
        """Nobody knows whether a transfer began late or its end was noticed late: beyond what a line says of its
        times, there is no reading of this moment."""
        self.counts.late_reads += 1
        for i in lines:
            if late_ns > self._centres_ns[i]:
                self._log.flag_line(i, Flag.MISSING)

    def _addresses(self) -> str:
        return ", ".join(f"{c.address:#04x}" for c in self._keeper.chips)

    def _all_troubles(self) -> str:
        chips = self._keeper.chips
        return "; ".join(f"{c.settings.chip} at {c.address:#04x} {self.troubles[c.address]}" for c in chips)
