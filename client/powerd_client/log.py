"""What the client tells its user: the logger ``powerd``, by default lines on the error stream of the training process.

Whatever stands in for that stream (none, a closed one, a pipe that nobody reads, a notebook's own), nothing here
raises: it is no reason to stop a training.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

from powerd_core.text import printable


class _ErrorStream(logging.Handler):
    """``powerd: TEXT`` on whatever ``sys.stderr`` is at that moment."""

    is_written = False
    """Whether the last line was."""

    def emit(self, record: logging.LogRecord) -> None:
        self.is_written = False
        with contextlib.suppress(Exception):  # as said above
            sys.stderr.write(f"powerd: {printable(self.format(record))}\n")
            sys.stderr.flush()
            self.is_written = True


log = logging.getLogger("powerd")
_handler = _ErrorStream()
log.addHandler(_handler)
log.propagate = False


def tell(text: str) -> bool:
    """One warning. Whether it was written, as far as the default handler knows."""
    _handler.is_written = False
    log.warning("%s", text)
    return _handler.is_written


def last_line(path: Path) -> str:
    """What a process that ended said last in its log."""
    try:
        lines = path.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "it said nothing"
