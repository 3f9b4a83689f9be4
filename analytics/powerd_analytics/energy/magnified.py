"""Phases that a sensor is too slow for, by the power that each has when it is repeated alone (`Meter.magnify`).

With m_k the mean power of phase k repeated and T_k its ordinary duration, m_k T_k is what it should take; what other
phases of the iteration should take, those whose repetitions would wait for the host, its readings say. The sum of all
phases stays what the readings say of the whole: its difference from the sum of these expectations is shared out among
them by their variances. With e_k = m_k T_k (u_k: of m_k, and 1 % of it for what differs alone), P (u_P) what the
readings say of all phases together, and D = sum of the e_k, less P,

    E_k = e_k - w_k D,   u(E_k)^2 = u_k^2 (1 - w_k) + w_k^2 u_P^2,   w_k = u_k^2 / sum of all u^2,

the posterior of all under the condition that their sum is P. The sensor's gain is in all of them alike. To give each
phase its share e_k / sum of P instead leaves an rms error of 0.63 for 0.60 % in 100 recordings. Repeated alone a phase
may find other caches, clocks and temperatures, or a host that is too slow for it. So the sum of the m_k T_k is
held against what the readings say (closure), the clocks are compared where the run has them, and so are the durations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.budget import KINDS, LIMIT
from powerd_analytics.energy.devices import (
    Magnification,
    Part,
    PhaseColumns,
    interval_budget,
    interval_energies,
    part_phase_energies,
)
from powerd_analytics.energy.uncertainty import NORMAL
from powerd_analytics.output.text import join_texts, seconds
from powerd_analytics.runs.phases import Phases, merge_intervals, without
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Run
from powerd_client.energies.phase import HEAD_START, MAGNIFIED
from powerd_core.model import QuantityConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

SETTLE_NS = 100_000_000
"""Beginning of a stretch that is left out, but behind a head start: clocks rise, and the first repetitions wait for the
host."""
APART_NS = 20_000_000
"""Repetitions farther apart than this are of two stretches."""
ALIKE = 0.03
"""A phase that takes so much longer or shorter alone than in its iteration is another phase, or waits for the host: on
two hosts that were fast enough repetitions took 1.2 % longer at most, and 12 % too long cost 5 % of the power."""
MOST_OPEN, MOST_CLOCK = 0.02, 0.01
"""Closure and change of the clock beyond which the repetitions say nothing of the iteration."""
U_ALONE = 0.01
"""Relative standard uncertainty of a phase's power by what is different when it is repeated alone: on two H200 what
follows lay within 1.2 % of blocks of one phase (docs/results/h200/README.md)."""
LITTLE = 0.01
"""Variance of another phase of the iteration, as a share of that of the repeated ones, below which they tell nothing of
it."""
CONSTANT = ("gain", "offset", "quantisation")
"""Parts of the budget that the repeated and the ordinary phases have in common."""


def magnified_kinds(run: Run, part: Part) -> Mapping[int, Magnification]:
    """By class of ordinary phases: what repetitions of it say. Of ``run`` the phases count that use the part."""
    key, known = tuple(map(id, part.signals)), part.known.magnified
    if key not in known:
        stretches = _stretches(run.phases)
        if stretches and len(ranks_of(run).users(part.device)) > 1:
            note = "not magnified: ranks share the device"
            known[key] = dict.fromkeys(stretches, Magnification(note))
        else:
            known[key] = _kinds(run, part, stretches)
    return known[key]


def energies_with_magnified(run: Run, part: Part) -> PhaseColumns:
    """Energies of all phases of a run, in the order of `Run.phases`; those of magnified kinds by their repetitions.
    What is known of single ones beside their kind's mean stays."""
    columns = part_phase_energies(run, part)
    known = {label: m for label, m in magnified_kinds(run, part).items() if m.power_w is not None}
    if not known:
        return columns
    copied = {name: getattr(columns, name).copy() for name in PhaseColumns.__dataclass_fields__}
    for label, m in known.items():
        of_kind = run.phases.label == label
        expected_j, energy_j = m.power_w * columns.duration_s[of_kind], columns.energy_j[of_kind]
        told = np.isfinite(energy_j)
        if told.any() and energy_j[told].sum() > 0:
            energy_j = np.where(told, energy_j * (expected_j[told].sum() / energy_j[told].sum()), expected_j)
        else:
            energy_j = expected_j
        copied["energy_j"][of_kind], copied["resolvable"][of_kind] = energy_j, True
        copied["u_systematic_j"][of_kind] = np.abs(energy_j) * np.hypot(m.u_share, m.u_sensor)
        copied["rectangle_j"][of_kind] = np.abs(energy_j) * m.rectangle
    return PhaseColumns(**copied)


# -- what was repeated -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stretches:
    """The repetitions of one kind of phase [m], without what is left out of each stretch."""

    begin_ns: Ints
    end_ns: Ints
    each_s: float
    """Mean time from one repetition to the next: where the GPU waits for the host, longer than the repetition."""


def _stretches(p: Phases) -> dict[int, _Stretches]:
    """By class of the ordinary phases: those of the same name that came last before the repetitions, in the same
    process and under the same setting, or else first behind them."""
    repeated: dict[int, list[NDArray[np.intp]]] = {}
    for number, kind in enumerate(p.classes):
        name, setting = kind.name.removeprefix(MAGNIFIED), kind.setting
        if not (kind.is_magnified and kind.name.startswith(MAGNIFIED)):
            continue
        if setting is not None and setting.is_changing:
            continue
        alike = (c.name == name and c.setting == setting and not c.is_magnified for c in p.classes)
        ordinary = np.flatnonzero(p.of([i for i, is_alike in enumerate(alike) if is_alike]))
        rows = np.flatnonzero((p.label == number) & ~p.cut)
        for own in (rows[p.parent[rows] == call] for call in np.unique(p.parent[rows])):
            known = ordinary[p.process[ordinary] == p.process[own[0]]]
            if len(known):
                last = max(int(np.searchsorted(known, own[0])) - 1, 0)
                repeated.setdefault(int(p.label[known[last]]), []).append(own)
    return {label: _joined(p, np.sort(np.concatenate(rows))) for label, rows in repeated.items()}


def _joined(p: Phases, rows: NDArray[np.intp]) -> _Stretches:
    begin, end = p.begin_ns[rows], p.end_ns[rows]
    is_ahead = p.of([i for i, kind in enumerate(p.classes) if kind.name == HEAD_START])[rows - 1]
    first = np.flatnonzero(np.append(True, begin[1:] - end[:-1] > APART_NS) | is_ahead)
    behind = np.append(first[1:], len(rows))
    settle_ns = np.where(is_ahead[first], 0, SETTLE_NS)
    from_ns, to_ns = begin[first] + settle_ns, end[behind - 1]
    is_long = to_ns > from_ns + settle_ns
    settled = np.searchsorted(begin, from_ns[is_long])
    took_ns, count = to_ns[is_long] - begin[settled], behind[is_long] - settled
    return _Stretches(from_ns[is_long], to_ns[is_long], float(took_ns.sum()) * 1e-9 / max(int(count.sum()), 1))


# -- what it says of the ordinary phases -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Taken:
    """Joules of intervals together."""

    energy_j: float
    time_s: float
    u_own_j: float
    """Standard uncertainty but for `CONSTANT`."""
    u_constant_j: float
    rectangle_j: float


def _taken(part: Part, each: Sequence[tuple[Ints, Ints]]) -> list[_Taken]:
    """Of several sets of intervals what each takes."""
    begin, end = (np.concatenate(ends) for ends in zip(*each, strict=True))
    label = np.repeat(np.arange(len(each)), [len(own) for own, _ in each])
    columns = interval_energies(part, begin, end, label, is_whole=True)
    parts = interval_budget(part, begin, end, label)[0].parts

    def of(own: NDArray[np.bool_]) -> _Taken:
        u = {
            n: float(x[own].sum() if KINDS[n].of_repeats else np.hypot.reduce(x[own], initial=0.0))
            for n, x in parts.items()
        }
        return _Taken(
            float(columns.energy_j[own].sum()),
            float(columns.duration_s[own].sum()),
            float(np.hypot.reduce([x for n, x in u.items() if n not in CONSTANT], initial=0.0)),
            float(np.hypot.reduce([x for n, x in u.items() if n in CONSTANT], initial=0.0)),
            float(columns.rectangle_j[own].sum()),
        )

    return [of(label == k) for k in range(len(each))]


def _kinds(run: Run, part: Part, stretches: Mapping[int, _Stretches]) -> dict[int, Magnification]:
    """Those of one iteration are told together."""
    p = run.phases
    kinds: dict[int, Magnification] = {}
    around: dict[int, dict[int, _Stretches]] = {}
    for label, of_kind in stretches.items():
        first = int(np.argmax(p.label == label))
        ordinary_s = float(p.duration_s[p.label == label].mean())
        if p.parent[first] < 0:
            kinds[label] = Magnification("not magnified: no iteration is marked around it")
        elif not len(of_kind.begin_ns):
            kinds[label] = Magnification("not magnified: the repetitions are too short")
        elif not abs(of_kind.each_s / ordinary_s - 1) <= ALIKE:
            alone = f"alone it takes {seconds(of_kind.each_s)} instead of {seconds(ordinary_s)}"
            kinds[label] = Magnification(f"not magnified: {alone}: one of them may wait for the host, or do other work")
        else:
            around.setdefault(_usual_parent(p, label), {})[label] = of_kind
    for outer, repeated in around.items():
        for label, magnification in _of_iteration(run, part, outer, repeated).items():
            refusal = kinds[label].note if label in kinds else ""
            kinds[label] = replace(magnification, note=join_texts(refusal, magnification.note))
    return kinds


def _usual_parent(p: Phases, label: int) -> int:
    """The class around most phases of a class: a few may lie in iterations during which the power cap changed."""
    parent = p.parent[p.label == label]
    return int(np.bincount(p.label[parent[parent >= 0]]).argmax())


def _of_iteration(run: Run, part: Part, outer: int, stretches: Mapping[int, _Stretches]) -> dict[int, Magnification]:
    """The kinds of phases that lie in those of the class ``outer``: those that are repeated, and what these leave to
    the others."""
    p = run.phases
    labels = list(stretches)
    whole = (p.label == outer) & ~p.cut
    inside = (p.parent >= 0) & whole[p.parent] & ~p.cut & ~p.of([k for k, c in enumerate(p.classes) if c.is_magnified])
    others = [k for k in np.unique(p.label[inside]).tolist() if k not in labels]
    of_others = [(p.begin_ns[own], p.end_ns[own]) for own in (inside & (p.label == k) for k in others)]
    iterations = merge_intervals(p.begin_ns[whole], p.end_ns[whole])
    rest = without(*iterations, p.begin_ns[inside], p.end_ns[inside])
    alone = [(s.begin_ns, s.end_ns) for s in stretches.values()]
    taken, left, *each = _taken(part, [iterations, rest, *of_others, *alone])
    other, repeated = each[: len(others)], each[len(others) :]
    phases_j, u2_phases = taken.energy_j - left.energy_j, taken.u_own_j**2 + left.u_own_j**2
    other_j, u2_other = np.array([o.energy_j for o in other]), np.array([o.u_own_j**2 for o in other])
    together_j = phases_j - other_j.sum()
    power_w = np.array([r.energy_j / r.time_s for r in repeated])
    time_s = np.array([float(p.duration_s[inside & (p.label == label)].sum()) for label in labels])
    parts_j = power_w * time_s
    if not (np.isfinite(together_j + u2_other.sum()) and together_j > 0 and (parts_j > 0).all()):
        return dict.fromkeys(labels, Magnification("not magnified: too few readings"))
    u_power = np.array([r.u_own_j / r.energy_j for r in repeated])
    open_j = float(parts_j.sum()) - together_j
    u_open_j = np.sqrt(np.sum((parts_j * u_power) ** 2) + u2_phases + u2_other.sum())
    limit = max(MOST_OPEN, NORMAL * float(u_open_j) / together_j)
    clock = _clock_change(run, part, iterations, alone)
    off = f"{100 * open_j / together_j:+.1f} % off the iteration"
    why = ""
    if abs(open_j / together_j) > limit:
        why = f"their sum is {off} (limit {100 * limit:.1f} %)"
    elif clock is not None and abs(clock) > MOST_CLOCK:
        why = f"one has another clock ({100 * clock:+.1f} %, limit {100 * MOST_CLOCK:.0f} %)"
    if why:
        return dict.fromkeys(labels, Magnification(f"not magnified: repeated alone, {why}"))
    length_s = sum(r.time_s for r in repeated)
    note = f"magnified: {seconds(length_s)} repeated alone, their sum {off}"
    longer = np.array([s.each_s for s in stretches.values()]) / [
        float(p.duration_s[p.label == k].mean()) for k in labels
    ]
    of_power = np.sqrt(u_power**2 + U_ALONE**2 + (longer - 1) ** 2)
    told_j, u_told_j = _divided((phases_j, u2_phases), (other_j, u2_other), (parts_j, parts_j * of_power))
    told_s = np.append(time_s, [o.time_s for o in other])
    notes = [note] * len(labels) + ["told with what the repeated phases leave of the iteration"] * len(others)
    of_sensor = taken.u_constant_j / taken.energy_j, taken.rectangle_j / taken.energy_j
    return {
        label: Magnification(
            notes[i],
            float(told_j[i] / told_s[i]),
            float(u_told_j[i] / told_j[i]),
            *of_sensor,
            is_difference=label in others,
        )
        for i, label in enumerate(labels + others)
        if label in stretches or 0 < NORMAL * u_told_j[i] <= LIMIT * told_j[i]
    }


def _divided(
    phases: tuple[float, float], other: tuple[Values, Values], parts: tuple[Values, Values]
) -> tuple[Values, Values]:
    """Joules of the repeated phases [k] and of the others [i], one after the other, and their standard uncertainties;
    0 for those of others that the repeated ones tell nothing of.

    Of all ``phases`` and of the ``other`` ones the joules and their variances by the readings of the iterations are
    given, and of the ``parts`` the joules by the power alone and their standard uncertainties.
    """
    (phases_j, u2_phases), (other_j, u2_other), (parts_j, u_parts) = phases, other, parts
    told_j = np.append(parts_j, other_j)
    u2 = np.append(u_parts**2, np.where(u2_other < LITTLE * np.sum(u_parts**2), 0.0, u2_other))
    share = u2 / u2.sum()
    return told_j - share * (told_j.sum() - phases_j), np.sqrt(u2 * (1 - share) + share**2 * u2_phases)


def _clock_change(
    run: Run, part: Part, iterations: tuple[Ints, Ints], stretches: Sequence[tuple[Ints, Ints]]
) -> float | None:
    """The largest relative difference of a stretch's mean clock from that of the iterations; None where it is not
    known."""
    lines = (line for line in run.lines.values() if line.device == part.device and line.name.endswith(".sm_clock"))
    line = next(lines, None)
    if line is None or not isinstance(line.conversion, QuantityConversion):
        return None
    column = line.conversion.column
    read = run.good_readings(line.name, column)

    def mean(begin: Ints, end: Ints) -> float:
        inside = np.searchsorted(begin, read.t_ns, "right") > np.searchsorted(end, read.t_ns, "left")
        return float(np.mean(read.codes[column][inside])) if inside.any() else np.nan

    usual = mean(*iterations)
    known = [change for s in stretches if np.isfinite(change := mean(*s) / usual - 1)]
    return max(known, key=abs) if known else None
