"""Telling systemd that powerd is ready and alive: datagrams to NOTIFY_SOCKET (sd_notify(3)), without libsystemd."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

PINGS_PER_LIMIT = 3
"""A ping is sent when a third of the watchdog's time has passed, so that one may be late."""


class Notifier:
    """Speaks to the service manager that started this process; says nothing where there is none.

    A service manager that went away never disturbs a measurement: errors of sending are ignored.
    """

    def __init__(self, environment: Mapping[str, str] | None = None, pid: int | None = None) -> None:
        env = os.environ if environment is None else environment
        path = env.get("NOTIFY_SOCKET", "")
        # A leading @ is systemd's way of writing the zero byte of an abstract socket.
        self._address = "\0" + path[1:] if path.startswith("@") else path
        limit_us, owner = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
        mine = str(os.getpid() if pid is None else pid)
        self._ping_ns = int(limit_us) * 1000 // PINGS_PER_LIMIT if limit_us.isdigit() and owner in ("", mine) else 0
        self._due_ns: int | None = None

    def ready(self, status: str) -> None:
        """All sources have been opened and clients are answered."""
        self._send(f"READY=1\nSTATUS={_one_line(status)}")

    def alive(self, now_ns: int) -> None:
        """To be called from the loop that serves, and from nowhere else: sends a ping when one is due."""
        if self._ping_ns and (self._due_ns is None or now_ns >= self._due_ns):
            self._due_ns = now_ns + self._ping_ns
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """powerd has been told to end and hands out what it still has."""
        self._send("STOPPING=1")

    def _send(self, message: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as s:
                s.sendto(message.encode(), self._address)


def _one_line(text: str) -> str:
    return " ".join(text.split())
