"""A serial port as sources want it: bytes when they come, errors that say what to do. The one importer of pyserial."""

from __future__ import annotations

import errno
from typing import Any, Protocol

from powerd_core.errors import SensorError

WRITE_TIMEOUT_S = 0.5
CHUNK = 1 << 16


class Port(Protocol):
    """An open serial port."""

    def read(self, timeout_ns: int) -> bytes:
        """What has come; waits for at most ``timeout_ns`` while there is nothing. Raises `SensorError`."""
        ...

    def write(self, data: bytes) -> None:
        """Send. Raises `SensorError` when the port is gone or does not take it."""
        ...

    def close(self) -> None:
        """Let go of it. Harmless when it is closed already."""
        ...


class SerialPort:
    """A port that pyserial opens: 8 data bits, no parity, 1 stop bit, no flow control, for us alone.

    Raises `SensorError` with a remedy when there is no such port, no permission, or somebody else has it. On a
    pseudo terminal there are no control lines; pyserial then leaves RTS and DTR alone.
    """

    def __init__(self, path: str, baud: int) -> None:
        try:
            import serial
        except ImportError as error:
            raise SensorError(f"{path}: serial ports need pyserial: pip install 'powerd[board]'") from error
        self._path = path
        self._error: type[Exception] = serial.SerialException
        try:
            self._port: Any = serial.Serial(path, baud, timeout=0, write_timeout=WRITE_TIMEOUT_S, exclusive=True)
        except (serial.SerialException, OSError, ValueError) as error:
            raise SensorError(self._why(error)) from error

    def read(self, timeout_ns: int) -> bytes:
        try:
            waiting = self._port.in_waiting
            if not waiting and timeout_ns > 0:
                self._port.timeout = timeout_ns * 1e-9
                first: bytes = self._port.read(1)
                return first + self._take(self._port.in_waiting) if first else b""
            return self._take(waiting)
        except (self._error, OSError, TypeError) as error:
            # A port that is closed under pyserial's hands shows as a TypeError.
            raise SensorError(f"{self._path}: the device was unplugged or its port failed ({error})") from error

    def write(self, data: bytes) -> None:
        try:
            self._port.write(data)
        except (self._error, OSError, TypeError) as error:
            raise SensorError(f"{self._path}: the device was unplugged or does not take data ({error})") from error

    def close(self) -> None:
        try:
            self._port.close()
        except (self._error, OSError) as error:
            raise SensorError(f"{self._path}: the port could not be closed: {error}") from error

    def _take(self, waiting: int) -> bytes:
        if not waiting:
            return b""
        self._port.timeout = 0
        data: bytes = self._port.read(min(waiting, CHUNK))
        return data

    def _why(self, error: Exception) -> str:
        """One line on why the port could not be opened, and what to do."""
        number = getattr(error, "errno", None)
        if number == errno.ENOENT:
            return f"{self._path}: there is no such port: is it plugged in? (`ls /dev/serial/by-id` lists what is)"
        if number in (errno.EACCES, errno.EPERM):
            return (
                f"{self._path}: permission denied: add this user to the group dialout "
                "(sudo usermod -aG dialout $USER) and log in again"
            )
        if number in (errno.EBUSY, errno.EAGAIN) or "lock" in str(error):
            return f"{self._path}: the port is in use by another program (see `fuser -v {self._path}`): end it first"
        return f"{self._path}: the port cannot be opened: {error}"
