"""Scans of a bank of INA219: every chip's shunt and bus registers in one combined transaction.

A scan only appends what came over the bus; a block's worth is decoded at once by `Scanner.take`. What is flagged:

- ``IO_ERROR``: the transfer failed. After a failed combined read every chip is read singly, so that one chip never
  costs the others a reading; a chip that keeps failing is left out and tried again about once a second.
- ``RESET``: CONFIG, read back chip by chip about once a second, was not what was written (the chip is then set up
  again), or CNVR says that nothing was converted since a reset or set-up.
- ``STALE``: less than the slowest chip's conversion cycle has passed since the last reading that was not stale. CNVR
  cannot tell: it is cleared by reading POWER or writing the mode, not by reading BUS. So an unflagged reading is
  certain to have a conversion of its own behind it.
- ``SATURATED``, ``OVERFLOW``: from the codes, see `powerd_daemon.ina.decode`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from powerd_core.blocks import BlockBuilder
from powerd_core.errors import SensorError
from powerd_core.model import Flag
from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import READ_PERIODS, ReadWords, RegisterBus
from powerd_daemon.ina.cycle import cycle_ratio
from powerd_daemon.ina.decode import flag_codes, split_words
from powerd_daemon.ina.ina219 import Register, Settings

GIVE_UP_AFTER = 3
"""Failures in a row after which a chip is left out of the combined read."""
_PERIODS_PER_CHIP = 2 * READ_PERIODS


@dataclass(frozen=True, slots=True)
class Chip:
    """One INA219: its 7-bit address and how it is to convert."""

    address: int
    settings: Settings


class Scanner:
    """Reads a bank of chips into the columns ``shunt`` (int16) and ``bus`` (uint16, the register with its flag bits).

    ``scl_hz`` is the bus clock and ``period_ns`` the intended distance of scans. A reading's time is the middle of
    its shunt word's transfer less the mean age of what the register holds: `Settings.age_ns`, scaled by how far the
    chip's own clock was found to be off when the scanner was opened.
    """

    def __init__(self, bus: RegisterBus, clock: Clock, chips: Sequence[Chip], *, scl_hz: float, period_ns: int) -> None:
        self._bus, self._clock = bus, clock
        self._chips = tuple(chips)
        self._settings = tuple(c.settings for c in chips)
        self._age_ns = [s.age_ns for s in self._settings]
        self._singles = [bus.prepare(_reads(c)) for c in chips]
        self._configs = [bus.prepare([(c.address, Register.CONFIG)]) for c in chips]
        self._period_of_scl_ns = 1e9 / scl_hz
        self._nominal_ns = round(len(chips) * _PERIODS_PER_CHIP * self._period_of_scl_ns)
        self._shortest_ns = 1 << 62
        self._failures = [0] * len(chips)
        self._active: list[int] = []
        self._read: ReadWords = lambda: b""
        self._combine(range(len(chips)))
        # Each chip about once a second, one chip at a time.
        self._check_every = max(1, round(1e9 / period_ns / len(chips)))
        self._until_check = self._check_every
        self._next_check = 0
        self._suspects: set[int] = set()
        self._fresh_ns = [-(1 << 62)] * len(chips)
        self._clear()

    def open(self) -> tuple[int, ...]:
        """Set up all chips and wait for their first conversion; returns the addresses that did not answer.

        Raises `SensorError` when none answers.
        """
        absent = [i for i in range(len(self._chips)) if not self._set_up(i)]
        if len(absent) == len(self._chips):
            raise SensorError(
                f"no INA219 answers at {self._addresses(absent)}: check the bus number, the wiring and the supply"
            )
        for i in absent:
            self._failures[i] = GIVE_UP_AFTER
        self._combine(i for i in range(len(self._chips)) if i not in absent)
        self._clock.sleep_until(self._clock.now_ns() + 2 * max(s.longest_cycle_ns for s in self._settings))
        for i in self._active:
            self._age_ns[i] = round(self._settings[i].age_ns * self._cycle_ratio(i))
        return tuple(self._chips[i].address for i in absent)

    def _cycle_ratio(self, i: int) -> float:
        try:
            return cycle_ratio(self._bus, self._clock, self._chips[i].address, self._settings[i])
        except OSError:
            return 1.0  # the first scan meets the same chip and flags it

    def scan(self) -> None:
        """Read all chips once. Raises `SensorError` when not one of them answers any more."""
        if len(self._active) < len(self._chips):
            self._scan_partly()
        else:
            now = self._clock.now_ns
            start_ns = now()
            try:
                words = self._read()
            except OSError:
                self._scan_singly(start_ns)
            else:
                took_ns = now() - start_ns
                self._shortest_ns = min(self._shortest_ns, took_ns)
                self._raw += words
                self._start_ns.append(start_ns)
        self._until_check -= 1
        if self._until_check <= 0:
            self._check()

    def take(self, builder: BlockBuilder) -> None:
        """Decode the scans since the last call and append them to ``builder``."""
        scans, chips = len(self._start_ns), len(self._chips)
        if not scans:
            return
        shunt, bus = split_words(self._raw)
        offsets_ns = array("i", self._offsets_ns()) * scans
        flags = array("H", bytes(2 * scans * chips))
        for at, offset_ns, flag in self._exceptions:
            flags[at] |= flag
            if offset_ns is not None:
                offsets_ns[at] = offset_ns
        self._suspects |= flag_codes(flags, self._raw, shunt, bus, self._settings)
        if self._suspects:
            self._until_check = 0
        self._flag_stale(flags)
        builder.t_ns.extend(self._start_ns)
        builder.dt_ns.extend(offsets_ns)
        builder.flags.extend(flags)
        builder.columns[0].extend(shunt)
        builder.columns[1].extend(bus)
        self._clear()

    def _clear(self) -> None:
        self._raw = bytearray()
        self._start_ns = array("q")
        self._exceptions: list[tuple[int, int | None, int]] = []

    def _offsets_ns(self) -> list[int]:
        """Each chip's time relative to the start of a combined read of all.

        The call's end is late by however long the process took to wake up, its beginning is not. So the transfer is
        taken to last as long as the bus clock says, or the shortest call so far when the bus is slower than that.
        """
        shortest_ns = self._shortest_ns if self._shortest_ns < 1 << 62 else 0
        word_ns = max(self._nominal_ns, shortest_ns) / (2 * len(self._chips))
        return [round((2 * i + 0.5) * word_ns) - age_ns for i, age_ns in enumerate(self._age_ns)]

    def _combine(self, active: Iterable[int]) -> None:
        self._active = list(active)
        self._read = self._bus.prepare([read for i in self._active for read in _reads(self._chips[i])])

    def _scan_partly(self) -> None:
        """A scan while some chips are left out."""
        start_ns = self._clock.now_ns()
        try:
            words = bytes(self._read())
        except OSError:
            self._scan_singly(start_ns)
            return
        found = {i: words[4 * k : 4 * k + 4] for k, i in enumerate(self._active)}
        middles_ns = {
            i: start_ns + round((k * _PERIODS_PER_CHIP + READ_PERIODS / 2) * self._period_of_scl_ns)
            for k, i in enumerate(self._active)
        }
        self._append(start_ns, found, middles_ns)

    def _scan_singly(self, start_ns: int) -> None:
        """A scan after a failed combined read: each chip in a transfer of its own."""
        found, middles_ns = {}, {}
        for i in self._active:
            middles_ns[i] = self._clock.now_ns() + round(READ_PERIODS / 2 * self._period_of_scl_ns)
            try:
                found[i] = bytes(self._singles[i]())
            except OSError:
                self._failures[i] += 1
            else:
                self._failures[i] = 0
        self._append(start_ns, found, middles_ns)
        keep = [i for i in self._active if self._failures[i] < GIVE_UP_AFTER]
        if len(keep) < len(self._active):
            self._combine(keep)
        if not keep:
            everything = self._addresses(range(len(self._chips)))
            raise SensorError(f"no INA219 answers at {everything} any more: check the bus and the supply")

    def _append(self, start_ns: int, found: dict[int, bytes], middles_ns: dict[int, int]) -> None:
        """One scan with its own times; chips that are not in ``found`` failed."""
        at = len(self._start_ns) * len(self._chips)
        for i, age_ns in enumerate(self._age_ns):
            offset_ns = middles_ns.get(i, start_ns) - start_ns - age_ns
            self._raw += found.get(i, b"\0\0\0\0")
            self._exceptions.append((at + i, offset_ns, 0 if i in found else Flag.IO_ERROR))
        self._start_ns.append(start_ns)

    def _check(self) -> None:
        """Read one chip's CONFIG back, and set it up again when it is not ours; try one that is left out."""
        self._until_check = self._check_every
        if self._suspects:
            i = self._suspects.pop()
        else:
            i, self._next_check = self._next_check, (self._next_check + 1) % len(self._chips)
        if i not in self._active:
            if self._set_up(i):
                self._failures[i] = 0
                self._combine(sorted([*self._active, i]))
            return
        try:
            config = bytes(self._configs[i]())
            if int.from_bytes(config, "big") != self._settings[i].word:
                self._bus.write_word(self._chips[i].address, Register.CONFIG, self._settings[i].word)
                self._exceptions.append(((len(self._start_ns) - 1) * len(self._chips) + i, None, Flag.RESET))
        except OSError:
            # The next scan meets the same chip and flags it; a check adds nothing to that.
            return

    def _set_up(self, i: int) -> bool:
        address, word = self._chips[i].address, self._settings[i].word
        try:
            self._bus.write_word(address, Register.CONFIG, word)
            return int.from_bytes(bytes(self._configs[i]()), "big") == word
        except OSError:
            return False

    def _flag_stale(self, flags: array[int]) -> None:
        chips, fresh_ns = len(self._chips), self._fresh_ns
        longest_ns, newest_ns = max(s.longest_cycle_ns for s in self._settings), max(fresh_ns)
        for k, start_ns in enumerate(self._start_ns):
            if start_ns - newest_ns >= longest_ns:
                fresh_ns, newest_ns = [start_ns] * chips, start_ns
                continue
            for i, settings in enumerate(self._settings):
                if start_ns - fresh_ns[i] < settings.longest_cycle_ns:
                    flags[k * chips + i] |= Flag.STALE
                else:
                    fresh_ns[i] = newest_ns = start_ns
        self._fresh_ns = fresh_ns

    def _addresses(self, chips: Iterable[int]) -> str:
        return ", ".join(f"{self._chips[i].address:#04x}" for i in chips)


def _reads(chip: Chip) -> list[tuple[int, int]]:
    return [(chip.address, Register.SHUNT), (chip.address, Register.BUS)]
