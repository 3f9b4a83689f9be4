"""Opening a run file: built first when its recorder could not, and checked before anything of it is read.

A run file is data from somewhere. It must not make us read other files (links, external storage, virtual datasets),
load code (filters beyond the three that are used), or fill the memory (shapes that claim more than is stored, chunks of
gigabytes). What is left are plain tables of numbers and texts, those that docs/run-file.md lists (`problems`). Whatever
is wrong is one `RunFileError` of one line.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections.abc import Iterator
from math import ceil, prod
from pathlib import Path
from struct import Struct
from typing import Any

import h5py
import numpy as np

from powerd_client import journal as journals
from powerd_client.hdf5 import FORMAT, FORMAT_VERSION, Progress, remove_partials
from powerd_core.errors import PowerdError, RunFileError

GROUPS = ("lines", "devices", "phases", "clocks", "gaps", "messages")
"""What a run file has at its root; `processes`, `parts` and `attributes` came later."""
TEXTS = ("messages", "processes", "parts", "attributes")
"""Tables of texts at the root."""
TIMES = ("t_board_ns", "t_ns", "flags")
"""Columns that every line has beside its raw codes."""

# Columns by their table: one kind of value ("i" integer, "f" float, "S" text) and how many stand side by side.
_INTEGER, _TEXT = ("i", 0), ("S", 0)
_PHASES = dict.fromkeys(("begin_ns", "end_ns", "kind", "parent", "process", "cut"), _INTEGER)
_PHASES_LATER = dict.fromkeys(("begin_bound_ns", "end_bound_ns"), _INTEGER)
_GAPS = dict.fromkeys(("begin_ns", "end_ns", "lost"), _INTEGER) | dict.fromkeys(("stream", "lines", "cause"), _TEXT)
_GAPS_LATER = {"numbers": _INTEGER, "clock": _TEXT}
_CLOCK = {"map": ("f", 3), "map_t_board_ns": _INTEGER, "map_piece": _INTEGER}

_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_MAX_CHUNK_BYTES = 16 << 20
_MAX_DEPTH = 3
_MAX_WIDTH = 16
_MAX_ELEMENTS = 4096
"""Elements that an attribute may have: `feeds` has one for each line of a device, `clocks` one for each epoch."""
_MAX_TEXT_BYTES = 1 << 30
_TEXT_ROWS = 256
_HEAP = Struct("<4sBxxxQ")
_HEAP_OBJECT = Struct("<HHxxxxQ")


def open_run(path: str | os.PathLike[str], *, progress: Progress = lambda share: None) -> h5py.File:
    """The run file at ``path``, open for reading.

    A run whose recorder died is built from its journal first, also where it was to overwrite ``path``. Raises
    `RunFileError` for a file that is missing, is no run, is cut off or damaged, is of another version, or is still
    being recorded.
    """
    run = Path(path)
    try:
        is_there = run.exists()
        is_journal = journals.is_to_replace(run) if is_there else journals.journal_path(run).is_dir()
    except OSError as error:  # a name that is too long, a directory that may not be entered
        raise RunFileError(f"{run} cannot be read: {error.strerror or error}") from error
    if is_journal:
        rebuild(run, overwrite=is_there, progress=progress)
    if run.is_dir():
        raise RunFileError(f"{run} is a directory: give the name of a run file")
    if not run.exists():
        raise RunFileError(f"there is no run file {run}")
    with reading(run):
        if has_endless_heap(run):
            raise ValueError("a heap of texts in it has no end")
        try:
            file = h5py.File(run, "r")
        except OSError as error:
            raise RunFileError(f"{run} is no run file, or was cut off: {' '.join(str(error).split())}") from error
        try:
            _check(run, file)
        except BaseException:
            file.close()
            raise
    return file


def _check(run: Path, file: h5py.File) -> None:
    if file.attrs.get("format") != FORMAT:
        raise RunFileError(f"{run} is an HDF5 file, but no powerd run")
    if (version := file.attrs.get("format_version")) != FORMAT_VERSION:
        raise RunFileError(
            f"{run} has version {version} of the run file's format, this powerd reads version {FORMAT_VERSION}: "
            "open it with the release that wrote it"
        )
    if (problem := next(problems(file), None)) is not None:
        raise RunFileError(f"{run} is damaged: {problem}")


@contextlib.contextmanager
def reading(run: str | os.PathLike[str]) -> Iterator[None]:
    """Whatever h5py, JSON or arithmetic make of a damaged file inside becomes a `RunFileError` of one line."""
    try:
        yield
    except PowerdError:
        raise
    except PermissionError as error:
        raise RunFileError(f"{run} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise RunFileError(f"{run} does not fit into the memory of this machine") from error
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise RunFileError(
            f"{run} is damaged or incomplete ({text}): `joules verify {run}` says what of it is"
        ) from error


def rebuild(run: Path, *, overwrite: bool = False, progress: Progress = lambda share: None) -> None:
    """Build a run file from the journal of a recorder that is gone. Raises `RunFileError` while it is still being
    recorded.
    """
    journal = journals.journal_path(run)
    try:
        held = journals.lock(journal)
    except RunFileError as error:
        raise RunFileError(f"{run} is still being recorded: open it when its run has ended") from error
    except OSError as error:
        why = "may not be written" if isinstance(error, PermissionError) else f"cannot be written ({error.strerror})"
        raise RunFileError(f"{run} has to be built from {journal}, which {why}") from error
    try:
        remove_partials(run)
        from powerd_client.build import build_run  # what a run file that is whole does not need

        build_run(journal, run, overwrite=overwrite, progress=progress)
    finally:
        os.close(held)


def has_endless_heap(path: Path) -> bool:
    """Whether HDF5 would walk for ever through a heap of texts of this file.

    Strings of variable length lie in global heaps (HDF5 file format specification, III.E), which carry no checksum. The
    library walks through a heap by the sizes in it. Where free space claims to have no size, for example where a failed
    disk left zeros, opening the file never ends.
    """
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(b"GCOL")
            while at >= 0:
                if _is_endless(data, at):
                    return True
                at = data.find(b"GCOL", at + 1)
    return False


def _is_endless(data: mmap.mmap, at: int) -> bool:
    if at + _HEAP.size > len(data):
        return False
    end = min(at + _HEAP.unpack_from(data, at)[2], len(data))
    at += _HEAP.size
    while at + _HEAP_OBJECT.size <= end:
        index, _, length = _HEAP_OBJECT.unpack_from(data, at)
        if index == 0 and length == 0:
            return True
        at += length if index == 0 else _HEAP_OBJECT.size + (length + 7) // 8 * 8
    return False


def problems(file: h5py.File) -> Iterator[str]:
    """Everything about the file's inside that is not as it must be, most basic things first."""
    forbidden = list(_foreign(file, "", 1, set()))
    yield from forbidden
    if forbidden:
        return
    for name in GROUPS:
        if name not in file:
            yield f"it has no {name!r}"
        elif isinstance(file[name], h5py.Dataset) != (name in TEXTS):
            yield f"{name!r} is not what it should be"
            return
    for name in TEXTS:
        if name in file and not _is_column(file[name], *_TEXT):
            yield f"{name!r} is no table of texts"
    for parent in ("clocks", "lines", "devices"):
        for name, item in file[parent].items():
            if not isinstance(item, h5py.Group):
                yield f"/{parent}/{name} is no group"
                return
    yield from _table(file["phases"], _PHASES, _PHASES_LATER)
    yield from _table(file["phases"], {"kinds": _TEXT})
    yield from _table(file["gaps"], _GAPS, _GAPS_LATER)
    for clock in file["clocks"].values():
        yield from _table(clock, _CLOCK)
        yield from _table(clock, {"exchanges": ("i", 4)})
        yield from _table(clock, {}, {"piece_rates": ("f", 2), "piece_limits_ns": ("i", 2)})
    for line in file["lines"].values():
        yield from _table(line, dict.fromkeys((*TIMES, *line), _INTEGER))


def _table(
    group: h5py.Group, columns: dict[str, tuple[str, int]], later: dict[str, tuple[str, int]] | None = None
) -> Iterator[str]:
    """Whether the columns are there, of their type and of one length. Those that came ``later`` may be missing."""
    path, lengths = group.name, {}
    for name, (kind, width) in (columns | (later or {})).items():
        if name not in group:
            if name in columns:
                yield f"{path} has no {name!r}"
        elif not _is_column(group[name], kind, width):
            yield f"{path}/{name} is not of the right type"
        else:
            lengths[name] = len(group[name])
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        yield f"the columns of {path} differ in length: {listed}"


def _is_column(item: Any, kind: str, width: int) -> bool:
    """Whether that is a column of such values, or ``width`` of them side by side."""
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        return False
    kinds = {"i": "iu", "f": "f", "S": "SO"}[kind]
    return item.dtype.kind in kinds and (item.ndim == 1 if not width else item.shape[1:] == (width,))


def _foreign(group: h5py.Group, path: str, depth: int, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Everything in a group that must not be read, wherever it is."""
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
            forbidden = list(dataset_problems(item, where))
            yield from forbidden
            if not forbidden:
                yield from _storage(item, where)
                yield from _attributes(item, where)
        elif not isinstance(item, h5py.Group):
            yield f"{where} is neither a group nor a dataset"
        elif depth >= _MAX_DEPTH:
            yield f"{where} is nested too deep"
        else:
            yield from _foreign(item, where, depth + 1, seen)


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
    """What forbids to read a dataset at all."""
    created = item.id.get_create_plist()
    if created.get_layout() == h5py.h5d.VIRTUAL or created.get_external_count():
        yield f"{path} is kept in another file: a run file holds its own data"
    elif not _is_plain(item.id.get_type()):
        yield f"{path} holds neither numbers nor texts"
    elif item.shape is None or len(item.shape) not in (1, 2) or prod(item.shape[1:]) > _MAX_WIDTH:
        yield f"{path} is no table"
    elif any(created.get_filter(i)[0] not in _FILTERS for i in range(created.get_nfilters())):
        yield f"{path} is compressed in an unknown way"
    elif item.chunks is not None and prod(item.chunks) * item.id.get_type().get_size() > _MAX_CHUNK_BYTES:
        yield f"{path} is stored in chunks of more than {_MAX_CHUNK_BYTES >> 20} MiB"


def _storage(item: h5py.Dataset, path: str) -> Iterator[str]:
    """Whether all rows are stored, and can be held in memory."""
    size = prod(item.shape) * item.id.get_type().get_size()
    stored = item.id.get_storage_size()
    if size > _memory_bytes():
        yield f"{path} claims {size / 1e9:.3g} GB, more than the memory of this machine"
    elif item.chunks is None:
        if stored < size:
            yield f"{path} claims {size} bytes, but fewer are stored"
    else:
        expected = prod(ceil(n / c) for n, c in zip(item.shape, item.chunks, strict=True))
        if expected > stored or item.id.get_num_chunks() < expected:
            yield f"{path} claims {item.shape[0]} rows, but not all of them are stored"


def _memory_bytes() -> int:
    """The memory of this machine: no table that is larger can be worked with here."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_texts(dataset: h5py.Dataset) -> list[str]:
    """A table of texts. Raises ValueError when they are no UTF-8, or more than anyone ever wrote."""
    texts: list[str] = []
    size = 0
    for begin in range(0, len(dataset), _TEXT_ROWS):
        for row in dataset[begin : begin + _TEXT_ROWS]:
            text = row.decode() if isinstance(row, bytes) else str(row)
            size += len(text)
            texts.append(text)
        # A few bytes of the file can be the text of a million rows.
        if size > _MAX_TEXT_BYTES:
            raise ValueError(f"{dataset.name} holds more than {_MAX_TEXT_BYTES >> 30} GiB of text")
    return texts


def read_objects(dataset: h5py.Dataset) -> list[dict[str, Any]]:
    """A table of JSON objects. Raises ValueError for anything else."""
    rows = [read_json(text) for text in read_texts(dataset)]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{dataset.name} holds a row that is no JSON object")
    return rows


def read_json(text: str | bytes) -> Any:
    """A JSON document. Raises ValueError for what is none, whatever it is nested in."""
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError:
        raise ValueError("a JSON document is nested too deep") from None


def _whole_number(text: str) -> int | float:
    return int(text) if len(text) < 300 else float(text)


def numbers_of(values: Any) -> list[int]:
    """An attribute of whole numbers, one or several."""
    return [int(v) for v in np.atleast_1d(values)]


def texts_of(values: Any) -> list[str]:
    """An attribute of texts, one or several."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(np.asarray(values, object))]
