"""How tables lie in a run file: every dataset in chunks that carry a checksum, and one checksum over all the rest.

HDF5's Fletcher-32 covers the bytes of a chunk. A string of variable length lies elsewhere and so do attributes: strings
are therefore stored in fixed width, and the attributes of the whole file have a digest of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import h5py
import numpy as np

from powerd_core.serde import to_document

DIGEST = "metadata_sha256"
"""Attribute of the root: the digest of everything in the file that no chunk's checksum covers."""
LINE_ROWS = 65536
TABLE_ROWS = 8192
"""Rows of a chunk in every table: the columns of one table are damaged together or not at all."""
_STRING_CHUNK_BYTES = 1 << 20
_WIDE_BYTES = 64 << 20


def write_numbers(group: h5py.Group, name: str, values: Any, units: str) -> None:
    """A column, or columns side by side, that does not grow any more."""
    array = np.asarray(values)
    made = make_dataset(group, name, array.dtype, units, rows=TABLE_ROWS, width=array.shape[1:])
    made.resize(array.shape)
    made[...] = array


def make_dataset(
    group: h5py.Group, name: str, dtype: Any, units: str, *, rows: int | None = None, width: tuple[int, ...] = ()
) -> h5py.Dataset:
    """An empty dataset that may grow along its first axis, in chunks of ``rows`` (`LINE_ROWS` without)."""
    made = group.create_dataset(
        name, (0, *width), np.dtype(dtype), maxshape=(None, *width), chunks=(rows or LINE_ROWS, *width),
        compression="gzip", compression_opts=1, shuffle=True, fletcher32=True,
    )  # fmt: skip
    made.attrs["units"] = units
    return made


def write_documents(group: h5py.Group, name: str, documents: Sequence[Any]) -> None:
    """A table of JSON texts."""
    write_strings(group, name, [json.dumps(to_document(d)) for d in documents])


def write_strings(group: h5py.Group, name: str, texts: Sequence[str]) -> None:
    """A table of texts, in fixed width unless one of them is out of all proportion to the others."""
    found = [clean(text).encode() for text in texts]
    width = max([1, *map(len, found)])
    fixed = width * len(found) <= max(_WIDE_BYTES, 4 * sum(map(len, found)))
    dtype = h5py.string_dtype("utf-8", width if fixed else None)
    rows = min(TABLE_ROWS, max(1, _STRING_CHUNK_BYTES // width)) if fixed else TABLE_ROWS
    group.create_dataset(
        name, data=np.array(found, dtype), dtype=dtype, maxshape=(None,), chunks=(rows,), compression="gzip",
        compression_opts=1, fletcher32=fixed,
    )  # fmt: skip


def clean(text: str) -> str:
    """``text`` without what HDF5 cannot hold: zeros, and halves of characters."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def own_name(name: str) -> str:
    """The name of a group for a line, device or board, whatever it is called: a slash would make a group inside one."""
    made = clean(name).replace("/", "_")
    return made if made.strip(".") else f"_{made}"


def digest(file: h5py.File) -> str:
    """The digest of all attributes, of names, types and shapes, and of strings that lie outside their chunks."""
    found = hashlib.sha256()
    for text in _described(file, "/"):
        found.update(text.encode("utf-8", "backslashreplace") + b"\n")
    return found.hexdigest()


def copy_attributes(file: h5py.File) -> None:
    """A second copy of all attributes of groups, as a table: unlike the attributes it carries checksums."""
    found = [{"path": "/", "values": _values(file)}]
    file.visititems(
        lambda name, item: (
            found.append({"path": f"/{name}", "values": _values(item)}) if isinstance(item, h5py.Group) else None
        )
    )
    write_documents(file, "attributes", [row for row in found if row["values"]])


def _values(item: h5py.Group) -> dict[str, Any]:
    return {name: _plain(value) for name, value in item.attrs.items()}


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
