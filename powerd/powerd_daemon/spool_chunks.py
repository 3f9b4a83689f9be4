"""A piece of a segment in memory: what every stream has there, without a hole.

What should be there and is not becomes a gap with its cause, just as in a ring.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace

from powerd_core.model import UNKNOWN_TIME_NS, Gap
from powerd_core.wire import Header, decode, encode
from powerd_daemon.ring import MAX_SPAN
from powerd_daemon.spool_segments import START, Place, Places, belongs

DAMAGED = "damaged in powerd's spool"
MISSED = "not in powerd's spool: its disk did not take it in time"
UNREADABLE = "cannot be read from powerd's spool"


class Chunk:
    """For each stream the frames of the numbers from its place in ``begin`` up to its place in ``end``.

    ``found`` is what `scan` gave. What does not carry on a stream, or lies beyond the end, is passed over; ``cause`` is
    told for what is missing without a trace of damage.
    """

    def __init__(
        self,
        epoch: int,
        begin: Places,
        end: Places,
        found: Iterable[tuple[int, bytes, Header | None]],
        cause: str = MISSED,
    ) -> None:
        self.epoch = epoch
        self.size_bytes = 0
        self.used = False
        self.loaded_ns = 0
        self.end = dict(begin)
        self._begin = begin
        self._starts: dict[int, list[int]] = {}
        self._frames: dict[int, list[tuple[bytes, int]]] = {}
        found = list(found)
        if any(header is None for _, _, header in found):
            cause = DAMAGED
        for _, frame, header in found:
            if header is None or not belongs(header, epoch, self.end):
                continue
            if header.sequence >= end.get(header.stream, START).next:
                continue
            t_first_ns = header.t_last_ns if header.t_first_ns == UNKNOWN_TIME_NS else header.t_first_ns
            self._fill(header.stream, Place(header.sequence, t_first_ns), cause)
            self._add(header.stream, header.sequence, frame, Place(header.following, header.t_last_ns))
        for stream, place in end.items():
            self._fill(stream, place, cause)

    def covers(self, epoch: int, stream: int, sequence: int) -> bool:
        if epoch != self.epoch:
            return False
        return self._begin.get(stream, START).next <= sequence < self.end.get(stream, START).next

    def find(self, stream: int, sequence: int) -> tuple[bytes, int]:
        """As `Ring.find`, for a number that it covers."""
        starts = self._starts[stream]
        at = bisect_right(starts, sequence) - 1
        frame, following = self._frames[stream][at]
        if starts[at] == sequence:
            return frame, following
        gap = decode(frame)
        assert isinstance(gap, Gap)
        return encode(
            replace(gap, sequence=sequence, span=following - sequence, t_first_ns=UNKNOWN_TIME_NS, lost=-1)
        ), following

    def _fill(self, stream: int, until: Place, cause: str) -> None:
        """A gap for what is missing before ``until``; several where one cannot take so many numbers."""
        while (at := self.end.get(stream, START)).next < until.next:
            span = min(until.next - at.next, MAX_SPAN)
            gap = Gap(stream, self.epoch, at.next, at.t_last_ns, until.t_last_ns, span, -1, cause)
            self._add(stream, at.next, encode(gap), Place(at.next + span, until.t_last_ns))

    def _add(self, stream: int, sequence: int, frame: bytes, following: Place) -> None:
        self._starts.setdefault(stream, []).append(sequence)
        self._frames.setdefault(stream, []).append((frame, following.next))
        self.end[stream] = following
        self.size_bytes += len(frame)
