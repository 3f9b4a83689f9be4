"""The journal: the directory in which a run lives until it is a run file.

    RUN.h5.journal/
        journal.bin          wire frames: the run's own message, descriptions, blocks, gaps, clock exchanges, marks
        lock                 locked by the recorder as long as any of its processes lives
        job.json             which launch of several ranks it belongs to (`powerd_client.journals.ranks`)
        reserve              space that the last words of a run need when the disk is full
        replaces             which run file the run is to take the place of, where one is there
        marks-<token>.names  the phase kinds of one process, a JSON object a line
        marks-<token>-N.bin  its mark segments that the recorder has not yet copied
        frames-<token>-N.bin wire frames of its device clocks; piece N is complete when N + 1 exists
        *.log                what the recorder and a local powerd said

When the run file stands and holds all of it, the journal is packed: RUN.h5.journal.gz has the same frames in one file
(`pack`), and stays until the user deletes it with `joules journal tidy`.

Whoever holds the lock owns the directory. The kernel drops it when a process dies, however it dies. What is written
into one of these files survives its process; a frame or record that was cut off by a kill is found when it is read.

A journal is finished, emptied and deleted by its user alone (`powerd_client.host.ownership`), and nothing is deleted in
it but the files above.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import filecmp
import gzip
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from glob import escape
from itertools import count, zip_longest
from pathlib import Path
from typing import BinaryIO

from powerd_client.host import ownership
from powerd_client.host.hostclock import started
from powerd_core.errors import RunFileError, WireError
from powerd_core.marks import RECORD, THREAD_BITS, Marks, is_sealing, unsealed_line, written
from powerd_core.serde import check_json
from powerd_core.wire import Event, FrameReader, Garbage, Message, encode

RUN_ENVIRONMENT = "POWERD_RUN"
"""Environment variable that tells a training process into which journal directory its marks go."""
OPTIMISE_ENVIRONMENT = "POWERD_OPTIMISE"
"""Arguments of `Meter.optimise_power` as JSON, for the first training that a command under `joules record` watches."""
KEYS_ENVIRONMENT = "POWERD_KEYS"
"""Environment variable that names the directory of keys."""
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment of processes of ours that calculate. Their matrices are small: libraries of linear algebra would else
start a thread for each core, which wait by turning, beside a training that needs the cores."""
_PIECE_BYTES = 1 << 20
_TAIL_RECORDS = 4096
_MOST_BYTES = 64 << 20
"""No training writes a larger file of marks, names or frames."""
_OWN_NAME = re.compile(r"(marks|frames)-([0-9a-f]{16})(?:-([0-9]{6,12})\.bin|\.names)")
_IN_JOURNAL = re.compile(
    r"journal\.bin|reserve|replaces|job\.json(\.new)?|(recorder|powerd)\.log|(marks|frames)-[0-9a-f]{16}.*"
)
"""What powerd deletes in a journal, but for the lock, which goes last."""
_MEMBER_BEGIN = b"\x1f\x8b\x08"
_MEMBER_DAMAGE = bytes(64)
"""Stands for a damaged member of a packed journal. It is no frame: whoever reads frames says that it is there."""
_MOST_DAMAGED = 1000


RUN_SUFFIXES = (".h5", ".hdf5")
"""How run files are called; a directory is searched for these."""


def check_replaceable(path: Path) -> None:
    """A file takes the place of a file, never of a directory, a device (/dev/null) or a pipe. Raises `RunFileError`."""
    if path.exists() and not path.is_file():
        raise RunFileError(f"{path} is a directory, device or pipe, which no file may replace: give the name of a file")


def journal_path(run: Path) -> Path:
    """The journal directory that belongs to a run file."""
    return run.with_name(f"{run.name}.journal")


def packed_path(run: Path) -> Path:
    """The packed journal that belongs to a run file."""
    return run.with_name(f"{run.name}.journal.gz")


def run_of(journal: Path) -> Path:
    """The run file that a journal directory, or a packed journal, belongs to."""
    return journal.with_name(journal.name.removesuffix(".gz").removesuffix(".journal"))


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
    if run.suffix not in RUN_SUFFIXES:
        raise RunFileError(f"{run} is no name of a run file: end it in .h5")
    try:
        check_replaceable(run)
        _check_folder(run)
        _check_free(run, overwrite=overwrite)
        is_new = not os.path.lexists(journal)
        held = _make(run, journal) if is_new else _take_over(run, journal, overwrite=overwrite)
        try:
            remove_partials(run)
            _check_free(run, overwrite=overwrite)  # of a run that has just ended
            if run.exists():
                ownership.write_new(journal / "replaces", _identity(run))
        except BaseException:
            remove(journal)
            os.close(held)
            raise
    except RunFileError:
        raise
    except OSError as error:
        raise RunFileError(f"cannot record into {run}: {error.strerror}: {error.filename}") from error
    return journal, held


def claim_next(run: Path) -> tuple[Path, Path, int]:
    """As `claim`, for the first of RUN.h5, RUN-2.h5, ... that is free: its name too."""
    while True:
        numbered = free_name(run)
        try:
            return numbered, *claim(numbered)
        except RunFileError:
            if not _is_taken(numbered):
                raise  # else another process was faster


def free_name(run: Path) -> Path:
    """The first of RUN.h5, RUN-2.h5, ... of which neither a file nor a journal is there."""
    numbered = (run if number == 1 else run.with_stem(f"{run.stem}-{number}") for number in count(1))
    return next(name for name in numbered if not _is_taken(name))


def _is_taken(run: Path) -> bool:
    return os.path.lexists(run) or os.path.lexists(journal_path(run))


def numbered_runs(run: Path) -> list[Path]:
    """Those of RUN-2.h5, RUN-3.h5, ... that have a journal."""
    journals = run.parent.glob(f"{escape(run.stem)}-[0-9]*{escape(journal_path(run).name.removeprefix(run.stem))}")
    return [run_of(journal) for journal in journals]


def _check_folder(run: Path) -> None:
    folder = run.absolute().parent
    if not folder.is_dir():
        raise RunFileError(f"cannot record into {run}: there is no folder {folder}: make it first")


def _check_free(run: Path, *, overwrite: bool) -> None:
    ownership.check_own(run)  # at the start: a recording cannot be taken again where its end is refused
    if run.exists() and not overwrite:
        raise RunFileError(f"{run} exists: choose another name, or overwrite it with overwrite=True (--overwrite)")


def _make(run: Path, journal: Path) -> int:
    """A new journal gets its name when it is locked already: nobody ever sees one without an owner."""
    partial = partial_path(journal)
    partial.mkdir(mode=0o700)
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
    ownership.check_own(journal)
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
        with ownership.own_folder(journal) as folder:
            ownership.empty(folder, _IN_JOURNAL)
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
        with ownership.own_folder(journal) as folder:
            ownership.empty(folder, _IN_JOURNAL)
        ownership.delete_folder(journal, re.compile("lock"))


def partial_path(path: Path) -> Path:
    """What a file is called until it is whole: a name that nobody else can foresee."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.{os.getpid()}.partial")


def remove_partials(run: Path) -> None:
    """Delete what processes that were killed left of a run file, and of its journal, before they were whole. The caller
    owns the journal's lock.
    """
    names = re.compile(rf"{re.escape(run.name)}(\.journal)?(\.[0-9a-f]+)?\.([0-9]+)\.partial")
    for leftover in run.parent.glob(f"{escape(run.name)}.*.partial"):
        name = names.fullmatch(leftover.name)
        if name is None or not (int(name[3]) == os.getpid() or started(int(name[3])) is None):
            continue
        with contextlib.suppress(OSError):
            remove(leftover) if leftover.is_dir() else ownership.delete(leftover)


def left_alone(run: Path) -> str | None:
    """Why nothing is made of the journal beside a run file here, in words: one of them is a link, or another user's.
    None where nothing is in the way, or no journal is there."""
    journal = journal_path(run)
    if not os.path.lexists(journal):
        return None
    return ownership.foreign(journal) or ownership.foreign(run)


def is_to_replace(run: Path) -> bool:
    """Whether the journal beside a run file is that of a later recording, of which nothing has become yet: one of the
    same user's that was to overwrite this file, and whose processes were all killed.
    """
    journal = journal_path(run)
    if left_alone(run) is not None:
        return False
    try:
        is_the_one = (journal / "replaces").read_text() == _identity(run)
    except (OSError, ValueError):
        return False
    return is_the_one and has_begun(journal) and not is_locked(journal)


def has_begun(journal: Path) -> bool:
    """Whether a journal holds anything of a run. Raises `OSError` where that cannot be seen."""
    try:
        return (journal / "journal.bin").stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _identity(run: Path) -> str:
    status = run.stat()
    return f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns}"


def is_locked(journal: Path) -> bool:
    """Whether a recorder that lives owns the directory."""
    try:
        os.close(_locked(journal, os.open(journal / "lock", os.O_RDWR | os.O_NOFOLLOW)))
    except RunFileError:
        return True
    except OSError:  # there is no lock, or it is not ours to look at
        return False
    return False


def lock(journal: Path) -> int:
    """Own the directory until the returned descriptor is closed. Raises `RunFileError` when somebody else does, or when
    it is a link or another user's."""
    while True:
        with ownership.own_folder(journal) as folder:
            descriptor = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        if is_lock_of(journal, _locked(journal, descriptor)):
            return descriptor
        os.close(descriptor)  # its owner has just removed it with the journal


def _locked(journal: Path, descriptor: int) -> int:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunFileError(f"{journal} is in use by another process: wait until its run has ended") from error
    return descriptor


def is_lock_of(journal: Path, descriptor: int) -> bool:
    """Whether a lock is that of this directory, not of one of the same name that is gone."""
    try:
        return os.path.samestat(os.fstat(descriptor), (journal / "lock").stat())
    except OSError:
        return False


def read_events(path: Path) -> Iterator[tuple[Event | Garbage, int, int]]:
    """Yield each event of a journal file, packed or not, with the offset and the length of its (unpacked) frame.

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
        for data in _contents(path):
            yield from reader.feed(data)
    except OSError as error:
        raise RunFileError(f"cannot read {path}: {error.strerror or error}") from error
    yield from reader.close()  # also the frames that a damaged length before them had swallowed


def _contents(path: Path) -> Iterator[bytes]:
    """What is in a journal file, a piece at a time, unpacked where it is packed."""
    with open_regular(path) as file:
        if path.suffix == ".gz":
            yield from _unpacked(file)
            return
        while data := file.read(_PIECE_BYTES):
            yield data


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """The contents of all members; behind damage it goes on with the next member."""
    data, damaged = file.read(_PIECE_BYTES), 0
    while data:
        member = zlib.decompressobj(wbits=31)
        with contextlib.suppress(zlib.error):
            while data and not member.eof:
                yield member.decompress(data, _PIECE_BYTES)
                data = member.unused_data or member.unconsumed_tail or file.read(_PIECE_BYTES)
        if not member.eof:
            yield _MEMBER_DAMAGE
            damaged += 1
            if damaged > _MOST_DAMAGED:
                raise OSError(errno.EIO, "it is damaged in too many places") from None
            at = data.find(_MEMBER_BEGIN, 1)
            while at < 0 and (more := file.read(_PIECE_BYTES)):
                data = data[-2:] + more
                at = data.find(_MEMBER_BEGIN)
            data = data[at:] if at >= 0 else b""


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file to read. Raises `OSError` also for what is none: a device has no end, and a pipe lets us wait."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return file


def sync_path(path: Path) -> None:
    """Come back when a file, or the names in a directory, survive a power cut. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_leftovers(journal: Path) -> tuple[list[Event | Garbage], list[str]]:
    """What the training wrote and no recorder has deleted since, and what of it cannot be used, in words."""
    tail = MarkTail(journal, consume=False)
    (names, marks), frames = tail.read(final=True), tail.read_frames(final=True)
    events = [*(Message("phase-names", document) for document in names), *marks, *(event for event, _ in frames)]
    return events, list(tail.problems.values())


def pack(journal: Path, *, overwrite: bool, progress: Callable[[float], None] = lambda share: None) -> None:
    """Make the packed journal of a directory, and delete the directory when that is on the disk.

    The caller owns the lock, and knows that everything can be read. Each megabyte is a gzip member of its own: damage
    costs no more, and no larger piece is in memory. Raises `OSError`, with the directory as it was.
    """
    run, source = run_of(journal), journal / "journal.bin"
    ownership.check_own(packed_path(run))
    partial = partial_path(run)
    size = source.stat().st_size
    done, waiting = 0, bytearray()
    try:
        with os.fdopen(ownership.open_own(partial, os.O_WRONLY | os.O_EXCL), "wb") as file:
            try:
                for frame in _all_frames(journal):
                    waiting += frame
                    while len(waiting) >= _PIECE_BYTES:
                        file.write(gzip.compress(waiting[:_PIECE_BYTES], 1, mtime=0))
                        del waiting[:_PIECE_BYTES]
                        done += _PIECE_BYTES
                        progress(min(done / size, 1.0))
            except (RunFileError, WireError) as error:
                raise OSError(errno.EIO, str(error)) from error
            file.write(gzip.compress(waiting, 1, mtime=0))
            file.flush()
            os.fsync(file.fileno())
        if not overwrite:
            _move_aside(packed_path(run), partial)
        ownership.move(partial, packed_path(run), overwrite=True)
        sync_path(run.parent)
    finally:
        ownership.delete(partial)
    ownership.delete(source)  # without it a directory that was not deleted to its end is nothing
    remove(journal)


def _move_aside(packed: Path, following: Path) -> None:
    """A packed journal whose run file was deleted may be all there is of that run: it gets another name."""
    run = run_of(packed)
    if packed.exists() and filecmp.cmp(packed, following, shallow=False):
        return  # it is of this run, and its maker was killed before the directory was deleted
    for number in count(1):
        try:
            os.link(packed, packed_path(run.with_name(f"{run.stem}-{number}{run.suffix}")))
        except FileExistsError:
            continue
        except FileNotFoundError:
            pass
        return


def unpack(packed: Path, directory: Path) -> None:
    """Make a journal directory of a packed journal. Raises `OSError`."""
    with os.fdopen(ownership.open_own(directory / "journal.bin", os.O_WRONLY | os.O_EXCL), "wb") as file:
        for data in _contents(packed):
            file.write(data)


def _all_frames(journal: Path) -> Iterator[bytes]:
    for _, frame in _frames(journal / "journal.bin"):
        yield frame
    for event in read_leftovers(journal)[0]:
        if not isinstance(event, Garbage):
            yield encode(event)


class FrameFile:
    """Appends frames under ``directory`` for the process ``token``. Raises `OSError` when it cannot."""

    def __init__(self, directory: Path, token: int) -> None:
        self._base = directory / f"frames-{token:016x}"
        self._number = 0
        self._size = 0
        self._descriptor = self._open()

    def _open(self) -> int:
        path = self._base.with_name(f"{self._base.name}-{self._number:06d}.bin")
        return ownership.open_own(path, os.O_WRONLY | os.O_EXCL | os.O_APPEND)

    def write(self, event: Event) -> None:
        """Append the frame of ``event``."""
        frame = encode(event)
        if self._size and self._size + len(frame) > _PIECE_BYTES:
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
        self._cut: set[int] = set()
        """Processes one of whose marks is damaged: what follows it has no meaning that can be trusted."""
        self.problems: dict[Path, str] = {}
        """Files that cannot be used, and why. They cost nothing else."""

    @property
    def has_spent(self) -> bool:
        """Whether the next call deletes a file."""
        return bool(self._spent)

    def read(self, *, final: bool = False) -> tuple[list[dict[str, object]], list[Marks]]:
        """New descriptions of processes and kinds (each with its ``process``), and new marks, in the order in which
        they were written.

        A record that another thread is still writing holds back those behind it, unless ``final`` says that nobody
        writes.
        """
        for path in self._spent:
            ownership.delete(path)
        self._spent.clear()
        names: list[dict[str, object]] = []
        marks: list[Marks] = []
        # Marks first: a kind is always described before a mark uses it.
        for path, token, number in self._own("marks-*.bin"):
            with self._noting(path):
                marks += self._read_segment(path, token, number, final)
        for path, token, _ in self._own("marks-*.names"):
            with self._noting(path):
                names += self._read_names(path, token)
        return names, marks

    def _own(self, pattern: str) -> list[tuple[Path, int, int]]:
        """The files that a training wrote, each with its process and number."""
        every = []
        for path in sorted(self._journal.glob(pattern)):
            if match := _OWN_NAME.fullmatch(path.name):
                every.append((path, int(match[2], 16), int(match[3] or 0)))
            else:
                self.problems[path] = f"{path.name} beside the journal cannot be used: no training calls its files so"
        return every

    @contextlib.contextmanager
    def _noting(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass  # another one who read it has deleted it
        except OSError as error:
            self.problems[path] = f"{path.name} beside the journal cannot be read: {error.strerror or error}"

    def _read_segment(self, path: Path, token: int, number: int, final: bool) -> list[Marks]:
        size, pieces = RECORD.size, list[Marks]()
        if token in self._cut:
            return pieces
        with _open_small(path) as file:
            records = os.fstat(file.fileno()).st_size // size
            base = number * records
            at = self._done.get(path, 0)
            is_held_back = False
            while at < records and not is_held_back:
                file.seek(at * size)
                data = file.read(_TAIL_RECORDS * size)
                begin, count = 0, len(data) // size
                while begin < count:
                    end = written(data, begin)
                    if end > begin:
                        plain, is_damaged = _unsealed(token, data[begin * size : end * size])
                        pieces.append(Marks(token, base + at + begin, plain))
                        if is_damaged:
                            self._cut.add(token)
                            bad = base + at + begin + len(plain) // size
                            self.problems[path] = (
                                f"{path.name} beside the journal is damaged: mark {bad} is not as it was written, "
                                "and with those behind it is left out"
                            )
                            return pieces
                    elif final:
                        is_unused = data.count(0, begin * size) == len(data) - begin * size
                        end = count if is_unused else end + 1
                    begin = end
                    if end < count and not final:
                        is_held_back = True
                        break
                at += begin
        self._done[path] = at
        if self._consume and at == records:
            self._spent.append(path)
        return pieces

    def _read_names(self, path: Path, process: int) -> list[dict[str, object]]:
        data = self._new_bytes(path)
        whole = data[: data.rfind(b"\n") + 1]
        self._done[path] -= len(data) - len(whole)
        documents = []
        for line in whole.splitlines():
            text = unsealed_line(line) if is_sealing(process) else line
            if text is None:
                if line.endswith(b"}"):  # not torn, by a process that was killed while writing it
                    self.problems[path] = f"{path.name} beside the journal is damaged: a line of it is left out"
                continue
            try:
                # An attribute that is no finite number stays one that can be written: as the text it was.
                document = json.loads(text, parse_constant=str)
                check_json(document)
            except (ValueError, RecursionError):
                continue  # a torn line of a process that was killed while writing it
            if isinstance(document, dict):
                documents.append({**document, "process": process})
        return documents

    def read_frames(self, *, final: bool = False) -> list[tuple[Event | Garbage, bytes]]:
        """New frames, each with its bytes (none for garbage). ``final``: nothing comes behind them."""
        frames: list[tuple[Event | Garbage, bytes]] = []
        paths = [path for path, _, _ in self._own("frames-*.bin")]
        for path, following in zip_longest(paths, paths[1:]):
            with self._noting(path):
                data = self._new_bytes(path)
                reader = self._readers.setdefault(path, FrameReader())
                frames += reader.feed(data)
                if final:
                    frames += reader.close()
                is_complete = (
                    following is not None and following.name.rpartition("-")[0] == path.name.rpartition("-")[0]
                )
                if self._consume and is_complete:
                    self._spent.append(path)
        return frames

    def _new_bytes(self, path: Path) -> bytes:
        with _open_small(path) as file:
            file.seek(self._done.get(path, 0))
            data = file.read()
        self._done[path] = self._done.get(path, 0) + len(data)
        return data


def _unsealed(token: int, records: bytes) -> tuple[bytes, bool]:
    """Records of a segment with their checks taken off, up to the first one that is damaged, and whether one is."""
    if not is_sealing(token):
        return records, False
    import numpy as np

    table = np.frombuffer(records, [("code", "<i4"), ("thread", "<u4"), ("t_ns", "<i8")]).copy()
    thread = table["thread"] & np.uint32((1 << THREAD_BITS) - 1)
    check = (table["t_ns"] + 3 * table["code"].astype(np.int64) + 7 * thread.astype(np.int64)) % 251 + 1
    damaged = np.flatnonzero(table["thread"] >> np.uint32(THREAD_BITS) != check)
    table["thread"] = thread
    return table[: damaged[0] if len(damaged) else len(table)].tobytes(), bool(len(damaged))


def _open_small(path: Path) -> BinaryIO:
    file = open_regular(path, os.O_NOFOLLOW)  # it is deleted when it was read
    if os.fstat(file.fileno()).st_size > _MOST_BYTES:
        file.close()
        raise OSError(errno.EFBIG, "it is larger than what a training writes", str(path))
    return file
