"""Where a lost reading is counted: what of each stream is missing, when, how much of it, and why.

powerd numbers the blocks of a stream. From the first number that a run has seen to the last, each is a block that was
received, or lies in one hole (`StreamFrames.holes`). `LossAccount` makes a row of `/gaps` of every hole, and of what no
number tells: the time between two lives of a powerd, the silence before the end of the run, and readings that were
taken while their clock stepped. The other side of the account is `/parts`: the numbers that were given, the blocks that
were received, the numbers that are missing. `joules info --check` compares the two.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from powerd_client.runs.runfile import clean, own_name
from powerd_client.signals.board_times import to_host_ns
from powerd_core.clock_comparison import ClockPiece
from powerd_core.model import UNKNOWN_TIME_NS, Block, Description, Gap, Stream
from powerd_core.wire import HEADER_BYTES

_SILENCE_PERIODS = 5
_SLOW_NS = 1_000_000_000
"""A recorder waits for the last reading of a stream that is faster than this, not for that of a slower one."""


class BlockPlace(NamedTuple):
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

    blocks: dict[int, BlockPlace] = field(default_factory=dict)
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
        elif number not in self.blocks:
            self.blocks[number] = BlockPlace(at, size, event.t_first_ns, event.t_last_ns, event.count, event.layout)
            self.size += size

    def keep_fitting(self, stream: Stream) -> None:
        """Leave out blocks of another layout or length than ``stream`` has."""
        for number, place in list(self.blocks.items()):
            fits = place.scans and place.size == HEADER_BYTES + place.scans * stream.scan_bytes
            if not fits or place.layout != stream.layout:
                self.unfit.add(number)
                del self.blocks[number]

    @property
    def scans(self) -> int:
        return sum(place.scans for place in self.blocks.values())

    @property
    def numbers(self) -> tuple[int, int]:
        """The first number seen and the one behind the last; (0, 0) for none."""
        known = [*self.blocks, *self.unfit]
        begins = [*known, *self.gaps]
        ends = [*(n + 1 for n in known), *(g.sequence + g.span for g in self.gaps.values())]
        return (min(begins), max(ends)) if begins else (0, 0)

    def holes(self) -> Iterator[Hole]:
        """Everything that is missing between the first number and the last, in order.

        A gap counts for what no block has delivered since.
        """
        reached, end = self.numbers
        gaps = deque(sorted(self.gaps.values(), key=lambda g: g.sequence))
        t_last = UNKNOWN_TIME_NS
        for number in [*sorted(self.blocks), end]:
            place = self.blocks.get(number)
            t_next = place.t_first_ns if place else UNKNOWN_TIME_NS
            while reached < number:
                while gaps and gaps[0].sequence + gaps[0].span <= reached:
                    gaps.popleft()
                gap = gaps[0] if gaps and gaps[0].sequence <= reached else None
                behind = gap.sequence + gap.span if gap else gaps[0].sequence if gaps else number
                count = min(number, behind) - reached
                yield self._hole(gap, reached, count, t_last, t_next)
                reached += count
            if place:
                reached, t_last = number + 1, place.t_last_ns

    def _hole(self, gap: Gap | None, first: int, count: int, t_last: int, t_next: int) -> Hole:
        """The hole of ``count`` numbers from ``first`` on, between two blocks that end and begin at these times."""
        if gap is None:
            cause = f"{count} blocks {'did not fit their stream' if first in self.unfit else 'were not received'}"
            return Hole(_known(t_last, t_next), _known(t_next, t_last), -1, cause, count)
        t_begin = _known(max(gap.t_first_ns, t_last), t_last, t_next, gap.t_last_ns)
        t_end = max(t_begin, _known(t_next, gap.t_last_ns))
        cause = gap.cause or "whoever declared the gap gave no cause"
        return Hole(t_begin, t_end, gap.lost if count == gap.span else -1, cause, count)


def _known(*times_ns: int) -> int:
    return next((t for t in times_ns if t != UNKNOWN_TIME_NS), UNKNOWN_TIME_NS)


@dataclass(frozen=True, slots=True)
class StreamEpoch:
    """One epoch of a stream: who described it, its frames, and its clock (no pieces where nothing maps it)."""

    description: Description
    stream: Stream
    frames: StreamFrames
    pieces: tuple[ClockPiece, ...]
    is_apart: bool = False
    """Whether an earlier epoch has readings of the same time: another board that calls its lines alike."""

    @property
    def names(self) -> list[str]:
        return [own_name(line.name) for line in self.stream.lines]

    @property
    def clock(self) -> str:
        """The name of the clock's group in the run file."""
        return clock_name(self.description)

    def host_ns(self, t_board_ns: int) -> int:
        """A board time on the host's clock; it need not be that of a reading."""
        return int(to_host_ns(np.array([t_board_ns], np.int64), self.pieces)[0])

    @property
    def reach_ns(self) -> tuple[int, int] | None:
        """First and last reading on the host's clock, None without any that has a place in time."""
        blocks = self.frames.blocks.values()
        if not blocks or not self.pieces:
            return None
        return self.host_ns(min(p.t_first_ns for p in blocks)), self.host_ns(max(p.t_last_ns for p in blocks))


def clock_name(description: Description) -> str:
    """The name of a clock's group in the run file: its board and the epoch."""
    return f"{own_name(description.board)}-{description.epoch:016x}"


def in_order(epochs: Sequence[StreamEpoch]) -> list[StreamEpoch]:
    """The epochs of one stream by their first readings; those that fall into an earlier one's time are apart."""
    ordered: list[StreamEpoch] = []
    last_ns = 0
    for epoch in sorted(epochs, key=lambda e: (e.reach_ns or (0, 0))[0]):
        begin_ns, end_ns = epoch.reach_ns or (0, 0)
        ordered.append(replace(epoch, is_apart=bool(last_ns and end_ns and begin_ns <= last_ns)))
        last_ns = max(last_ns, end_ns)
    return ordered


@dataclass(slots=True)
class LossAccount:
    """What is missing of the readings of a run: the rows of `/gaps` and `/parts`."""

    t_start_ns: int
    t_stop_ns: int
    end_cause: str
    """Why readings are missing at the end of the run, if they are."""
    gaps: list[dict[str, Any]] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)

    def add_stream(self, epochs: Sequence[StreamEpoch]) -> None:
        """What is missing of one stream, by the numbers and times of its epochs, which are `in_order`."""
        last_ns = told_ns = 0
        for index, epoch in enumerate(epochs):
            holes = list(epoch.frames.holes())
            self._add_part(epoch, sum(hole.numbers for hole in holes))
            if not epoch.pieces:
                self._add_untimed(epoch, holes)
                continue
            reach = epoch.reach_ns
            if last_ns and not epoch.is_apart:
                self._gap(epoch, last_ns, reach[0] if reach else self.t_stop_ns, "powerd was started anew")
            # That powerd had ended was known only some time after the next one had begun.
            begun = [later.reach_ns[0] for later in epochs[index + 1 :] if later.reach_ns]
            for hole in holes:
                begin, end = (self.t_start_ns if t == UNKNOWN_TIME_NS else epoch.host_ns(t) for t in hole[:2])
                end = min([end, *(t for t in begun if t >= begin)])
                self._gap(epoch, begin, end, hole.cause, lost=hole.lost, numbers=hole.numbers)
                told_ns = max(told_ns, end)
            last_ns = max(last_ns, reach[1] if reach else 0)
        # One whose readings have no place in time has said so already.
        timed = [e for e in epochs if e.pieces] or [e for e in epochs[-1:] if not e.frames.blocks]
        if timed:
            period_ns = timed[-1].stream.period_ns
            silence_ns = period_ns if period_ns < _SLOW_NS else _SILENCE_PERIODS * period_ns
            heard_ns = max(last_ns or self.t_start_ns, told_ns)
            if self.t_stop_ns - heard_ns > silence_ns:
                self._gap(timed[-1], heard_ns, self.t_stop_ns, self.end_cause)

    def add_steps(self, epoch: StreamEpoch, unknown: Sequence[int]) -> None:
        """How many scans were taken while the clock stepped: by the piece of its mapping before the step."""
        cause = f"the clock of {epoch.description.board} stepped: nobody knows when these were read"
        for before, after, lost in zip(epoch.pieces, [*epoch.pieces[1:], epoch.pieces[-1]], unknown, strict=True):
            if lost:
                begin = before.t_board_ns[-1] + round(before.offset_ns[-1])
                end = after.t_board_ns[0] + round(after.offset_ns[0])
                self._gap(epoch, begin, end, cause, lost=lost)

    def _add_untimed(self, epoch: StreamEpoch, holes: Sequence[Hole]) -> None:
        """A board that never answered a clock exchange: its gaps are over the whole run."""
        whole = self.t_start_ns, self.t_stop_ns
        for hole in holes:
            self._gap(epoch, *whole, hole.cause, lost=hole.lost, numbers=hole.numbers)
        if scans := epoch.frames.scans:
            cause = "no exchange with the board's clock succeeded: nobody knows when these were read"
            self._gap(epoch, *whole, cause, lost=scans)

    def _gap(
        self, epoch: StreamEpoch, begin_ns: int, end_ns: int, cause: str, *, lost: int = -1, numbers: int = 0
    ) -> None:
        """Readings that are missing. ``numbers`` of the stream would have brought them, as far as known."""
        self.gaps.append(
            {
                "stream": clean(epoch.stream.source),
                "lines": epoch.names,
                "begin_ns": begin_ns,
                "end_ns": max(begin_ns, end_ns),
                "lost": lost,
                "cause": clean(cause),
                "numbers": numbers,
                "clock": epoch.clock,
            }
        )

    def _add_part(self, epoch: StreamEpoch, missing: int) -> None:
        """The numbers of an epoch: blocks that are there, and ``missing`` ones that gaps declare."""
        first, behind = epoch.frames.numbers
        self.parts.append(
            {
                "stream": epoch.stream.source,
                "number": epoch.stream.number,
                "clock": epoch.clock,
                "lines": epoch.names,
                "first": first,
                "behind": behind,
                "blocks": len(epoch.frames.blocks),
                "missing": missing,
                "scans": epoch.frames.scans,
                "in_file": bool(epoch.pieces),
            }
        )
