"""Rows out of a damaged HDF5 file: what can still be read of a dataset, and which rows cannot.

Nothing in here trusts a claim of the file: only chunks that are stored are looked at, each by itself.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.fileshape import dataset_problems, read_json
from powerd_client.heaps import end_stated, endless_heaps
from powerd_core.errors import RunFileError

BROKEN = (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, MemoryError)
"""What h5py makes of damage, wherever it meets it."""
_CONTIGUOUS_ROWS = 65536
_FARTHEST_EOF = 1 << 44
_MOST_CLAIMED = 1_000_000

Bools = NDArray[np.bool_]


class Mended(io.RawIOBase):
    """A damaged file as HDF5 can bear it: as long as it once was, zeros for what is gone, and ``patches`` by place."""

    def __init__(self, path: Path, size: int, patches: Mapping[int, bytes]) -> None:
        self._file = path.open("rb", buffering=0)
        self._size = size
        self._patches = patches
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(0, self._size - self._at))
        data = os.pread(self._file.fileno(), wanted, self._at)
        view[: len(data)] = data
        view[len(data) : wanted] = bytes(wanted - len(data))
        for place, patch in self._patches.items():
            begin, end = max(place, self._at), min(place + len(patch), self._at + wanted)
            if begin < end:
                view[begin - self._at : end - self._at] = patch[begin - place : end - place]
        self._at += wanted
        return wanted

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def open_damaged(path: Path) -> Iterator[tuple[h5py.File, int]]:
    """The HDF5 file at ``path`` and how many bytes it is short of. Raises `RunFileError` when nothing finds its way."""
    size, stated = path.stat().st_size, end_stated(path)
    if stated is None or not size <= stated < _FARTHEST_EOF:
        stated = size
    with ExitStack() as opened:
        try:
            patches = endless_heaps(path, stated)
            mended = stated > size or bool(patches)
            raw = opened.enter_context(Mended(path, stated, patches)) if mended else path
            file = opened.enter_context(h5py.File(raw, "r"))
        except BROKEN as error:
            text = " ".join(str(error).split())
            raise RunFileError(f"{path} cannot be recovered: nothing in it can be found ({text})") from error
        yield file, stated - size


def members(group: h5py.Group | None, lost: list[str]) -> dict[str, h5py.Group | h5py.Dataset]:
    """What can be opened inside a group; what cannot, or leads out of the file, is added to ``lost``."""
    found: dict[str, h5py.Group | h5py.Dataset] = {}
    if group is None:
        return found
    try:
        names = list(group)
    except BROKEN as error:
        lost.append(f"what {group.name} holds ({error})")
        return found
    for name in names:
        try:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                lost.append(f"{group.name}/{name}, which is a link to somewhere else")
                continue
            item = group[name]
            if isinstance(item, h5py.Dataset) and (problem := next(dataset_problems(item, item.name), None)):
                lost.append(problem)
                continue
            if isinstance(item, h5py.Group | h5py.Dataset):
                found[name] = item
        except BROKEN as error:
            lost.append(f"{group.name.rstrip('/')}/{name} ({error})")
    return found


Copies = dict[str, dict[str, Any]]
"""The second copy of the attributes, by the path of their group."""


def copies(root: dict[str, Any]) -> Copies:
    """What is left of the second copy of the attributes."""
    rows, _ = objects(root.get("attributes"))
    return {
        row["path"]: row["values"] for row in rows.values() if isinstance(row.get("values"), dict) and "path" in row
    }


def attributes(item: h5py.Group, names: tuple[str, ...], copied: Copies) -> dict[str, Any]:
    """The named attributes, from their copy, which has a checksum, or as they can be read."""
    known = copied.get(item.name, {})
    found = {name: known[name] for name in names if name in known}
    for name in set(names).difference(found):
        with suppress(*BROKEN):
            if name in item.attrs:
                found[name] = item.attrs[name]
    return found


def stored_stretches(dataset: h5py.Dataset) -> Iterator[tuple[int, int]]:
    """First row and row behind the last of every chunk that is stored, in order; without chunks, of all there is."""
    rows = dataset.shape[0]
    if dataset.chunks is None:
        each = max(1, dataset.dtype.itemsize * int(np.prod(dataset.shape[1:])))
        rows = min(rows, dataset.id.get_storage_size() // each)
        starts, step = list(range(0, rows, _CONTIGUOUS_ROWS)), _CONTIGUOUS_ROWS
    else:
        step = dataset.chunks[0]
        count = dataset.id.get_num_chunks()
        starts = sorted({dataset.id.get_chunk_info(i).chunk_offset[0] for i in range(count)})
    for begin in starts:
        if begin < rows:
            yield begin, min(begin + step, rows)


class Column:
    """One dataset of a damaged file, to be read in pieces. ``rows`` is up to where anything is stored."""

    def __init__(self, dataset: h5py.Dataset) -> None:
        self._dataset = dataset
        self.stretches: list[tuple[int, int]] = []
        with suppress(*BROKEN):
            self.stretches = list(stored_stretches(dataset))
        self.rows = self.stretches[-1][1] if self.stretches else 0
        self.claimed = int(dataset.shape[0])

    def read(self, begin: int, end: int) -> NDArray[Any] | None:
        """These rows, None unless all of them are there and good."""
        covered = sum(max(0, min(e, end) - max(b, begin)) for b, e in self.stretches)
        if covered < end - begin:
            return None
        try:
            values: NDArray[Any] = self._dataset[begin:end]
        except BROKEN:
            return None
        return values

    def table(self) -> tuple[NDArray[Any], Bools]:
        """All rows, and which of them are good; for small tables."""
        stored = sum(e - b for b, e in self.stretches)
        rows = self.rows if self.rows <= 2 * stored else 0  # a chunk in the middle of nowhere says nothing
        dtype = self._dataset.dtype
        values = np.zeros((rows, *self._dataset.shape[1:]), dtype)
        good = np.zeros(rows, bool)
        for begin, end in self.stretches:
            if end <= rows and (read := self.read(begin, end)) is not None:
                values[begin:end], good[begin:end] = read, True
        return values, good


def table(group: dict[str, Any], names: tuple[str, ...]) -> tuple[dict[str, NDArray[Any]], Bools, int]:
    """Columns of equal length, the rows that are good in all of them, and how many rows there were once."""
    columns = {name: Column(group[name]) for name in names if isinstance(group.get(name), h5py.Dataset)}
    claimed = max((c.claimed for c in columns.values()), default=0)
    if len(columns) < len(names):
        return {}, np.zeros(0, bool), claimed
    read = {name: column.table() for name, column in columns.items()}
    rows = min(len(good) for _, good in read.values())
    good = np.logical_and.reduce([g[:rows] for _, g in read.values()])
    return {name: values[:rows] for name, (values, _) in read.items()}, good, claimed


def objects(item: Any) -> tuple[dict[int, dict[str, Any]], int]:
    """A table of JSON objects by row, those that are left, and how many rows there were."""
    if not isinstance(item, h5py.Dataset):
        return {}, 0
    column = Column(item)
    values, good = column.table()
    found = {}
    for row in np.flatnonzero(good).tolist():
        with suppress(ValueError):
            document = read_json(text_of(values[row]))
            if isinstance(document, dict):
                found[row] = document
    # A claim that is out of all proportion is not worth a row for each.
    return found, column.claimed if column.claimed <= _MOST_CLAIMED else column.rows


def text_of(value: Any) -> str:
    """A text as h5py gives it. Raises ValueError for bytes that are none."""
    return value.decode() if isinstance(value, bytes) else str(value)
