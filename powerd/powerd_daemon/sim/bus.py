"""The I2C bus of simulated chips: a transaction takes its clock periods, an absent chip does not acknowledge."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Mapping, Sequence

from powerd_daemon.clock import Clock
from powerd_daemon.ina.bus import READ_PERIODS, WRITE_PERIODS, ReadWords
from powerd_daemon.sim.chip import SimIna219

NACK_PERIODS = 11
"""Start, address without acknowledgement, stop."""
LATCH_PERIODS = 29
"""The word that is shifted out is fixed when the chip acknowledges its address for reading."""


class SimBus:
    """Satisfies `powerd_daemon.ina.bus.RegisterBus`, in the time that a bus at ``scl_hz`` would take.

    ``before`` is called with the end of each transaction before its registers are worked out. ``wake_early_ns`` ends
    the sleep ahead of the transaction's end, to make room for the latency of a real clock's sleep and for working out
    the registers; what is then left is waited for awake. A call never returns before its transaction has ended: else
    the next one would begin later than its caller believes.
    """

    def __init__(
        self,
        clock: Clock,
        chips: Mapping[int, SimIna219],
        *,
        scl_hz: float = 400_000.0,
        wake_early_ns: int = 0,
        before: Callable[[int], None] | None = None,
    ) -> None:
        self.chips = dict(chips)
        self._clock, self._before, self._wake_early_ns = clock, before, wake_early_ns
        self._scl_ns = 1e9 / scl_hz
        self._free_ns = 0
        self._faults: dict[int, int] = {}

    def fail(self, address: int, transfers: int) -> None:
        """Let the chip not acknowledge the next ``transfers`` words that are asked of it or sent to it."""
        self._faults[address] = transfers

    def brown_out(self, address: int) -> None:
        """Reset a chip as a dip of its supply does."""
        self.chips[address].reset(self._clock.now_ns())

    def prepare(self, reads: Sequence[tuple[int, int]]) -> ReadWords:
        plan, pack = tuple(reads), struct.Struct(f">{len(reads)}H")
        buffer = bytearray(pack.size)

        def read() -> bytearray:
            good = next((i for i, (address, _) in enumerate(plan) if self._refuses(address)), len(plan))
            start_ns = self._occupy(good * READ_PERIODS + (NACK_PERIODS if good < len(plan) else 0))
            words = []
            for i, (address, register) in enumerate(plan[:good]):
                chip = self.chips[address]
                chip.select(register)
                words.append(chip.read_word(start_ns + int((i * READ_PERIODS + LATCH_PERIODS) * self._scl_ns)))
            if good < len(plan):
                self._finish()
                raise _no_acknowledge(plan[good][0])
            pack.pack_into(buffer, 0, *words)
            self._finish()
            return buffer

        return read

    def write_word(self, address: int, register: int, word: int) -> None:
        refused = self._refuses(address)
        self._occupy(NACK_PERIODS if refused else WRITE_PERIODS)
        self._finish()
        if refused:
            raise _no_acknowledge(address)
        self.chips[address].write_word(register, word, self._free_ns)

    def _refuses(self, address: int) -> bool:
        left = self._faults.get(address, 0)
        if left:
            self._faults[address] = left - 1
        return left > 0 or address not in self.chips

    def _finish(self) -> None:
        self._clock.spin_until(self._free_ns)

    def _occupy(self, periods: int) -> int:
        """Let nearly all of the transaction's time pass; returns its start."""
        start_ns = max(self._clock.now_ns(), self._free_ns)
        self._free_ns = start_ns + round(periods * self._scl_ns)
        self._clock.sleep_until(self._free_ns - self._wake_early_ns)
        if self._before:
            self._before(self._free_ns)
        return start_ns


def _no_acknowledge(address: int) -> OSError:
    return OSError(errno.EREMOTEIO, f"no acknowledgement from {address:#04x}")
