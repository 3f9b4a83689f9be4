"""What a driver asks of a bus of 16-bit registers: two methods.

Few enough for a Linux ``i2c-dev`` (one ``I2C_RDWR`` with buffers that are set up once), for MicroPython's
``readfrom_mem_into`` and for the simulated bus alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

READ_PERIODS = 48
"""SCL periods of a pointer write, a repeated start and a word read: S + 9 + 9 + Sr + 9 + 18 + P."""
WRITE_PERIODS = 38
"""SCL periods of a word written: S + 9 + 9 + 18 + P."""

ReadWords = Callable[[], bytes | bytearray | memoryview]
"""A prepared read: two bytes a register, most significant first. The buffer is reused by the next call. Raises
`OSError` when any transfer of it failed; nothing read by that call counts then."""


class RegisterBus(Protocol):
    """A bus whose chips hold 16-bit registers behind a pointer."""

    def prepare(self, reads: Sequence[tuple[int, int]]) -> ReadWords:
        """A call that reads these (address, register) pairs in this order, back to back where the bus can.

        The pointer is written before every word, so that a chip that was reset cannot answer with another register.
        """
        ...

    def write_word(self, address: int, register: int, word: int) -> None:
        """Write one register. Raises `OSError` when the chip does not acknowledge."""
        ...
