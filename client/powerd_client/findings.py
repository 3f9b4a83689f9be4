"""What a check of a run file found."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "wrong", "unknown"]
Check = Generator[str, None, str]
"""Yields what is wrong, and returns what was looked at."""

LEVELS = ("info", "warning", "error")
"""Of messages in a run file."""
_SAID = 5
"""What is wrong is told this often for each check, and then counted."""


class NotStored(Exception):
    """A check needs something that the release that wrote the file did not store."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. ``unknown`` is neither: the file does not hold what would be needed to tell."""

    check: str
    state: State
    text: str


def found(name: str, wrong: list[str], text: str) -> Finding:
    """The finding of a check that told what is ``wrong``, else ``text``."""
    if not wrong:
        return Finding(name, "ok", text)
    more = f"; and {len(wrong) - _SAID} more" if len(wrong) > _SAID else ""
    return Finding(name, "wrong", "; ".join(wrong[:_SAID]) + more)
