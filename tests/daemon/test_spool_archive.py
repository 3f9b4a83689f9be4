"""Whatever was written, cut off, damaged or deleted: the archive gives every whole frame, and says of the rest."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from daemon_harness import FakeClock, block, following
from fake_disk import FakeDisk, Later
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import Block, Gap, Message, decode, encode
from powerd_core.model import UNKNOWN_TIME_NS
from powerd_core.wire import HEADER_BYTES, FrameReader, Garbage, Header, read_header
from powerd_daemon import archive as archive_module
from powerd_daemon import spool_segments, spool_writer
from powerd_daemon.archive import DELETED, MAX_EPOCHS, Archive
from powerd_daemon.spool_catalogue import Catalogue, Epoch
from powerd_daemon.spool_chunks import DAMAGED, MISSED, UNREADABLE, Chunk
from powerd_daemon.spool_reader import HELD_BYTES, MAX_PENDING, Reader
from powerd_daemon.spool_segments import Place, parse_name, scan
from powerd_daemon.spool_writer import Batch, SegmentWriter

EPOCH = 7
STREAMS = {n: steady_stream(n) for n in (0, 3)}
DESCRIPTION = encode(Message("description", {"board": "b"}, EPOCH))
CAUSES = {MISSED, DAMAGED}


def event(stream: int, sequence: int, span: int = 0, epoch: int = EPOCH) -> Block | Gap:
    if span:
        t_ns = sequence * 1_000_000_000
        return Gap(stream, epoch, sequence, t_ns, t_ns + span * 1_000_000_000 - 1, span, 5, "cut")
    return block(STREAMS[stream], sequence, epoch)


def header(made: Block | Gap) -> Header:
    return read_header(encode(made))


def framed(made: Block | Gap) -> tuple[bytes, Header]:
    return encode(made), header(made)


def writer(disk: FakeDisk, segment_bytes: int = 700, limit_bytes: int = 1 << 30, epoch: int = EPOCH) -> SegmentWriter:
    life, catalogue = Epoch(epoch, encode(Message("description", {"board": "b"}, epoch))), Catalogue()
    catalogue.publish(life)
    made = SegmentWriter(disk, catalogue, life, segment_bytes, limit_bytes)
    made.next_number = 1 + max((parse_name(name) or (0, 0))[1] for name in ["", *disk.files])
    return made


def write(disk: FakeDisk, events: list[Block | Gap], segment_bytes: int = 700, epoch: int = EPOCH) -> None:
    """A life of powerd that wrote ``events`` and ended well."""
    made = writer(disk, segment_bytes, epoch=epoch)
    made.handle(Batch([encode(e) for e in events], True, 0, None))
    made.close()
    assert made.error is None


class Shelves:
    """An archive of what is on a disk."""

    def __init__(self, disk: FakeDisk) -> None:
        self.disk = disk
        self.clock = FakeClock()
        self.worker = Later()
        self.catalogue = Catalogue()
        self.reader = Reader(self.catalogue, disk, self.clock, self.worker)
        self.archive = Archive(self.catalogue, disk, self.reader)
        self.next_number = self.archive.enlist()
        self.archive.load()

    def find(self, stream: int, sequence: int, epoch: int = EPOCH) -> tuple[bytes, int] | None:
        """What the shelf gives once it has been read."""
        shelf = self.archive.shelf(stream, epoch)
        assert shelf is not None
        for _ in range(3):
            if (found := shelf.find(sequence)) is not None or sequence >= shelf.next:
                return found
            self.worker.work()
        raise AssertionError(f"{sequence} is never read")

    def all(self, stream: int, begin: int | None = None, epoch: int = EPOCH) -> list[tuple[Block | Gap, bytes]]:
        """Everything from ``begin`` on; every number is covered, in order."""
        shelf = self.archive.shelf(stream, epoch)
        if shelf is None:
            return []
        at, events = shelf.oldest if begin is None else begin, []
        while (found := self.find(stream, at, epoch)) is not None:
            made = decode(found[0])
            assert isinstance(made, Block | Gap)
            assert (made.stream, made.epoch, made.sequence) == (stream, epoch, at)
            assert found[1] == following(made) > at
            events.append((made, found[0]))
            at = found[1]
        assert at == shelf.next
        return events


@contextmanager
def small_chunks(size_bytes: int) -> Iterator[None]:
    with (
        mock.patch.object(spool_segments, "CHUNK_BYTES", size_bytes),
        mock.patch.object(spool_writer, "CHUNK_BYTES", size_bytes),
    ):
        yield


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
        made.handle(Batch(frames, sync, attempt, None))
        safe = made.safe.places
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


@given(STEPS, HARM, st.sampled_from([300, 700, 5000]), st.sampled_from([1, 200, 1 << 20]))
def test_every_whole_frame_or_a_gap(
    steps: list[tuple[object, ...]], harm: tuple[str, int, int] | None, segment_bytes: int, chunk_bytes: int
) -> None:
    disk = FakeDisk()
    with small_chunks(chunk_bytes):
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
        if EPOCH not in shelves.catalogue.epochs:
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


@given(STEPS, st.integers(0, 10**6))
def test_any_number_can_be_asked_for(steps: list[tuple[object, ...]], pick: int) -> None:
    """As from a ring: a number inside a gap brings the rest of it, a number long gone a gap up to the oldest."""
    disk = FakeDisk()
    with small_chunks(200):
        frames = spooled(steps, disk, 500)
        shelves = Shelves(disk)
        for n in STREAMS:
            shelf = shelves.archive.shelf(n, EPOCH)
            if shelf is None or not shelf.next:
                continue
            at = pick % shelf.next
            events = shelves.all(n, at)
            assert events[0][1] == frames.get((n, at), events[0][1])


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


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_with_a_damaged_head_is_read_all_the_same(which: int) -> None:
    disk = FakeDisk()
    events = [event(0, n) for n in range(12)]
    write(disk, [*events[:6], event(3, 0), *events[6:]])
    names = sorted(disk.files)
    assert len(names) > 3
    data = disk.files[names[which]]
    data[data.index(b"segment")] ^= 1
    data[5] ^= 1
    shelves = Shelves(disk)
    assert [e for e, _ in shelves.all(0)] == events
    assert [e for e, _ in shelves.all(3)] == [event(3, 0)]


def test_what_is_damaged_in_this_life_is_told_too() -> None:
    found = [(0, encode(event(0, 0)), header(event(0, 0))), (104, b"", None), (208, *framed(event(0, 2)))]
    chunk = Chunk(EPOCH, {0: Place(0)}, {0: Place(3)}, found)
    assert decode(chunk.find(0, 1)[0]).cause == DAMAGED  # type: ignore[union-attr]


def test_what_is_there_twice_is_given_once() -> None:
    found = [(0, *framed(event(0, n))) for n in (0, 1, 0, 1, 2, 9)]
    chunk = Chunk(EPOCH, {0: Place(1)}, {0: Place(3)}, found)
    assert [decode(chunk.find(0, n)[0]) for n in (1, 2)] == [event(0, 1), event(0, 2)]
    assert chunk.size_bytes == 2 * len(found[0][1])
    assert not chunk.covers(EPOCH, 0, 0)
    assert not chunk.covers(EPOCH, 0, 3)


PIECE = st.one_of(
    st.builds(lambda n, span: encode(event(0, n, span)), st.integers(0, 9), st.integers(0, 2)),
    st.binary(max_size=70),
    st.sampled_from([b"pwr", b"p", b"pwrd", b"pwrd\x01\x01", DESCRIPTION[:60]]),
)


@given(st.lists(PIECE, max_size=12), st.integers(HEADER_BYTES, 300), st.integers(0, 2000))
def test_a_scan_finds_what_the_reader_of_journals_finds(pieces: list[bytes], window: int, cut: int) -> None:
    data = b"".join(pieces)[: cut or None]
    reader = FrameReader()
    expected = [frame for made, frame in [*reader.feed(data), *reader.close()] if not isinstance(made, Garbage)]
    found = list(scan(lambda offset, size: data[offset : offset + size], 0, len(data), window))
    assert [frame for _, frame, known in found if known is not None] == expected
    assert all(data[at : at + len(frame)] == frame for at, frame, _ in found)
    assert any(known is None for *_, known in found) == (b"".join(expected) != data)


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_a_frame_that_begins_at_the_end_of_a_piece_is_found(cut: int) -> None:
    frame = encode(event(0, 0))
    data = bytes(100 - cut) + frame
    found = scan(lambda offset, size: data[offset : offset + size], 0, len(data), 100)
    assert [f for _, f, known in found if known] == [frame]


def test_a_damaged_frame_is_a_gap() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(5)], 10_000)
    (data,) = disk.files.values()
    data[data.index(encode(event(0, 2))) + 70] ^= 1
    gap = Shelves(disk).all(0)[2][0]
    assert gap == Gap(0, EPOCH, 2, event(0, 1).t_last_ns, 3_000_000_000, 1, -1, DAMAGED)


def test_what_cannot_be_read_is_a_gap() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(5)], 10_000)
    shelves = Shelves(disk)
    disk.read_error = errno.EIO
    assert shelves.all(0)[0][0] == Gap(
        0, EPOCH, 0, UNKNOWN_TIME_NS, event(0, 4).t_last_ns, 5, -1, f"{UNREADABLE}: Input/output error"
    )


def test_a_segment_deleted_meanwhile_is_a_gap() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(12)], 700)
    shelves = Shelves(disk)
    first, second, *_ = shelves.catalogue.segments
    del disk.files[second.name]
    events = [e for e, _ in shelves.all(0)]
    (gap,) = [e for e in events if isinstance(e, Gap)]
    assert (gap.sequence, gap.cause) == (second.begin[0].next, MISSED)
    shelves.catalogue.remove(first)
    gone = shelves.all(0, 0)[0][0]
    assert isinstance(gone, Gap)
    assert (gone.sequence, gone.cause) == (0, DELETED)
    assert gone.t_last_ns < following(gone) * 1_000_000_000


def test_an_epoch_whose_segments_are_all_gone_says_so() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(5)])
    shelves = Shelves(disk)
    for segment in shelves.catalogue.segments:
        shelves.catalogue.remove(segment)
    ((gap, _),) = shelves.all(0, 2)
    assert gap == Gap(0, EPOCH, 2, UNKNOWN_TIME_NS, event(0, 4).t_last_ns, 3, -1, DELETED)


def test_epochs_are_told_with_their_descriptions() -> None:
    disk = FakeDisk()
    write(disk, [event(0, 0, epoch=9), event(3, 0, 4, epoch=9)], epoch=9)
    write(disk, [event(0, n) for n in range(3)])
    disk.files["notes.txt"] = bytearray(b"not ours")
    shelves = Shelves(disk)
    nine = {"number": 0, "oldest": 0, "next": 1}, {"number": 3, "oldest": 0, "next": 4}
    assert shelves.archive.answer({}) == {
        "ready": True,
        "epochs": [
            {"epoch": 9, "description": {"board": "b"}, "streams": list(nine)},
            {"epoch": 7, "description": {"board": "b"}, "streams": [{"number": 0, "oldest": 0, "next": 3}]},
        ],
    }
    assert [e["epoch"] for e in shelves.archive.answer({"epoch": 9})["epochs"]] == [9]  # type: ignore[attr-defined]
    assert shelves.archive.shelf(0, 8) is None
    assert shelves.archive.shelf(99, 7) is None
    assert "notes.txt" in disk.files


def test_the_answer_fits_into_a_message() -> None:
    disk = FakeDisk()
    for epoch in (8, 9):
        write(disk, [event(0, 0, epoch=epoch)], epoch=epoch)
    with mock.patch.object(archive_module, "ANSWER_BYTES", 150):
        answer = Shelves(disk).archive.answer({})
    assert [e["epoch"] for e in answer["epochs"]] == [9], "the youngest first"  # type: ignore[attr-defined]


def test_old_lives_and_empty_ones_are_deleted() -> None:
    disk = FakeDisk()
    for epoch in range(1, MAX_EPOCHS + 4):
        write(disk, [event(0, 0, epoch=epoch)], epoch=epoch)
    disk.files[f"{99:016x}-{5000:08x}.pwrd"] = bytearray()
    shelves = Shelves(disk)
    assert shelves.archive.epochs == MAX_EPOCHS
    assert len(disk.files) == MAX_EPOCHS
    assert shelves.archive.shelf(0, 3) is None
    assert shelves.archive.shelf(0, 4) is not None
    assert shelves.next_number == 5001


def test_a_stalled_disk_is_not_waited_for_and_asked_a_bounded_number_of_times() -> None:
    disk = FakeDisk()
    write(disk, [event(0, n) for n in range(200)], 400)
    shelves = Shelves(disk)
    shelf = shelves.archive.shelf(0, EPOCH)
    assert shelf is not None
    for _ in range(3):
        assert [shelf.find(n) for n in range(0, 200, 5)] == [None] * 40
    assert shelves.worker.pending == MAX_PENDING
    assert shelves.reader.is_busy
    shelves.worker.work()
    assert not shelves.reader.is_busy
    assert shelf.find(0) is not None


def test_memory_is_bounded_and_every_client_gets_on() -> None:
    """Twenty clients at different places of an archive, in turn, with frames of which few fit into memory."""
    disk = FakeDisk()
    many = 2_000_000 // STREAMS[0].scan_bytes
    write(disk, [block(STREAMS[0], n, EPOCH, many) for n in range(40)], 2_200_000)
    shelves = Shelves(disk)
    shelf = shelves.archive.shelf(0, EPOCH)
    assert shelf is not None
    places = list(range(0, 40, 2))
    for turn in range(150):
        for client in [*range(turn % 20, 20), *range(turn % 20)]:
            if (found := shelf.find(places[client])) is not None:
                places[client] = found[1]
        shelves.worker.work()
        held = sum(chunk.size_bytes for chunk in shelves.reader._chunks)
        assert held <= HELD_BYTES
    assert places == [40] * 20


def test_what_was_read_for_one_client_is_not_pushed_out_by_the_next() -> None:
    disk = FakeDisk()
    many = 2_000_000 // STREAMS[0].scan_bytes
    write(disk, [block(STREAMS[0], n, EPOCH, many) for n in range(8)], 2_200_000)
    shelves = Shelves(disk)
    shelf = shelves.archive.shelf(0, EPOCH)
    assert shelf is not None
    assert [shelf.find(n) for n in range(8)] == [None] * 8
    shelves.worker.work()
    assert shelf.find(0) is not None


def test_what_nobody_takes_makes_room() -> None:
    disk = FakeDisk()
    many = 2_000_000 // STREAMS[0].scan_bytes
    write(disk, [block(STREAMS[0], n, EPOCH, many) for n in range(8)], 2_200_000)
    shelves = Shelves(disk)
    shelf = shelves.archive.shelf(0, EPOCH)
    assert shelf is not None
    for n in range(4):
        shelf.find(n)
    shelves.worker.work()
    assert shelf.find(6) is None
    assert not shelves.reader.is_busy, "four chunks that nobody has taken are enough"
    shelves.clock.t_ns += 3_000_000_000
    assert shelves.find(0, 6) is not None


@pytest.mark.parametrize("name", ["x", "7-1.pwrd", f"{7:016x}-{1:08x}.pwrd2", f"{7:016X}-0000000A.pwrd", "../a.pwrd"])
def test_other_files_are_left_alone(name: str) -> None:
    assert parse_name(name) is None
