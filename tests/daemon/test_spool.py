"""The spool: what the disk takes late is late, what it never takes is known, and every whole frame is given again."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from daemon_harness import block, following
from fake_disk import FakeDisk, Later
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import Block, ConfigError, Gap, Message, decode, encode
from powerd_core.model import UNKNOWN_TIME_NS
from powerd_core.wire import FrameReader
from powerd_daemon.log import Console
from powerd_daemon.ring import EVICTED, Store
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.spool import (
    COLLECT_NS,
    DELETED,
    MAX_READ,
    MISSED,
    UNREADABLE,
    Catalogue,
    Spool,
    SpoolDirectory,
)

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
        self.clock = VirtualClock()
        self.said = io.StringIO()
        self.workers: list[Later] = []
        self.console = Console(self.said, self.clock)
        self.epoch = epoch
        self.spool = Spool(self.disk, epoch, self.clock, limit_bytes, SECOND_NS, self._worker)  # type: ignore[arg-type]
        self.store = Store(epoch, ring_bytes, self.spool)
        self.store.add(STREAM)
        self.intake = self.store.intakes[0]
        self.description = encode(Message("description", {"board": "b"}, epoch))
        self.spool.begin(self.description)
        self.stalls = False

    def _worker(self, name: str) -> Later:
        self.workers.append(Later())
        return self.workers[-1]

    def fill(self, count: int, scans: int = 3) -> None:
        for n in range(self.intake.ring.next, self.intake.ring.next + count):
            frame = encode(block(STREAM, n, self.epoch, scans))
            self.intake.accept(frame, decode(frame))

    def turn(self, seconds: float = COLLECT_NS / 1e9) -> None:
        self.clock.t_ns += int(seconds * SECOND_NS)
        with self.console:
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


def test_a_power_cut_takes_what_was_not_synced() -> None:
    bench = Bench()
    bench.clock.t_ns += 60 * SECOND_NS
    bench.spool.begin(bench.description)  # the sources took their time
    bench.turn()
    for _ in range(3):
        bench.fill(2)
        bench.turn(1.0)
    bench.fill(2)
    bench.turn(0.5)
    assert bench.spool.behind_ns == SECOND_NS // 2
    assert bench.complaints() == []
    bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(6))


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


def test_a_disk_that_fails_is_told_once_and_taken_again() -> None:
    bench = Bench()
    bench.fill(5)
    bench.turn(1.0)
    bench.disk.error = errno.EROFS
    for _ in range(100):
        bench.fill(1)
        bench.turn(1.0)
    assert len(bench.complaints()) == 1
    stats = bench.spool.stats()
    assert stats["error"]
    assert 30 < stats["failures"] < 60, "it is tried again every two seconds"  # type: ignore[operator]
    assert 99 < stats["behind_s"] < 101  # type: ignore[operator]
    assert numbers(bench.read(0)) == list(range(105)), "clients are served from memory"
    bench.disk.error = None
    for _ in range(4):
        bench.turn(1.0)
    assert bench.complaints()[1:] == ["powerd: the spool is written again; 0 frames were lost to it"]
    bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.turn()
    assert numbers(again.read(0, EPOCH)) == list(range(105)), "nothing is missing: the ring had it all"


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


FAULT = st.sampled_from([("error", errno.EIO), ("sync_error", errno.EIO), ("room_bytes", 0), ("room_bytes", 150)])
STEP = st.one_of(
    st.tuples(st.just("fill"), st.integers(1, 6)),
    st.tuples(st.just("turn"), st.sampled_from([0.02, 0.5, 3.0, 40.0])),
    st.tuples(st.just("fault"), FAULT),
    st.tuples(st.just("stall"), st.booleans()),
)
HARMS = ["cut", "flip", "zero", "delete"]
HARM = st.none() | st.tuples(st.sampled_from(HARMS), st.integers(0, 20), st.integers(0, 600))


def harmed(disk: FakeDisk, kind: str, which: int, where: int) -> None:
    name = sorted(disk.files)[which % len(disk.files)]
    data = disk.files[name]
    where %= len(data) or 1
    if kind == "cut":
        del data[where:]
    elif kind == "flip" and data:
        data[where] ^= 0x40
    elif kind == "zero":
        data[where : where + 200] = bytes(len(data[where : where + 200]))
    elif kind == "delete":
        del disk.files[name]


def whole_blocks(disk: FakeDisk) -> set[int]:
    """Numbers of every good block in the files, found by the reader of journals."""
    found = set()
    for data in disk.files.values():
        reader = FrameReader()
        found |= {e.sequence for e, _ in [*reader.feed(bytes(data)), *reader.close()] if isinstance(e, Block)}
    return found


@given(
    st.lists(STEP, min_size=5, max_size=60), st.sampled_from([2000, 1 << 20]), st.sampled_from([4000, 1 << 20]), HARM
)
def test_every_whole_frame_or_a_gap_whatever_the_disk_does(
    steps: list[tuple[str, Any]], ring_bytes: int, limit_bytes: int, harm: tuple[str, int, int] | None
) -> None:
    """After any troubles: every frame of this life or a gap, and every synced one after a power cut, unless deleted."""
    bench = Bench(ring_bytes, limit_bytes)
    for what, value in steps:
        match what:
            case "fill":
                bench.fill(int(value))
            case "turn":
                bench.turn(value)
            case "stall":
                bench.stalls = bool(value)
            case "fault":
                bench.fill(2)
                setattr(bench.disk, *value)
                bench.turn(3.0)
                bench.disk.error = bench.disk.sync_error = bench.disk.room_bytes = None
    bench.stalls = False
    frames = bench.store.ring(0)
    assert frames is not None
    events = bench.read(0)
    assert not events or following(events[-1]) == bench.intake.ring.next
    assert all(e == block(STREAM, e.sequence) for e in events if isinstance(e, Block))
    safe, disk = bench.spool.safe, bench.disk
    if harm is None:
        disk.power_cut()
    elif disk.files:
        harmed(disk, *harm)
    again = Bench(disk=disk, epoch=8)
    again.turn()
    shelf = again.spool.past(0, EPOCH)
    if shelf is None:
        has_head = any(bench.description in data for data in disk.files.values())
        assert not has_head or not whole_blocks(disk)
        assert harm or bench.spool.deleted or not safe
        return
    events = again.read(0, EPOCH)
    assert following(events[-1]) == shelf.next
    blocks = [e for e in events if isinstance(e, Block)]
    assert all(e == block(STREAM, e.sequence) for e in blocks)
    if ring_bytes > 2000:
        assert {e.sequence for e in blocks} == whole_blocks(disk)
    if harm is None:
        assert shelf.next >= (safe[0].next if safe else 0)
        missing = sum(e.span for e in events if isinstance(e, Gap) and e.cause == MISSED)
        assert missing <= bench.spool.dropped, "only what the ring let go before the disk took it"


def test_directory_is_locked_and_errors_are_clear(tmp_path: Path) -> None:
    first = SpoolDirectory(tmp_path / "spool")
    with pytest.raises(ConfigError, match="another powerd uses it"):
        SpoolDirectory(tmp_path / "spool")
    first.release()
    SpoolDirectory(tmp_path / "spool").release()
    with pytest.raises(ConfigError, match="none"):
        SpoolDirectory(tmp_path / "none" / "spool")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        SpoolDirectory(tmp_path / "file")


def closed(bench: Bench) -> FakeDisk:
    """The disk of a life that has ended well."""
    bench.spool.finish()
    bench.spool.close()
    assert bench.spool.error is None
    return bench.disk


def test_what_the_ring_let_go_before_a_stalled_disk_took_it_is_told_exactly() -> None:
    bench = Bench(ring_bytes=3 * (FRAME_BYTES + 200))
    bench.fill(2)
    bench.turn(1.0)
    bench.fill(5)
    disk = closed(bench)
    again = Bench(disk=disk, epoch=8)
    again.turn()
    events = again.read(0, EPOCH)
    assert [(e.sequence, isinstance(e, Gap)) for e in events] == [
        (0, False), (1, False), (2, True), (4, False), (5, False), (6, False)
    ]  # fmt: skip
    t_last_ns = block(STREAM, 1).t_last_ns
    assert events[2] == Gap(0, EPOCH, 2, t_last_ns, 4 * SECOND_NS, 2, -1, MISSED)
    assert again.read(3, EPOCH)[0] == Gap(0, EPOCH, 3, UNKNOWN_TIME_NS, 4 * SECOND_NS, 1, -1, MISSED)


def test_what_cannot_be_read_is_a_gap() -> None:
    bench = Bench()
    bench.fill(5)
    again = Bench(disk=closed(bench), epoch=8)
    again.turn()
    again.disk.read_error = errno.EIO
    t_last_ns = block(STREAM, 4).t_last_ns
    assert again.read(0, EPOCH) == [Gap(0, EPOCH, 0, UNKNOWN_TIME_NS, t_last_ns, 5, -1, UNREADABLE)]


def test_epochs_are_told_with_their_descriptions() -> None:
    disk = FakeDisk()
    disk.files["notes.txt"] = bytearray(b"not ours")
    for epoch, count in ((9, 1), (7, 3)):
        bench = Bench(disk=disk, epoch=epoch)
        bench.fill(count)
        closed(bench)
    again = Bench(disk=disk, epoch=8)
    assert again.spool.catalogue.answer({}) == {"ready": False, "epochs": []}
    again.turn()
    nine, seven = (
        {"epoch": e, "description": {"board": "b"}, "streams": [{"number": 0, "oldest": 0, "next": n}]}
        for e, n in ((9, 1), (7, 3))
    )
    assert again.spool.catalogue.answer({}) == {"ready": True, "epochs": [nine, seven]}
    assert again.spool.catalogue.answer({"epoch": 9}) == {"ready": True, "epochs": [nine]}
    assert again.spool.past(0, 8) is None
    assert again.spool.past(99, 7) is None
    assert "notes.txt" in disk.files


def test_a_stalled_disk_is_not_waited_for_and_asked_a_bounded_number_of_times() -> None:
    bench = Bench(limit_bytes=1 << 20)
    bench.spool.segment_bytes = 400
    bench.fill(200)
    again = Bench(disk=closed(bench), epoch=8)
    again.turn()
    shelf = again.spool.past(0, EPOCH)
    assert shelf is not None
    for _ in range(3):
        assert [shelf.find(n) for n in range(0, 200, 5)] == [None] * 40
    assert again.workers[1].pending == MAX_READ
    assert again.spool.is_reading
    again.turn()
    assert not again.spool.is_reading
    assert shelf.find(0) is not None


def on_a_real_disk(path: Path) -> Bench:
    """A spool in a directory, whose work is done by `Bench.turn`."""
    return Bench(disk=SpoolDirectory(path))  # type: ignore[arg-type]


def test_a_life_that_is_killed_in_its_first_sync_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill -9` takes what was not written. A sync that lasts for seconds must not come before the writing."""
    is_syncing, goes_on = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        is_syncing.set()
        assert goes_on.wait(60)

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, hang)
    bench = on_a_real_disk(tmp_path / "spool")
    bench.fill(3)
    bench.stalls = True
    bench.turn()
    writer = threading.Thread(target=bench.workers[0].work)
    writer.start()
    assert is_syncing.wait(60), "the disk hangs in the first sync"
    shutil.copytree(tmp_path / "spool", tmp_path / "killed")  # what the kernel has of a process that is killed now
    assert bench.spool.safe == {}
    goes_on.set()
    writer.join()
    again = Bench(disk=SpoolDirectory(tmp_path / "killed"), epoch=8)  # type: ignore[arg-type]
    again.turn()
    (life,) = again.spool.catalogue.answer({})["epochs"]  # type: ignore[misc]
    assert life["epoch"] == EPOCH
    assert numbers(again.read(0, EPOCH)) == [0, 1, 2]


def test_nothing_is_safe_before_the_name_of_its_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def refuse(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        if len(synced) == 1:
            raise OSError(errno.EIO, "the directory cannot be synced")

    monkeypatch.setattr(os, "fsync", refuse)
    bench = on_a_real_disk(tmp_path / "spool")
    bench.fill(3)
    bench.turn()
    assert bench.spool.safe == {}
    assert bench.spool.error is not None
    bench.turn(3.0)
    bench.turn(3.0)
    assert bench.spool.safe[0].next == 3
    assert synced == [True, True], "once more, and not at every sync"


def test_only_its_owner_may_read_a_spool_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        bench = on_a_real_disk(tmp_path / "spool")
        bench.fill(3)
        bench.turn()
    finally:
        os.umask(before)
    (segment,) = (tmp_path / "spool").iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spool", segment)] == [0o700, 0o600]


def test_the_list_of_lives_is_never_ready_and_empty_at_once() -> None:
    """The reading thread finishes at every possible moment of an answer."""
    bench = Bench()
    bench.fill(3)
    disk, answers, moment = closed(bench), [], 0
    while True:
        again, lines = Bench(disk=disk, epoch=8), 0
        reader = again.workers[1]

        def interrupt(frame: FrameType, event: str, _: object, reader: Any = reader, at: int = moment) -> Any:
            nonlocal lines
            if frame.f_code is not Catalogue.answer.__code__:
                return None
            if event == "line":
                lines += 1
                if lines == at:
                    reader.work()
            return interrupt

        traced = sys.gettrace()
        sys.settrace(interrupt)
        try:
            answers.append(again.spool.catalogue.answer({}))
        finally:
            sys.settrace(traced)
        if lines < moment:
            break
        moment += 1
    assert moment > 3, "the thread finished within the answer"
    assert {(answer["ready"], len(answer["epochs"])) for answer in answers} == {(False, 0), (True, 1)}  # type: ignore[arg-type]
