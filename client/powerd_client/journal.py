"""The journal: the directory in which a run lives until it is a run file.

    RUN.h5.journal/
        journal.bin          wire frames: the run's own message, descriptions, blocks, gaps, clock exchanges, marks
        lock                 locked by the recorder as long as any of its processes lives
        job.json             which launch of several ranks it belongs to (`powerd_client.together`)
        reserve              space that the last words of a run need when the disk is full
        marks-<token>.names  the phase kinds of one process, a JSON object a line
        marks-<token>-N.bin  its mark segments that the recorder has not yet copied
        *.log                what the recorder and a local powerd said

Whoever holds the lock owns the directory. The kernel drops it when a process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from powerd_core.document import check_json
from powerd_core.errors import RunFileError, VersionError, WireError
from powerd_core.framereader import FrameReader, Garbage
from powerd_core.marks import RECORD, Marks, written
from powerd_core.wire import HEADER_BYTES, Event, decode

_TAIL_RECORDS = 4096

LONGEST_NAME = 255 - len(".1234567.partial")
"""Of a run file, in bytes: it has such a name while it is written, and file systems take 255."""

RUN_ENVIRONMENT = "POWERD_RUN"
"""Environment variable that tells a training process into which journal directory its marks go."""

KEYS_ENVIRONMENT = "POWERD_KEYS"
"""Environment variable that names the directory of keys."""


def journal_path(run: Path) -> Path:
    """The journal directory that belongs to a run file."""
    return run.with_name(run.name + ".journal")


def prepare(run: Path, *, overwrite: bool = False) -> Path:
    """Make the empty journal directory of a new run.

    Raises `RunFileError` when the run file or an unfinished recording of that name is in the way (with ``overwrite``,
    only when one is being recorded right now), or when the directory cannot be made.
    """
    if len(os.fsencode(run.name)) > LONGEST_NAME:
        raise RunFileError(f"the name of {run} is too long: at most {LONGEST_NAME} bytes")
    journal = journal_path(run)
    try:
        _make_way(run, journal, overwrite=overwrite)
        journal.mkdir()
    except RunFileError:
        raise
    except OSError as error:
        raise RunFileError(f"cannot record into {run}: {error.strerror}: {error.filename}") from error
    return journal


def _make_way(run: Path, journal: Path, *, overwrite: bool) -> None:
    if run.is_dir():
        raise RunFileError(f"{run} is a directory: give the name of a file")
    if run.exists() and not overwrite:
        raise RunFileError(f"{run} exists: choose another name, or overwrite it with overwrite=True (--overwrite)")
    if journal.exists():
        if is_locked(journal):
            raise RunFileError(f"{run} is being recorded by another process: choose another name")
        if not overwrite:
            raise RunFileError(
                f"{journal} holds an unfinished run: finish it with `joules info {run}`, or overwrite it with "
                "overwrite=True (--overwrite)"
            )
        shutil.rmtree(journal)


def is_locked(journal: Path) -> bool:
    """Whether a recorder that lives owns the directory."""
    try:
        descriptor = os.open(journal / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def lock(journal: Path) -> int:
    """Own the directory until the returned descriptor is closed. Raises `RunFileError` when somebody else does."""
    descriptor = os.open(journal / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunFileError(f"{journal} is in use by another process: wait until its run has ended") from error
    return descriptor


class JournalWriter:
    """Appends frames to ``journal.bin``: each `write` is whole in the file when it returns, or not at all.

    What lies behind ``size`` (the torn last frame of a recorder that was killed) is cut off first.
    """

    def __init__(self, journal: Path, size: int | None = None) -> None:
        self._descriptor = os.open(journal / "journal.bin", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.size = os.fstat(self._descriptor).st_size
        self._torn = size is not None and size < self.size
        self.size = self.size if size is None else min(size, self.size)

    def write(self, frames: list[bytes]) -> None:
        """Append whole frames. Raises `OSError` (full disk) with the file as it was before; then call again."""
        data = memoryview(b"".join(frames))
        done = 0
        self._mend()
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:])
        except OSError:
            self._torn = True
            with contextlib.suppress(OSError):  # of a file system that went read-only: tried again before more is added
                self._mend()
            raise
        self.size += len(data)

    def _mend(self) -> None:
        if self._torn:
            os.ftruncate(self._descriptor, self.size)
            self._torn = False

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(path: Path, *, chunk_bytes: int = 1 << 20) -> Iterator[tuple[Event | Garbage, int, int]]:
    """Yield each event of a journal file with the offset and the length of its frame.

    `Garbage` marks damaged stretches; a tail that is not a whole frame ends the file silently when it is what a killed
    recorder leaves. Raises `RunFileError` for a file that cannot be read.
    """
    reader, at = FrameReader(), 0
    try:
        with path.open("rb") as file:
            while data := file.read(chunk_bytes):
                for event, frame in reader.feed(data):
                    size = event.count if isinstance(event, Garbage) else len(frame)
                    yield event, at, size
                    at += size
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}") from error
    for event, frame in reader.close():
        size = event.count if isinstance(event, Garbage) else len(frame)
        yield event, at, size
        at += size


def check_version(path: Path) -> None:
    """Raises `RunFileError` when a journal file was written in another version of the format."""
    try:
        with path.open("rb") as file:
            decode(file.read(HEADER_BYTES))
    except VersionError as error:
        raise RunFileError(f"{path} was written by another release of powerd ({error})") from error
    except WireError:
        pass  # cut off or damaged: the reader reports it


@dataclass(slots=True)
class Copied:
    """What of the marks a journal already holds."""

    marks: dict[int, list[list[int]]] = field(default_factory=dict)
    """By process: begin and end of stretches of record indices, in the order in which they were written."""
    documents: dict[int, int] = field(default_factory=dict)
    """By process: how many lines of its names."""

    def add(self, piece: Marks) -> None:
        stretches = self.marks.setdefault(piece.process, [])
        end = piece.first + len(piece)
        for stretch in reversed(stretches):
            if stretch[1] == piece.first:
                stretch[1] = end
                return
        stretches.append([piece.first, end])

    def records(self, process: int, base: int, count: int) -> int:
        """How many records of the segment that begins at index ``base`` were copied: they are its first ones."""
        ends = [end for begin, end in self.marks.get(process, []) if begin < base + count and end > base]
        return min(max(ends, default=base) - base, count)


class MarkTail:
    """Follows the marks of every process under a journal directory.

    `read` gives what is new since the last call: descriptions of processes and kinds as dicts, and raw marks. With
    ``consume`` a segment that is full and has been read is deleted by the next call, when what was read has surely been
    written. What was ``copied`` before is not given again.
    """

    def __init__(self, journal: Path, *, consume: bool, copied: Copied | None = None) -> None:
        self._journal = journal
        self._consume = consume
        self._copied = copied or Copied()
        self._done: dict[Path, int] = {}
        self._spent: list[Path] = []

    def read(self, *, final: bool = False) -> tuple[list[dict[str, object]], list[Marks]]:
        """New descriptions (each with its ``process``) and new marks, in the order in which they were written.

        A record that another thread is still writing holds back those behind it, unless ``final`` says that nobody
        writes.
        """
        for path in self._spent:
            path.unlink(missing_ok=True)
        self._spent.clear()
        names: list[dict[str, object]] = []
        marks: list[Marks] = []
        # Marks first: a kind is always described before a mark uses it.
        for path in sorted(self._journal.glob("marks-*.bin")):
            marks += self._read_segment(path, final)
        for path in sorted(self._journal.glob("marks-*.names")):
            names += self._read_names(path)
        return names, marks

    def _read_segment(self, path: Path, final: bool) -> list[Marks]:
        _, token, number = path.stem.split("-")
        size, found = RECORD.size, []
        with path.open("rb") as file:
            records = os.fstat(file.fileno()).st_size // size
            base = int(number) * records
            at = self._done[path] if path in self._done else self._copied.records(int(token, 16), base, records)
            while at < records:
                file.seek(at * size)
                data = file.read(_TAIL_RECORDS * size)
                end = written(data)
                if end:
                    found.append(Marks(int(token, 16), base + at, data[: end * size]))
                    at += end
                elif final:
                    at += 1
                if end < len(data) // size and not final:
                    break
        self._done[path] = at
        if self._consume and at == records:
            self._spent.append(path)
        return found

    def _read_names(self, path: Path) -> list[dict[str, object]]:
        process = int(path.stem.split("-")[1], 16)
        with path.open("rb") as file:
            file.seek(self._done.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._done[path] = self._done.get(path, 0) + len(whole)
        found = []
        for text in whole.splitlines():
            try:
                # An attribute that is no finite number stays one that can be written: as the text it was.
                document = json.loads(text, parse_constant=str)
                check_json(document)
            except (ValueError, RecursionError):
                continue  # a torn line of a process that was killed while writing it
            if not isinstance(document, dict):
                continue
            if self._copied.documents.get(process, 0):
                self._copied.documents[process] -= 1
            else:
                found.append({**document, "process": process})
        return found


class FrameTail:
    """Follows the frames that processes leave beside their marks (`powerd_client.framefile`).

    With ``consume`` a piece that is complete and has been read is deleted by the next call. A recorder that was started
    anew reads again what is still there: each of these frames says the same however often it is said.
    """

    def __init__(self, journal: Path, *, consume: bool) -> None:
        self._journal = journal
        self._consume = consume
        self._readers: dict[Path, tuple[FrameReader, int]] = {}
        self._spent: list[Path] = []

    def read(self) -> list[tuple[Event | Garbage, bytes]]:
        """New frames, each with its bytes (none for garbage)."""
        for path in self._spent:
            path.unlink(missing_ok=True)
            self._readers.pop(path, None)
        self._spent.clear()
        found: list[tuple[Event | Garbage, bytes]] = []
        paths = sorted(self._journal.glob("frames-*.bin"))
        for path, following in zip_longest(paths, paths[1:]):
            reader, at = self._readers.get(path) or (FrameReader(), 0)
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            found += reader.feed(data)
            self._readers[path] = reader, at + len(data)
            is_complete = following is not None and following.name.rpartition("-")[0] == path.name.rpartition("-")[0]
            if self._consume and is_complete:
                self._spent.append(path)
        return found
