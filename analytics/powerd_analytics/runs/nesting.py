"""Which phases are the iterations of a run, and in whose group each phase is: by which phase contains which.

A group is what a total is of. A phase inside an iteration is in the iteration's group, whatever model, optimizer or
batch size it states itself: so a total holds every pass once, and groups share no joule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from powerd_analytics.runs.phases import Group, PhaseClass, Phases, Small, canonical_text, distinct, moments_of, pieces
from powerd_client.energies.phase import BASELINE
from powerd_client.signals.pairing import is_own_iteration
from powerd_core.marks import ITERATION

FORWARD, UPDATE = "forward", "update"
PASSES = (FORWARD, "backward", "gradient", UPDATE)
EVALUATIONS = ("evaluation", "validation", "eval", "valid")
PASSES_OF = "passes"
"""The attribute of the groups of `EVALUATIONS` beside iterations: they would else be in the training's total."""

Path = tuple[str, ...]
Key = tuple[tuple[str, str], ...]


def with_iterations(phases: Phases) -> Phases:
    """The phases with classes that know which of them are iterations, and in whose group they are."""
    paths = _iteration_paths(phases)
    classes = tuple(replace(c, is_iteration=True) if c.path in paths else c for c in phases.classes)
    if not any(c.is_iteration for c in classes):
        return phases
    phases = replace(phases, classes=classes)
    is_inside = [any(c.path[:depth] in paths for depth in range(1, len(c.path) + 1)) for c in classes]
    is_evaluation = [any(name in EVALUATIONS for name in c.path) and not c.is_beside for c in classes]
    evaluation = {
        i: tuple(sorted({**dict(c.family), PASSES_OF: "evaluation"}.items()))
        for i, c in enumerate(classes)
        if is_evaluation[i] and not is_inside[i]
    }
    home, homes = _homes(phases, [i for i, c in enumerate(classes) if is_inside[i] and not c.is_beside])
    if home is None and not evaluation:
        return phases
    return _in_homes(phases, home, homes, evaluation)


# -- which phases are iterations ---------------------------------------------------------------------------------------


def _iteration_paths(phases: Phases) -> set[Path]:
    """The paths of the phases that are iterations: those called so, else the phases around the passes of a training.

    Such a phase is the innermost one that holds all kinds of passes that any phase around it holds. It holds no more
    than one update by each optimizer; without updates it is one by its name, or holds no more than one backward pass.
    An update with its passes inside (a closure) is an iteration where nothing else is.
    """
    count = np.bincount(phases.label, minlength=len(phases.classes)).tolist()
    own: dict[Path, int] = {}
    inside: dict[Path, dict[str, list[int]]] = {}
    for kind, n in zip(phases.classes, count, strict=True):
        if not n or kind.is_magnified:
            continue
        own[kind.path] = own.get(kind.path, 0) + n
        for depth in range(1, len(kind.path)):
            inside.setdefault(kind.path[:depth], {}).setdefault(kind.name, []).append(n)

    def passes(path: Path) -> set[str]:
        return set(inside.get(path, ())).intersection(PASSES)

    def is_candidate(path: Path) -> bool:
        held, name = inside.get(path, {}), path[-1]
        if ITERATION in held or name == BASELINE or name in EVALUATIONS:
            return False
        if FORWARD not in held or passes(path) == {FORWARD} or name in PASSES:
            return FORWARD in held and name == UPDATE
        if UPDATE in held:
            return max(held[UPDATE]) <= own[path]
        if is_own_iteration(name):
            return own[path] > 1 or max(held.get("backward", [1])) == 1
        return all(max(held[name]) <= own[path] for name in passes(path) - {FORWARD})

    candidates = {path: passes(path) for path in own if path[-1] != ITERATION and is_candidate(path)}
    deeper = {(path[:depth], tuple(sorted(held))) for path, held in candidates.items() for depth in range(len(path))}
    found = {path for path in own if path[-1] == ITERATION}
    found |= {path for path, held in candidates.items() if (path, tuple(sorted(held))) not in deeper}
    return {path for path in found if not any(path[:depth] in found for depth in range(1, len(path)))}


# -- what a group consists of ------------------------------------------------------------------------------------------


def containers(kinds: Mapping[Path, tuple[bool, float]]) -> set[Path]:
    """Of a group's kinds of phases (path: whether it is an iteration, how many there are) those that are told by what
    is in them: its iterations and the phases around these, as far as phases of the group are inside. All others are
    its parts where they are in no other part: so parts and the rest between them are all of it.

    Without iterations these are the forward passes, else the commonest phases. Passes are parts, never containers.
    """
    if not kinds:
        return set()
    around = {path[:depth] for path in kinds for depth in range(1, len(path))}
    iterations = [path for path, (is_iteration, _) in kinds.items() if is_iteration or path[-1] == ITERATION]
    iterations = iterations or [path for path in kinds if _plain(path) == FORWARD]
    iterations = iterations or [max(kinds, key=lambda path: (kinds[path][1], -len(path)))]
    outer = {path[:depth] for path in iterations for depth in range(1, len(path))}
    own = {path for path in iterations if _plain(path) not in PASSES}
    return around & (outer | own)


def parts_of(
    kinds: Mapping[Path, tuple[bool, float]],
    others: Collection[Path] = (),
    unresolved: Collection[Path] = (),
    empty: Collection[Path] = (),
) -> set[Path]:
    """The parts of a group: those of its kinds that are no `containers`, hold no phases of other groups (``others``)
    and are in no other part. What is inside a part that is ``unresolved`` is a part as well. Those that are ``empty``
    have none inside, though paths of other groups may read so."""
    told_by_inner = containers(kinds).difference(empty).union(others)
    told = {path for path in kinds if path not in told_by_inner and path not in unresolved and path not in empty}
    return {
        path for path in kinds
        if path not in told_by_inner and not any(path[:depth] in told for depth in range(1, len(path)))
    }  # fmt: skip


def _plain(path: Path) -> str:
    """The name of a phase without what tells it from others of its group (`_named`)."""
    return path[-1].partition(" ")[0]


# -- in whose group a phase is -----------------------------------------------------------------------------------------


def _homes(phases: Phases, inside: Sequence[int]) -> tuple[Small | None, list[Group]]:
    """[m] the number of each phase's group, -1 for those that are not of the classes ``inside`` iterations, and the
    groups. None instead of numbers where these all state what their iteration does, as in a training of one model."""
    classes, keys = phases.classes, {i: key_of(phases.classes[i].family) for i in inside}
    if len(set(keys.values())) < 2:
        return None, []
    iteration = _iteration_of(phases)
    for some in pieces(len(phases)):
        iteration[some][~np.isin(phases.label[some], inside)] = -1
    if all(keys[outer] == keys[label] for outer, label in _pairs(phases, iteration)):
        return None, []
    first, number = _contents(phases, iteration)
    contents = [_content(classes, *one) for one in first]
    together = _trained_together([models for _, models in contents])
    homes: dict[Key, int] = {}
    groups: list[Group] = []
    home_of_content = np.empty(len(first), np.int32)
    for i, ((label, _), (agreed, models)) in enumerate(zip(first, contents, strict=True)):
        stated = dict(classes[label].family)
        own = agreed | stated
        others = together.get(next(iter(models), ""), models)
        if len(others) > 1 and canonical_text(own.get("model")) in others:
            del own["model"]
        group = tuple(sorted(own.items()))
        home_of_content[i] = homes.setdefault(key_of(group), len(groups))
        groups += [group] * (len(homes) - len(groups))
    home = np.full(len(phases), -1, np.int32)
    for some in pieces(len(phases)):
        is_in = iteration[some] >= 0
        home[some][is_in] = home_of_content[number[iteration[some][is_in]]]
    return home, groups


def key_of(group: Iterable[tuple[str, Any]]) -> Key:
    """Attributes as something to look a group up by: 64 and 64.0 are one number, the text "64" and True are none."""
    return tuple(sorted((name, canonical_text(value)) for name, value in group))


def _iteration_of(phases: Phases) -> Small:
    """[m] the outermost iteration that each phase is in, or is itself; -1 for none."""
    is_iteration = np.array([c.is_iteration for c in phases.classes])
    iteration = np.full(len(phases), -1, np.int32)
    for depth in range(int(phases.depth.max(initial=-1)) + 1):
        for some in pieces(len(phases)):
            rows = np.flatnonzero(phases.depth[some] == depth) + int(some.start)
            above = phases.parent[rows]
            around = np.where(above >= 0, iteration[above], np.int32(-1))
            itself = np.where(is_iteration[phases.label[rows]], rows, -1)
            iteration[rows] = np.where(around >= 0, around, itself)
    return iteration


def _pairs(phases: Phases, iteration: Small) -> list[tuple[int, int]]:
    """Each class of iterations with each class of the phases in them."""
    count = len(phases.classes)
    codes = np.zeros(0, np.int64)
    for some in pieces(len(phases)):
        inside = iteration[some] >= 0
        code = phases.label[iteration[some][inside]].astype(np.int64) * count + phases.label[some][inside]
        codes = distinct(np.concatenate([codes, code]))
    return [divmod(code, count) for code in codes.tolist()]


def _contents(phases: Phases, iteration: Small) -> tuple[list[tuple[int, tuple[int, ...]]], Small]:
    """What iterations there are, each the class of the iteration and the classes of the phases that tell its attributes
    (forward passes; others where it has none), and [m] of each iteration which of them it is."""
    names = [c.name for c in phases.classes]
    is_forward = np.array([name == FORWARD for name in names])
    is_other = np.array([name not in (*EVALUATIONS, "data") and not c.is_iteration
                         for name, c in zip(names, phases.classes, strict=True)])  # fmt: skip
    rows = np.flatnonzero(iteration >= 0)
    around, label = iteration[rows], phases.label[rows]
    has_forward = np.zeros(len(phases), bool)
    has_forward[around[is_forward[label]]] = True
    tells = np.where(has_forward[around], is_forward[label], is_other[label])
    every = moments_of(around[tells].astype(np.int64) * len(names) + label[tells])
    outer, inner = every // len(names), every % len(names)
    # One class after the other of those in an iteration, until all of each are in its number.
    own = moments_of(around.astype(np.int64))
    kinds: dict[tuple[int, tuple[int, ...]], int] = {}
    numbers = np.full(len(phases), -1, np.int32)
    for one in distinct(phases.label[own]).tolist():
        numbers[own[phases.label[own] == one]] = kinds.setdefault((one, ()), len(kinds))
    place = np.arange(len(outer)) - np.searchsorted(outer, outer, "left")
    for k in range(int(place.max(initial=-1)) + 1):
        at, listed = outer[place == k], list(kinds)
        codes = numbers[at].astype(np.int64) * len(names) + inner[place == k]
        for code in distinct(codes).tolist():
            one, others = listed[code // len(names)]
            numbers[at[codes == code]] = kinds.setdefault((one, (*others, code % len(names))), len(kinds))
    return list(kinds), numbers


def _content(classes: Sequence[PhaseClass], label: int, inner: Sequence[int]) -> tuple[dict[str, Any], set[str]]:
    """The attributes in which the phases inside an iteration agree, of those that have them, and their models."""
    values: dict[str, dict[str, Any]] = {}
    for own in (classes[i].family for i in inner):
        for name, value in own:
            values.setdefault(name, {})[canonical_text(value)] = value
    agreed = {name: next(iter(those.values())) for name, those in values.items() if len(those) == 1}
    return agreed, set(values.get("model", ()))


def _trained_together(each: Iterable[set[str]]) -> dict[str, set[str]]:
    """Of each model those that are in an iteration with it, or with one that is."""
    together: dict[str, set[str]] = {}
    for models in each:
        joined = models.union(*(together.get(model, ()) for model in models))
        together |= dict.fromkeys(joined, joined)
    return together


def _in_homes(phases: Phases, home: Small | None, homes: Sequence[Group], evaluation: Mapping[int, Group]) -> Phases:
    """The phases with a class for each class and group; ``evaluation``: the groups of classes outside iterations."""
    every = len(homes) + 1
    codes = np.empty(len(phases), np.int64)
    for some in pieces(len(phases)):
        codes[some] = phases.label[some].astype(np.int64) * every
        if home is not None:
            codes[some] += home[some] + 1
    different = distinct(codes)
    classes: list[PhaseClass] = []
    iterations: dict[tuple[Path, str, int], int] = {}
    label_of_code = np.empty(len(different), np.int32)
    for k, code in enumerate(different.tolist()):
        i, number = divmod(code, every)
        kind = replace(phases.classes[i], home=homes[number - 1] if number else evaluation.get(i))
        label_of_code[k] = len(classes)
        if kind.is_iteration and number:  # one kind, whatever each iteration holds of the models
            kind = replace(kind, attributes=dict(homes[number - 1]))
            label_of_code[k] = iterations.setdefault((kind.path, kind.timing, number), len(classes))
        classes += [kind] * (int(label_of_code[k]) == len(classes))
    label = label_of_code[np.searchsorted(different, codes)]
    placed = replace(phases, label=label, classes=tuple(classes))
    return replace(placed, classes=tuple(_named(placed)))


def _named(phases: Phases) -> list[PhaseClass]:
    """The classes with names by which those of one path and group can be told apart, such as ``forward D``."""
    alike: dict[tuple[Key, Path], list[PhaseClass]] = {}
    for kind in phases.classes:
        if kind.home is not None:
            alike.setdefault((key_of(kind.home), kind.path), []).append(kind)
    parent = np.full(len(phases.classes), -1)
    for some in pieces(len(phases)):
        is_inner = phases.parent[some] >= 0
        parent[phases.label[some][is_inner]] = phases.label[phases.parent[some][is_inner]]
    named: dict[int, PhaseClass] = {}
    for i in sorted(range(len(phases.classes)), key=lambda i: len(phases.classes[i].path)):
        kind = phases.classes[i]
        if kind.home is None:
            named[i] = kind
            continue
        around = named[int(parent[i])].shown if parent[i] >= 0 else ()
        name = " ".join([kind.name, *_differences(kind, alike[key_of(kind.home), kind.path])])
        named[i] = replace(kind, names=(*around, name))
    return [named[i] for i in range(len(phases.classes))]


def _differences(kind: PhaseClass, alike: Sequence[PhaseClass]) -> list[str]:
    """The attributes in words that not all of ``alike`` have: a model's name alone, others with what they are."""
    values: dict[str, set[str]] = {}
    for other in alike:
        for name in {name for one in alike for name, _ in one.own}:
            values.setdefault(name, set()).add(canonical_text(dict(other.own).get(name)))
    names = sorted((n for n, those in values.items() if len(those) > 1), key=lambda n: (n != "model", n))
    own = dict(kind.own)
    return [str(own[n]) if n == "model" else f"{n} {own[n]}" for n in names if own.get(n) is not None]
