"""What the client tells its user: the logger ``powerd``, by default lines on the error stream of the training process.

Whatever stands in for that stream (none, a closed one, a pipe that nobody reads, a notebook's own), nothing here
raises: it is no reason to stop a training.
"""

from __future__ import annotations

import contextlib
import logging
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


def show(text: str, end: str = "\n") -> None:
    """Lines that are no warning: a result, or what is being done."""
    with contextlib.suppress(Exception):  # as said above
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(text.encode(encoding, LEGIBLE).decode(encoding) + end)
        sys.stderr.flush()


def is_terminal() -> bool:
    """Whether a line on the error stream can be replaced by the next one."""
    try:
        return bool(sys.stderr.isatty())
    except Exception:  # noqa: BLE001  (as said above)
        return False


def last_line(path: Path) -> str:
    """What a process that ended said last in its log."""
    with contextlib.suppress(OSError):
        if lines := path.read_text(errors="replace").strip().splitlines():
            return lines[-1]
    return "it said nothing"
