"""The spool: what enters the rings is also kept on disk, so that powerd's own crash or a power cut loses a second.

**Following the rings.** The spool takes frames out of the rings like a client. Whatever the disk has not taken yet is
still in the ring, so a disk that stalls, is full or read-only costs nothing until the ring lets go of it. The server's
loop collects and never waits; one thread writes and another one reads.

**Segments.** A spool is a directory of append-only files of frames, verbatim, called ``<epoch>-<number>.pwrd``, both in
hexadecimal. An epoch is one life of powerd; the number goes on over all epochs, so that it tells the age. A segment
begins with two messages: the description, and ``segment`` with the place of every stream at that point. A stream's
numbers from there up to the next segment's place belong to this segment; what it does not hold of them is missing, and
a reader is given a gap with its cause, just as from a ring. So the heads of the segments are the index of a spool: at
the start they are read again, and of each epoch the last segment as a whole, to find where it ends.

**Faults of the disk.** What a failed write or sync has really left on the disk nobody knows. The segment is then left
as it is, and everything since the last good sync is written again, to a new one. Of two segments that hold the same
number, the later one counts.

**Reading.** The server asks for a frame and is told either the frame or None, "not yet": it goes on with something
else, and asks again. A segment is read as a whole and kept in memory for as long as it is being sent.

**Threads.** What the loop looks at is replaced as a whole by the one thread that changes it, so the loop takes no lock.
Only the lists of segments are changed by both threads.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import sys
import threading
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from powerd_core.errors import ConfigError, WireError
from powerd_core.model import UNKNOWN_TIME_NS
from powerd_core.protocol import Frames
from powerd_core.wire import (
    BLOCK,
    GAP,
    MAX_SEQUENCE,
    MESSAGE,
    FrameReader,
    Garbage,
    Header,
    Message,
    decode,
    encode,
    read_header,
)
from powerd_daemon.clock import Clock
from powerd_daemon.config import ServerConfig
from powerd_daemon.ring import Ring, begin_ns, gap_before

COLLECT_NS = 20_000_000
BATCH_BYTES = 1 << 20
MAX_BATCHES = 2
"""Batches on their way to the disk: beside the rings' own, the frames of so many are in memory."""
RETRY_NS = 2_000_000_000
STALLED_NS = 10_000_000_000
CLOSE_S = 2.0
HEAD_BYTES = 64 << 10
"""The head of a segment is sought in so many bytes first, and then in all of them."""
HELD_BYTES = 8 << 20
"""Segments in memory for reading, all clients together."""
MAX_PENDING = 4
"""Segments that are being read; they fit into the memory together, so that each is used before it is pushed out."""
MAX_EPOCHS = 64
"""Of older ones than so many lives of powerd nobody is told."""
ANSWER_BYTES = 4 << 20
"""Descriptions in one answer to *epochs*, so that it fits into a message."""

DAMAGED = "damaged in powerd's spool"
MISSED = "not in powerd's spool: its disk did not take it in time"
UNREADABLE = "cannot be read from powerd's spool"
DELETED = "no longer in powerd's spool"

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.pwrd")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a stream has come: its next number, and the time of the last reading before it."""

    next: int
    t_last_ns: int = UNKNOWN_TIME_NS


START = Place(0)
Places = Mapping[int, Place]
"""By stream."""


class SpoolDirectory:
    """The directory of a spool, made if need be, and locked against a second powerd while this object is open.

    Every method may stall for seconds, or raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"spool {path}: {error.strerror}: name a directory that powerd may write to") from error
        try:
            # The lock goes with the process, however it ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"spool {path}: another powerd uses it: name a directory of its own for each") from error

    def names(self) -> dict[str, int]:
        """The files there, each with its size in bytes."""
        return {e.name: e.stat().st_size for e in os.scandir(self.path) if e.is_file(follow_symlinks=False)}

    def create(self, name: str) -> int:
        """A new file to append to, by its descriptor; its name survives a power cut."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        file = os.open(self.path / name, flags, 0o640)
        try:
            os.fsync(self._lock)
        except OSError:
            os.close(file)
            raise
        return file

    def write(self, file: int, pieces: Sequence[bytes]) -> None:
        """Append all of it. After an error any part of it may be there."""
        rest = memoryview(b"".join(pieces))
        while rest:
            rest = rest[os.write(file, rest) :]

    def sync(self, file: int) -> None:
        """Come back when what was written survives a power cut."""
        os.fdatasync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def remove(self, name: str) -> None:
        os.unlink(self.path / name)

    def read(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file, or what there is."""
        with open(os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            return file.read(size)

    def release(self) -> None:
        """Let another powerd have it."""
        os.close(self._lock)


class Worker:
    """A thread for what may stall: jobs go in, and nobody waits for them. It never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Jobs that have not begun yet."""
        return self._jobs.qsize()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def close(self, patience_s: float) -> None:
        """Do what is pending and end; leave it behind if that takes longer."""
        self._jobs.put(None)
        self._thread.join(patience_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:  # noqa: BLE001
                # A fault of ours: whoever mends it needs the traceback, and all other jobs are still to be done.
                traceback.print_exc()


# Segments and epochs: what there is, and which numbers of which streams it covers.


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of one file. Its writer lets ``size_bytes`` grow; others only read it."""

    epoch: int
    number: int
    size_bytes: int
    begin: Places = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.epoch:016x}-{self.number:08x}.pwrd"


def segment_head(description: bytes, epoch: int, places: Places) -> bytes:
    """The first bytes of a segment."""
    streams = [[number, place.next, place.t_last_ns] for number, place in sorted(places.items())]
    return description + encode(Message("segment", {"streams": streams}, epoch))


def read_head(data: bytes, epoch: int) -> tuple[bytes, dict[int, Place] | None]:
    """The description's frame, empty when it is damaged, and the places at which a segment begins, or None."""
    description = b""
    for frame, header in scan(data):
        if header is None:
            continue
        if header.kind != MESSAGE or header.epoch != epoch:
            break
        try:
            message = decode(frame)
            assert isinstance(message, Message)
            if message.subject == "description":
                description = frame
            elif message.subject == "segment":
                streams: Any = message.body["streams"]
                places = {int(n): Place(int(following), int(t_ns)) for n, following, t_ns in streams}
                is_possible = all(0 <= place.next < MAX_SEQUENCE for place in places.values())
                return description, places if is_possible else None
        except (WireError, KeyError, TypeError, ValueError):
            break
    return description, None


def scan(data: bytes) -> Iterator[tuple[bytes, Header | None]]:
    """Every good frame in a segment with its header. One without a header stands for a damaged stretch."""
    reader = FrameReader()
    for event, frame in chain(reader.feed(data), reader.close()):
        yield frame, None if isinstance(event, Garbage) else read_header(frame)


def belongs(header: Header, epoch: int, next_number: int) -> bool:
    """Whether a frame carries on a stream from its next number. What a failed write left behind twice does not."""
    is_reading = header.kind in (BLOCK, GAP) and header.epoch == epoch
    return is_reading and header.extent > 0 and header.sequence >= next_number


@dataclass(slots=True)
class Epoch:
    """One life of powerd. It stays known when its last segment is gone, so that what is missing can be told."""

    number: int
    description: bytes = b""
    """The frame of its description; empty when no segment holds a good one."""
    segments: tuple[Segment, ...] = ()
    """In order."""
    end: Places = field(default_factory=dict)
    """By stream: where what was written ends."""

    def oldest(self, stream: int) -> Place:
        """The first number that is held, or would be: after a hole the reader makes a gap of it."""
        segments = self.segments
        return segments[0].begin.get(stream, START) if segments else self.end.get(stream, START)

    def covering(self, stream: int, sequence: int) -> tuple[Segment, Segment | None] | None:
        """The segment to which a number belongs and the one after it. Of two that hold it, the later."""
        segments = self.segments
        at = bisect_right(segments, sequence, key=lambda s: s.begin.get(stream, START).next)
        if at == 0:
            return None
        return segments[at - 1], segments[at] if at < len(segments) else None


class Catalogue:
    """All segments of a spool by epoch, from the oldest on. Earlier epochs can be asked for once `load` is through."""

    def __init__(self, disk: SpoolDirectory) -> None:
        self.epochs: dict[int, Epoch] = {}
        self.is_ready = False
        self.failures = 0
        """Segments that could not be read when powerd started."""
        self.past: tuple[Epoch, ...] = ()
        self._disk = disk
        self._lock = threading.Lock()
        names = ((_NAME.fullmatch(name), size_bytes) for name, size_bytes in disk.names().items())
        listed = [Segment(int(match[1], 16), int(match[2], 16), size) for match, size in names if match]
        listed.sort(key=lambda s: s.number)
        for segment in listed:
            self.epochs.setdefault(segment.epoch, Epoch(segment.epoch))
            self.add(segment)
        self._earlier = list(self.epochs.values())
        self.next_number = listed[-1].number + 1 if listed else 1

    @property
    def segments(self) -> list[Segment]:
        return [segment for epoch in list(self.epochs.values()) for segment in epoch.segments]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def add(self, segment: Segment) -> None:
        """List a segment, younger than all others."""
        with self._lock:
            epoch = self.epochs[segment.epoch]
            epoch.segments = (*epoch.segments, segment)

    def remove(self, segment: Segment) -> None:
        """Forget a segment whose file is gone."""
        with self._lock:
            epoch = self.epochs[segment.epoch]
            epoch.segments = tuple(s for s in epoch.segments if s is not segment)

    def load(self) -> None:
        """Index what earlier lives have left, epoch by epoch. May take long: a thread does it while powerd measures."""
        for epoch in self._earlier:
            self._index(epoch)
        told = [e for e in self._earlier if e.description and any(place.next for place in e.end.values())]
        self.past = tuple(told[-MAX_EPOCHS:])
        self.is_ready = True

    def _index(self, epoch: Epoch) -> None:
        """Find the places of an epoch's segments, and where the last one ends."""
        good: list[Segment] = []
        for segment in epoch.segments:
            try:
                description, begin = read_head(self._disk.read(segment.name, HEAD_BYTES), epoch.number)
                if begin is None:
                    description, begin = read_head(self.data(segment), epoch.number)
                # A damaged head: what the segments before do not hold is then missing in this one.
                segment.begin = begin if begin is not None else self._end(good[-1]) if good else {}
            except OSError:
                self.failures += 1
                self.remove(segment)
                continue
            epoch.description = epoch.description or description
            good.append(segment)
        if good:
            epoch.end = good[-1].begin
            with suppress(OSError):
                epoch.end = self._end(good[-1])

    def data(self, segment: Segment) -> bytes:
        """All that a segment holds so far."""
        return self._disk.read(segment.name, segment.size_bytes)

    def _end(self, segment: Segment) -> dict[int, Place]:
        """The places behind a segment."""
        places = dict(segment.begin)
        for _, header in scan(self.data(segment)):
            if header is not None and belongs(header, segment.epoch, places.get(header.stream, START).next):
                places[header.stream] = Place(header.following, header.t_last_ns)
        return places

    def answer(self, request: Mapping[str, object]) -> dict[str, object]:
        """The body of the answer to *epochs*: all earlier ones, or the one that the request names."""
        entries: list[dict[str, object]] = []
        room = ANSWER_BYTES
        for epoch in reversed(self.past):
            room -= len(epoch.description)
            if request.get("epoch", epoch.number) == epoch.number and (room >= 0 or "epoch" in request):
                description = decode(epoch.description)
                assert isinstance(description, Message)
                streams = [
                    {"number": n, "oldest": epoch.oldest(n).next, "next": end.next}
                    for n, end in sorted(epoch.end.items())
                ]
                entries.append({"epoch": epoch.number, "description": description.body, "streams": streams})
        return {"ready": self.is_ready, "epochs": entries[::-1]}


# Writing.


class SegmentWriter:
    """Appends frames to segments of ``epoch``, all together of at most ``limit_bytes``.

    A segment is a thousandth of the spool, from 1 to 16 MiB; of a small spool an eighth, so that making room takes
    little of it. Whatever the disk does, a number that a segment should hold and does not is known to be missing.
    """

    def __init__(self, disk: SpoolDirectory, catalogue: Catalogue, epoch: Epoch, limit_bytes: int) -> None:
        self.attempt = 0
        """How often the disk failed."""
        self.error: OSError | None = None
        """Why, until a sync succeeds."""
        self.safe: dict[int, Place] = {}
        """What survives a power cut, by stream."""
        self.safe_ns: int | None = None
        """Everything that powerd had at this time is safe."""
        self.missed = 0
        """Numbers that were passed over, since the ring no longer had them."""
        self.deleted = 0
        """Segments that made room for new ones."""
        self._disk = disk
        self._catalogue = catalogue
        self._epoch = epoch
        self.segment_bytes = min(limit_bytes // 8, max(limit_bytes >> 10, 1 << 20), 16 << 20)
        self._limit_bytes = limit_bytes
        self._next_number = catalogue.next_number
        self._open: tuple[Segment, int] | None = None
        """The segment that is being written, and its file's descriptor."""
        self._places: dict[int, Place] = {}
        self._complete_ns: int | None = None
        self._safe_missed = 0
        catalogue.epochs[epoch.number] = epoch

    def write(self, frames: Sequence[bytes], attempt: int, *, sync: bool, complete_ns: int | None) -> None:
        """Append frames, in order, and with ``sync`` come back only when they survive a power cut.

        ``attempt`` is that of when they were collected: after an error, what was collected before is void.
        ``complete_ns`` says when that was, if they are all there was. Never raises OSError: `error` tells.
        """
        if attempt != self.attempt:
            return
        try:
            while frames:
                frames = frames[self._append(frames) :]
            self._complete_ns = self._complete_ns if complete_ns is None else complete_ns
            if sync:
                self._sync()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Sync and close the segment."""
        try:
            self._finish()
        except OSError as error:
            self._fail(error)

    def _append(self, frames: Sequence[bytes]) -> int:
        """Write as many of ``frames`` as the segment takes, at least one; how many."""
        if self._open is not None and self._open[0].size_bytes + len(frames[0]) > self.segment_bytes:
            self._finish()
        segment, file = self._open or self._begin()
        size, places = segment.size_bytes, dict(self._places)
        count = missed = 0
        for frame in frames:
            if count and size + len(frame) > self.segment_bytes:
                break
            header = read_header(frame)
            missed += header.sequence - places.get(header.stream, START).next
            places[header.stream] = Place(header.following, header.t_last_ns)
            size += len(frame)
            count += 1
        self._disk.write(file, frames[:count])
        # In this order: who finds a number below the end finds it in the file.
        segment.size_bytes = size
        self.missed += missed
        self._places = self._epoch.end = places
        return count

    def _begin(self) -> tuple[Segment, int]:
        while (segments := self._catalogue.segments) and (
            self._catalogue.size_bytes + self.segment_bytes > self._limit_bytes
        ):
            with suppress(FileNotFoundError):
                self._disk.remove(segments[0].name)
            self._catalogue.remove(segments[0])
            self.deleted += 1
        head = segment_head(self._epoch.description, self._epoch.number, self._places)
        segment = Segment(self._epoch.number, self._next_number, len(head), dict(self._places))
        self._next_number += 1
        file = self._disk.create(segment.name)
        self._open = segment, file
        self._disk.write(file, [head])
        self._catalogue.add(segment)
        return segment, file

    def _sync(self) -> None:
        if self._open is not None:
            self._disk.sync(self._open[1])
        self.safe, self.safe_ns, self._safe_missed = self._places, self._complete_ns, self.missed
        self.error = None

    def _finish(self) -> None:
        """The segment is full, or powerd ends."""
        if self._open is not None:
            self._sync()
            (_, file), self._open = self._open, None
            self._disk.close(file)

    def _fail(self, error: OSError) -> None:
        if self._open is not None:
            (segment, file), self._open = self._open, None
            with suppress(OSError):
                self._disk.close(file)
            if not any(place.next > segment.begin.get(n, START).next for n, place in self.safe.items()):
                # There is nothing in it that counts.
                self._catalogue.remove(segment)
                with suppress(OSError):
                    self._disk.remove(segment.name)
        self._places = self._epoch.end = dict(self.safe)
        self._complete_ns, self.missed = self.safe_ns, self._safe_missed
        self.error = error
        # Last: from now on batches are collected anew, from the safe places on.
        self.attempt += 1


# Reading.

Chunk = dict[tuple[int, int], Ring]
"""A segment in memory: its frames by epoch and stream."""


def read_segment(epoch: int, begin: Places, end: Places, data: bytes, cause: str = MISSED) -> Chunk:
    """The frames of each stream's numbers from its place in ``begin`` up to that in ``end``.

    What does not carry on a stream, or lies beyond the end, is passed over. What should be there and is not becomes a
    gap; ``cause`` is told for what is missing without a trace of damage.
    """
    places = {stream: begin.get(stream, START) for stream in {*begin, *end}}
    rings = {n: Ring(n, epoch, sys.maxsize, place.next, place.t_last_ns) for n, place in places.items()}
    frames = list(scan(data))
    if any(header is None for _, header in frames):
        cause = DAMAGED
    for frame, header in frames:
        if header is None or header.sequence >= end.get(header.stream, START).next:
            continue
        ring = rings[header.stream]
        if belongs(header, epoch, ring.next):
            for gap in ring.gaps_until(header.sequence, begin_ns(header), cause):
                ring.append(*gap)
            ring.append(frame, header)
    for stream, place in end.items():
        for gap in rings[stream].gaps_until(place.next, place.t_last_ns, cause):
            rings[stream].append(*gap)
    return {(epoch, stream): ring for stream, ring in rings.items()}


class Reader:
    """Finds frames in segments. `find` is the server's; all else is done by ``worker``."""

    def __init__(self, catalogue: Catalogue, worker: Worker) -> None:
        self.failures = 0
        self._catalogue = catalogue
        self._worker = worker
        self._chunks: tuple[Chunk, ...] = ()
        """The one that was read last in front."""
        self._wanted: set[tuple[int, int, int]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether something is being read that a client waits for."""
        return bool(self._wanted)

    def find(self, epoch: int, stream: int, sequence: int) -> tuple[bytes, int] | None:
        """The frame for a number that the epoch covers, and the number after it; None until it has been read."""
        for chunk in self._chunks:
            ring = chunk.get((epoch, stream))
            if ring is not None and ring.oldest <= sequence < ring.next:
                return ring.find(sequence)
        wanted = epoch, stream, sequence
        if wanted not in self._wanted and len(self._wanted) < MAX_PENDING:
            self._wanted.add(wanted)
            self._worker.put(lambda: self._load(*wanted))
        return None

    def _load(self, number: int, stream: int, sequence: int) -> None:
        try:
            chunks = [*self._read(self._catalogue.epochs[number], stream, sequence), *self._chunks]
            while len(chunks) > 1 and sum(ring.size_bytes for chunk in chunks for ring in chunk.values()) > HELD_BYTES:
                chunks.pop()
            self._chunks = tuple(chunks)
        finally:
            self._wanted.discard((number, stream, sequence))

    def _read(self, epoch: Epoch, stream: int, sequence: int) -> list[Chunk]:
        # Before the bytes are looked for: what is written meanwhile is then beyond the end, and read another time.
        end = epoch.end
        covering = epoch.covering(stream, sequence)
        if covering is None:
            return []
        segment, following = covering
        if following is not None:
            end = following.begin
        try:
            return [read_segment(epoch.number, segment.begin, end, self._catalogue.data(segment))]
        except FileNotFoundError:
            # Deleted, by powerd to make room or by someone else: what was in it is now missing before the next one.
            self._catalogue.remove(segment)
            return []
        except OSError as error:
            self.failures += 1
            return [read_segment(epoch.number, segment.begin, end, b"", f"{UNREADABLE}: {error.strerror}")]


class SpooledStream:
    """One stream of one epoch as the spool holds it, found by sequence number as in a `Ring`.

    Of the present epoch its ``ring`` comes first, and the spool has what that has let go of.
    """

    def __init__(self, epoch: Epoch, stream: int, reader: Reader, ring: Ring | None = None) -> None:
        self.epoch = epoch.number
        self.stream = stream
        self.ring = ring
        self.taken = 0
        """Numbers below were handed to the spool's writer."""
        self.is_stalled = False
        """Whether it may never come to them."""
        self._epoch = epoch
        self._reader = reader

    @property
    def written(self) -> int:
        """The number after the last one that is in the spool."""
        return self._epoch.end.get(self.stream, START).next

    @property
    def oldest(self) -> int:
        oldest = self._epoch.oldest(self.stream).next
        return oldest if self.ring is None else min(oldest, self.ring.oldest)

    @property
    def next(self) -> int:
        return self.written if self.ring is None else self.ring.next

    @property
    def current(self) -> int:
        """Nothing new comes to what is past."""
        return self.written if self.ring is None else self.ring.current

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """As `Ring.find`; None also while it is being written or read."""
        if self.ring is not None and sequence >= self.ring.oldest:
            return self.ring.find(sequence)
        if sequence >= self.written:
            is_coming = sequence < self.taken and not self.is_stalled
            return None if self.ring is None or is_coming else self.ring.find(sequence)
        oldest = self._epoch.oldest(self.stream)
        if sequence >= oldest.next:
            return self._reader.find(self.epoch, self.stream, sequence)
        return gap_before(self.stream, self.epoch, sequence, oldest.next, oldest.t_last_ns, DELETED)


def open_spool(server: ServerConfig, epoch: int, clock: Clock) -> Spool | None:
    """The spool that a configuration asks for. Raises `ConfigError`."""
    if server.spool is None:
        return None
    return Spool(SpoolDirectory(server.spool), epoch, clock, server.spool_bytes, int(server.spool_sync_s * 1e9))


class Spool:
    """The spool of one life of powerd, ``epoch``, and what it holds of those before it, on ``disk``."""

    def __init__(
        self,
        disk: SpoolDirectory,
        epoch: int,
        clock: Clock,
        limit_bytes: int,
        sync_ns: int,
        make_worker: Callable[[str], Worker] = Worker,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.catalogue = Catalogue(disk)
        self._limit_sync_ns = sync_ns
        self._epoch = Epoch(epoch)
        self._disk = disk
        self._clock = clock
        self._writer = SegmentWriter(disk, self.catalogue, self._epoch, limit_bytes)
        self._writing, self._reading = make_worker("spool writer"), make_worker("spool reader")
        self._reader = Reader(self.catalogue, self._reading)
        self._reading.put(self.catalogue.load)
        self._rings: list[tuple[Ring, SpooledStream]] = []
        self._attempt = 0
        self._has_unsynced = False
        self._collect_ns = self._sync_ns = self._complete_ns = self._retry_ns = clock.now_ns()
        self._trouble = ""

    def begin(self, description: bytes) -> None:
        """What is measured is known: ``description`` is the frame of the answer to *describe*."""
        self._epoch.description = description

    def extend(self, ring: Ring) -> SpooledStream:
        """A stream's ring with what the spool holds of it; from now on it is spooled."""
        spooled = SpooledStream(self._epoch, ring.stream, self._reader, ring)
        self._rings.append((ring, spooled))
        return spooled

    def past(self, stream: int, epoch: int) -> Frames | None:
        """A stream of an earlier epoch; None when there is no such."""
        earlier = next((e for e in self.catalogue.past if e.number == epoch and stream in e.end), None)
        return None if earlier is None else SpooledStream(earlier, stream, self._reader)

    @property
    def is_reading(self) -> bool:
        """Whether a client waits for something that is being read."""
        return self._reader.is_busy

    def collect(self) -> None:
        """Hand what is new in the rings to the writer. Never waits."""
        now_ns = self._clock.now_ns()
        if now_ns < self._collect_ns or not self._epoch.description:
            return
        self._collect_ns = now_ns + COLLECT_NS
        self._check_disk(now_ns)
        if self._writing.pending < MAX_BATCHES and now_ns >= self._retry_ns:
            self._put(now_ns, sync=now_ns >= self._sync_ns)

    def finish(self) -> None:
        """Hand over what the rings still have; `close` waits for it, though not for ever."""
        # The rings let go of nothing any more, so what waits for the disk takes no memory of its own.
        while self._epoch.description and not self._put(self._clock.now_ns(), sync=True):
            pass

    def close(self) -> None:
        """End both threads. A disk that hangs does not keep powerd from ending."""
        self._writing.put(self._writer.close)
        self._writing.close(CLOSE_S)
        self._reading.close(0.1)
        self._disk.release()

    def behind_ns(self) -> int:
        """How much of the latest would be lost by a power cut."""
        now_ns = self._clock.now_ns()
        if all(self._safe(ring) >= ring.next for ring, _ in self._rings):
            self._complete_ns = now_ns
        return now_ns - max(self._complete_ns, self._writer.safe_ns or self._complete_ns)

    @property
    def dropped(self) -> int:
        """Sequence numbers that a ring let go before the disk had taken them."""
        return self._writer.missed + sum(max(ring.oldest - spooled.taken, 0) for ring, spooled in self._rings)

    def stats(self) -> dict[str, object]:
        """For the answer to *stats*; docs/protocol.md lists its keys."""
        return {
            "bytes": self.catalogue.size_bytes,
            "limit_bytes": self.limit_bytes,
            "segments": len(self.catalogue.segments),
            "deleted_segments": self._writer.deleted,
            "dropped_frames": self.dropped,
            "failures": self._writer.attempt + self._reader.failures + self.catalogue.failures,
            "error": _reason(self._writer.error),
            "behind_s": self.behind_ns() / 1e9,
            "streams": [
                {
                    "number": ring.stream,
                    "oldest": self._epoch.oldest(ring.stream).next,
                    "next": spooled.written,
                    "safe": self._safe(ring),
                }
                for ring, spooled in self._rings
            ],
            "archive": {"ready": self.catalogue.is_ready, "epochs": len(self.catalogue.past)},
        }

    def _safe(self, ring: Ring) -> int:
        return self._writer.safe.get(ring.stream, START).next

    def _put(self, now_ns: int, *, sync: bool) -> bool:
        """Collect one batch. Whether that was all there is."""
        frames: list[bytes] = []
        size = 0
        for ring, spooled in self._rings:
            at = max(spooled.taken, ring.oldest)
            while size < BATCH_BYTES and (held := ring.find(at)) is not None:
                frame, at = held
                frames.append(frame)
                size += len(frame)
            spooled.taken = at
        is_all = all(spooled.taken >= ring.next for ring, spooled in self._rings)
        self._has_unsynced |= bool(frames)
        if frames or (sync and self._has_unsynced):
            complete_ns = now_ns if is_all else None
            self._writing.put(partial(self._writer.write, frames, self._attempt, sync=sync, complete_ns=complete_ns))
        if sync:
            self._sync_ns = now_ns + self._limit_sync_ns
            self._has_unsynced = False
        return is_all

    def _check_disk(self, now_ns: int) -> None:
        """Notice that the disk failed, stalled, or is good again; each is told once."""
        if self._writer.attempt != self._attempt:
            self._attempt = self._writer.attempt
            for ring, spooled in self._rings:
                spooled.taken = self._safe(ring)
            self._has_unsynced = False
            self._retry_ns = self._sync_ns = now_ns + RETRY_NS
        trouble = ""
        if error := _reason(self._writer.error):
            trouble = f"cannot be written ({error})"
        elif self.behind_ns() - self._limit_sync_ns > STALLED_NS:
            trouble = "does not take the readings in time"
        for _, spooled in self._rings:
            spooled.is_stalled = bool(trouble)
        if trouble and not self._trouble:
            _log.warning("the spool %s: powerd serves from memory and tries again; see `powerd stats`", trouble)
        elif self._trouble and not trouble:
            _log.info("powerd: the spool is written again; %d frames were lost to it", self.dropped)
        self._trouble = trouble


def _reason(error: OSError | None) -> str:
    return "" if error is None else str(error.strerror or error)
