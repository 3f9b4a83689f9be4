"""What powerd says on stderr: one line each, and never more of them than a person can read."""

from __future__ import annotations

from contextlib import suppress
from typing import TextIO

from powerd_core.text import printable
from powerd_daemon.clock import Clock

BURST = 10
BURST_NS = 10_000_000_000
MAX_LINE = 1000
"""What others say is repeated in complaints, and nobody reads more of it."""


class Log:
    """Lines to ``stream``. ``note`` is silenced by ``quiet``; ``complain`` never is, but bounded in rate.

    Without a stream (a process whose stderr was closed before it began has none) nothing is said.
    """

    def __init__(self, stream: TextIO | None, clock: Clock, *, quiet: bool = False) -> None:
        self._stream = stream
        self._clock = clock
        self._quiet = quiet
        self._begin_ns = clock.now_ns()
        self._said = 0
        self._swallowed = 0
        self._status = False

    @property
    def is_terminal(self) -> bool:
        return self._stream is not None and not self._quiet and self._stream.isatty()

    def note(self, line: str) -> None:
        """Something the user expects to see."""
        if not self._quiet:
            self._write(line)

    def complain(self, line: str) -> None:
        """Something is wrong. At most ten such lines in ten seconds; how many were left out is said later."""
        now_ns = self._clock.now_ns()
        if now_ns - self._begin_ns >= BURST_NS:
            self._begin_ns, self._said = now_ns, 0
            if self._swallowed:
                self._write(f"powerd: {self._swallowed} more complaints were left out")
                self._swallowed = 0
        if self._said < BURST:
            self._said += 1
            self._write(printable(f"powerd: {line}", limit=MAX_LINE))
        else:
            self._swallowed += 1

    def status(self, line: str) -> None:
        """The line at the bottom of a terminal, replaced by the next one."""
        self._put(f"\r\x1b[K{line}")
        self._status = True

    def _write(self, line: str) -> None:
        if self._status:
            self._put("\r\x1b[K")
            self._status = False
        # Names and errors in it may come from anybody.
        self._put(printable(line) + "\n")

    def _put(self, text: str) -> None:
        if self._stream is None:
            return
        # Measuring goes on when nobody reads what is said about it.
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
