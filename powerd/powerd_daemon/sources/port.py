"""Serial ports and USBTMC device files, as sources want them: bytes when they come, errors that say what to do.

The one importer of pyserial.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from powerd_core.errors import SensorError
from powerd_core.text import needs_extra

WRITE_TIMEOUT_S = 0.5
CHUNK = 1 << 16
BITS_PER_CHARACTER = 10
USB_ANSWER_BYTES = 4096
SERIAL_PORTS, USBTMC_FILES = ("serial/by-id/*", "ttyACM[0-9]*", "ttyUSB[0-9]*"), ("usbtmc[0-9]*",)
_REMEDIES = {
    errno.EACCES: "add this user to the group dialout (sudo usermod -aG dialout $USER) and log in again",
}


def missing(path: str, dev: Path = Path("/dev")) -> str:
    """What to do about a port that is not there: which ones are, the most alike first."""
    patterns = USBTMC_FILES if is_usbtmc(path) else SERIAL_PORTS
    here = [str(port) for pattern in patterns for port in sorted(dev.glob(pattern))]
    if not here:
        return "no such device is here: is it plugged in and switched on?"
    alike = get_close_matches(path, here, 1, 0.5)
    names = ", ".join([*alike, *(name for name in here if name not in alike)][:4])
    return f"name one that is here, without *: {names}" if "*" in path else f"here is {names}"


class Port(Protocol):
    """An open serial port or device file. Reading and writing raise `SensorError` when it is gone; it may be closed
    twice."""

    name: str
    byte_ns: int
    """Time of one character on the wire; 0 where it does not count."""
    blocks: bool
    """`read` waits for an answer, so it may only be called when one is due."""

    def read(self, timeout_ns: int = 0) -> bytes:
        """What has come; waits for at most ``timeout_ns`` while there is nothing."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


OpenPort = Callable[[str, int], Port]
"""From a port's name and a baud rate."""


class SerialPort:
    """A port that pyserial opens: 8 data bits, no parity, 1 stop bit, no flow control, for us alone."""

    blocks = False

    def __init__(self, path: str, baud: int) -> None:
        try:
            import serial
        except ImportError as error:
            raise SensorError(f"{path}: serial ports need pyserial: {needs_extra('board')}") from error
        self.name = path
        self.byte_ns = BITS_PER_CHARACTER * 1_000_000_000 // baud
        # A port that is closed under pyserial's hands shows as a TypeError.
        self._errors: tuple[type[Exception], ...] = (serial.SerialException, OSError, TypeError)
        try:
            self._port: Any = serial.Serial(path, baud, timeout=0, write_timeout=WRITE_TIMEOUT_S, exclusive=True)
        except (serial.SerialException, OSError, ValueError) as error:
            if not os.path.exists(path):
                raise SensorError(f"{path} is not there: {missing(path)}") from error
            remedy = _REMEDIES.get(getattr(error, "errno", None) or 0, "is another program using it?")
            raise SensorError(f"{path} cannot be opened: {error}: {remedy}") from error

    def read(self, timeout_ns: int = 0) -> bytes:
        try:
            waiting = self._port.in_waiting
            if waiting or timeout_ns <= 0:
                data: bytes = self._port.read(min(waiting, CHUNK)) if waiting else b""
                return data
            self._port.timeout = timeout_ns * 1e-9
            first: bytes = self._port.read(1)
            self._port.timeout = 0
            return first + self._port.read(CHUNK) if first else b""
        except self._errors as error:
            raise SensorError(f"{self.name}: the device was unplugged or its port failed ({error})") from error

    def write(self, data: bytes) -> None:
        try:
            self._port.write(data)
        except self._errors as error:
            raise SensorError(f"{self.name}: the device was unplugged or does not take data ({error})") from error

    def close(self) -> None:
        with suppress(*self._errors):
            self._port.close()


class UsbtmcFile:
    """A device file of Linux's usbtmc driver: one write is one message, one read is one answer."""

    blocks = True
    byte_ns = 0

    def __init__(self, path: str) -> None:
        self.name = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise SensorError(f"{path} is not there: {missing(path)}") from error
            remedy = (
                "docs/reference/sources.md has a udev rule"
                if error.errno == errno.EACCES
                else "is the meter plugged in?"
            )
            raise SensorError(f"{path} cannot be opened ({error.strerror}): {remedy}") from error

    def read(self, timeout_ns: int = 0) -> bytes:
        try:
            return os.read(self._file, USB_ANSWER_BYTES)
        except TimeoutError:
            return b""
        except OSError as error:
            raise SensorError(f"{self.name} does not answer ({error.strerror}): is the meter still there?") from error

    def write(self, data: bytes) -> None:
        try:
            os.write(self._file, data)
        except OSError as error:
            raise SensorError(f"{self.name} does not take what is written ({error.strerror})") from error

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def is_usbtmc(port: str) -> bool:
    """Whether a port is a device file of the usbtmc driver, by its name."""
    return os.path.basename(port).startswith("usbtmc")


def open_port(port: str, baud: int) -> Port:
    """The port behind a name: files called ``usbtmc...`` are USBTMC, everything else is serial."""
    return UsbtmcFile(port) if is_usbtmc(port) else SerialPort(port, baud)


class LineReader:
    """Whole lines out of the pieces that `Port.read` gives, each with the moment at which its first byte came.

    What came between two looks came at the middle of them; within one piece, bytes are `Port.byte_ns` apart.
    """

    MAX_LINE = 1024
    """No meter's line is so long. A user's pattern may take its time by the square of a line's length."""

    def __init__(self, byte_ns: int) -> None:
        self._byte_ns = byte_ns
        self._held = b""
        self._begun_ns = 0

    def feed(self, data: bytes, before_ns: int, now_ns: int) -> list[tuple[int, bytes]]:
        """Begin and text of each line that is complete by now, at most `MAX_LINE` of it, without LF or CR LF."""
        # A character's last bit arrives when it can be read: its first bit came one character earlier.
        begun_ns = (before_ns + now_ns) // 2 - len(data) * self._byte_ns
        if not self._held:
            self._begun_ns = begun_ns
        lines = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            lines.append((self._begun_ns, (self._held + end)[: self.MAX_LINE].removesuffix(b"\r")))
            begun_ns += (len(end) + 1) * self._byte_ns
            self._held, self._begun_ns = b"", begun_ns
        self._held = (self._held + rest)[: self.MAX_LINE]
        return lines
