"""What the client tells its user: the logger ``powerd``, by default lines on the error stream of the training process.

Whatever stands in for that stream (none, a closed one, a pipe that nobody reads, a notebook's own), nothing here
raises: it is no reason to stop a training.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

from powerd_core.text import LEGIBLE, printable, register_legible

register_legible()


class _ErrorStream(logging.Handler):
    """``powerd: TEXT`` on whatever ``sys.stderr`` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # as said above
            sys.stderr.write(f"powerd: {printable(self.format(record))}\n")
            sys.stderr.flush()


log = logging.getLogger("powerd")
log.addHandler(_ErrorStream())
log.propagate = False


def tell(text: str) -> None:
    """One warning."""
    log.warning("%s", text)


def show(text: str) -> None:
    """Lines that are no warning: a result, or what is being done."""
    with contextlib.suppress(Exception):  # as said above
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(text.encode(encoding, LEGIBLE).decode(encoding) + "\n")
        sys.stderr.flush()


def shown_path(path: Path) -> str:
    """A path for a line of text: from where the user stands, unless that is longer."""
    with contextlib.suppress(OSError, ValueError):
        return printable(min(str(path), os.path.relpath(path), key=len))
    return printable(str(path))


def last_line(path: Path) -> str:
    """What a process that ended said last in its log."""
    with contextlib.suppress(OSError):
        if lines := path.read_text(errors="replace").strip().splitlines():
            return lines[-1]
    return "it said nothing"
