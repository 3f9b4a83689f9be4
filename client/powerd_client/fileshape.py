"""What may be inside a file that calls itself a run, checked before anything of it is read, and values out of it.

A run file is data from somewhere. It must not make us read other files (links, external storage, virtual datasets),
load code (filters beyond the three that are used), or fill the memory (shapes that claim more than is stored, chunks of
gigabytes). What is left are plain tables of numbers and texts; `powerd_client.filetables` says which.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from math import ceil, prod
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

TIMES = ("t_board_ns", "t_ns", "flags")
"""Columns that every line has beside its raw codes."""
FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
FARTHEST_NS = 1 << 61
"""No clock reads that far from 0 (73 years)."""
_MAX_CHUNK_BYTES = 16 << 20
_MAX_DEPTH = 3
_MAX_WIDTH = 16
_MAX_ELEMENTS = 4096
"""Elements that an attribute may have: `feeds` has one for each line of a device, `clocks` one for each epoch."""
_MAX_TEXT_BYTES = 1 << 30
_TEXT_ROWS = 256


def foreign(file: h5py.File) -> Iterator[str]:
    """Everything in it that must not be read, wherever it is."""
    yield from _walk(file, "", 1, set())


def _walk(group: h5py.Group, path: str, depth: int, seen: set[tuple[int, int]]) -> Iterator[str]:
    yield from _attributes(group, path or "/")
    for name in group:
        where = f"{path}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield f"{where} is a link to somewhere else: a run file holds its own data"
            continue
        item = group[name]
        place = h5py.h5o.get_info(item.id)
        if (place.fileno, place.addr) in seen:
            yield f"{where} is there under two names"
            continue
        seen.add((place.fileno, place.addr))
        if isinstance(item, h5py.Dataset):
            yield from _dataset(item, where)
        elif not isinstance(item, h5py.Group):
            yield f"{where} is neither a group nor a dataset"
        elif depth >= _MAX_DEPTH:
            yield f"{where} is nested too deep"
        else:
            yield from _walk(item, where, depth + 1, seen)


def _attributes(item: h5py.Group | h5py.Dataset, path: str) -> Iterator[str]:
    for name in item.attrs:
        attribute = h5py.h5a.open(item.id, name.encode("utf-8", "surrogateescape"))
        if prod(attribute.shape) > _MAX_ELEMENTS or not _is_plain(attribute.get_type()):
            yield f"attribute {name!r} of {path} is neither a number nor a text"


def _is_plain(kind: h5py.h5t.TypeID) -> bool:
    """Numbers of up to eight bytes, and texts."""
    if kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        return bool(kind.get_size() <= 8)
    return bool(kind.get_class() == h5py.h5t.STRING)


def dataset_problems(item: h5py.Dataset, path: str) -> Iterator[str]:
    """What forbids to read a dataset at all, however little of it is left."""
    made = item.id.get_create_plist()
    if made.get_layout() == h5py.h5d.VIRTUAL or made.get_external_count():
        yield f"{path} is kept in another file: a run file holds its own data"
    elif not _is_plain(item.id.get_type()):
        yield f"{path} holds neither numbers nor texts"
    elif item.shape is None or len(item.shape) not in (1, 2) or prod(item.shape[1:]) > _MAX_WIDTH:
        yield f"{path} is no table"
    elif any(made.get_filter(i)[0] not in FILTERS for i in range(made.get_nfilters())):
        yield f"{path} is compressed in an unknown way"
    elif item.chunks is not None and prod(item.chunks) * item.id.get_type().get_size() > _MAX_CHUNK_BYTES:
        yield f"{path} is stored in chunks of more than {_MAX_CHUNK_BYTES >> 20} MiB"


def _dataset(item: h5py.Dataset, path: str) -> Iterator[str]:
    forbidden = list(dataset_problems(item, path))
    yield from forbidden
    if not forbidden:
        yield from _storage(item, path)
        yield from _attributes(item, path)


def _storage(item: h5py.Dataset, path: str) -> Iterator[str]:
    """Whether all rows are stored, and can be held in memory."""
    size = prod(item.shape) * item.id.get_type().get_size()
    if size > memory_bytes():
        yield f"{path} claims {size / 1e9:.3g} GB, more than the memory of this machine"
        return
    if item.chunks is None:
        if item.id.get_storage_size() < size:
            yield f"{path} claims {size} bytes, but fewer are stored"
        return
    expected = prod(ceil(n / c) for n, c in zip(item.shape, item.chunks, strict=True))
    if expected > item.id.get_storage_size() or item.id.get_num_chunks() < expected:
        yield f"{path} claims {item.shape[0]} rows, but not all of them are stored"


def memory_bytes() -> int:
    """The memory of this machine: no table that is larger can be worked with here."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_texts(dataset: h5py.Dataset) -> list[str]:
    """A table of texts. Raises ValueError when they are no UTF-8, or more than anyone ever wrote."""
    found: list[str] = []
    size = 0
    for begin in range(0, len(dataset), _TEXT_ROWS):
        rows = dataset[begin : begin + _TEXT_ROWS]
        for row in rows:
            text = row.decode() if isinstance(row, bytes) else str(row)
            size += len(text)
            found.append(text)
        # A few bytes of the file can be the text of a million rows.
        if size > _MAX_TEXT_BYTES:
            raise ValueError(f"{dataset.name} holds more than {_MAX_TEXT_BYTES >> 30} GiB of text")
    return found


def read_objects(dataset: h5py.Dataset) -> list[dict[str, Any]]:
    """A table of JSON objects. Raises ValueError for anything else."""
    found = [read_json(text) for text in read_texts(dataset)]
    if not all(isinstance(row, dict) for row in found):
        raise ValueError(f"{dataset.name} holds a row that is no JSON object")
    return found


def read_json(text: str | bytes) -> Any:
    """A JSON document. Raises ValueError for what is none, whatever it is nested in."""
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError("a JSON document is nested too deep") from None


def _whole_number(text: str) -> int | float:
    return int(text) if len(text) < 300 else float(text)


def check_times(t_ns: NDArray[np.int64], what: str) -> None:
    """Raises ValueError for times that no clock shows, whose differences would not fit into 64 bits."""
    if len(t_ns) and (int(t_ns.min()) < -FARTHEST_NS or int(t_ns.max()) > FARTHEST_NS):
        raise ValueError(f"{what} is at a time that cannot be")


def numbers_of(values: Any) -> list[int]:
    """An attribute of whole numbers, one or several."""
    return [int(v) for v in np.atleast_1d(values)]


def texts_of(values: Any) -> list[str]:
    """An attribute of texts, one or several."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(np.asarray(values, object))]
