"""Frames to segments. Whatever the disk does, a number that a segment should hold and does not is known to be missing.

After an error the segment is left as it is, and everything since the last good sync is to be written again, to a new
one: what a failed write or sync has really left on the disk nobody knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from powerd_core.wire import GAP, HEADER
from powerd_daemon.spool_catalogue import Catalogue, Epoch
from powerd_daemon.spool_disk import Disk
from powerd_daemon.spool_segments import CHUNK_BYTES, START, Mark, Place, Segment, head


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames to append, in order."""

    frames: Sequence[bytes]
    sync: bool
    """Come back only when they survive a power cut."""
    attempt: int
    """`SegmentWriter.attempt` when they were collected: after an error, older batches are void."""
    complete_ns: int | None
    """When they were collected, if they are all there was."""


@dataclass(frozen=True, slots=True)
class Safe:
    """What survives a power cut, replaced as a whole."""

    places: dict[int, Place] = field(default_factory=dict)
    complete_ns: int | None = None
    """Everything that powerd had at this time is safe."""
    missed: int = 0
    """Numbers before these places that are not on the disk."""


class SegmentWriter:
    """Appends batches to segments of ``epoch``, each of at most ``segment_bytes``, all together of ``limit_bytes``."""

    def __init__(self, disk: Disk, catalogue: Catalogue, epoch: Epoch, segment_bytes: int, limit_bytes: int) -> None:
        self.attempt = 0
        """How often the disk failed."""
        self.error: OSError | None = None
        """Why, until a sync succeeds."""
        self.safe = Safe()
        self.next_number = 1
        self.missed = 0
        """Numbers that were passed over, since the ring no longer had them."""
        self.deleted = 0
        """Segments that made room for new ones."""
        self._disk = disk
        self._catalogue = catalogue
        self._epoch = epoch
        self._segment_bytes = segment_bytes
        self._limit_bytes = limit_bytes
        self._file: int | None = None
        self._segment: Segment | None = None
        self._places: dict[int, Place] = {}
        self._complete_ns: int | None = None

    def handle(self, batch: Batch) -> None:
        """Write a batch. Never raises OSError: `attempt` and `error` tell."""
        if batch.attempt != self.attempt:
            return
        try:
            rest = batch.frames
            while rest:
                rest = rest[self._append(rest) :]
            if batch.complete_ns is not None:
                self._complete_ns = batch.complete_ns
            if batch.sync:
                self._sync()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Sync and close the segment."""
        try:
            if self._segment is not None:
                self._finish()
        except OSError as error:
            self._fail(error)

    def _append(self, frames: Sequence[bytes]) -> int:
        """Write as many of ``frames`` as the segment takes, at least one; how many."""
        segment = self._segment
        if segment is not None and segment.size_bytes + len(frames[0]) > self._segment_bytes:
            self._finish()
            segment = None
        if segment is None:
            segment = self._begin()
        assert segment.marks is not None
        assert self._file is not None
        size, places, marks = segment.size_bytes, dict(self._places), []
        count = missed = 0
        last = segment.marks[-1].offset
        for frame in frames:
            if count and size + len(frame) > self._segment_bytes:
                break
            if size - last >= CHUNK_BYTES:
                last = size
                marks.append(Mark(size, dict(places)))
            _, _, kind, stream, _, sequence, _, t_last_ns, span, *_ = HEADER.unpack_from(frame)
            missed += sequence - places.get(stream, START).next
            places[stream] = Place(sequence + (span if kind == GAP else 1), t_last_ns)
            size += len(frame)
            count += 1
        self._disk.write(self._file, frames[:count])
        # In this order: who finds a number below the end finds it in the file.
        segment.marks.extend(marks)
        segment.size_bytes = size
        self.missed += missed
        self._places = self._epoch.end = places
        return count

    def _begin(self) -> Segment:
        start = head(self._epoch.description, self._epoch.number, self._places)
        self._make_room()
        segment = Segment(self._epoch.number, self.next_number, 0, dict(self._places))
        segment.marks = [Mark(0, segment.begin)]
        self.next_number += 1
        self._file = self._disk.create(segment.name)
        self._segment = segment
        self._disk.write(self._file, [start])
        segment.size_bytes = len(start)
        self._catalogue.add(segment)
        return segment

    def _make_room(self) -> None:
        while (segments := self._catalogue.segments) and (
            self._catalogue.size_bytes + self._segment_bytes > self._limit_bytes
        ):
            with suppress(FileNotFoundError):
                self._disk.remove(segments[0].name)
            self._catalogue.remove(segments[0])
            self.deleted += 1

    def _sync(self) -> None:
        if self._file is not None:
            self._disk.sync(self._file)
        self.safe = Safe(self._places, self._complete_ns, self.missed)
        self.error = None

    def _finish(self) -> None:
        """The segment is full. Its index is made again if anybody asks for it."""
        assert self._file is not None
        assert self._segment is not None
        self._sync()
        file, self._file = self._file, None
        self._segment.marks = None
        self._segment = None
        self._disk.close(file)

    def _fail(self, error: OSError) -> None:
        segment, self._segment = self._segment, None
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                self._disk.close(file)
        if segment is not None and not any(
            place.next > segment.begin.get(n, START).next for n, place in self.safe.places.items()
        ):
            # There is nothing in it that counts.
            self._catalogue.remove(segment)
            with suppress(OSError):
                self._disk.remove(segment.name)
        self._places = dict(self.safe.places)
        self._epoch.end = self._places
        self._complete_ns, self.missed = self.safe.complete_ns, self.safe.missed
        self.error = error
        # Last: from now on batches are collected anew, from the safe places on.
        self.attempt += 1
