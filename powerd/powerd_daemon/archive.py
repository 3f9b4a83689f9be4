"""What earlier lives of powerd left in the spool, and what this life's rings have let go: served like a ring.

The index of a spool is in the heads of its segments; only the last segment of each epoch is read as a whole, to find
where it ends. That is done by a thread while powerd already measures; until then there are no earlier epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from powerd_core.model import UNKNOWN_TIME_NS, Gap
from powerd_core.wire import Message, decode, encode
from powerd_daemon.ring import MAX_SPAN, Ring
from powerd_daemon.spool_catalogue import Catalogue, Epoch
from powerd_daemon.spool_disk import Disk
from powerd_daemon.spool_reader import Reader
from powerd_daemon.spool_segments import Place, Segment, belongs, index, parse_name, read_head, scan

MAX_EPOCHS = 64
"""Older ones than so many lives of powerd are deleted."""
ANSWER_BYTES = 4 << 20
"""Descriptions in one answer to *epochs*, so that it fits into a message."""

DELETED = "no longer in powerd's spool"


class Shelf:
    """One stream of one epoch as the spool holds it, found by sequence number as in a `Ring`."""

    def __init__(self, epoch: Epoch, stream: int, reader: Reader) -> None:
        self.stream = stream
        self._epoch = epoch
        self._reader = reader

    @property
    def epoch(self) -> int:
        return self._epoch.number

    @property
    def oldest(self) -> int:
        return self._epoch.oldest(self.stream).next

    @property
    def next(self) -> int:
        return self._epoch.next(self.stream)

    @property
    def current(self) -> int:
        """Nothing new comes to what is past."""
        return self.next

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """As `Ring.find`; None also while it is being read."""
        if sequence >= self.next:
            return None
        oldest = self._epoch.oldest(self.stream)
        if sequence >= oldest.next:
            return self._reader.find(self.epoch, self.stream, sequence)
        span = min(oldest.next - sequence, MAX_SPAN)
        gap = Gap(self.stream, self.epoch, sequence, UNKNOWN_TIME_NS, oldest.t_last_ns, span, -1, DELETED)
        return encode(gap), sequence + span


class Reach:
    """A stream's ring and, behind it, what the spool still holds of the same epoch."""

    def __init__(self, ring: Ring, shelf: Shelf) -> None:
        self.ring = ring
        self.shelf = shelf
        self.taken = 0
        """Numbers below were handed to the spool's writer."""
        self.is_stalled = False
        """Whether it may never come to them."""

    @property
    def epoch(self) -> int:
        return self.ring.epoch

    @property
    def oldest(self) -> int:
        return min(self.shelf.oldest, self.ring.oldest)

    @property
    def next(self) -> int:
        return self.ring.next

    @property
    def current(self) -> int:
        return self.ring.current

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """As `Ring.find`; None also while it is being written or read."""
        if sequence >= self.ring.oldest:
            return self.ring.find(sequence)
        if sequence < self.shelf.next:
            return self.shelf.find(sequence)
        return None if sequence < self.taken and not self.is_stalled else self.ring.find(sequence)


class Archive:
    """Earlier epochs in ``catalogue``, once `load` has found them."""

    def __init__(self, catalogue: Catalogue, disk: Disk, reader: Reader) -> None:
        self.is_ready = False
        self.failures = 0
        """Segments that could not be read when powerd started."""
        self._catalogue = catalogue
        self._disk = disk
        self._reader = reader
        self._listed: list[Segment] = []
        self._epochs: list[Epoch] = []
        self._shelves: dict[tuple[int, int], Shelf] = {}

    @property
    def epochs(self) -> int:
        return len(self._epochs)

    def enlist(self) -> int:
        """List the segments that are there, so that they count; the number for the next one."""
        listed = []
        for name, size_bytes in self._disk.names().items():
            if (parsed := parse_name(name)) is not None:
                listed.append(Segment(*parsed, size_bytes))
        self._listed = sorted(listed, key=lambda s: s.number)
        for segment in self._listed:
            self._catalogue.add(segment)
        return self._listed[-1].number + 1 if listed else 1

    def load(self) -> None:
        """Index what `enlist` listed, epoch by epoch. May take long."""
        by_epoch: dict[int, list[Segment]] = {}
        for segment in self._listed:
            by_epoch.setdefault(segment.epoch, []).append(segment)
        self._listed = []
        found = [epoch for number, segments in by_epoch.items() if (epoch := self._index(number, segments)) is not None]
        for epoch in found[:-MAX_EPOCHS]:
            self._delete(by_epoch[epoch.number])
        for epoch in found[-MAX_EPOCHS:]:
            self._catalogue.publish(epoch)
            self._epochs.append(epoch)
        self.is_ready = True

    def shelf(self, stream: int, epoch: int) -> Shelf | None:
        """A stream of an earlier epoch; None when there is no such."""
        if (made := self._shelves.get((epoch, stream))) is not None:
            return made
        found = self._catalogue.epochs.get(epoch) if self.is_ready else None
        if found is None or stream not in found.end:
            return None
        return self._shelves.setdefault((epoch, stream), Shelf(found, stream, self._reader))

    def answer(self, request: Mapping[str, object]) -> dict[str, object]:
        """The body of the answer to *epochs*: all, or the one that the request names."""
        told: list[dict[str, object]] = []
        room = ANSWER_BYTES
        for epoch in reversed(self._epochs if self.is_ready else ()):
            room -= len(epoch.description)
            if request.get("epoch", epoch.number) == epoch.number and (room >= 0 or "epoch" in request):
                told.append(_told(epoch))
        return {"ready": self.is_ready, "epochs": told[::-1]}

    def _index(self, number: int, segments: list[Segment]) -> Epoch | None:
        """An epoch with the places of its segments; None when it holds nothing, or nothing says what it measured."""
        epoch = Epoch(number)
        good: list[Segment] = []
        failures = self.failures
        for segment in segments:
            try:
                description, begin = read_head(self._reader.file(segment), segment.size_bytes, number)
                if begin is None:
                    begin = self._end(good[-1]) if good else self._first(segment)
            except FileNotFoundError:
                # Deleted meanwhile, to make room.
                continue
            except OSError:
                self.failures += 1
                continue
            epoch.description = epoch.description or description
            segment.begin = begin
            good.append(segment)
        if good:
            epoch.end = good[-1].begin
            try:
                epoch.end = self._end(good[-1])
            except OSError:
                self.failures += 1
        if not any(place.next for place in epoch.end.values()):
            if self.failures == failures:
                self._delete(segments)
            return None
        epoch.segments = tuple(good)
        return epoch if epoch.description else None

    def _end(self, segment: Segment) -> dict[int, Place]:
        return index(segment, self._reader.file(segment))[1]

    def _first(self, segment: Segment) -> dict[int, Place]:
        """Where the oldest segment of an epoch begins, when its head is damaged."""
        begin: dict[int, Place] = {}
        for _, _, header in scan(self._reader.file(segment), 0, segment.size_bytes):
            if header is not None and belongs(header, segment.epoch, {}):
                begin.setdefault(header.stream, Place(header.sequence))
        return begin

    def _delete(self, segments: list[Segment]) -> None:
        for segment in segments:
            with suppress(OSError):
                self._disk.remove(segment.name)
                self._catalogue.remove(segment)


def _told(epoch: Epoch) -> dict[str, object]:
    message = decode(epoch.description)
    assert isinstance(message, Message)
    streams = [{"number": n, "oldest": epoch.oldest(n).next, "next": epoch.next(n)} for n in sorted(epoch.end)]
    return {"epoch": epoch.number, "description": message.body, "streams": streams}
