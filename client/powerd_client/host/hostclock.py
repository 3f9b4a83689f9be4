"""The host's clock: the same one for marks and for clock exchanges, or their difference would be nobody's.

Traces of other tools are dated by the wall clock. An anchor between the two is a note in the journal and a message of
the run file: ``t_ns`` on the host's clock, and in the text the Unix time at that moment.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

now_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW)
"""Nanoseconds of CLOCK_MONOTONIC_RAW, see `powerd_core.model.CLOCK_NAME`."""

FARTHEST_NS = 1 << 61
"""No clock reads that far from 0 (73 years)."""

_TRIES = 5
_TEXT = re.compile(r"wall clock: (\d{1,19}) ns since 1970 ± (\d{1,18}) ns")


def time_of(value: Any) -> int:
    """A time in a document. Raises `ValueError` for what cannot be one."""
    if not isinstance(value, int) or abs(value) > FARTHEST_NS:
        raise ValueError(f"{str(value)[:40]!r} is no time")
    return value


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
        before, unix, after = now_ns(), time.time_ns(), now_ns()
        tries.append(((after - before) // 2 + 1, (before + after) // 2, unix))
    half, host, unix = min(tries)
    return WallAnchor(host, unix, half)


def anchor_note(anchor: WallAnchor) -> dict[str, Any]:
    """The body of the note that `read_anchor` reads."""
    text = f"wall clock: {anchor.t_unix_ns} ns since 1970 ± {anchor.half_ns} ns"
    return {"t_ns": anchor.t_host_ns, "level": "info", "text": text}


def read_anchor(message: Mapping[str, Any]) -> WallAnchor | None:
    """The anchor that a run's message is, None for any other."""
    match, t_ns = _TEXT.fullmatch(str(message.get("text", ""))), message.get("t_ns")
    if match is None or not isinstance(t_ns, int) or max(abs(t_ns), int(match[1])) >= 2 * FARTHEST_NS:
        return None
    return WallAnchor(t_ns, int(match[1]), int(match[2]))


def started(pid: int) -> str | None:
    """When a process began (clock ticks since boot), None when it has ended or nobody can tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
