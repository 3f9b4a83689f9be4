"""The spool: what enters the rings is also kept on disk, so that powerd's own crash or a power cut loses a second.

The spool takes frames out of the rings like a client. What the disk has not taken yet is still in the ring, so a disk
that stalls, is full or read-only costs nothing until the ring lets go of it. The server's loop collects and never
waits; one thread writes and another one reads. What others look at is replaced as a whole by the one thread that
changes it, so nobody takes a lock.

A spool is a directory of append-only segments ``<epoch>-<number>.pwrd`` (hexadecimal); an epoch is one life of powerd,
and the number goes on over all epochs. A segment begins with two messages: the description, and ``segment`` with the
place of every stream at that point. A stream's numbers from there up to the next segment's place belong to this
segment; what it does not hold of them is missing, and a reader is given a gap with its cause, just as from a ring. So
the heads are the index: at the start they are read again, and of each epoch the last segment as a whole.

What a failed write or sync has really left on the disk nobody knows. The segment is then left as it is, and everything
since the last good sync is written again, to a new one. Of two segments that hold a number, the later one counts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import stat
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

from powerd_core.errors import ConfigError
from powerd_core.model import UNKNOWN_TIME_NS, Block, Gap
from powerd_core.protocol import Frames
from powerd_core.wire import (
    MAX_SEQUENCE,
    Event,
    FrameReader,
    Garbage,
    Message,
    decode,
    encode,
    read_header,
)
from powerd_daemon.clock import Clock
from powerd_daemon.config import ServerConfig
from powerd_daemon.ownership import own_uids
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
MAX_READ = 4
"""Segments that are being read at a time, and that are kept in memory: each is used before it is pushed out."""
MAX_EPOCHS = 32
"""Of older ones than so many lives of powerd nobody is told."""

DAMAGED = "damaged in powerd's spool"
MISSED = "not in powerd's spool: its disk did not take it in time"
UNREADABLE = "cannot be read from powerd's spool"
DELETED = "no longer in powerd's spool"

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.pwrd")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """How far a stream has come."""

    next: int
    t_last_ns: int = UNKNOWN_TIME_NS
    """Time of the last reading before it."""
    missed: int = 0
    """Numbers before it that the ring let go of before the disk took them."""


START = Place(0)
Places = Mapping[int, Place]
"""By stream."""


class SpoolDirectory:
    """The directory of a spool, made if need be, and locked against a second powerd while this object is open.

    The configuration names it, and it may be a link; in it no link is followed, and what belongs to another user is
    none of the spool's. Every method may stall for seconds, or raise OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_new_names = False
        """Whether files were made whose names a power cut may still take."""
        try:
            path.mkdir(0o700, exist_ok=True)
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
        """The spool's files there, each with its size in bytes."""
        own, sizes = own_uids(self.path), {}
        for entry in os.scandir(self._lock):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_uid in own:
                sizes[entry.name] = status.st_size
        return sizes

    def create(self, name: str) -> int:
        """A new file to append to, by its descriptor. Its name survives a power cut from the next `sync` on.

        The directory is not synced here: that may take seconds, and what waits for it is lost when powerd is killed.
        """
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600, dir_fd=self._lock)
        self._has_new_names = True
        return file

    def write(self, file: int, data: bytes) -> None:
        """Append all of it. After an error any part of it may be there."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(file, rest) :]

    def sync(self, file: int) -> None:
        """Come back when what was written survives a power cut."""
        os.fdatasync(file)
        if self._has_new_names:
            os.fsync(self._lock)
            self._has_new_names = False

    def close(self, file: int) -> None:
        os.close(file)

    def remove(self, name: str) -> None:
        os.unlink(name, dir_fd=self._lock)

    def read(self, name: str, size: int) -> bytes:
        """The first ``size`` bytes of a file, or what there is."""
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._lock)
        with os.fdopen(descriptor, "rb") as file:
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


@dataclass(slots=True)
class Epoch:
    """One life of powerd. It stays known when its last segment is gone, so that what is missing can be told."""

    number: int
    description: bytes = b""
    """The frame of its description; empty when no segment holds a good one."""
    segments: tuple[Segment, ...] = ()
    end: Places = field(default_factory=dict)
    """Where what was written ends."""

    def oldest(self, stream: int) -> Place:
        """The first number that is held, or would be: after a hole the reader makes a gap of it."""
        return (self.segments[0].begin if self.segments else self.end).get(stream, START)


def segment_head(description: bytes, epoch: int, places: Places) -> bytes:
    """The first bytes of a segment."""
    streams = [[number, place.next, place.t_last_ns] for number, place in sorted(places.items())]
    return description + encode(Message("segment", {"streams": streams}, epoch))


def read_head(data: bytes, epoch: int) -> tuple[bytes, Places | None]:
    """The description's frame, empty when it is damaged, and the places at which a segment begins, or None."""
    description = b""
    for event, frame in _frames(data):
        if isinstance(event, Message) and (event.subject, event.epoch) == ("description", epoch):
            description = frame
        elif isinstance(event, Message) and (event.subject, event.epoch) == ("segment", epoch):
            with suppress(KeyError, TypeError, ValueError):
                streams: Any = event.body["streams"]
                places = {int(n): Place(int(following), int(t_ns)) for n, following, t_ns in streams}
                if all(0 <= place.next < MAX_SEQUENCE for place in places.values()):
                    return description, places
    return description, None


def _frames(data: bytes) -> Iterator[tuple[Event | Garbage, bytes]]:
    """What is in a segment: events with their frames, which are empty where it is damaged."""
    reader = FrameReader()
    return chain(reader.feed(data), reader.close())


Chunk = dict[tuple[int, int], Ring]
"""A segment in memory: its frames by epoch and stream, with gaps for what is missing."""


def read_segment(epoch: int, begin: Places, end: Places | None, data: bytes) -> Chunk:
    """The frames of each stream's numbers from its place in ``begin`` up to that in ``end``, or all that there are.

    What a failed write left behind twice, or lies beyond the end, is passed over. What should be there and is not
    becomes a gap with its cause.
    """
    rings = {n: Ring(n, epoch, sys.maxsize, place.next, place.t_last_ns) for n, place in begin.items()}
    frames = [frame for _, frame in _frames(data)]
    # Every segment has a head, and a damaged stretch has no frame.
    cause = UNREADABLE if not data else MISSED if all(frames) else DAMAGED
    for frame in filter(None, frames):
        event = decode(frame)  # one at a time: each holds its readings once more
        if not isinstance(event, Block | Gap) or event.epoch != epoch or (isinstance(event, Block) and not event.count):
            continue
        ring = rings.setdefault(event.stream, Ring(event.stream, epoch, sys.maxsize))
        if event.sequence >= ring.next and (end is None or event.sequence < end.get(event.stream, START).next):
            for gap in ring.gaps_until(event.sequence, begin_ns(event), cause):
                ring.append(*gap)
            ring.append(frame, event)
    for stream, place in (end or {}).items():
        ring = rings.setdefault(stream, Ring(stream, epoch, sys.maxsize))
        for gap in ring.gaps_until(place.next, place.t_last_ns, cause):
            ring.append(*gap)
    return {(epoch, stream): ring for stream, ring in rings.items()}


class Catalogue:
    """All segments of a spool by epoch, from the oldest on, and the frames in them. ``worker`` does what may stall."""

    def __init__(self, disk: SpoolDirectory, worker: Worker) -> None:
        self._past: tuple[Epoch, ...] | None = None
        """None until the earlier epochs have been read: one attribute, so that nobody sees a half of it."""
        self.failures = 0
        """Segments that could not be read."""
        self._disk = disk
        self._worker = worker
        self._chunks: tuple[Chunk, ...] = ()
        """The one that was read last in front."""
        self.wanted: set[tuple[int, int, int]] = set()
        """Numbers that clients wait for, by epoch and stream."""
        self.epochs: dict[int, Epoch] = {}
        names = ((_NAME.fullmatch(name), size_bytes) for name, size_bytes in disk.names().items())
        listed = [Segment(int(match[1], 16), int(match[2], 16), size) for match, size in names if match]
        listed.sort(key=lambda segment: segment.number)
        self.next_number = listed[-1].number + 1 if listed else 1
        for segment in listed:
            self.epochs.setdefault(segment.epoch, Epoch(segment.epoch)).segments += (segment,)
        worker.put(partial(self._load, list(self.epochs.values())))

    @property
    def is_ready(self) -> bool:
        """Whether earlier epochs can be asked for."""
        return self._past is not None

    @property
    def past(self) -> tuple[Epoch, ...]:
        return self._past or ()

    @property
    def segments(self) -> list[Segment]:
        return [segment for epoch in list(self.epochs.values()) for segment in epoch.segments]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def forget(self, segment: Segment) -> None:
        """A segment's file is gone."""
        epoch = self.epochs[segment.epoch]
        epoch.segments = tuple(s for s in epoch.segments if s is not segment)

    def answer(self, request: Mapping[str, object]) -> dict[str, object]:
        """The body of the answer to *epochs*: all earlier ones, or the one that the request names."""
        past = self._past  # once: the reading thread may set it meanwhile
        entries: list[dict[str, object]] = []
        for epoch in past or ():
            if request.get("epoch", epoch.number) == epoch.number:
                description = decode(epoch.description)
                assert isinstance(description, Message)
                ends = sorted(epoch.end.items())
                streams = [{"number": n, "oldest": epoch.oldest(n).next, "next": end.next} for n, end in ends]
                entries.append({"epoch": epoch.number, "description": description.body, "streams": streams})
        return {"ready": past is not None, "epochs": entries}

    def find_past(self, stream: int, epoch: int) -> SpooledStream | None:
        """A stream of an earlier epoch; None when there is no such."""
        past = next((e for e in self.past if e.number == epoch and stream in e.end), None)
        return None if past is None else SpooledStream(past, stream, self)

    def find(self, epoch: int, stream: int, sequence: int) -> tuple[bytes, int] | None:
        """The frame for a number that an epoch covers, and the number after it; None until it has been read."""
        for chunk in self._chunks:
            ring = chunk.get((epoch, stream))
            if ring is not None and ring.oldest <= sequence < ring.next:
                return ring.find(sequence)
        wanted = epoch, stream, sequence
        if wanted not in self.wanted and len(self.wanted) < MAX_READ:
            self.wanted.add(wanted)
            self._worker.put(partial(self._fetch, *wanted))
        return None

    # What follows runs in the worker.

    def _load(self, earlier: Sequence[Epoch]) -> None:
        """Find the places of what earlier lives have left, and where each ends."""
        for epoch in earlier:
            before: Segment | None = None
            for segment in epoch.segments:
                description, begin = read_head(self._data(segment, HEAD_BYTES), epoch.number)
                if begin is None:
                    description, begin = read_head(self._data(segment), epoch.number)
                if begin is None:
                    # A damaged head: what the segments before do not hold is then missing in this one.
                    begin = {} if before is None else self._end(before)
                segment.begin, before = begin, segment
                epoch.description = epoch.description or description
            epoch.end = {} if before is None else self._end(before)
        told = [e for e in earlier if e.description and any(place.next for place in e.end.values())]
        self._past = tuple(told[-MAX_EPOCHS:])

    def _fetch(self, epoch: int, stream: int, sequence: int) -> None:
        """Read the segment of a number. Of two that hold it, the later."""
        known = self.epochs[epoch]
        # Before the bytes are looked for: what is written meanwhile is then beyond the end, and read another time.
        end, segments = known.end, known.segments
        at = bisect_right(segments, sequence, key=lambda s: s.begin.get(stream, START).next)
        if at > 0:
            segment = segments[at - 1]
            end = segments[at].begin if at < len(segments) else end
            self._chunks = (read_segment(epoch, segment.begin, end, self._data(segment)), *self._chunks)[:MAX_READ]
        self.wanted.discard((epoch, stream, sequence))

    def _data(self, segment: Segment, size_bytes: int | None = None) -> bytes:
        """The beginning of a segment, or all of it; empty where it cannot be read."""
        try:
            return self._disk.read(segment.name, segment.size_bytes if size_bytes is None else size_bytes)
        except OSError:
            self.failures += 1
            return b""

    def _end(self, segment: Segment) -> Places:
        """The places behind a segment."""
        rings = read_segment(segment.epoch, segment.begin, None, self._data(segment))
        return {stream: Place(ring.next, ring.t_last_ns) for (_, stream), ring in rings.items()}


class SpooledStream:
    """One stream of one epoch as the spool holds it, found by sequence number as in a `Ring`.

    Of the present epoch its ``ring`` comes first, and the spool has what that has let go of.
    """

    def __init__(self, epoch: Epoch, stream: int, catalogue: Catalogue, ring: Ring | None = None) -> None:
        self.epoch = epoch.number
        self.taken = 0
        """Numbers below were handed to the spool's writer."""
        self.is_stalled = False
        """Whether it may never come to them."""
        self._held = epoch
        self._stream = stream
        self._catalogue = catalogue
        self._ring = ring

    @property
    def written(self) -> int:
        """The number after the last one that is in the spool."""
        return self._held.end.get(self._stream, START).next

    @property
    def oldest(self) -> int:
        oldest = self._held.oldest(self._stream).next
        return oldest if self._ring is None else min(oldest, self._ring.oldest)

    @property
    def next(self) -> int:
        return self.written if self._ring is None else self._ring.next

    @property
    def current(self) -> int:
        """Nothing new comes to what is past."""
        return self.written if self._ring is None else self._ring.current

    def find(self, sequence: int) -> tuple[bytes, int] | None:
        """As `Ring.find`; None also while it is being written or read."""
        ring = self._ring
        if ring is not None and sequence >= ring.oldest:
            return ring.find(sequence)
        if sequence >= self.written:
            is_coming = sequence < self.taken and not self.is_stalled
            return None if ring is None or is_coming else ring.find(sequence)
        oldest = self._held.oldest(self._stream)
        if sequence >= oldest.next:
            return self._catalogue.find(self.epoch, self._stream, sequence)
        return gap_before(self._stream, self.epoch, sequence, oldest.next, oldest.t_last_ns, DELETED)


def open_spool(server: ServerConfig, epoch: int, clock: Clock) -> Spool | None:
    """The spool that a configuration asks for. Raises `ConfigError`."""
    if server.spool is None:
        return None
    return Spool(SpoolDirectory(server.spool), epoch, clock, server.spool_bytes, int(server.spool_sync_s * 1e9))


class Spool:
    """The spool of one life of powerd, ``epoch``, and what it holds of those before it, on ``disk``.

    A segment is a thousandth of ``limit_bytes``, from 1 to 16 MiB; of a small spool an eighth, so that making room
    takes little of it. Whatever the disk does, a number that a segment should hold and does not is known to be missing.
    """

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
        self.segment_bytes = min(limit_bytes // 8, max(limit_bytes >> 10, 1 << 20), 16 << 20)
        self._disk = disk
        self._clock = clock
        self._limit_sync_ns = sync_ns
        self._writing, self._reading = make_worker("spool writer"), make_worker("spool reader")
        self.catalogue = Catalogue(disk, self._reading)
        self._epoch = self.catalogue.epochs[epoch] = Epoch(epoch)
        self._rings: list[tuple[Ring, SpooledStream]] = []
        self._collect_ns = self._sync_ns = self._retry_ns = clock.now_ns()
        self._attempt = 0
        """The writer's, as the loop last saw it."""
        self._trouble = ""
        # What the writing thread changes.
        self.attempt = 0
        """How often the disk failed."""
        self.error: OSError | None = None
        """Why, until a sync succeeds."""
        self.places: Places = {}
        """What was written, by stream."""
        self.safe: Places = {}
        """What survives a power cut."""
        self.safe_ns = clock.now_ns()
        """Everything that powerd had at this time is safe."""
        self.deleted = 0
        """Segments that made room for new ones."""
        self._next_number = self.catalogue.next_number
        self._open: tuple[Segment, int] | None = None
        """The segment that is being written, and its file's descriptor."""

    def begin(self, description: bytes) -> None:
        """What is measured is known: ``description`` is the frame of the answer to *describe*."""
        self._epoch.description = description
        self.safe_ns = self._clock.now_ns()

    def extend(self, ring: Ring) -> Frames:
        """A stream's ring with what the spool holds of it; from now on it is spooled."""
        spooled = SpooledStream(self._epoch, ring.stream, self.catalogue, ring)
        self._rings.append((ring, spooled))
        return spooled

    def past(self, stream: int, epoch: int) -> Frames | None:
        """A stream of an earlier epoch; None when there is no such."""
        return self.catalogue.find_past(stream, epoch)

    @property
    def is_reading(self) -> bool:
        """Whether a client waits for something that is being read."""
        return bool(self.catalogue.wanted)

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
        self._writing.put(self._end)
        self._writing.close(CLOSE_S)
        self._reading.close(0.1)
        self._disk.release()

    @property
    def behind_ns(self) -> int:
        """How much of the latest would at most be lost by a power cut."""
        return self._clock.now_ns() - self.safe_ns

    @property
    def dropped(self) -> int:
        """Sequence numbers that a ring let go before the disk had taken them."""
        missed = sum(place.missed for place in self.places.values())
        return missed + sum(max(ring.oldest - spooled.taken, 0) for ring, spooled in self._rings)

    def stats(self) -> dict[str, object]:
        """For the answer to *stats*; docs/reference/protocol.md lists its keys."""
        return {
            "bytes": self.catalogue.size_bytes,
            "limit_bytes": self.limit_bytes,
            "segments": len(self.catalogue.segments),
            "deleted_segments": self.deleted,
            "dropped_frames": self.dropped,
            "failures": self.attempt + self.catalogue.failures,
            "error": self._reason,
            "behind_s": self.behind_ns / 1e9,
            "streams": [
                {
                    "number": ring.stream,
                    "oldest": self._epoch.oldest(ring.stream).next,
                    "next": spooled.written,
                    "safe": self.safe.get(ring.stream, START).next,
                }
                for ring, spooled in self._rings
            ],
            "archive": {"ready": self.catalogue.is_ready, "epochs": len(self.catalogue.past)},
        }

    @property
    def _reason(self) -> str:
        error = self.error
        return "" if error is None else str(error.strerror or error)

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
        if sync:
            self._sync_ns = now_ns + self._limit_sync_ns
        if frames or sync:
            complete_ns = now_ns if sync and is_all else None
            self._writing.put(partial(self._write, frames, self._attempt, sync=sync, complete_ns=complete_ns))
        return is_all

    def _check_disk(self, now_ns: int) -> None:
        """Notice that the disk failed, stalled, or is good again; each is told once."""
        if self.attempt != self._attempt:
            self._attempt = self.attempt
            for ring, spooled in self._rings:
                spooled.taken = self.safe.get(ring.stream, START).next
            self._retry_ns = self._sync_ns = now_ns + RETRY_NS
        is_late = self.behind_ns - self._limit_sync_ns > STALLED_NS
        trouble = self._reason or ("it does not take the readings in time" if is_late else "")
        for _, spooled in self._rings:
            spooled.is_stalled = bool(trouble)
        if trouble and not self._trouble:
            _log.warning("the spool cannot be written (%s): powerd serves from memory and tries again", trouble)
        elif self._trouble and not trouble:
            _log.info("powerd: the spool is written again; %d frames were lost to it", self.dropped)
        self._trouble = trouble

    # What follows runs in the writing thread.

    def _write(self, frames: Sequence[bytes], attempt: int, *, sync: bool, complete_ns: int | None) -> None:
        """Append frames, in order, and with ``sync`` come back only when they survive a power cut.

        After an error, what was collected before (in an older ``attempt``) is void. ``complete_ns`` is when everything
        was collected.
        """
        if attempt != self.attempt:
            return
        try:
            for frame in frames:
                self._append(frame)
            if sync:
                self._sync()
                self.safe_ns = complete_ns or self.safe_ns
        except OSError as error:
            self._fail(error)

    def _append(self, frame: bytes) -> None:
        if self._open is not None and self._open[0].size_bytes + len(frame) > self.segment_bytes:
            self._sync(close=True)
        segment, file = self._open or self._begin_segment()
        header = read_header(frame)
        before = self.places.get(header.stream, START)
        place = Place(header.following, header.t_last_ns, before.missed + header.sequence - before.next)
        self._disk.write(file, frame)
        # In this order: who finds a number below the end finds it in the file.
        segment.size_bytes += len(frame)
        self.places = self._epoch.end = {**self.places, header.stream: place}

    def _begin_segment(self) -> tuple[Segment, int]:
        while (segments := self.catalogue.segments) and (
            self.catalogue.size_bytes + self.segment_bytes > self.limit_bytes
        ):
            with suppress(FileNotFoundError):
                self._disk.remove(segments[0].name)
            self.catalogue.forget(segments[0])
            self.deleted += 1
        head = segment_head(self._epoch.description, self._epoch.number, self.places)
        segment = Segment(self._epoch.number, self._next_number, len(head), self.places)
        self._next_number += 1
        self._open = segment, self._disk.create(segment.name)
        self._disk.write(self._open[1], head)
        self._epoch.segments += (segment,)
        return self._open

    def _sync(self, *, close: bool = False) -> None:
        if self._open is not None:
            self._disk.sync(self._open[1])
        self.safe, self.error = self.places, None
        if close and self._open is not None:
            self._disk.close(self._open[1])
            self._open = None

    def _end(self) -> None:
        with suppress(OSError):
            self._sync(close=True)

    def _fail(self, error: OSError) -> None:
        if self._open is not None:
            (segment, file), self._open = self._open, None
            with suppress(OSError):
                self._disk.close(file)
            if not any(place.next > segment.begin.get(n, START).next for n, place in self.safe.items()):
                # There is nothing in it that counts.
                self.catalogue.forget(segment)
                with suppress(OSError):
                    self._disk.remove(segment.name)
        self.places = self._epoch.end = self.safe
        self.error = error
        # Last: from now on batches are collected anew, from the safe places on.
        self.attempt += 1
