"""What must hold of every phase of a run file: its edges, its kind, and the phase around it."""

from __future__ import annotations

import h5py
import numpy as np

from powerd_client.fileshape import check_times, read_objects
from powerd_client.findings import Check
from powerd_client.tables import BOUND_COLUMNS

_ROWS = 1 << 20


def phases(file: h5py.File) -> Check:
    """Phases are in order, inside those around them, and of kinds and processes that exist.

    Edges and processes, which phases inside others are compared with, are in memory; all else a million rows at a time.
    """
    group = file["phases"]
    begin, end, process = (group[name][:].astype(np.int64, copy=False) for name in ("begin_ns", "end_ns", "process"))
    kinds = read_objects(group["kinds"])
    processes = read_objects(file["processes"]) if "processes" in file else []
    for edges in (begin, end):
        check_times(edges, "a phase")
    found: dict[str, tuple[int, int]] = {}
    for first in range(0, len(begin), _ROWS):
        rows = slice(first, min(first + _ROWS, len(begin)))
        kind, parent, cut = (group[name][rows].astype(np.int64) for name in ("kind", "parent", "cut"))
        index = np.arange(rows.start, rows.stop)
        inner = (parent >= 0) & (parent < index)
        outer = np.where(inner, parent, 0)
        outside = inner & ((begin[rows] < begin[outer]) | (end[rows] > end[outer]))
        for bad, what in (
            (end[rows] < begin[rows], "ends before it begins"),
            (np.diff(begin[rows], prepend=begin[max(first - 1, 0)]) < 0, "is not in the order of beginnings"),
            ((kind < 0) | (kind >= len(kinds)), "is of a kind that is not listed"),
            ((process[rows] < 0) | (process[rows] >= len(processes)), "is of a process that is not listed"),
            ((parent < -1) | (parent >= index), "is listed before the phase around it"),
            ((cut < 0) | (cut > 1), "is neither cut nor not"),
            *((group[n][rows].astype(np.int64) < -1, f"has a {n} below -1") for n in BOUND_COLUMNS if n in group),
            (outside, "is not inside the phase around it"),
            (inner & (process[rows] != process[outer]), "lies in another process's phase"),
        ):
            count, at = found.get(what, (0, 0))
            more = int(np.count_nonzero(bad))
            found[what] = count + more, at if count or not more else first + int(np.argmax(bad))
    for what, (count, at) in found.items():
        if count:
            yield f"phase {at} {what}{f', and {count - 1} more' if count > 1 else ''}"
    for number, entry in enumerate(kinds):
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("attributes"), dict):
            yield f"kind {number} has no name or attributes"
    return f"{len(begin)} phases of {len(kinds)} kinds in {len(processes)} processes"
