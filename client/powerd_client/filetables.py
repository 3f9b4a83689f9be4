"""Which tables a run file has, of which types: what is at its root, and the columns that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py

from powerd_client.fileshape import TIMES, foreign, memory_bytes

GROUPS = ("lines", "devices", "phases", "clocks", "gaps", "messages")
"""What a run file has at its root; `processes` and `parts` came later or may be missing."""

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
    basic = list(foreign(file))
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
