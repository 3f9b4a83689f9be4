"""The edges of phases: where the power steps between two readings, and what the readings around it leave open.

A straight line across a step leaks a part of it into the neighbour. So the power of the nearest *clean* sample (one
that saw nothing but its own phase) is held up to the edge, with the slope that the phases of a kind share, and what the
readings between two clean samples saw beyond that step, the *edge residual* D, is given to what begins at the edge:

    E = E_linear + w (E_held - E_linear + D)    at each edge, with D at beginnings only.

What the phases of a kind have in common (slopes, the mean residual, the weight w, how power moves between readings) is
estimated from all of them. Back-to-back phases of one kind form a *stretch*: between them no edge needs correcting or
resolving. docs/explanation/energy.md derives this under "Edges of phases", "Sampling", "Left over". Here [m]
are phases, [n] stretches and [k] classes, which are kinds of phases.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from powerd_analytics.energy.sampling import (
    Samples,
    filter_ns,
    instant_offset_ns,
    range_sum,
    seen_of_step,
    without_filter_tail,
)
from powerd_analytics.signals.integral import Integral
from powerd_analytics.signals.signal import Signal
from powerd_core.model import ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

JOIN_SHARE = 0.05
"""Phases of one kind closer together than this share of the resolution are one stretch,"""
SMALL_SHARE = 0.1
"""where that is also no more than this share of the earlier one."""
NEED_CLEAN = 2
"""Clean samples that a stretch must hold: with one, nothing tells how the power moves inside."""
CLEAR_RATIO = 4.0
"""Mean square movement across edges over that inside phases, from which on edges are taken for steps altogether."""
NEED_EDGES = 8
"""Edges of a kind from which on the mean of their residuals is known well enough to be assigned."""
UNDER_WAY = 0.05
"""Share of a step that power moves from one clean sample to the next, from which on it is on its way."""
USUAL_LAG_S = 1e-3
"""How late power comes after an edge where it does so at all: 2 ms at most, as for folding, taken as two of these."""
_MOST_BETWEEN = 16
"""Readings between two clean ones that are looked at; more can only be there after missing data."""
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Stretches:
    """Back-to-back phases of one class and process, taken as one. Between them no edge needs resolving."""

    begin_ns: Ints
    end_ns: Ints
    label: Ints
    of_phase: Ints
    """[m] the stretch of each phase."""
    is_first: Mask
    is_last: Mask
    """[m] whether a phase begins, ends its stretch."""


def join_stretches(begin: Ints, end: Ints, label: Ints, process: Ints, gap_ns: float) -> Stretches:
    """Group phases [m], in any order, into stretches."""
    m = len(begin)
    order = np.lexsort((begin, process, label))
    b, e, c, p = begin[order], end[order], label[order], process[order]
    joined = np.zeros(m, bool)
    # What lies between must be little for the phases too, or short phases would swallow others between them.
    near = np.minimum(gap_ns, SMALL_SHARE * (e[:-1] - b[:-1]))
    joined[1:] = (c[1:] == c[:-1]) & (p[1:] == p[:-1]) & (np.abs(b[1:] - e[:-1]) <= near)
    starts = np.flatnonzero(~joined)
    number = np.empty(m, np.int64)
    number[order] = np.cumsum(~joined) - 1
    first, last = np.empty(m, bool), np.empty(m, bool)
    first[order] = ~joined
    last[order] = np.append(~joined[1:], True) if m else np.zeros(0, bool)
    ends = np.maximum.reduceat(e, starts) if m else e
    return Stretches(b[starts], ends, c[starts], number, first, last)


@dataclass(frozen=True, slots=True)
class EdgeSamples:
    """The samples nearest to one kind of edge, the begins or the ends of all stretches [n].

    ``inside`` and ``deeper`` are the stretch's own first two clean samples from the edge, within the signal whatever
    the stretch holds. ``outside`` and ``farther`` lie beyond the edge, and may lie beyond the signal: -1 or its length.
    """

    is_begin: bool
    edge_ns: Ints
    inside: Ints
    deeper: Ints
    outside: Ints
    farther: Ints
    known: Mask
    """Whether the sample outside tells what power stood at the edge: no other phase began or ended in between."""
    is_farther_known: Mask
    """The same for the one beyond it; else the two tell no slope."""
    inside_w: Values
    deeper_w: Values
    """Power there, less what a low-pass has left in it of what was before the stretch."""


class StretchSamples:
    """The clean samples of every stretch, and what the stretches of a class have in common.

    ``edges`` are all moments at which any phase begins or ends, in order.
    """

    def __init__(self, signal: Signal, samples: Samples, s: Stretches, edges: Ints) -> None:
        self.signal, self.samples, self.s = signal, samples, s
        bound_b, bound_e = _bound_ns(signal, s.begin_ns), _bound_ns(signal, s.end_ns)
        self.bound_ns = np.maximum(bound_b, bound_e)
        guard_b = np.ceil(signal.guard_ns + bound_b).astype(np.int64)
        guard_e = np.ceil(signal.guard_ns + bound_e).astype(np.int64)
        n = len(samples)
        first = np.searchsorted(samples.left, s.begin_ns + guard_b, "left")
        last = np.searchsorted(samples.right, s.end_ns - guard_e, "right") - 1
        before = np.searchsorted(samples.right, s.begin_ns - guard_b, "right") - 1
        after = np.searchsorted(samples.left, s.end_ns + guard_e, "left")
        self.clean = last - first + 1
        self.resolvable = self.clean >= NEED_CLEAN
        self.first, self.last = np.clip(first, 0, n - 1), np.clip(last, 0, n - 1)
        self.classes = int(s.label.max()) + 1
        near = round(JOIN_SHARE * signal.resolution_ns)
        bounds = np.concatenate([[np.iinfo(np.int64).min // 2], edges, [np.iinfo(np.int64).max // 2]])
        earlier = bounds[np.searchsorted(edges, s.begin_ns - near, "left")]
        later = bounds[np.searchsorted(edges, s.end_ns + near, "right") + 1]
        low, high = earlier + guard_b, later - guard_e
        known_b, far_b = ((at >= 0) & (samples.left[np.clip(at, 0, n - 1)] >= low) for at in (before, before - 1))
        known_e, far_e = ((at < n) & (samples.right[np.clip(at, 0, n - 1)] <= high) for at in (after, after + 1))
        second, last_but_one = np.minimum(self.first + 1, n - 1), np.maximum(self.last - 1, 0)
        tau_ns, old_w = filter_ns(signal), samples.watts[np.clip(before, 0, n - 1)]
        first_w, second_w, last_w, last_but_one_w = (
            without_filter_tail(samples.watts[at], old_w, samples.left[at] - s.begin_ns, tau_ns)
            for at in (self.first, second, self.last, last_but_one)
        )
        self.sides = (
            EdgeSamples(True, s.begin_ns, self.first, second, before, before - 1, known_b, far_b, first_w, second_w),
            EdgeSamples(
                False, s.end_ns, self.last, last_but_one, after, after + 1, known_e, far_e, last_w, last_but_one_w
            ),
        )
        self.length_ns = (s.end_ns - s.begin_ns).astype(np.float64)
        self._estimate_movement()

    def _estimate_movement(self) -> None:
        """What the power does between readings, by class, from two mean squares: of differences, D, and half of second
        differences, A. Noise turns back at the next reading (D = 2 sigma^2, A = 3 sigma^2), steps leave D = a S and
        A = b S, smooth movement goes on (D = M, little in A)."""
        c, first, last, k = self.samples, self.first, self.last, self.s.label
        a, b = c.figures.a, c.figures.b
        count = (last - first).astype(np.float64)
        pairs = np.maximum(self.sum(count), 1.0)
        triples = self.sum(np.maximum(count - 1, 0))
        self.move1 = self.sum(range_sum(c.square, first, last)) / pairs
        self.move2 = np.where(
            triples > 0, self.sum(range_sum(c.square2, first, last - 1)) / np.maximum(triples, 1), 2 * self.move1
        )
        # A ramp's steady movement is taken out of D first, or it would hide the noise.
        second = range_sum(c.second, first, last - 1)
        whole = (c.watts[last] - c.watts[first]) ** 2 - range_sum(c.square, first, last)
        steady = np.where(count > 1, whole / np.maximum(count - 1, 1), 0.0)
        ramp = np.maximum(self.sum(steady) / pairs, 0.0)
        A, D = self.sum(second) / np.maximum(triples, 1), self.move1
        kappa = (c.centre_ns / c.spacing_ns) ** 2
        if self.signal.is_counter:
            # Moments unsure by +-c shake the counter's differences: that is known, and no noise of the power. A moment
            # is in two neighbouring samples, so that differences of these (1, -2, 1) have 6 of its variance, and half
            # the squares of second ones (1, -3, 3, -1) have 10.
            power2 = self.sum(range_sum(c.power2, first, last + 1)) / np.maximum(self.sum(count + 1), 1)
            shaken = power2 * kappa / 3
            A, D = np.maximum(A - 10 * shaken, 0), np.maximum(D - 6 * shaken, 0)
        # D - ramp = 2 sigma^2 + a S and A = 3 sigma^2 + b S, solved for sigma^2.
        noise = (A * a - (D - ramp) * b) / (3 * a - 2 * b)
        # A few steps look a little like noise as often as the other way round, but only the one would count: noise is
        # what goes beyond a standard error, from how the stretches differ. Noise that is there is in all of them.
        alone = a * second / np.maximum(triples, 1)[k]
        alone = alone - b * (range_sum(c.square, first, last) - steady) / pairs[k]
        alone = alone / (3 * a - 2 * b) - (noise / np.maximum(self.count(), 1))[k]
        beyond = noise - np.sqrt(self.sum(alone**2))
        self.sigma2 = np.where(triples > 0, np.clip(beyond, 0, D / 2), 0.0)
        bent = A
        D, A = D - 2 * self.sigma2, A - 3 * self.sigma2
        # Moments of readings unsure by ± c turn smooth movement M into noise of c^2 / h^2 of its square.
        kappa = 0.0 if self.signal.is_counter else kappa
        steps = (A - kappa * D) / max(b - kappa * a, 1e-3)
        known = (triples > 0) & (b > 1.5 * kappa * a)
        self.step2 = np.clip(np.where(known, steps, np.inf), 0, np.maximum(D, 0) / a)
        """[k] S: mean square step a reading, W^2."""
        self.smooth2 = np.maximum(D - a * self.step2, 0.0)
        """[k] M: mean square of smooth movement from one reading to the next, W^2."""
        self.wild2 = np.maximum(self.smooth2 - ramp, 0.0)
        self.own_share = np.where(count > 1, second / np.maximum(count - 1, 1) / np.maximum(bent, _TINY)[k], 1.0)
        """[n] A of a stretch between its clean samples, over that of its class."""
        low = np.searchsorted(c.left, self.s.begin_ns, "right") - 1
        high = np.searchsorted(c.right, self.s.end_ns, "left")
        wide = range_sum(c.second, low - 1, high) / np.maximum(high - low + 1, 1)
        self.wide_share = wide / np.maximum(self.sum(wide) / np.maximum(self.count(), 1), _TINY)[k]
        """[n] the same up to the readings beyond the edges. What all phases of a class have there is the class's."""

    def sum(self, values: Values, where: Mask | None = None) -> Values:
        """[k] sums by class over the stretches that are resolvable (and ``where``)."""
        use = self.resolvable if where is None else self.resolvable & where
        return np.bincount(self.s.label[use], values[use], self.classes).astype(np.float64)

    def count(self, where: Mask | None = None) -> Values:
        """[k] stretches by class, likewise."""
        return self.sum(np.ones(len(self.s.label)), where)

    def mean(self, values: Values, where: Mask) -> tuple[Values, Values]:
        """[k] mean of ``values`` by class, and the variance of that mean."""
        n = np.maximum(self.count(where), 1)
        mean = self.sum(values, where) / n
        return mean, np.clip(self.sum(values**2, where) / n - mean**2, 0, None) / np.maximum(n - 1, 1)

    def step(self, side: EdgeSamples) -> tuple[Values, Values, Mask]:
        """[n] power J across an edge (inside less outside), the time between both samples, and where there is an
        outside."""
        c, at = self.samples, side.inside
        there = (side.outside >= 0) & (side.outside < len(c))
        o = np.clip(side.outside, 0, len(c) - 1)
        lag_ns = np.abs((c.left[at] + c.right[at] - c.left[o] - c.right[o]) / 2)
        return side.inside_w - c.watts[o], lag_ns, there

    def slope(self, near: Ints, far: Ints, rise_w: Values, use: Mask) -> Values:
        """[k] mean slope from the samples ``far`` to the samples ``near`` an edge, where power is ``rise_w`` more, in
        W/ns of the way towards it, shrunk by how sure it is that there is one."""
        dt = np.abs(self.samples.left[far] - self.samples.left[near])
        mean, variance = self.mean(rise_w / np.maximum(dt, 1.0), use)
        shrunk: Values = np.where(self.count(use) >= 3, mean * np.clip(1 - 4 * variance / _square(mean), 0, 1), 0.0)
        return shrunk

    def steady_slope(self, side: EdgeSamples) -> Values:
        """[k] mean slope from one end of the stretches to the other, in W/ns of the way towards this edge."""
        c, first, last = self.samples, self.first, self.last
        climb = (c.watts[last] - c.watts[first]) / np.maximum(c.left[last] - c.left[first], 1)
        return self.mean(-climb if side.is_begin else climb, np.ones(len(climb), bool))[0]


def _bound_ns(signal: Signal, t_ns: Ints) -> Values:
    return np.zeros(len(t_ns)) if signal.clock is None else signal.clock.bound_ns(t_ns)


def _square(values: Values) -> Values:
    """To be divided by."""
    return np.asarray(np.maximum(values**2, _TINY))


@dataclass(frozen=True, slots=True)
class HeldPower:
    """The clean samples [n] nearest to edges on one side, the power held, and the slope (W/ns) towards each edge."""

    sample: Ints
    watts: Values
    slope: Values


def edge_residual_j(
    signal: Signal, samples: Samples, integral: Integral, edge_ns: Ints, low: HeldPower, high: HeldPower
) -> Values:
    """[n] edge residual D: what the sensor saw between the clean samples around each edge, less what a step right at
    the edge would show it.

    A counter misses nothing, so its joules are compared. Readings y are compared one by one with what their window
    would have seen of the step: D = sum over the readings between of (y_i - seen_i) (t_(i+1) - t_(i-1)) / 2. That
    leaves nothing to chance but their own noise: averaged over edges at shifting moments, reading distance times
    difference is the integral of what is not a step.
    """
    begin, end = samples.right[low.sample], np.maximum(samples.left[high.sample], samples.right[low.sample])
    inside = np.clip(edge_ns, begin, end)
    before_ns, after_ns = (inside - begin).astype(np.float64), (end - inside).astype(np.float64)
    if signal.is_counter:
        half = samples.half_ns
        step = low.watts * before_ns + low.slope * before_ns * (before_ns / 2 + half)
        step += high.watts * after_ns + high.slope * after_ns * (after_ns / 2 + half)
        counted: Values = integral.between(begin, end) - step * 1e-9
        return counted
    t, tau_ns = signal.t_ns, filter_ns(signal)
    residual = np.zeros(len(edge_ns))
    for j in range(1, min(_MOST_BETWEEN, int(np.max(high.sample - low.sample, initial=0)))):
        i = low.sample + j
        between = i < high.sample
        i = np.clip(i, 1, len(signal) - 2)
        share = seen_of_step((t[i] - edge_ns).astype(np.float64), signal.window_ns, signal.centre_ns, tau_ns)
        old = low.watts + low.slope * np.clip(t[i] - begin, 0, before_ns)
        new = high.watts + high.slope * np.clip(end - t[i], 0, after_ns)
        weight = (t[i + 1] - t[i - 1]) / 2 * 1e-9
        residual += np.where(between, (samples.watts[i] - old - share * (new - old)) * weight, 0.0)
    return residual


def spike_and_slab(mean: Values, variance: Values, half: Values, slab2: Values, is_slab: Mask) -> tuple[Values, Values]:
    """Shrinkage of a ``mean`` that is either nothing (the spike) or something (the slab): the share p s of it, 0 to 1,
    that is to be taken, and the variance of what there is in truth about that share.

    The mean is off by chance, normal with the ``variance`` v, and by anything within ± ``half``, evenly. The slab is
    normal, with the variance ``slab2`` = tau^2. Spike and slab are as likely beforehand, but where ``is_slab`` says
    that something is there. With e^2 = v + half^2 / 3 and s = tau^2 / (tau^2 + e^2) the share is p s, and its variance
    p s e^2 + p (1 - p) (s mean)^2, p the slab's probability; within the slab all errors count as normal.
    """
    e2 = np.maximum(variance + half**2 / 3, _TINY)
    ratio = np.maximum(slab2, 0) / e2
    s = ratio / (ratio + 1)
    # In units in which the mean's errors have the variance 1.
    x, wide = mean / np.sqrt(e2), np.sqrt(np.minimum(half**2 / e2, 3.0))
    chance2 = np.maximum(1 - wide**2 / 3, 1e-6)
    log_odds = _log_density(x, wide, chance2 + ratio) - _log_density(x, wide, chance2)
    p = np.where(is_slab, 1.0, 1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))
    return p * s, p * s * e2 + p * (1 - p) * (s * mean) ** 2


def _log_density(x: Values, half: Values, variance: Values) -> Values:
    """Logarithm of the density of ``x``, the sum of something even within ± ``half`` and something normal."""
    sigma = np.sqrt(variance)
    is_wide = half > 1e-3 * sigma
    wide = np.where(is_wide, half, 1.0)
    area = erf((x + wide) / (sigma * np.sqrt(2))) - erf((x - wide) / (sigma * np.sqrt(2)))
    even = np.log(np.maximum(area / (4 * wide), _TINY))
    normal = -(x**2) / (2 * variance) - np.log(2 * np.pi * variance) / 2
    # Far out the difference of both is rounding: what lies nearest to ``x`` counts alone.
    far = -(np.maximum(np.abs(x) - wide, 0) ** 2) / (2 * variance) - np.log(2 * wide)
    density: Values = np.where(is_wide, np.where(area > 1e-9, even, far), normal)
    return density


@dataclass(frozen=True, slots=True)
class Correction:
    """Of one kind of edge, begins or ends: by stretch [n] or by class [k]."""

    side: EdgeSamples
    d_ns: Values
    """[n] from the edge to the clean sample whose power is held."""
    full_j: Values
    """[n] E_held - E_linear + D: what would be added if the edge were surely a step."""
    bend_j: Values
    """[n] B: the part of it that comes from the slope."""
    steeper: Values
    """[k] s': slope towards the edge beyond that all through the phase, W/ns."""
    weight: Values
    """[k] w: the share of it that is applied."""
    excess2: Values
    """[k] mean square (W^2) of how much more power moves across the edge than it does elsewhere."""
    residual: MeanResidual


@dataclass(frozen=True, slots=True)
class MeanResidual:
    """The mean edge residual of a class [k]: what goes to the phases at this edge, and its standard uncertainties."""

    assigned_j: Values
    per_s_w: Values
    """Joules by which windows that lie a second later would change what is assigned: a share of the step."""
    u_shared_j: Values
    """The same at all edges of the class: what clocks may explain, and what is assigned to nobody."""
    u_line_j: Values
    """From the scatter of this line's own readings."""
    u_single_j: Values
    """What differs from edge to edge: how much of it the held power has seen already."""


def correct_edge(stretches: StretchSamples, integral: Integral, side: EdgeSamples) -> Correction:
    """The correction of one kind of edge."""
    samples, k, t_ns = stretches.samples, stretches.s.label, stretches.signal.t_ns
    w, excess2 = _weight(stretches, side)
    slope = stretches.slope(side.inside, side.deeper, side.inside_w - side.deeper_w, stretches.clean >= 3)
    steeper = np.where(slope != 0, slope - stretches.steady_slope(side), 0.0)
    # Power is never held beyond the first and last reading: what lies there is missing, not guessed.
    edge_ns = np.clip(side.edge_ns, t_ns[0], t_ns[-1])
    if side.is_begin:
        begin_ns, end_ns = edge_ns, samples.left[side.inside]
    else:
        begin_ns, end_ns = samples.right[side.inside], edge_ns
    d_ns = np.maximum(end_ns - begin_ns, 0).astype(np.float64)
    held_j = side.inside_w * d_ns * 1e-9
    # Between an edge and a counter's interval the mean of that interval is half a sample farther away.
    bend_j = slope[k] * d_ns * (d_ns / 2 + samples.half_ns) * 1e-9
    linear_j = integral.between(begin_ns, np.maximum(end_ns, begin_ns))
    full_j = np.where(stretches.resolvable, held_j + bend_j - linear_j, 0.0)
    residual = _mean_residual(stretches, integral, side, slope, steeper)
    if side.is_begin:
        full_j = full_j + np.where(stretches.resolvable, residual.assigned_j[k], 0.0)
    return Correction(side, d_ns, full_j, bend_j, steeper, w, excess2, residual)


def _weight(stretches: StretchSamples, side: EdgeSamples) -> tuple[Values, Values]:
    """[k] w: how clearly power moves more across its edges than over such a time inside its phases, from 0 to 1, and
    the mean square of what it moves more. w = clip((r - 1) / (`CLEAR_RATIO` - 1), 0, 1), r the ratio of both squares.
    """
    J, lag_ns, there = stretches.step(side)
    k = stretches.s.label
    steps = np.maximum(lag_ns / stretches.samples.spacing_ns, 1.0)
    usual = stretches.move1[k] + (stretches.move2[k] - stretches.move1[k]) * (steps - 1)
    across, elsewhere = stretches.sum(J**2, there), stretches.sum(np.maximum(usual, 0), there)
    r = np.maximum(across, _TINY) / np.maximum(elsewhere, _TINY)
    excess2 = np.maximum(across - elsewhere, 0) / np.maximum(stretches.count(there), 1)
    return np.clip((r - 1) / (CLEAR_RATIO - 1), 0, 1), excess2


def _is_under_way(stretches: StretchSamples, side: EdgeSamples, steeper: Values, known: Mask) -> Mask:
    """[k] whether clean samples behind the edges still see power come from its old level, faster than it moves all
    through the phase. A step leaves nothing of that, wherever a chip's windows lie."""
    J, _, _ = stretches.step(side)
    return np.asarray(
        -steeper * stretches.samples.spacing_ns * stretches.sum(J, known) > UNDER_WAY * stretches.sum(J**2, known)
    )


def _mean_residual(
    stretches: StretchSamples, integral: Integral, side: EdgeSamples, slope: Values, steeper: Values
) -> MeanResidual:
    """Mean edge residual D by class, as far as chance, clocks and the sampling instant cannot have made it.

    A step at the edge leaves nothing on average, whatever the sensor. A ramp does, and so does a sensor that is
    slower than the transition. Power follows its cause: what a phase changes, it changes after it has begun, so
    that the residual of a beginning belongs to what begins there.
    """
    n, k, w = len(stretches.samples), stretches.s.label, stretches.samples.watts
    J, _, there = stretches.step(side)
    known = side.known & there
    outside, farther = np.clip(side.outside, 0, n - 1), np.clip(side.farther, 0, n - 1)
    slope_beyond = stretches.slope(outside, farther, w[outside] - w[farther], known & side.is_farther_known)[k]
    beyond = HeldPower(outside, w[outside], slope_beyond)
    within = HeldPower(side.inside, side.inside_w, slope[k])
    low, high = (beyond, within) if side.is_begin else (within, beyond)
    D_each = edge_residual_j(stretches.signal, stretches.samples, integral, side.edge_ns, low, high)
    count, is_chip = stretches.count(known), isinstance(stretches.signal.line.conversion, ShuntConversion)
    edges = np.maximum(count, 1)
    D, v = stretches.mean(D_each, known)
    # An offset of the clocks moves joules across a step just so, and so does a delay that nobody states: only what is
    # more than that is assigned. Where a chip's windows lie is known far better than how late power comes.
    J2 = stretches.sum(J**2, known) / edges
    u_clock2 = stretches.sum((J * stretches.bound_ns * 1e-9) ** 2, known) / edges / 3
    u_instant2 = J2 * (instant_offset_ns(stretches.signal) * 1e-9) ** 2 / 3
    u_c2 = u_clock2 + (0.0 if is_chip else u_instant2)
    sure = np.sqrt(np.clip(1 - 4 * u_c2 / _square(D), 0, 1))
    # tau^2: of a size that a single edge shows by chance (unit information), for chips at least of a usual lag.
    tau2 = np.maximum(edges * v, J2 * USUAL_LAG_S**2 if is_chip else 0.0)
    half = np.sqrt(3 * u_instant2) if is_chip else np.zeros_like(D)
    p_s, variance = spike_and_slab(sure * D, v, half, tau2, _is_under_way(stretches, side, steeper, known))
    # The sampling instant moves what is assigned as it moves the mean, which is a part of its own (`per_s_w`). Of what
    # clocks may explain, nothing or all is real.
    u_line2 = np.maximum(variance - p_s**2 * half**2 / 3, 0)
    u_shared2 = p_s**2 * u_clock2 + ((1 - sure) * D) ** 2 / 2
    is_enough, none = count >= NEED_EDGES, np.zeros_like(D)
    D = np.where(is_enough, D, stretches.mean(D_each, there)[0])
    # What begins at an edge takes all of it, so that what ends there is unsure only where nothing can be assigned.
    if not side.is_begin:
        return MeanResidual(none, none, np.where(is_enough, 0.0, np.abs(D) / np.sqrt(3)), none, none)
    share = np.where(is_enough, p_s * sure, 0.0)
    u_shared2, u_line2 = np.where(is_enough, (u_shared2, u_line2), (D**2 / 3, none))
    # A clean sample near the edge has seen the end of the transition, one farther off has not, and each edge gets the
    # mean of both: between nothing of it and all of it, evenly for samples at moments that know nothing of the edge.
    u_single = share * np.abs(D) / np.sqrt(12)
    mean_step = stretches.sum(J, known) / edges
    return MeanResidual(share * D, share * mean_step, np.sqrt(u_shared2), np.sqrt(u_line2), u_single)
