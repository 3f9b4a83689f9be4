"""Anchors between the host's clock and the wall clock, for traces of other tools, which are dated by the wall clock.

An anchor is a note in the journal, so that it comes into the run file's messages as it is: ``t_ns`` on the host's
clock, and in the text the Unix time at that moment. Nothing of a run is computed from it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from powerd_client.hostclock import now_ns

DENSE_NS = 1_000_000_000
"""Distance of anchors during the first minute, in which most profiles are taken."""
SPARSE_NS = 10_000_000_000
_DENSE_COUNT = 60
_TRIES = 5
_TEXT = re.compile(r"wall clock: (\d{1,19}) ns since 1970 ± (\d{1,19}) ns")
_MOST_NS = 1 << 62
"""Beyond it no difference of two times fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class WallAnchor:
    """The wall clock read between two readings of the host's clock ``2 * half_ns`` apart."""

    t_host_ns: int
    t_unix_ns: int
    half_ns: int


def take_anchor() -> WallAnchor:
    """Both clocks now: the closest of a few tries, as a process may be stopped between two readings."""
    tries = []
    for _ in range(_TRIES):
        before = now_ns()
        unix = time.time_ns()
        after = now_ns()
        tries.append(((after - before) // 2 + 1, (before + after) // 2, unix))
    half, host, unix = min(tries)
    return WallAnchor(host, unix, half)


def anchor_note(anchor: WallAnchor) -> dict[str, Any]:
    """The body of the note that `read_anchor` reads."""
    text = f"wall clock: {anchor.t_unix_ns} ns since 1970 ± {anchor.half_ns} ns"
    return {"t_ns": anchor.t_host_ns, "level": "info", "text": text}


def read_anchor(message: Mapping[str, Any]) -> WallAnchor | None:
    """The anchor that a run's message is, None for any other."""
    found = _TEXT.fullmatch(str(message.get("text", "")))
    t_ns = message.get("t_ns")
    if found is None or not isinstance(t_ns, int):
        return None
    anchor = WallAnchor(t_ns, int(found[1]), int(found[2]))
    return anchor if max(abs(t_ns), anchor.t_unix_ns, anchor.half_ns) < _MOST_NS else None


class WallAnchors:
    """Says when an anchor is due."""

    def __init__(self) -> None:
        self._due_ns = 0
        self._count = 0

    def note(self, at_ns: int) -> dict[str, Any] | None:
        """The body of a note to write now, or None."""
        if at_ns < self._due_ns:
            return None
        self._count += 1
        self._due_ns = at_ns + (DENSE_NS if self._count <= _DENSE_COUNT else SPARSE_NS)
        return anchor_note(take_anchor())
