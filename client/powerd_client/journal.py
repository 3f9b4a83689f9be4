"""The journal: the directory in which a run lives until it is a run file.

    RUN.h5.journal/
        journal.bin          wire frames: the run's own message, descriptions, blocks, gaps, clock exchanges, marks
        lock                 locked by the recorder as long as any of its processes lives
        job.json             which launch of several ranks it belongs to (`powerd_client.ranks`)
        reserve              space that the last words of a run need when the disk is full
        replaces             which run file the run is to take the place of, where one is there
        marks-<token>.names  the phase kinds of one process, a JSON object a line
        marks-<token>-N.bin  its mark segments that the recorder has not yet copied
        frames-<token>-N.bin wire frames of its device clocks; piece N is complete when N + 1 exists
        *.log                what the recorder and a local powerd said

Whoever holds the lock owns the directory. The kernel drops it when a process dies, however it dies. What is written
into one of these files survives its process; a frame or record that was cut off by a kill is found when it is read.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from glob import escape
from itertools import zip_longest
from pathlib import Path

from powerd_client.hostclock import started
from powerd_core.errors import RunFileError
from powerd_core.marks import RECORD, Marks, written
from powerd_core.serde import check_json
from powerd_core.wire import Event, FrameReader, Garbage, encode

RUN_ENVIRONMENT = "POWERD_RUN"
"""Environment variable that tells a training process into which journal directory its marks go."""
KEYS_ENVIRONMENT = "POWERD_KEYS"
"""Environment variable that names the directory of keys."""
_PIECE_BYTES = 1 << 20
_TAIL_RECORDS = 4096


def check_replaceable(path: Path) -> None:
    """A file takes the place of a file, never of a directory, a device (/dev/null) or a pipe. Raises `RunFileError`."""
    if path.exists() and not path.is_file():
        raise RunFileError(f"{path} is a directory, device or pipe, which no file may replace: give the name of a file")


def journal_path(run: Path) -> Path:
    """The journal directory that belongs to a run file."""
    return run.with_name(f"{run.name}.journal")


def run_of(journal: Path) -> Path:
    """The run file that a journal directory belongs to."""
    return journal.with_name(journal.name.removesuffix(".journal"))


def joined_journal() -> Path | None:
    """The journal of the recording that was begun around this process, if one was."""
    joined = os.environ.get(RUN_ENVIRONMENT)
    return Path(joined) if joined else None


def claim(run: Path, *, overwrite: bool = False) -> tuple[Path, int]:
    """Make the empty journal directory of a new run, and own it: the directory and the descriptor of its lock.

    Of several processes that do this at once one succeeds. Raises `RunFileError` when the run file or an unfinished
    recording of that name is in the way (with ``overwrite``, only when one is being recorded right now), or when the
    directory cannot be made.
    """
    journal = journal_path(run)
    try:
        check_replaceable(run)
        _check_free(run, overwrite=overwrite)
        held = _make(run, journal) if not journal.exists() else _take_over(run, journal, overwrite=overwrite)
        try:
            remove_partials(run)
            _check_free(run, overwrite=overwrite)  # of a run that has just ended
            if run.exists():
                (journal / "replaces").write_text(_identity(run))
        except BaseException:
            remove(journal)
            os.close(held)
            raise
    except RunFileError:
        raise
    except OSError as error:
        raise RunFileError(f"cannot record into {run}: {error.strerror}: {error.filename}") from error
    return journal, held


def prepare(run: Path, *, overwrite: bool = False) -> Path:
    """As `claim`, for a journal that is not owned while it is filled."""
    journal, held = claim(run, overwrite=overwrite)
    os.close(held)
    return journal


def _check_free(run: Path, *, overwrite: bool) -> None:
    if run.exists() and not overwrite:
        raise RunFileError(f"{run} exists: choose another name, or overwrite it with overwrite=True (--overwrite)")


def _make(run: Path, journal: Path) -> int:
    """A new journal gets its name when it is locked already: nobody ever sees one without an owner."""
    partial = journal.with_name(f"{journal.name}.{os.getpid()}.partial")
    partial.mkdir(exist_ok=True)
    held = lock(partial)
    try:
        partial.rename(journal)
    except OSError as error:
        os.close(held)
        remove(partial)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        raise _in_use(run) from error
    return held


def _take_over(run: Path, journal: Path, *, overwrite: bool) -> int:
    """The journal that an earlier run has left, emptied."""
    if not overwrite:
        if is_locked(journal):
            raise _in_use(run)
        raise RunFileError(
            f"{journal} is there, of a run that is not finished: `joules info {run}` finishes it; or overwrite it "
            "with overwrite=True (--overwrite)"
        )
    try:
        held = lock(journal)
    except RunFileError as error:
        raise _in_use(run) from error
    try:
        _empty(journal)
    except BaseException:
        os.close(held)
        raise
    return held


def _in_use(run: Path) -> RunFileError:
    return RunFileError(f"{run} is being recorded by another process: choose another name")


def remove(journal: Path) -> None:
    """Delete a journal: all of it is in the run file, or nobody wants it. Nothing else does, but `claim` when told to
    overwrite. The caller owns its lock, which goes last: nobody can own what is half gone.
    """
    with contextlib.suppress(OSError):
        _empty(journal)
        (journal / "lock").unlink(missing_ok=True)
        journal.rmdir()


def _empty(journal: Path) -> None:
    """Delete all but the lock."""
    for path in journal.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink(missing_ok=True)


def remove_partials(run: Path) -> None:
    """Delete what processes that were killed left of a run file, and of its journal, before they were whole. The caller
    owns the journal's lock.
    """
    for leftover in run.parent.glob(f"{escape(run.name)}.*.partial"):
        owner = leftover.name.split(".")[-2]
        if owner.isdecimal() and (int(owner) == os.getpid() or started(int(owner)) is None):
            with contextlib.suppress(OSError):
                remove(leftover) if leftover.is_dir() else leftover.unlink()


def is_to_replace(run: Path) -> bool:
    """Whether the journal beside a run file is that of a later recording, of which nothing has become yet: one that was
    to overwrite this file, and whose processes were all killed.
    """
    journal = journal_path(run)
    try:
        is_the_one = (journal / "replaces").read_text() == _identity(run)
    except (OSError, ValueError):
        return False
    return is_the_one and has_begun(journal) and not is_locked(journal)


def has_begun(journal: Path) -> bool:
    """Whether a journal holds anything of a run."""
    try:
        return (journal / "journal.bin").stat().st_size > 0
    except OSError:
        return False


def _identity(run: Path) -> str:
    status = run.stat()
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def is_locked(journal: Path) -> bool:
    """Whether a recorder that lives owns the directory."""
    try:
        os.close(lock(journal, os.O_RDWR))
    except RunFileError:
        return True
    except OSError:  # there is no lock, or it is not ours to look at
        return False
    return False


def lock(journal: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    """Own the directory until the returned descriptor is closed. Raises `RunFileError` when somebody else does."""
    while True:
        descriptor = os.open(journal / "lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunFileError(f"{journal} is in use by another process: wait until its run has ended") from error
        if is_lock_of(journal, descriptor):
            return descriptor
        os.close(descriptor)  # its owner has just removed it with the journal


def is_lock_of(journal: Path, descriptor: int) -> bool:
    """Whether a lock is that of this directory, not of one of the same name that is gone."""
    try:
        return os.path.samestat(os.fstat(descriptor), (journal / "lock").stat())
    except OSError:
        return False


def read_events(path: Path) -> Iterator[tuple[Event | Garbage, int, int]]:
    """Yield each event of a journal file with the offset and the length of its frame.

    `Garbage` marks damaged stretches; a tail that is not a whole frame ends the file silently when it is what a killed
    recorder leaves. Raises `RunFileError` for a file that cannot be read.
    """
    at = 0
    for event, frame in _frames(path):
        size = event.count if isinstance(event, Garbage) else len(frame)
        yield event, at, size
        at += size


def _frames(path: Path) -> Iterator[tuple[Event | Garbage, bytes]]:
    reader = FrameReader()
    try:
        with path.open("rb") as file:
            while data := file.read(1 << 20):
                yield from reader.feed(data)
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror}") from error
    yield from reader.close()  # also the frames that a damaged length before them had swallowed


class FrameFile:
    """Appends frames under ``directory`` for the process ``token``. Raises `OSError` when it cannot."""

    def __init__(self, directory: Path, token: int, *, piece_bytes: int = _PIECE_BYTES) -> None:
        self._base = directory / f"frames-{token:016x}"
        self._piece_bytes = piece_bytes
        self._number = 0
        self._size = 0
        self._descriptor = self._open()

    def _open(self) -> int:
        path = self._base.with_name(f"{self._base.name}-{self._number:06d}.bin")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def write(self, event: Event) -> None:
        """Append the frame of ``event``."""
        frame = encode(event)
        if self._size and self._size + len(frame) > self._piece_bytes:
            before, self._number, self._size = self._descriptor, self._number + 1, 0
            self._descriptor = self._open()
            os.close(before)
        done = os.write(self._descriptor, frame)
        self._size += done
        if done < len(frame):
            raise OSError(f"only {done} of {len(frame)} bytes were written: is the disk full?")

    def close(self) -> None:
        """Again does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            os.close(descriptor)


class MarkTail:
    """Follows what the processes of a training leave under a journal directory: marks, names, and frames.

    `read` and `read_frames` give what is new since the last call. With ``consume`` a file that is complete and has been
    read is deleted by the next call, when what was read has surely been written. A recorder that was started anew reads
    again what is still there, and journals it twice: each mark has its number and is counted once, and the others say
    the same however often they are said.
    """

    def __init__(self, journal: Path, *, consume: bool) -> None:
        self._journal = journal
        self._consume = consume
        self._done: dict[Path, int] = {}
        self._readers: dict[Path, FrameReader] = {}
        self._spent: list[Path] = []

    def read(self, *, final: bool = False) -> tuple[list[dict[str, object]], list[Marks]]:
        """New descriptions of processes and kinds (each with its ``process``), and new marks, in the order in which
        they were written.

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
        size, pieces = RECORD.size, list[Marks]()
        with path.open("rb") as file:
            records = os.fstat(file.fileno()).st_size // size
            base = int(number) * records
            at = self._done.get(path, 0)
            while at < records:
                file.seek(at * size)
                data = file.read(_TAIL_RECORDS * size)
                end = written(data)
                if end:
                    pieces.append(Marks(int(token, 16), base + at, data[: end * size]))
                    at += end
                elif final:
                    at += 1
                if end < len(data) // size and not final:
                    break
        self._done[path] = at
        if self._consume and at == records:
            self._spent.append(path)
        return pieces

    def _read_names(self, path: Path) -> list[dict[str, object]]:
        process = int(path.stem.split("-")[1], 16)
        data = self._new_bytes(path)
        whole = data[: data.rfind(b"\n") + 1]
        self._done[path] -= len(data) - len(whole)
        documents = []
        for text in whole.splitlines():
            try:
                # An attribute that is no finite number stays one that can be written: as the text it was.
                document = json.loads(text, parse_constant=str)
                check_json(document)
            except (ValueError, RecursionError):
                continue  # a torn line of a process that was killed while writing it
            if isinstance(document, dict):
                documents.append({**document, "process": process})
        return documents

    def read_frames(self) -> list[tuple[Event | Garbage, bytes]]:
        """New frames, each with its bytes (none for garbage)."""
        frames: list[tuple[Event | Garbage, bytes]] = []
        paths = sorted(self._journal.glob("frames-*.bin"))
        for path, following in zip_longest(paths, paths[1:]):
            data = self._new_bytes(path)
            frames += self._readers.setdefault(path, FrameReader()).feed(data)
            is_complete = following is not None and following.name.rpartition("-")[0] == path.name.rpartition("-")[0]
            if self._consume and is_complete:
                self._spent.append(path)
        return frames

    def _new_bytes(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self._done.get(path, 0))
            data = file.read()
        self._done[path] = self._done.get(path, 0) + len(data)
        return data
