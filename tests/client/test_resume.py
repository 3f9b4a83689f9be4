"""What a new recorder learns from the journal of one that died."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.journalfile import JournalWriter, read_events
from powerd_client.markwriter import MarkWriter
from powerd_client.resume import read_past
from powerd_client.tails import Copied, MarkTail
from powerd_core import wire
from powerd_core.marks import Marks
from powerd_core.model import Gap
from powerd_core.protocol import Backfill
from powerd_core.wire import Garbage
from support.fake_daemon import make_block, make_description, make_stream

STREAM = make_stream()
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
    writer = JournalWriter(directory)
    writer.write(frames)
    writer.close()


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
    writer = JournalWriter(directory, past.size)
    writer.write([*rest, *blocks(5, begin, 3 + count)])
    writer.close()
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


def test_messages_of_a_run(tmp_path):
    bodies = {"run": {}, "start": {"t_start_ns": 1}, "note": {"t_ns": 1, "text": "hot"}, "stop": {"t_stop_ns": 2}}
    write(tmp_path, [wire.encode(wire.Message(subject, body)) for subject, body in bodies.items()])
    past = read_past(tmp_path)
    assert (past.has_run, past.has_start, past.has_stop, past.notes) == (True, True, True, {"hot"})


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
            copied = Copied()
            for entry in journal:
                if isinstance(entry, Marks):
                    copied.add(entry)
                else:
                    copied.documents[entry["process"]] = copied.documents.get(entry["process"], 0) + 1
            tail = MarkTail(directory, consume=True, copied=copied)
    names, marks = tail.read()
    journal += [*names, *marks]
    times = [m.t_host_ns for entry in journal if isinstance(entry, Marks) for m in entry]
    assert sorted(times) == list(range(1, total + 1))
    kinds = [entry["name"] for entry in journal if isinstance(entry, dict) and "kind" in entry]
    assert kinds == [f"kind {i}" for i in range(min(total, 5))]
    writer.close()
