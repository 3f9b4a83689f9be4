"""The host loses power anywhere in a recording: what is made of each prefix of its file operations.

A cut leaves what was synced, and of all that came since any part. Three kinds are tried of each prefix: everything had
reached the disk; all names had, and of the contents only what was synced; nothing had but what was synced.
"""

import contextlib
import itertools
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import h5py

from powerd_client.journals import journal as journals
from powerd_client.journals import journal_writer
from powerd_client.journals.journal_writer import JournalWriter
from powerd_client.journals.marks import MarkWriter
from powerd_client.runs.build import build_run
from powerd_client.runs.recover import open_run
from powerd_core import wire
from powerd_core.errors import RunFileError
from powerd_core.wire import Message
from support import small_run
from support.fake_daemon import PERIOD_NS

OPERATIONS = (
    "write",
    "pwrite",
    "ftruncate",
    "fsync",
    "fdatasync",
    "link",
    "rename",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
)
STEPS, SCANS = 15, 100
STEP_NS = SCANS * PERIOD_NS
SECOND_NS = 10**9
Tree = dict[str, bytes | None]
"""Contents by path below the root; None for a directory."""


@dataclass
class Disk:
    """Watches the file operations below a directory, and knows what a cut before each of them would leave."""

    root: Path
    now_ns: int = 0
    deleted: list[bool] = field(default_factory=list)
    """Of each segment of marks: whether all of the journal was synced then."""
    cuts: dict[tuple[tuple[str, bytes | None], ...], int] = field(default_factory=dict)
    """What is left, and the last moment at which a cut leaves that."""
    _ids: dict[int, int] = field(default_factory=dict)
    _next: "itertools.count[int]" = field(default_factory=itertools.count)
    _synced: dict[int, bytes] = field(default_factory=dict)
    _entries: dict[int, dict[str, tuple[int, bool]]] = field(default_factory=dict)

    def watch(self, monkeypatch):
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name, real):
        def call(*args, **options):
            self.cut()
            if name == "unlink":
                if str(args[0]).startswith(f"{self.root}/run.h5.journal/marks-"):
                    journal = self.root / "run.h5.journal" / "journal.bin"
                    self.deleted.append(self._synced[self._id(journal.stat())] == journal.read_bytes())
                status = os.stat(args[0], dir_fd=options.get("dir_fd"), follow_symlinks=False)
                if status.st_nlink == 1:
                    self._ids.pop(status.st_ino, None)  # another file may get its number
            result = real(*args, **options)
            if name in ("fsync", "fdatasync"):
                self._note(args[0])
            return result

        return call

    def _id(self, status):
        if status.st_ino not in self._ids:
            self._ids[status.st_ino] = next(self._next)
        return self._ids[status.st_ino]

    def _note(self, descriptor):
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._entries[self._id(status)] = self._listed(descriptor)
        else:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                self._synced[self._id(status)] = file.read()

    def _listed(self, folder):
        return {e.name: (self._id(e.stat(follow_symlinks=False)), e.is_dir()) for e in os.scandir(folder)}

    def cut(self):
        """Power is lost now."""
        everything, names, synced = Tree(), Tree(), Tree()
        for path in self.root.rglob("*"):
            name, is_folder = str(path.relative_to(self.root)), path.is_dir()
            everything[name] = None if is_folder else path.read_bytes()
            names[name] = None if is_folder else self._synced.get(self._id(path.stat()), b"")
        self._walk_synced(self._id(self.root.stat()), "", synced)
        for tree in (everything, names, synced):
            left = {path: data for path, data in sorted(tree.items()) if ".partial" not in path}
            self.cuts[tuple(left.items())] = self.now_ns

    def _walk_synced(self, folder, prefix, tree):
        for name, (number, is_folder) in self._entries.get(folder, {}).items():
            tree[prefix + name] = None if is_folder else self._synced.get(number, b"")
            if is_folder:
                self._walk_synced(number, f"{prefix}{name}/", tree)


class AtOnce:
    """Syncs where the thread of a recorder would soon."""

    failure = None

    def __init__(self, descriptor):
        self._descriptor = descriptor

    def ask(self):
        os.fdatasync(self._descriptor)

    close = ask


def record(disk, out, monkeypatch):
    """A recording of some seconds by a clock that the test moves: a block and a phase every 100 ms."""
    monkeypatch.setattr(journal_writer, "now_ns", lambda: disk.now_ns)
    monkeypatch.setattr(journal_writer, "SyncThread", AtOnce)
    disk.now_ns = small_run.OFFSET_NS
    directory = small_run.claim_journal(out)
    lock = journals.lock(directory)
    journal, writer = JournalWriter(directory), MarkWriter(directory, segment_records=26)
    kind = writer.kind("forward", {}, "host")
    for frame in (*small_run.head(), small_run.description()):
        journal.add(wire.decode(frame), frame)
    frames = small_run.frames(STEPS, SCANS)
    for step in range(STEPS):
        for frame in frames[2 * step : 2 * step + 2]:
            journal.add(wire.decode(frame), frame)
        writer.mark_at(kind, disk.now_ns)
        disk.now_ns += STEP_NS
        writer.mark_at(~kind, disk.now_ns)
        journal.tail_marks()
        journal.flush()
    writer.close()
    journal.end(Message("stop", {"t_stop_ns": disk.now_ns, "complete": True}))
    journal.close()
    build_run(directory, out)
    os.close(lock)
    disk.cut()


def make(tree, folder):
    folder.mkdir()
    for path, data in sorted(tree.items()):
        (folder / path).mkdir() if data is None else (folder / path).write_bytes(data)


def test_every_cut_leaves_a_run_that_misses_at_most_its_last_second(tmp_path, monkeypatch):
    root = tmp_path / "disk"
    root.mkdir()
    disk = Disk(root)
    with monkeypatch.context() as watched:
        disk.watch(watched)
        record(disk, root / "run.h5", watched)
    assert len(disk.cuts) > STEPS
    assert disk.deleted[:1] == [True]
    least = fewest = 0
    for number, (left, t_ns) in enumerate(disk.cuts.items()):
        make(dict(left), tmp_path / str(number))
        run = tmp_path / str(number) / "run.h5"
        elapsed_ns = t_ns - small_run.OFFSET_NS
        due = max(elapsed_ns - SECOND_NS, 0) // STEP_NS
        if due == 0:  # there may be nothing yet
            with contextlib.suppress(RunFileError):
                open_run(run).close()
            continue
        assert small_run.wrong(run) == {}, f"cut {number}"
        with h5py.File(run) as file:
            readings, phases = len(file["lines/gpu0.rail_0/t_ns"]), len(file["phases/begin_ns"])
        assert readings >= due * SCANS, f"cut {number} at {elapsed_ns * 1e-9:.2f} s: {readings} readings"
        assert phases >= due, f"cut {number} at {elapsed_ns * 1e-9:.2f} s: {phases} phases"
        least, fewest = max(least, readings), max(fewest, phases)
    assert (least, fewest) == (STEPS * SCANS, STEPS)
