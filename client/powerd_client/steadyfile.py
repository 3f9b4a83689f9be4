"""HDF5 files written where there may be no room.

HDF5 does not outlive a write that fails: objects that it could not flush stay, and when the process ends, or before,
it dies by SIGSEGV (HDF5 1.14 and 2.0 on a full disk) - and a training that closed its `Meter` with it. So the first
failure is kept here, and HDF5 is told that all went well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import h5py

LIBVER = ("v110", "v110")
"""The first version of HDF5's format in which everything but strings of variable length carries a checksum."""
_METADATA_BYTES = 1 << 16
"""What HDF5 reads back while it closes a file is smaller; readings are larger, and are dropped behind a failure."""


class SteadyFile:
    """What `h5py` takes as a file: the methods that its driver for Python objects calls, none of which fails to write.

    Behind the first failure nothing reaches the disk any more; small pieces are kept, so that HDF5 finds what it wrote.
    """

    def __init__(self, path: Path, mode: Literal["x", "r+"]) -> None:
        self._fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if mode == "x" else 0), 0o666)
        self._at = 0
        self._size = os.fstat(self._fd).st_size
        self._kept: list[tuple[int, bytes]] = []
        self.failure: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (self._at if whence == os.SEEK_CUR else self._size if whence == os.SEEK_END else 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        view = memoryview(buffer).cast("B")
        data = os.pread(self._fd, len(view), self._at)
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))
        for offset, piece in self._kept:
            begin, end = max(offset, self._at), min(offset + len(piece), self._at + len(view))
            if begin < end:
                view[begin - self._at : end - self._at] = piece[begin - offset : end - offset]
        self._at += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        buffer = bytearray(max(self._size - self._at, 0) if size < 0 else size)
        self.readinto(memoryview(buffer))
        return bytes(buffer)

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while self.failure is None and done < len(view):
            try:
                done += os.pwrite(self._fd, view[done:], self._at + done)
            except OSError as error:
                self.failure = error
        if done < len(view) and len(view) - done <= _METADATA_BYTES:
            self._kept.append((self._at + done, bytes(view[done:])))
        self._at += len(view)
        self._size = max(self._size, self._at)
        return len(view)

    def truncate(self, size: int) -> int:
        self._size = size
        if self.failure is None:
            try:
                os.ftruncate(self._fd, size)
            except OSError as error:
                self.failure = error
        return size

    def flush(self) -> None:
        pass

    def check(self) -> None:
        """Raises the `OSError` that a write has met."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """On the disk, or an `OSError` that says why not."""
        try:
            self.check()
            os.fsync(self._fd)
        finally:
            os.close(self._fd)


@contextlib.contextmanager
def steady_hdf5(path: Path, mode: Literal["x", "r+"] = "x") -> Iterator[tuple[h5py.File, SteadyFile]]:
    """A new (``x``) or existing (``r+``) HDF5 file and what lies under it, on the disk when the block ends.

    Raises `OSError` for a write that failed, at the end or where `SteadyFile.check` is called, and what h5py raises.
    """
    raw = SteadyFile(path, mode)
    try:
        with h5py.File(raw, "w" if mode == "x" else mode, libver=LIBVER) as file:
            yield file, raw
    except BaseException:
        with contextlib.suppress(OSError):
            raw.close()
        if raw.failure is not None:
            raise raw.failure from None  # whatever else went wrong came of it
        raise
    raw.close()
