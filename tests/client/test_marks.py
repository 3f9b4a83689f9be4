"""Marks into mapped files, read back as the recorder reads them."""

import errno
import json
import os
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.journal import MarkTail
from powerd_client.marks import MarkWriter
from powerd_core.marks import Mark


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
