"""Phases out of marks: which begin belongs to which end, and what to do when one is missing; and what follows from the
phases that nobody marked: the iterations of a training, and which model it trains.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Protocol, TypeGuard

import numpy as np

from powerd_client.host.hostclock import time_of
from powerd_core.marks import ITERATION, Mark

MODEL_BY_CLASS = "model_by_class"
"""The attribute of a watched model's phases where nobody named the model. It is no attribute of the run's phases:
`name_models` makes `model` of it."""
SAMPLES = "samples_in_pass"
"""The attribute of a watched model's pass that has another size than ``batch_size`` says. It is no attribute of the
run's phases: `take_counts` makes a column of it."""
TOKENS = "tokens"
"""The attribute that says how many tokens a phase works through. It may differ from phase to phase, and is no attribute
of the run's phases either."""

_ABOUT = ("pid", "command", "rank", "local_rank", "world_size")
"""What the run file says of a process, beside its devices."""


@dataclass(slots=True)
class ProcessNames:
    """What a training process said beside its marks (docs/reference/journal.md), by what it is for."""

    about: dict[str, Any] = field(default_factory=dict)
    devices: list[dict[str, Any]] = field(default_factory=list)
    kinds: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By the process's own number: name, attributes and timing."""
    cuts: dict[int, int] = field(default_factory=dict)
    """Numbers that stand for no phase, and the kind that such a mark cuts."""
    notes: dict[tuple[int, str], str] = field(default_factory=dict)
    """Level by time and text: the journal and the names' file may both hold one."""
    events: dict[tuple[int, str, str], None] = field(default_factory=dict)
    """Time, name, and values as JSON of each, in the order in which they were written; they too may come twice."""
    closed: bool = False

    def take(self, document: dict[str, Any]) -> None:
        """The next document. Raises KeyError, TypeError or ValueError for what is none."""
        if "note" in document:
            self.notes[int(document["t_ns"]), str(document["note"])] = str(document["level"])
        elif "event" in document:
            values = json.dumps(dict(document["values"]))
            self.events[time_of(document["t_ns"]), str(document["event"]), values] = None
        elif "closed" in document:
            self.closed = True
        elif "devices" in document:
            self.devices += [d for d in document["devices"] if isinstance(d, dict)]
        elif "cuts" in document:
            self.cuts[int(document["kind"])] = int(document["cuts"])
        elif "kind" in document:
            self.kinds[int(document["kind"])] = {
                "name": str(document["name"]),
                "attributes": dict(document["attributes"]),
                "timing": str(document["timing"]),
            }
        elif not self.about:
            self.about = {key: document[key] for key in _ABOUT if key in document}

    @property
    def timings(self) -> dict[int, str]:
        """By number of a kind, or of what cuts one."""
        own = {number: entry["timing"] for number, entry in self.kinds.items()}
        return own | {number: own.get(cut, "") for number, cut in self.cuts.items()}


@dataclass(slots=True)
class PhaseSpans:
    """The phases of a run as columns, by their beginnings; docs/reference/run-file.md says what each means."""

    begin_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    process: list[int] = field(default_factory=list)
    thread: list[int] = field(default_factory=list)
    """Threads of a process, counted from 0; not in the run file."""
    cut: list[int] = field(default_factory=list)
    begin_bound_ns: list[int] = field(default_factory=list)
    end_bound_ns: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    """Of a pass, or a step, of another size than ``batch_size`` says; else 0. Empty where there is no such pass."""
    tokens: list[int] = field(default_factory=list)
    """Of a phase; 0 where they are not known. Empty where no phase says them."""
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Time and text of everything that did not fit, at most one text a kind of problem and phase."""

    def begin(self, mark: Mark, kind: int, parent: int, process: int, thread: int) -> int:
        """Add a phase that begins at a mark, and is cut until `end` is called for it. Returns its index."""
        self.begin_ns.append(mark.t_host_ns)
        self.end_ns.append(mark.t_host_ns)
        self.kind.append(kind)
        self.parent.append(parent)
        self.process.append(process)
        self.thread.append(thread)
        self.cut.append(1)
        self.begin_bound_ns.append(mark.bound_ns)
        self.end_bound_ns.append(mark.bound_ns)
        return len(self.begin_ns) - 1

    def end(self, index: int, mark: Mark, *, is_cut: bool) -> None:
        """End a phase that has begun at a mark."""
        self.end_ns[index] = mark.t_host_ns
        self.end_bound_ns[index] = mark.bound_ns
        self.cut[index] = int(is_cut)

    def sort(self) -> None:
        """Order by beginning (of those that begin together, the longer first)."""
        order = sorted(range(len(self.begin_ns)), key=lambda i: (self.begin_ns[i], -self.end_ns[i], i))
        place = {old: new for new, old in enumerate(order)} | {-1: -1}
        self.parent = [place[parent] for parent in self.parent]
        for name in _COLUMNS:
            values = getattr(self, name)
            setattr(self, name, [values[i] for i in order])


_COUNTS = ("samples", "tokens")
_COLUMNS = tuple(name for name in PhaseSpans.__dataclass_fields__ if name not in (*_COUNTS, "problems"))


class Kinds:
    """The kinds of phases of a run: each name with the same attributes and timing once."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        """By number: ``name``, ``attributes`` and ``timing``."""
        self._numbers: dict[str, int] = {}

    def number(self, entry: dict[str, Any]) -> int:
        """The number of a kind, a new one where it is new."""
        key = json.dumps([entry["name"], entry["attributes"], entry["timing"]], sort_keys=True)
        number = self._numbers.setdefault(key, len(self.entries))
        if number == len(self.entries):
            self.entries.append(entry)
        return number


def pair_marks(
    spans: PhaseSpans,
    marks: Iterable[Mark],
    *,
    process: int,
    kinds: Mapping[int, int],
    names: Mapping[int, str],
    last_ns: int | None = None,
    cuts: Mapping[int, int],
) -> None:
    """Add the phases of one process to ``spans``, from its marks in the order in which they were written.

    ``kinds``    the process's own kind numbers, and those of the run
    ``names``    of the process's kinds, for messages
    ``last_ns``  where what is still open is cut, with a report; None: without one at the process's last mark, as the
                 process ended before the run
    ``cuts``     numbers that stand for no phase, and the kind that such a mark cuts: its innermost open phase, and all
                 inside

    Phases nest within each thread. An end that fits no open phase is reported and dropped. Ending an outer phase cuts
    those that are still open inside it.
    """
    pairing = Pairing(spans, process, kinds, names, cuts)
    for mark in marks:
        pairing.take(mark)
    _finish(pairing, spans, last_ns)


class Spans(Protocol):
    """Where a pairing puts phases; each has an index, and ``kind`` has the kind of those that are open."""

    kind: Any
    problems: list[tuple[int, str]]

    def begin(self, mark: Mark, kind: int, parent: int, process: int, thread: int) -> int: ...

    def end(self, index: int, mark: Mark, *, is_cut: bool) -> None: ...


@dataclass(slots=True)
class OpenThread:
    """A thread of a process, as far as its marks have been paired."""

    number: int
    open: list[int] = field(default_factory=list)
    """Indices of its open phases, the outermost first."""
    latest_ns: int = 0


@dataclass(slots=True)
class Pairing:
    """Pairs the marks of one process as they come; arguments as of `pair_marks`."""

    spans: Spans
    process: int
    kinds: Mapping[int, int]
    names: Mapping[int, str]
    cuts: Mapping[int, int]
    threads: dict[int, OpenThread] = field(default_factory=dict)
    """By the number of a mark's thread."""
    latest_ns: int = 0
    reported: set[str] = field(default_factory=set)

    def report(self, t_ns: int, text: str) -> None:
        if text not in self.reported:
            self.reported.add(text)
            self.spans.problems.append((t_ns, text))

    def take(self, mark: Mark) -> None:
        """The next mark."""
        run_kind = self.kinds.get(mark.kind)
        self.latest_ns = max(self.latest_ns, mark.t_host_ns)
        if run_kind is None and mark.kind not in self.cuts:
            self.report(mark.t_host_ns, f"marks of phase kind {mark.kind}, whose name was lost")
            return
        thread = self.threads.get(mark.thread)
        if thread is None:
            thread = self.threads[mark.thread] = OpenThread(len(self.threads))
        if mark.t_host_ns < thread.latest_ns and thread.open:
            # A phase cannot end before it begins, nor begin before the one around it: the mark moves to where it could
            # be at the earliest. The bound of a mark that a device has timed grows by as much.
            self.report(mark.t_host_ns, "a thread's marks go back in time")
            moved_ns = thread.latest_ns - mark.t_host_ns if mark.bound_ns > 0 else 0
            mark = mark._replace(t_host_ns=thread.latest_ns, bound_ns=mark.bound_ns + moved_ns)
        thread.latest_ns = mark.t_host_ns
        if run_kind is None or not mark.is_begin:
            self.end(mark, thread.open)
        else:
            parent = thread.open[-1] if thread.open else -1
            thread.open.append(self.spans.begin(mark, run_kind, parent, self.process, thread.number))

    def end(self, mark: Mark, open_phases: list[int]) -> None:
        """End, or cut, the innermost open phase of the mark's kind, and cut those inside it."""
        is_cut = mark.kind in self.cuts
        if not is_cut and open_phases and self.spans.kind[open_phases[-1]] == self.kinds[mark.kind]:
            self.spans.end(open_phases.pop(), mark, is_cut=False)  # nearly always: what follows takes twice as long
            return
        kind = self.kinds.get(self.cuts.get(mark.kind, mark.kind))
        depth = next((d for d in reversed(range(len(open_phases))) if self.spans.kind[open_phases[d]] == kind), None)
        if depth is None:
            if not is_cut:
                text = f"phase {self.names[mark.kind]!r} was ended without being begun in its thread"
                self.report(mark.t_host_ns, text)
            return
        if not is_cut and len(open_phases) > depth + 1:
            self.report(mark.t_host_ns, f"a phase inside {self.names[mark.kind]!r} was not ended before it")
        while len(open_phases) > depth:
            index = open_phases.pop()
            self.spans.end(index, mark, is_cut=is_cut or len(open_phases) > depth)


def _finish(pairing: Pairing, spans: PhaseSpans, last_ns: int | None) -> None:
    """Cut the phases that are still open."""
    end_ns = max(pairing.latest_ns, last_ns or 0)
    names = {pairing.kinds[number]: name for number, name in pairing.names.items() if number in pairing.kinds}
    for index in (index for thread in pairing.threads.values() for index in thread.open):
        if last_ns is not None:
            name = names[spans.kind[index]]
            pairing.report(end_ns, f"phase {name!r} was not ended: it is cut at the end of the run")
        spans.end_ns[index] = end_ns
        if spans.begin_bound_ns[index]:  # timed by a device, which never said when it came to the end
            spans.end_bound_ns[index] = -1


# -- iterations that nobody marked -------------------------------------------------------------------------------------

_FORWARD, _DATA, _UPDATE = "forward", "data", "update"
_PASSES = (_FORWARD, "backward", "gradient", _UPDATE)
_APART = ("evaluation", "baseline", "magnify")
_OWN_ITERATION = ("iter", "step", "batch")
"""A phase that has one of these in its name is the user's own iteration, whatever it holds."""
_LONGEST = 64
"""Steps of an iteration that is found by what repeats."""


def add_iterations(spans: PhaseSpans, kinds: Kinds) -> None:
    """Put a phase `ITERATION` around each step of a training that has its passes marked and no iterations: by hooks, or
    by hand.

    An iteration begins with a forward pass that comes after a backward pass or an update, or with the wait for data
    before it, and lasts to the beginning of the next one. So several forward passes before one backward are one
    iteration, and each batch of accumulated gradients is one: it is what ``batch_size`` counts. Where something else
    comes between (an evaluation, a phase of the user's), and at the end, it ends with its last pass. An update that
    runs its passes itself (a closure) is a whole step. Where several optimizers take turns, an iteration is one turn of
    all of them: `_turns`.

    None is added in a process that has marked iterations, or whose optimizers were never stepped, so that its passes
    are no batches; inside a phase that by its name is one, nor inside phases that hold one iteration each: these are
    the user's own. ``spans`` are sorted, and stay so.
    """
    names = [entry["name"] for entry in kinds.entries]
    of_forward, of_iteration, of_update = (
        {k for k, n in enumerate(names) if n == name} for name in (_FORWARD, ITERATION, _UPDATE)
    )
    own = {process for process, kind in zip(spans.process, spans.kind, strict=True) if kind in of_iteration}
    if of_update and of_update.isdisjoint(spans.kind):
        return
    every = list(zip(spans.process, spans.thread, spans.parent, strict=True))
    closures: dict[int, list[int]] = {}
    """The forward passes inside each update that runs its closure."""
    places: set[tuple[int, int, int]] = set()
    for i in (i for i, kind in enumerate(spans.kind) if kind in of_forward):
        above = spans.parent[i]
        if above >= 0 and spans.kind[above] in of_update:
            closures.setdefault(above, []).append(i)
            places.add(every[above])
        else:
            places.add(every[i])
    levels: dict[tuple[int, int, int], list[int]] = {
        place: [] for place in places if place[0] not in own and not _is_inside_iteration(spans, names, place[2])
    }
    for i, place in enumerate(every) if levels else ():
        if place in levels:
            levels[place].append(i)
    found = {
        place: _turns(spans, kinds, level, list(_steps(spans, names, level, closures)))
        for place, level in levels.items()
    }
    # The kinds of phases that hold more than one each, as an epoch does.
    around = {spans.kind[parent] for (_, _, parent), steps in found.items() if parent >= 0 and len(steps) > 1}
    steps = [s for (_, _, parent), own in found.items() if parent < 0 or spans.kind[parent] in around for s in own]
    if steps:
        _insert(spans, kinds, steps)


def _is_inside_iteration(spans: PhaseSpans, names: Sequence[str], parent: int) -> bool:
    """Whether a phase, or one around it, is a pass or by its name an iteration."""
    while parent >= 0:
        name = names[spans.kind[parent]]
        if name in (*_PASSES, *_APART) or is_own_iteration(name):
            return True
        parent = spans.parent[parent]
    return False


def is_own_iteration(name: str) -> bool:
    """Whether a phase is by its name the user's own iteration, such as ``train_step``."""
    return any(part in name.lower() for part in _OWN_ITERATION)


@dataclass(slots=True)
class _Step:
    """An iteration to be added."""

    inside: Sequence[int]
    """The phases that it holds, in order."""
    passes: Sequence[int]
    """Those of them that are passes of the model, and the forward passes inside an update."""
    end_ns: int
    end_bound_ns: int
    is_cut: bool = False


def _steps(
    spans: PhaseSpans, names: Sequence[str], level: Sequence[int], closures: Mapping[int, list[int]]
) -> Iterator[_Step]:
    """The steps among phases one after the other, as `add_iterations` says, each optimizer's by itself."""
    of_level = [names[spans.kind[i]] for i in level]
    ends = {"backward", _UPDATE} if {"backward", _UPDATE} & set(of_level) else {"gradient"}
    # Places in ``level``: where the open iteration begins, its passes, its last phase, and the first wait for data
    # behind it.
    first, passes, last, waiting = -1, list[int](), 0, -1
    is_done, is_apart, is_updated = True, True, False

    def step(following: int | None) -> _Step:
        """The open iteration, up to the one that follows."""
        own = [i for k in passes for i in (level[k], *closures.get(level[k], ()))]
        if following is None or is_apart:
            end = level[last]
            return _Step(level[first : last + 1], own, spans.end_ns[end], spans.end_bound_ns[end])
        end = level[following]
        return _Step(level[first:following], own, spans.begin_ns[end], spans.begin_bound_ns[end])

    for k, name in enumerate(of_level):
        is_cut, has_closure = bool(spans.cut[level[k]]), level[k] in closures
        is_whole = has_closure and (first < 0 or is_apart or is_updated)
        if name == _DATA and is_done:
            if is_cut and first >= 0:  # the loader has come to its end
                last, waiting = k, -1
            elif waiting < 0 and not is_cut:
                waiting = k
        elif (name == _FORWARD and is_done) or is_whole:
            begin = waiting if waiting >= 0 else k
            if first >= 0:
                yield step(begin)
            first, passes, last, waiting = begin, [k], k, -1
            is_done, is_apart, is_updated = is_cut or is_whole, False, is_whole
        elif name in _PASSES and first >= 0:
            passes.append(k)
            last, is_done, is_apart = k, is_done or is_cut or name in ends, False
            is_updated = is_updated or name == _UPDATE
        elif is_done and (waiting < 0 or name in _APART):
            waiting, is_apart = -1, True
    if first >= 0 and is_done:
        yield step(None)


def _turns(spans: PhaseSpans, kinds: Kinds, level: Sequence[int], steps: Sequence[_Step]) -> Sequence[_Step]:
    """The iterations of a training whose optimizers take turns, as those of the two networks of a GAN do: the update of
    an optimizer that has had its turn opens the next one. ``level``: the phases of which ``steps`` are a part.

    A step without an update belongs to the next one that has one, where several models take part: a network that sees
    real and generated data is updated once. Without several models it is a batch of accumulated gradients. Optimizers
    that seldom follow on another one, as those of two trainings one after the other, do not take turns. Where no
    optimizer is watched, an iteration is what the passes of several models repeat.
    """

    def of_name(step: _Step, name: str) -> list[int]:
        return [k for i in step.passes if kinds.entries[k := spans.kind[i]]["name"] == name]

    updates = [frozenset(of_name(step, _UPDATE)) for step in steps]
    forwards = {k for step in steps for k in of_name(step, _FORWARD)}
    models = {tuple(kinds.entries[k]["attributes"].get(name) for name in ("model", MODEL_BY_CLASS)) for k in forwards}
    every_update = frozenset[int]().union(*updates)
    if not every_update and len(models) > 1:
        period = _period([[spans.kind[i] for i in step.passes] for step in steps])
        return [reduce(partial(_joined, level), steps[i : i + period]) for i in range(0, len(steps), period)]
    if len(every_update) < 2:
        return steps
    turns: list[tuple[_Step, frozenset[int]]] = []
    for step, of_step in zip(steps, updates, strict=True):
        if turns and not turns[-1][1] and len(models) > 1:
            turns[-1] = _joined(level, turns[-1][0], step), of_step
        else:
            turns.append((step, of_step))
    if not turns[-1][1] and len(models) > 1:
        turns[-1][0].is_cut = True  # the training ended in the middle of a step
    pairs = pairwise(turns)
    behind_another = Counter(own for (_, before), (_, own) in pairs if before and own.isdisjoint(before))
    every = Counter(own for _, own in turns)
    whole: list[_Step] = []
    so_far: frozenset[int] = frozenset()
    for step, own in turns:
        takes_turns = 2 * behind_another[own] >= every[own]
        if so_far and own and own.isdisjoint(so_far) and takes_turns:
            whole[-1] = _joined(level, whole[-1], step)
            so_far |= own
        else:
            whole.append(step)
            so_far = own
    return whole


def _period(values: Sequence[object]) -> int:
    """After how many values they come again, all but a last few; 1 where they do not."""
    periods = range(1, min(len(values) // 2, _LONGEST) + 1)
    return next((p for p in periods if all(a == b for a, b in zip(values, values[p:], strict=False))), 1)


def _joined(level: Sequence[int], step: _Step, following: _Step) -> _Step:
    """One step of two, with what lies between."""
    inside = level[bisect_left(level, step.inside[0]) : bisect_left(level, following.inside[-1]) + 1]
    passes = [*step.passes, *following.passes]
    return _Step(inside, passes, following.end_ns, following.end_bound_ns, following.is_cut)


def _insert(spans: PhaseSpans, kinds: Kinds, steps: Sequence[_Step]) -> None:
    """Add the steps as phases, each in front of the first that it holds."""
    steps = sorted(steps, key=lambda step: step.inside[0])
    first = np.array([step.inside[0] for step in steps])
    every = (*_COLUMNS, *(name for name in _COUNTS if getattr(spans, name)))
    columns = {name: np.array(getattr(spans, name), np.int64) for name in every}
    place = np.arange(len(spans.kind))
    place += np.searchsorted(first, place, "right")
    columns["parent"] = np.append(place, -1)[columns["parent"]]
    added = {name: column[first] for name, column in columns.items()}
    added["end_ns"] = np.array([step.end_ns for step in steps])
    added["end_bound_ns"] = np.array([step.end_bound_ns for step in steps])
    added["cut"] = np.array([max(step.is_cut, *(spans.cut[i] for i in step.passes)) for step in steps])
    numbers: dict[tuple[int, ...], int] = {}
    for k, step in enumerate(steps):
        passes = tuple(spans.kind[i] for i in step.passes)
        if passes not in numbers:
            forwards = [entry for kind in passes if (entry := kinds.entries[kind])["name"] == _FORWARD]
            attributes = common_attributes([entry["attributes"] for entry in forwards])
            numbers[passes] = kinds.number({**forwards[0], "name": ITERATION, "attributes": attributes})
        added["kind"][k] = numbers[passes]
    lengths = [len(step.inside) for step in steps]
    columns["parent"][[i for step in steps for i in step.inside]] = np.repeat(place[first] - 1, lengths)
    for name, column in columns.items():
        setattr(spans, name, np.insert(column, first, added[name]).tolist())


def common_attributes(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The attributes that all have, with the same value."""
    return {name: value for name, value in each[0].items() if all(a.get(name) == value for a in each)} if each else {}


# -- samples and tokens of single phases -------------------------------------------------------------------------------


def take_counts(spans: PhaseSpans, kinds: Kinds) -> None:
    """Make the attributes `SAMPLES` and `TOKENS` into columns: phases of all sizes are one kind."""
    for attribute, column in ((SAMPLES, "samples"), (TOKENS, "tokens")):
        _take(spans, kinds, attribute, column)


def _take(spans: PhaseSpans, kinds: Kinds, attribute: str, column: str) -> None:
    own = {k: n for k, entry in enumerate(kinds.entries) if _is_count(n := entry["attributes"].get(attribute))}
    if not own:
        return
    plain: dict[int, int] = {}
    for k in own:
        entry = kinds.entries[k]
        attributes = {name: value for name, value in entry["attributes"].items() if name != attribute}
        plain[k] = kinds.number({**entry, "attributes": attributes})
    setattr(spans, column, [own.get(kind, 0) for kind in spans.kind])
    spans.kind = [plain.get(kind, kind) for kind in spans.kind]
    for k, of_all_sizes in plain.items():
        kinds.entries[k] = kinds.entries[of_all_sizes]


def spread_counts(spans: PhaseSpans, kinds: Kinds) -> None:
    """A step has the samples and tokens of the forward passes in it, and so has what else it holds. ``spans`` are
    sorted."""
    if not spans.samples and not spans.tokens:
        return
    names = [entry["name"] for entry in kinds.entries]
    step_of: list[int] = []
    """Of each phase the outermost step around it, or itself."""
    forwards: dict[int, list[int]] = {}
    for i, (kind, above) in enumerate(zip(spans.kind, spans.parent, strict=True)):
        around = step_of[above] if above >= 0 else -1
        is_step = names[kind] == ITERATION or is_own_iteration(names[kind])
        step_of.append(i if around < 0 and is_step else around)
        if names[kind] == _FORWARD and around >= 0:
            forwards.setdefault(around, []).append(i)
    if spans.samples:
        _spread_samples(spans, kinds, step_of, forwards)
    if spans.tokens:
        _spread_tokens(spans, names, step_of, forwards)


def _spread_samples(
    spans: PhaseSpans, kinds: Kinds, step_of: Sequence[int], forwards: Mapping[int, Sequence[int]]
) -> None:
    """Those of the first pass, unless a phase states another ``batch_size`` than that."""
    stated = [entry["attributes"].get("batch_size") for entry in kinds.entries]
    for i, kind in enumerate(spans.kind):
        first = forwards.get(step_of[i], [-1])[0]
        has_own = kinds.entries[kind]["name"] in (_FORWARD, *_APART) or spans.samples[i] > 0
        if first >= 0 and not has_own and stated[kind] in (None, stated[spans.kind[first]]):
            spans.samples[i] = spans.samples[first]


def _spread_tokens(
    spans: PhaseSpans, names: Sequence[str], step_of: Sequence[int], forwards: Mapping[int, Sequence[int]]
) -> None:
    """Those of all passes, unless the step itself says how many. Its parts have them where there is one pass."""
    of_step: dict[int, int] = {}
    for step in {*step_of} - {-1}:
        of_passes = [spans.tokens[i] for i in forwards.get(step, ())]
        of_step[step] = spans.tokens[step] or (sum(of_passes) if all(of_passes) else 0)
    for i, step in enumerate(step_of):
        is_whole = i == step or len(forwards.get(step, ())) < 2
        if step >= 0 and is_whole and names[spans.kind[i]] not in _APART:
            spans.tokens[i] = spans.tokens[i] or of_step[step]


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


# -- which model nobody named ------------------------------------------------------------------------------------------


def name_models(spans: PhaseSpans, kinds: Kinds) -> None:
    """Make the attribute `MODEL_BY_CLASS` of watched models' phases into ``model``: of the outermost phase around them
    that holds no other model, unless the user has named the model there, around or inside.

    So a phase ``iteration`` that the user marks by hand is in one group with the passes in it. ``spans`` are sorted.
    """
    attributes = [entry["attributes"] for entry in kinds.entries]
    hints = [own.get(MODEL_BY_CLASS) for own in attributes]
    if not any(hints):
        return
    is_named = ["model" in own for own in attributes]
    # The model of each phase and what is inside: None for none, "" for several or one that has a name.
    inside: list[str | None] = ["" if is_named[kind] else hints[kind] for kind in spans.kind]
    for i in reversed(range(len(inside))):
        above, model = spans.parent[i], inside[i]
        if above >= 0 and model is not None:
            inside[above] = model if inside[above] in (None, model) else ""
    plain = [{name: v for name, v in own.items() if name != MODEL_BY_CLASS} for own in attributes]
    kinds.entries = [{**e, "attributes": own} for e, own in zip(kinds.entries, plain, strict=True)]
    is_settled: list[bool] = []
    """Whether a phase has its model, from itself or from one around it."""
    for i, (kind, above) in enumerate(zip(spans.kind, spans.parent, strict=True)):
        around = above >= 0 and is_settled[above]
        model = None if around or is_named[kind] else inside[i] or None
        is_settled.append(around or is_named[kind] or model is not None)
        if model is not None:
            named = {**kinds.entries[kind], "attributes": {**plain[kind], "model": model}}
            spans.kind[i] = kinds.number(named)
