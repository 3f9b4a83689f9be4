"""The phases of a damaged run file: rows that are whole, each inside the nearest one left if it lies in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client import recover_rows
from powerd_client.datasets import write_documents, write_numbers
from powerd_client.devicetimes import DEVICE
from powerd_client.fileshape import FARTHEST_NS
from powerd_client.tables import BOUND_COLUMNS, PHASE_COLUMNS

LOST_KIND: dict[str, Any] = {"name": "phase whose name is lost", "attributes": {}, "timing": "host"}
AT_A_TIME = 1 << 20
"""Phases for which more than their columns is in memory."""

Column = NDArray[Any]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RecoveredPhases:
    """Phases that are left, as the columns of a run file [m] by name, in the order of their beginnings."""

    columns: dict[str, Column]

    @property
    def reach_ns(self) -> tuple[int, int] | None:
        """First beginning and last end, None without phases."""
        begin, end = self.columns["begin_ns"], self.columns["end_ns"]
        return (int(begin.min()), int(end.max())) if len(begin) else None

    def write(self, file: h5py.File, kinds: list[dict[str, Any]]) -> None:
        """As `powerd_client.tables.write_phases` writes phases that were never in a file."""
        group = file.create_group("phases")
        for name, dtype, units in (*PHASE_COLUMNS, *((name, np.int64, "ns") for name in BOUND_COLUMNS)):
            write_numbers(group, name, self.columns[name].astype(dtype, copy=False), units)
        write_documents(group, "kinds", kinds)


def mend_kinds(kinds: list[dict[str, Any]]) -> None:
    """Put `LOST_KIND` in the place of each that is none."""
    for kind in kinds:
        if not isinstance(kind.get("name"), str) or not isinstance(kind.get("attributes"), dict):
            kind.update(LOST_KIND)


def recover_phases(
    group: dict[str, Any], kinds: list[dict[str, Any]], processes: int, lost: list[str]
) -> RecoveredPhases:
    """The phases of a group whose datasets can be opened. What cannot be taken over is added to ``lost``."""
    names = tuple(name for name, _, _ in PHASE_COLUMNS)
    columns, good, claimed = recover_rows.table(group, names)
    # Cast to a time, what is no number would be any number.
    if columns and all(map(_is_whole_numbers, columns.values())):
        columns["cut"] = columns["cut"] != 0
        for name, values in columns.items():
            columns[name] = values.astype(np.int64) if values.dtype.kind == "u" else values
        _drop_unsound(columns, good, len(kinds), processes)
        for name in BOUND_COLUMNS:
            columns[name] = _bound(group, name, columns["kind"], kinds, lost)
    else:
        columns = {name: np.zeros(0, np.int64) for name in (*names, *BOUND_COLUMNS)}
        good = np.zeros(0, bool)
    columns["parent"] = _parents(columns, good)
    left = int(good.sum())
    if left < len(good):
        place = np.cumsum(good) - 1
        for name in columns:
            columns[name] = columns[name][good]
        columns["parent"] = np.where(columns["parent"] >= 0, place[columns["parent"]], -1)
    if left < claimed:
        lost.append(f"{claimed - left} of {claimed} phases")
    _sort(columns)
    return RecoveredPhases(columns)


def _is_whole_numbers(values: Column) -> bool:
    return values.dtype.kind in "iu" and values.ndim == 1


def _drop_unsound(columns: dict[str, Column], good: Bools, kinds: int, processes: int) -> None:
    """Rows that no run has are not ``good`` [m]."""
    for i in range(0, len(good), AT_A_TIME):
        some = slice(i, i + AT_A_TIME)
        begin, end, kind, process = (
            columns[name][some].astype(np.int64, copy=False) for name in ("begin_ns", "end_ns", "kind", "process")
        )
        sound = (begin <= end) & (begin > -FARTHEST_NS) & (end < FARTHEST_NS)
        good[some] &= sound & (kind >= 0) & (kind < kinds) & (process >= 0) & (process < processes)


def _bound(
    group: dict[str, Any], name: str, kind: Column, kinds: list[dict[str, Any]], lost: list[str]
) -> NDArray[np.int64]:
    """How far the edges can be from their times. A bound that is lost is none, but for what the host timed."""
    timed = np.array([entry.get("timing") == DEVICE for entry in kinds] + [False])
    known = np.where(timed[np.clip(kind, -1, len(kinds))], -1, 0)
    rows, good, claimed = recover_rows.table(group, (name,))
    if rows and not _is_whole_numbers(rows[name]):
        good = np.zeros(0, bool)
    elif rows:
        good = good[: len(kind)] & (rows[name][: len(kind)] >= -1)
        known[: len(good)][good] = rows[name][: len(good)][good]
    if (gone := claimed - int(good.sum())) > 0:
        lost.append(f"{gone} of {claimed} {name} of phases")
    return known


def _parents(columns: dict[str, Column], good: Bools) -> NDArray[np.int64]:
    """[m] the parents of the ``good`` phases. One whose own is gone moves up to the nearest left, if it lies in it."""
    parent = columns["parent"].astype(np.int64)
    index = np.arange(len(parent))
    parent[(parent < 0) | (parent >= index)] = -1
    if not good.all():
        # From each row the nearest good one upwards, itself included: what is gone points on to where its parent does.
        up = np.where(good, index, parent)
        gone = np.flatnonzero(~good)
        while len(gone):
            above = up[gone]
            up[gone] = np.where(above >= 0, up[above], -1)
            gone = gone[(up[gone] >= 0) & ~good[up[gone]]]
        parent = np.where(parent >= 0, up[parent], -1)
    begin, end, process = (columns[name] for name in ("begin_ns", "end_ns", "process"))
    for i in range(0, len(parent), AT_A_TIME):
        some = slice(i, i + AT_A_TIME)
        above = parent[some]
        fits = (begin[above] <= begin[some]) & (end[some] <= end[above]) & (process[above] == process[some])
        above[~fits] = -1
    return parent


def _sort(columns: dict[str, Column]) -> None:
    """Order by beginning (of those that begin together, the longer first), as phases nearly always are."""
    begin, end = columns["begin_ns"].astype(np.int64, copy=False), columns["end_ns"].astype(np.int64, copy=False)
    later = begin[1:] > begin[:-1]
    if np.all(later | ((begin[1:] == begin[:-1]) & (end[1:] <= end[:-1]))):
        return
    order = np.lexsort((-end, begin))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    for name in columns:
        columns[name] = columns[name][order]
    columns["parent"] = np.where(columns["parent"] >= 0, place[columns["parent"]], -1)
