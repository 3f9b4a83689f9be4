"""One line to the user, on the error stream of the process that trains.

Whatever stands in for that stream (none, a closed one, a pipe that nobody reads, a notebook's own), nothing here
raises: it is no reason to stop a training.
"""

from __future__ import annotations

import sys

from powerd_core.text import printable


def tell(text: str) -> bool:
    """Print ``powerd: TEXT``. Whether that was possible."""
    return _write(f"powerd: {printable(text)}\n")


def show_progress(text: str) -> bool:
    """Print it over the line before, without an end of the line, where somebody looks. Whether that was done."""
    try:
        return sys.stderr is not None and sys.stderr.isatty() and _write(f"\rpowerd: {printable(text)}")
    except Exception:  # noqa: BLE001  (as said above)
        return False


def end_progress() -> None:
    """The end of the line that `show_progress` left."""
    _write("\n")


def _write(text: str) -> bool:
    if sys.stderr is None:
        return False
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  (as said above)
        return False
    return True
