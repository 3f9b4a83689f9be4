"""A disk that fails when a test says so, and threads whose work a test does at its own time."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable


class FakeDisk:
    """Files in memory. What was not synced may be lost in a power cut; what was, may not."""

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.synced: dict[str, int] = {}
        self.error: int | None = None
        """Every change of the disk fails with it."""
        self.sync_error: int | None = None
        self.read_error: int | None = None
        self.room_bytes: int | None = None
        """Left until it is full. A write that does not fit is done in part, as a real one is."""
        self._open: dict[int, str] = {}

    def names(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def create(self, name: str) -> int:
        self._check()
        assert name not in self.files
        self.files[name], self.synced[name] = bytearray(), 0
        file = len(self.files) + 1000
        self._open[file] = name
        return file

    def write(self, file: int, data: bytes) -> None:
        self._check()
        fits = len(data) if self.room_bytes is None else min(self.room_bytes, len(data))
        self.files[self._open[file]] += data[:fits]
        if self.room_bytes is not None:
            self.room_bytes -= fits
        if fits < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, file: int) -> None:
        self._check()
        if self.sync_error is not None:
            # As Linux does: what could not be written is dropped, and the next sync knows nothing of it.
            del self.files[self._open[file]][self.synced[self._open[file]] :]
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        self.synced[self._open[file]] = len(self.files[self._open[file]])

    def close(self, file: int) -> None:
        del self._open[file]

    def remove(self, name: str) -> None:
        self._check()
        if name not in self.files:
            raise FileNotFoundError(name)
        if self.room_bytes is not None:
            self.room_bytes += len(self.files[name])
        del self.files[name]

    def read(self, name: str, size: int) -> bytes:
        if self.read_error is not None:
            raise OSError(self.read_error, os.strerror(self.read_error))
        if name not in self.files:
            raise FileNotFoundError(name)
        return bytes(self.files[name][:size])

    def release(self) -> None:
        """Nobody else wants it."""

    def power_cut(self) -> None:
        """What was not synced is gone."""
        for name, data in self.files.items():
            del data[self.synced[name] :]
        self._open.clear()

    def _check(self) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))


class Later:
    """A worker that does its jobs when a test says so: until then, it is a disk that stalls."""

    def __init__(self, name: str = "") -> None:
        self.jobs: list[Callable[[], None]] = []

    @property
    def pending(self) -> int:
        return len(self.jobs)

    def put(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def work(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def close(self, patience_s: float) -> None:
        self.work()
