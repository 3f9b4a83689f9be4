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

from powerd_analytics.edges.cells import Cells
from powerd_analytics.edges.corrections import Correction, correct_edges
from powerd_analytics.edges.missing import missing_in
from powerd_analytics.edges.place import shared_place_ns
from powerd_analytics.edges.rounding import rounding_u
from powerd_analytics.edges.stretched import Look, Stretched
from powerd_analytics.edges.stretches import JOIN_SHARE, join_stretches
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

OWN = 0.7
"""Share of a phase's own movement in its sampling variance, the rest is its kind's: a few readings are a poor estimate,
and a kind's mean says little of a phase that is unlike the others."""


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
    u_left_j: Values
    u_place_j: Values
    u_clock_j: Values
    """Shared by all phases of a class: imperfect edge correction; what is left over at edges, as far as the line's own
    readings leave that open; windows that all lie beside their stamps; an offset of the clocks."""
    u_shift_w: Values
    """Joules by which all edges a second later would change the mean of the class."""
    u_round_w: Values
    """What rounding to codes leaves of the mean power: less where noise goes over a code."""
    missing_s: Values
    off_by_j: Values
    """Largest error that the missing readings can cause when power stays in the line's observed range."""
    beyond_j: Values
    """The part of it of time in which nothing is counted: before the first reading, behind the last, where a counter
    was set back. There the energy is off to one side, and by all of this where power is steady."""


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
    missing_s, off_by, beyond = missing_in(signal, integral, begin_ns, end_ns)
    m = len(begin_ns)
    cells = Cells(signal) if len(signal) > 2 else None
    if cells is None or m == 0:
        return _unresolved(linear, missing_s, off_by, beyond)
    s = join_stretches(begin_ns, end_ns, label, process, JOIN_SHARE * signal.resolution_ns)
    # Both come in order nearly always: a stable sort merges them, and what is there twice does no harm.
    found = Stretched(signal, cells, s, np.sort(np.concatenate([begin_ns, end_ns]), kind="stable"))
    begins, ends = correct_edges(found, integral, weight, use_slope=use_slope, use_late=use_late)
    i = s.of_phase
    begin_j = np.where(s.is_first, (begins.weight[s.label] * begins.full_j)[i], 0.0)
    end_j = np.where(s.is_last, (ends.weight[s.label] * ends.full_j)[i], 0.0)
    resolvable = found.resolvable[i]
    u_random, u_inner = _random_j(found, begins, ends, begin_ns, end_ns)
    shift_w, spread_w = _shift_w(found, begins, ends)
    late_w = (begins.weight * begins.late_w)[s.label]
    offset_s, place_s = found.bound_ns * 1e-9 / np.sqrt(3), shared_place_ns(signal) * 1e-9 / np.sqrt(3)
    u_begin, u_end = _shared_j(found, begins)[i], _shared_j(found, ends)[i]
    return PhaseEnergies(
        energy_j=np.where(resolvable, linear + begin_j + end_j, np.nan),
        linear_j=linear,
        begin_j=np.where(resolvable, begin_j, 0.0),
        end_j=np.where(resolvable, end_j, 0.0),
        resolvable=resolvable,
        # Power that moves up in one phase and down in the next makes an offset a matter of chance.
        u_random_j=np.hypot(u_random, (np.hypot(offset_s, place_s) * spread_w)[i]),
        u_inner_j=u_inner,
        u_edge_j=np.hypot(np.where(s.is_first, u_begin, 0.0), np.where(s.is_last, u_end, 0.0)),
        u_left_j=np.where(s.is_first, (begins.weight * begins.late_line_u_j)[s.label][i], 0.0),
        u_place_j=(place_s * np.abs(shift_w + late_w))[i],
        u_clock_j=(offset_s * np.abs(shift_w))[i],
        u_shift_w=np.abs(shift_w)[i],
        u_round_w=rounding_u(signal.line.accuracy.step_w, found.sigma2)[s.label][i],
        missing_s=missing_s,
        off_by_j=off_by,
        beyond_j=beyond,
    )


def _unresolved(linear_j: Values, missing_s: Values, off_by_j: Values, beyond_j: Values) -> PhaseEnergies:
    """Of phases on a signal that has too few readings to tell anything but their plain integral."""
    m = len(linear_j)
    none, nan = np.zeros(m), np.full(m, np.nan)
    return PhaseEnergies(
        energy_j=nan,
        linear_j=linear_j,
        begin_j=none,
        end_j=none,
        resolvable=np.zeros(m, bool),
        u_random_j=nan,
        u_inner_j=nan,
        u_edge_j=nan,
        u_left_j=nan,
        u_place_j=nan,
        u_clock_j=nan,
        u_shift_w=none,
        u_round_w=none,
        missing_s=missing_s,
        off_by_j=off_by_j,
        beyond_j=beyond_j,
    )


def _random_j(
    found: Stretched, begins: Correction, ends: Correction, begin_ns: Ints, end_ns: Ints
) -> tuple[Values, Values]:
    """Random standard uncertainty of each single phase: its own, and that of its edges inside a stretch."""
    s, h, k = found.s, found.cells.spacing_ns, found.s.label
    i = s.of_phase
    length = (end_ns - begin_ns).astype(np.float64)
    held = begins.weight[k] * begins.dist_ns + ends.weight[k] * ends.dist_ns
    share = np.clip(1 - held / np.maximum(found.length_ns, 1.0), 0, 1)[i]
    readings = length * share / h
    g, centre = found.cells.geometry, 0.0 if found.signal.is_counter else found.cells.centre_ns
    own = _own(found, begins, ends)
    rate = (g.inside * found.step2[k] * h**2 + found.smooth2[k] * centre**2 / 3) * own
    rate = rate + (0.0 if found.signal.is_counter else found.sigma2[k] * h**2)
    inside = rate[i] * readings * 1e-18
    edge_b, edge_e = _edge_j2(found, begins, own), _edge_j2(found, ends, own)
    swing = found.move1[k] * (h**2 + found.signal.window_ns**2) / 12 * 1e-18
    inner = swing + _moment_j2(found, begins.look)
    own_j2 = inside + np.where(s.is_first, edge_b[i], 0.0) + np.where(s.is_last, edge_e[i], 0.0)
    shared = np.where(s.is_first, 0.0, inner[i]) + np.where(s.is_last, 0.0, inner[i])
    nan = np.where(found.resolvable[i], 0.0, np.nan)
    return np.sqrt(own_j2) + nan, np.sqrt(shared) + nan


def _moment_j2(found: Stretched, look: Look, weight: Values | float = 0.0, dist_ns: Values | float = 0.0) -> Values:
    """Variance (J^2) of one end of an interval for the moments ± c at which a counter stood where it was read.

    The energy counted since the reading nearest to the edge is unsure by P c. Power that is held over d has been taken
    from two readings h apart: P c (1 + d/h) and P c d/h. Straight between two readings it is 2/3 of one on average.
    """
    if not found.signal.is_counter:
        return np.zeros(len(look.inside))
    far = np.asarray(dist_ns) / found.cells.spacing_ns
    of_readings = weight * ((1 + far) ** 2 + far**2) + (1 - np.asarray(weight)) * 2 / 3
    variance: Values = (found.cells.watts[look.inside] * found.signal.centre_ns * 1e-9) ** 2 / 3 * of_readings
    return variance


def _own(found: Stretched, begins: Correction, ends: Correction) -> Values:
    """By stretch: how much of its class's movement between readings is its own.

    What steps at the edges is corrected there, and all else lies between clean cells. Straight lines take in what moves
    up to the readings beyond the edges.
    """
    w = (begins.weight + ends.weight)[found.s.label] / 2
    own: Values = OWN * (w * found.own_share + (1 - w) * found.wide_share) + (1 - OWN)
    return own


def _edge_j2(found: Stretched, fix: Correction, own: Values) -> Values:
    """Variance (J^2) of one edge: power that wanders on the way to the edge and noise of the cell held; for straight
    lines steps near the edge, and how much more power moves across it than elsewhere."""
    k, h, dist_ns = found.s.label, found.cells.spacing_ns, fix.dist_ns
    w2, rest2 = fix.weight[k] ** 2, (1 - fix.weight[k]) ** 2
    wander = found.step2[k] * dist_ns**3 / (3 * h) + found.wild2[k] * dist_ns**4 / (4 * h**2)
    noise = found.sigma2[k] * dist_ns * (dist_ns + h)
    if not found.signal.is_counter:
        # On its way to another level, power is another where the window of the reading held lies beside its stamp.
        noise = noise + (fix.steeper[k] * found.cells.centre_ns * (dist_ns + h / 2)) ** 2 / 3
    straight = found.cells.geometry.edge * found.step2[k] * h**2 * own + fix.excess2[k] * h**2 / 12
    moment = _moment_j2(found, fix.look, fix.weight[k], dist_ns)
    late = w2 * fix.late_own_u_j[k] ** 2
    variance: Values = (w2 * (wander + noise) + rest2 * straight) * 1e-18 + moment + late
    return variance


def _shared_j(found: Stretched, fix: Correction) -> Values:
    """By stretch: standard uncertainty (J) of a corrected edge that all phases of a class share."""
    n = np.maximum(found.count(), 1)
    left = (1 - fix.weight) * np.abs(found.sum(fix.full_j) / n) / np.sqrt(3)
    # The slope goes on to the edge somewhere between half and one and a half times as steep.
    bent = fix.weight * np.abs(found.sum(fix.bend_j) / n) / np.sqrt(12)
    shared: Values = np.sqrt(left**2 + bent**2 + (fix.weight * fix.late_u_j) ** 2)[found.s.label]
    return shared


def _shift_w(found: Stretched, begins: Correction, ends: Correction) -> tuple[Values, Values]:
    """By stretch: joules (W s) by which all edges a second later would change the mean of its class, and how far that
    of its own is from it.

    What is held moves with the readings; a straight line has at the edge what lies there between two of them.
    """
    k = found.s.label
    level = [
        fix.weight[k] * fix.look.inside_w + (1 - fix.weight[k]) * found.cells.at(fix.look.edge_ns)
        for fix in (begins, ends)
    ]
    moved = level[1] - level[0]
    n = np.maximum(found.count(), 1)
    mean = found.sum(moved) / n
    return mean[k], np.abs(moved - mean[k])
