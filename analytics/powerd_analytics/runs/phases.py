"""The phases of a run as columns, with what they inherit from the phases around them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import is_number_cell
from powerd_analytics.runs.in_force import Enforced, Timeline
from powerd_client.energies.phase import MAGNIFY
from powerd_client.journals.attributes import is_not_known, with_figures
from powerd_client.journals.marks import crowded
from powerd_client.runs.runfile import BOUND_COLUMNS, COUNT_COLUMNS, read_objects
from powerd_client.signals.board_times import check_times

OPERATIONS = "operations_per_sample"
EXECUTED = "operations_executed_per_sample"
"""The attributes that describe the model's work, as the paper counts it (one forward pass) and as forward and backward
together run it (`joules operations` counts both); they do not tell one group of phases from another."""

LAYER = "layer"
"""The phase, and the attribute of phases, by which `Meter.watch(layers=True)` marks a layer."""

AT_A_TIME = 1 << 20
"""Phases for which more than what is kept of them is in memory together."""

Group = tuple[tuple[str, Any], ...]
Ints = NDArray[np.int64]
_Integer = TypeVar("_Integer", bound=np.integer[Any])
Whole = NDArray[np.signedinteger[Any]]
Small = NDArray[np.int32]
"""Numbers of phases, classes, processes: of ten million phases each column is in memory."""


@dataclass(frozen=True, slots=True)
class PhaseClass:
    """Phases of one path with the same inherited attributes and the same setting: what a row of the table is about."""

    path: tuple[str, ...]
    attributes: Mapping[str, Any]
    """Its own attributes and those of all phases around it; the inner one wins."""
    timing: str
    setting: Enforced | None = None
    """What drivers enforced while they ran, in a run in which that changed."""
    is_iteration: bool = False
    """Whether these phases are the iterations of a training: `powerd_analytics.runs.nesting`."""
    home: Group | None = None
    """The attributes of the group that they are in, where these are not their own: those of the iteration around."""
    names: tuple[str, ...] = ()
    """The path in words that tell them from others of the same path in their group, such as ``forward D``."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The path as tables have it."""
        return self.names or self.path

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def overlaps(self) -> bool:
        """Runs beside other phases, as DDP's communication beside backward; never a part of their sums."""
        return self.attributes.get("overlaps") is True

    @property
    def is_magnified(self) -> bool:
        """A phase of `Meter.magnify`, or inside one: an experiment beside the training, in none of its figures."""
        return MAGNIFY in self.path

    @property
    def own(self) -> Group:
        """The attributes that can set groups apart, such as model and batch size, sorted by name."""
        return tuple(sorted((k, v) for k, v in self.attributes.items() if k not in (OPERATIONS, EXECUTED)))

    @property
    def family(self) -> Group:
        """Those of the group that these phases are in."""
        return self.own if self.home is None else self.home

    @property
    def is_beside(self) -> bool:
        """Whether they are in no sum of the phases around: layers, what overlaps, and what is repeated alone."""
        return LAYER in self.attributes or self.overlaps or self.is_magnified

    @property
    def group(self) -> Group:
        """The same with what was enforced, where that changed in the run."""
        if self.setting is None:
            return self.family
        return tuple(sorted({**dict(self.family), **self.setting.group}.items()))


@dataclass(frozen=True)  # without slots: what follows from the columns is worked out once
class Phases:
    """Columns [m] in the order of the phases' beginnings; ``label`` is an index into ``classes``."""

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    label: Small
    parent: Small
    """Index of the enclosing phase, -1 for none."""
    depth: Small
    process: Small
    cut: NDArray[np.bool_]
    classes: tuple[PhaseClass, ...]
    begin_bound_ns: Whole
    """How far the edge can be from its time: 0 for one that the host timed, -1 where a device was to time it and only
    the host's time is known; zeros for files that do not say."""
    end_bound_ns: Whole
    samples: Small
    """Of passes and steps of another size than their ``batch_size``, else 0."""
    tokens: Small
    """Of phases that say them, else 0."""
    is_unstepped: bool = False
    """Whether an optimizer was watched, and none ever stepped through what was watched."""

    def __len__(self) -> int:
        return len(self.begin_ns)

    @property
    def duration_s(self) -> NDArray[np.float64]:
        return (self.end_ns - self.begin_ns).astype(np.float64) * 1e-9

    @cached_property
    def magnify(self) -> NDArray[np.intp]:
        """Numbers of the phases of `Meter.magnify`."""
        labels = [i for i, kind in enumerate(self.classes) if kind.name == MAGNIFY]
        return np.flatnonzero(self.of(labels)) if labels else np.zeros(0, np.intp)

    @cached_property
    def around(self) -> dict[int, tuple[int, ...]]:
        """By class those of the phases right around its phases."""
        codes = set[int]()
        for some in pieces(len(self)):
            is_inner = self.parent[some] >= 0
            outer = self.label[self.parent[some][is_inner]].astype(np.int64)
            codes.update(distinct(outer * len(self.classes) + self.label[some][is_inner]).tolist())
        around: dict[int, tuple[int, ...]] = {}
        for outer_label, label in (divmod(code, len(self.classes)) for code in sorted(codes)):
            around[label] = (*around.get(label, ()), outer_label)
        return around

    @cached_property
    def interrupted(self) -> NDArray[np.bool_]:
        """[m] phases with one of `Meter.magnify` inside. They count as cut: none is an ordinary one of its kind."""
        around, rows = np.zeros(len(self), bool), self.parent[self.magnify]
        while len(rows := rows[rows >= 0]):
            around[rows] = True
            rows = self.parent[rows]
        return around

    @cached_property
    def ended(self) -> NDArray[np.int64]:
        """Phases of each class that came to their end; one with repetitions inside is none for means, but it is
        counted."""
        return np.bincount(self.label[~self.cut | self.interrupted], minlength=len(self.classes))

    def samples_of(self, labels: Sequence[int], batch: float | None) -> float | None:
        """The mean number of samples of the phases of these classes that ended; ``batch`` is the stated one. None where
        it is not known."""
        if not self.samples.any():
            return batch
        samples = self.samples[self.of(labels) & (~self.cut | self.interrupted)]
        if not len(samples) or (batch is None and not samples.all()):
            return batch
        return float(np.where(samples > 0, samples, batch or 0.0).mean())

    def tokens_of(self, labels: Sequence[int]) -> float | None:
        """The mean number of tokens of the phases of these classes that ended; None where one has none."""
        tokens = self.tokens[self.of(labels) & (~self.cut | self.interrupted)]
        return float(tokens.mean()) if len(tokens) and tokens.all() else None

    def of(self, labels: Sequence[int]) -> NDArray[np.bool_]:
        """[m] which phases are of these classes."""
        wanted = np.zeros(len(self.classes), bool)
        wanted[list(labels)] = True
        return wanted[self.label]


def pieces(count: int, at_a_time: int | None = None) -> Iterator[slice]:
    """All of ``count`` rows, so many in each piece; `AT_A_TIME` without a number."""
    step = AT_A_TIME if at_a_time is None else at_a_time
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def moments_of(*times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """All of some times once, in order: as `numpy.unique`, but a merge sort, as most of them lie in order already."""
    every = np.sort(np.concatenate(times_ns), kind="stable")
    is_new = np.append(np.ones(min(len(every), 1), bool), every[1:] > every[:-1])
    return np.asarray(every[is_new])


def merge_intervals(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of intervals [m] as disjoint intervals in order."""
    if not len(begin):
        return begin, end
    begin, end = _sorted(begin, end)
    if all(np.all(begin[some][1:] > end[some][:-1]) for some in _overlapping_pieces(len(begin))):
        return begin, end  # disjoint as they are, which millions of outermost phases are: no copies
    reach = np.maximum.accumulate(end)
    starts = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    return begin[starts], reach[np.append(starts[1:] - 1, len(begin) - 1)]


def without(begin: Ints, end: Ints, hole_begin: Ints, hole_end: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals in order, less others: what is left of them, as disjoint intervals in order."""
    if not len(hole_begin):
        return begin, end
    hole_begin, hole_end = merge_intervals(hole_begin, hole_end)
    at = moments_of(begin, end, hole_begin, hole_end)

    def is_open(begins: Ints, ends: Ints) -> NDArray[np.bool_]:
        return np.asarray(np.searchsorted(begins, at[:-1], "right") > np.searchsorted(ends, at[:-1], "right"))

    left = is_open(begin, end) & ~is_open(hole_begin, hole_end)
    return at[:-1][left], at[1:][left]


def any_overlap(begin: Ints, end: Ints) -> bool:
    """Whether any two of the intervals overlap by more than an edge."""
    begin, end = _sorted(begin, end)
    return any(bool(np.any(begin[some][1:] < end[some][:-1])) for some in _overlapping_pieces(len(begin)))


def _overlapping_pieces(count: int) -> Iterator[slice]:
    """All of ``count`` rows in pieces, each with the first row of the next."""
    return (slice(some.start, some.stop + 1) for some in pieces(count))


def _sorted(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals in the order of their beginnings, which phases nearly always are in: no copies then."""
    if all(np.all(begin[some][1:] >= begin[some][:-1]) for some in _overlapping_pieces(len(begin))):
        return begin, end
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def distinct(numbers: NDArray[_Integer]) -> NDArray[_Integer]:
    """Each number once, in order. ``np.unique`` loads masked arrays, which takes as long as reading a run's phases."""
    ordered = np.sort(numbers, axis=None)
    is_first = np.concatenate([np.ones(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1]])
    each: NDArray[_Integer] = ordered[is_first]
    return each


def as_range(which: NDArray[np.bool_]) -> NDArray[np.bool_] | slice:
    """The same as a slice where all of it lies together: what a slice takes is no copy."""
    first, count = int(np.argmax(which)) if len(which) else 0, int(np.count_nonzero(which))
    together = slice(first, first + count)
    return together if which[together].all() else which


def select_phases(phases: Phases, which: NDArray[np.bool_]) -> Phases:
    """The phases ``which`` [m] alone; one whose parent is not among them is outermost."""
    place = np.append(np.cumsum(which, dtype=np.int32) - np.int32(1), np.int32(-1))
    place[:-1][~which] = -1
    others = ("classes", "is_unstepped")
    columns = {name: getattr(phases, name)[which] for name in Phases.__dataclass_fields__ if name not in others}
    return replace(phases, **columns | {"parent": place[columns["parent"]]})


def read_phases(group: h5py.Group) -> Phases:
    """The phases of a run file. Raises KeyError, TypeError or ValueError when they contradict themselves."""
    begin, end = (group[name][:].astype(np.int64, copy=False) for name in ("begin_ns", "end_ns"))
    for edges in (begin, end):
        check_times(edges, "a phase")
    if np.any(end < begin):
        raise ValueError("a phase ends before it begins")
    kinds = read_objects(group["kinds"])
    kind, parent, process = (group[name].astype(np.int32)[:] for name in ("kind", "parent", "process"))
    if kind.min(initial=0) < 0 or kind.max(initial=-1) >= len(kinds) or parent.min(initial=-1) < -1:
        raise ValueError("a phase of a kind or inside a phase that is not listed")
    if any(np.any(parent[some] >= np.arange(some.start, some.stop)) for some in pieces(len(parent))):
        raise ValueError("a phase is listed before the phase around it")
    depth, label, classes = _classify(kind, parent, kinds)
    cut = group["cut"][:].astype(bool)
    bounds = [_bound(group, name, len(begin)) for name in BOUND_COLUMNS]
    updates = {i for i, entry in enumerate(kinds) if entry["name"] == "update"}
    is_unstepped = bool(updates) and not bool(np.isin(kind, list(updates)).any())
    samples, tokens = (_counts(group, name, len(begin)) for name in COUNT_COLUMNS)
    phases = Phases(
        begin, end, label, parent, depth, process, cut, classes, bounds[0], bounds[1], samples, tokens, is_unstepped
    )
    cut |= phases.interrupted
    return phases


def split_by_setting(phases: Phases, timeline: Timeline) -> Phases:
    """The phases with classes that are apart by what drivers enforced while they ran. Those during which that changed
    are of no setting (`Timeline.changing`). The same phases where all ran under one setting."""
    if not timeline.settings:
        return phases
    changing = timeline.changing
    kinds = (*dict.fromkeys(timeline.settings), changing)
    of_span = np.array([kinds.index(setting) for setting in timeline.settings])
    code = np.empty(len(phases), np.int64)
    for some in pieces(len(phases)):
        span, is_in = timeline.spans(phases.begin_ns[some], phases.end_ns[some])
        setting = np.where(is_in, of_span[span], kinds.index(changing))
        code[some] = phases.label[some].astype(np.int64) * len(kinds) + setting
    different = distinct(np.concatenate([code[:0], *(distinct(code[some]) for some in pieces(len(code)))])).tolist()
    settings = {kinds[number % len(kinds)] for number in different}
    if len(settings) < 2 and changing not in settings:
        return phases
    label = np.empty(len(phases), np.int32)
    for some in pieces(len(phases)):
        label[some] = np.searchsorted(different, code[some])
    classes = (replace(phases.classes[n // len(kinds)], setting=kinds[n % len(kinds)]) for n in different)
    return replace(phases, label=label, classes=tuple(classes))


def _bound(group: h5py.Group, name: str, m: int) -> Whole:
    if name not in group:
        return np.broadcast_to(np.zeros(1, np.int32), m)
    bound: Whole = group[name][:]
    # More than two seconds: hardly ever.
    return bound if bound.max(initial=0) > np.iinfo(np.int32).max else bound.astype(np.int32)


def _counts(group: h5py.Group, name: str, m: int) -> Small:
    if name not in group:
        return np.broadcast_to(np.zeros(1, np.int32), m)
    counts: Small = group[name][:].astype(np.int32)
    if counts.min(initial=0) < 0:
        raise ValueError(f"a phase of fewer than no {name}")
    return counts


def _classify(kind: Small, parent: Small, kinds: list[dict[str, Any]]) -> tuple[Small, Small, tuple[PhaseClass, ...]]:
    """Depth and class of every phase: two vectorised passes a level of nesting."""
    depth, label = np.full(len(kind), -1, np.int32), np.full(len(kind), -1, np.int32)
    classes: list[PhaseClass] = []
    index: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...], str], int] = {}

    def keys_of(level: int, some: slice) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Phases of a level, and the class around each (-1 for none) and its kind as one number, in their order."""
        above = parent[some]
        is_of = above < 0 if level == 0 else (above >= 0) & (depth[above] == level - 1)
        rows = np.flatnonzero(is_of) + int(some.start)
        around = np.where(parent[rows] < 0, -1, label[parent[rows]]).astype(np.int64)
        return rows, (around + 1) * len(kinds) + kind[rows]

    for level in count():
        each = [distinct(keys_of(level, some)[1]) for some in pieces(len(kind))]
        keys = distinct(np.concatenate([np.zeros(0, np.int64), *each]))
        if not len(keys):
            break
        numbers = []
        for key in keys.tolist():
            outer, k = key // len(kinds) - 1, key % len(kinds)
            around = classes[outer] if outer >= 0 else PhaseClass((), {}, "")
            of_kind, _ = with_figures(str(kinds[k]["name"]), kinds[k].get("attributes") or {})
            both = {**around.attributes, **of_kind}
            attributes = {n: _hashable(v) for n, v in both.items() if not is_not_known(n, v)}
            timing = str(kinds[k].get("timing", "host"))
            this = PhaseClass((*around.path, str(kinds[k]["name"])), attributes, timing)
            same = (this.path, tuple((n, canonical_text(v)) for n, v in this.group), this.timing)
            if same not in index:
                index[same] = len(classes)
                classes.append(this)
            else:
                classes[index[same]] = _with_operations(classes[index[same]], this)
            numbers.append(index[same])
        for some in pieces(len(kind)):
            rows, own = keys_of(level, some)
            label[rows] = np.array(numbers, np.int32)[np.searchsorted(keys, own)]
            depth[rows] = level
    return depth, label, tuple(classes)


def dropped_attributes(group: h5py.Group) -> tuple[str, ...]:
    """What to say of attributes in a run file that are no figures, one line for each name of them."""
    faults: dict[str, str] = {}
    for kind in read_objects(group["kinds"]):
        _, of_kind = with_figures(str(kind["name"]), kind.get("attributes") or {})
        faults = of_kind | faults
    return tuple(faults.values())


def crowded_classes(classes: Sequence[PhaseClass]) -> list[str]:
    """What to say of attributes with very many values, at the outermost phases that have them."""
    inherited: dict[tuple[str, ...], set[str]] = {}
    for kind in classes:
        inherited.setdefault(kind.path, set()).update(kind.attributes)
    return crowded(
        (kind.name, {k: v for k, v in kind.attributes.items() if k not in inherited.get(kind.path[:-1], ())})
        for kind in classes
    )


def _with_operations(known: PhaseClass, other: PhaseClass) -> PhaseClass:
    """``known``, with both counts of operations where the two differ: two models under one name have no count."""
    both = tuple(c.attributes[OPERATIONS] for c in (known, other) if c.attributes.get(OPERATIONS) is not None)
    if len(both) < 2 or both[0] == both[1] or isinstance(both[0], tuple):
        return known
    return replace(known, attributes={**known.attributes, OPERATIONS: both})


def canonical_text(value: Any) -> str:
    """Equal for attributes that are the same: 64 and 64.0 are one number, the text "64" is none, and True is not 1."""
    return repr(int(value)) if isinstance(value, float) and value.is_integer() else repr(value)


def positive_number(attributes: Mapping[str, object], name: str) -> float | None:
    """An attribute that is a positive number, else None."""
    value = attributes.get(name)
    return float(value) if is_number_cell(value) and value > 0 else None


def _hashable(value: Any) -> Any:
    """An attribute as something that sets groups apart; what is nested counts by its text."""
    if isinstance(value, list) and not any(isinstance(v, list | dict) for v in value):
        return tuple(value)
    return json.dumps(value) if isinstance(value, list | dict) else value
