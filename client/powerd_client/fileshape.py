"""What may be inside a file that calls itself a run, checked before anything of it is read.

A run file is data from somewhere. It must not make us read other files (links, external storage, virtual datasets),
load code (filters beyond the two that are used), or fill the memory (shapes that claim more than is stored, chunks of
gigabytes). What is left are plain tables of numbers and texts in their places.
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
GROUPS = ("lines", "devices", "phases", "clocks", "gaps", "messages")
"""What a run file has at its root; `processes` and `parts` came later or may be missing."""
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

# The tables by their place: one kind of value ("i" integer, "f" float, "S" text) and columns side by side.
_TABLES = {
    "phases": {
        "begin_ns": ("i", 0),
        "end_ns": ("i", 0),
        "kind": ("i", 0),
        "parent": ("i", 0),
        "process": ("i", 0),
        "cut": ("i", 0),
    },
    "gaps": {
        "begin_ns": ("i", 0),
        "end_ns": ("i", 0),
        "lost": ("i", 0),
        "stream": ("S", 0),
        "lines": ("S", 0),
        "cause": ("S", 0),
    },
    "clock": {"map": ("f", 3), "map_t_board_ns": ("i", 0), "map_piece": ("i", 0)},
    "line": dict.fromkeys(TIMES, ("i", 0)),
}
_LATER = {
    "gaps": {"numbers": ("i", 0), "clock": ("S", 0)},
    "phases": {"begin_bound_ns": ("i", 0), "end_bound_ns": ("i", 0)},
}
"""Columns that files of earlier releases do not have."""
TEXTS = ("messages", "processes", "parts", "attributes")
"""Tables of texts at the root."""


def problems(file: h5py.File) -> Iterator[str]:
    """Everything about the file's inside that is not as it must be, most basic things first."""
    basic = list(_walk(file, "", 1, set()))
    yield from basic
    if basic:
        return
    for name in GROUPS:
        if name not in file:
            yield f"it has no {name!r}"
        elif isinstance(file[name], h5py.Dataset) != (name in TEXTS):
            yield f"{name!r} is not what it should be"
            return
    for name in TEXTS:
        if name in file and (not isinstance(file[name], h5py.Dataset) or not _is(file[name], "S", 0)):
            yield f"{name!r} is no table of texts"
    yield from _tables(file)


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


def _tables(file: h5py.File) -> Iterator[str]:
    for name in ("phases", "gaps"):
        later = {column: kind for column, kind in _LATER[name].items() if column in file[name]}
        yield from _table(file[name], f"/{name}", _TABLES[name] | later)
    if "kinds" not in file["phases"] or not _is(file["phases/kinds"], "S", 0):
        yield "/phases has no table of kinds"
    for name, clock in file["clocks"].items():
        yield from _clock(clock, f"/clocks/{name}")
    for name, line in file["lines"].items():
        path = f"/lines/{name}"
        if not isinstance(line, h5py.Group):
            yield f"{path} is no group"
            continue
        yield from _table(line, path, _TABLES["line"] | dict.fromkeys(line, ("i", 0)))
        if sum(d.size * d.dtype.itemsize for d in line.values() if isinstance(d, h5py.Dataset)) > memory_bytes():
            yield f"{path} claims more readings than the memory of this machine can hold"
    for name, device in file["devices"].items():
        if not isinstance(device, h5py.Group):
            yield f"/devices/{name} is no group"


def _clock(clock: Any, path: str) -> Iterator[str]:
    if not isinstance(clock, h5py.Group):
        yield f"{path} is no group"
        return
    yield from _table(clock, path, _TABLES["clock"])
    besides = {"exchanges": ("i", 4), "piece_rates": ("f", 2), "piece_limits_ns": ("i", 2)}
    for name, (kind, width) in besides.items():
        if (name in clock or name == "exchanges") and not _is(clock.get(name), kind, width):
            yield f"{path}/{name} is missing or of the wrong type"


def _table(group: h5py.Group, path: str, columns: dict[str, tuple[str, int]]) -> Iterator[str]:
    lengths = {}
    for name, (kind, width) in columns.items():
        if name not in group:
            yield f"{path} has no {name!r}"
        elif not _is(group[name], kind, width):
            yield f"{path}/{name} is not of the right type"
        else:
            lengths[name] = len(group[name])
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        yield f"the columns of {path} differ in length: {said}"


def _is(item: Any, kind: str, width: int) -> bool:
    """Whether that is a column of such values, or ``width`` of them side by side."""
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        return False
    kinds = {"i": "iu", "f": "f", "S": "SO"}[kind]
    return item.dtype.kind in kinds and (item.ndim == 1 if not width else item.shape[1:] == (width,))


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
