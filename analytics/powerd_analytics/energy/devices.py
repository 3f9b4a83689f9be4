"""Energies of devices: the sum over the lines that feed them, each once, never over different provenances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from powerd_analytics.energy.budget import Budget, Parts, line_parts
from powerd_analytics.energy.lines import Upto, upto
from powerd_analytics.energy.model import Posterior
from powerd_analytics.energy.regression import fit_line
from powerd_analytics.energy.states import States
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, Estimate, factor, sum_of
from powerd_analytics.runs.phases import Phases, moments_of, pieces
from powerd_analytics.runs.ranks import ranks_of
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.runs.signals import IN_MEMORY, SLICE, load_signal, load_together, plain_j
from powerd_client.signals.signal import Signal
from powerd_core.errors import AnalysisError
from powerd_core.model import CounterConversion, ScaledConversion

Values = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Magnification:
    """What the repetitions say of one kind of ordinary phases, by its class. Without a power, ``note`` says why."""

    note: str
    power_w: float | None = None
    u_share: float = 0.0
    """Relative standard uncertainty of its energy, but for the sensor's gain and zero."""
    u_sensor: float = 0.0
    """The same by these."""
    rectangle: float = 0.0
    """The rectangle among ``u_sensor``, likewise relative."""
    is_difference: bool = False
    """Whether it is told with what the repeated kinds leave of the iteration."""


@dataclass(slots=True)
class Known:
    """What has been found out of a part, each once. A part of one of its lines alone shares it."""

    states: States | None = None
    posteriors: dict[int, Posterior] = field(default_factory=dict)
    """By the signal's `id`, as the next."""
    upto: dict[int, tuple[Ints, Upto]] = field(default_factory=dict)
    """Moments, and what the signal has up to them."""
    magnified: dict[tuple[int, ...], Mapping[int, Magnification]] = field(default_factory=dict)
    """By the `id` of its signals (`powerd_analytics.energy.magnified.magnified_kinds`)."""


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of one provenance that feed one device; nearly always all of them."""

    device: str
    provenance: str
    signals: tuple[Signal, ...]
    run: Run
    alike: tuple[tuple[Signal, ...], ...] = ()
    """Signals of one board that see power alike, first the one with the most. What it finds is where the regressions of
    the others begin."""
    known: Known = field(default_factory=Known, compare=False, repr=False)

    @property
    def states(self) -> States:
        """What went on at each moment, by the phases of those who use the device."""
        if self.known.states is None:
            self.known.states = States.of(ranks_of(self.run).on(self.run, self.device)[0].phases)
        return self.known.states

    def posterior(self, signal: Signal) -> Posterior:
        """What one of the signals tells of the power of the states. It has two good readings or more."""
        posteriors = self.known.posteriors
        if id(signal) not in posteriors:
            clock = signal.clock
            bound = (
                float(np.max(clock.bound_ns(signal.t_ns[[0, -1]]))) if clock is not None and len(clock.t_ns) else 0.0
            )
            alike = next((group for group in self.alike if any(s is signal for s in group)), (signal,))
            beginning = self.posterior(alike[0]).beginning if alike[0] is not signal else None
            # On matrices of this size more threads take longer, and beside a training very much longer.
            with threadpool_limits(1, "blas"):
                posteriors[id(signal)] = fit_line(signal, self.states, bound, self._others_of(signal), beginning)
        return posteriors[id(signal)]

    def _others_of(self, signal: Signal) -> list[Signal]:
        """The other lines that the line's source has of the same power, as a GPU's driver does; none for a counter and
        for one of several lines."""
        line = signal.line
        if signal.is_counter or len(self.signals) > 1:
            return []
        others = [self.run.line(name) for name in self.run.compared(self.device)]
        same = [
            load_signal(self.run, o.name)
            for o in others
            if (o.source, o.board, o.provenance) == (line.source, line.board, line.provenance)
            and o.detail.get("scope") == line.detail.get("scope")
            and isinstance(o.conversion, CounterConversion | ScaledConversion)
            and o.count <= IN_MEMORY
        ]
        return [other for other in same if len(other) > 1]

    def upto(self, signal: Signal, moments_ns: Ints) -> Upto:
        """What the signal has up to moments in order. Those asked for first, usually of all phases, are remembered."""
        if id(signal) not in self.known.upto:
            ends = np.array([self.run.begin_ns, self.run.end_ns])
            every = moments_of(moments_ns, ends)
            self.known.upto[id(signal)] = every, upto(self.posterior(signal).model, every)
        every, grown = self.known.upto[id(signal)]
        at = np.minimum(np.searchsorted(every, moments_ns), len(every) - 1)
        if np.array_equal(every[at], moments_ns):
            # Of millions of moments in a row no copies.
            own = slice(at[0], at[-1] + 1) if len(at) and at[-1] - at[0] + 1 == len(at) else at
            return Upto(**{name: getattr(grown, name)[own] for name in Upto.__dataclass_fields__})
        return upto(self.posterior(signal).model, moments_ns)


@dataclass(frozen=True, slots=True)
class SensedIntervals:
    """What the sensors tell of intervals [m]."""

    resolvable: NDArray[np.bool_]
    missing_s: Values
    """The most that one of the lines misses."""
    duration_s: Values


@dataclass(frozen=True, slots=True)
class PhaseColumns(SensedIntervals):
    """Energies of intervals [m] of one part; NaN in ``energy_j`` where ``resolvable`` is False."""

    energy_j: Values
    u_random_j: Values
    """What each interval has of its own: what power did between readings, and noise."""
    u_systematic_j: Values
    """What intervals of a class share."""
    rectangle_j: Values
    """The one rectangle that the limits within ``u_systematic_j`` amount to (`powerd_analytics.energy.uncertainty`)."""
    off_by_j: Values
    """Guaranteed bound of what missing readings can have done: all that the lines could have drawn in that time. NaN
    where a line does not say how much it could draw."""

    @property
    def u95_j(self) -> Values:
        """Expanded uncertainty of each single interval."""
        u: Values = np.hypot(self.u_random_j, self.u_systematic_j)
        return factor(u, self.rectangle_j) * u


def load_parts(
    run: Run,
    device: str | None = None,
    progress: Progress = no_progress,
    *,
    in_memory: float | None = None,
    slice_size: int = SLICE,
) -> tuple[Part, ...]:
    """The parts of one device or of all, `powerd_analytics.runs.signals.load_together`."""
    devices = [run.device(device)] if device is not None else list(run.devices.values())
    names = [name for d in devices for name in d.feeds]
    signals = iter(load_together(run, names, progress, in_memory=in_memory, slice_size=slice_size))
    parts = []
    for d in devices:
        by_provenance: dict[str, list[Signal]] = {}
        for name in d.feeds:
            by_provenance.setdefault(run.lines[name].provenance.value, []).append(next(signals))
        parts += [
            Part(d.name, provenance, tuple(of_provenance), run, _alike(of_provenance))
            for provenance, of_provenance in by_provenance.items()
        ]
    return tuple(parts)


def _alike(signals: Sequence[Signal]) -> tuple[tuple[Signal, ...], ...]:
    """Those with the same response and limits: marks, lag, device and clock are the same as well."""
    groups: dict[Any, list[Signal]] = {}
    for s in signals:
        if not s.is_counter and len(s) > 1:
            a = s.line.accuracy
            response = a.window_ns, a.centre_ns, a.shared_centre_ns, a.filter_ns, a.u_filter, a.update_ns
            key = s.line.source, s.line.board, s.line.clock, s.line.period_ns, s.line.sensor.get("chip"), response
            groups.setdefault(key, []).append(s)
    by_power = (sorted(group, key=lambda s: -abs(float(s.value.mean()))) for group in groups.values())
    return tuple(tuple(group) for group in by_power if len(group) > 1)


def interval_energies(
    part: Part,
    begin_ns: Ints,
    end_ns: Ints,
    label: Numbers | None = None,
    edge_bound_ns: Numbers | None = None,
    *,
    is_whole: bool = False,
) -> PhaseColumns:
    """Energies of intervals [m] that fall into classes ``label``, one class without it.

    ``edge_bound_ns`` [m]: how far a device's clock can have put their edges. With ``is_whole`` they are parts of a
    total, which has a number however unsure it is.
    """
    lines, energy_j, off_by_j, seen = _lines_of(part, (begin_ns, end_ns), label, edge_bound_ns, is_whole=is_whole)
    u_random_j, u_systematic_j, rectangle_j = (np.zeros(len(begin_ns)) for _ in range(3))
    for own in pieces(len(begin_ns)):
        budget = Budget(own.stop - own.start)
        for signal, parts in lines:
            budget.add(signal, parts(own))
        u_random_j[own], u_systematic_j[own], rectangle_j[own] = budget.together()
    energy_j[~seen.resolvable] = np.nan
    return PhaseColumns(
        seen.resolvable, seen.missing_s, seen.duration_s, energy_j, u_random_j, u_systematic_j, rectangle_j, off_by_j
    )


def interval_budget(
    part: Part,
    begin_ns: Ints,
    end_ns: Ints,
    label: Numbers | None = None,
    edge_bound_ns: Numbers | None = None,
) -> tuple[Budget, SensedIntervals]:
    """The parts of the uncertainty of `interval_energies` alone: of many phases there is no room for both."""
    lines, _, _, seen = _lines_of(part, (begin_ns, end_ns), label, edge_bound_ns)
    budget = Budget(len(begin_ns))
    for own in pieces(len(begin_ns)):
        for signal, parts in lines:
            budget.add(signal, parts(own), own)
    return budget, seen


def _lines_of(
    part: Part,
    intervals: tuple[Ints, Ints],
    label: Numbers | None,
    edge_bound_ns: Numbers | None,
    *,
    is_whole: bool = False,
) -> tuple[list[tuple[Signal, Parts]], Values, Values, SensedIntervals]:
    """Of each line with readings what tells the parts of its uncertainty; the lines' energies together, and the bound
    of what missing readings can have done."""
    begin, end = intervals
    m = len(begin)
    moments = moments_of(begin, end)
    # Of the numbers of tens of millions of moments, wide ones would take as much room as the moments.
    narrow = np.int32 if m < 1 << 30 else np.int64
    ends: list[Numbers] = [np.searchsorted(moments, x).astype(narrow) for x in intervals]
    # First of all: what a fit needs on its way has room while there is nothing else.
    every = {id(s): part.upto(s, moments) for s in part.signals if m and len(s) > 1}
    del moments
    of = np.zeros(m, np.int32) if label is None else label
    duration = np.asarray((end - begin) * 1e-9, np.float64)
    missing, off_by = np.zeros(m), np.zeros(m)
    resolvable = np.full(m, bool(part.signals))
    lines: list[tuple[Signal, Parts]] = []
    energies: list[Values] = []
    for signal in part.signals if m else ():
        if (grown := every.get(id(signal))) is None:
            resolvable[:], missing = False, duration.copy()
            continue
        energy, is_missing = np.empty(m), bool(grown.lost_s.any() or grown.outside_s.any())
        low, high = signal.drawable_w() if is_missing else (0.0, 0.0)

        def between(own: slice, grown: Upto = grown) -> Upto:
            return grown.between(ends[0][own], ends[1][own])

        for own in pieces(m):
            here = between(own)
            energy[own] = here.energy_j
            if is_missing and (away_s := here.lost_s + here.outside_s).any():  # where these stay 0, no memory is used
                missing[own] = np.maximum(missing[own], away_s)
                farthest_w = float(np.maximum(abs(low), high))  # NaN where nothing says how much it could draw
                bound_j = here.lost_s * (high - low) + here.outside_s * farthest_w
                off_by[own] += np.where(away_s > 0, bound_j, 0.0)
        parts, told = line_parts(part.posterior(signal), intervals, of, energy, between, edge_bound_ns)
        resolvable &= told | is_whole
        lines.append((signal, parts))
        energies.append(energy)
    together = reduce(np.add, energies) if energies else np.zeros(m)
    return lines, together, off_by, SensedIntervals(resolvable, missing, duration)


def part_phase_energies(run: Run, part: Part) -> PhaseColumns:
    """Energies of all phases of a run, in the order of `Run.phases`."""
    p = run.phases
    return interval_energies(part, p.begin_ns, p.end_ns, p.label, _edge_bound_ns(p))


def part_phase_budget(run: Run, part: Part) -> tuple[Budget, SensedIntervals]:
    """The parts of the uncertainty of all phases of a run."""
    p = run.phases
    return interval_budget(part, p.begin_ns, p.end_ns, p.label, _edge_bound_ns(p))


def _edge_bound_ns(p: Phases) -> Numbers | None:
    is_bound = np.any(p.begin_bound_ns > 0) or np.any(p.end_bound_ns > 0)
    return np.maximum(np.maximum(p.begin_bound_ns, p.end_bound_ns), 0) if is_bound else None


def phase_energies(run: Run, device: str, provenance: str | None = None) -> PhaseColumns:
    """Energy of every single phase of a run on a device, with its uncertainty.

    ``provenance`` must say which part is meant when the device is fed by lines of different provenance, which are
    never added: else `AnalysisError`.
    """
    parts = load_parts(run, device)
    chosen = [p for p in parts if provenance in (None, p.provenance)]
    if len(chosen) != 1:
        there = ", ".join(p.provenance for p in parts) or "no lines"
        raise AnalysisError(f"device {device!r} is fed by {there}: say which provenance is meant; they are never added")
    return part_phase_energies(run, chosen[0])


@dataclass(frozen=True, slots=True)
class Whole:
    """Disjoint intervals [m] together."""

    energy: Estimate
    """NaN where a line has fewer than two readings."""
    off_by_j: float
    missing_s: float
    duration_s: float


def whole_of(part: Part, begin_ns: Ints, end_ns: Ints) -> Whole:
    """Energies of disjoint intervals [m] added up."""
    columns = interval_energies(part, begin_ns, end_ns, is_whole=True)
    return Whole(
        sum_of(*(getattr(columns, name) for name in MEAN_COLUMNS)),
        float(columns.off_by_j.sum()),
        float(columns.missing_s.sum()),
        float(columns.duration_s.sum()),
    )


def line_energies(signals: Sequence[Signal], begin_ns: int, end_ns: int) -> Values:
    """Plain integral of each signal over one interval, for comparisons between lines."""
    if begin_ns >= end_ns:
        return np.zeros(len(signals))
    interval = np.array([begin_ns]), np.array([end_ns])
    return np.array([plain_j(s, interval)[0][0] for s in signals])
