"""Marks into memory-mapped segment files: what the training process does at a phase's edge, and nothing else.

A record that is in the mapping survives SIGKILL without flush or thread. The recorder tails the segments, copies them
into its journal and deletes those that are full.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from threading import get_ident
from typing import Final

from powerd_client.hostclock import now_ns
from powerd_core.marks import RECORD, SEGMENT_RECORDS

_SIZE: Final = RECORD.size
_pack_into = RECORD.pack_into


class _Segment:
    """One mapped file. ``take()`` gives each caller the next free index, atomically among threads."""

    __slots__ = ("memory", "take")

    def __init__(self, path: Path, records: int) -> None:
        partial = path.with_suffix(".new")
        descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            # Blocks are reserved now: a full disk is an error here, not a SIGBUS in the middle of a training step.
            _reserve(descriptor, records * _SIZE)
            self.memory = mmap.mmap(
                descriptor, records * _SIZE, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
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


class MarkWriter:
    """Writes one process's marks under ``directory``. Never raises once it is made.

    What goes wrong is kept in ``failure`` (first cause only); marks are dropped from then on and counted in
    ``dropped``. They do not begin again when the disk has room: a phase whose end was dropped would swallow those
    behind it.
    """

    def __init__(self, directory: Path, *, segment_records: int = SEGMENT_RECORDS) -> None:
        self.token = secrets.randbits(63)
        self.failure: str | None = None
        self.told = False
        """Whether the user has been told of the failure."""
        self.dropped = 0
        self._records = segment_records
        self._base = directory / f"marks-{self.token:016x}"
        self._lock = threading.Lock()
        self._number = 0
        self._kinds: dict[tuple[str, str], int] = {}
        self._names = os.open(f"{self._base}.names", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._describe({"process": self.token, "pid": os.getpid(), "command": sys.argv})
        self._segment: _Segment | None = _Segment(self._path(0), segment_records)
        _watch_forks(self)

    def _path(self, number: int) -> Path:
        return self._base.with_name(f"{self._base.name}-{number:06d}.bin")

    def _describe(self, document: Mapping[str, object]) -> None:
        os.write(self._names, json.dumps(document).encode() + b"\n")

    def kind(self, name: str, attributes: Mapping[str, object], timing: str) -> int:
        """The number of a phase kind; it is written down before any mark can use it.

        Raises `TypeError` for attributes that JSON does not know.
        """
        key = (name, json.dumps([attributes, timing], sort_keys=True))
        with self._lock:
            number = self._kinds.get(key)
            if number is None:
                number = len(self._kinds)
                try:
                    self._describe({"kind": number, "name": name, "attributes": dict(attributes), "timing": timing})
                except OSError as error:
                    self._fail(error)
                self._kinds[key] = number
            return number

    def mark(self, code: int) -> None:
        """Write one mark: ``code`` is a phase kind's number to begin it, its bitwise inverse to end it."""
        segment = self._segment
        if segment is None:
            self.dropped += 1
            return
        index = segment.take()
        if index < self._records:
            _pack_into(segment.memory, index * _SIZE, code, get_ident() & 0xFFFFFFFF, now_ns())
        else:
            self._roll(segment, code, now_ns())

    def mark_at(self, code: int, t_host_ns: int) -> None:
        """As `mark`, with a time that was read before."""
        segment = self._segment
        if segment is None:
            self.dropped += 1
            return
        index = segment.take()
        if index < self._records:
            _pack_into(segment.memory, index * _SIZE, code, get_ident() & 0xFFFFFFFF, t_host_ns)
        else:
            self._roll(segment, code, t_host_ns)

    def _roll(self, full: _Segment, code: int, t_host_ns: int) -> None:
        with self._lock:
            if self._segment is full:
                try:
                    self._segment = _Segment(self._path(self._number + 1), self._records)
                    self._number += 1
                except OSError as error:
                    self._fail(error)
        self.mark_at(code, t_host_ns)

    def _fail(self, error: OSError) -> None:
        self._segment = None
        if self.failure is None:
            self.failure = f"phases could not be written any more: {error.strerror}"
            with contextlib.suppress(Exception):  # whatever stands in for stderr
                print(f"powerd: {self.failure}; the training goes on, its readings too", file=sys.stderr, flush=True)
                self.told = True

    def disable(self, reason: str) -> None:
        """Drop all marks from now on."""
        self._segment = None
        self.failure = self.failure or reason

    def close(self) -> None:
        """No more marks. The files stay for the recorder."""
        self._segment = None
        with contextlib.suppress(OSError):
            os.close(self._names)


_writers: weakref.WeakSet[MarkWriter] = weakref.WeakSet()


def _watch_forks(writer: MarkWriter) -> None:
    """A forked child (a data loader's worker) shares the mapping and must not write into its parent's marks."""
    if not _writers:
        os.register_at_fork(after_in_child=_disable_all)
    _writers.add(writer)


def _disable_all() -> None:
    for writer in list(_writers):
        writer.disable("this process was forked from the one that is recorded")
    _writers.clear()
