"""The journal when its run file stands: packed, kept, read again; and what damage and hostile contents cost."""

import gzip
import os
import random

import h5py
import numpy as np
import pytest

from powerd_client.journals import journal as journals
from powerd_client.journals.journal import MarkTail, packed_path, read_events
from powerd_client.journals.journal_writer import JournalWriter
from powerd_client.journals.marks import MarkWriter
from powerd_client.runs import runfile
from powerd_client.runs.build import build_run, keep_journal, read_contents
from powerd_client.runs.recover import kept_journals, needed_for, open_run, recover
from powerd_client.runs.runfile import make_dataset, seal
from powerd_core import wire
from powerd_core.errors import RunFileError
from powerd_core.wire import Garbage, Message
from support import small_run
from support.small_run import description, frames, head, make_journal, make_run_file, stop, whole, wrong


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run.h5"


def flipped(frame, byte=-3):
    """A frame with one bit of it flipped."""
    damaged = bytearray(frame)
    damaged[byte] ^= 1
    return bytes(damaged)


class TestKeeping:
    def test_a_journal_of_which_all_is_in_the_run_file_is_packed(self, out):
        make_run_file(out)
        assert sorted(p.name for p in out.parent.iterdir()) == ["run.h5", "run.h5.journal.gz"]
        again = recover(packed_path(out))
        assert again.lost == []
        assert sorted(p.name for p in out.parent.iterdir()) == ["run.h5", "run.h5.journal.gz", "run.recovered.h5"]
        with open_run(out) as one, open_run(again.out) as other:
            for name in ("lines/gpu0.rail_0/t_ns", "lines/gpu0.rail_1/power_mw", "phases/begin_ns", "phases/end_ns"):
                assert np.array_equal(one[name][:], other[name][:])
            assert one.attrs["run_id"] == other.attrs["run_id"]
        assert wrong(again.out) == {}

    def test_one_bit_of_the_only_description_deletes_nothing(self, out):
        pieces = [*head(), flipped(description()), *frames(), *stop(10**9)]
        directory = make_journal(out, pieces)
        before = (directory / "journal.bin").read_bytes()
        with pytest.raises(RunFileError, match="30 of 30 blocks of stream 0 in epoch 0000000000000005 are left out"):
            open_run(out)
        assert (directory / "journal.bin").read_bytes() == before
        assert "there is no line in it" in wrong(out)["times"]
        assert needed_for(directory) != []

    @pytest.mark.parametrize("damage", ["unnamed marks", "stray file", "link", "exchanges"])
    def test_whatever_is_left_out_keeps_the_journal(self, out, damage):
        pieces = whole()
        if damage == "exchanges":
            pieces = [*head(), description(), *frames()[::2], *stop(1200 * 10**6)]
        directory = make_journal(out, pieces)
        if damage == "unnamed marks":
            next(directory.glob("*.names")).unlink()
        elif damage == "stray file":
            (directory / "marks-x.bin").write_bytes(b"x")
        elif damage == "link":
            (directory / f"marks-{1:016x}.names").symlink_to("/dev/zero")
        missing = build_run(directory, out)
        assert len(missing) == 1
        assert directory.is_dir()
        with open_run(out) as file:
            assert len(file["lines/gpu0.rail_0/t_ns"]) == (0 if damage == "exchanges" else 1200)
            assert len(file["phases/kind"]) == (0 if damage == "unnamed marks" else 11)

    def test_the_torn_frame_of_a_killed_recorder_is_missed_by_nobody(self, out):
        make_run_file(out, [*whole()[:-1], stop(10**9)[0][:-7]])
        assert packed_path(out).exists()
        assert recover(packed_path(out)).lost == [
            "the recorder ended before the run did: this file was built from its journal"
        ]

    def test_a_run_file_that_is_cut_is_made_anew(self, out):
        make_run_file(out)
        good = out.read_bytes()
        out.write_bytes(good[: len(good) * 995 // 1000])
        with pytest.raises(RunFileError, match=r"makes it anew from run\.h5\.journal\.gz"):
            open_run(out)
        assert recover(out).readings == 2400
        packed_path(out).unlink()
        with pytest.raises(RunFileError, match="no run file, or was cut off"):
            recover(out)

    def test_damage_of_a_packed_journal_costs_a_member_and_is_told(self, out, monkeypatch):
        monkeypatch.setattr(journals, "_PIECE_BYTES", 4096)
        make_run_file(out)
        data = bytearray(packed_path(out).read_bytes())
        begins = [i for i in range(len(data)) if data.startswith(b"\x1f\x8b\x08", i)]
        assert len(begins) > 5
        data[begins[3] + 30] ^= 0x55
        packed_path(out).write_bytes(data)
        report = recover(out)
        assert 1200 < report.readings < 2400
        assert any("could not be read" in text for text in report.lost)
        assert wrong(report.out) == {}
        assert needed_for(packed_path(out)) != []

    def test_a_journal_that_somebody_packed_otherwise_is_read(self, out):
        make_run_file(out)
        data = gzip.decompress(packed_path(out).read_bytes())
        packed_path(out).write_bytes(gzip.compress(data))
        assert recover(out).readings == 2400

    def test_a_packed_journal_whose_run_file_was_deleted_moves_aside(self, out):
        for number in range(3):
            packed_path(out).write_bytes(b"precious %d" % number)
            make_run_file(out).unlink()
            assert packed_path(out.with_name(f"run-{number + 1}.h5")).read_bytes() == b"precious %d" % number
        assert build_run(make_journal(out, whole()), out, overwrite=True) == []
        assert len(list(out.parent.glob("*.gz"))) == 4

    def test_a_worker_that_was_killed_while_it_packed_is_followed_by_one_that_ends_it(self, out, monkeypatch):
        directory = make_journal(out, whole())
        with monkeypatch.context() as killed:
            killed.setattr(journals, "remove", lambda _: None)
            build_run(directory, out)
        assert list(directory.glob("marks-*"))
        assert keep_journal(directory, out) == []
        assert sorted(p.name for p in out.parent.iterdir()) == ["run.h5", "run.h5.journal.gz"]

    def test_journals_are_needed_as_long_as_their_run_file_does_not_hold_them(self, out):
        make_run_file(out)
        other = make_run_file(out.with_name("other.h5"), whole(20))
        assert list(kept_journals([out.parent])) == [packed_path(other), packed_path(out)]
        assert needed_for(packed_path(out)) == []
        with h5py.File(out, "r+") as file:
            del file["parts"]
            seal(file)
        assert needed_for(packed_path(out)) != []
        out.unlink()
        assert needed_for(packed_path(out)) == ["there is no run.h5"]


class TestRepeating:
    def test_the_description_and_the_run_are_said_again(self, tmp_path):
        journal = JournalWriter(tmp_path)
        for message in (Message("run", small_run.RUN), Message("start", {"t_start_ns": small_run.OFFSET_NS})):
            journal.add(message)
        journal.add(wire.decode(description()))
        for number, frame in enumerate(frames(3000)):
            journal.add(wire.decode(frame), frame)
            if number % 50 == 0:
                journal.flush()
        journal.end(Message("stop", {"t_stop_ns": small_run.OFFSET_NS + 10**12, "complete": True}))
        journal.close()
        events = [event for event, _, _ in read_events(tmp_path / "journal.bin")]
        subjects = [event.subject for event in events if isinstance(event, Message)]
        assert subjects.count("description") == subjects.count("run") >= 5
        data = (tmp_path / "journal.bin").read_bytes()
        first = data.index(description())
        damaged = data[:first] + flipped(description()) + data[first + len(description()) :]
        out = tmp_path / "run.h5"
        missing = build_run(make_journal(out, [damaged], marks=False), out)
        assert len(missing) == 1  # the damage itself
        with open_run(out) as file:
            assert len(file["lines/gpu0.rail_0/t_ns"]) == 3000 * 40
            assert file.attrs["run_id"] == "ab"


class TestHostile:
    def test_headers_that_claim_much_cost_little(self, out, monkeypatch):
        """Bytes that are summed up, not seconds, are counted."""
        summed = 0
        crc32 = wire.crc32

        def counting(data, value=0):
            nonlocal summed
            summed += len(data)
            return crc32(data, value)

        head_bytes = wire.HEADER.pack(wire.MAGIC, wire.VERSION, wire.BLOCK, 0, 0, 0, 0, 0, 0, 1 << 20, 0, 0)
        hostile = (head_bytes + bytes(4)) * 40_000
        good = b"".join(whole())
        directory = make_journal(out, [good[: len(good) // 2], hostile, good[len(good) // 2 :]], marks=False)
        monkeypatch.setattr(wire, "crc32", counting)
        events = [event for event, _, _ in read_events(directory / "journal.bin")]
        assert summed < 40 * len(hostile)
        assert sum(not isinstance(event, Garbage) for event in events) >= len(whole()) - 2

    @pytest.mark.parametrize("name", ["run.h5", "run.h5.journal/journal.bin", "run.h5.journal.gz"])
    def test_a_pipe_is_refused_and_nobody_waits_for_its_writer(self, out, name):
        if "bin" in name:
            make_journal(out, whole())
        path = out.parent / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(RunFileError):
            (recover if "gz" in name else open_run)(out)

    def test_files_beside_the_marks_cost_nothing_else(self, tmp_path):
        (tmp_path / "marks-x.bin").write_bytes(bytes(64))
        (tmp_path / f"marks-{3:016x}.names").symlink_to("/dev/zero")
        with (tmp_path / f"marks-{4:016x}-000000.bin").open("wb") as file:
            file.truncate(1 << 40)
        os.mkfifo(tmp_path / f"frames-{5:016x}-000000.bin")
        writer = MarkWriter(tmp_path)
        writer.mark_at(writer.kind("forward", {}, "host"), 7)
        writer.close()
        tail = MarkTail(tmp_path, consume=True)
        names, marks = tail.read()
        assert tail.read_frames() == []
        assert [sum(map(len, marks)), [n.get("name") for n in names]] == [1, [None, "forward"]]
        assert len(tail.problems) == 4

    def test_a_table_that_unpacks_to_far_more_than_it_is_stored_in_is_refused(self, out, monkeypatch):
        make_run_file(out)
        with h5py.File(out, "r+") as file:
            for name in set(file["phases"]) - {"kinds"}:
                dtype = file["phases"][name].dtype
                del file["phases"][name]
                make_dataset(file["phases"], name, np.full(200_000, 7, dtype), "1", 200_000)
        open_run(out).close()
        monkeypatch.setattr(runfile, "_WIDE_BYTES", 1 << 20)
        out.touch()  # a file that has not changed is not looked at again
        with pytest.raises(RunFileError, match=r"/phases unpacks from \d+ bytes to 9\d{6}"):
            open_run(out)


def test_damage_anywhere_in_a_journal_deletes_nothing_that_is_not_in_the_file(tmp_path):
    """Sixteen bytes, damaged anywhere: what the journal's frames say that is whole is in the file, or stays."""
    for seed in range(6):
        out = tmp_path / str(seed) / "run.h5"
        out.parent.mkdir()
        directory = make_journal(out, whole(10))
        path = directory / "journal.bin"
        data = bytearray(path.read_bytes())
        at = random.Random(seed).randrange(len(data) - 16)
        data[at : at + 16] = random.Random(seed).randbytes(16)
        path.write_bytes(data)
        scans = sum(f.scans for f in read_contents(directory, needs_run=False).streams.values())
        try:
            missing = build_run(directory, out)
        except RunFileError:
            assert path.read_bytes() == data
            continue
        with h5py.File(out) as file:
            held = len(file["lines/gpu0.rail_0/t_ns"]) if len(file["lines"]) else 0
        assert missing
        assert path.read_bytes() == data
        assert held <= scans
