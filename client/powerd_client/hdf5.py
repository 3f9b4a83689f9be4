"""HDF5 files as powerd writes them: whole or not at all, and with a checksum over every byte.

**No room.** HDF5 does not outlive a write that fails: objects that it could not flush stay, and when the process ends,
or before, it dies by SIGSEGV (HDF5 1.14 and 2.0 on a full disk) - and a training that closed its `Meter` with it. So
`SteadyFile` keeps the first failure and tells HDF5 that all went well. A file appears under its name only when it is
whole and on the disk (`whole_file`).

**Checksums.** HDF5's Fletcher-32 covers the bytes of a chunk. A string of variable length lies elsewhere and so do
attributes: strings are therefore stored in fixed width, and the attributes of the whole file have a digest (`digest`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from powerd_core.errors import RunFileError
from powerd_core.serde import to_document

FORMAT, FORMAT_VERSION = "powerd-run", 1
"""What the root of a run file says of itself."""
BOUND_COLUMNS = ("begin_bound_ns", "end_bound_ns")
"""How far the edges of phases can be from their times; files of earlier releases lack them."""
Progress = Callable[[float], None]
"""Hears the share that is done."""
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


@contextlib.contextmanager
def whole_file(out: Path, *, overwrite: bool) -> Iterator[tuple[h5py.File, SteadyFile]]:
    """An HDF5 file under another name, which becomes ``out`` when it is written and on the disk, else nothing.

    Raises `RunFileError` for a file in the way, `OSError` for what cannot be written, and what h5py raises.
    """
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        with steady_hdf5(partial) as opened:
            yield opened
        _move(partial, out, overwrite)
    finally:
        partial.unlink(missing_ok=True)


def _move(partial: Path, out: Path, overwrite: bool) -> None:
    if overwrite:
        partial.replace(out)
        return
    try:
        os.link(partial, out)  # unlike a rename, refuses to replace a file that appeared meanwhile
    except FileExistsError:
        raise RunFileError(
            f"{out} appeared while it was being recorded: move it away and run `joules info {out}`"
        ) from None
    except OSError:
        if out.exists():
            raise
        partial.replace(out)


def remove_partials(out: Path) -> None:
    """Delete what a killed conversion of ``out`` left. The caller owns the journal's lock."""
    for leftover in out.parent.glob(f"{escape(out.name)}.*.partial"):
        with contextlib.suppress(OSError):
            leftover.unlink()


DIGEST = "metadata_sha256"
"""Attribute of the root: the digest of everything in the file that no chunk's checksum covers."""
LINE_ROWS = 65536
TABLE_ROWS = 8192
"""Rows of a chunk in every table: the columns of one table are damaged together or not at all."""
_STRING_CHUNK_BYTES = 1 << 20
_WIDE_BYTES = 64 << 20


def write_numbers(group: h5py.Group, name: str, values: Any, units: str) -> None:
    """A column, or columns side by side, that does not grow any more."""
    make_dataset(group, name, np.asarray(values), units, TABLE_ROWS)


def make_dataset(group: h5py.Group, name: str, data: Any, units: str, rows: int = LINE_ROWS) -> h5py.Dataset:
    """A dataset of numbers that may grow along its first axis, in chunks of ``rows``."""
    dataset = group.create_dataset(
        name, data=data, maxshape=(None, *data.shape[1:]), chunks=(rows, *data.shape[1:]),
        compression="gzip", compression_opts=1, shuffle=True, fletcher32=True,
    )  # fmt: skip
    dataset.attrs["units"] = units
    return dataset


def write_documents(group: h5py.Group, name: str, documents: Sequence[Any]) -> None:
    """A table of JSON texts."""
    write_strings(group, name, [json.dumps(to_document(d)) for d in documents])


def write_strings(group: h5py.Group, name: str, texts: Sequence[str]) -> None:
    """A table of texts, in fixed width unless one of them is out of all proportion to the others."""
    encoded = [clean(text).encode() for text in texts]
    width = max([1, *map(len, encoded)])
    fixed = width * len(encoded) <= max(_WIDE_BYTES, 4 * sum(map(len, encoded)))
    dtype = h5py.string_dtype("utf-8", width if fixed else None)
    rows = min(TABLE_ROWS, max(1, _STRING_CHUNK_BYTES // width)) if fixed else TABLE_ROWS
    group.create_dataset(
        name, data=np.array(encoded, dtype), dtype=dtype, maxshape=(None,), chunks=(rows,), compression="gzip",
        compression_opts=1, fletcher32=fixed,
    )  # fmt: skip


def clean(text: str) -> str:
    """``text`` without what HDF5 cannot hold: zeros, and halves of characters."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def own_name(name: str) -> str:
    """The name of a group for a line, device or board, whatever it is called: a slash would make a group inside one."""
    plain = clean(name).replace("/", "_")
    return plain if plain.strip(".") else f"_{plain}"


def seal(file: h5py.File) -> None:
    """The last thing that is written: the digest of what no chunk's checksum covers."""
    file.attrs[DIGEST] = digest(file)


def digest(file: h5py.File) -> str:
    """The digest of all attributes, of names, types and shapes, and of strings that lie outside their chunks."""
    sha256 = hashlib.sha256()
    for text in _described(file, "/"):
        sha256.update(text.encode("utf-8", "backslashreplace") + b"\n")
    return sha256.hexdigest()


def _described(item: h5py.Group | h5py.Dataset, path: str) -> Iterator[str]:
    for name in sorted(item.attrs):
        if (path, name) != ("/", DIGEST):
            yield f"{path}@{name}={_plain(item.attrs[name])!r}"
    if isinstance(item, h5py.Dataset):
        yield f"{path}:{item.dtype.str}{item.shape}"
        if item.dtype.kind == "O":
            yield from (repr(_plain(text)) for text in item[:])
        return
    for name in sorted(item):
        yield from _described(item[name], f"{path}{name}/")


def _plain(value: Any) -> Any:
    """``value`` as Python's own types, which do not depend on who wrote or reads it."""
    if isinstance(value, np.ndarray):
        return [_plain(v) for v in value.tolist()]
    if isinstance(value, np.generic):
        value = value.item()
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
