"""Stretches of phases on one signal: which cells they hold clean, and what the stretches of a class have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.cells import Cells, span
from powerd_analytics.edges.lowpass import filter_ns, without_the_old
from powerd_analytics.edges.stretches import JOIN_SHARE, Stretches
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

NEED_CLEAN = 2
"""Clean cells that a stretch must hold: with one, nothing tells how the power moves inside."""


@dataclass(frozen=True, slots=True)
class Look:
    """The cells nearest to one kind of edge, the begins or the ends of all stretches [n].

    ``inside`` and ``deeper`` are the stretch's own first two clean cells from the edge, within the signal whatever the
    stretch holds. ``outside`` and ``farther`` lie beyond the edge, and may lie beyond the signal: -1 or its length.
    """

    is_begin: bool
    edge_ns: Ints
    inside: Ints
    deeper: Ints
    outside: Ints
    farther: Ints
    known: Mask
    """Whether the cell outside tells what power stood at the edge: no other phase began or ended in between."""
    is_farther_known: Mask
    """The same for the one beyond it; else the two tell no slope."""
    inside_w: Values
    deeper_w: Values
    """Power there, less what a low-pass has left in it of what was before the stretch."""


class Stretched:
    """The clean cells of every stretch, and sums by class.

    ``edges`` are all moments at which any phase begins or ends, in order.
    """

    def __init__(self, signal: Signal, cells: Cells, s: Stretches, edges: Ints) -> None:
        self.signal, self.cells, self.s = signal, cells, s
        bound_b, bound_e = _bound(signal, s.begin_ns), _bound(signal, s.end_ns)
        self.bound_ns = np.maximum(bound_b, bound_e)
        guard_b = np.ceil(signal.guard_ns + bound_b).astype(np.int64)
        guard_e = np.ceil(signal.guard_ns + bound_e).astype(np.int64)
        n = len(cells)
        first = np.searchsorted(cells.left, s.begin_ns + guard_b, "left")
        last = np.searchsorted(cells.right, s.end_ns - guard_e, "right") - 1
        before = np.searchsorted(cells.right, s.begin_ns - guard_b, "right") - 1
        after = np.searchsorted(cells.left, s.end_ns + guard_e, "left")
        self.clean = last - first + 1
        self.resolvable = self.clean >= NEED_CLEAN
        self.first, self.last = np.clip(first, 0, n - 1), np.clip(last, 0, n - 1)
        self.classes = int(s.label.max()) + 1
        near = round(JOIN_SHARE * signal.resolution_ns)
        bounds = np.concatenate([[np.iinfo(np.int64).min // 2], edges, [np.iinfo(np.int64).max // 2]])
        earlier = bounds[np.searchsorted(edges, s.begin_ns - near, "left")]
        later = bounds[np.searchsorted(edges, s.end_ns + near, "right") + 1]
        low, high = earlier + guard_b, later - guard_e
        known_b, far_b = ((at >= 0) & (cells.left[np.clip(at, 0, n - 1)] >= low) for at in (before, before - 1))
        known_e, far_e = ((at < n) & (cells.right[np.clip(at, 0, n - 1)] <= high) for at in (after, after + 1))
        deeper_b, deeper_e = np.minimum(self.first + 1, n - 1), np.maximum(self.last - 1, 0)
        tau, old_w = filter_ns(signal), cells.watts[np.clip(before, 0, n - 1)]
        first_w, second_w, last_w, last_but_one_w = (
            without_the_old(cells.watts[at], old_w, cells.left[at] - s.begin_ns, tau)
            for at in (self.first, deeper_b, self.last, deeper_e)
        )
        self.looks = (
            Look(True, s.begin_ns, self.first, deeper_b, before, before - 1, known_b, far_b, first_w, second_w),
            Look(False, s.end_ns, self.last, deeper_e, after, after + 1, known_e, far_e, last_w, last_but_one_w),
        )
        self._pool()

    def _pool(self) -> None:
        c, first, last = self.cells, self.first, self.last
        count = (last - first).astype(np.float64)
        pairs = np.maximum(self.sum(count), 1.0)
        # Mean square of the power's movement over one and over two distances inside phases of a class.
        self.move1 = self.sum(span(c.square, first, last)) / pairs
        triples = self.sum(np.maximum(count - 1, 0))
        self.move2 = np.where(
            triples > 0, self.sum(span(c.square2, first, last - 1)) / np.maximum(triples, 1), 2 * self.move1
        )
        # What the power does between readings, from two figures by class: noise turns back at the next reading and
        # shows most in second differences, smooth movement goes on and shows least, steps lie between. A ramp's steady
        # movement is taken out first, or it would hide the noise.
        g, kappa = c.geometry, (c.centre_ns / c.spacing_ns) ** 2
        second = span(c.second, first, last - 1)
        whole = (c.watts[last] - c.watts[first]) ** 2 - span(c.square, first, last)
        steady = np.where(count > 1, whole / np.maximum(count - 1, 1), 0.0)
        bent, moved = self.sum(second) / np.maximum(triples, 1), self.move1
        if self.signal.is_counter:
            # Moments unsure by +-c shake the counter's differences: that is known, and no noise of the power. A moment
            # is in two neighbouring cells, so that differences of these (1, -2, 1) have 6 of its variance, and half
            # the squares of second ones (1, -3, 3, -1) have 10.
            power2 = self.sum(span(c.power2, first, last + 1)) / np.maximum(self.sum(count + 1), 1)
            shaken = power2 * kappa / 3
            bent, moved = np.maximum(bent - 10 * shaken, 0), np.maximum(moved - 6 * shaken, 0)
        ramp = np.maximum(self.sum(steady) / pairs, 0.0)
        noise = (bent * g.square - (moved - ramp) * g.second) / (3 * g.square - 2 * g.second)
        # A few steps look a little like noise as often as the other way round, but only the one would count: noise is
        # what goes beyond a standard error, from how the stretches differ. Noise that is there is in all of them.
        k = self.s.label
        alone = g.square * second / np.maximum(triples, 1)[k]
        alone = alone - g.second * (span(c.square, first, last) - steady) / pairs[k]
        alone = alone / (3 * g.square - 2 * g.second) - (noise / np.maximum(self.count(), 1))[k]
        beyond = noise - np.sqrt(self.sum(alone**2))
        self.sigma2 = np.where(triples > 0, np.clip(beyond, 0, moved / 2), 0.0)
        moved, turned = moved - 2 * self.sigma2, bent - 3 * self.sigma2
        # For readings, it turns smooth movement into noise of c^2 / h^2 of its square.
        kappa = 0.0 if self.signal.is_counter else kappa
        steps = (turned - kappa * moved) / max(g.second - kappa * g.square, 1e-3)
        known = (triples > 0) & (g.second > 1.5 * kappa * g.square)
        self.step2 = np.clip(np.where(known, steps, np.inf), 0, np.maximum(moved, 0) / g.square)
        self.smooth2 = np.maximum(moved - g.square * self.step2, 0.0)
        self.wild2 = np.maximum(self.smooth2 - ramp, 0.0)
        self.own_share = np.where(
            count > 1, second / np.maximum(count - 1, 1) / np.maximum(bent, 1e-300)[self.s.label], 1.0
        )
        self.wide_share = self._wide_share()
        self.length_ns = (self.s.end_ns - self.s.begin_ns).astype(np.float64)

    def _wide_share(self) -> Values:
        """``own_share`` up to the readings beyond the edges. What all phases of a class have there is the class's."""
        c = self.cells
        low = np.searchsorted(c.left, self.s.begin_ns, "right") - 1
        high = np.searchsorted(c.right, self.s.end_ns, "left")
        wide = span(c.second, low - 1, high) / np.maximum(high - low + 1, 1)
        found: Values = wide / np.maximum(self.sum(wide) / np.maximum(self.count(), 1), 1e-300)[self.s.label]
        return found

    def sum(self, values: Values, where: Mask | None = None) -> Values:
        """Sums by class [classes] over the stretches that are resolvable (and ``where``)."""
        use = self.resolvable if where is None else self.resolvable & where
        return np.bincount(self.s.label[use], values[use], self.classes).astype(np.float64)

    def count(self, where: Mask | None = None) -> Values:
        """Stretches by class, likewise."""
        return self.sum(np.ones(len(self.s.label)), where)

    def mean(self, values: Values, where: Mask) -> tuple[Values, Values]:
        """By class: mean of ``values`` and the variance of that mean."""
        n = np.maximum(self.count(where), 1)
        mean = self.sum(values, where) / n
        return mean, np.clip(self.sum(values**2, where) / n - mean**2, 0, None) / np.maximum(n - 1, 1)

    def jump(self, look: Look) -> tuple[Values, Values, Mask]:
        """Power across an edge (inside less outside), the time between both looks, and where there is an outside."""
        c, at = self.cells, look.inside
        there = (look.outside >= 0) & (look.outside < len(c))
        o = np.clip(look.outside, 0, len(c) - 1)
        lag = np.abs((c.left[at] + c.right[at] - c.left[o] - c.right[o]) / 2)
        return look.inside_w - c.watts[o], lag, there

    def slope(self, near: Ints, far: Ints, rise_w: Values, use: Mask) -> Values:
        """By class: mean slope from the cells ``far`` to the cells ``near`` an edge, where power is ``rise_w`` more, in
        W/ns of the way towards it, shrunk by how sure it is that there is one."""
        dt = np.abs(self.cells.left[far] - self.cells.left[near])
        slope = rise_w / np.maximum(dt, 1.0)
        n = self.count(use)
        mean, var = self.mean(slope, use)
        shrunk: Values = np.where(n >= 3, mean * np.clip(1 - 4 * var / np.maximum(mean**2, 1e-300), 0, 1), 0.0)
        return shrunk

    def steady_slope(self, look: Look) -> Values:
        """By class: mean slope from one end of the stretches to the other, in W/ns of the way towards this edge."""
        c, first, last = self.cells, self.first, self.last
        dt = np.maximum(c.left[last] - c.left[first], 1)
        climb = (c.watts[last] - c.watts[first]) / dt
        return self.mean(-climb if look.is_begin else climb, np.ones(len(climb), bool))[0]


def _bound(signal: Signal, t: Ints) -> Values:
    return np.zeros(len(t)) if signal.clock is None else signal.clock.bound_ns(t)
