"""The journal as a worker keeps it: frames that wait for a disk, a real one where possible, and what is resumed."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.journals import journal_writer
from powerd_client.journals.journal import MarkTail, read_events
from powerd_client.journals.journal_writer import RESERVE_BYTES, JournalWriter, read_past
from powerd_client.journals.marks import MarkWriter
from powerd_core import wire
from powerd_core.errors import RunFileError
from powerd_core.marks import RECORD, Marks
from powerd_core.model import Block, ClockExchange, Gap
from powerd_core.protocol import Backfill
from powerd_core.wire import Garbage, Message, decode
from support.fake_daemon import make_block, make_description, make_stream

SECOND_NS = 1_000_000_000
STREAM = make_stream()
FULL = f"the journal could not be written: {os.strerror(errno.ENOSPC)}"


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a file system of one megabyte."""
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill(directory):
    """Take all the space there is; returns the file that holds it."""
    with (directory / "filler").open("wb", buffering=0) as file:
        for size in (4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return directory / "filler"


def block(sequence):
    return make_block(STREAM, 5, sequence, 1000 * sequence, [7] * 50)


def events_in(directory):
    return [event for event, _, _ in read_events(directory / "journal.bin")]


def test_what_waited_is_written_when_there_is_room_again(small_disk, monkeypatch):
    journal = JournalWriter(small_disk)
    journal.add(block(0))
    journal.flush()
    filler = fill(small_disk)
    monkeypatch.setattr(journal_writer, "MAX_BYTES", 1000)
    for number in range(1, 50):
        journal.add(block(number))
    journal.flush()
    assert journal.failure.errno == errno.ENOSPC
    assert journal.is_full
    filler.unlink()
    journal.flush()
    assert journal.failure is not None  # the disk is tried once a second
    monkeypatch.setattr(journal_writer, "_RETRY_NS", 0)
    journal.flush()
    assert (journal.failure, journal.is_full) == (None, False)
    assert [e.sequence for e in events_in(small_disk) if isinstance(e, Block)] == list(range(50))
    journal.close()


def test_at_the_end_gaps_take_the_place_of_what_does_not_fit(small_disk):
    journal = JournalWriter(small_disk)
    journal.add(block(0))
    journal.flush()
    fill(small_disk)
    for number in range(1, 50):
        journal.add(block(number))
        for k in range(200):
            journal.add(ClockExchange(5, number * 1000 + k, 2, 3, 4))
    journal.add(Marks(9, 0, bytes(RECORD.size)))
    for t_ns in range(9):  # more than there is room for; the training's own file has them
        event = {"event": "decision", "t_ns": t_ns, "values": {"why": "x" * 60_000}, "process": 9}
        journal.add(Message("phase-names", event))
    journal.add(Gap(0, 5, 50, 0, 60_000, 3, 7, "sensor"))
    journal.end(Message("stop", {"t_stop_ns": 1}))
    first, *rest, gap = events_in(small_disk)
    assert (first.sequence, type(first)) == (0, Block)
    assert (gap.sequence, gap.span, gap.lost, gap.t_last_ns, gap.cause) == (1, 52, 49 * 50 + 7, 60_000, FULL)
    assert Message("stop", {"t_stop_ns": 1}) in rest
    exchanges = [e for e in rest if isinstance(e, ClockExchange)]
    assert exchanges[0].t1_host_ns == 1000
    assert exchanges[-1].t1_host_ns > 49_000  # thinned, not cut off
    assert (small_disk / "journal.bin").stat().st_size < RESERVE_BYTES
    journal.close()


def refuse(*_):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_disk_that_takes_not_even_the_gaps(tmp_path, monkeypatch):
    journal = JournalWriter(tmp_path)
    journal.add(block(0))
    monkeypatch.setattr(os, "write", refuse)
    journal.flush()
    assert journal.failure.errno == errno.EROFS
    with pytest.raises(RunFileError):
        journal.end(Message("stop", {"t_stop_ns": 1}))
    monkeypatch.undo()
    journal.close()


def test_half_a_write_is_taken_back_even_when_that_fails_at_first(tmp_path, monkeypatch):
    journal = JournalWriter(tmp_path)
    write, truncate = os.write, os.ftruncate
    journal.add(block(0))
    journal.flush()
    journal.add(block(1))

    def write_half(descriptor, data, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write(descriptor, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", write_half)
    monkeypatch.setattr(os, "ftruncate", refuse)
    monkeypatch.setattr(journal_writer, "_RETRY_NS", 0)
    journal.flush()
    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "ftruncate", truncate)
    journal.flush()
    assert [e.sequence for e in events_in(tmp_path) if isinstance(e, Block)] == [0, 1]
    assert not [e for e in events_in(tmp_path) if isinstance(e, Garbage)]
    journal.close()


URL = "tcp://board:7360"


def described(epoch, *, live=True, board="fake board"):
    """The frames that a link has noted of an epoch."""
    epochs = Backfill(URL)
    epochs.begin(replace(make_description(STREAM, epoch), board=board), live=live)
    return [wire.encode(note) for note in epochs.notes]


def settled(epoch):
    return wire.encode(wire.Message("epoch", {"url": URL, "state": "settled"}, epoch))


def blocks(epoch, begin, end):
    return [wire.encode(make_block(STREAM, epoch, n, 1000 * n, [1])) for n in range(begin, end)]


def write(directory, frames):
    with (directory / "journal.bin").open("ab") as file:
        file.write(b"".join(frames))


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 3000), count=st.integers(0, 8))
def test_a_journal_cut_anywhere_goes_on_at_the_next_number(tmp_path_factory, cut, count):
    directory = tmp_path_factory.mktemp("journal")
    write(directory, [wire.encode(wire.Message("run", {"run_id": "x"})), *described(5), *blocks(5, 3, 3 + count)])
    file = directory / "journal.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[: max(len(whole) - cut, 0)])
    past = read_past(directory)
    # What is lost at the end is asked for again; then the journal reads without a trace of the cut.
    memory = past.memory(URL)
    begin = wire.CURRENT if memory is None else memory.streams[0].next
    begin = 3 if begin == wire.CURRENT else begin
    rest = [wire.encode(wire.Message("run", {}))] * (not past.has_run) + described(5) * (memory is None)
    journal = JournalWriter(directory, past)
    for frame in (*rest, *blocks(5, begin, 3 + count)):
        journal.add(decode(frame), frame)
    journal.flush()
    journal.close()
    events = [event for event, _, _ in read_events(file)]
    assert [e.sequence for e in events if not isinstance(e, wire.Message)] == list(range(3, 3 + count))
    assert not [e for e in events if isinstance(e, Garbage)]


def test_each_stream_of_each_epoch_has_its_place(tmp_path):
    gap = wire.encode(Gap(0, 5, 4, 0, 77, 6, -1, "test"))
    frames = [*described(5), *blocks(5, 2, 4), gap, *described(6), *blocks(6, 0, 3)]
    write(tmp_path, frames)
    past = read_past(tmp_path)
    assert (past.has_run, past.has_start, past.has_stop) == (False, False, False)
    memory = past.memory(URL)
    assert memory.description.epoch == 6
    assert memory.streams[0].next == 3
    assert memory.known == {5, 6}
    (earlier,) = memory.earlier.values()
    assert (earlier.streams[0].epoch, earlier.streams[0].next, earlier.streams[0].t_last_board_ns) == (5, 10, 77)
    assert past.memory("tcp://elsewhere:1") is None


def test_a_settled_epoch_is_not_asked_for_again(tmp_path):
    write(tmp_path, [*described(5), *described(9, live=False), *described(6), settled(5)])
    memory = read_past(tmp_path).memory(URL)
    assert (memory.description.epoch, set(memory.earlier)) == (6, {9})


@pytest.mark.parametrize(("board", "first"), [("fake board", 0), ("another", wire.CURRENT)])
def test_a_life_of_which_nothing_came_is_begun_as_the_link_would(tmp_path, board, first):
    write(tmp_path, [*described(5), *described(6, board=board)])
    assert read_past(tmp_path).memory(URL).streams[0].next == first


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(0, 60),
    reads=st.sets(st.integers(0, 60)),
    deaths=st.sets(st.integers(0, 60)),
    lost=st.integers(0, 2),
)
def test_marks_survive_any_number_of_recorders(tmp_path_factory, total, reads, deaths, lost):
    directory = tmp_path_factory.mktemp("marks")
    writer = MarkWriter(directory, segment_records=7)
    tail, journal = MarkTail(directory, consume=True), []
    for i in range(total):
        writer.mark_at(writer.kind(f"kind {i % 5}", {}, "host"), i + 1)
        if i in reads:
            names, marks = tail.read()
            # The recorder dies with or without having written what it has just read.
            kept = [*names, *marks]
            journal += kept[: len(kept) - lost] if i in deaths else kept
        if i in deaths:
            tail = MarkTail(directory, consume=True)
    names, marks = tail.read()
    journal += [*names, *marks]
    numbered = [(e.first + i, m.t_host_ns) for e in journal if isinstance(e, Marks) for i, m in enumerate(e)]
    assert sorted({*numbered}) == [(i, i + 1) for i in range(total)]
    kinds = {entry["name"] for entry in journal if isinstance(entry, dict) and "kind" in entry}
    assert kinds == {f"kind {i}" for i in range(min(total, 5))}
    writer.close()
