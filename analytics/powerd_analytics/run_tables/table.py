"""The table of a run: joules and seconds of every kind of phase, totals of every group, and the run as a whole.

`phase_table` gives sets of rows for each part of the run (the lines of one device and one provenance):

- a `PhaseRow` for each kind of phase: the mean of its repeats. Kinds that the sensor does not resolve get the number of
  the phase-folded regression, or say why there is none;
- a `TotalRow` for each group (such as one model at one batch size), from its first phase to its last, with the rest
  between its phases, so that phases + rest = total;
- a `RunRow` for the whole recording, with phases + rest = run.

`powerd_analytics.frame.figures` makes a frame of it. Field names are the column names of every output; they carry units
and stay. Where ``is_lower_bound``, a line stood at full scale: joules, watts and what is proportional to them are the
least that they can be, figures per joule the most, and there is no ``u95_j``. The other uncertainties are those of the
bound. Where a line clipped at negative full scale they are no bound, and there is no uncertainty at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import (
    Part,
    PhaseColumns,
    interval_energies,
    load_parts,
    whole_of,
)
from powerd_analytics.energy.idle import IdleRow, idle_of
from powerd_analytics.energy.magnified import energies_with_magnified, magnified_kinds
from powerd_analytics.energy.metrics import edp_js, gflops_per_w, gflops_per_w_paper, mean_power_w
from powerd_analytics.energy.reasons import (
    WITHOUT_READINGS,
    Clip,
    find_clipping,
    in_step,
    no_energy,
    not_resolvable,
    phase_note,
    sensor,
    sensor_faults,
    usable,
    without_readings,
)
from powerd_analytics.energy.uncertainty import (
    COVERAGE_FACTOR,
    MEAN_COLUMNS,
    ROUNDING,
    Estimate,
    average_of,
    beyond_rounding,
    sum_of,
    without_rounding,
)
from powerd_analytics.output.export import is_number
from powerd_analytics.output.text import digits, is_number_cell, join_texts, seconds
from powerd_analytics.runs.in_force import ENFORCED_CAP, TOLERANCE_W, Enforced, knob_of
from powerd_analytics.runs.kept import keep, key_of_run, recall
from powerd_analytics.runs.nesting import EVALUATIONS, FORWARD, PASSES_OF, UPDATE, containers, key_of, parts_of
from powerd_analytics.runs.phases import (
    EXECUTED,
    LAYER,
    OPERATIONS,
    PhaseClass,
    Phases,
    any_overlap,
    as_range,
    merge_intervals,
    moments_of,
    pieces,
    positive_number,
    without,
)
from powerd_analytics.runs.ranks import NOBODY, note_of, other_programs, present_in, ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.runs.settings import Settings, settings_of
from powerd_analytics.runs.signals import load_bounded
from powerd_client.energies.phase import BASELINE
from powerd_client.signals.signal import Signal
from powerd_core.errors import AnalysisError
from powerd_core.model import Fault
from powerd_core.settings import KNOB_OF_NAME
from powerd_core.text import times

RESOLVABLE_SHARE = 0.9
"""A kind has a number when at least this share of its phases is resolvable: a mean over the long ones is no mean."""
LEAST_REST = 0.005
"""Share of the whole from which on a rest is shown."""
READINGS_INSIDE = 2
"""Times what the slowest sensor tells apart, from which on a phase has readings of its own."""
UNSURE = "too few readings to tell how sure that is"

INTEGRAL, FOLDED, MAGNIFIED, DIFFERENCE = "integral", "folded", "magnified", "difference"
BY_REPETITIONS = (MAGNIFIED, DIFFERENCE)
MODELLED = "modelled"
FORWARD_BACKWARD = "forward+backward"
ITERATION = "iteration"
NOT_OF_SAMPLES = ("data", "communication", UPDATE)
"""Phases that work through no samples: for people they have no samples a second."""

# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Phases of one kind on one device. Without a number in ``j_per_batch``, ``note`` says why there is none."""

    group: Mapping[str, Any]
    phase: str
    path: str
    device: str
    provenance: str
    timing: str
    iterations: int
    """Phases that ended; those cut off are in the note."""
    n: int
    """Of how many of them ``j_per_batch`` is the mean: those mostly without readings are left out."""
    s_per_batch: float | None
    j_per_batch: float | None
    u95_j: float | None
    u_statistical_j: float | None
    u_systematic_j: float | None
    power_w: float | None
    samples_per_s: float | None
    missing_s: float
    """Seconds without readings in all its phases together."""
    off_by_j: float
    """The most that missing readings can have moved the mean; part of ``u_systematic_j``. Clipped ones apart."""
    is_lower_bound: bool
    note: str
    samples_per_batch: float | None = None
    """The mean number of samples of one phase, where some had another size than ``batch_size``."""
    tokens_per_batch: float | None = None
    """The mean number of tokens of one phase."""
    sd_s: float | None = None
    sd_j: float | None = None
    """Spread of the single phases: their standard deviation, noise of the sensor included. It is no uncertainty of the
    mean, and None where single phases have no joules."""
    rectangle_j: float = 0.0
    """The one rectangle that the limits within ``u_systematic_j`` amount to."""
    ranks: int = 1
    """Ranks that share the device: joules and watts are then the mean of one rank's share."""
    method: str = INTEGRAL
    """Where ``j_per_batch`` comes from: mostly from readings inside each phase (`INTEGRAL`), from the model that all
    phases of the kind share (`FOLDED`), from repetitions of the phase alone (`MAGNIFIED`), or
    from what such phases leave of the iteration (`DIFFERENCE`)."""

    is_iteration: bool = False
    """Whether these phases are the iterations of a training."""
    rest_j: float | None = None
    """Of ``j_per_batch``, what no phase inside has; None where none is inside. Layers and what overlaps are none."""
    rest_u95_j: float | None = None
    """That of the time in no phase inside: what it and the phases have wrong alike is in it once. None where that time
    has other joules than ``rest_j``: phases inside overlap, or were repeated alone, or too many are not resolvable."""
    layer_rest: Estimate | None = None
    """Of ``j_per_batch``, what no layer inside has; None where no layers are inside."""
    holds_others: bool = False
    """Whether phases of other groups are inside, so that its joules are more than its group's."""
    own: Mapping[str, Any] | None = None
    """Its own attributes, where they are not those of its group: it lies in an iteration that states others."""

    @property
    def is_resolvable(self) -> bool:
        return self.j_per_batch is not None

    @property
    def place(self) -> tuple[str, ...]:
        """The names of the phases around it, and its own."""
        return tuple(self.path.split("/"))


@dataclass(frozen=True, slots=True)
class TotalRow:
    """All phases of one group (such as one model and batch size) on one device, from first to last."""

    group: Mapping[str, Any]
    device: str
    provenance: str
    iterations: int
    time_s: float
    energy_j: float | None
    u95_j: float | None
    u_statistical_j: float | None
    u_systematic_j: float | None
    power_w: float | None
    edp_js: float | None
    samples_per_s: float | None
    gflops_per_w_paper: float | None
    """Forward and backward each count the model's operations once (Castro et al.)."""
    gflops_per_w_executed: float | None
    """Of the operations that forward and backward really run, where the phases' attribute `EXECUTED` says them."""
    gflops_basis: str
    """Whose joules these figures divide by: ``forward+backward`` or ``iteration``; one for all groups of a device."""
    rest_j: float | None
    """Energy in none of the group's resolvable parts (`powerd_analytics.runs.nesting.containers`)."""
    missing_s: float
    is_lower_bound: bool
    note: str
    is_mixed: bool = False
    """Phases of different kinds and numbers without an iteration, evaluation beside the passes, or an optimizer that is
    never stepped: there is no figure of one batch."""
    samples_per_batch: float | None = None
    """The mean number of samples of one iteration, where some had another size than ``batch_size``."""
    tokens_per_batch: float | None = None
    """The mean number of tokens of one iteration."""
    rectangle_j: float = 0.0
    """The one rectangle that the limits within ``u_systematic_j`` amount to."""
    off_by_j: float = 0.0
    """The most that missing readings can have moved it; part of ``u_systematic_j``."""
    batches_per_optimizer_step: float | None = None
    """Iterations a step of the optimizer, where gradients of several are accumulated."""
    ranks_counted: int = 1
    """Ranks whose iterations ``iterations`` counts: of those that share the device, the ones with such phases."""
    rest_u95_j: float | None = None
    """As that of a `PhaseRow`."""


@dataclass(frozen=True, slots=True)
class LineOfRun:
    """What one line took over the whole recording."""

    line: str
    energy_j: float | None
    u95_j: float | None
    is_lower_bound: bool


@dataclass(frozen=True, slots=True)
class RunRow:
    """The whole recording on one device: the plain integral, and what the outermost phases and the rest make of it."""

    device: str
    provenance: str
    time_s: float
    energy_j: float | None
    """None when a line that feeds the device has no readings in the run."""
    u95_j: float | None
    u_statistical_j: float | None
    u_systematic_j: float | None
    power_w: float | None
    phases_j: float | None
    rest_j: float | None
    missing_s: float
    is_lower_bound: bool
    note: str
    rectangle_j: float = 0.0
    """The one rectangle that the limits within ``u_systematic_j`` amount to."""
    off_by_j: float = 0.0
    missing_word: str = WITHOUT_READINGS
    """What ``missing_s`` are: ``saturated`` where the sensors answered and stood at full scale."""
    faults: str = ""
    """The sensors that saturated, stood still or did not answer, and what to do."""
    magnified_j: float | None = None
    """The part of ``phases_j`` in which `Meter.magnify` repeated phases, which is in no group's total."""

    rest_u95_j: float | None = None
    """As that of a `PhaseRow`."""
    lines: tuple[LineOfRun, ...] = ()
    """The lines that feed the device: their joules add up to its own."""


Row = PhaseRow | TotalRow | RunRow


@dataclass(frozen=True, slots=True)
class PhaseTable:
    """Everything that `joules tables` prints of one run."""

    phases: tuple[PhaseRow, ...]
    totals: tuple[TotalRow, ...]
    runs: tuple[RunRow, ...]
    idle: tuple[IdleRow, ...] = ()
    """Where energies above idle are asked for: idle power of each part."""


# -- groups of phases --------------------------------------------------------------------------------------------------

GroupKey = tuple[tuple[str, str], ...]


def group_key(group: Mapping[str, Any]) -> GroupKey:
    """Attributes as something to look a group up by: 64 and 64.0 are one number, the text "64" and True are none."""
    return key_of(group.items())


def groups(run: Run) -> dict[GroupKey, list[int]]:
    """The classes of each group; groups and classes in the order in which they first occur. Of groups that differ in
    the setting alone that of the phases during which it changed is the last, and kinds are in the same order in all.
    What `Meter.magnify` repeats is in no group."""
    label, classes = run.phases.label, run.phases.classes
    first: dict[int, int] = {}
    for i, kind in enumerate(classes):
        of_class = label == i
        if of_class.any() and not kind.is_magnified:
            first[i] = int(np.argmax(of_class))
    families: dict[GroupKey, list[int]] = {}
    for i in sorted(first, key=first.__getitem__):
        families.setdefault(group_key(dict(classes[i].family)), []).append(i)
    key_of = {i: group_key(dict(classes[i].group)) for i in first}
    by_group: dict[GroupKey, list[int]] = {}
    for family in families.values():
        by_group |= {key_of[i]: [] for i in sorted(family, key=lambda i: _is_changing(run, i))}
        of_kind: dict[_Kind, list[int]] = {}
        for i in family:
            of_kind.setdefault(_kind(run, i), []).append(i)
        for i in chain.from_iterable(of_kind.values()):
            by_group[key_of[i]].append(i)
    return by_group


@dataclass(frozen=True, slots=True)
class PhaseGroup:
    """What the phases of one group have in common: their attributes and when they ran (host's clock)."""

    attributes: Mapping[str, Any]
    begin_ns: int
    end_ns: int
    setting: Enforced | None = None
    """In a run in which that changed."""


def groups_of(run: Run) -> dict[GroupKey, PhaseGroup]:
    """The groups by their attributes but for the operations. Raises `AnalysisError` where one model's name stands for
    two numbers of operations."""
    p = run.phases
    first = np.full(len(p.classes), np.iinfo(np.int64).max)
    last = np.full(len(p.classes), np.iinfo(np.int64).min)
    np.minimum.at(first, p.label, p.begin_ns)
    np.maximum.at(last, p.label, p.end_ns)
    groups: dict[GroupKey, PhaseGroup] = {}
    for kind, begin, end in zip(p.classes, first.tolist(), last.tolist(), strict=True):
        if kind.is_magnified:
            continue
        key = group_key(dict(kind.group))
        before = groups.get(key, PhaseGroup({}, begin, end))
        own = _of_group(kind)
        both = {**own, **before.attributes}
        operations = {v for a in (own, both) if (v := a.get(OPERATIONS)) is not None}
        if len(operations) > 1 or any(isinstance(v, tuple) for v in operations):
            model = f"model {both['model']!r}" if both.get("model") is not None else "one model"
            raise AnalysisError(f"{run.path}: phases of {model} have different {OPERATIONS}: give each model its name")
        groups[key] = PhaseGroup(both, min(begin, before.begin_ns), max(end, before.end_ns), kind.setting)
    return groups


def _of_group(kind: PhaseClass) -> Mapping[str, Any]:
    """The attributes of a class as far as they are of its group; operations only where they are of the same model."""
    if kind.home is None:
        return kind.attributes
    is_alike = kind.attributes.get("model") == dict(kind.home).get("model")
    counts = {k: v for k, v in kind.attributes.items() if k in (OPERATIONS, EXECUTED) and is_alike}
    return {**dict(kind.home), **counts}


def labels_of(run: Run, row: PhaseRow | TotalRow) -> list[int]:
    """The classes of phases that a row is about."""
    key = group_key(row.group)
    kinds = ((i, kind) for i, kind in enumerate(run.phases.classes) if not kind.is_magnified)
    own = [(i, kind) for i, kind in kinds if group_key(dict(kind.group)) == key]
    if isinstance(row, PhaseRow):
        own = [(i, kind) for i, kind in own if ("/".join(kind.shown), kind.timing) == (row.path, row.timing)]
    return [i for i, _ in own]


def _is_changing(run: Run, label: int) -> bool:
    setting = run.phases.classes[label].setting
    return setting is not None and setting.is_changing


def family_of(run: Run, labels: Sequence[int]) -> Sequence[int]:
    """The classes of a group and of those that differ from it in the setting alone, such as the power cap."""
    classes = run.phases.classes
    if not labels or classes[labels[0]].setting is None:
        return labels
    key = group_key(dict(classes[labels[0]].family))
    present = set(np.unique(run.phases.label).tolist())
    return [
        i
        for i, kind in enumerate(classes)
        if i in present and not kind.is_magnified and group_key(dict(kind.family)) == key
    ]


def iterations_of(run: Run, labels: Sequence[int]) -> int:
    """Iterations among phases of a group's classes, `iteration_labels`."""
    own = [i for i in iteration_labels(run, family_of(run, labels)) if i in labels]
    return max(_ended(run, own).values(), default=0)


def iteration_labels(run: Run, labels: Sequence[int]) -> list[int]:
    """The classes that are iterations: those called so, or around the passes of a training (`with_iterations`), else
    forward passes, else the commonest phase."""
    classes = run.phases.classes
    iterations = [i for i in labels if classes[i].is_iteration or classes[i].name == ITERATION]
    if named := iterations or [i for i in labels if classes[i].name == FORWARD]:
        return named
    ended = _ended(run, labels)
    return [i for i in labels if _kind(run, i) == max(ended, key=ended.__getitem__)]


_Kind = tuple[tuple[str, ...], str]
"""Path and timing of phases: of one family, all that sets kinds apart but the setting."""


def _kind(run: Run, label: int) -> _Kind:
    return run.phases.classes[label].shown, run.phases.classes[label].timing


def _ended(run: Run, labels: Sequence[int]) -> Counter[_Kind]:
    """Phases of each kind that came to their end; one with repetitions inside is none for means, but it is counted."""
    ended: Counter[_Kind] = Counter()
    for i in labels:
        ended[_kind(run, i)] += int(run.phases.ended[i])
    return ended


def outermost(run: Run, labels: Sequence[int]) -> NDArray[np.bool_]:
    """[m] phases of these classes that no other phase of these classes encloses directly."""
    p = run.phases
    inside = p.of(labels)
    outer = inside.copy()
    for some in pieces(len(p)):
        parent = p.parent[some]
        outer[some] &= ~(inside[parent] & (parent >= 0))
    return outer


def stretches_of(run: Run, labels: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When a group ran, as disjoint intervals: in its outermost phases, less the phases of other groups inside these.

    Where the setting changed, the groups of a family divide the outermost phases of all of it. Between two changes a
    setting has the time from its first phase to its last, and what lies before and behind within an outermost phase
    that begins or ends there. What is left is that of the phases during which the setting changed: its iterations begin
    under one setting and end under another, and none of their time is in the joules of an iteration of either.
    """
    p, family = run.phases, family_of(run, labels)
    outer = as_range(outermost(run, family))
    begin, end = merge_intervals(p.begin_ns[outer], p.end_ns[outer])
    others = _of_others(run, family, begin, end)
    if p.classes[labels[0]].setting is None:
        return without(begin, end, *others)
    clean = p.of([i for i in family if not _is_changing(run, i)])
    whole = clean & ~_inside_changing(run, family)
    edges = ((begin, begin), (end, end))
    first, last = _reach(run, [(p.begin_ns[whole], p.end_ns[whole]), *edges])
    # Where no iteration is whole, phases of one that is not count as any: edges alone may be those of a pause.
    first_whole, last_whole = _reach(run, [(p.begin_ns[whole], p.end_ns[whole])])
    first_of_all, last_of_all = _reach(run, [(p.begin_ns[clean], p.end_ns[clean]), *edges])
    has_whole = first_whole < last_whole
    first, last = np.where(has_whole, first, first_of_all), np.where(has_whole, last, last_of_all)
    setting = p.classes[labels[0]].setting
    some = first < last
    if _is_changing(run, labels[0]):
        return without(*without(begin, end, first[some], last[some]), *others)
    some &= np.array([s == setting for s in run.enforced.settings])
    return without(*without(begin, end, *without(begin[:1], end[-1:], first[some], last[some])), *others)


def _others_inside(run: Run, family: Sequence[int]) -> NDArray[np.bool_]:
    """[m] phases of other groups right inside phases of a family. Layers and what overlaps are in no group's sums."""
    p = run.phases
    beside = [i for i, kind in enumerate(p.classes) if kind.is_beside]
    if not set(range(len(p.classes))) - {*family, *beside} or set(family) & set(beside):
        return np.zeros(len(p), bool)
    return ~p.of([*family, *beside]) & (p.parent >= 0) & p.of(family)[p.parent]


def _of_others(
    run: Run, family: Sequence[int], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What of a family's outermost phases, ``begin`` to ``end``, is time of other groups: that of their phases inside,
    less that of the family's own inside these."""
    p, others = run.phases, _others_inside(run, family)
    if not others.any():
        return begin[:0], end[:0]
    own = outermost(run, family)
    at = moments_of(begin, end, *(edges[some] for some in (own, others) for edges in (p.begin_ns, p.end_ns)))

    def open_phases(some: NDArray[np.bool_]) -> NDArray[np.intp]:
        begins, ends = np.sort(p.begin_ns[some]), np.sort(p.end_ns[some])
        return np.searchsorted(begins, at[:-1], "right") - np.searchsorted(ends, at[:-1], "right")

    is_own = open_phases(own) > open_phases(others)
    return without(begin, end, at[:-1][is_own], at[1:][is_own])


def _reach(run: Run, each: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> tuple[Any, Any]:
    """[k] the first begin and the last end of the intervals that lie between two changes of the setting."""
    count = len(run.enforced.settings)
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    for begin, end in each:
        span, is_in = run.enforced.spans(begin, end)
        np.minimum.at(first, span[is_in], begin[is_in])
        np.maximum.at(last, span[is_in], end[is_in])
    return first, last


def _inside_changing(run: Run, family: Sequence[int]) -> NDArray[np.bool_]:
    """[m] phases within an iteration during which the setting changed."""
    p = run.phases
    return _inside(p, p.of([i for i in iteration_labels(run, family) if _is_changing(run, i)]))


def group_text(group: Mapping[str, Any], fallback: str = "run") -> str:
    """A group for an axis: the model's name, the product's, whatever else it has, the batch size."""

    def part(name: str, value: Any) -> str:
        knob, unit = knob_of(name)
        if knob:
            what = KNOB_OF_NAME[knob].heading if knob in KNOB_OF_NAME else knob
            return f"{what} {value} {unit}" if is_number_cell(value) else f"{what} {value}"
        if name in ("model", "device_name", PASSES_OF):
            return str(value)
        if name == "overlaps":
            return "beside other phases" if value is True else f"{name} {value}"
        if name == "gpus":
            return f"{value} GPU{'' if value == 1 else 's'}"
        return f"batch {value}" if name == "batch_size" else f"{name} {attribute_text(value)}"

    cap = group.get(ENFORCED_CAP)
    is_as_stated = is_number_cell(cap) and abs((positive_number(group, "power_cap_w") or 0.0) - cap) <= TOLERANCE_W
    shown = [k for k in group if k != "power_cap_w" or not is_as_stated]
    names = sorted(shown, key=lambda k: (k != "model", k != "device_name", k == "batch_size"))
    return "\n".join(part(k, group[k]) for k in names) or fallback


def group_line(group: Mapping[str, Any]) -> str:
    """`group_text` in one line, empty for phases without a group."""
    return group_text(group, "").replace("\n", ", ")


def common_settings(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What all groups that have attributes agree in, but for the batch size and the layer."""
    named = [g for g in groups if g and LAYER not in g]
    every = named[0].items() if named else ()
    return {k: v for k, v in every if k != "batch_size" and all(k in g and g[k] == v for g in named)}


def attribute_text(value: Any) -> str:
    """An attribute for people; a text that reads like a number is another value than the number, and in quotes."""
    return f'"{value}"' if isinstance(value, str) and is_number(value) else str(value)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A part of the run with the energies of all phases of those who take joules from its device."""

    run: Run
    part: Part
    columns: PhaseColumns
    tracks: NDArray[np.int32]
    """Rank of each phase [m]."""
    ranks: int
    """How many ranks share the device."""
    settings: Settings
    is_told: NDArray[np.bool_]
    """By class, whether the sensor tells the energy of enough of its phases."""

    def sharing(self, labels: Sequence[int]) -> int:
        """Ranks that share what phases of these classes take: processes that are none take the whole."""
        return self.ranks if (self.run.phases.of(labels) & (self.tracks != NOBODY)).any() else 1

    def setting_note(self, labels: Sequence[int]) -> str:
        """How what was enforced while phases of these classes ran is something else than they state."""
        p, kind = self.run.phases, self.run.phases.classes[labels[0]]
        own = as_range(p.of(labels))
        span = int(p.begin_ns[own].min()), int(p.end_ns[own].max())
        return self.settings.note_of(self.part.device, *span, kind.attributes, kind.setting)


def phase_table(
    run: Run, device: str | None = None, *, above_idle: bool = False, progress: Progress = no_progress
) -> PhaseTable:
    """The table of a run, for one device or all; with ``above_idle`` beside the idle power of its devices.

    Raises `AnalysisError` for an unknown device, and for idle power of a run without a baseline.
    """
    parts = load_parts(run, device, lambda share, text: progress(0.6 * share, text))
    idle = tuple(row for part in parts if (row := idle_of(run, part)) is not None) if above_idle else ()
    if above_idle and not idle:
        raise AnalysisError(
            f"{run.path} has no baseline that its sensors can tell: call meter.baseline(seconds) before and after the "
            "training, or record with `joules record --baseline SECONDS`"
        )
    table = table_of(run, parts, progress=lambda share, text: progress(0.6 + 0.4 * share, text))
    return replace(table, idle=idle)


_KEPT = "table"
_KINDS = (PhaseTable, PhaseRow, TotalRow, RunRow, LineOfRun, Estimate)


def known_table(run: Run) -> PhaseTable | None:
    """The kept table of a run as it was read; None where nobody has worked it out."""
    table: PhaseTable | None = recall(key_of_run(run), _KEPT, _KINDS)
    return table


def kept_table(
    run: Run,
    device: str | None = None,
    parts: Sequence[Part] | None = None,
    *,
    is_anew: bool = False,
    progress: Progress = no_progress,
) -> PhaseTable:
    """The same of a run as it was read, from the user's cache where somebody has worked it out; else it is kept there.
    With ``is_anew`` it is worked out in any case, from the ``parts`` whose readings are in memory where these are
    given. Raises as `phase_table`."""
    if device is not None:
        run.device(device)
    key = key_of_run(run)
    table = None if is_anew else known_table(run)
    if table is None:
        if parts is None:
            table = phase_table(run, device, progress=progress)
        else:
            table = table_of(run, parts, progress=progress)
        if device is None:
            keep(key, _KEPT, table)
    if device is None:
        return table
    return PhaseTable(
        tuple(row for row in table.phases if row.device == device),
        tuple(row for row in table.totals if row.device == device),
        tuple(row for row in table.runs if row.device == device),
    )


def table_of(whole: Run, parts: Sequence[Part], *, progress: Progress = no_progress) -> PhaseTable:
    """The same from parts whose readings are in memory."""
    ranks, settings = ranks_of(whole), settings_of(whole)
    phases: list[PhaseRow] = []
    totals: list[TotalRow] = []
    runs: list[RunRow] = []
    for i, part in enumerate(parts):
        progress(i / len(parts), f"energies of {part.device}")
        run, sharing = ranks.on(whole, part.device)
        tracks = ranks.tracks(run)
        columns = energies_with_magnified(run, part)
        seen = _Seen(run, part, columns, tracks, sharing, settings, _told_kinds(run, columns))
        of_groups: list[tuple[TotalRow, _Efficiency]] = []
        for labels in groups(run).values():
            rows = _phase_rows(seen, labels)
            phases += rows.values()
            of_groups.append((_total_row(seen, labels, rows), _gflops_by_basis(seen, labels, rows)))
        totals += _on_one_basis(of_groups)
        runs.append(_run_row(seen, is_unused=ranks.are_many and not ranks.users(part.device)))
    return PhaseTable(tuple(phases), tuple(totals), tuple(runs))


# -- phases ------------------------------------------------------------------------------------------------------------


def _told_kinds(run: Run, columns: PhaseColumns) -> NDArray[np.bool_]:
    """[classes] whether enough of the phases are resolvable, and half of them not without readings."""
    p = run.phases
    ended, resolvable, used = (
        np.bincount(p.label[some], minlength=len(p.classes))
        for some in (~p.cut, ~p.cut & columns.resolvable, ~p.cut & usable(columns))
    )
    told: NDArray[np.bool_] = (resolvable >= RESOLVABLE_SHARE * ended) & (used >= 0.5 * ended)
    return told


def _phase_rows(seen: _Seen, labels: list[int]) -> dict[int, PhaseRow]:
    """Rows of a group by class, but for the phase around all batches: its figures are the group's totals."""
    run, classes = seen.run, seen.run.phases.classes
    family = family_of(run, labels)
    ended = _ended(run, family)
    n = max(_ended(run, iteration_labels(run, family)).values(), default=0)
    names = Counter(shown[-1] for shown in {classes[i].shown for i in labels})
    around, holding = _paths_around(family, run), _paths_around_others(run, family)
    outermost_labels = np.unique(run.phases.label[outermost(run, family)]).tolist()
    outer = {_kind(run, i) for i in outermost_labels if classes[i].name != BASELINE}
    rows = {}
    for i in labels:
        is_each_batch = ended[_kind(run, i)] == n
        has_inner = classes[i].shown in around
        if outer != {_kind(run, i)} or not has_inner or is_each_batch:
            shown = classes[i].shown
            name = shown[-1] if names[shown[-1]] == 1 else "/".join(shown)
            row = _phase_row(seen, i, name, seen.sharing(labels))
            if (has_inner and not is_each_batch) or _lacks_forward(run, labels):
                row = replace(row, samples_per_s=None)
            rows[i] = replace(row, holds_others=shown in holding)
    return rows


def _paths_around(labels: Sequence[int], run: Run) -> set[tuple[str, ...]]:
    """The paths of phases of the same group that have one of these phases inside."""
    classes, around, known = run.phases.classes, set[tuple[str, ...]](), set[int]()
    families = {classes[i].family for i in labels}
    open_labels = list(labels)
    while open_labels:
        for outer in run.phases.around.get(open_labels.pop(), ()):
            if outer not in known:  # what is around that is known as well
                known.add(outer)
                open_labels.append(outer)
    around.update(classes[i].shown for i in known if classes[i].family in families)
    return around


def _phase_row(seen: _Seen, label: int, name: str, ranks: int) -> PhaseRow:
    p, part, columns = seen.run.phases, seen.part, seen.columns
    kind, of_kind = p.classes[label], p.label == label
    ended = of_kind & ~p.cut
    used = ended & usable(columns)
    s_mean = float(columns.duration_s[ended].mean()) if ended.any() else None
    clip = find_clipping(part, p.begin_ns, p.end_ns, ended)
    magnified = magnified_kinds(seen.run, part).get(label)
    mean, shares, method, rest, layer_rest = None, "", INTEGRAL, _Rest(), None
    if s_mean and seen.is_told[label]:
        # Those left out are the short ones: the mean power holds for them too, the mean energy does not.
        scale = s_mean / float(columns.duration_s[used].mean()) / ranks
        mean = without_rounding(_mean_by_rank(columns, used, seen.tracks).scaled(scale))
        rest, layer_rest = _rest_inside(seen, used, scale), _layer_rest(seen, used, scale)
        note = phase_note(columns, of_kind, p.cut, clip)
        slowest = max(part.signals, key=lambda s: s.resolution_ns)
        is_folded = s_mean * 1e9 < READINGS_INSIDE * slowest.resolution_ns
        method = FOLDED if is_folded else INTEGRAL
        if magnified is not None and magnified.power_w is not None:
            method = DIFFERENCE if magnified.is_difference else MAGNIFIED
        elif is_folded:
            note = join_texts(f"folded over {int(used.sum())} phases: {sensor(slowest)}", note)
            note = join_texts(note, in_step(part, p.begin_ns[ended]))
        shares = f"mean per rank: each of {ranks} has 1/{ranks} of the device's power" if ranks > 1 else ""
    else:
        note = (
            not_resolvable(part, columns, ended, p.begin_ns, p.end_ns)
            if ended.any()
            else "none ended: all were cut off"
        )
    if magnified is not None:
        note = join_texts(note, magnified.note) if mean is None else join_texts(magnified.note, note)
    stated = positive_number({**dict(kind.group), **kind.attributes}, "batch_size")
    batch = p.samples_of([label], stated)
    return PhaseRow(
        group=dict(kind.group),
        is_iteration=kind.is_iteration,
        own=None if kind.home is None else dict(kind.own),
        phase=name,
        path="/".join(kind.shown),
        device=part.device,
        provenance=part.provenance,
        timing=kind.timing,
        iterations=int(ended.sum()),
        n=int(used.sum()) if mean else 0,
        s_per_batch=s_mean,
        j_per_batch=mean.energy_j if mean else None,
        **_uncertainties(mean, clip, mean.u95_j if mean else 0.0),
        power_w=mean.energy_j / s_mean if mean and s_mean else None,
        samples_per_s=batch / s_mean if batch and s_mean else None,
        samples_per_batch=None if batch == stated else batch,
        tokens_per_batch=_tokens(p, [label], batch, kind),
        missing_s=float(columns.missing_s[ended].sum()),
        off_by_j=float(columns.off_by_j[used].mean()) / ranks if used.any() else 0.0,
        sd_s=_spread(columns.duration_s[ended]),
        sd_j=_spread(columns.energy_j[used] / ranks) if mean and not clip else None,
        note=join_texts(shares, note, rest.note, clip.note(has_number=mean is not None), seen.setting_note([label])),
        ranks=ranks,
        method=method,
        rest_j=rest.energy_j,
        rest_u95_j=None if clip else rest.u95_j,
        layer_rest=layer_rest,
    )


@dataclass(frozen=True, slots=True)
class _Rest:
    """Joules that the parts of something leave of it; with a note where they are more than it."""

    energy_j: float | None = None
    u95_j: float | None = None
    note: str = ""

    @classmethod
    def of(cls, rest_j: float, whole_j: float, left: Sequence[Estimate], scale: float = 1.0) -> _Rest:
        """``left``: of each rank the energy of the time that no part has, which is the rest but where parts overlap.
        Ranks see the same readings, so that their energies are off together."""
        if abs(rest_j) <= ROUNDING * abs(whole_j):
            rest_j = 0.0
        together = Estimate(*(sum(getattr(e, f.name) for e in left) for f in fields(Estimate)))
        is_same = abs(together.energy_j - rest_j) <= _SAME_REST * abs(whole_j) and not np.isnan(together.u95_j)
        u95_j = beyond_rounding(together.u95_j, whole_j) * scale if is_same else None
        exceeds = rest_j <= -max(LEAST_REST * abs(whole_j), u95_j or 0.0)
        note = f"the parts add up to {digits(-rest_j * scale, 2)} J more than the whole: there is no rest"
        return cls(rest_j * scale, u95_j, note if exceeds else "")


_SAME_REST = 1e-6
"""Share of the whole by which the energy of the time left and the rest differ at most, where they are one thing."""


def _left_of(seen: _Seen, edges: tuple[NDArray[np.int64], NDArray[np.int64]], inner: NDArray[np.bool_]) -> Estimate:
    """The energy of disjoint intervals without the phases ``inner``; where a device timed these, its clock is unsure of
    their edges."""
    p, own = seen.run.phases, as_range(inner)
    begin, end = without(*edges, p.begin_ns[own], p.end_ns[own])
    bound_ns = max(0, int(p.begin_bound_ns[own].max(initial=0)), int(p.end_bound_ns[own].max(initial=0)))
    bounds = np.full(len(begin), float(bound_ns)) if bound_ns else None
    left = interval_energies(seen.part, begin, end, None, bounds, is_whole=True)
    return sum_of(*(getattr(left, name) for name in MEAN_COLUMNS))


def _left_of_phases(seen: _Seen, whole: NDArray[np.bool_], inner: NDArray[np.bool_]) -> list[Estimate]:
    """By rank the energy of some phases without those ``inner``."""
    p, tracks, left = seen.run.phases, seen.tracks, []
    for track in present_in(tracks[whole]):
        own = as_range(whole & (tracks == track))
        left.append(_left_of(seen, merge_intervals(p.begin_ns[own], p.end_ns[own]), inner & (tracks == track)))
    return left


def _rest_inside(seen: _Seen, used: NDArray[np.bool_], scale: float) -> _Rest:
    """Mean joules of phases that the resolvable ones right inside do not have; None where none are inside."""
    p, energy_j = seen.run.phases, seen.columns.energy_j
    inner = (p.parent >= 0) & used[p.parent] & ~p.of([i for i, kind in enumerate(p.classes) if kind.is_beside])
    if not inner.any():
        return _Rest()
    inner &= seen.columns.resolvable & seen.is_told[p.label]
    whole_j, n = float(energy_j[used].sum()), int(used.sum())
    rest_j = whole_j - float(energy_j[inner].sum())
    return _Rest.of(rest_j, whole_j, _left_of_phases(seen, used, inner), scale / n)


def _layer_rest(seen: _Seen, used: NDArray[np.bool_], scale: float) -> Estimate | None:
    """Mean energy of phases outside the layers in them, at any depth; None where no layers are inside."""
    p = seen.run.phases
    layers = p.of([i for i, kind in enumerate(p.classes) if LAYER in kind.attributes and not kind.is_magnified])
    if not layers.any():
        return None
    inner = layers & _inside(p, used)
    if not inner.any():
        return None
    inner &= seen.columns.resolvable & seen.is_told[p.label]
    left = _left_of_phases(seen, used, inner)
    together = Estimate(*(sum(getattr(e, f.name) for e in left) for f in fields(Estimate)))
    return together.scaled(scale / int(used.sum()))


def _spread(values: NDArray[np.float64]) -> float | None:
    return beyond_rounding(float(np.std(values, ddof=1)), float(np.mean(values))) if len(values) > 1 else None


def _uncertainties(energy: Estimate | None, clip: Clip, u95_j: float) -> dict[str, Any]:
    """Fields of a row's uncertainty: none of a bound but its parts, and of what is no bound nothing."""
    has_parts = energy is not None and not clip.low
    return {
        "u95_j": u95_j if energy is not None and not clip and not np.isnan(u95_j) else None,
        "u_statistical_j": energy.u_statistical_j if energy is not None and has_parts else None,
        "u_systematic_j": energy.u_systematic_j if energy is not None and has_parts else None,
        "rectangle_j": energy.rectangle_j if energy is not None and has_parts else 0.0,
        "is_lower_bound": clip.is_lower_bound and energy is not None,
    }


def _mean_by_rank(columns: PhaseColumns, used: NDArray[np.bool_], tracks: NDArray[np.int32]) -> Estimate:
    """`average_of` over the phases ``used``. Ranks that share a device saw the same readings: their means are off
    together, and more ranks are no more repeats."""
    values, of_rank = [getattr(columns, name)[used] for name in MEAN_COLUMNS], tracks[used]
    present = present_in(of_rank)
    if len(present) == 1:
        return average_of(*values)
    means = [(average_of(*(v[of_rank == t] for v in values)), int(np.sum(of_rank == t))) for t in present]
    together = {f.name: sum(getattr(m, f.name) * n for m, n in means) / len(of_rank) for f in fields(Estimate)}
    return Estimate(**together)


# -- totals ------------------------------------------------------------------------------------------------------------


def _total_row(seen: _Seen, labels: Sequence[int], rows: Mapping[int, PhaseRow]) -> TotalRow:
    """The total of the classes of one group; ``rows`` are their rows of the table, by class."""
    p, part, kind = seen.run.phases, seen.part, seen.run.phases.classes[labels[0]]
    outer = outermost(seen.run, family_of(seen.run, labels))
    stretches = stretches_of(seen.run, labels)
    # What was repeated in between is no part of it.
    edges = without(*stretches, p.begin_ns[p.magnify], p.end_ns[p.magnify])
    whole, clip = whole_of(part, *edges), find_clipping(part, *edges)
    time_s, cut = whole.duration_s, int(np.sum(p.cut & outer & ~p.interrupted & p.of(labels)))
    # Where all readings are missing, what the model says is no energy of this device.
    is_known = np.isfinite(whole.energy.energy_j) and whole.missing_s < time_s * (1 - 1e-9)
    total = without_rounding(whole.energy) if is_known else None
    ranks, counted = seen.sharing(labels), 1
    if ranks > 1:  # a rank that marks nothing has no part in the iterations
        counted = max(1, int((present_in(seen.tracks[p.of(labels)]) != NOBODY).sum()))
    rest = _Rest()
    if total is None:
        notes = [no_energy(part, 1.0, whole.missing_s, time_s), clip.note(has_number=False)]
    else:
        notes = [f"{cut} cut off, counted up to there"] if cut else []
        if whole.missing_s > 1e-3 * time_s:
            notes.append(without_readings(whole.missing_s, whole.off_by_j, clip))
        notes.append(clip.note(has_number=True))
        if ranks > 1:
            of = f"all {ranks}" if counted >= ranks else f"{counted} of {ranks}"
            notes.append(f"n counts the iterations of {of} ranks; joules are the device's, once")
        rest = _rest(seen, labels, rows, outer, stretches, total)
        notes.append(rest.note)
    notes.append(seen.setting_note(labels))
    stated, iterations = positive_number(dict(kind.group), "batch_size"), iterations_of(seen.run, labels)
    batch = _samples_of_iterations(seen.run, labels, stated)
    mixed = _mixture(seen.run, labels, outer)
    if mixed and batch:
        notes.append(f"no figures of a batch: {mixed}")
        batch = None
    return TotalRow(
        group=dict(kind.group),
        device=part.device,
        provenance=part.provenance,
        iterations=iterations,
        time_s=time_s,
        energy_j=total.energy_j if total else None,
        **_uncertainties(total, clip, beyond_rounding(total.u95_j, total.energy_j) if total else 0.0),
        power_w=mean_power_w(total.energy_j, time_s) if total and time_s > 0 else None,
        edp_js=edp_js(total.energy_j, time_s) if total else None,
        samples_per_s=iterations * batch / time_s if batch and iterations and time_s > 0 else None,
        samples_per_batch=None if batch == stated else batch,
        tokens_per_batch=None if mixed else _tokens(p, _own_iterations(seen.run, labels), batch, kind),
        gflops_per_w_paper=None,
        gflops_per_w_executed=None,
        gflops_basis="",
        rest_j=rest.energy_j,
        rest_u95_j=None if clip else rest.u95_j,
        missing_s=whole.missing_s,
        off_by_j=whole.off_by_j,
        note=join_texts(*notes),
        is_mixed=bool(mixed),
        ranks_counted=counted,
        batches_per_optimizer_step=None if mixed else _accumulated(seen.run, labels, iterations),
    )


def _samples_of_iterations(run: Run, labels: Sequence[int], stated: float | None) -> float | None:
    return run.phases.samples_of(_own_iterations(run, labels), stated)


def _tokens(p: Phases, labels: Sequence[int], batch: float | None, kind: PhaseClass) -> float | None:
    """Those that the phases say, else so many of each sample as they state."""
    of_sample = positive_number({**dict(kind.group), **kind.attributes}, "tokens_per_sample")
    return p.tokens_of(labels) or (batch * of_sample if batch and of_sample else None)


def _own_iterations(run: Run, labels: Sequence[int]) -> list[int]:
    return [i for i in iteration_labels(run, family_of(run, labels)) if i in labels]


ACCUMULATED = 1.5
"""Iterations a step of the optimizer from which on gradients are accumulated: a run may end before the last step."""


def _accumulated(run: Run, labels: Sequence[int], iterations: int) -> float | None:
    classes = run.phases.classes
    updates = [i for i in labels if classes[i].name == UPDATE]
    steps = max(_ended(run, updates).values(), default=0)
    return iterations / steps if steps and iterations >= ACCUMULATED * steps else None


def _lacks_forward(run: Run, labels: Sequence[int]) -> bool:
    """Whether passes of a training are marked without its forward passes and without iterations: samples a second of
    these would be those of a part."""
    classes = [run.phases.classes[i] for i in labels]
    names = {kind.name for kind in classes}
    return "backward" in names and not names & {FORWARD, ITERATION} and not any(kind.is_iteration for kind in classes)


def _mixture(run: Run, labels: Sequence[int], outer: NDArray[np.bool_]) -> str:
    """Why a group's joules are none of so many batches, where they are not: its iterations are not all of it."""
    p = run.phases
    if _is_changing(run, labels[0]):
        return "it is what lies between the phases of one setting and the next"
    names = {p.classes[i].name for i in labels}
    if all(p.classes[i].overlaps for i in labels):
        return "phases that run beside others"
    if p.is_unstepped and "backward" in names:
        return "the optimizer was never stepped, so that passes are no batches"
    iterations = [p.classes[i].path for i in labels if p.classes[i].is_iteration]
    if _lacks_forward(run, labels):
        return "no forward pass is marked, so that a batch takes more than what is"
    if iterations or FORWARD in names:
        beside = [kind for kind in (p.classes[i] for i in labels) if kind.name in EVALUATIONS]
        beside = [kind for kind in beside if not any(kind.path[: len(path)] == path for path in iterations)]
        return f"{beside[0].name} is in it, see the row of the iterations" if beside else ""
    counts = [int(np.sum((p.label == i) & outer)) for i in labels]
    # The last of them may have been cut off before the others.
    if max(counts, default=0) - min((n for n in counts if n), default=0) > 1:
        return "phases of different kinds and numbers, and none is an iteration"
    return ""


_OVERLAP = "phases overlap (several processes or threads): no rest"


def _rest(
    seen: _Seen,
    labels: Sequence[int],
    rows: Mapping[int, PhaseRow],
    outer: NDArray[np.bool_],
    stretches: tuple[NDArray[np.int64], NDArray[np.int64]],
    total: Estimate,
) -> _Rest:
    """What a group's resolvable parts leave of its total, and a note where there is no such rest.

    Ranks that share a device each have an equal part of it: their phases and rests are those of one rank on average. To
    a rank without phases in the group all of it is rest.
    """
    p, columns, tracks = seen.run.phases, seen.columns, seen.tracks
    family = family_of(seen.run, labels)
    told_by_inner = _containers(seen.run, family) | _paths_around_others(seen.run, family)
    resolved = [i for i in labels if i in rows and rows[i].is_resolvable and p.classes[i].shown not in told_by_inner]
    cover = p.of(resolved) & columns.resolvable
    others = _others_inside(seen.run, family)
    if p.classes[labels[0]].setting is not None:
        begin, end = stretches
        at = np.searchsorted(end, p.begin_ns, "right")
        cover &= (p.begin_ns >= np.append(begin, p.end_ns.max())[at]) & (p.end_ns <= np.append(end, p.end_ns.max())[at])
    cover &= ~_inside(p, cover)
    if not (cover & ~outer).any() and not others.any():
        return _Rest()
    # An outermost phase without phases inside is a phase like those inside others, and no rest. What overlaps the
    # others (DDP's communication) is in no sum, and beside ranks other processes have no part of the device.
    overlaps = p.of([i for i in labels if p.classes[i].overlaps])
    if np.any(tracks[cover] != NOBODY):
        overlaps |= tracks == NOBODY
    cover &= ~(outer & overlaps)
    # Of phases that overlap and have others inside, the rests do too: they are more than that of the group.
    around = outer & p.of([i for i in labels if p.classes[i].shown in told_by_inner and not p.classes[i].overlaps])
    of_tracks = [around & np.isin(tracks, (track, NOBODY)) for track in present_in(tracks[around])]
    if any(any_overlap(p.begin_ns[own], p.end_ns[own]) for own in of_tracks):
        return _Rest(note=_OVERLAP)
    with_phases = present_in(tracks[cover])
    ranks = max(seen.sharing(labels), len(with_phases))
    edges = without(*stretches, p.begin_ns[p.magnify], p.end_ns[p.magnify])
    rest_j, left = (ranks - len(with_phases)) * total.energy_j, [total.scaled(ranks - len(with_phases))]
    for track in with_phases:
        of_rank = cover & (tracks == track)
        own = as_range(of_rank)
        if any_overlap(p.begin_ns[own], p.end_ns[own]):
            return _Rest(note=_OVERLAP)
        rest_j += total.energy_j - float(columns.energy_j[own].sum())
        left.append(_left_of(seen, edges, of_rank))
    return _Rest.of(rest_j / ranks, total.energy_j, [e.scaled(1 / ranks) for e in left])


def _containers(run: Run, labels: Sequence[int]) -> set[tuple[str, ...]]:
    """The paths of a group's phases that are told by what is in them."""
    classes, ended = run.phases.classes, _ended(run, labels)
    kinds: dict[tuple[str, ...], tuple[bool, float]] = {}
    for i in labels:
        is_iteration, n = kinds.get(classes[i].shown, (False, 0.0))
        kinds[classes[i].shown] = is_iteration or classes[i].is_iteration, max(n, ended[_kind(run, i)])
    return containers(kinds) & _paths_around(labels, run)


def parts_among(rows: Sequence[PhaseRow]) -> list[PhaseRow]:
    """Those of the rows of a group that are its parts: they, and what is between them, are all of it."""
    kinds = {r.place: (r.is_iteration, float(r.iterations)) for r in rows}
    others = {r.place for r in rows if r.holds_others}
    unresolved = {r.place for r in rows if not r.is_resolvable}
    empty = {r.place for r in rows if r.is_resolvable and r.rest_j is None}
    parts = parts_of(kinds, others, unresolved, empty)
    return [r for r in rows if r.place in parts]


def _paths_around_others(run: Run, family: Sequence[int]) -> set[tuple[str, ...]]:
    """The paths of a family's phases that have phases of other groups inside, at any depth."""
    p, around = run.phases, np.zeros(len(run.phases), bool)
    up = p.parent[_others_inside(run, family)]
    while len(up := np.unique(up[up >= 0])):
        around[up] = True
        up = p.parent[up]
    return {p.classes[i].shown for i in np.unique(p.label[around]).tolist() if i in family}


def _inside(p: Phases, some: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[m] the phases inside some, at any depth."""
    inside, up = np.zeros(len(p), bool), p.parent
    while (up >= 0).any():
        inside |= (up >= 0) & some[up]
        up = np.where(up >= 0, p.parent[up], np.int32(-1))
    return inside


_Efficiency = dict[str, tuple[float | None, float | None]]


def _gflops_by_basis(seen: _Seen, labels: Sequence[int], rows: Mapping[int, PhaseRow]) -> _Efficiency:
    """GFLOPS/W of a group, as the paper counts and as executed, by the phases whose joules it divides by."""
    classes = seen.run.phases.classes
    if _is_changing(seen.run, labels[0]):
        return {}
    operations, executed = (
        next((v for i in labels if (v := positive_number(classes[i].attributes, name))), None)
        for name in (OPERATIONS, EXECUTED)
    )
    batch = _samples_of_iterations(seen.run, labels, positive_number(dict(classes[labels[0]].group), "batch_size"))
    passes = {classes[i].name: i for i in labels if classes[i].name in (FORWARD, "backward")}
    is_of_one_model = all(classes[i].shown[-1] == classes[i].name for i in passes.values())
    if not ((operations or executed) and batch and passes and is_of_one_model):
        return {}

    def figures(j_per_batch: float) -> tuple[float | None, float | None]:
        paper = gflops_per_w_paper(operations, batch, len(passes), j_per_batch) if operations and batch else None
        return paper, gflops_per_w(executed * batch, j_per_batch) if executed and batch and len(passes) == 2 else None

    by_basis: _Efficiency = {}
    joules = [rows[i].j_per_batch or 0.0 if i in rows else 0.0 for i in passes.values()]
    if all(j > 0 for j in joules):
        by_basis[FORWARD_BACKWARD] = figures(sum(joules))
    for i in labels:
        if classes[i].name == ITERATION and i in rows and (j := rows[i].j_per_batch):
            by_basis[ITERATION] = figures(j)
    return by_basis


def _on_one_basis(rows: Sequence[tuple[TotalRow, _Efficiency]]) -> list[TotalRow]:
    """Give every row its GFLOPS/W, on the same basis for a whole device: figures on different ones do not compare."""
    has_passes = all(FORWARD_BACKWARD in figures for _, figures in rows if figures)
    basis = FORWARD_BACKWARD if has_passes else ITERATION
    return [
        replace(row, gflops_per_w_paper=by[basis][0], gflops_per_w_executed=by[basis][1], gflops_basis=basis)
        if basis in by
        else row
        for row, by in rows
    ]


# -- the run as a whole ------------------------------------------------------------------------------------------------


def _run_row(seen: _Seen, *, is_unused: bool) -> RunRow:
    run, part, p = seen.run, seen.part, seen.run.phases
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    whole, clip = interval_energies(part, begin, end, is_whole=True), find_clipping(part, begin, end)
    silent = _silent(run, part)
    # The sum without a line that has no readings is not the device's energy, nor is 0 J that of a device without any.
    energy_j = float(whole.energy_j[0]) if not silent and np.isfinite(whole.energy_j[0]) else None
    missing_s, duration_s, u95_j = (float(x[0]) for x in (whole.missing_s, whole.duration_s, whole.u95_j))
    phases_j = rest_j = rest_u95_j = magnified_j = None
    top = p.parent < 0
    if top.any() and energy_j is not None:
        together = as_range(top)
        edges = merge_intervals(p.begin_ns[together], p.end_ns[together])
        phases_j = whole_of(part, *edges).energy.energy_j
        rest_j = energy_j - phases_j
        rest_u95_j = _Rest.of(rest_j, energy_j, [whole_of(part, *without(begin, end, *edges)).energy]).u95_j
        if len(p.magnify):
            magnified_j = whole_of(part, *merge_intervals(p.begin_ns[p.magnify], p.end_ns[p.magnify])).energy.energy_j
    faults = sensor_faults(part.signals)
    notes = [_no_readings(part, silent)] if energy_j is None else []
    if energy_j is not None and missing_s > 1e-3 * duration_s:
        notes.append(without_readings(missing_s, float(whole.off_by_j[0]), clip))
    notes += [note_of(part.device, other_programs(run, part.device, run.begin_ns, run.end_ns)), faults]
    if energy_j is not None and not clip and np.isnan(u95_j):
        notes.append(UNSURE)
    notes += ["used by no rank"] if is_unused else []
    notes += _loss_notes(run, part)
    wrong = list(run.wrong)
    if unordered := sum(s.unordered for s in part.signals):
        wrong.append(f"the times of {unordered} readings go back")
    notes += [f"{what}: the file is wrong (joules info --check says more)" for what in wrong]
    if not run.is_complete:
        notes.append("incomplete: the training process vanished or a part was cut off")
    notes += [clip.note(has_number=energy_j is not None), *_counter_notes(run, part)]
    notes.append(seen.settings.note_of_run(part.device))
    own = None
    if energy_j is not None and not np.isnan(u95_j):
        own = without_rounding(sum_of(*(getattr(whole, name) for name in MEAN_COLUMNS)))
    return RunRow(
        device=part.device,
        provenance=part.provenance,
        time_s=duration_s,
        energy_j=energy_j,
        **_uncertainties(own, clip, own.u95_j if own else 0.0)
        | {"is_lower_bound": clip.is_lower_bound and energy_j is not None},
        power_w=None if energy_j is None else mean_power_w(energy_j, duration_s),
        phases_j=phases_j,
        rest_j=rest_j,
        rest_u95_j=None if clip else rest_u95_j,
        missing_s=missing_s,
        off_by_j=float(whole.off_by_j[0]),
        note=join_texts(*notes),
        missing_word=clip.missing_word(missing_s),
        faults=faults,
        magnified_j=magnified_j,
        lines=tuple(line_of_run(part, signal) for signal in part.signals),
    )


def line_of_run(part: Part, signal: Signal) -> LineOfRun:
    """What one line took over the whole recording, by the model of the power that the part has of it."""
    run, alone = part.run, replace(part, signals=(signal,))
    begin, end = np.array([run.begin_ns]), np.array([run.end_ns])
    whole, clip = interval_energies(alone, begin, end, is_whole=True), find_clipping(alone, begin, end)
    if len(signal) < 2 or not np.isfinite(whole.energy_j[0]):
        return LineOfRun(signal.line.name, None, None, is_lower_bound=False)
    u95_j = None if clip or np.isnan(whole.u95_j[0]) else float(whole.u95_j[0])
    return LineOfRun(signal.line.name, float(whole.energy_j[0]), u95_j, clip.is_lower_bound)


def _no_readings(part: Part, silent: Sequence[str]) -> str:
    """Why a device has no joules: what is wrong with each line that covers nothing of the run."""
    texts = []
    for signal in (s for s in part.signals if s.line.name in silent):
        worst = max(signal.faults, key=lambda fault: signal.faults[fault], default=None)
        texts.append(f"{signal.line.name} {_SILENT[worst]}" if worst else f"no readings of {signal.line.name}")
    return f"not resolvable: {', '.join(texts) or 'no line feeds this device'}"


_SILENT = {
    Fault.SATURATED: "was saturated",
    Fault.STOOD_STILL: "stood still",
    Fault.NO_ANSWER: "did not answer",
}


def _loss_notes(run: Run, part: Part) -> list[str]:
    """Why readings of a part were declared lost: one text for each cause, with how often and over how long."""
    names = {s.line.name for s in part.signals}
    lengths_s: dict[str, list[float]] = {}
    for gap in run.gaps:
        if names.intersection(gap.lines):
            lengths_s.setdefault(gap.cause, []).append((gap.end_ns - gap.begin_ns) * 1e-9)
    # One that is declared at a moment has no length.
    over = {cause: f" over {seconds(sum(s))}" if sum(s) > 0 else "" for cause, s in lengths_s.items()}
    return [f"scans lost {times(len(s))}{over[cause]}: {cause}" for cause, s in lengths_s.items()]


def _silent(run: Run, part: Part) -> list[str]:
    """Names of the lines whose readings cover nothing of the run."""
    names = []
    for signal in part.signals:
        covered_ns = 0
        if len(signal) > 1:
            begin_ns, end_ns = max(run.begin_ns, int(signal.t_ns[0])), min(run.end_ns, int(signal.t_ns[-1]))
            # What a counter counted in an interval in which it began anew is not in its integral.
            covered_ns = end_ns - begin_ns - signal.set_back_ns()
        names += [signal.line.name] if covered_ns <= 0 else []
    return names


def _counter_notes(run: Run, part: Part) -> list[str]:
    """What sensors of the device counted themselves over the run, as a wall meter's integration: they miss nothing
    between readings, so for the whole run theirs is the better figure."""
    notes = []
    for name in run.compared(part.device):
        line = run.lines[name]
        if line.quantity != "energy_j" or line.provenance.value != part.provenance:
            continue
        counter = Part(part.device, part.provenance, (load_bounded(run, name),), run)
        whole = interval_energies(counter, np.array([run.begin_ns]), np.array([run.end_ns]), is_whole=True)
        missing_s, duration_s, u95_j = (float(x[0]) for x in (whole.missing_s, whole.duration_s, whole.u95_j))
        if not missing_s <= 0.5 * duration_s:
            notes.append(f"{name} counted for less than half of the run")
            continue
        u95, unsure = ("", f", {UNSURE}") if np.isnan(u95_j) else (f" ± {digits(u95_j, 2)}", "")
        short = f"in all but {seconds(missing_s)} of the run" if missing_s > 1e-3 * duration_s else "over the run"
        counted = digits(float(whole.energy_j[0]))
        notes.append(f"for comparison: the counter {name} rose by {counted}{u95} J {short}{unsure}")
    return notes


# -- above idle -------------------------------------------------------------------------------------------------------


def above_idle(row: Row, idle: Sequence[IdleRow]) -> dict[str, Any]:
    """Idle power of a row's device, and what of its joules (a mean phase, a group, the run) is above that.

    The uncertainties of the two are taken as independent. They share the sensor's gain and zero, which partly cancel,
    so that this is the most that it can be. Joules above idle may be negative: nothing that could be told then.
    """
    own = next((i for i in idle if (i.device, i.provenance) == (row.device, row.provenance)), None)
    if isinstance(row, PhaseRow):
        # Of a device that ranks share, each has its part of the idle power too.
        joules, length_s = row.j_per_batch, None if row.s_per_batch is None else row.s_per_batch / row.ranks
    else:
        joules, length_s = row.energy_j, row.time_s
    idle_j = above_j = u95_j = None
    if own is not None and joules is not None and length_s is not None:
        above_j = joules - own.idle_w * length_s
        idle_j = joules - above_j
        u95_j = None if row.u95_j is None else float(np.hypot(row.u95_j, COVERAGE_FACTOR * own.u_w * length_s))
    return {
        "idle_w": own.idle_w if own else None,
        "idle_j": idle_j,
        "above_idle_j": above_j,
        "above_idle_u95_j": u95_j,
        "idle_note": own.note if own else "",
    }


# -- what would make a table wrong -------------------------------------------------------------------------------------


def check_table(path: Path, table: PhaseTable) -> None:
    """Raises `AnalysisError` for a run that no table can be made of, saying why."""
    check_rows(
        path,
        [(r.phase, r.s_per_batch) for r in table.phases],
        [(r.time_s, r.missing_s) for r in table.totals],
        [r.energy_j is not None for r in table.runs],
        [r.note for r in table.runs],
    )


def check_rows(
    path: Path,
    phases: Sequence[tuple[str, float | None]],
    totals: Sequence[tuple[float, float]],
    has_energy: Sequence[bool],
    notes: Sequence[str],
) -> None:
    """The same of name and mean duration of each kind of phase, seconds and missing seconds of each total, and of each
    device whether it has joules, and its note."""
    if not has_energy:
        raise AnalysisError(f"{path}: this run is empty: no line feeds any of its devices")
    if not phases:
        raise AnalysisError(
            f"{path}: this run has no phases: mark them with `meter.phase(...)` (`joules info` has its joules)"
        )
    if not any(has_energy):
        why = {note.partition(";")[0].removeprefix("not resolvable: ") for note in notes}
        raise AnalysisError(
            f"{path}: its lines have fewer than two good readings while it ran: there is no energy, "
            f"{'; '.join(sorted(why))} (`joules info` and `joules info --check` say what was read, and when)"
        )
    if all(time_s > 0 and missing_s >= (1 - 1e-9) * time_s for time_s, missing_s in totals):
        raise AnalysisError(
            f"{path}: its phases lie outside the readings: clocks or times do not overlap "
            "(`joules info --check` shows them)"
        )
    if without_time := [name for name, each_s in phases if each_s == 0]:
        raise AnalysisError(f"{path}: phases {without_time[0]!r} took no time at all: their marks are wrong")
