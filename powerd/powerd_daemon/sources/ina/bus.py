"""What a driver asks of a bus of registers, what a transfer costs in periods of its clock, and Linux's I2C.

`RegisterBus` has two methods, few enough for a Linux ``i2c-dev`` (one ``I2C_RDWR`` with buffers that are set up once),
for MicroPython's ``readfrom_mem_into`` and for the simulated bus alike.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from ctypes import POINTER, addressof, c_char, cast
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from powerd_core.errors import ConfigError, SensorError
from powerd_core.text import needs_extra

BUS_FREE_PERIODS = 0.5
"""Between a stop and the next start: 1.3 us at 400 kHz."""
READ_PERIODS = 48.5
"""SCL periods of a word read by itself: S + 9 + 9 + S + 27 + P, and the time between."""
WRITE_PERIODS = 38
"""SCL periods of a word written: S + 9 + 9 + 18 + P."""
MAX_MESSAGES = 42
"""What Linux takes in one combined transaction (I2C_RDWR_IOCTL_MAX_MSGS); a read behind a pointer is two messages."""
ReadWords = Callable[[], bytes | bytearray | memoryview]
"""A prepared read: what the registers hold, one after the other, most significant byte first. The buffer is reused by
the next call. Raises `OSError` when any transfer of it failed; nothing read by that call counts then."""
I2C_RETRIES, I2C_TIMEOUT, I2C_SLAVE, I2C_RDWR, I2C_SMBUS = 0x0701, 0x0702, 0x0703, 0x0707, 0x0720
"""Requests of <linux/i2c-dev.h>. The timeout counts in 10 ms."""
FUNC_I2C, FUNC_WORDS, FUNC_BLOCK = 0x1, 0x200000 | 0x400000, 0x4000000
"""What an adapter can do (<linux/i2c.h>): transfers of any form; words read and written; I2C blocks read."""


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


class RegisterBus(Protocol):
    """A bus whose chips hold registers behind a pointer."""

    functions: int
    """What its adapter says that it can do (I2C_FUNCS)."""

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
    calls = [bus.prepare([read]) for read in reads]
    return lambda: b"".join(bytes(call()) for call in calls)


def _cannot_combine() -> bytes:
    raise OSError(errno.EOPNOTSUPP, "the adapter knows SMBus only and cannot combine reads")


class LinuxBus:
    """Linux's ``/dev/i2c-N`` as a `RegisterBus`. ``bus`` is a number or a path. Only here smbus2 is imported.

    Messages and buffers are laid out once, so that a scan is one ``ioctl`` on a ready structure. A transfer that the
    adapter's driver cannot finish ends after ``timeout_ms`` with an error. An adapter that knows SMBus only (i2c-stub,
    many USB adapters and mainboards) reads one register a transfer. Raises `SensorError` when the bus cannot be opened,
    or can do neither.
    """

    def __init__(
        self, bus: int | str, *, timeout_ms: int = 50, ioctl: Callable[[Any, int, Any], Any] = fcntl.ioctl
    ) -> None:
        self.path = bus if isinstance(bus, str) else f"/dev/i2c-{bus}"
        try:
            import smbus2.smbus2 as library
        except ImportError as error:
            raise ConfigError(f"reading an I2C bus needs smbus2: {needs_extra('board')}") from error
        self._library: Any = library
        self._ioctl = ioctl
        try:
            self._bus: Any = library.SMBus(self.path)
        except OSError as error:
            raise SensorError(
                f"{self.path} cannot be opened: {error.strerror}: enable the bus and load i2c-dev (modprobe i2c-dev), "
                "join the group i2c (usermod -aG i2c USER), or unload the driver that holds its chips (rmmod ina2xx)"
            ) from error
        for request, value in ((I2C_TIMEOUT, max(1, timeout_ms // 10)), (I2C_RETRIES, 0)):
            # Some adapters have settings of their own that cannot be changed; theirs then count.
            with suppress(OSError):
                ioctl(self._bus.fd, request, value)
        self._pointers: dict[int, int] = {}
        """The register that each chip's pointer is at, on an adapter that knows SMBus only."""
        self.functions = int(self._bus.funcs)
        if not self.has_i2c and self.functions & FUNC_WORDS != FUNC_WORDS:
            self.close()
            raise SensorError(f"the adapter of {self.path} can neither make I2C transfers nor read and write words")

    @property
    def has_i2c(self) -> bool:
        """Whether the adapter makes I2C transfers of any form, and not those of SMBus only."""
        return bool(self.functions & FUNC_I2C)

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        if not self.has_i2c:
            return self._prepare_smbus(reads)
        ends = [0, *accumulate(read.size for read in reads)]
        buffer = (c_char * max(1, ends[-1]))()
        begins = iter(ends)
        alive: list[object] = [buffer]
        requests: list[Any] = []
        for part in split(reads):
            messages = []
            for read in part:
                if read.register is not None:
                    messages.append(self._library.i2c_msg.write(read.address, [read.register]))
                message = self._library.i2c_msg.read(read.address, read.size)
                message.buf = cast(addressof(buffer) + next(begins), POINTER(c_char))
                messages.append(message)
            alive.append(messages)
            if messages:
                requests.append(self._library.i2c_rdwr_ioctl_data.create(*messages))
        view, fd, ioctl = memoryview(buffer).cast("B")[: ends[-1]], self._bus.fd, self._ioctl

        # The kernel writes through bare pointers: what they point to has to live as long as the call.
        def call(_alive: object = alive) -> memoryview:
            for request in requests:
                ioctl(fd, I2C_RDWR, request)
            return view

        return call

    def _prepare_smbus(self, reads: Sequence[Read]) -> ReadWords:
        if len(reads) > 1:
            return _cannot_combine
        (read,) = reads
        if read.size != 2 and not self.functions & FUNC_BLOCK:
            raise SensorError(f"the adapter of {self.path} cannot read registers of {read.size} bytes, only words")

        def call() -> bytes:
            register = self._pointers[read.address] if read.register is None else read.register
            data = self._transfer(read.address, register, self._library.I2C_SMBUS_READ, size=read.size)
            # The low byte of an SMBus word comes first; the chips send the high one first.
            return data.word.to_bytes(2, "little") if read.size == 2 else bytes(data.block[1 : 1 + read.size])

        return call

    def _transfer(self, address: int, register: int, direction: int, *, size: int = 2, word: int = 0) -> Any:
        kind = self._library.I2C_SMBUS_WORD_DATA if size == 2 else self._library.I2C_SMBUS_I2C_BLOCK_DATA
        message = self._library.i2c_smbus_ioctl_data.create(direction, register, kind)
        data = message.data.contents
        if size == 2:
            data.word = word
        else:
            data.block[0] = size
        self._pointers.pop(address, None)
        self._ioctl(self._bus.fd, I2C_SLAVE, address)
        self._ioctl(self._bus.fd, I2C_SMBUS, message)
        self._pointers[address] = register
        return data

    def write_word(self, address: int, register: int, word: int) -> None:
        if not self.has_i2c:
            swapped = int.from_bytes(word.to_bytes(2, "big"), "little")
            self._transfer(address, register, self._library.I2C_SMBUS_WRITE, word=swapped)
            return
        message = self._library.i2c_msg.write(address, [register, word >> 8, word & 0xFF])
        self._ioctl(self._bus.fd, I2C_RDWR, self._library.i2c_rdwr_ioctl_data.create(message))

    def close(self) -> None:
        """Let go of the device file. Harmless when it is not open."""
        self._bus.close()


@contextmanager
def open_bus(number: int) -> Iterator[RegisterBus]:
    """The bus behind /dev/i2c-N. Raises `SensorError`."""
    bus = LinuxBus(number)
    try:
        yield bus
    finally:
        bus.close()


OpenBus = Callable[[int], AbstractContextManager[RegisterBus]]
