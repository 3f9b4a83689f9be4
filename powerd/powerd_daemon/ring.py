"""The rings: the latest frames of each stream, bounded in bytes, found by sequence number and free of holes.

A client pulls from a ring at its own pace. What the ring has let go of, what never arrived, and a number inside a
recorded gap are all answered with a gap frame that says why, so that no number of a stream is ever silently missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from powerd_core.errors import WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Gap, Stream
from powerd_core.protocol import MAX_SPAN, Frames
from powerd_core.wire import Header, decode, encode, read_header

FRAME_OVERHEAD_BYTES = 200
"""What Python keeps beside a frame's own bytes; counted, so that many tiny frames stay within the bound too."""
EVICTED = "no longer in powerd's ring"
LOST_ON_THE_WAY = "lost between the sampler and powerd"


class Ring:
    """Frames that cover the sequence numbers from ``oldest`` up to ``next``, without a hole.

    The newest frame is always held, whatever its size. Frames must be appended in order, the first with number
    ``begin``; ``t_last_ns`` is the time of the last reading (or the end of the last gap) before it.
    """

    def __init__(
        self, stream: int, epoch: int, max_bytes: int, begin: int = 0, t_last_ns: int = UNKNOWN_TIME_NS
    ) -> None:
        self.stream = stream
        self.epoch = epoch
        self.max_bytes = max_bytes
        self.oldest = self.next = begin
        self.t_last_ns = t_last_ns
        self.size_bytes = 0
        self.newest_block = -1
        """Sequence number of the newest block ever appended."""
        self._frames: dict[int, tuple[bytes, int]] = {}
        self._wide: deque[int] = deque()
        """Where gaps of more than one number begin."""

    def __len__(self) -> int:
        return len(self._frames)

    def append(self, frame: bytes, event: Block | Gap) -> None:
        """Add the next frame, which is that of ``event``, and let go of the oldest ones that no longer fit."""
        if event.sequence != self.next or event.following <= event.sequence:
            raise ValueError(f"frame {event.sequence}..{event.following} appended where {self.next} is next")
        self._frames[event.sequence] = frame, event.following
        self.next = event.following
        self.t_last_ns = event.t_last_ns
        self.size_bytes += len(frame) + FRAME_OVERHEAD_BYTES
        if isinstance(event, Block):
            self.newest_block = event.sequence
        elif event.span > 1:
            self._wide.append(event.sequence)
        while self.size_bytes > self.max_bytes and len(self._frames) > 1:
            frame, following = self._frames.pop(self.oldest)
            if self._wide and self._wide[0] == self.oldest:
                self._wide.popleft()
            self.oldest = following
            self.size_bytes -= len(frame) + FRAME_OVERHEAD_BYTES

    def gaps_until(self, sequence: int, t_ns: int, cause: str) -> Iterator[tuple[bytes, Gap]]:
        """The frames that are to be appended before number ``sequence``, which begins at ``t_ns``, can be."""
        while self.next < sequence:
            span = min(sequence - self.next, MAX_SPAN)
            gap = Gap(self.stream, self.epoch, self.next, self.t_last_ns, t_ns, span, -1, cause)
            yield encode(gap), gap

    @property
    def held_ns(self) -> int:
        """Time from the first reading held to the last."""
        return self.t_last_ns - begin_ns(read_header(self._frames[self.oldest][0])) if self._frames else 0

    @property
    def current(self) -> int:
        """Where a client begins that wants only what is new: the newest block held, else whatever comes next."""
        return self.newest_block if self.newest_block >= self.oldest else self.next

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """The frame that covers ``sequence`` and begins there, and the number after it; None when it is yet to come.

        What is held comes verbatim; a part of a gap, or what the ring has let go, as a gap made for the occasion.
        """
        if sequence >= self.next:
            return None
        if sequence < self.oldest:
            # The oldest frame may be a gap that itself begins at an unknown time: then the hole reaches to its end.
            t_held_ns = begin_ns(read_header(self._frames[self.oldest][0]))
            return gap_before(self.stream, self.epoch, sequence, self.oldest, t_held_ns, EVICTED)
        if sequence in self._frames:
            return self._frames[sequence]
        begin = next(start for start in reversed(self._wide) if start <= sequence)
        frame, following = self._frames[begin]
        gap = decode(frame)
        assert isinstance(gap, Gap)
        rest = replace(gap, sequence=sequence, span=following - sequence, t_first_ns=UNKNOWN_TIME_NS, lost=-1)
        return encode(rest), following


def begin_ns(frame: Block | Gap | Header) -> int:
    """When a frame begins; one that begins at an unknown time, where it ends."""
    return frame.t_last_ns if frame.t_first_ns == UNKNOWN_TIME_NS else frame.t_first_ns


def gap_before(stream: int, epoch: int, sequence: int, oldest: int, t_ns: int, cause: str) -> tuple[bytes, int]:
    """A gap from ``sequence`` up to the ``oldest`` number that is held, which begins at ``t_ns``, and what follows."""
    span = min(oldest - sequence, MAX_SPAN)
    return encode(Gap(stream, epoch, sequence, UNKNOWN_TIME_NS, t_ns, span, -1, cause)), sequence + span


class Intake:
    """One stream's ring and counters. Whatever `accept` is given, the ring stays free of holes."""

    def __init__(self, stream: Stream, epoch: int, ring_bytes: int) -> None:
        self.stream = stream
        self.ring = Ring(stream.number, epoch, ring_bytes)
        self._layout, self._scan_bytes = stream.layout, stream.scan_bytes
        self.frames = self.scans = self.gaps = self.lost_scans = self.duplicates = self.holes = 0
        self.unknown_gaps = 0
        """Those of which nobody knows how many scans they are."""

    def accept(self, frame: bytes, event: Block | Gap) -> None:
        """Append a sampler's frame, which is that of ``event``. A number already seen is dropped and counted; a hole
        before it becomes a gap.

        Raises `WireError` for a frame that does not belong here.
        """
        if event.epoch != self.ring.epoch:
            raise WireError(f"a frame of epoch {event.epoch}")
        if isinstance(event, Block):
            size = event.count * self._scan_bytes
            if event.count < 1 or (event.layout, len(event.payload)) != (self._layout, size):
                raise WireError(f"a block of {event.count} scans in {len(frame)} bytes, of layout {event.layout:#06x}")
        if event.sequence < self.ring.next:
            self.duplicates += 1
            return
        if event.sequence - self.ring.next > MAX_SPAN:
            raise WireError(f"frame {event.sequence} where {self.ring.next} is next")
        for gap in self.ring.gaps_until(event.sequence, begin_ns(event), LOST_ON_THE_WAY):
            self.holes += 1
            self._append(*gap)
        self._append(frame, event)

    def _append(self, frame: bytes, event: Block | Gap) -> None:
        self.ring.append(frame, event)
        self.frames += 1
        if isinstance(event, Block):
            self.scans += event.count
        else:
            self.gaps += 1
            self.lost_scans += max(event.lost, 0)
            self.unknown_gaps += event.lost < 0


class Backlog(Protocol):
    """What keeps frames longer than the rings do: the spool."""

    def extend(self, ring: Ring) -> Frames:
        """A stream's ring with what the backlog holds of it; from now on it is kept."""

    def past(self, stream: int, epoch: int) -> Frames | None:
        """A stream of an earlier epoch; None when there is no such."""


class Store:
    """All streams of one powerd by number; with a ``backlog``, also what that holds of them and of earlier epochs."""

    def __init__(self, epoch: int, ring_bytes: int, backlog: Backlog | None = None) -> None:
        self.epoch = epoch
        self.ring_bytes = ring_bytes
        self.backlog = backlog
        self.intakes: dict[int, Intake] = {}
        self._held: dict[int, Frames] = {}

    def add(self, stream: Stream) -> None:
        intake = Intake(stream, self.epoch, self.ring_bytes)
        self.intakes[stream.number] = intake
        self._held[stream.number] = intake.ring if self.backlog is None else self.backlog.extend(intake.ring)

    def ring(self, number: int, epoch: int = 0) -> Frames | None:
        """What is held of a stream. Of an epoch that is not kept (or 0), that of this powerd's own."""
        if epoch not in (0, self.epoch) and self.backlog is not None:
            past = self.backlog.past(number, epoch)
            if past is not None:
                return past
        return self._held.get(number)
