"""What the edges of stretches are corrected by: power held up to the edge, and joules that held power leaves over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.belief import believed
from powerd_analytics.edges.leftover import Side, left_over_j
from powerd_analytics.edges.place import shared_place_ns
from powerd_analytics.edges.stretched import Look, Stretched
from powerd_analytics.signals.integral import Integral
from powerd_core.model import ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

CLEAR_RATIO = 4.0
"""Mean square movement across edges over that inside phases, from which on edges are taken for steps altogether."""
NEED_LATE = 8
"""Edges of a kind from which on the mean of what is left over at them is known well enough to be assigned."""
UNDER_WAY = 0.05
"""Share of a step that power moves from one clean cell to the next, from which on it is on its way."""
USUAL_LAG_S = 1e-3
"""How late power comes after an edge where it does so at all: 2 ms at most, as for folding, taken as two of these."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Of one kind of edge, begins or ends: by stretch [n] or by class [classes]."""

    look: Look
    dist_ns: Values
    """[n] from the edge to the clean cell whose power is held."""
    full_j: Values
    """[n] what would be added if the edge were surely a step."""
    bend_j: Values
    """[n] the part of it that comes from the slope."""
    steeper: Values
    """[classes] slope towards the edge beyond that all through the phase, W/ns."""
    weight: Values
    """[classes] the share of it that is applied."""
    excess2: Values
    """[classes] mean square (W^2) of how much more power moves across the edge than it does elsewhere."""
    late_w: Values
    """[classes] joules by which windows that lie a second later would change what is assigned: a share of the step."""
    late_u_j: Values
    """[classes] standard uncertainty, the same at all edges of the class, of what is left over there: what clocks may
    explain, and what is assigned to nobody."""
    late_line_u_j: Values
    """[classes] the same from the scatter of this line's own readings."""
    late_own_u_j: Values
    """[classes] the same that differs from edge to edge: how much of it the held power has seen already."""


@dataclass(frozen=True, slots=True)
class _LeftOver:
    """Joules by class [classes]: what goes to the phases at this edge, and its standard uncertainties."""

    assigned: Values
    shift_w: Values
    u_j: Values
    line_u_j: Values
    own_u_j: Values


def correct_edges(
    found: Stretched, integral: Integral, weight: float | None, *, use_slope: bool, use_late: bool
) -> tuple[Correction, Correction]:
    """The corrections of begins and ends. ``weight`` fixes the share of all classes (None: as the data say)."""
    begins, ends = (_correct(found, integral, look, weight, use_slope, use_late) for look in found.looks)
    return begins, ends


def _correct(
    found: Stretched, integral: Integral, look: Look, weight: float | None, use_slope: bool, use_late: bool
) -> Correction:
    cells, label, t_ns = found.cells, found.s.label, found.signal.t_ns
    own, excess2 = _weight(found, look)
    share = own if weight is None else np.full(found.classes, weight)
    slope = np.zeros(found.classes)
    if use_slope:
        slope = found.slope(look.inside, look.deeper, look.inside_w - look.deeper_w, found.clean >= 3)
    steeper = np.where(slope != 0, slope - found.steady_slope(look), 0.0)
    # Power is never held beyond the first and last reading: what lies there is missing, not guessed.
    edge_ns = np.clip(look.edge_ns, t_ns[0], t_ns[-1])
    if look.is_begin:
        begin_ns, end_ns = edge_ns, cells.left[look.inside]
    else:
        begin_ns, end_ns = cells.right[look.inside], edge_ns
    dist_ns = np.maximum(end_ns - begin_ns, 0).astype(np.float64)
    held_j = look.inside_w * dist_ns * 1e-9
    # Between an edge and a counter's interval the mean of that interval is half a cell farther away.
    bend_j = slope[label] * dist_ns * (dist_ns / 2 + cells.half_ns) * 1e-9
    straight_j = integral.between(begin_ns, np.maximum(end_ns, begin_ns))
    full_j = np.where(found.resolvable, held_j + bend_j - straight_j, 0.0)
    late = _left_over(found, integral, look, slope, steeper)
    if use_late and look.is_begin:
        full_j = full_j + np.where(found.resolvable, late.assigned[label], 0.0)
    return Correction(
        look, dist_ns, full_j, bend_j, steeper, share, excess2, late.shift_w, late.u_j, late.line_u_j, late.own_u_j
    )


def _weight(found: Stretched, look: Look) -> tuple[Values, Values]:
    """By class: how clearly power moves more across its edges than over such a time inside its phases, from 0 to 1, and
    the mean square of what it moves more."""
    jump, lag_ns, there = found.jump(look)
    k = found.s.label
    steps = np.maximum(lag_ns / found.cells.spacing_ns, 1.0)
    usual = found.move1[k] + (found.move2[k] - found.move1[k]) * (steps - 1)
    across, elsewhere = found.sum(jump**2, there), found.sum(np.maximum(usual, 0), there)
    ratio = np.maximum(across, 1e-300) / np.maximum(elsewhere, 1e-300)
    excess2 = np.maximum(across - elsewhere, 0) / np.maximum(found.count(there), 1)
    return np.clip((ratio - 1) / (CLEAR_RATIO - 1), 0, 1), excess2


def _is_under_way(found: Stretched, look: Look, steeper: Values, known: Mask) -> Mask:
    """By class: whether clean cells behind the edges still see power come from its old level, faster than it moves all
    through the phase. A step leaves nothing of that, wherever a chip's windows lie."""
    jump, _, _ = found.jump(look)
    return np.asarray(
        -steeper * found.cells.spacing_ns * found.sum(jump, known) > UNDER_WAY * found.sum(jump**2, known)
    )


def _left_over(found: Stretched, integral: Integral, look: Look, slope: Values, steeper: Values) -> _LeftOver:
    """Joules around the edges that power held on both sides does not account for, by class.

    A step at the edge leaves nothing on average, whatever the sensor. A ramp does, and so does a sensor that is
    slower than the transition. Power follows its cause: what a phase changes, it changes after it has begun, so
    that what is left over at a beginning belongs to what begins there.
    """
    n, label = len(found.cells), found.s.label
    jump, _, there = found.jump(look)
    known = look.known & there
    outside, farther = np.clip(look.outside, 0, n - 1), np.clip(look.farther, 0, n - 1)
    w = found.cells.watts
    beyond_slope = found.slope(outside, farther, w[outside] - w[farther], known & look.is_farther_known)[label]
    beyond = Side(outside, w[outside], beyond_slope)
    within = Side(look.inside, look.inside_w, slope[label])
    low, high = (beyond, within) if look.is_begin else (within, beyond)
    left_j = left_over_j(found.signal, found.cells, integral, look.edge_ns, low, high)
    count = found.count(known)
    mean, variance = found.mean(left_j, known)
    # An offset of the clocks moves joules across a step just so, and so does a delay that nobody states: only what is
    # more than that is assigned. Where a chip's windows lie is known far better than how late power comes.
    step2 = found.sum(jump**2, known) / np.maximum(count, 1)
    of_clocks = found.sum((jump * found.bound_ns * 1e-9) ** 2, known) / np.maximum(count, 1) / 3
    of_place = step2 * (shared_place_ns(found.signal) * 1e-9) ** 2 / 3
    is_chip = isinstance(found.signal.line.conversion, ShuntConversion)
    limits2 = of_clocks + (0.0 if is_chip else of_place)
    sure = np.sqrt(np.clip(1 - 4 * limits2 / np.maximum(mean**2, 1e-300), 0, 1))
    size2 = np.maximum(np.maximum(count, 1) * variance, step2 * USUAL_LAG_S**2 if is_chip else 0.0)
    half = np.sqrt(3 * of_place) if is_chip else np.zeros_like(mean)
    share, left2 = believed(sure * mean, variance, half, size2, _is_under_way(found, look, steeper, known))
    # Place moves what is assigned as it moves the mean, which is a part of its own (`late_w`). Of what clocks may
    # explain, nothing or all is real.
    variance = np.maximum(left2 - share**2 * half**2 / 3, 0)
    u2 = share**2 * of_clocks + ((1 - sure) * mean) ** 2 / 2
    share = share * sure
    step = found.sum(jump, known) / np.maximum(count, 1)
    mean = np.where(count >= NEED_LATE, mean, found.mean(left_j, there)[0])
    share = np.where(count >= NEED_LATE, share, 0.0)
    # What begins at an edge takes all of it, so that what ends there is unsure only where nothing can be assigned.
    none = np.zeros_like(mean)
    if not look.is_begin:
        return _LeftOver(none, none, np.where(count >= NEED_LATE, 0.0, np.abs(mean) / np.sqrt(3)), none, none)
    u2, variance = np.where(count >= NEED_LATE, (u2, variance), (mean**2 / 3, none))
    # A clean cell near the edge has seen the end of the transition, one farther off has not, and each edge gets the
    # mean of both: between nothing of it and all of it, evenly for cells at moments that know nothing of the edge.
    own = share * np.abs(mean) / np.sqrt(12)
    return _LeftOver(share * mean, share * step, np.sqrt(u2), np.sqrt(variance), own)
