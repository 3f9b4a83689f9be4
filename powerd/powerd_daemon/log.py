"""What powerd says on stderr, by the standard library's `logging`: one line each, never more than a person can read.

The modules of this package log to children of ``powerd_daemon``: what the user expects to see as INFO, what is wrong as
WARNING. `powerd run` shows both through a `Console`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TextIO

from powerd_core.text import printable
from powerd_daemon.clock import Clock

BURST = 10
BURST_NS = 10_000_000_000
MAX_LINE = 1000
"""What others say is repeated in warnings, and nobody reads more of it."""


class Console(logging.Handler):
    """Lines to ``stream``, between entering and leaving it. INFO is silenced by ``quiet``; warnings never are, but at
    most ten are shown in ten seconds, and how many were left out is said later. Without a stream nothing is said.
    """

    def __init__(self, stream: TextIO | None, clock: Clock, *, quiet: bool = False) -> None:
        super().__init__(logging.WARNING if quiet else logging.INFO)
        self._stream = stream
        self._clock = clock
        self._begin_ns = clock.now_ns()
        self._warnings = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno >= logging.WARNING:
            now_ns = self._clock.now_ns()
            if now_ns - self._begin_ns >= BURST_NS:
                if self._warnings > BURST:
                    self._put(f"powerd: {self._warnings - BURST} more complaints were left out\n")
                self._begin_ns, self._warnings = now_ns, 0
            self._warnings += 1
            if self._warnings > BURST:
                return
            line = printable(f"powerd: {line}", limit=MAX_LINE)
        # Names and errors in it may come from anybody.
        self._put(printable(line) + "\n")

    def _put(self, text: str) -> None:
        if self._stream is not None:
            # Measuring goes on when nobody reads what is said about it.
            with suppress(OSError, ValueError):
                self._stream.write(text)
                self._stream.flush()

    def __enter__(self) -> Console:
        package = logging.getLogger("powerd_daemon")
        package.setLevel(logging.INFO)
        package.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("powerd_daemon").removeHandler(self)
