"""The journal: the directory in which a run lives until it is a run file.

    RUN.h5.journal/
        journal.bin          wire frames: the run's own message, descriptions, blocks, gaps, clock exchanges, marks
        lock                 locked by the recorder as long as any of its processes lives
        job.json             which launch of several ranks it belongs to (`powerd_client.together`)
        reserve              space that the last words of a run need when the disk is full
        replaces             which run file the run is to take the place of, where one is there
        marks-<token>.names  the phase kinds of one process, a JSON object a line
        marks-<token>-N.bin  its mark segments that the recorder has not yet copied
        *.log                what the recorder and a local powerd said

Whoever holds the lock owns the directory. The kernel drops it when a process dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from powerd_client.replaceable import check_replaceable
from powerd_core.errors import RunFileError

LONGEST_NAME = 255 - len(".1234567.partial")
"""Of a run file, in bytes: it has such a name while it is written, and file systems take 255."""

RUN_ENVIRONMENT = "POWERD_RUN"
"""Environment variable that tells a training process into which journal directory its marks go."""

KEYS_ENVIRONMENT = "POWERD_KEYS"
"""Environment variable that names the directory of keys."""


_SUFFIX = ".journal"
_REPLACES = "replaces"


def journal_path(run: Path) -> Path:
    """The journal directory that belongs to a run file."""
    return run.with_name(run.name + _SUFFIX)


def run_of(journal: Path) -> Path:
    """The run file that a journal directory belongs to."""
    return journal.with_name(journal.name.removesuffix(_SUFFIX))


def joined_journal() -> Path | None:
    """The journal of the recording that was begun around this process, if one was."""
    joined = os.environ.get(RUN_ENVIRONMENT)
    return Path(joined) if joined else None


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
        if run.exists():
            _note_replaced(journal, run)
    except RunFileError:
        raise
    except FileNotFoundError as error:
        raise RunFileError(f"cannot record into {run}: make its directory {run.parent} first") from error
    except OSError as error:
        raise RunFileError(f"cannot record into {run}: {error.strerror}: {error.filename}") from error
    return journal


def _make_way(run: Path, journal: Path, *, overwrite: bool) -> None:
    check_replaceable(run)
    if run.exists() and not overwrite:
        raise RunFileError(f"{run} exists: choose another name, or overwrite it with overwrite=True (--overwrite)")
    if journal.exists():
        if is_locked(journal):
            raise RunFileError(f"{run} is being recorded by another process: choose another name")
        if not overwrite and not has_begun(journal):
            raise RunFileError(
                f"{journal} holds nothing of a run: its recording begins just now, or ended before it began; then "
                "delete it, or overwrite it with overwrite=True (--overwrite)"
            )
        if not overwrite:
            raise RunFileError(
                f"{journal} holds an unfinished run: finish it with `joules info {run}`, or overwrite it with "
                "overwrite=True (--overwrite)"
            )
        shutil.rmtree(journal)


def _note_replaced(journal: Path, run: Path) -> None:
    try:
        (journal / _REPLACES).write_text(_identity(run))
    except OSError:
        shutil.rmtree(journal, ignore_errors=True)
        raise


def is_to_replace(run: Path) -> bool:
    """Whether the journal beside a run file is that of a later recording, of which nothing has become yet: one that was
    to overwrite this file, and whose processes were all killed.
    """
    journal = journal_path(run)
    try:
        is_the_one = (journal / _REPLACES).read_text() == _identity(run)
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
