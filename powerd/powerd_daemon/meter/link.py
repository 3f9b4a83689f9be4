"""The way to a meter that talks in text: a serial port or a USBTMC device file. The one place that opens them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from powerd_core.errors import SensorError
from powerd_daemon.serial import Port, SerialPort

BITS_PER_CHARACTER = 10
USB_ANSWER_BYTES = 4096


class Link(Protocol):
    """Bytes to and from a meter. Every method raises `SensorError` when the meter is gone."""

    name: str
    byte_ns: int
    """Time of one character on the wire; 0 where it does not count."""
    blocks: bool
    """`read` waits for an answer, so it may only be called when one is due; else it returns what is there."""

    def read(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


OpenLink = Callable[[str, int], Link]
"""From a port and a baud rate."""


class SerialLink:
    """A serial port, read without waiting."""

    blocks = False

    def __init__(self, port: str, baud: int) -> None:
        self.name = port
        self.byte_ns = BITS_PER_CHARACTER * 1_000_000_000 // baud
        self._port: Port = SerialPort(port, baud)

    def read(self) -> bytes:
        return self._port.read(0)

    def write(self, data: bytes) -> None:
        self._port.write(data)

    def close(self) -> None:
        self._port.close()


class UsbtmcLink:
    """A device file of Linux's usbtmc driver: one write is one message, one read is one answer."""

    blocks = True
    byte_ns = 0

    def __init__(self, path: str) -> None:
        self.name = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError as error:
            raise SensorError(
                f"{path} may be opened by root alone: let one group have it with a udev rule, see docs/sources.md"
            ) from error
        except OSError as error:
            raise SensorError(f"{path} cannot be opened ({error.strerror}): is the meter plugged in?") from error

    def read(self) -> bytes:
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


def open_link(port: str, baud: int) -> Link:
    """The link behind a port's name: files called ``usbtmc...`` are USBTMC, everything else is serial."""
    if is_usbtmc(port):
        return UsbtmcLink(port)
    return SerialLink(port, baud)


class LineReader:
    """Whole lines out of the pieces that `Link.read` gives, each with the moment at which its first byte came.

    What came between two looks came at the middle of them; within one piece, bytes are `Link.byte_ns` apart.
    """

    MAX_LINE = 1024
    """No meter's line is so long: of what is, the rate or the device is wrong, and neither memory nor a user's pattern,
    which may take its time by the square of a line's length, is for garbage."""

    def __init__(self, byte_ns: int) -> None:
        self._byte_ns = byte_ns
        self._held = b""
        self._begun_ns = 0
        self._overrun = False
        """The line that is under way is too long; its beginning was given out."""

    @property
    def begun_ns(self) -> int | None:
        """When the line that is under way began, if one is."""
        return self._begun_ns if self._held else None

    def feed(self, data: bytes, before_ns: int, now_ns: int) -> list[tuple[int, bytes]]:
        """Begin and text of each line that is complete by now, without its end (LF, or CR LF)."""
        found: list[tuple[int, bytes]] = []
        # A character's last bit arrives when it can be read: its first bit came one character earlier.
        first_ns = (before_ns + now_ns) // 2 - len(data) * self._byte_ns
        if not self._held:
            self._begun_ns = first_ns
        held_before = len(self._held)
        text, at = self._held + data, 0
        while (end := text.find(b"\n", at)) >= 0:
            if not self._overrun:
                found.append((self._begun_ns, text[at : min(end, at + self.MAX_LINE)].removesuffix(b"\r")))
            self._overrun = False
            at = end + 1
            self._begun_ns = first_ns + (at - held_before) * self._byte_ns
        self._held = text[at:]
        if len(self._held) > self.MAX_LINE and not self._overrun:
            found.append((self._begun_ns, self._held[: self.MAX_LINE]))
            self._overrun = True
        if self._overrun:
            self._held = b""
        return found
