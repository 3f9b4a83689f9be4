"""The phases of a run as columns, with what they inherit from the phases around them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_client.fileshape import FARTHEST_NS, check_times, read_objects
from powerd_client.tables import BOUND_COLUMNS

OPERATIONS = "operations_per_sample"
"""The attribute that describes the model's work; it does not tell one group of phases from another."""

Group = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PhaseClass:
    """All phases of one path with the same inherited attributes: what a row of the table is about."""

    path: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Its own attributes and those of all phases around it; the inner one wins."""
    timing: str

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def overlaps(self) -> bool:
        """Runs beside other phases, as DDP's communication beside backward; never a part of their sums."""
        return self.attributes.get("overlaps") is True

    @property
    def group(self) -> Group:
        """The attributes that set groups apart, such as model and batch size, sorted by name."""
        return tuple(sorted((k, v) for k, v in self.attributes.items() if k != OPERATIONS))


@dataclass(frozen=True, slots=True)
class Phases:
    """Columns [m] in the order of the phases' beginnings; ``label`` is an index into ``classes``."""

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    label: NDArray[np.int64]
    parent: NDArray[np.int64]
    """Index of the enclosing phase, -1 for none."""
    depth: NDArray[np.int64]
    process: NDArray[np.int64]
    cut: NDArray[np.bool_]
    classes: tuple[PhaseClass, ...]
    begin_bound_ns: NDArray[np.int64]
    """How far the edge can be from its time: 0 for one that the host timed, -1 where a device was to time it and only
    the host's time is known; zeros for files that do not say."""
    end_bound_ns: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def duration_s(self) -> NDArray[np.float64]:
        return (self.end_ns - self.begin_ns).astype(np.float64) * 1e-9

    @staticmethod
    def empty() -> Phases:
        none = np.zeros(0, np.int64)
        return Phases(none, none, none, none, none, none, np.zeros(0, np.bool_), (), none, none)


def kept(phases: Phases, which: NDArray[np.bool_]) -> Phases:
    """The phases ``which`` [m] alone; one whose parent is not among them is outermost."""
    place = np.cumsum(which) - 1
    inside = (phases.parent >= 0) & which[phases.parent]
    parent = np.where(inside, place[phases.parent], -1)
    columns = {name: getattr(phases, name) for name in Phases.__dataclass_fields__ if name != "classes"}
    columns |= {"parent": parent}
    return Phases(**{name: values[which] for name, values in columns.items()}, classes=phases.classes)


def read_phases(group: h5py.Group) -> Phases:
    """The phases of a run file. Raises KeyError, TypeError or ValueError when they contradict themselves."""
    begin, end = group["begin_ns"][:].astype(np.int64), group["end_ns"][:].astype(np.int64)
    kind, parent = group["kind"][:].astype(np.int64), group["parent"][:].astype(np.int64)
    kinds = read_objects(group["kinds"])
    for entry in kinds:
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("attributes") or {}, dict):
            raise TypeError("a kind of phase without a name or attributes")
    m = len(begin)
    for edges in (begin, end):
        check_times(edges, "a phase")
    if np.any(end < begin):
        raise ValueError("a phase ends before it begins")
    if np.any((kind < 0) | (kind >= len(kinds))):
        raise ValueError("a phase of a kind that is not listed")
    if np.any((parent < -1) | (parent >= np.arange(m))):
        raise ValueError("a phase is listed before the phase around it")
    depth, label, classes = _classify(kind, parent, kinds)
    process, cut = group["process"][:].astype(np.int64), group["cut"][:].astype(bool)
    bounds = [_bound(group, name, m) for name in BOUND_COLUMNS]
    return Phases(begin, end, label, parent, depth, process, cut, classes, *bounds)


def _bound(group: h5py.Group, name: str, m: int) -> NDArray[np.int64]:
    bound: NDArray[np.int64] = group[name][:].astype(np.int64) if name in group else np.zeros(m, np.int64)
    if np.any(bound < -1) or np.any(bound > FARTHEST_NS):
        raise ValueError(f"a phase with a {name} that cannot be")
    return bound


def _classify(
    kind: NDArray[np.int64], parent: NDArray[np.int64], kinds: list[dict[str, Any]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[PhaseClass, ...]]:
    """Depth and class of every phase: one vectorised pass a level of nesting."""
    depth, label = np.full(len(kind), -1, np.int64), np.full(len(kind), -1, np.int64)
    classes: list[PhaseClass] = []
    index: dict[tuple[tuple[str, ...], Group, str], int] = {}
    level = np.flatnonzero(parent < 0)
    while len(level):
        above = np.where(parent[level] < 0, -1, label[parent[level]])
        depth[level] = np.where(parent[level] < 0, 0, depth[parent[level]] + 1)
        pairs, which = np.unique(np.stack([above, kind[level]], axis=1), axis=0, return_inverse=True)
        numbers = []
        for outer, k in pairs:
            around = classes[outer] if outer >= 0 else PhaseClass((), {}, "")
            attributes = {**around.attributes, **(kinds[k].get("attributes") or {})}
            attributes = {n: _hashable(v) for n, v in attributes.items()}
            timing = str(kinds[k].get("timing", "host"))
            made = PhaseClass((*around.path, kinds[k]["name"]), attributes, timing)
            key = (made.path, tuple((n, str(v)) for n, v in made.group), made.timing)
            if key not in index:
                index[key] = len(classes)
                classes.append(made)
            else:
                classes[index[key]] = _with_operations(classes[index[key]], made)
            numbers.append(index[key])
        label[level] = np.array(numbers, np.int64)[which.ravel()]
        inside = np.zeros(len(kind) + 1, bool)
        inside[level] = True
        level = np.flatnonzero(inside[parent] & (parent >= 0))
    return depth, label, tuple(classes)


def _with_operations(known: PhaseClass, other: PhaseClass) -> PhaseClass:
    """``known``, with both counts of operations where the two differ: two models under one name have no count."""
    both = tuple(c.attributes[OPERATIONS] for c in (known, other) if c.attributes.get(OPERATIONS) is not None)
    if len(both) < 2 or both[0] == both[1] or isinstance(both[0], tuple):
        return known
    return replace(known, attributes={**known.attributes, OPERATIONS: both})


def _hashable(value: Any) -> Any:
    """An attribute as something that sets groups apart; what is nested counts by its text."""
    if isinstance(value, list) and not any(isinstance(v, list | dict) for v in value):
        return tuple(value)
    return json.dumps(value) if isinstance(value, list | dict) else value
