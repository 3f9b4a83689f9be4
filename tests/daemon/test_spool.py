"""The spool follows the rings: what the disk takes late is late, what it never takes is known, and nobody waits."""

from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from daemon_harness import FakeClock, block, following
from fake_disk import FakeDisk, Later
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import Block, ConfigError, Gap, Message, decode, encode
from powerd_core.wire import read_header
from powerd_daemon.archive import DELETED, Reach
from powerd_daemon.log import Log
from powerd_daemon.ring import EVICTED
from powerd_daemon.spool import BATCH_BYTES, COLLECT_NS, MAX_BATCHES, Spool, SpoolLimits
from powerd_daemon.spool_chunks import MISSED
from powerd_daemon.spool_disk import SpoolDirectory
from powerd_daemon.store import Store
from powerd_daemon.worker import Thread

EPOCH = 7
STREAM = steady_stream()
FRAME_BYTES = len(encode(block(STREAM, 0)))
SECOND_NS = 1_000_000_000


class Bench:
    """A spool on a fake disk behind one ring; `turn` is one turn of the server's loop."""

    def __init__(
        self, ring_bytes: int = 1 << 20, limit_bytes: int = 1 << 30, disk: FakeDisk | None = None, epoch: int = EPOCH
    ) -> None:
        self.disk = disk or FakeDisk()
        self.clock = FakeClock()
        self.said = io.StringIO()
        self.workers: list[Later] = []
        log = Log(self.said, self.clock)
        self.epoch = epoch
        self.spool = Spool(self.disk, epoch, SpoolLimits(limit_bytes, SECOND_NS), self.clock, log, self._worker)
        self.store = Store(epoch, ring_bytes, self.spool)
        self.store.add(STREAM)
        self.intake = self.store.intakes[0]
        self.spool.begin(encode(Message("description", {"board": "b"}, epoch)))
        self.stalls = False

    def _worker(self, name: str) -> Later:
        self.workers.append(Later())
        return self.workers[-1]

    def fill(self, count: int, scans: int = 3) -> None:
        for n in range(self.intake.ring.next, self.intake.ring.next + count):
            frame = encode(block(STREAM, n, self.epoch, scans))
            self.intake.accept(frame, read_header(frame))

    def turn(self, seconds: float = COLLECT_NS / 1e9) -> None:
        self.clock.t_ns += int(seconds * SECOND_NS)
        self.spool.collect()
        if not self.stalls:
            for worker in self.workers:
                worker.work()

    def read(self, begin: int, epoch: int = 0) -> list[Block | Gap]:
        """All that a client would get from ``begin`` on."""
        frames = self.store.ring(0, epoch)
        assert frames is not None
        events, at, patience = [], begin, 3
        while at < frames.next and patience:
            if (found := frames.find(at)) is None:
                patience -= 1
                self.turn()
                continue
            event = decode(found[0])
            assert isinstance(event, Block | Gap)
            assert event.sequence == at
            events.append(event)
            at, patience = following(event), 3
        return events

    def complaints(self) -> list[str]:
        return self.said.getvalue().splitlines()


def numbers(events: list[Block | Gap]) -> list[int]:
    assert all(isinstance(e, Block) for e in events)
    return [e.sequence for e in events]


def test_everything_that_enters_a_ring_is_written_and_survives_a_crash() -> None:
    bench = Bench()
    for _ in range(5):
        bench.fill(3)
        bench.turn()
    again = Bench(disk=bench.disk, epoch=8)
    for _ in range(3):
        again.turn()
    assert again.read(0, EPOCH) == [block(STREAM, n) for n in range(15)]
    assert again.store.ring(0, 8) is again.store.ring(0)
    assert again.complaints() == ["powerd: the spool holds readings of one earlier life of powerd"]


def test_a_power_cut_takes_what_was_not_synced() -> None:
    bench = Bench()
    for _ in range(3):
        bench.fill(2)
        bench.turn(1.0)
    bench.fill(2)
    bench.turn(0.5)
    assert bench.disk.syncs == 3
    assert bench.spool.behind_ns() == SECOND_NS // 2
    bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(6))


def test_what_the_ring_let_go_comes_from_the_spool() -> None:
    bench = Bench(ring_bytes=2000)
    for _ in range(50):
        bench.fill(2)
        bench.turn()
    assert bench.intake.ring.oldest > 80
    frames = bench.store.ring(0)
    assert frames is not None
    assert (frames.oldest, frames.next, frames.current) == (0, 100, 99)
    assert bench.read(0) == [block(STREAM, n) for n in range(100)]


def test_what_is_on_its_way_to_the_disk_is_waited_for() -> None:
    bench = Bench(ring_bytes=2000)
    bench.stalls = True
    bench.fill(2)
    bench.turn()
    bench.fill(20)
    frames = bench.store.ring(0)
    assert frames is not None
    assert frames.find(0) is None
    found = frames.find(5)
    assert found is not None
    assert decode(found[0]).cause == EVICTED, "the spool had no chance to take it"  # type: ignore[union-attr]
    bench.stalls = False
    bench.turn()
    assert numbers(bench.read(0)[:2]) == [0, 1]


def test_a_stalled_disk_costs_nothing_that_the_ring_still_has() -> None:
    bench = Bench()
    bench.stalls = True
    for _ in range(20):
        bench.fill(1)
        bench.turn(1.0)
    assert bench.workers[0].pending == MAX_BATCHES, "the memory that it takes is bounded"
    assert bench.complaints() == [
        "powerd: the spool does not take the readings in time: powerd serves from memory and tries again; "
        "see `powerd stats`"
    ]
    bench.stalls = False
    for _ in range(5):
        bench.turn(1.0)
    assert bench.spool.behind_ns() == 0
    assert bench.spool.stats()["dropped_frames"] == 0
    assert bench.complaints()[1:] == ["powerd: the spool is written again; 0 frames were lost to it"]
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(20))


def test_a_client_does_not_wait_for_a_disk_that_hangs() -> None:
    bench = Bench(ring_bytes=2000)
    bench.stalls = True
    for _ in range(40):
        bench.fill(1)
        bench.turn(1.0)
    gap, *rest = bench.read(0)
    assert isinstance(gap, Gap)
    assert (gap.cause, following(gap)) == (EVICTED, bench.intake.ring.oldest)
    assert len(rest) > 1


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_fails_is_told_once_and_taken_again(error: int) -> None:
    bench = Bench()
    bench.fill(5)
    bench.turn(1.0)
    bench.disk.error = error
    for _ in range(100):
        bench.fill(1)
        bench.turn(1.0)
    assert len(bench.complaints()) == 1
    stats = bench.spool.stats()
    assert stats["error"]
    assert 4 < stats["failures"] < 12, "it is tried less and less often"  # type: ignore[operator]
    assert 99 < stats["behind_s"] < 101  # type: ignore[operator]
    assert numbers(bench.read(0)) == list(range(105)), "clients are served from memory"
    bench.disk.error = None
    for _ in range(31):
        bench.turn(1.0)
    assert bench.complaints()[1:] == ["powerd: the spool is written again; 0 frames were lost to it"]
    bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(105)), "nothing is missing: the ring had it all"


def test_what_a_failed_sync_lost_is_written_again() -> None:
    bench = Bench(ring_bytes=1800)
    bench.fill(2)
    bench.turn(1.0)
    bench.fill(2)
    bench.turn()
    frames = bench.store.ring(0)
    assert isinstance(frames, Reach)
    assert frames.shelf.next == 4
    bench.disk.sync_error = errno.EIO
    bench.turn(1.0)
    assert frames.shelf.next == 2, "nobody knows what has become of the rest"
    bench.disk.sync_error = None
    bench.turn(1.0)
    bench.turn(1.0)
    bench.fill(20)
    bench.turn(1.0)
    assert bench.read(0)[:4] == [block(STREAM, n) for n in range(4)]


def test_a_batch_from_before_an_error_is_void() -> None:
    bench = Bench()
    bench.stalls = True
    for _ in range(2):
        bench.fill(2)
        bench.turn()
    first, second = bench.workers[0].jobs
    bench.disk.error = errno.EIO
    first()
    bench.disk.error = None
    second()
    bench.workers[0].jobs.clear()
    assert bench.disk.files == {}
    bench.stalls = False
    for _ in range(3):
        bench.turn(1.0)
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(4))
    assert bench.spool.dropped == 0


def test_a_full_segment_is_safe() -> None:
    bench = Bench(limit_bytes=8000)
    bench.turn(1.0)
    for _ in range(10):
        bench.fill(2)
        bench.turn()
    bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    held = numbers(again.read(0, EPOCH))
    assert held == list(range(len(held)))
    assert 14 <= len(held) < 20


def test_what_a_full_disk_cost_is_a_gap_with_its_cause() -> None:
    bench = Bench(ring_bytes=2000)
    bench.fill(3)
    bench.turn(1.0)
    bench.disk.room_bytes = 100
    for _ in range(50):
        bench.fill(1)
        bench.turn(1.0)
    bench.disk.room_bytes = None
    for _ in range(40):
        bench.fill(1)
        bench.turn(1.0)
    dropped = bench.spool.dropped
    assert dropped > 0
    bench.spool.finish()
    bench.spool.close()
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    events = again.read(0, EPOCH)
    gaps = [e for e in events if isinstance(e, Gap)]
    assert [(g.sequence, g.span, g.cause) for g in gaps] == [(3, dropped, MISSED)]
    assert following(events[-1]) == 93


def test_the_oldest_segments_make_room() -> None:
    bench = Bench(ring_bytes=2000, limit_bytes=8000)
    for _ in range(100):
        bench.fill(2)
        bench.turn(0.5)
        assert sum(bench.disk.names().values()) <= 8000
    frames = bench.store.ring(0)
    assert frames is not None
    assert 100 < frames.oldest < 180
    gap, *rest = bench.read(0)
    assert isinstance(gap, Gap)
    assert (gap.cause, following(gap)) == (DELETED, frames.oldest)
    assert numbers(rest) == list(range(frames.oldest, 200))
    older = Bench(disk=bench.disk, limit_bytes=8000, epoch=8)
    older.turn()
    begin = older.store.ring(0, EPOCH)
    assert begin is not None
    was = begin.oldest
    older.fill(60)
    older.turn()
    assert begin.oldest > was, "earlier lives make room too"


def test_a_frame_larger_than_a_segment_is_kept_whole() -> None:
    bench = Bench(limit_bytes=8000)
    bench.fill(1)
    bench.fill(1, scans=200)
    bench.fill(1)
    bench.turn(1.0)
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert [e.count for e in again.read(0, EPOCH) if isinstance(e, Block)] == [3, 200, 3]


def test_a_large_backlog_goes_in_pieces() -> None:
    bench = Bench(ring_bytes=16 << 20)
    bench.stalls = True
    scans = 200_000 // STREAM.scan_bytes
    bench.fill(40, scans)
    for _ in range(5):
        bench.turn()
    assert bench.workers[0].pending == MAX_BATCHES
    bench.stalls = False
    sizes = []
    for _ in range(10):
        before = sum(bench.disk.names().values())
        bench.turn()
        sizes.append(sum(bench.disk.names().values()) - before)
    assert max(sizes) < (MAX_BATCHES + 1) * (BATCH_BYTES + 300_000)
    assert numbers(bench.read(0)) == list(range(40))
    bench.turn(1.0)
    assert bench.spool.stats()["streams"] == [{"number": 0, "oldest": 0, "next": 40, "safe": 40}]


def test_the_end_of_powerd_writes_what_is_left() -> None:
    bench = Bench()
    bench.fill(7)
    bench.spool.finish()
    bench.spool.close()
    bench.disk.power_cut()
    assert bench.disk.released
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(7))


def test_nothing_is_written_before_anything_is_measured() -> None:
    bench = Bench()
    bench.turn(1.0)
    bench.spool.finish()
    bench.spool.close()
    assert bench.disk.files == {}
    assert bench.spool.behind_ns() == 0


def test_a_slow_stream_is_not_behind() -> None:
    bench = Bench()
    for _ in range(5):
        bench.fill(1)
        for _ in range(100):
            bench.turn(0.5)
        assert bench.spool.behind_ns() == 0
    assert bench.complaints() == []


STEP = st.one_of(
    st.tuples(st.just("fill"), st.integers(1, 6)),
    st.tuples(st.just("turn"), st.sampled_from([0.02, 0.5, 1.0, 40.0])),
    st.tuples(st.just("error"), st.sampled_from([None, None, errno.ENOSPC, errno.EIO])),
    st.tuples(st.just("room"), st.sampled_from([None, 0, 70, 500])),
    st.tuples(st.just("stall"), st.booleans()),
)


@given(st.lists(STEP, max_size=60), st.integers(1000, 6000), st.sampled_from([4000, 20_000, 1 << 20]), st.booleans())
def test_no_silent_hole_whatever_the_disk_does(
    steps: list[tuple[str, float]], ring_bytes: int, limit_bytes: int, cut: bool
) -> None:
    """After any troubles: every frame of this life or a gap, and every synced one after a power cut, unless deleted."""
    bench = Bench(ring_bytes, limit_bytes)
    for what, value in steps:
        match what:
            case "fill":
                bench.fill(int(value))
            case "turn":
                bench.turn(value)
            case "error":
                bench.disk.error = value  # type: ignore[assignment]
            case "room":
                bench.disk.room_bytes = value  # type: ignore[assignment]
            case "stall":
                bench.stalls = bool(value)
    bench.stalls = False
    frames = bench.store.ring(0)
    assert frames is not None
    events = bench.read(0)
    assert not events or following(events[-1]) == bench.intake.ring.next
    assert all(e == block(STREAM, e.sequence) for e in events if isinstance(e, Block))
    safe = bench.spool._writer.safe.places
    if cut:
        bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.disk.error = again.disk.room_bytes = None
    again.turn()
    shelf = again.spool.archive.shelf(0, EPOCH)
    if shelf is None:
        assert not safe or bench.spool._writer.deleted
        return
    assert shelf.next >= (safe[0].next if safe else 0)
    events = again.read(0, EPOCH)
    assert following(events[-1]) == shelf.next
    assert all(e == block(STREAM, e.sequence) for e in events if isinstance(e, Block))
    missing = sum(e.span for e in events if isinstance(e, Gap) and e.cause == MISSED)
    assert missing <= bench.spool.dropped, "only what the ring let go before the disk took it"


def test_directory_is_locked_and_errors_are_clear(tmp_path: Path) -> None:
    first = SpoolDirectory(tmp_path / "spool")
    with pytest.raises(ConfigError, match="another powerd uses it"):
        SpoolDirectory(tmp_path / "spool")
    first.release()
    SpoolDirectory(tmp_path / "spool").release()
    with pytest.raises(ConfigError, match="there is no directory"):
        SpoolDirectory(tmp_path / "none" / "spool")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="that is a file"):
        SpoolDirectory(tmp_path / "file")


def test_a_real_directory_does_what_the_fake_one_does(tmp_path: Path) -> None:
    disk = SpoolDirectory(tmp_path / "spool")
    file = disk.create("a")
    disk.write(file, [b"one", b"two"])
    disk.sync(file)
    disk.write(file, [b"three"])
    disk.close(file)
    (tmp_path / "spool" / "directory").mkdir()
    (tmp_path / "spool" / "link").symlink_to("a")
    assert disk.names() == {"a": 11}
    assert (disk.read("a", 3, 5), disk.read("a", 9, 100), disk.read("a", 50, 1)) == (b"twoth", b"ee", b"")
    with pytest.raises(FileExistsError):
        disk.create("a")
    with pytest.raises(OSError, match="symbolic links"):
        disk.read("link", 0, 1)
    disk.remove("a")
    with pytest.raises(FileNotFoundError):
        disk.read("a", 0, 1)
    disk.release()


def test_threads_do_the_jobs_in_order_and_end() -> None:
    thread, done = Thread("test"), []
    for n in range(100):
        thread.put(lambda n=n: done.append(n))
    thread.close(10.0)
    assert done == list(range(100))
    assert thread.pending == 0


def test_a_job_that_fails_costs_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    thread, done = Thread("test"), []

    def fail() -> None:
        raise RuntimeError("a fault of ours")

    thread.put(fail)
    thread.put(lambda: done.append(1))
    thread.close(10.0)
    assert (done, thread.pending) == ([1], 0)
    assert "a fault of ours" in capsys.readouterr().err
