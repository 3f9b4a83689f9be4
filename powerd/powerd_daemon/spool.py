"""The spool: what enters the rings is also written to disk, so that powerd's own crash or a power cut loses a second.

It follows the rings like a client: whatever the disk has not taken yet is still in the ring, so a disk that stalls, is
full or read-only costs nothing until the ring lets go of it. The server's loop collects; two threads write and read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from powerd_daemon.archive import Archive, Reach, Shelf
from powerd_daemon.clock import Clock
from powerd_daemon.config import ServerConfig
from powerd_daemon.log import Log
from powerd_daemon.ring import Ring
from powerd_daemon.spool_catalogue import Catalogue, Epoch
from powerd_daemon.spool_disk import Disk, SpoolDirectory
from powerd_daemon.spool_reader import Reader
from powerd_daemon.spool_segments import START
from powerd_daemon.spool_writer import Batch, SegmentWriter
from powerd_daemon.worker import Thread, Worker

COLLECT_NS = 20_000_000
BATCH_BYTES = 1 << 20
MAX_BATCHES = 2
"""Batches on their way to the disk: beside the rings' own, the frames of so many are in memory."""
SEGMENT_BYTES = 16 << 20
RETRY_MIN_NS = 1_000_000_000
RETRY_MAX_NS = 30_000_000_000
STALLED_NS = 10_000_000_000
CLOSE_S = 2.0


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """How much, and how soon it is to survive a power cut."""

    bytes: int
    sync_ns: int

    @property
    def segment_bytes(self) -> int:
        """A spool has at least eight segments, so that making room takes little of it."""
        return min(SEGMENT_BYTES, self.bytes // 8)


def open_spool(server: ServerConfig, epoch: int, clock: Clock, log: Log) -> Spool | None:
    """The spool that a configuration asks for. Raises `ConfigError`."""
    if server.spool is None:
        return None
    disk = SpoolDirectory(server.spool)
    try:
        limits = SpoolLimits(server.spool_bytes, int(server.spool_sync_s * 1e9))
        return Spool(disk, epoch, limits, clock, log)
    except BaseException:
        disk.release()
        raise


class Spool:
    """The spool of one life of powerd, ``epoch``, and the archive of those before it, on ``disk``."""

    def __init__(
        self,
        disk: Disk,
        epoch: int,
        limits: SpoolLimits,
        clock: Clock,
        log: Log,
        make_worker: Callable[[str], Worker] = Thread,
    ) -> None:
        self.limits = limits
        catalogue = Catalogue()
        self._epoch = Epoch(epoch)
        catalogue.publish(self._epoch)
        self._catalogue = catalogue
        self._disk = disk
        self._clock = clock
        self._log = log
        self._writer = SegmentWriter(disk, catalogue, self._epoch, limits.segment_bytes, limits.bytes)
        self._writing, self._reading = make_worker("spool writer"), make_worker("spool reader")
        self._reader = Reader(catalogue, disk, clock, self._reading)
        self.archive = Archive(catalogue, disk, self._reader)
        self._writer.next_number = self.archive.enlist()
        self._reading.put(self.archive.load)
        self._reaches: list[Reach] = []
        self._attempt = 0
        self._began = False
        self._unsynced = False
        self._collect_ns = self._sync_ns = self._complete_ns = clock.now_ns()
        self._retry_ns: int | None = None
        self._pause_ns = RETRY_MIN_NS
        self._trouble = ""
        self._told_archive = False

    def begin(self, description: bytes) -> None:
        """What is measured is known: ``description`` is the frame of the answer to *describe*."""
        self._epoch.description = description
        self._began = True

    def reach(self, ring: Ring) -> Reach:
        """A stream's ring extended by what the spool holds of it; from now on it is spooled."""
        made = Reach(ring, Shelf(self._epoch, ring.stream, self._reader))
        self._reaches.append(made)
        return made

    @property
    def is_reading(self) -> bool:
        """Whether a client waits for something that is being read."""
        return self._reader.is_busy

    def collect(self) -> None:
        """Hand what is new in the rings to the writer. Never waits."""
        now_ns = self._clock.now_ns()
        if now_ns < self._collect_ns or not self._began:
            return
        self._collect_ns = now_ns + COLLECT_NS
        self._mind(now_ns)
        self._tell_archive()
        if self._writing.pending < MAX_BATCHES and (self._retry_ns is None or now_ns >= self._retry_ns):
            self._retry_ns = None
            self._put(now_ns, sync=now_ns >= self._sync_ns)

    def finish(self) -> None:
        """Write what the rings still have, and wait for it, though not for ever."""
        give_up_ns = self._clock.now_ns() + int(CLOSE_S * 1e9)
        while self._began and (now_ns := self._clock.now_ns()) < give_up_ns and self._writer.attempt == self._attempt:
            if self._writing.pending < MAX_BATCHES and self._put(now_ns, sync=True):
                break
            self._clock.sleep_until(now_ns + 2_000_000)

    def close(self) -> None:
        """End both threads. A disk that hangs does not keep powerd from ending."""
        self._writing.put(self._writer.close)
        self._writing.close(CLOSE_S)
        self._reading.close(0.1)
        self._disk.release()

    def behind_ns(self) -> int:
        """How much of the latest would be lost by a power cut."""
        now_ns = self._clock.now_ns()
        if all(self._safe(r) >= r.ring.next for r in self._reaches):
            self._complete_ns = now_ns
        return now_ns - max(self._complete_ns, self._writer.safe.complete_ns or self._complete_ns)

    @property
    def dropped(self) -> int:
        """Sequence numbers that a ring let go before the disk had taken them."""
        return self._writer.missed + sum(max(r.ring.oldest - r.taken, 0) for r in self._reaches)

    def stats(self) -> dict[str, object]:
        """For the answer to *stats*; docs/protocol.md lists its keys."""
        error = self._writer.error
        return {
            "bytes": self._catalogue.size_bytes,
            "limit_bytes": self.limits.bytes,
            "segments": len(self._catalogue.segments),
            "deleted_segments": self._writer.deleted,
            "dropped_frames": self.dropped,
            "failures": self._writer.attempt + self._reader.failures + self.archive.failures,
            "error": "" if error is None else str(error.strerror or error),
            "behind_s": self.behind_ns() / 1e9,
            "streams": [
                {"number": r.ring.stream, "oldest": r.shelf.oldest, "next": r.shelf.next, "safe": self._safe(r)}
                for r in self._reaches
            ],
            "archive": {"ready": self.archive.is_ready, "epochs": self.archive.epochs},
        }

    def _safe(self, reach: Reach) -> int:
        return self._writer.safe.places.get(reach.ring.stream, START).next

    def _put(self, now_ns: int, *, sync: bool) -> bool:
        """Collect one batch. Whether that was all there is."""
        frames: list[bytes] = []
        size = 0
        for reach in self._reaches:
            ring, at = reach.ring, reach.taken
            at = max(at, ring.oldest)
            while at < ring.next and size < BATCH_BYTES:
                found = ring.find(at)
                assert found is not None
                frames.append(found[0])
                size += len(found[0])
                at = found[1]
            reach.taken = at
        is_all = all(reach.taken >= reach.ring.next for reach in self._reaches)
        self._unsynced |= bool(frames)
        if frames or (sync and self._unsynced):
            self._writing.put(
                partial(self._writer.handle, Batch(frames, sync, self._attempt, now_ns if is_all else None))
            )
        if sync:
            self._sync_ns = now_ns + self.limits.sync_ns
            self._unsynced = False
        return is_all

    def _mind(self, now_ns: int) -> None:
        """Notice that the disk failed, stalled, or is good again; each is told once."""
        if self._writer.attempt != self._attempt:
            self._attempt = self._writer.attempt
            for reach in self._reaches:
                reach.taken = self._safe(reach)
            self._unsynced = False
            self._retry_ns, self._sync_ns = now_ns + self._pause_ns, now_ns
            self._pause_ns = min(self._pause_ns * 2, RETRY_MAX_NS)
            error = self._writer.error
            reason = "" if error is None else f"{error.strerror or error}"
            self._complain(f"cannot be written ({reason})")
        elif self._writer.error is None and self._retry_ns is None:
            self._pause_ns = RETRY_MIN_NS
            if self.behind_ns() - self.limits.sync_ns > STALLED_NS:
                self._stall(is_stalled=True)
                self._complain("does not take the readings in time")
            elif self._trouble:
                self._log.note(f"powerd: the spool is written again; {self.dropped} frames were lost to it")
                self._trouble = ""
                self._stall(is_stalled=False)

    def _stall(self, *, is_stalled: bool) -> None:
        for reach in self._reaches:
            reach.is_stalled = is_stalled

    def _tell_archive(self) -> None:
        """Say once what earlier lives of powerd have left."""
        if self._told_archive or not self.archive.is_ready:
            return
        self._told_archive = True
        if self.archive.epochs:
            lives = "one earlier life" if self.archive.epochs == 1 else f"{self.archive.epochs} earlier lives"
            self._log.note(f"powerd: the spool holds readings of {lives} of powerd")
        if self.archive.failures:
            self._log.complain(f"the spool: {self.archive.failures} segments of earlier lives could not be read")

    def _complain(self, what: str) -> None:
        if not self._trouble:
            self._log.complain(f"the spool {what}: powerd serves from memory and tries again; see `powerd stats`")
        self._trouble = what
