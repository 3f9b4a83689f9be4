"""The latest frames of one stream, bounded in bytes, found by sequence number."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

from powerd_core.model import UNKNOWN_TIME_NS, Gap
from powerd_core.wire import BLOCK, Header, decode, encode, read_header

FRAME_OVERHEAD_BYTES = 200
"""What Python keeps beside a frame's own bytes; counted, so that many tiny frames stay within the bound too."""

MAX_SPAN = 2**32 - 1
"""A gap's span has 32 bits; a wider hole is told in several gaps."""

EVICTED = "no longer in powerd's ring"


class Frames(Protocol):
    """One stream of one epoch, found by sequence number: a ring, or what a spool holds."""

    @property
    def epoch(self) -> int: ...

    @property
    def oldest(self) -> int:
        """The first number that is held."""
        ...

    @property
    def next(self) -> int:
        """The number after the last one."""
        ...

    @property
    def current(self) -> int:
        """Where a client begins that wants only what is new."""
        ...

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """The frame that covers ``sequence`` and begins there, and the number after it; None when it is yet to come."""
        ...


class Ring:
    """Frames that cover the sequence numbers from ``oldest`` up to ``next``, without a hole.

    The newest frame is always held, whatever its size. Frames must be appended in order.
    """

    def __init__(self, stream: int, epoch: int, max_bytes: int) -> None:
        self.stream = stream
        self.epoch = epoch
        self.max_bytes = max_bytes
        self.oldest = 0
        self.next = 0
        self.size_bytes = 0
        self.newest_block: int | None = None
        """Sequence number of the newest block ever appended."""
        self._frames: dict[int, tuple[bytes, int]] = {}
        self._wide: deque[int] = deque()
        self._t_last_ns = 0

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: bytes, header: Header) -> None:
        """Add the next frame, and let go of the oldest ones that no longer fit."""
        if header.sequence != self.next or header.following <= header.sequence:
            raise ValueError(f"frame {header.sequence}..{header.following} appended where {self.next} is next")
        self._frames[header.sequence] = frame, header.following
        self.next = header.following
        self._t_last_ns = header.t_last_ns
        self.size_bytes += len(frame) + FRAME_OVERHEAD_BYTES
        if header.kind == BLOCK:
            self.newest_block = header.sequence
        elif header.extent > 1:
            self._wide.append(header.sequence)
        while self.size_bytes > self.max_bytes and len(self._frames) > 1:
            gone, following = self._frames.pop(self.oldest)
            if self._wide and self._wide[0] == self.oldest:
                self._wide.popleft()
            self.oldest = following
            self.size_bytes -= len(gone) + FRAME_OVERHEAD_BYTES

    @property
    def held_ns(self) -> int:
        """Time from the first reading held to the last."""
        if not self._frames:
            return 0
        t_first_ns, _ = _times_ns(self._frames[self.oldest][0])
        return self._t_last_ns - t_first_ns

    @property
    def current(self) -> int:
        """Where a client begins that wants only what is new: the newest block held, else whatever comes next."""
        held = self.newest_block is not None and self.newest_block >= self.oldest
        return self.newest_block if held and self.newest_block is not None else self.next

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """The frame that covers ``sequence`` and begins there, and the number after it; None when it is yet to come.

        What is held comes verbatim; a part of a gap, or what the ring has let go, as a gap made for the occasion.
        """
        if sequence >= self.next:
            return None
        if sequence < self.oldest:
            return self._evicted(sequence)
        return self._frames.get(sequence) or self._inside_a_gap(sequence)

    def _evicted(self, sequence: int) -> tuple[bytes, int]:
        span = min(self.oldest - sequence, MAX_SPAN)
        # The oldest frame may be a gap that itself begins at an unknown time: then the hole reaches to its end.
        t_held, _ = _times_ns(self._frames[self.oldest][0])
        return encode(
            Gap(self.stream, self.epoch, sequence, UNKNOWN_TIME_NS, t_held, span, -1, EVICTED)
        ), sequence + span

    def _inside_a_gap(self, sequence: int) -> tuple[bytes, int]:
        begin = next(start for start in reversed(self._wide) if start <= sequence)
        frame, following = self._frames[begin]
        gap = decode(frame)
        assert isinstance(gap, Gap)
        part = replace(gap, sequence=sequence, span=following - sequence, t_first_ns=UNKNOWN_TIME_NS, lost=-1)
        return encode(part), following


def _times_ns(frame: bytes) -> tuple[int, int]:
    """When a frame begins and ends; one that begins at an unknown time, where it ends."""
    held = read_header(frame)
    return held.t_last_ns if held.t_first_ns == UNKNOWN_TIME_NS else held.t_first_ns, held.t_last_ns
