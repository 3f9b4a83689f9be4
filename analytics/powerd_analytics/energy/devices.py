"""Energies of devices: the sum over the lines that feed them, each once, never over different provenances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.budget import Budget, line_parts
from powerd_analytics.energy.edges import JOIN_SHARE
from powerd_analytics.energy.lines import Numbers, Which, energies_of
from powerd_analytics.energy.uncertainty import factor
from powerd_analytics.runs.phases import Phases
from powerd_analytics.runs.run import Progress, Run, no_progress
from powerd_analytics.signals.signal import SLICE, Signal, load_together
from powerd_analytics.signals.streams import plain_j
from powerd_core.errors import AnalysisError

Values = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of one provenance that feed one device; nearly always all of them."""

    device: str
    provenance: str
    signals: tuple[Signal, ...]

    @property
    def gap_ns(self) -> float:
        """Phases closer together than this have no gap between them that the sensors could tell."""
        return JOIN_SHARE * min((s.resolution_ns for s in self.signals), default=0.0)


@dataclass(frozen=True, slots=True)
class Seen:
    """What the sensors tell of intervals [m]."""

    resolvable: NDArray[np.bool_]
    missing_s: Values
    """The most that one of the lines misses."""
    duration_s: Values


@dataclass(frozen=True, slots=True)
class PhaseColumns(Seen):
    """Energies of intervals [m] of one part; NaN in ``energy_j`` where ``resolvable`` is False."""

    energy_j: Values
    linear_j: Values
    begin_j: Values
    end_j: Values
    """Edge corrections contained in ``energy_j`` and not in ``linear_j``, the plain integral."""
    u_random_j: Values
    u_inner_j: Values
    """Random too, but cancelling between back-to-back phases of one kind: of single phases, not of their mean."""
    u_systematic_j: Values
    rectangle_j: Values
    """The one rectangle that the limits within ``u_systematic_j`` amount to (`powerd_analytics.energy.uncertainty`)."""
    off_by_j: Values

    @property
    def u95_j(self) -> Values:
        """Expanded uncertainty of each single phase."""
        u: Values = np.sqrt(self.u_random_j**2 + self.u_inner_j**2 + self.u_systematic_j**2)
        return factor(u, self.rectangle_j) * u


def load_parts(
    run: Run,
    device: str | None = None,
    progress: Progress = no_progress,
    *,
    in_memory: float | None = None,
    slice_size: int = SLICE,
) -> tuple[Part, ...]:
    """The parts of one device or of all, `powerd_analytics.signals.signal.load_together`."""
    devices = [run.device(device)] if device is not None else list(run.devices.values())
    names = [name for d in devices for name in d.feeds]
    signals = iter(load_together(run, names, progress, in_memory=in_memory, slice_size=slice_size))
    parts = []
    for d in devices:
        by_provenance: dict[str, list[Signal]] = {}
        for name in d.feeds:
            by_provenance.setdefault(run.lines[name].provenance.value, []).append(next(signals))
        parts += [Part(d.name, provenance, tuple(of_provenance)) for provenance, of_provenance in by_provenance.items()]
    return tuple(parts)


def interval_energies(
    part: Part,
    begin_ns: Ints,
    end_ns: Ints,
    label: Numbers,
    process: Numbers,
    edge_bound_ns: Numbers | None = None,
) -> PhaseColumns:
    """Energies of intervals [m] that fall into classes ``label``.

    ``edge_bound_ns`` [m]: how far a device's clock can have put their edges.
    """
    sums = {name: np.zeros(len(begin_ns)) for name in ("energy_j", "linear_j", "begin_j", "end_j", "off_by_j")}
    budget = Budget(len(begin_ns))
    seen = _add_up(part, (begin_ns, end_ns, label, process), edge_bound_ns, budget, sums)
    u_random, u_inner, u_systematic, rectangle = budget.taken()
    return PhaseColumns(
        seen.resolvable,
        seen.missing_s,
        seen.duration_s,
        **sums,
        u_random_j=u_random,
        u_inner_j=u_inner,
        u_systematic_j=u_systematic,
        rectangle_j=rectangle,
    )


def interval_budget(
    part: Part, begin_ns: Ints, end_ns: Ints, label: Numbers, process: Numbers, edge_bound_ns: Numbers | None = None
) -> tuple[Budget, Seen]:
    """The parts of the uncertainty of `interval_energies` alone: of many phases there is no room for both."""
    budget, off_by_j = Budget(len(begin_ns), details=True), {"off_by_j": np.zeros(len(begin_ns))}
    return budget, _add_up(part, (begin_ns, end_ns, label, process), edge_bound_ns, budget, off_by_j)


def _add_up(
    part: Part,
    intervals: tuple[Ints, Ints, Numbers, Numbers],
    edge_bound_ns: Numbers | None,
    budget: Budget,
    sums: Mapping[str, Values],
) -> Seen:
    """Add what each line has of intervals (begins, ends, classes, processes) up in ``budget`` and ``sums``."""
    begin_ns, end_ns, label, process = intervals
    m = len(begin_ns)
    missing, beyond, resolvable = np.zeros(m), np.zeros(m), np.full(m, bool(part.signals))
    for signal in part.signals:
        for which, energies in energies_of(signal, begin_ns, end_ns, label, process):
            for name, column in sums.items():
                _add(column, which, getattr(energies, name))
            _add(beyond, which, energies.beyond_j)
            bound = None if edge_bound_ns is None else edge_bound_ns[which].astype(np.float64)
            length_s = (end_ns[which] - begin_ns[which]).astype(np.float64) * 1e-9
            budget.add(which, signal, line_parts(signal, energies, length_s, bound))
            if np.any(energies.missing_s):
                missing[which] = np.maximum(missing[which], energies.missing_s)
            resolvable[which] &= energies.resolvable
    budget.add_missing(sums["off_by_j"], beyond)
    duration = (end_ns - begin_ns).astype(np.float64)
    duration *= 1e-9
    return Seen(resolvable, missing, duration)


def _add(column: Values, which: Which, values: Values) -> None:
    """Add, but for zeros: of a column that stays 0 (nothing is missing anywhere), no memory is ever used."""
    if np.any(values):
        column[which] += values


def part_phase_energies(run: Run, part: Part) -> PhaseColumns:
    """Energies of all phases of a run, in the order of `Run.phases`."""
    p = run.phases
    return interval_energies(part, p.begin_ns, p.end_ns, p.label, p.process, _edge_bound_ns(p))


def part_phase_budget(run: Run, part: Part) -> tuple[Budget, Seen]:
    """The parts of the uncertainty of all phases of a run."""
    p = run.phases
    return interval_budget(part, p.begin_ns, p.end_ns, p.label, p.process, _edge_bound_ns(p))


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


def line_energies(signals: Sequence[Signal], begin_ns: int, end_ns: int) -> Values:
    """Plain integral of each signal over one interval, for comparisons between lines."""
    if begin_ns >= end_ns:
        return np.zeros(len(signals))
    interval = np.array([begin_ns]), np.array([end_ns])
    return np.array([plain_j(s, interval)[0][0] for s in signals])
