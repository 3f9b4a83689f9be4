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

from powerd_analytics.cells import Cells, span
from powerd_analytics.energy import Integral
from powerd_analytics.leftover import Side, left_over_j
from powerd_analytics.missing import missing_in
from powerd_analytics.signal import Signal
from powerd_analytics.stretches import JOIN_SHARE, Stretches, join_stretches

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

CLEAR_RATIO = 4.0
"""Mean square movement across edges over that inside phases, from which on edges are taken for steps altogether."""
NEED_LATE = 8
"""Edges of a kind from which on the mean of what is left over at them is known well enough to be assigned."""
NEED_CLEAN = 2
"""Clean cells that a stretch must hold: with one, nothing tells how the power moves inside."""


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
    found = _Stretched(signal, cells, s, np.unique(np.concatenate([begin_ns, end_ns])))
    fix_b, fix_e, weight_b, weight_e = found.corrections(integral, weight, use_slope=use_slope, use_late=use_late)
    i = s.of_phase
    begin_j = np.where(s.is_first, fix_b[i], 0.0)
    end_j = np.where(s.is_last, fix_e[i], 0.0)
    resolvable = found.resolvable[i]
    u_random, u_inner = found.random(begin_ns, end_ns, weight_b, weight_e)
    u_edge, u_clock = found.shared(weight_b, weight_e)
    return PhaseEnergies(
        energy_j=np.where(resolvable, linear + begin_j + end_j, np.nan),
        linear_j=linear,
        begin_j=np.where(resolvable, begin_j, 0.0),
        end_j=np.where(resolvable, end_j, 0.0),
        resolvable=resolvable,
        u_random_j=u_random,
        u_inner_j=u_inner,
        u_edge_j=np.hypot(np.where(s.is_first, u_edge[0][i], 0.0), np.where(s.is_last, u_edge[1][i], 0.0)),
        u_clock_j=u_clock[i],
        missing_s=missing_s,
        off_by_j=off_by,
    )


@dataclass(frozen=True, slots=True)
class _LeftOver:
    """Joules by class [classes]: what goes to the phases at this edge, and its standard uncertainty."""

    assigned: Values
    u_j: Values


class _Stretched:
    """The clean cells of every stretch, and what the classes have in common."""

    def __init__(self, signal: Signal, cells: Cells, s: Stretches, edges: Ints) -> None:
        self.signal, self.cells, self.s = signal, cells, s
        self.bound_b, self.bound_e = _bound(signal, s.begin_ns), _bound(signal, s.end_ns)
        guard_b = np.ceil(signal.guard_ns + self.bound_b).astype(np.int64)
        guard_e = np.ceil(signal.guard_ns + self.bound_e).astype(np.int64)
        n = len(cells)
        first = np.searchsorted(cells.left, s.begin_ns + guard_b, "left")
        last = np.searchsorted(cells.right, s.end_ns - guard_e, "right") - 1
        self.before = np.searchsorted(cells.right, s.begin_ns - guard_b, "right") - 1
        self.after = np.searchsorted(cells.left, s.end_ns + guard_e, "left")
        self.clean = last - first + 1
        self.resolvable = self.clean >= NEED_CLEAN
        self.first, self.last = np.clip(first, 0, n - 1), np.clip(last, 0, n - 1)
        self.classes = int(s.label.max()) + 1
        # A look outside tells what power stood at the edge only when no other phase began or ended in between.
        near = round(JOIN_SHARE * signal.resolution_ns)
        bounds = np.concatenate([[np.iinfo(np.int64).min // 2], edges, [np.iinfo(np.int64).max // 2]])
        earlier = bounds[np.searchsorted(edges, s.begin_ns - near, "left")]
        later = bounds[np.searchsorted(edges, s.end_ns + near, "right") + 1]
        self.known_b = cells.left[np.clip(self.before, 0, n - 1)] >= earlier + guard_b
        self.known_e = cells.right[np.clip(self.after, 0, n - 1)] <= later - guard_e
        self._pool()

    def _sum(self, values: Values, where: Mask | None = None) -> Values:
        """Sums by class [classes] over the stretches that are resolvable (and ``where``)."""
        use = self.resolvable if where is None else self.resolvable & where
        return np.bincount(self.s.label[use], values[use], self.classes).astype(np.float64)

    def _pool(self) -> None:
        c, first, last = self.cells, self.first, self.last
        count = (last - first).astype(np.float64)
        pairs = np.maximum(self._sum(count), 1.0)
        # Mean square of the power's movement over one and over two distances inside phases of a class.
        self.move1 = self._sum(span(c.square, first, last)) / pairs
        triples = self._sum(np.maximum(count - 1, 0))
        self.move2 = np.where(
            triples > 0, self._sum(span(c.square2, first, last - 1)) / np.maximum(triples, 1), 2 * self.move1
        )
        # Noise turns back at the next reading, steps and ramps do not: it is what successive differences share.
        # A ramp's steady movement is taken out first, or it would hide the noise.
        steady = ((c.watts[last] - c.watts[first]) / np.maximum(count, 1)) ** 2 * np.maximum(count - 1, 0)
        back = span(c.product, first, last - 1) + steady
        self.sigma2 = np.clip(self._sum(back) / np.maximum(triples, 1), 0, self.move1 / 2)
        noise = np.clip(span(c.noise, first, last - 1) + steady * c.spacing_ns**2, 0, None)
        own = span(c.inside, first, last) + c.noise_share * noise
        self.own = own * 1e-18
        self.length = (self.s.end_ns - self.s.begin_ns).astype(np.float64)
        self.rate = self._sum(self.own) / np.maximum(self._sum(self.length), 1.0)

    def _jump(self, at: Ints, other: Ints) -> tuple[Values, Values, Mask]:
        """Power across an edge (inside less outside), the time between both looks, and where there is an outside."""
        c = self.cells
        there = (other >= 0) & (other < len(c))
        o = np.clip(other, 0, len(c) - 1)
        lag = np.abs((c.left[at] + c.right[at] - c.left[o] - c.right[o]) / 2)
        return c.watts[at] - c.watts[o], lag, there

    def _weight(self, at: Ints, other: Ints) -> Values:
        """By class: how clearly power moves more across its edges than over such a time inside its phases."""
        jump, lag, there = self._jump(at, other)
        k, h = self.s.label, self.cells.spacing_ns
        steps = np.maximum(lag / h, 1.0)
        usual = self.move1[k] + (self.move2[k] - self.move1[k]) * (steps - 1)
        across = self._sum(jump**2, there)
        ratio = np.maximum(across, 1e-300) / np.maximum(self._sum(np.maximum(usual, 0), there), 1e-300)
        return np.clip((ratio - 1) / (CLEAR_RATIO - 1), 0, 1)

    def _slope(self, at: Ints, inner: Ints, use: Mask) -> Values:
        """By class: mean slope towards the edge in W/ns, shrunk by how sure it is that there is one."""
        c = self.cells
        dt = np.abs(c.left[inner] - c.left[at]) + 1e-300
        slope = (c.watts[at] - c.watts[inner]) / np.maximum(dt, 1.0)
        n = self._sum(np.ones(len(slope)), use)
        mean = self._sum(slope, use) / np.maximum(n, 1)
        var = np.clip(self._sum(slope**2, use) / np.maximum(n, 1) - mean**2, 0, None) / np.maximum(n - 1, 1)
        shrunk: Values = np.where(n >= 3, mean * np.clip(1 - 4 * var / np.maximum(mean**2, 1e-300), 0, 1), 0.0)
        return shrunk

    def _held(self, at: Ints, dist: Values, slope: Values) -> tuple[Values, Values]:
        """Joules of a cell's power held over a distance (ns), and what the class's slope adds to that."""
        # Between an edge and a counter's interval the mean of that interval is half a cell farther away.
        bend = slope[self.s.label] * dist * (dist / 2 + self.cells.half_ns)
        return self.cells.watts[at] * dist * 1e-9, bend * 1e-9

    def corrections(
        self, integral: Integral, weight: float | None, *, use_slope: bool, use_late: bool
    ) -> tuple[Values, Values, Values, Values]:
        """Joules to add at the begin and end of each stretch, and the weights by class."""
        c, s, k = self.cells, self.s, self.s.label
        n = len(c)
        inside_b, inside_e = np.minimum(self.first + 1, n - 1), np.maximum(self.last - 1, 0)
        weights = [self._weight(self.first, self.before), self._weight(self.last, self.after)]
        if weight is not None:
            weights = [np.full(self.classes, weight)] * 2
        three = self.clean >= 3
        self.slopes = [self._slope(self.first, inside_b, three), self._slope(self.last, inside_e, three)]
        if not use_slope:
            self.slopes = [np.zeros(self.classes)] * 2
        # Power is never held beyond the first and last reading: what lies there is missing, not guessed.
        t = self.signal.t_ns
        edge_b, edge_e = np.clip(s.begin_ns, t[0], t[-1]), np.clip(s.end_ns, t[0], t[-1])
        self.dist_b = np.maximum(c.left[self.first] - edge_b, 0).astype(np.float64)
        self.dist_e = np.maximum(edge_e - c.right[self.last], 0).astype(np.float64)
        fixes = []
        self.slope_part = []
        for at, dist, slope, begin, end in (
            (self.first, self.dist_b, self.slopes[0], edge_b, c.left[self.first]),
            (self.last, self.dist_e, self.slopes[1], c.right[self.last], edge_e),
        ):
            held, bend = self._held(at, dist, slope)
            fixes.append(np.where(self.resolvable, held + bend - integral.between(begin, np.maximum(end, begin)), 0.0))
            self.slope_part.append(bend)
        self.late = self._left_over(integral)
        if use_late:
            fixes[0] = fixes[0] + np.where(self.resolvable, self.late[0].assigned[k], 0.0)
        self.full_fix = fixes
        return weights[0][k] * fixes[0], weights[1][k] * fixes[1], weights[0], weights[1]

    def random(self, begin: Ints, end: Ints, weight_b: Values, weight_e: Values) -> tuple[Values, Values]:
        """Random standard uncertainty of each single phase: its own, and that of its edges inside a stretch."""
        s, h = self.s, self.cells.spacing_ns
        i = s.of_phase
        share = (end - begin) / np.maximum(self.length, 1.0)[i]
        inside = np.maximum(self.own[i] * share, self.rate[s.label][i] * (end - begin))
        edge_b = self._edge(self.dist_b, self.first, self.before, weight_b)
        edge_e = self._edge(self.dist_e, self.last, self.after, weight_e)
        inner = self.move1[s.label] * (h**2 + self.signal.window_ns**2) / 12 * 1e-18 + self._moment(self.first)
        own = inside + np.where(s.is_first, edge_b[i], 0.0) + np.where(s.is_last, edge_e[i], 0.0)
        shared = np.where(s.is_first, 0.0, inner[i]) + np.where(s.is_last, 0.0, inner[i])
        nan = np.where(self.resolvable[i], 0.0, np.nan)
        return np.sqrt(own) + nan, np.sqrt(shared) + nan

    def _moment(self, at: Ints) -> Values:
        """Variance (J^2) of one end of an interval for the moment at which a counter stood where it was read."""
        if not self.signal.is_counter:
            return np.zeros(len(at))
        return (self.cells.watts[at] * self.signal.centre_ns * 1e-9) ** 2 / 3

    def _edge(self, dist: Values, at: Ints, other: Ints, weight: Values) -> Values:
        """Variance (J^2) of one corrected edge: power that wanders on the way to the edge, noise of the cell held."""
        k, h = self.s.label, self.cells.spacing_ns
        jump, _, there = self._jump(at, other)
        wander = np.clip(self.move1 - 2 * self.sigma2, 0, None)[k] * dist**3 / (3 * h)
        noise = self.sigma2[k] * (dist + h / 2) ** 2
        straight = (1 - weight[k]) ** 2 * np.where(there, jump, 0.0) ** 2 * h**2 / 12
        variance: Values = (weight[k] ** 2 * (wander + noise) + straight) * 1e-18 + self._moment(at)
        return variance

    def _left_over(self, integral: Integral) -> tuple[_LeftOver, _LeftOver]:
        """Joules around the edges (begin, end) that power held on both sides does not account for, by class.

        A step at the edge leaves nothing on average, whatever the sensor. A ramp does, and so does a sensor that is
        slower than the transition. Power follows its cause: what a phase changes, it changes after it has begun, so
        that what is left over at a beginning belongs to what begins there.
        """
        n = len(self.cells)
        found = []
        for at, other, beyond, adjacent, slope in (
            (self.first, self.before, self.before - 1, self.known_b, self.slopes[0]),
            (self.last, self.after, self.after + 1, self.known_e, self.slopes[1]),
        ):
            jump, _, there = self._jump(at, other)
            known = adjacent & there
            o, farther = np.clip(other, 0, n - 1), np.clip(beyond, 0, n - 1)
            outer = self._slope(o, farther, known & (beyond >= 0) & (beyond < n))[self.s.label]
            sides = (Side(o, outer), Side(at, slope[self.s.label]))
            low, high = sides if at is self.first else sides[::-1]
            edge = self.s.begin_ns if at is self.first else self.s.end_ns
            left = left_over_j(self.signal, self.cells, integral, edge, low, high)
            count = self._sum(np.ones(len(jump)), known)
            mean, variance = self._mean(left, known)
            # An offset of the clocks moves joules across a step just so: only what is more than that is assigned.
            bound = np.maximum(self.bound_b, self.bound_e) * 1e-9
            variance = variance + self._sum((jump * bound) ** 2, known) / np.maximum(count, 1) / 3
            share = np.sqrt(np.clip(1 - 4 * variance / np.maximum(mean**2, 1e-300), 0, 1))
            mean = np.where(count >= NEED_LATE, mean, self._mean(left, there)[0])
            share = np.where(count >= NEED_LATE, share, 0.0)
            # Which side the joules are on is known by a rule, not by the sensor: a rectangle of half the width for what
            # was assigned, of the full width for what was not.
            u2 = (share * mean) ** 2 / 12 + share**2 * variance + ((1 - share) * mean) ** 2 / 3
            found.append(_LeftOver(share * mean, np.sqrt(u2)))
        return found[0], found[1]

    def _mean(self, values: Values, where: Mask) -> tuple[Values, Values]:
        """By class: mean of ``values`` and the variance of that mean."""
        n = np.maximum(self._sum(np.ones(len(values)), where), 1)
        mean = self._sum(values, where) / n
        return mean, np.clip(self._sum(values**2, where) / n - mean**2, 0, None) / np.maximum(n - 1, 1)

    def shared(self, weight_b: Values, weight_e: Values) -> tuple[tuple[Values, Values], Values]:
        """Standard uncertainties (J) by stretch that all phases of a class share: edges (begin, end), clocks."""
        k = self.s.label
        n = np.maximum(self._sum(np.ones(len(k))), 1)
        sides = []
        for fix, bend, weight, late in zip(
            self.full_fix, self.slope_part, (weight_b, weight_e), self.late, strict=True
        ):
            left = (1 - weight) * np.abs(self._sum(fix) / n) / np.sqrt(3)
            bent = weight * np.abs(self._sum(bend) / n) / 2
            sides.append(np.sqrt(left**2 + bent**2 + (weight * late.u_j) ** 2)[k])
        c = self.cells
        moved = (c.watts[self.last] - c.watts[self.first]) ** 2
        for at, other, weight in ((self.first, self.before, weight_b), (self.last, self.after, weight_e)):
            jump, _, there = self._jump(at, other)
            moved = moved + np.where(there, (1 - weight[k]) * jump, 0.0) ** 2
        typical = self._sum(moved) / n
        clock = np.maximum(self.bound_b, self.bound_e) / np.sqrt(3) * np.sqrt(typical[k]) * 1e-9
        return (sides[0], sides[1]), clock


def _bound(signal: Signal, t: Ints) -> Values:
    return np.zeros(len(t)) if signal.clock is None else signal.clock.bound_ns(t)
