"""Marks into mapped files, read back as the recorder reads them."""

import errno
import json
import logging
import math
import os
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.journals.journal import MarkTail
from powerd_client.journals.marks import MOST_EVENT_BYTES, MOST_EVENTS_BYTES, MarkWriter
from powerd_core.marks import RECORD, Mark, is_sealing
from powerd_core.serde import MAX_DEPTH
from powerd_core.wire import Message, decode, encode


def all_marks(tail: MarkTail, *, final: bool = False) -> tuple[list[dict], list[Mark]]:
    names, marks = tail.read(final=final)
    return names, [m for piece in marks for m in piece]


def test_marks_come_back_in_order_with_their_names(tmp_path):
    writer = MarkWriter(tmp_path)
    forward = writer.kind("forward", {}, "host")
    batch = writer.kind("training", {"batch_size": 64}, "host")
    for code in (batch, forward, ~forward, ~batch):
        writer.mark(code)
    names, marks = all_marks(MarkTail(tmp_path, consume=False))
    assert [(m.kind, m.is_begin) for m in marks] == [(1, True), (0, True), (0, False), (1, False)]
    assert [m.t_host_ns for m in marks] == sorted(m.t_host_ns for m in marks)
    assert names[0]["pid"] == os.getpid()
    assert [(n["kind"], n["name"], n["attributes"], n["timing"]) for n in names[1:]] == [
        (0, "forward", {}, "host"),
        (1, "training", {"batch_size": 64}, "host"),
    ]
    writer.close()


@settings(max_examples=25, deadline=None)
@given(total=st.integers(0, 60), reads=st.sets(st.integers(0, 60)), consume=st.booleans())
def test_no_mark_is_lost_or_doubled_across_segments(tmp_path_factory, total, reads, consume):
    directory = tmp_path_factory.mktemp("marks")
    writer = MarkWriter(directory, segment_records=7)
    kind = writer.kind("p", {}, "host")
    tail, found, pieces = MarkTail(directory, consume=consume), [], []
    for i in range(total):
        if i in reads:
            pieces += tail.read()[1]
        writer.mark_at(kind, i + 1)
    pieces += tail.read()[1]
    tail.read()
    found = [m.t_host_ns for piece in pieces for m in piece]
    assert found == list(range(1, total + 1))
    firsts = [(p.first, len(p)) for p in pieces]
    assert all(a + n == b for (a, n), (b, _) in pairwise(firsts))
    writer.close()


def test_threads_do_not_overwrite_each_other(tmp_path):
    writer = MarkWriter(tmp_path, segment_records=64)
    kind = writer.kind("p", {}, "host")

    together = threading.Barrier(4)

    def work():
        together.wait()
        for _ in range(500):
            writer.mark(kind)
        together.wait()  # an ended thread's number would be given to the next

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    _, marks = all_marks(MarkTail(tmp_path, consume=False))
    assert len(marks) == 2000
    assert len({m.thread for m in marks}) == 4
    writer.close()


@pytest.mark.parametrize("apart", [0x801000, 0xA00000, 0x1000000, 0x4000000])
def test_threads_are_told_apart_however_far_their_stacks_are(tmp_path, apart):
    writer = MarkWriter(tmp_path)
    kind = writer.kind("p", {}, "host")
    for number in range(64):
        writer.mark_at(kind, 1, 0x7F3A_0000_0640 - number * apart)
    writer.mark_at(kind, 1, 7)  # a track of ours
    _, marks = all_marks(MarkTail(tmp_path, consume=False))
    assert len({mark.thread for mark in marks}) == 65
    assert marks[-1].thread == 7
    writer.close()


def test_a_record_under_way_holds_back_those_behind_it_until_the_end(tmp_path):
    writer = MarkWriter(tmp_path)
    kind = writer.kind("p", {}, "host")
    writer.mark_at(kind, 1)
    assert writer._segment is not None
    writer._segment.take()  # a thread that took its place and was stopped there
    writer.mark_at(~kind, 3)
    tail = MarkTail(tmp_path, consume=False)
    assert [m.t_host_ns for m in all_marks(tail)[1]] == [1]
    assert [m.t_host_ns for m in all_marks(tail, final=True)[1]] == [3]
    writer.close()


def test_a_forked_child_leaves_its_parents_marks_alone(tmp_path):
    writer = MarkWriter(tmp_path)
    kind = writer.kind("p", {}, "host")
    writer.mark_at(kind, 1)
    child = os.fork()
    if child == 0:
        writer.mark_at(kind, 2)
        os._exit(0 if writer.dropped == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    writer.mark_at(~kind, 3)
    assert [m.t_host_ns for m in all_marks(MarkTail(tmp_path, consume=False))[1]] == [1, 3]
    writer.close()


def test_attributes_become_what_json_knows(tmp_path):
    writer = MarkWriter(tmp_path)
    numbers = {"batch_size": np.int64(64), "learning_rate": np.float32(0.5), "amp": np.bool_(True)}
    kind = writer.kind("iteration", numbers, "host")
    assert writer.kind("iteration", {"batch_size": 64, "learning_rate": 0.5, "amp": True}, "host") == kind
    assert writer.kind("iteration", {"batch_size": torch.tensor(64)}, "host") == kind + 1
    writer.kind(3, {"on": torch.device("cpu"), "path": Path("a/b")}, "host")
    writer.close()
    documents = [json.loads(line) for line in next(tmp_path.glob("*.names")).read_text().splitlines()]
    assert documents[1]["attributes"] == {"batch_size": 64, "learning_rate": 0.5, "amp": True}
    assert [document["name"] for document in documents[1:]] == ["iteration", "iteration", "3"]
    assert documents[3]["attributes"] == {"on": "cpu", "path": "a/b"}


class Sulking:
    """A number that does not tell its value, such as one on a GPU that has failed."""

    ndim = 0

    def item(self):
        raise RuntimeError("CUDA error: an illegal memory access")


def events_of(directory):
    """The events that a recorder finds, each as a journal gives it back."""
    documents = MarkTail(directory, consume=False).read()[0]
    bodies = [decode(encode(Message("phase-names", document))).body for document in documents]
    return [(body["event"], body["values"]) for body in bodies if "event" in body]


def test_events_lie_beside_the_names_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr("powerd_client.journals.marks.now_ns", iter(range(100, 200)).__next__)
    writer = MarkWriter(tmp_path)
    writer.event("lease", {"cap_w": np.int64(200), "asked": {"cap_w": [250.0, np.float32(0.5)]}, "on": torch.tensor(3)})
    writer.mark(writer.kind("forward", {}, "host"))
    writer.event("result", {"top1": 0.71})
    documents, _ = all_marks(MarkTail(tmp_path, consume=False))
    del documents[0], documents[1]["process"]
    assert documents[0] == {
        "event": "lease",
        "t_ns": 100,
        "values": {"cap_w": 200, "asked": {"cap_w": [250.0, 0.5]}, "on": 3},
        "process": writer.token,
    }
    assert documents[1]["name"] == "forward"
    assert documents[2] == {"event": "result", "t_ns": 102, "values": {"top1": 0.71}, "process": writer.token}
    writer.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=200), st.dictionaries(st.text(), JSON, max_size=4)), max_size=4))
def test_what_json_knows_comes_back_as_it_was(tmp_path_factory, events):
    directory = tmp_path_factory.mktemp("events")
    writer = MarkWriter(directory)
    for name, values in events:
        writer.event(name, values)
    writer.close()
    assert events_of(directory) == events


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_an_event_has_room_for_what_is_promised_and_more_is_told_and_left_out(tmp_path, capfd):
    writer = MarkWriter(tmp_path)
    empty = len(json.dumps({"event": "decision", "t_ns": 10**15, "values": {"why": ""}}))
    kept = {"why": "x" * (MOST_EVENT_BYTES - empty - 10)}
    writer.event("decision", kept)
    writer.event("decision", {"why": "x" * MOST_EVENT_BYTES})
    writer.event("d" * 200, {"deep": nested(MAX_DEPTH - 3)})
    writer.event("d" * 201, {})
    writer.event("deep", {"deep": nested(MAX_DEPTH - 2)})
    for _ in range(9):
        writer.event("sulking", {"loss": Sulking()})
    writer.event("result", {"top1": 0.71})
    writer.close()
    writer.event("late", {})
    assert events_of(tmp_path) == [
        ("decision", kept),
        ("d" * 200, {"deep": nested(MAX_DEPTH - 3)}),
        ("result", {"top1": 0.71}),
    ]
    told = [line.removeprefix("powerd: ") for line in capfd.readouterr().err.splitlines()]
    notes = [d["note"] for d in MarkTail(tmp_path, consume=False).read()[0] if "note" in d]
    assert notes == told[:-1]  # the last one came when the run file was being written
    whys = ["65536 are allowed", "201 characters", "more than 32 levels", "illegal memory access", "was closed before"]
    for line, why in zip(told, whys, strict=True):
        assert "is in no run: " in line
        assert why in line


def test_values_that_json_does_not_know_become_text(tmp_path):
    writer, itself = MarkWriter(tmp_path), list[object]()
    itself.append(itself)
    writer.event("odd", {"path": Path("a/b"), "nan": math.nan, "keys": {(1, 2): 3}, "itself": itself})
    writer.close()
    odd = {"path": "a/b", "nan": "NaN", "keys": "{(1, 2): 3}", "itself": "[[...]]"}
    assert events_of(tmp_path) == [("odd", odd)]


def test_events_never_cost_the_names_of_phases(tmp_path, capfd):
    """A program that gives events without end: its names stay within what is read, and its phases are whole."""
    writer = MarkWriter(tmp_path)
    values = {"why": "x" * (MOST_EVENT_BYTES - 100)}
    for _ in range(MOST_EVENTS_BYTES // MOST_EVENT_BYTES + 10):
        writer.event("decision", values)
    writer.mark(writer.kind("forward", {}, "host"))
    tail = MarkTail(tmp_path, consume=False)
    documents, marks = all_marks(tail)
    assert tail.problems == {}
    assert [m.kind for m in marks] == [0]
    assert sum("event" in d for d in documents) == MOST_EVENTS_BYTES // (MOST_EVENT_BYTES - 100 + 60)
    assert "32 MiB at most" in capfd.readouterr().err
    writer.close()


def test_a_forked_child_gives_no_event(tmp_path):
    writer = MarkWriter(tmp_path)
    child = os.fork()
    if child == 0:
        writer.event("lease", {})
        os._exit(0)
    os.waitpid(child, 0)
    writer.event("result", {})
    writer.close()
    assert events_of(tmp_path) == [("result", {})]


def test_events_are_kept_where_marks_are_dropped(tmp_path, monkeypatch, capfd):
    writer = MarkWriter(tmp_path)
    writer.disable("synchronize() failed")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    writer.event("lost", {})
    monkeypatch.undo()
    writer.event("result", {"top1": 0.71})
    writer.close()
    assert events_of(tmp_path) == [("result", {"top1": 0.71})]
    assert "No space left on device" in capfd.readouterr().err


def test_a_full_disk_is_told_at_once_and_leaves_nothing_half_made(tmp_path, monkeypatch, capfd):
    writer = MarkWriter(tmp_path, segment_records=2)

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    for _ in range(9):
        writer.mark(0)
    assert "No space left on device" in capfd.readouterr().err
    assert "No space left on device" in writer.failure
    assert len(all_marks(MarkTail(tmp_path, consume=False))[1]) == 2
    assert writer.told
    assert writer.dropped == 7
    assert not list(tmp_path.glob("*.new"))
    writer.close()


def test_half_a_line_of_a_full_disk_takes_no_other_with_it(tmp_path, monkeypatch):
    writer, write = MarkWriter(tmp_path), os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    writer.note("lost")
    monkeypatch.undo()
    writer.kind("forward", {}, "host")
    documents, _ = all_marks(MarkTail(tmp_path, consume=False))
    assert [document.get("name") for document in documents] == [None, "forward"]
    writer.close()


def test_a_signals_handler_may_mark_wherever_it_comes(tmp_path, monkeypatch):
    """Also while the thread that it interrupts makes a new segment, or writes down a new kind."""
    writer = MarkWriter(tmp_path, segment_records=4)
    fallocate, write = os.posix_fallocate, os.write

    def handler():
        monkeypatch.undo()
        kind = writer.kind("checkpoint", {}, "host")
        writer.mark(kind)
        writer.mark(~kind)

    def interrupted_fallocate(*args):
        handler()
        return fallocate(*args)

    def interrupted_write(*args):
        handler()
        return write(*args)

    def train():
        monkeypatch.setattr(os, "write", interrupted_write)
        step = writer.kind("step", {}, "host")
        for turn in range(3):
            if turn == 1:
                monkeypatch.setattr(os, "posix_fallocate", interrupted_fallocate)
            writer.mark(step)
            writer.mark(~step)

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert writer.failure is None
    writer.close()
    documents, marks = all_marks(MarkTail(tmp_path, consume=False), final=True)
    assert {d["name"]: d["kind"] for d in documents if "name" in d} == {"step": 0, "checkpoint": 1}
    kinds = [m.kind for m in marks]
    assert (kinds.count(0), kinds.count(1)) == (6, 4)


@pytest.mark.parametrize("values", [999, 1000])
def test_an_attribute_with_a_thousand_values_is_told_by_name(tmp_path, values):
    writer = MarkWriter(tmp_path)
    for i in range(values):
        writer.kind("p", {"i": i, "batch_size": 64 + i % 2}, "host")
        writer.kind("layer", {"layer": f"conv{i}"}, "host")  # as of a model with so many
    assert [text.partition(":")[0] for text in writer.crowded()] == (
        ["phase 'p' has 1,000 values of its attribute 'i'"] if values == 1000 else []
    )
    writer.close()


@pytest.mark.parametrize("value", ["auto", math.nan, 0, True, [64], torch.tensor(0.5)])
def test_a_figure_that_is_no_number_is_told_once_and_not_known_in_the_run(tmp_path, caplog, value):
    log = logging.getLogger("powerd")
    log.addHandler(caplog.handler)
    writer = MarkWriter(tmp_path)
    for name in ("forward", "backward"):
        writer.mark(writer.kind(name, {"batch_size": value, "model": "net"}, "host"))
    log.removeHandler(caplog.handler)
    names, marks = all_marks(MarkTail(tmp_path, consume=False))
    writer.close()
    assert [n["attributes"] for n in names if "kind" in n] == [{"batch_size": None, "model": "net"}] * 2
    (told,) = caplog.messages
    assert told.startswith("attribute batch_size of phase 'forward' is ")
    assert [(n["note"], n["level"]) for n in names if "note" in n] == [(told, "warning")]
    assert len(marks) == 2


def test_a_figure_that_stands_in_a_text_is_that_number(tmp_path):
    writer = MarkWriter(tmp_path)
    writer.kind("forward", {"batch_size": "64", "operations_per_sample": "3.6e9", "lr": "0.1"}, "host")
    names, _ = all_marks(MarkTail(tmp_path, consume=False))
    writer.close()
    (attributes,) = (n["attributes"] for n in names if "kind" in n)
    assert attributes == {"batch_size": 64, "operations_per_sample": 3.6e9, "lr": "0.1"}
    assert not [n for n in names if "note" in n]


def _damaged(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@given(st.integers(0, 16 * 8 * 40 - 1))
def test_one_flipped_bit_in_a_segment_cuts_there_and_is_told(tmp_path_factory, bit):
    """Whichever bit of a mark: no other phase comes of it, and what follows it is left out."""
    folder = tmp_path_factory.mktemp("marks")
    writer = MarkWriter(folder, segment_records=64)
    kind = writer.kind("step", {}, "host")
    for k in range(20):
        writer.mark_at(kind, 1_000_000 + 1000 * k)
        writer.mark_at(~kind, 1_000_500 + 1000 * k)
    writer.close()
    (segment,) = folder.glob("*.bin")
    whole = [m for piece in MarkTail(folder, consume=False).read(final=True)[1] for m in piece]
    assert len(whole) == 40
    _damaged(segment, bit)
    tail = MarkTail(folder, consume=True)
    read = [m for piece in tail.read(final=True)[1] for m in piece]
    # A time that became 0 is a mark that nobody wrote; else the check tells.
    assert read == whole[: bit // 128]
    assert [f"mark {bit // 128} is not as it was written" in text for text in tail.problems.values()] == [True]
    tail.read(final=True)
    assert segment.exists(), "what cannot be read is not deleted"


def test_a_flipped_bit_in_a_line_of_names_is_told(tmp_path):
    writer = MarkWriter(tmp_path)
    writer.kind("forward", {}, "host")
    writer.close()
    (names,) = tmp_path.glob("*.names")
    text = names.read_text()
    for old, new in (("forward", "fosward"), ('"kind"', '"kine"')):
        names.write_text(text.replace(old, new))
        tail = MarkTail(tmp_path, consume=False)
        documents, _ = tail.read()
        assert not any("name" in document for document in documents)
        assert ["a line of it is left out" in t for t in tail.problems.values()] == [True]
    names.write_text(text)
    assert any(d.get("name") == "forward" for d in MarkTail(tmp_path, consume=False).read()[0])


def test_marks_of_a_release_without_checks_are_read(tmp_path):
    token = 0x1234567890ABCDEF >> 1
    assert not is_sealing(token)
    (tmp_path / f"marks-{token:016x}.names").write_text('{"process": 5}\n{"kind": 0, "name": "step"}\n')
    (tmp_path / f"marks-{token:016x}-000000.bin").write_bytes(RECORD.pack(0, 2**31 + 5, 7) + RECORD.pack(-1, 5, 9))
    names, (marks,) = MarkTail(tmp_path, consume=False).read(final=True)
    assert [n.get("name") for n in names] == [None, "step"]
    assert [(m.thread, m.t_host_ns) for m in marks] == [(2**31 + 5, 7), (5, 9)]
