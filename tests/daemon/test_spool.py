"""The spool: what the disk takes late is late, what it never takes is known, and every whole frame is given again."""

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
from powerd_core.model import UNKNOWN_TIME_NS
from powerd_core.wire import FrameReader, read_header
from powerd_daemon.log import Console
from powerd_daemon.ring import EVICTED, Store
from powerd_daemon.spool import (
    COLLECT_NS,
    DAMAGED,
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
        self.clock = FakeClock()
        self.said = io.StringIO()
        self.workers: list[Later] = []
        self.console = Console(self.said, self.clock)
        self.epoch = epoch
        self.spool = Spool(self.disk, epoch, self.clock, limit_bytes, SECOND_NS, self._worker)  # type: ignore[arg-type]
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
    for _ in range(3):
        bench.fill(2)
        bench.turn(1.0)
    bench.fill(2)
    bench.turn(0.5)
    assert bench.disk.syncs == 3
    assert bench.spool.behind_ns == SECOND_NS // 2
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
    safe = bench.spool.safe
    if cut:
        bench.disk.power_cut()
    again = Bench(disk=bench.disk, epoch=8)
    again.disk.error = again.disk.room_bytes = None
    again.turn()
    shelf = again.spool.past(0, EPOCH)
    if shelf is None:
        assert not safe or bench.spool.deleted
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
    with pytest.raises(ConfigError, match="none"):
        SpoolDirectory(tmp_path / "none" / "spool")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        SpoolDirectory(tmp_path / "file")


STREAMS = {n: steady_stream(n) for n in (0, 3)}
DESCRIPTION = encode(Message("description", {"board": "b"}, EPOCH))
CAUSES = {MISSED, DAMAGED}


def event(stream: int, sequence: int, span: int = 0, epoch: int = EPOCH) -> Block | Gap:
    if span:
        t_ns = sequence * 1_000_000_000
        return Gap(stream, epoch, sequence, t_ns, t_ns + span * 1_000_000_000 - 1, span, 5, "cut")
    return block(STREAMS[stream], sequence, epoch)


def writer(disk: FakeDisk, segment_bytes: int = 700, epoch: int = EPOCH) -> Spool:
    spool = Spool(disk, epoch, FakeClock(), 1 << 30, SECOND_NS, Later)  # type: ignore[arg-type]
    spool.begin(encode(Message("description", {"board": "b"}, epoch)))
    spool.segment_bytes = segment_bytes
    return spool


def write(disk: FakeDisk, events: list[Block | Gap], segment_bytes: int = 700, epoch: int = EPOCH) -> None:
    """A life of powerd that wrote ``events`` and ended well."""
    spool = writer(disk, segment_bytes, epoch=epoch)
    spool._write([encode(e) for e in events], 0, sync=True, complete_ns=None)
    spool.close()
    assert spool.error is None


class Shelves:
    """What is on a disk when the next life begins."""

    def __init__(self, disk: FakeDisk) -> None:
        self.worker = Later()
        self.catalogue = Catalogue(disk, self.worker)  # type: ignore[arg-type]
        self.worker.work()

    def find(self, stream: int, sequence: int) -> tuple[bytes, int] | None:
        """What the shelf gives once it has been read."""
        shelf = self.catalogue.find_past(stream, EPOCH)
        assert shelf is not None
        for _ in range(3):
            if (found := shelf.find(sequence)) is not None or sequence >= shelf.next:
                return found
            self.worker.work()
        raise AssertionError(f"{sequence} is never read")

    def all(self, stream: int, begin: int | None = None) -> list[tuple[Block | Gap, bytes]]:
        """Everything from ``begin`` on; every number is covered, in order."""
        shelf = self.catalogue.find_past(stream, EPOCH)
        if shelf is None:
            return []
        at, events = shelf.oldest if begin is None else begin, []
        while (found := self.find(stream, at)) is not None:
            event = decode(found[0])
            assert isinstance(event, Block | Gap)
            assert (event.stream, event.epoch, event.sequence) == (stream, EPOCH, at)
            assert found[1] == following(event) > at
            events.append((event, found[0]))
            at = found[1]
        assert at == shelf.next
        return events


def whole_frames(disk: FakeDisk) -> set[bytes]:
    """Every good block and gap in the files, found by the reader of journals."""
    found = set()
    for data in disk.files.values():
        reader = FrameReader()
        for made, frame in [*reader.feed(bytes(data)), *reader.close()]:
            if isinstance(made, Block | Gap):
                found.add(frame)
    return found


PUT = st.tuples(st.just("put"), st.sampled_from([0, 3]), st.integers(0, 4))
DROP = st.tuples(st.just("drop"), st.sampled_from([0, 3]), st.integers(1, 9))
FLUSH = st.tuples(st.sampled_from(["write", "write", "sync", "lost"]))
FAIL = st.tuples(st.just("fail"), st.integers(0, 1500))
STEPS = st.lists(st.one_of(PUT, PUT, DROP, FLUSH, FAIL), max_size=60)
HARM = st.one_of(
    st.none(),
    st.tuples(st.just("cut"), st.integers(0, 10**6), st.integers(0, 10**6)),
    st.tuples(st.just("flip"), st.integers(0, 10**6), st.integers(0, 10**6)),
    st.tuples(st.just("zero"), st.integers(0, 10**6), st.integers(0, 10**6)),
    st.tuples(st.just("delete"), st.integers(0, 10**6), st.just(0)),
)


def spooled(steps: list[tuple[object, ...]], disk: FakeDisk, segment_bytes: int) -> dict[tuple[int, int], bytes]:
    """What was handed to a writer, as the server's loop would: after an error again from the last safe place on."""
    made = writer(disk, segment_bytes)
    given: dict[int, list[tuple[int, bytes]]] = {n: [] for n in STREAMS}
    taken = dict.fromkeys(STREAMS, 0)
    following_number = dict.fromkeys(STREAMS, 0)

    def flush(*, sync: bool) -> None:
        frames = [f for n in STREAMS for s, f in given[n] if s >= taken[n]]
        attempt = made.attempt
        made._write(frames, attempt, sync=sync, complete_ns=None)
        safe = made.safe
        for n in STREAMS:
            taken[n] = following_number[n] if made.attempt == attempt else safe[n].next if n in safe else 0

    for step in steps:
        match step:
            case ("put", int(n), int(span)):
                new = event(n, following_number[n], span)
                given[n].append((new.sequence, encode(new)))
                following_number[n] = following(new)
            case ("drop", int(n), int(count)):
                following_number[n] += count
            case ("write",):
                flush(sync=False)
            case ("sync",):
                flush(sync=True)
            case ("fail", int(room)):
                disk.room_bytes = room
                flush(sync=True)
                disk.room_bytes = None
            case ("lost",):
                flush(sync=False)
                disk.sync_error = errno.EIO
                flush(sync=True)
                disk.sync_error = None
    flush(sync=True)
    made.close()
    assert made.error is None
    return {(n, s): f for n, frames in given.items() for s, f in frames}


@given(STEPS, HARM, st.sampled_from([300, 700, 5000]))
def test_every_whole_frame_or_a_gap(
    steps: list[tuple[object, ...]], harm: tuple[str, int, int] | None, segment_bytes: int
) -> None:
    disk = FakeDisk()
    given_frames = spooled(steps, disk, segment_bytes)
    if harm is not None and disk.files:
        kind, which, where = harm
        name = sorted(disk.files)[which % len(disk.files)]
        data = disk.files[name]
        where %= len(data)
        if kind == "cut":
            del data[where:]
        elif kind == "flip":
            data[where] ^= 0x40
        elif kind == "zero":
            data[where : where + 200] = bytes(len(data[where : where + 200]))
        else:
            del disk.files[name]
    whole = whole_frames(disk)
    shelves = Shelves(disk)
    if EPOCH not in [epoch.number for epoch in shelves.catalogue.past]:
        head_is_gone = not any(DESCRIPTION in data for data in disk.files.values())
        assert not whole or head_is_gone, "nothing tells what was measured"
        return
    served = set()
    for n in STREAMS:
        t_last_ns = UNKNOWN_TIME_NS
        for made, frame in shelves.all(n):
            if isinstance(made, Gap) and made.cause in CAUSES:
                assert t_last_ns in {UNKNOWN_TIME_NS, made.t_first_ns}
                assert made.t_first_ns <= made.t_last_ns
            else:
                assert t_last_ns <= made.t_first_ns
            t_last_ns = made.t_last_ns
            if given_frames.get((n, made.sequence)) == frame:
                served.add(frame)
            else:
                assert isinstance(made, Gap)
                assert made.cause in CAUSES
                assert made.lost == -1
    assert served == whole


def test_holes_are_told_exactly() -> None:
    disk = FakeDisk()
    events = [event(0, 0), event(0, 1), event(0, 5), event(0, 6, 3), event(0, 9)]
    write(disk, events)
    (_, _, hole, *_rest) = found = [e for e, _ in Shelves(disk).all(0)]
    t_last_ns = events[1].t_last_ns
    assert hole == Gap(0, EPOCH, 2, t_last_ns, 5_000_000_000, 3, -1, MISSED)
    assert [e for e in found if e is not hole] == events
    rest = Shelves(disk).all(0, 3)[0][0]
    assert rest == Gap(0, EPOCH, 3, UNKNOWN_TIME_NS, 5_000_000_000, 2, -1, MISSED)
    assert Shelves(disk).all(0, 7)[0][0].sequence == 7, "the rest of a gap that was recorded"


def test_what_cannot_be_read_is_a_gap() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(5)], 10_000)
    shelves = Shelves(disk)
    disk.read_error = errno.EIO
    assert shelves.all(0)[0][0] == Gap(0, EPOCH, 0, UNKNOWN_TIME_NS, event(0, 4).t_last_ns, 5, -1, UNREADABLE)


def test_a_segment_deleted_meanwhile_is_a_gap() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(12)], 700)
    shelves = Shelves(disk)
    first, second, *_ = shelves.catalogue.segments
    del disk.files[second.name]
    events = [e for e, _ in shelves.all(0)]
    (gap,) = [e for e in events if isinstance(e, Gap)]
    assert (gap.sequence, gap.cause) == (second.begin[0].next, UNREADABLE)
    shelves.catalogue.change(first, add=False)
    gone = shelves.all(0, 0)[0][0]
    assert isinstance(gone, Gap)
    assert (gone.sequence, gone.cause) == (0, DELETED)
    assert gone.t_last_ns < following(gone) * 1_000_000_000


def test_epochs_are_told_with_their_descriptions() -> None:
    disk = FakeDisk()
    write(disk, [event(0, 0, epoch=9), event(3, 0, 4, epoch=9)], epoch=9)
    write(disk, [event(0, n) for n in range(3)])
    disk.files["notes.txt"] = bytearray(b"not ours")
    shelves = Shelves(disk)
    nine = {"number": 0, "oldest": 0, "next": 1}, {"number": 3, "oldest": 0, "next": 4}
    assert shelves.catalogue.answer({}) == {
        "ready": True,
        "epochs": [
            {"epoch": 9, "description": {"board": "b"}, "streams": list(nine)},
            {"epoch": 7, "description": {"board": "b"}, "streams": [{"number": 0, "oldest": 0, "next": 3}]},
        ],
    }
    assert [e["epoch"] for e in shelves.catalogue.answer({"epoch": 9})["epochs"]] == [9]  # type: ignore[attr-defined]
    assert shelves.catalogue.find_past(0, 8) is None
    assert shelves.catalogue.find_past(99, 7) is None
    assert "notes.txt" in disk.files


def test_a_stalled_disk_is_not_waited_for_and_asked_a_bounded_number_of_times() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(200)], 400)
    shelves = Shelves(disk)
    shelf = shelves.catalogue.find_past(0, EPOCH)
    assert shelf is not None
    for _ in range(3):
        assert [shelf.find(n) for n in range(0, 200, 5)] == [None] * 40
    assert shelves.worker.pending == MAX_READ
    assert shelves.catalogue.is_reading
    shelves.worker.work()
    assert not shelves.catalogue.is_reading
    assert shelf.find(0) is not None
