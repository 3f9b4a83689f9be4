"""The frames of one stream in one epoch: where the readings are, and what is missing between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from powerd_core.model import UNKNOWN_TIME_NS, Block, Gap, Stream

NO_CAUSE = "whoever declared the gap gave no cause"


class Place(NamedTuple):
    """Where a block is in the journal, and what its header says."""

    at: int
    size: int
    t_first_ns: int
    t_last_ns: int
    scans: int
    layout: int


class Hole(NamedTuple):
    """Numbers of a stream that are missing, between two board times (`UNKNOWN_TIME_NS` where there is none)."""

    t_first_ns: int
    t_last_ns: int
    lost: int
    """Scans, -1 when nobody knows."""
    cause: str
    numbers: int
    """Sequence numbers, each of which would have been a block or was given to a gap."""


@dataclass(slots=True)
class StreamFrames:
    """The frames of one stream in one epoch: places of blocks, and gaps, by sequence number."""

    places: dict[int, Place] = field(default_factory=dict)
    gaps: dict[int, Gap] = field(default_factory=dict)
    size: int = 0
    unfit: set[int] = field(default_factory=set)
    """Numbers of blocks that are not what the stream's description says; they count as missing."""

    def add(self, event: Block | Gap, at: int, size: int) -> None:
        """Note a frame. Of two with one number the first block stays, and the wider gap."""
        number = event.sequence
        if isinstance(event, Gap):
            if number not in self.gaps or event.span > self.gaps[number].span:
                self.gaps[number] = event
        elif number not in self.places:
            self.places[number] = Place(at, size, event.t_first_ns, event.t_last_ns, event.count, event.layout)
            self.size += size

    def keep_fitting(self, stream: Stream, frame_bytes: int) -> None:
        """Leave out blocks of another layout or length than ``stream`` has; a frame is ``frame_bytes`` and payload."""
        for number, place in list(self.places.items()):
            fits = place.scans and place.size == frame_bytes + place.scans * stream.scan_bytes
            if not fits or place.layout != stream.layout:
                self.unfit.add(number)
                del self.places[number]

    @property
    def numbers(self) -> tuple[int, int]:
        """The first number seen and the one behind the last; (0, 0) for none."""
        known = [*self.places, *self.unfit]
        begins = [*known, *self.gaps]
        ends = [*(n + 1 for n in known), *(g.sequence + g.span for g in self.gaps.values())]
        return (min(begins), max(ends)) if begins else (0, 0)

    def holes(self) -> Iterator[Hole]:
        """Everything that is missing between the first number and the last, in order.

        A gap counts for what no block has delivered since.
        """
        reached, end = self.numbers
        gaps = sorted(self.gaps.values(), key=lambda g: g.sequence)
        t_last = UNKNOWN_TIME_NS
        for number in [*sorted(self.places), end]:
            place = self.places.get(number)
            t_next = place.t_first_ns if place else UNKNOWN_TIME_NS
            for gap, first, count in self._missing(gaps, reached, number):
                yield self._hole(gap, first, count, t_last, t_next)
            if place:
                reached, t_last = number + 1, place.t_last_ns

    def _missing(self, gaps: list[Gap], reached: int, end: int) -> Iterator[tuple[Gap | None, int, int]]:
        """The numbers from ``reached`` to ``end`` by the gap that declares them; gaps that are behind are dropped."""
        while reached < end:
            while gaps and gaps[0].sequence + gaps[0].span <= reached:
                del gaps[0]
            if gaps and gaps[0].sequence <= reached:
                stop = min(end, gaps[0].sequence + gaps[0].span)
                yield gaps[0], reached, stop - reached
            else:
                stop = min(end, gaps[0].sequence) if gaps else end
                yield None, reached, stop - reached
            reached = stop

    def _hole(self, gap: Gap | None, first: int, count: int, t_last: int, t_next: int) -> Hole:
        if gap is None:
            unfit = first in self.unfit
            cause = f"{count} blocks {'did not fit their stream' if unfit else 'were not received'}"
            return Hole(_known(t_last, t_next), _known(t_next, t_last), -1, cause, count)
        t_begin = _known(max(gap.t_first_ns, t_last), t_last, t_next, gap.t_last_ns)
        t_end = max(t_begin, _known(t_next, gap.t_last_ns))
        return Hole(t_begin, t_end, gap.lost if count == gap.span else -1, gap.cause or NO_CAUSE, count)


def _known(*times_ns: int) -> int:
    return next((t for t in times_ns if t != UNKNOWN_TIME_NS), UNKNOWN_TIME_NS)
