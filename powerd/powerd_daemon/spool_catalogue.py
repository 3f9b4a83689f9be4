"""Which segments there are, and which numbers of which streams they hold: shared by the spool's threads and the server.

Threads change it under a lock and by replacing what others read, so that the server never waits for a lock to look.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from powerd_daemon.spool_segments import START, Place, Places, Segment


@dataclass(slots=True)
class Epoch:
    """One life of powerd. It stays known when its last segment is gone, so that what is missing can be told."""

    number: int
    description: bytes = b""
    """The frame of its description; empty when no segment holds a good one."""
    segments: tuple[Segment, ...] = ()
    """In order."""
    end: Places = field(default_factory=dict)
    """By stream: where what was written ends. Replaced as a whole."""

    def oldest(self, stream: int) -> Place:
        """The first number that is held, or would be: after a hole the archive makes a gap of it."""
        segments = self.segments
        return segments[0].begin.get(stream, START) if segments else self.end.get(stream, START)

    def next(self, stream: int) -> int:
        return self.end.get(stream, START).next

    def covering(self, stream: int, sequence: int) -> tuple[Segment, Segment | None] | None:
        """The segment to which a number belongs and the one after it. Of two that hold it, the later."""
        segments = self.segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].begin.get(stream, START).next <= sequence:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        return segments[low - 1], segments[low] if low < len(segments) else None


class Catalogue:
    """All segments, from the oldest on, and all epochs that can be asked for."""

    def __init__(self) -> None:
        self.segments: tuple[Segment, ...] = ()
        self.epochs: dict[int, Epoch] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def add(self, segment: Segment) -> None:
        """List a segment, younger than all others, and let its epoch have it where that is known."""
        with self._lock:
            self.segments = (*self.segments, segment)
            if (epoch := self.epochs.get(segment.epoch)) is not None:
                epoch.segments = (*epoch.segments, segment)

    def publish(self, epoch: Epoch) -> None:
        """Let an epoch be found, with those of its segments that are still there."""
        with self._lock:
            epoch.segments = tuple(s for s in epoch.segments if s in self.segments)
            self.epochs[epoch.number] = epoch

    def remove(self, segment: Segment) -> None:
        """A segment whose file is gone."""
        with self._lock:
            self.segments = tuple(s for s in self.segments if s is not segment)
            if (epoch := self.epochs.get(segment.epoch)) is not None:
                epoch.segments = tuple(s for s in epoch.segments if s is not segment)
