"""What a driver asks of a bus of registers, and what a transfer costs in periods of its clock.

Two methods, few enough for a Linux ``i2c-dev`` (one ``I2C_RDWR`` with buffers that are set up once), for
MicroPython's ``readfrom_mem_into`` and for the simulated bus alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

BUS_FREE_PERIODS = 0.5
"""Between a stop and the next start: 1.3 us at 400 kHz."""
WRITE_PERIODS = 38
"""SCL periods of a word written: S + 9 + 9 + 18 + P."""
MAX_MESSAGES = 42
"""What Linux takes in one combined transaction (I2C_RDWR_IOCTL_MAX_MSGS); a read behind a pointer is two messages."""


class Read(NamedTuple):
    """One register to read: 7-bit address, pointer (None where it is already there) and width in bytes."""

    address: int
    register: int | None
    size: int = 2

    @property
    def messages(self) -> int:
        return 1 if self.register is None else 2

    @property
    def periods(self) -> int:
        """SCL periods without the stop: S + 9 a byte of address or data, twice where the pointer is written."""
        return 1 + 9 * (1 + self.size) + (0 if self.register is None else 19)


ReadWords = Callable[[], bytes | bytearray | memoryview]
"""A prepared read: what the registers hold, one after the other, most significant byte first. The buffer is reused by
the next call. Raises `OSError` when any transfer of it failed; nothing read by that call counts then."""


class RegisterBus(Protocol):
    """A bus whose chips hold registers behind a pointer."""

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        """A call that makes these reads in this order, in combined transactions of at most `MAX_MESSAGES` messages.

        The call raises `OSError` with EOPNOTSUPP when there are several reads and the adapter cannot combine them.
        """
        ...

    def write_word(self, address: int, register: int, word: int) -> None:
        """Write one register of two bytes. Raises `OSError` when the chip does not acknowledge."""
        ...


def split(reads: Sequence[Read]) -> list[list[Read]]:
    """The combined transactions into which reads fall."""
    parts: list[list[Read]] = [[]]
    messages = 0
    for read in reads:
        if messages + read.messages > MAX_MESSAGES:
            parts.append([])
            messages = 0
        parts[-1].append(read)
        messages += read.messages
    return parts


def scan_periods(reads: Sequence[Read], *, combined: bool) -> float:
    """SCL periods of all reads, with stops and the time for which the bus has to be free.

    In combined transactions a stop comes after as many reads as fit; else after each.
    """
    transactions = len(split(reads)) if combined else len(reads)
    return sum(r.periods for r in reads) + transactions * (1 + BUS_FREE_PERIODS)


def singly(bus: RegisterBus, reads: Iterable[Read]) -> ReadWords:
    """The same reads with a transaction for each, for adapters that cannot combine them."""
    plan, at = [], 0
    for read in reads:
        plan.append((bus.prepare([read]), at, at + read.size))
        at += read.size
    buffer = bytearray(at)

    def call() -> bytearray:
        for one, begin, end in plan:
            buffer[begin:end] = one()
        return buffer

    return call
