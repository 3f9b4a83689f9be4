"""The directory of the spool: everything that the spool asks of a file system, and nothing else does."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from powerd_core.errors import ConfigError


class Disk(Protocol):
    """Files of one directory by name. Every method may stall for seconds, or raise OSError."""

    def names(self) -> dict[str, int]:
        """The files there, each with its size in bytes."""
        ...

    def create(self, name: str) -> int:
        """A new file to append to, by a number that `write`, `sync` and `close` take; its name survives a power cut."""
        ...

    def write(self, file: int, pieces: Sequence[bytes]) -> None:
        """Append all of it. After an error any part of it may be there."""
        ...

    def sync(self, file: int) -> None:
        """Come back when what was written survives a power cut."""
        ...

    def close(self, file: int) -> None: ...

    def remove(self, name: str) -> None: ...

    def read(self, name: str, offset: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer only at the end of the file."""
        ...

    def release(self) -> None:
        """Nothing more will be asked."""
        ...


class SpoolDirectory:
    """A real directory, made if need be, and locked against a second powerd while this object is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(exist_ok=True)
            self._lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if path.parent.is_dir():  # /proc and its like take no directories
                raise ConfigError(f"spool {path}: no directory can be made in {path.parent}") from None
            raise ConfigError(f"spool {path}: there is no directory {path.parent}") from None
        except FileExistsError:
            raise ConfigError(f"spool {path}: that is a file: name a directory") from None
        except OSError as error:
            raise ConfigError(f"spool {path}: {error.strerror}: name a directory that powerd may write to") from error
        try:
            # The lock goes with the process, however it ends.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise ConfigError(f"spool {path}: another powerd uses it: name a directory of its own for each") from error

    def names(self) -> dict[str, int]:
        found = {}
        for entry in os.scandir(self.path):
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def create(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        file = os.open(self.path / name, flags, 0o640)
        try:
            os.fsync(self._lock)
        except OSError:
            os.close(file)
            raise
        return file

    def write(self, file: int, pieces: Sequence[bytes]) -> None:
        rest = memoryview(b"".join(pieces))
        while rest:
            rest = rest[os.write(file, rest) :]

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def remove(self, name: str) -> None:
        os.unlink(self.path / name)

    def read(self, name: str, offset: int, size: int) -> bytes:
        file = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            pieces = []
            while size > 0 and (piece := os.pread(file, size, offset)):
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
        finally:
            os.close(file)
        return b"".join(pieces)

    def release(self) -> None:
        """Let another powerd have it."""
        os.close(self._lock)
