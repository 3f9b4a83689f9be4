"""``journal.bin``: whole frames appended by a recorder, and read again by whoever makes something of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from powerd_core.errors import RunFileError, VersionError, WireError
from powerd_core.wire import HEADER_BYTES, Event, FrameReader, Garbage, decode


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
