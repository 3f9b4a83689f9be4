"""The I2C bus of simulated chips: a transaction takes its clock periods, an absent chip does not acknowledge."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import BUS_FREE_PERIODS, WRITE_PERIODS, Read, ReadWords, split
from powerd_daemon.sim.chip import SimChip

NACK_PERIODS = 11
"""Start, address without acknowledgement, stop."""


class Trouble(Protocol):
    """What a schedule of faults does to transfers; see `powerd_daemon.sim.faults`."""

    def before(self, bus: SimBus, t_ns: int) -> None:
        """A transaction is about to begin: faults that are due happen."""
        ...


class SimBus:
    """Satisfies `powerd_daemon.ina.bus.RegisterBus`, in the time that a bus at ``scl_hz`` would take.

    ``before`` is called with the end of each transaction before its registers are worked out. With ``wake_early_ns``
    the caller's sleep ends ahead of the transaction's end, for the latency of a real clock's sleep and the time to
    work out the registers; what is left is spent waiting busily when the bus is to be ``punctual``, else the call
    returns early. ``combines`` is what bcm2835 cannot do.
    """

    def __init__(
        self,
        clock: Clock,
        chips: Mapping[int, SimChip],
        *,
        scl_hz: float = 400_000.0,
        wake_early_ns: int = 0,
        punctual: bool = False,
        before: Callable[[int], None] | None = None,
        combines: bool = True,
        trouble: Trouble | None = None,
    ) -> None:
        self.chips = dict(chips)
        self.combines = combines
        self.punctual = punctual
        self.trouble = trouble
        self.periods = 0.0
        """SCL periods for which the bus was busy so far."""
        self.stuck_until_ns = 0
        """Until then nothing is acknowledged, after ``timeout_ns`` each."""
        self.timeout_ns = 20_000_000
        self.delay_ns = 0
        """The next transaction begins so much later."""
        self._clock, self._before, self._wake_early_ns = clock, before, wake_early_ns
        self._scl_ns = 1e9 / scl_hz
        self._free_ns = 0
        self._faults: dict[int, tuple[int, int]] = {}

    def fail(self, address: int, transfers: int, error: int = errno.EREMOTEIO) -> None:
        """Let the next ``transfers`` words that are asked of a chip or sent to it fail."""
        self._faults[address] = transfers, error

    def brown_out(self, address: int) -> None:
        """Reset a chip as a dip of its supply does."""
        self.chips[address].reset(self._clock.now_ns())

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        parts = split([Read(*r) for r in reads])
        buffer = bytearray(sum(r.size for part in parts for r in part))
        plans = []
        for part in parts:
            at, rows = 0.0, []
            for read in part:
                # The word that is shifted out is fixed when the chip acknowledges its address for reading.
                rows.append((read, int((at + read.periods - 9 * read.size) * self._scl_ns)))
                at += read.periods
            plans.append((rows, at + 1))

        def call() -> bytearray:
            at = 0
            for rows, periods in plans:
                if len(rows) > 1 and not self.combines:
                    raise OSError(errno.EOPNOTSUPP, "the adapter cannot combine reads")
                at = self._read(rows, periods, buffer, at)
            return buffer

        return call

    def _read(self, rows: list[tuple[Read, int]], periods: float, buffer: bytearray, at: int) -> int:
        self._meet_trouble()
        refusal, good, done = None, len(rows), 0.0
        if self._faults or any(read.address not in self.chips for read, _ in rows):
            for i, (read, _) in enumerate(rows):
                if refusal := self._refusal(read.address):
                    good = i
                    break
                done += read.periods
        start_ns = self._begin(periods if refusal is None else done + NACK_PERIODS)
        for read, latch_ns in rows[:good]:
            chip = self.chips[read.address]
            if read.register is not None:
                chip.select(read.register)
            word, own = chip.read_word(start_ns + latch_ns), chip.size_of()
            # A narrower register than asked for is followed by ones: nobody pulls the line down.
            word = word << 8 | 0xFF if own < read.size else word >> 8 * (own - read.size)
            buffer[at : at + read.size] = word.to_bytes(read.size, "big")
            at += read.size
        self._end()
        if refusal is not None:
            raise refusal
        return at

    def write_word(self, address: int, register: int, word: int) -> None:
        self._meet_trouble()
        refusal = self._refusal(address)
        self._begin(NACK_PERIODS if refusal else WRITE_PERIODS)
        if refusal is None:
            self.chips[address].write_word(register, word, self._end_ns)
        self._end()
        if refusal is not None:
            raise refusal

    def _meet_trouble(self) -> None:
        now_ns = self._clock.now_ns()
        if self.trouble is not None:
            self.trouble.before(self, now_ns)
        if now_ns < self.stuck_until_ns:
            self._clock.sleep_until(now_ns + self.timeout_ns)
            raise OSError(errno.ETIMEDOUT, "the bus is stuck")

    def _refusal(self, address: int) -> OSError | None:
        left, error = self._faults.get(address, (0, 0))
        if left:
            self._faults[address] = left - 1, error
            if left == 1:
                del self._faults[address]
            return OSError(error, f"transfer with {address:#04x} failed")
        if address not in self.chips:
            return OSError(errno.EREMOTEIO, f"no acknowledgement from {address:#04x}")
        return None

    def _begin(self, periods: float) -> int:
        """Let the transaction's time pass; returns its start."""
        start_ns = max(self._clock.now_ns(), self._free_ns) + self.delay_ns
        self.delay_ns = 0
        self.periods += periods
        self._free_ns = start_ns + round((periods + BUS_FREE_PERIODS) * self._scl_ns)
        self._end_ns = start_ns + round(periods * self._scl_ns)
        self._clock.sleep_until(self._end_ns - self._wake_early_ns)
        if self._before:
            self._before(self._end_ns)
        return start_ns

    def _end(self) -> None:
        if self.punctual:
            while self._clock.now_ns() < self._end_ns:
                pass
