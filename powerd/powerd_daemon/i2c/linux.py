"""Linux's ``/dev/i2c-N`` as a register bus. The one module that imports smbus2.

Messages and buffers are laid out once, so that a scan is one ``ioctl`` on a ready structure: the words of all reads
arrive one after the other in one buffer.
"""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable, Sequence
from ctypes import POINTER, addressof, c_char, cast
from typing import Any

from powerd_core.errors import ConfigError, SensorError
from powerd_daemon.ina.bus import Read, ReadWords, split

I2C_RETRIES, I2C_TIMEOUT, I2C_RDWR = 0x0701, 0x0702, 0x0707
"""Requests of <linux/i2c-dev.h>. The timeout counts in 10 ms."""

Ioctl = Callable[[int, int, Any], Any]


class LinuxBus:
    """Satisfies `powerd_daemon.ina.bus.RegisterBus`. ``bus`` is a number or a path.

    A transfer that the adapter's driver cannot finish ends after ``timeout_ms`` with an error. Raises `SensorError`
    when the bus cannot be opened, with what to do.
    """

    def __init__(self, bus: int | str, *, timeout_ms: int = 50, ioctl: Ioctl = fcntl.ioctl) -> None:
        self.path = bus if isinstance(bus, str) else f"/dev/i2c-{bus}"
        try:
            import smbus2.smbus2 as library
        except ImportError as error:
            raise ConfigError("reading an I2C bus needs smbus2: pip install 'powerd[board]'") from error
        self._library: Any = library
        self._ioctl = ioctl
        self._bus: Any = None
        try:
            self._bus = library.SMBus(self.path)
            self._fd = self._bus.fd
            self._set(I2C_TIMEOUT, max(1, timeout_ms // 10))
            self._set(I2C_RETRIES, 0)
        except OSError as error:
            self.close()
            raise SensorError(f"{self.path} cannot be opened: {_remedy(error)}") from error

    def prepare(self, reads: Sequence[Read]) -> ReadWords:
        sizes = [r.size for r in reads]
        buffer = (c_char * max(1, sum(sizes)))()
        requests: list[Any] = []
        pointed_at: list[object] = [buffer]
        at = 0
        for part in split(reads):
            messages = []
            for read in part:
                if read.register is not None:
                    messages.append(self._library.i2c_msg.write(read.address, [read.register]))
                message = self._library.i2c_msg.read(read.address, read.size)
                message.buf = cast(addressof(buffer) + at, POINTER(c_char))
                messages.append(message)
                at += read.size
            pointed_at.append(messages)
            if messages:
                requests.append(self._library.i2c_rdwr_ioctl_data.create(*messages))
        view, fd, ioctl = memoryview(buffer).cast("B")[:at], self._fd, self._ioctl

        # The kernel writes through bare pointers: what they point to has to live as long as the call.
        def call(_alive: object = pointed_at) -> memoryview:
            for request in requests:
                ioctl(fd, I2C_RDWR, request)
            return view

        if len(requests) != 1:
            return call
        (only,) = requests

        def call_once(_alive: object = pointed_at) -> memoryview:
            ioctl(fd, I2C_RDWR, only)
            return view

        return call_once

    def write_word(self, address: int, register: int, word: int) -> None:
        message = self._library.i2c_msg.write(address, [register, word >> 8, word & 0xFF])
        self._ioctl(self._fd, I2C_RDWR, self._library.i2c_rdwr_ioctl_data.create(message))

    def close(self) -> None:
        """Let go of the device file. Harmless when it is not open."""
        if self._bus is not None:
            self._bus.close()
            self._bus = None

    def _set(self, request: int, value: int) -> None:
        try:
            self._ioctl(self._fd, request, value)
        except OSError as error:
            # Some adapters have settings of their own that cannot be changed; theirs then count.
            if error.errno not in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):
                raise


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.ENOENT | errno.ENODEV | errno.ENXIO:
            return "there is no such bus: enable it in the boot settings and load i2c-dev (modprobe i2c-dev)"
        case errno.EACCES | errno.EPERM:
            return "permission denied: add the user to the group i2c (usermod -aG i2c USER) and log in again"
        case errno.EBUSY:
            return "it is in use: unload the kernel driver that holds its chips (rmmod ina2xx)"
        case errno.ENOTTY:
            return "it is no I2C bus: give the number or path of a /dev/i2c-N"
    return error.strerror or str(error)
