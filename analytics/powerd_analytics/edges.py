"""Energies of phases of one signal: linear integral, corrected at edges where the power steps.

Power usually steps exactly where a phase begins, between two readings; a straight line through both leaks part of
the step into the neighbour. docs/energy.md derives and measures what is done here: from an edge to the nearest
*clean* cell (a reading, or a counter's interval, that saw nothing but this phase) the cell's power is held, with the
slope that all phases of the kind share; joules around a beginning that held power does not account for belong to what
begins there; how much of that correction is applied depends on how much more power moves across edges of the kind
than it does inside the phases. Everything is prefix sums and sums by class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.cells import Cells
from powerd_analytics.corrections import Correction, correct_edges
from powerd_analytics.missing import missing_in
from powerd_analytics.signal import Signal
from powerd_analytics.stretched import Look, Stretched
from powerd_analytics.stretches import JOIN_SHARE, join_stretches

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PhaseEnergies:
    """Energies of phases [m] from one signal, joules, with standard uncertainties by cause.

    Not resolvable: ``energy_j`` is NaN there; ``linear_j`` is always the plain integral.
    """

    energy_j: Values
    linear_j: Values
    begin_j: Values
    end_j: Values
    """Corrections at the edges that ``energy_j`` has on top of ``linear_j``."""
    resolvable: Mask
    u_random_j: Values
    """What differs from phase to phase: sampling inside and at the edges, noise."""
    u_inner_j: Values
    """The same from edges inside a stretch: what one phase loses there its neighbour of the same kind gains, so
    that it counts for single phases and not for their mean."""
    u_edge_j: Values
    u_clock_j: Values
    """Shared by all phases of a class: imperfect edge correction; an offset of the clocks."""
    missing_s: Values
    off_by_j: Values
    """Largest error that the missing readings can cause when power stays in the line's observed range."""


def phase_line_energies(
    signal: Signal,
    begin_ns: Ints,
    end_ns: Ints,
    label: Ints,
    process: Ints,
    *,
    weight: float | None = None,
    use_slope: bool = True,
    use_late: bool = True,
) -> PhaseEnergies:
    """Energies of phases [m] of classes ``label``.

    ``weight`` fixes the correction's share (None: as the data say); ``use_slope`` and ``use_late`` leave parts of it
    out, for comparisons.
    """
    integral = signal.integral()
    linear = integral.between(begin_ns, end_ns)
    missing_s, off_by = missing_in(signal, integral, begin_ns, end_ns)
    m = len(begin_ns)
    cells = Cells(signal) if len(signal) > 2 else None
    if cells is None or m == 0:
        none, nan = np.zeros(m), np.full(m, np.nan)
        return PhaseEnergies(nan, linear, none, none, np.zeros(m, bool), nan, nan, nan, nan, missing_s, off_by)
    s = join_stretches(begin_ns, end_ns, label, process, JOIN_SHARE * signal.resolution_ns)
    found = Stretched(signal, cells, s, np.unique(np.concatenate([begin_ns, end_ns])))
    begins, ends = correct_edges(found, integral, weight, use_slope=use_slope, use_late=use_late)
    i = s.of_phase
    begin_j = np.where(s.is_first, (begins.weight[s.label] * begins.full_j)[i], 0.0)
    end_j = np.where(s.is_last, (ends.weight[s.label] * ends.full_j)[i], 0.0)
    resolvable = found.resolvable[i]
    u_random, u_inner = _random_j(found, begins, ends, begin_ns, end_ns)
    u_begin, u_end = _shared_j(found, begins)[i], _shared_j(found, ends)[i]
    return PhaseEnergies(
        energy_j=np.where(resolvable, linear + begin_j + end_j, np.nan),
        linear_j=linear,
        begin_j=np.where(resolvable, begin_j, 0.0),
        end_j=np.where(resolvable, end_j, 0.0),
        resolvable=resolvable,
        u_random_j=u_random,
        u_inner_j=u_inner,
        u_edge_j=np.hypot(np.where(s.is_first, u_begin, 0.0), np.where(s.is_last, u_end, 0.0)),
        u_clock_j=_clock_j(found, begins, ends)[i],
        missing_s=missing_s,
        off_by_j=off_by,
    )


def _random_j(
    found: Stretched, begins: Correction, ends: Correction, begin_ns: Ints, end_ns: Ints
) -> tuple[Values, Values]:
    """Random standard uncertainty of each single phase: its own, and that of its edges inside a stretch."""
    s, h = found.s, found.cells.spacing_ns
    i = s.of_phase
    share = (end_ns - begin_ns) / np.maximum(found.length_ns, 1.0)[i]
    inside = np.maximum(found.own_j2[i] * share, found.own_rate[s.label][i] * (end_ns - begin_ns))
    edge_b, edge_e = _edge_j2(found, begins), _edge_j2(found, ends)
    swing = found.move1[s.label] * (h**2 + found.signal.window_ns**2) / 12 * 1e-18
    inner = swing + _moment_j2(found, begins.look)
    own = inside + np.where(s.is_first, edge_b[i], 0.0) + np.where(s.is_last, edge_e[i], 0.0)
    shared = np.where(s.is_first, 0.0, inner[i]) + np.where(s.is_last, 0.0, inner[i])
    nan = np.where(found.resolvable[i], 0.0, np.nan)
    return np.sqrt(own) + nan, np.sqrt(shared) + nan


def _moment_j2(found: Stretched, look: Look) -> Values:
    """Variance (J^2) of one end of an interval for the moment at which a counter stood where it was read."""
    if not found.signal.is_counter:
        return np.zeros(len(look.inside))
    return (found.cells.watts[look.inside] * found.signal.centre_ns * 1e-9) ** 2 / 3


def _edge_j2(found: Stretched, fix: Correction) -> Values:
    """Variance (J^2) of one corrected edge: power that wanders on the way to the edge, noise of the cell held."""
    k, h, dist_ns = found.s.label, found.cells.spacing_ns, fix.dist_ns
    jump, _, there = found.jump(fix.look)
    wander = np.clip(found.move1 - 2 * found.sigma2, 0, None)[k] * dist_ns**3 / (3 * h)
    noise = found.sigma2[k] * (dist_ns + h / 2) ** 2
    straight = (1 - fix.weight[k]) ** 2 * np.where(there, jump, 0.0) ** 2 * h**2 / 12
    variance: Values = (fix.weight[k] ** 2 * (wander + noise) + straight) * 1e-18 + _moment_j2(found, fix.look)
    return variance


def _shared_j(found: Stretched, fix: Correction) -> Values:
    """By stretch: standard uncertainty (J) of a corrected edge that all phases of a class share."""
    n = np.maximum(found.count(), 1)
    left = (1 - fix.weight) * np.abs(found.sum(fix.full_j) / n) / np.sqrt(3)
    bent = fix.weight * np.abs(found.sum(fix.bend_j) / n) / 2
    shared: Values = np.sqrt(left**2 + bent**2 + (fix.weight * fix.late_u_j) ** 2)[found.s.label]
    return shared


def _clock_j(found: Stretched, begins: Correction, ends: Correction) -> Values:
    """By stretch: standard uncertainty (J) of all phases of a class together, for an offset of the clocks."""
    c, k = found.cells, found.s.label
    moved = (c.watts[found.last] - c.watts[found.first]) ** 2
    for fix in (begins, ends):
        jump, _, there = found.jump(fix.look)
        moved = moved + np.where(there, (1 - fix.weight[k]) * jump, 0.0) ** 2
    typical = found.sum(moved) / np.maximum(found.count(), 1)
    shared: Values = found.bound_ns / np.sqrt(3) * np.sqrt(typical[k]) * 1e-9
    return shared
