"""The run file: an HDF5 file that is written whole or not at all, and looked at before anything of it is read.

**Writing.** HDF5 does not outlive a write that fails: objects that it could not flush stay, and when the process ends,
or before, it dies by SIGSEGV (HDF5 1.14 and 2.0 on a full disk) - and a training that closed its `Meter` with it. So
`SteadyFile` keeps the first failure and tells HDF5 that all went well. A file appears under its name only when it is
whole and on the disk (`whole_file`). HDF5's Fletcher-32 covers the bytes of a chunk; attributes and strings of variable
length lie elsewhere. Strings are therefore stored in fixed width, and all attributes have a digest (`digest`).

**Reading.** A run whose recorder could not write it is built first, by `recover.open_run`. A run file is data from
somewhere: it must not make us read other files (links, external storage, virtual datasets) nor load code (filters
beyond the three that are used). What is left are plain tables of numbers and texts, as in docs/reference/run-file.md
(`problems`). Whatever is wrong is one `RunFileError` of one line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import ceil, prod
from pathlib import Path
from struct import Struct
from typing import Any, Literal

import h5py
import numpy as np

from powerd_client.host import ownership
from powerd_client.journals import journal as journals
from powerd_core.errors import PowerdError, RunFileError
from powerd_core.serde import to_document

FORMAT, FORMAT_VERSION = "powerd-run", 1
"""What the root of a run file says of itself."""
DIGEST = "metadata_sha256"
"""Attribute of the root: the digest of everything in the file that no chunk's checksum covers."""
BOUND_COLUMNS = ("begin_bound_ns", "end_bound_ns")
"""How far the edges of phases can be from their times; files of earlier releases lack them."""
COUNT_COLUMNS = ("samples", "tokens")
"""The samples of passes of another size than their ``batch_size``, and the tokens of phases that say them; else 0.
Files in which no phase has any lack them."""
TIMES = ("t_board_ns", "t_ns", "flags")
"""Columns that every line has beside its raw codes."""
Progress = Callable[[float], None]
"""Hears the share that is done."""

# Columns by their table: one kind of value ("i" integer, "f" float, "S" text) and how many stand side by side.
_INTEGER, _TEXT = ("i", 0), ("S", 0)
_PHASES = dict.fromkeys(("begin_ns", "end_ns", "kind", "parent", "process", "cut"), _INTEGER)
_GAPS = dict.fromkeys(("begin_ns", "end_ns", "lost"), _INTEGER) | dict.fromkeys(("stream", "lines", "cause"), _TEXT)
_CLOCK = {"map": ("f", 3), "map_t_board_ns": _INTEGER, "map_piece": _INTEGER}
_EVENTS = {"t_ns": _INTEGER, "process": _INTEGER, "name": _TEXT, "values": _TEXT}
_LIBVER = ("v110", "v110")
"""The first version of HDF5's format in which everything but strings of variable length carries a checksum."""
_FILTERS = {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_METADATA_BYTES = 1 << 16
"""What HDF5 reads back while it closes a file is smaller; readings are larger, and are dropped behind a failure."""
_LINE_ROWS = 65536
_TABLE_ROWS = 8192
"""Rows of a chunk in every table: the columns of one table are damaged together or not at all."""
_STRING_CHUNK_BYTES = 1 << 20
_WIDE_BYTES = 64 << 20
_MOST_UNPACKED = 50
"""Tables that are read as a whole are larger than `_WIDE_BYTES` only where they are stored in a fiftieth of that."""
_sound: deque[tuple[int, ...]] = deque(maxlen=1000)
"""States of files (`_state`) whose insides were looked at in this process and are as they must be."""
_HEAP, _HEAP_OBJECT = Struct("<4sBxxxQ"), Struct("<HHxxxxQ")


class SteadyFile:
    """What `h5py` takes as a file: the methods that its driver for Python objects calls, none of which fails to write.

    Behind the first failure nothing reaches the disk any more; small pieces are kept, so that HDF5 finds what it wrote.
    """

    def __init__(self, path: Path, mode: Literal["x", "r+"]) -> None:
        self._fd = ownership.open_own(path, os.O_RDWR | (os.O_EXCL if mode == "x" else 0), 0o666)
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
        with h5py.File(raw, "w" if mode == "x" else mode, libver=_LIBVER) as file:
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
    partial = journals.partial_path(out)
    try:
        with steady_hdf5(partial) as opened:
            yield opened
        _move(partial, out, overwrite)
        journals.sync_path(out.parent)
    finally:
        ownership.delete(partial)


def _move(partial: Path, out: Path, overwrite: bool) -> None:
    try:
        ownership.move(partial, out, overwrite=overwrite)
    except FileExistsError:
        raise RunFileError(
            f"{out} appeared while it was being recorded: move it away and run `joules info {out}`"
        ) from None


def write_numbers(group: h5py.Group, name: str, values: Any, units: str) -> None:
    """A column, or columns side by side, that does not grow any more."""
    data = np.asarray(values)
    make_dataset(group, name, data, units, len(data), _TABLE_ROWS)


def make_dataset(
    group: h5py.Group, name: str, data: Any, units: str, most: int, rows: int = _LINE_ROWS
) -> h5py.Dataset:
    """A dataset of numbers that may grow along its first axis to ``most``, in chunks of ``rows``. Where it may grow
    for ever, HDF5 needs three kilobytes more to find its chunks."""
    most = max(most, 1)
    dataset = group.create_dataset(
        name, data=data, maxshape=(most, *data.shape[1:]), chunks=(min(rows, most), *data.shape[1:]),
        compression="gzip", compression_opts=1, shuffle=True, fletcher32=True,
    )  # fmt: skip
    dataset.attrs["units"] = units
    return dataset


def write_documents(group: h5py.Group, name: str, documents: Sequence[Any]) -> None:
    """A table of JSON texts."""
    write_strings(group, name, [json.dumps(to_document(d)) for d in documents])


def write_strings(group: h5py.Group, name: str, texts: Sequence[str], most_bytes: int = _WIDE_BYTES) -> None:
    """A table of texts, in fixed width unless one of them is out of all proportion to the others: above ``most_bytes``
    in all."""
    encoded = [clean(text).encode() for text in texts]
    width = max([1, *map(len, encoded)])
    fixed = width * len(encoded) <= most_bytes
    dtype = h5py.string_dtype("utf-8", width if fixed else None)
    rows = min(_TABLE_ROWS, max(1, _STRING_CHUNK_BYTES // width)) if fixed else _TABLE_ROWS
    most = max(len(encoded), 1)
    group.create_dataset(
        name, data=np.array(encoded, dtype), dtype=dtype, maxshape=(most,), chunks=(min(rows, most),),
        compression="gzip", compression_opts=1, fletcher32=fixed,
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


def open_file(run: Path) -> h5py.File:
    """The run file at ``run``, open for reading; what its journal may still hold does not matter. A file that has not
    changed is looked at once: a command opens it for each of its lines.

    Raises `RunFileError` for a file that is missing, is no run, is cut off or damaged, or is of another version.
    """
    with reading(run):
        if run.is_dir():
            raise RunFileError(f"{run} is a directory: give the name of a run file")
        if not run.exists():
            raise RunFileError(f"there is no run file {run}{_kept_hint(run)}")
        if not run.is_file():
            raise RunFileError(f"{run} is a device or pipe: give the name of a run file")
        state = _state(run)
        if state not in _sound and has_endless_heap(run):
            raise ValueError("a heap of texts in it has no end")
        try:
            file = h5py.File(run, "r")
        except PermissionError:
            raise
        except OSError as error:
            raise RunFileError(f"{run} {_why_unopened(run, error)}{_kept_hint(run)}") from error
        try:
            if state not in _sound:
                _check(run, file)
                _sound.append(state)
        except BaseException:
            file.close()
            raise
    return file


def _state(run: Path) -> tuple[int, ...]:
    """Which file it is, and when it was last written. Unlike the time of its contents, that of its state cannot be
    set by the user."""
    status = run.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns


def _why_unopened(run: Path, error: OSError) -> str:
    if not run.stat().st_size:
        return "is empty: it is no run file, or all of it was lost"
    if not h5py.is_hdf5(run):
        return "is no run file: it is not HDF5, or its beginning is lost"
    return f"is no run file, or was cut off: {' '.join(str(error).split())}"


def _kept_hint(run: Path) -> str:
    packed = journals.packed_path(run)
    return f": `joules journal recover {run}` makes it anew from {packed.name}" if packed.is_file() else ""


def _check(run: Path, file: h5py.File) -> None:
    if file.attrs.get("format") != FORMAT:
        raise RunFileError(f"{run} is an HDF5 file, but no powerd run")
    if (version := file.attrs.get("format_version")) != FORMAT_VERSION:
        raise RunFileError(
            f"{run} has version {version} of the run file's format, this powerd reads version {FORMAT_VERSION}: "
            "open it with the release that wrote it"
        )
    if (problem := next(problems(file), None)) is not None:
        raise RunFileError(f"{run} is damaged: {problem}{_kept_hint(run)}")


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
        raise RunFileError(f"{run} {_NO_ROOM}") from error
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise RunFileError(f"{run} {_NO_ROOM}") from error
        text = " ".join(str(error).split()) or type(error).__name__
        raise RunFileError(
            f"{run} is damaged or incomplete ({text}): `joules info --check {run}` says what of it is"
            f"{_kept_hint(Path(run))}"
        ) from error


_NO_ROOM = "does not fit into the memory of this machine, and whether it is good nobody knows: read it on a larger one"
_OUT_OF_MEMORY = re.compile("memory allocation failed|unable to allocate|cannot allocate memory|can't allocate", re.I)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether the system, numpy or HDF5 (in words only) had no memory."""
    is_named = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    return is_named or (error is not None and _OUT_OF_MEMORY.search(str(error)) is not None)


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
            begin = data.find(b"GCOL")
            while 0 <= begin <= len(data) - _HEAP.size:
                end = min(begin + _HEAP.unpack_from(data, begin)[2], len(data))
                at = begin + _HEAP.size
                while at + _HEAP_OBJECT.size <= end:
                    index, _, length = _HEAP_OBJECT.unpack_from(data, at)
                    if index == 0 and length == 0:
                        return True
                    at += length if index == 0 else _HEAP_OBJECT.size + (length + 7) // 8 * 8
                begin = data.find(b"GCOL", begin + 1)
    return False


def problems(file: h5py.File) -> Iterator[str]:
    """Everything about the file's inside that is not as it must be, most basic things first."""
    items: Items = {}
    foreign = list(_foreign(file, 1, items))
    yield from foreign
    if foreign:
        return
    for name in ("lines", "devices", "phases", "clocks", "gaps", "messages"):
        if f"/{name}" not in items:
            yield f"it has no {name!r}"
            return
    for parent in ("clocks", "lines", "devices"):
        if not all(isinstance(items[f"/{parent}/{name}"], h5py.Group) for name in file[parent]):
            yield f"/{parent} holds what is no group"
            return
    yield from _bombs(items)
    yield from _table(items, "", {"messages": _TEXT})
    for name in ("processes", "parts"):
        yield from _table(items, "", {}, {name: _TEXT})
    yield from _table(items, "/phases", _PHASES, dict.fromkeys((*BOUND_COLUMNS, *COUNT_COLUMNS), _INTEGER))
    yield from _table(items, "/phases", {"kinds": _TEXT})
    yield from _table(items, "/gaps", _GAPS, {"numbers": _INTEGER, "clock": _TEXT})
    if "events" in file:  # files of 0.1.0 lack it
        yield from _table(items, "/events", _EVENTS)
    for name in file["clocks"]:
        clock = f"/clocks/{name}"
        yield from _table(items, clock, _CLOCK)
        yield from _table(items, clock, {"exchanges": ("i", 4)})
        yield from _table(items, clock, {}, {"piece_rates": ("f", 2), "piece_limits_ns": ("i", 2)})
    for name in file["lines"]:
        line = f"/lines/{name}"
        yield from _table(items, line, dict.fromkeys((*TIMES, *items[line]), _INTEGER))


Items = dict[str, h5py.Group | h5py.Dataset]
"""What is in a file by its path: to open it takes longer than to look at it."""


def _bombs(items: Items) -> Iterator[str]:
    """Tables that unpack to far more than what a recording makes of them."""
    columns: dict[str, list[h5py.Dataset]] = {}
    for path, item in items.items():
        where = path.split("/", 2)[1]
        if where != "lines" and isinstance(item, h5py.Dataset):  # readings are read a stretch at a time
            columns.setdefault(where, []).append(item)
    for where, of in columns.items():
        size, stored = sum(c.nbytes for c in of), sum(c.id.get_storage_size() for c in of)
        if size > _WIDE_BYTES + _MOST_UNPACKED * stored:
            yield f"/{where} unpacks from {stored} bytes to {size}"


def _table(
    items: Items, group: str, columns: dict[str, tuple[str, int]], later: dict[str, tuple[str, int]] | None = None
) -> Iterator[str]:
    """Whether the columns are there, of their type and of one length. Those that came ``later`` may be missing."""
    lengths = set()
    for name, (kind, width) in (columns | (later or {})).items():
        item = items.get(f"{group}/{name}")
        if item is None:
            if name in columns:
                yield f"{group} has no {name!r}"
            continue
        kinds = {"i": "iu", "f": "f", "S": "SO"}[kind]
        if (
            not isinstance(item, h5py.Dataset)
            or item.dtype.kind not in kinds
            or item.shape[1:] != (width,) * (width > 0)
        ):
            yield f"{group}/{name} is not of the right type"
        else:
            lengths.add(len(item))
    if len(lengths) > 1:
        yield f"the columns of {group} differ in length"


def _foreign(group: h5py.Group, depth: int, items: Items) -> Iterator[str]:
    """What must not be in a run file: links, data kept elsewhere or in unknown ways, tables that claim too much.

    All that is there and is no link is added to ``items``.
    """
    path = group.name.rstrip("/")
    for name in group:
        where = f"{path}/{name}"
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield f"{where} is a link to somewhere else: a run file holds its own data"
            continue
        item = items[where] = group[name]
        if isinstance(item, h5py.Group):
            # Nothing of ours lies deeper; a group inside itself would have no end.
            yield from _foreign(item, depth + 1, items) if depth < 4 else [f"{where} is nested too deep"]
            continue
        if not isinstance(item, h5py.Dataset) or not item.shape:
            yield f"{where} is no table"
            continue
        created, kind = item.id.get_create_plist(), item.id.get_type().get_class()
        if created.get_layout() == h5py.h5d.VIRTUAL or created.get_external_count():
            yield f"{where} is kept in another file: a run file holds its own data"
        elif kind not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.STRING):
            yield f"{where} holds neither numbers nor texts"
        elif item.chunks and prod(item.chunks) * item.dtype.itemsize > _WIDE_BYTES:
            yield f"{where} has chunks larger than {_WIDE_BYTES} bytes"
        elif any(created.get_filter(i)[0] not in _FILTERS for i in range(created.get_nfilters())):
            yield f"{where} is compressed in an unknown way"
        elif item.chunks and item.id.get_num_chunks() < prod(
            ceil(n / c) for n, c in zip(item.shape, item.chunks, strict=True)
        ):
            yield f"{where} claims {item.shape[0]} rows, but not all of them are stored"


def read_texts(dataset: h5py.Dataset) -> list[str]:
    """A table of texts. Raises ValueError when they are no UTF-8."""
    return [row.decode() if isinstance(row, bytes) else str(row) for row in dataset[:]]


def read_objects(dataset: h5py.Dataset) -> list[dict[str, Any]]:
    """A table of JSON objects. Raises ValueError for anything else."""
    rows = [read_json(text) for text in read_texts(dataset)]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{dataset.name} holds a row that is no JSON object")
    return rows


def read_json(text: str | bytes) -> Any:
    """A JSON document. Raises ValueError for what is none, whatever it is nested in."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("a JSON document is nested too deep") from None


def texts_of(values: Any) -> list[str]:
    """An attribute of texts, one or several."""
    return [v.decode() if isinstance(v, bytes) else str(v) for v in np.atleast_1d(np.asarray(values, object))]
