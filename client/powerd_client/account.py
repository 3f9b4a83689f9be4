"""Parts of a stream, and the account that is kept of them: what was received, what is missing, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from powerd_client.datasets import clean, own_name
from powerd_client.frames import StreamFrames
from powerd_client.hosttime import to_host_ns
from powerd_core.clock import ClockPiece
from powerd_core.model import Description, Stream

Note = Callable[[str, str, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """One epoch of a stream: who described it, its frames, and its clock (no pieces where nothing maps it)."""

    description: Description
    stream: Stream
    frames: StreamFrames
    pieces: tuple[ClockPiece, ...]

    @property
    def names(self) -> list[str]:
        return [own_name(line.name) for line in self.stream.lines]

    @property
    def clock(self) -> str:
        return clock_name(self.description)

    def host_ns(self, t_board_ns: int) -> int:
        """A board time on the host's clock; it need not be that of a reading."""
        return int(to_host_ns(np.array([t_board_ns], np.int64), self.pieces)[0])

    @property
    def reach_ns(self) -> tuple[int, int] | None:
        """First and last reading on the host's clock, None without any that has a place in time."""
        places = self.frames.places.values()
        if not places or not self.pieces:
            return None
        first, last = min(p.t_first_ns for p in places), max(p.t_last_ns for p in places)
        return self.host_ns(first), self.host_ns(last)


@dataclass(slots=True)
class Account:
    """What is known of the readings beside themselves: what is missing, and that received and missing is all of it."""

    note: Note
    t_start_ns: int = 0
    t_stop_ns: int = 0
    ends: str = "powerd sent nothing more"
    """Why readings are missing at the end of the run, if they are."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def gap(self, part: Part, begin_ns: int, end_ns: int, cause: str, *, lost: int = -1, numbers: int = 0) -> None:
        """Readings of a part that are missing. ``numbers`` of the stream would have brought them, as far as known."""
        self.gaps.append(
            {
                "stream": clean(part.stream.source),
                "lines": part.names,
                "begin_ns": begin_ns,
                "end_ns": max(begin_ns, end_ns),
                "lost": lost,
                "cause": clean(cause),
                "numbers": numbers,
                "clock": part.clock,
            }
        )

    def part(self, part: Part, missing: int) -> None:
        """A part and its numbers: blocks that are there, and ``missing`` ones that gaps declare."""
        places, (first, behind) = part.frames.places, part.frames.numbers
        self.parts.append(
            {
                "stream": part.stream.source,
                "number": part.stream.number,
                "clock": part.clock,
                "lines": part.names,
                "first": first,
                "behind": behind,
                "blocks": len(places),
                "missing": missing,
                "scans": sum(p.scans for p in places.values()),
                "in_file": bool(part.pieces),
            }
        )


def clock_name(description: Description) -> str:
    """The name of a clock's group in the run file: its board and the epoch."""
    return f"{own_name(description.board)}-{description.epoch:016x}"
