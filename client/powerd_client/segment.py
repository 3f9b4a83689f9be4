"""One memory-mapped file of marks."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

from powerd_core.marks import RECORD


class Segment:
    """One mapped file. ``take()`` gives each caller the next free index, atomically among threads."""

    __slots__ = ("first", "memory", "take")

    def __init__(self, path: Path, records: int, first: int = 0) -> None:
        self.first = first
        partial = path.with_suffix(".new")
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Blocks are reserved now: a full disk is an error here, not a SIGBUS in the middle of a training step.
            _reserve(descriptor, records * RECORD.size)
            self.memory = mmap.mmap(
                descriptor, records * RECORD.size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            )
            partial.rename(path)
        except BaseException:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self.take: Callable[[], int] = count().__next__


def _reserve(descriptor: int, size: int) -> None:
    """Give the file its blocks. Raises `OSError`."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        # A file system (or C library) that cannot: zeros that are really written have blocks too.
        if os.pwrite(descriptor, bytes(size), 0) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        os.fsync(descriptor)
