"""What the spool holds, read by a thread of its own and kept in memory for as long as it is being sent.

The server asks for a frame and is told either the frame or None, "not yet": it goes on with something else, and asks
again. So a disk that stalls delays those who need it, and nobody else.
"""

from __future__ import annotations

import threading
from collections import deque

from powerd_daemon.clock import Clock
from powerd_daemon.spool_catalogue import Catalogue, Epoch
from powerd_daemon.spool_chunks import DAMAGED, MISSED, UNREADABLE, Chunk
from powerd_daemon.spool_disk import Disk
from powerd_daemon.spool_segments import START, Mark, Places, Read, Segment, index, scan
from powerd_daemon.worker import Worker

HELD_BYTES = 8 << 20
"""Chunks in memory, all clients together. A chunk is half a MiB unless its frames are larger."""
MAX_PENDING = 8
INDEXED_SEGMENTS = 32
STALE_NS = 2_000_000_000
"""A chunk that was read for a client which does not take it makes room after so long."""


class Reader:
    """Finds frames of ``catalogue``'s segments. `find` is the server's, all else is done by ``worker``."""

    def __init__(self, catalogue: Catalogue, disk: Disk, clock: Clock, worker: Worker) -> None:
        self.failures = 0
        self._catalogue = catalogue
        self._disk = disk
        self._clock = clock
        self._worker = worker
        self._lock = threading.Lock()
        self._chunks: list[Chunk] = []
        """The one used last in front."""
        self._asked: set[tuple[int, int, int]] = set()
        self._indexed: deque[Segment] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether something is being read that a client waits for."""
        return bool(self._asked)

    def find(self, epoch: int, stream: int, sequence: int) -> tuple[bytes, int] | None:
        """The frame for a number that the epoch covers, and the number after it; None until it has been read."""
        with self._lock:
            for at, chunk in enumerate(self._chunks):
                if chunk.covers(epoch, stream, sequence):
                    chunk.used = True
                    if at:
                        self._chunks.insert(0, self._chunks.pop(at))
                    return chunk.find(stream, sequence)
            asked = epoch, stream, sequence
            if asked in self._asked or len(self._asked) >= MAX_PENDING or self._is_crowded():
                return None
            self._asked.add(asked)
        self._worker.put(lambda: self._load(*asked))
        return None

    def _is_crowded(self) -> bool:
        """Whether what was read for others would be pushed out before they took of it; who waits asks again."""
        now_ns = self._clock.now_ns()
        waiting = sum(c.size_bytes for c in self._chunks if not c.used and now_ns - c.loaded_ns < STALE_NS)
        return waiting >= HELD_BYTES // 2

    def _load(self, number: int, stream: int, sequence: int) -> None:
        try:
            with self._lock:
                if self._is_crowded():
                    return
            chunk = self._read(self._catalogue.epochs[number], stream, sequence)
            if chunk is not None:
                self._keep(chunk)
        finally:
            with self._lock:
                self._asked.discard((number, stream, sequence))

    def _keep(self, chunk: Chunk) -> None:
        with self._lock:
            chunk.loaded_ns = self._clock.now_ns()
            size = chunk.size_bytes + sum(c.size_bytes for c in self._chunks)
            used = [c for c in self._chunks if c.used]
            for old in [*reversed(used), *(c for c in self._chunks if not c.used)]:
                if size <= HELD_BYTES:
                    break
                self._chunks.remove(old)
                size -= old.size_bytes
            self._chunks.append(chunk)

    def _read(self, epoch: Epoch, stream: int, sequence: int) -> Chunk | None:
        # Before the bytes are looked for: what is written meanwhile is then beyond the end, and read another time.
        end = epoch.end
        found = epoch.covering(stream, sequence)
        if found is None:
            return None
        segment, following = found
        if following is not None:
            end = following.begin
        size_bytes = segment.size_bytes
        marks = [Mark(0, segment.begin)]
        try:
            marks = self._marks(segment)
            at = max(i for i, mark in enumerate(marks) if mark.places.get(stream, START).next <= sequence)
            if at + 1 < len(marks):
                size_bytes, end = marks[at + 1].offset, _earlier(marks[at + 1].places, end)
            begin = marks[at]
            frames = list(scan(self.file(segment), begin.offset, size_bytes, size_bytes - begin.offset))
        except FileNotFoundError:
            # Deleted, by powerd to make room or by someone else: what was in it is now missing before the next one.
            self._catalogue.remove(segment)
            return None
        except OSError as error:
            self.failures += 1
            return Chunk(epoch.number, marks[0].places, end, (), f"{UNREADABLE}: {error.strerror}")
        return Chunk(epoch.number, begin.places, end, frames, DAMAGED if segment.is_damaged else MISSED)

    def file(self, segment: Segment) -> Read:
        """How to read a segment."""
        return lambda offset, size: self._disk.read(segment.name, offset, size)

    def _marks(self, segment: Segment) -> list[Mark]:
        if (marks := segment.marks) is not None:
            return list(marks)
        marks, _, segment.is_damaged = index(segment, self.file(segment))
        segment.marks = marks
        self._indexed.append(segment)
        if len(self._indexed) > INDEXED_SEGMENTS:
            self._indexed.popleft().marks = None
        return marks


def _earlier(one: Places, other: Places) -> Places:
    """Stream by stream, the place that comes first."""
    return {n: min(one.get(n, START), other.get(n, START), key=lambda place: place.next) for n in {*one, *other}}
