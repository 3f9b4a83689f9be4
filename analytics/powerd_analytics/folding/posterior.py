"""The power of phases that are shorter than the sensor's window, as a posterior: phase-folded regression.

A reading is the mean power over its window: a linear function of the power in each bin of each kind of phase, with the
shares of the window as coefficients (`powerd_analytics.folding.design`),

    y_j = sum over k, b of A_jkb x_kb + e_j.

Iterations come at moments that have nothing to do with the sensor's, so that many readings are many different equations
for the same unknowns x. Least squares solves them (`Equations`). Windows say little of what goes on inside a phase much
shorter than they are; there a prior takes over (`Priors`): after an edge the power comes from its old level with some
time constant, and beside that it walks at random. Time constant and size of the walk are unknown; all combinations, the
*models*, are weighed by how well they explain the readings (Bayesian model averaging), so that what the readings leave
open widens the interval instead of being decided by a choice.

Where every window holds whole iterations, only phases that last longer or shorter than usual tell the kinds apart, and
what they tell is the power of the time that is more, which need not be that of the rest. It is an unknown of its own.

Two more unknowns are the same for a whole run: the offset c of all sampling instants from their stamps, within limits,
and the lag L of power behind the marks of its phase (a launch is queued, a regulator takes its time, filters take
theirs), 0 to a bound. The readings see the *shift* c - L alone, so the equations are solved for some shifts, the
*nodes*. For the joules between marks the lag matters alone: with power P1 before an edge and P2 behind it, the later
phase has (P1 - P2) L more than it would without a lag, and the one before has that much less. What both make is taken
from end to end of what the readings do not speak against (`solve`). docs/explanation/energy.md has the reasons.

Shapes: p unknowns, k kinds of phases, b blocks of readings; of what is weighed: models, nodes, shifts [d], lags [l].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from powerd_analytics.folding.design import Bins, Response, Timeline
from powerd_core.errors import ConfigError
from powerd_core.text import printable

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]
Total = tuple[Values, Values, float, int]
"""Of all readings: normal equations [p, p], right sides [p], sum of squares, how many."""

_BELIEVED = 20
"""Readings whose worth of evidence is believed at most: no model is right to more than that, however many agree."""
WALKS = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Sizes of the walk from a phase's begin to its end, over the usual power."""
DELAYS_MS = (0.001, 0.15, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0, 6.0)
"""Time constants with which power comes to its level after an edge."""
_LEVEL, _LEAST = 10.0, 1e-3
"""Standard deviation of a kind's mean power around the usual one, over that: says nothing, but keeps sums finite.
The second: how much bins differ at least."""

LAG_VARIABLE = "POWERD_LAG_MS"
"""Environment variable with the bound of the lag, for machines whose lag is known better."""
MOST_LAG_MS = 2.0
"""The bound when nothing is set. No data sheet has one: ramps behind a regulator are taken as 0.8 ms in this project's
simulations, and a launch and the filter of a sensor may come to as much again."""
NO_LAG = 0.25
"""How likely it is beforehand that power moves with its marks: there are such loads, and an even share of all lags has
none of them."""
_LONGEST_MS = 50.0
_NODES, _MOST_NODES, _OF_WINDOW = 7, 15, 0.25
"""Shifts at which the equations are solved at first: this many, or as many as lie a quarter of a window apart."""
_LEAST_FINE, _FINE_NS = 9, 80_000.0
"""And then, where the readings have them: this many, or as many as lie this far apart, `_MOST_NODES` at most. A step
that lies between two nodes fits neither."""
_LEAST_ROOM_NS = 2_000_000
_LOOKED_UP, _LAGS, _WITHIN = 9, 9, 4
"""Lags for which it is looked up what marks hold, lags that go with a shift, and shifts from node to node."""

_AGAINST = 1.92
"""How much smaller the logarithm of the evidence is where readings speak against a shift: the 95 % limit of a
likelihood ratio for one unknown (Wilks, 1938)."""
_BY_CHANCE = 2.0
"""How many times the variance that their noise explains 16 blocks may well differ by (1.8 in one of 40 cases)."""
_NEXT_TO_NOTHING = 1e-12
"""Share of all models' below which one is not asked for its power."""
_FAR = 1e150
"""Beyond every sum of squares of readings over their noise."""


@dataclass(frozen=True, slots=True)
class Equations:
    """Normal equations of blocks of readings [b] that lie apart in time; watts around ``usual_w``."""

    normal: Values
    """[b, p, p] A'A; unknowns are the bins, then for each kind what its longer phases have more of."""
    right: Values
    """[b, p] A'y"""
    square: Values
    """[b] sum of squares y'y."""
    rows: Ints
    """[b]"""

    @staticmethod
    def of_block(
        timeline: Timeline,
        begin_ns: Ints,
        end_ns: Ints,
        watts: Values,
        response: Response | None = None,
        parts: Sequence[slice | Mask] = (slice(None),),
    ) -> Equations:
        """Windows [n] inside the timeline and what they showed, in blocks ``parts``, each of [n]: one without them."""
        p = timeline.columns + timeline.kinds
        normal, right = np.zeros((len(parts), p, p)), np.zeros((len(parts), p))
        for rows in timeline.blocks(begin_ns, end_ns):
            A, y = timeline.design(begin_ns[rows], end_ns[rows], response), watts[rows]
            for i, part in enumerate(parts):
                of = part if isinstance(part, slice) else part[rows]
                normal[i] += A[of].T @ A[of]
                right[i] += A[of].T @ y[of]
        seen = [watts[part] for part in parts]
        return Equations(normal, right, np.array([w @ w for w in seen]), np.array([len(w) for w in seen]))

    def __add__(self, other: Equations) -> Equations:
        """Block by block."""
        return Equations(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def coarser(self, which: Values) -> Equations:
        """The same for bins that are joined, ``which`` of `Bins.joined`."""
        to = joining(which, self.right.shape[1])
        return Equations(to.T @ self.normal @ to, self.right @ to, self.square, self.rows)

    @property
    def believed(self) -> float:
        """How much of the logarithm of their evidence is believed."""
        return min(1.0, _BELIEVED / int(self.rows.sum()))

    @property
    def total(self) -> Total:
        """Of all blocks together: normal, right, square, rows."""
        return self.normal.sum(axis=0), self.right.sum(axis=0), float(self.square.sum()), int(self.rows.sum())

    @staticmethod
    def joined(blocks: list[Equations]) -> Equations:
        """All blocks together."""
        return Equations(*(np.concatenate([getattr(b, f.name) for b in blocks]) for f in fields(Equations)))


def joining(which: Values, unknowns: int) -> Values:
    """[unknowns, theirs] from bins that are joined, and what longer phases have more of, to what they were."""
    kinds = unknowns - len(which)
    to = np.zeros((unknowns, which.shape[1] + kinds))
    to[: len(which), : which.shape[1]], to[len(which) :, which.shape[1] :] = which, np.eye(kinds)
    return to


def noise_of(all_equations: Iterable[Equations], prior: Values, usual_w: float) -> float:
    """Variance of readings: what the most pliant model leaves where it leaves least."""
    left = []
    for equations in all_equations:
        normal, right, square, n = equations.total
        x = np.linalg.solve(normal + 1e-9 * n * prior, right)
        squares = max(square - 2 * float(x @ right) + float(x @ normal @ x), 0.0)
        left.append(squares / max(n - len(right), 1))
    return max(min(left), (1e-6 * usual_w) ** 2)


def jackknife(equations: Equations, prior: Values, sigma2: float, means: Values) -> Values:
    """[k] variance of the means when blocks are left out in turn (Efron and Stein, 1981)."""
    b = len(equations.rows)
    if b < 4:
        return np.zeros(len(means))
    normal = equations.normal.sum(axis=0) - equations.normal
    right = equations.right.sum(axis=0) - equations.right
    without = np.linalg.solve(normal / sigma2 + prior, right[..., None] / sigma2)[..., 0] @ means.T
    return np.asarray((b - 1) / b * np.sum((without - without.mean(axis=0)) ** 2, axis=0))


@dataclass(frozen=True, slots=True)
class Priors:
    """What is taken as possible inside a phase: all combinations of `WALKS` and `DELAYS_MS` with either meaning of a
    longer phase, as normal distributions around the usual power; the last is among the most pliant."""

    precision: Values
    """[models, p, p] of the bins, and behind them of what longer phases have more of, over the phase's mean."""
    log_det: Values
    """[models] logarithms of the determinants."""

    @staticmethod
    def of(bins: Bins, before: Values) -> Priors:
        """In units of the usual power. ``before`` is `powerd_analytics.folding.design.Segments.before`."""
        p, kinds = bins.columns, len(bins.edges)
        followed = [_follows(bins, before, delay) for delay in DELAYS_MS]
        # [2, 1, delays, p + kinds, p] and [walks, 1, p, p]
        of_levels = np.array([[np.vstack([f, more * last]) for f, last in followed] for more in (0, 1)])[:, None]
        levels = np.array([_levels(bins, walk) for walk in WALKS])[:, None]
        covariance = of_levels @ levels @ np.swapaxes(of_levels, -1, -2)
        own = np.array([np.repeat([_LEAST**2, _LEAST**2 + walk**2 / 3], [p, kinds]) for walk in WALKS])
        at = np.arange(p + kinds)
        covariance[..., at, at] += own[:, None]
        covariance = covariance.reshape(-1, p + kinds, p + kinds)
        return Priors(np.linalg.inv(covariance), -np.linalg.slogdet(covariance)[1])

    def scaled(self, usual_w: float) -> Priors:
        """The same in watts."""
        return Priors(self.precision / usual_w**2, self.log_det - 2 * self.precision.shape[-1] * np.log(usual_w))

    def only(self, which: Mask | slice) -> Priors:
        """Some of the models."""
        return Priors(self.precision[which], self.log_det[which])


def _levels(bins: Bins, walk: float) -> Values:
    """[p, p] covariance of what power goes to in each bin."""
    covariance: Values = np.zeros((bins.columns, bins.columns))
    for k, (first, n) in enumerate(zip(bins.first, bins.count, strict=True)):
        middle = np.asarray(bins.edges[k]) + bins.shares_of(k) / 2
        here = slice(first, first + n)
        covariance[here, here] = _LEVEL**2 + walk**2 * np.minimum(middle[:, None], middle[None, :])
    return covariance


def _follows(bins: Bins, before: Values, delay_ms: float) -> tuple[Values, Values]:
    """[p, p] what takes levels to power in bins, and [kinds, p] to the power of time that is more than usual, over the
    phase's mean, where that is more of the last level (else it is like the rest of the phase)."""
    p, kinds = bins.columns, len(bins.edges)
    lag, own, last = np.zeros((p, kinds)), np.zeros((kinds, p)), np.zeros((kinds, p))
    left = np.diag(np.exp(-np.asarray(bins.length_ms) / delay_ms))
    for k, (first, n) in enumerate(zip(bins.first, bins.count, strict=True)):
        constant = delay_ms / bins.length_ms[k]
        lag[first : first + n, k] = _mean_decay(np.asarray(bins.edges[k]), bins.shares_of(k), constant)
        own[k, first], last[k, first + n - 1] = 1, 1
    # Power after an edge is its level, and what is still there of the power before: with levels z, power e at the ends
    # of phases, e = last z + left (before e - own z), and in bins x = z + lag (before e - own z).
    end = np.linalg.solve(np.eye(kinds) - left @ before, last - left @ own)
    follows = np.eye(p) + lag @ (before @ end - own)
    # A phase that goes on for longer at its last level takes that much more, whatever the time constant: what has not
    # come when it ends comes in the phases behind it.
    return follows, last - bins.means() @ follows


def _mean_decay(begin: Values, share: Values, constant: float) -> Values:
    """exp(-u/constant) averaged over each bin."""
    return np.asarray(np.exp(-begin / constant) * -np.expm1(-share / constant) * constant / share)


def most_lag_ns() -> int:
    """The bound of the lag that is set. Raises `ConfigError` for one that is no number from 0 to 50."""
    text = os.environ.get(LAG_VARIABLE, "").strip()
    if not text:
        return round(MOST_LAG_MS * 1e6)
    try:
        lag_ms = float(text)
    except ValueError:
        lag_ms = -1.0
    if not 0 <= lag_ms <= _LONGEST_MS:
        raise ConfigError(
            f"{LAG_VARIABLE}={printable(text)!r}: give the longest lag of power behind its phases in ms, "
            f"0 to {_LONGEST_MS:g}"
        )
    return round(lag_ms * 1e6)


@dataclass(frozen=True, slots=True)
class ShiftPrior:
    """What is known beforehand of the shift c - L: the offset c of all sampling instants lies within ± ``offset_ns``,
    evenly likely, and the lag L of power from 0 to ``most_lag_ns``: none with a probability of its own (`NO_LAG`), else
    evenly likely."""

    offset_ns: float
    most_lag_ns: float
    window_ns: float

    @property
    def lag_ns(self) -> Values:
        """[lags] at which it is looked up what marks hold; between them it is interpolated."""
        return np.linspace(0, self.most_lag_ns, _LOOKED_UP if self.most_lag_ns else 1)

    @property
    def room_ns(self) -> int:
        """How far windows must lie from what is not known, so that no shift takes them there."""
        return round(self.offset_ns + max(self.most_lag_ns, _LEAST_ROOM_NS))

    def nodes(self) -> Values:
        """[nodes] shifts from end to end."""
        low, high = -self.offset_ns - self.most_lag_ns, self.offset_ns
        return _spread(low, high, _NODES, _OF_WINDOW * self.window_ns)

    @staticmethod
    def finer(node_ns: Values, possible: Mask) -> Values:
        """[nodes] between the neighbours of the nodes that are possible."""
        at = np.flatnonzero(possible)
        low, high = node_ns[max(at[0] - 1, 0)], node_ns[min(at[-1] + 1, len(node_ns) - 1)]
        return _spread(low, high, _LEAST_FINE, _FINE_NS)

    def grid(self, node_ns: Values) -> ShiftGrid:
        """What to weigh: shifts D between nodes that are in order, and with each the lags that may go with it.

        With c = D + L, a lag goes with a shift from max(0, -D - c_max) to min(L_max, c_max - D). A shift is as likely
        as there are such pairs, times the width for which it stands.
        """
        c_max, L_max = self.offset_ns, self.most_lag_ns
        if len(node_ns) == 1:
            one, none, first = np.ones(1), np.zeros(1), np.zeros(1, np.int64)
            return ShiftGrid(one, none, first, none, first[:, None], none[:, None], np.full((1, 1), -node_ns[0]))
        width = np.diff(node_ns)
        # The ends are shifts too.
        low = np.append(np.repeat(np.arange(len(width)), _WITHIN), len(width) - 1)
        share = np.append(np.tile(np.arange(_WITHIN) / _WITHIN, len(width)), 1.0)
        D = node_ns[low] + share * width[low]
        first_lag, last_lag = np.maximum(0.0, -D - c_max), np.minimum(L_max, c_max - D)
        # Without an offset, or without a lag, one pair makes a shift.
        are_both = min(c_max, L_max) >= 1
        pairs = np.maximum(last_lag - first_lag, 0.0) / L_max if are_both else np.ones(len(low))
        stands_for = np.convolve(np.repeat(width, _WITHIN) / _WITHIN, [0.5, 0.5])
        weight = pairs * stands_for / (2 * c_max if are_both else 2 * c_max + L_max)
        no_lag = np.where(-D - c_max < 1, stands_for, 0.0)
        if c_max >= 1:
            # The share of all offsets that lies between the nodes, however coarse these are.
            inside = min(node_ns[-1], c_max) - max(node_ns[0], -c_max)
            no_lag *= max(inside, 0.0) / (2 * c_max) / max(no_lag.sum(), 1e-300)
        else:
            no_lag = (no_lag > 0).astype(np.float64)
        lag_ns = first_lag[:, None] + np.maximum(last_lag - first_lag, 0.0)[:, None] * np.linspace(0, 1, _LAGS)
        step = L_max / (_LOOKED_UP - 1)
        at = np.clip(lag_ns / step if step else 0 * lag_ns, 0, _LOOKED_UP - 1)
        lag_low = np.minimum(at.astype(np.int64), _LOOKED_UP - 2) if step else np.zeros(lag_ns.shape, np.int64)
        return ShiftGrid(weight / weight.sum(), no_lag / weight.sum(), low, share, lag_low, at - lag_low, lag_ns)


def _spread(low: float, high: float, least: int, apart: float) -> Values:
    """``least`` numbers from end to end or as many as lie so far apart, `_MOST_NODES` at most; one where both ends are
    one."""
    n = min(max(least, 1 + round((high - low) / max(apart, 1.0))), _MOST_NODES)
    return np.asarray(np.linspace(low, high, n) if high > low else [high], np.float64)


@dataclass(frozen=True, slots=True)
class ShiftGrid:
    """Shifts [d] with lags [d, l] that go with each, and where among the nodes both are."""

    weight: Values
    """[d] how likely before any reading, with all lags alike."""
    no_lag: Values
    """[d] the same without a lag, in the same units."""
    low: Ints
    share: Values
    """[d] the node below, and how far towards the next."""
    lag_low: Ints
    lag_share: Values
    """[d, l] the same for `ShiftPrior.lag_ns`."""
    lag_ns: Values

    @property
    def prior(self) -> Values:
        """[d, l] of both together."""
        lags = self.lag_ns.shape[1]
        prior: Values = np.repeat((1 - NO_LAG) * self.weight[:, None] / lags, lags, axis=1)
        prior[:, 0] += NO_LAG * self.no_lag
        return prior

    def only(self, which: Mask) -> ShiftGrid:
        """Some of the shifts."""
        return ShiftGrid(*(getattr(self, f.name)[which] for f in fields(self)))

    def between_nodes(self, of_nodes: Values) -> Values:
        """[d, ...] of what is known at nodes [nodes, ...]."""
        share = self.share.reshape(-1, *(1,) * (of_nodes.ndim - 1))
        high = np.minimum(self.low + 1, len(of_nodes) - 1)
        return np.asarray(of_nodes[self.low] * (1 - share) + of_nodes[high] * share)

    def with_lags(self, of_nodes: Values) -> Values:
        """[d, models, l, k] of what is known at nodes and lags [nodes, models, lags, k]."""
        at = self.between_nodes(of_nodes)
        high = np.minimum(self.lag_low + 1, at.shape[2] - 1)
        low, up = (np.take_along_axis(at, i[:, None, :, None], 2) for i in (self.lag_low, high))
        share = self.lag_share[:, None, :, None]
        return np.asarray(low * (1 - share) + up * share)


def evidence(total: Total, sigma2: float, priors: Priors) -> Values:
    """[models] logarithms of how likely the readings are, with noise of variance ``sigma2``."""
    normal, right, square, n = total
    log_det, explained = _determinants(normal / sigma2 + priors.precision, right / sigma2)
    return np.asarray(0.5 * (priors.log_det - log_det - (square / sigma2 - explained) - n * np.log(sigma2)))


def _determinants(precision: Values, right: Values) -> tuple[Values, Values]:
    """[models] logarithms of the determinants of matrices [models, p, p], and what they and ``right`` [p] explain of
    the squares. Both are in Cholesky's factor of the matrix with one row more: half the work of Gauss's, once."""
    p = len(right)
    more = np.empty((len(precision), p + 1, p + 1))
    # Only the lower triangle is looked at.
    more[:, :p, :p], more[:, p, :p], more[:, p, p] = precision, right, _FAR
    try:
        lower = np.linalg.cholesky(more)
    except np.linalg.LinAlgError:
        # Readings without any noise weigh so much more than what is taken as possible that rounding decides.
        x = np.linalg.solve(precision, right[None, :, None])[..., 0]
        return np.linalg.slogdet(precision)[1], x @ right
    pivots = np.diagonal(lower, axis1=1, axis2=2)[:, :p]
    return 2 * np.log(pivots).sum(axis=1), np.sum(lower[:, p, :p] ** 2, axis=1)


def means(total: Total, sigma2: float, priors: Priors, marks: Values) -> Values:
    """[1, models, lags, k] power that ``marks`` [lags, k, p] take of what is most likely."""
    normal, right, _, _ = total
    x = np.linalg.solve(normal / sigma2 + priors.precision, (right / sigma2)[None, :, None])[..., 0]
    return np.asarray((x @ _flat(marks).T).reshape(1, len(x), *marks.shape[:2]))


def means_and_variances(total: Total, sigma2: float, priors: Priors, marks: Values) -> Values:
    """[3, models, lags, k] the same, and the variances that it has from noise and from the prior."""
    normal, right, _, _ = total
    normal, flat = normal / sigma2, _flat(marks)
    solved = np.linalg.solve(normal + priors.precision, np.column_stack([right / sigma2, flat.T])[None])
    x, to = solved[..., 0], solved[..., 1:]
    noise = np.sum(to * (normal @ to), axis=1)
    model = np.maximum(np.sum(to * flat.T, axis=1) - noise, 0.0)
    return np.array([x @ flat.T, noise, model]).reshape(3, len(x), *marks.shape[:2])


def _flat(marks: Values) -> Values:
    return marks.reshape(-1, marks.shape[-1])


@dataclass(frozen=True, slots=True)
class Solution:
    """Mean power of each kind [k], around ``usual_w``, with standard uncertainties (W)."""

    node_ns: Values
    """[nodes] shifts that are possible, `ShiftPrior.nodes`."""
    watts: Values
    u_random_w: Values
    """From the scatter of the readings and of the iterations: shrinks with their number."""
    u_model_w: Values
    """From what windows cannot see inside a phase: stays."""
    limit_w: Values
    """How far the offsets and lags that are possible take it at most: stays."""
    of_lag: Values
    """Share of that which goes with the lag, 0 to 1, as of a variance; the rest goes with the offset."""
    u_in_step_w: Values
    """From how readings at the same moments of an iteration are off together, whatever their number: stays."""


def solve(
    equations: Callable[[float], Equations],
    shifts: ShiftPrior,
    marks: Values,
    priors: Priors,
    usual_w: float,
    in_step: Callable[[float], Equations] | None = None,
) -> Solution:
    """Weigh all ``priors`` at all ``shifts`` that are possible, and mix what they give.

    ``equations`` are those of windows that are later by a number of ns than they seem. ``marks`` [lags, k, p] takes the
    mean power between the marks of a kind's phases. ``in_step`` are the same equations, in blocks of readings at the
    same moments of an iteration; `Solution.u_in_step_w` is 0 without them.
    """
    at_nodes = [equations(by) for by in shifts.nodes().tolist()]
    middle = marks[len(marks) // 2]
    sigma2, apart = _scatter(at_nodes, priors, usual_w, middle)
    q = priors.scaled(usual_w)
    log_evidence = logsumexp([e.believed * evidence(e.total, sigma2, q) for e in at_nodes], axis=1)
    nodes = shifts.finer(shifts.nodes(), log_evidence >= log_evidence.max() - _AGAINST)
    at_nodes = [equations(by) for by in nodes.tolist()]
    weights = _Weights.of(at_nodes, sigma2, q, shifts.grid(nodes))
    watts, noise, model = weights.over_grid(at_nodes, lambda e, p: means_and_variances(e.total, sigma2, p, marks), q)
    in_step2 = np.zeros(len(apart))
    if in_step is not None:
        # Windows where they are not would be off in step too.
        of_nodes = np.array([evidence(e.total, sigma2, q) for e in at_nodes])
        node, best = np.unravel_index(np.argmax(of_nodes), of_nodes.shape)
        in_step2 = jackknife(in_step(nodes[node]), q.precision[best], sigma2, middle)
    return _mixed(weights, watts, noise, model, nodes, apart, np.sqrt(in_step2))


def means_at(
    node_ns: Values,
    equations: Callable[[float], Equations],
    shifts: ShiftPrior,
    marks: Values,
    priors: Priors,
    usual_w: float,
) -> Values:
    """[k] `Solution.watts` alone, from shifts that are known to be possible."""
    at_nodes = [equations(by) for by in node_ns.tolist()]
    sigma2, _ = _scatter(at_nodes, priors, usual_w, marks[len(marks) // 2])
    q = priors.scaled(usual_w)
    weights = _Weights.of(at_nodes, sigma2, q, shifts.grid(node_ns))
    (watts,) = weights.over_grid(at_nodes, lambda e, p: means(e.total, sigma2, p, marks), q)
    return weights.mean(watts)


@dataclass(frozen=True, slots=True)
class _Weights:
    """How likely shifts, lags and models are with the readings, of those that these do not speak against."""

    grid: ShiftGrid
    which: Mask
    """[models] that count."""
    of_models: Values
    """[d, models that count, 1, 1] for each shift; sum to 1 for one."""
    of_lags: Values
    """[d, l, 1] of shifts and lags; sum to 1."""

    @staticmethod
    def of(at_nodes: list[Equations], sigma2: float, priors: Priors, grid: ShiftGrid) -> _Weights:
        """``at_nodes`` are the equations at the nodes of ``grid``."""
        of_nodes = np.array([evidence(e.total, sigma2, priors) for e in at_nodes])
        by_model = at_nodes[0].believed * grid.between_nodes(of_nodes)
        of_all = logsumexp(by_model, axis=1)
        # One run has one offset and one lag, which may be any that the readings do not speak against.
        possible = of_all >= of_all.max() - _AGAINST
        of_models = np.exp(by_model - of_all[:, None])[possible]
        which = of_models.max(axis=0) > _NEXT_TO_NOTHING
        of_lags = np.maximum(grid.prior * np.exp(of_all - of_all.max())[:, None], 1e-300)[possible][:, :, None]
        return _Weights(grid.only(possible), which, of_models[:, which, None, None], of_lags / of_lags.sum())

    def over_grid(
        self, at_nodes: list[Equations], figures: Callable[[Equations, Priors], Values], priors: Priors
    ) -> list[Values]:
        """Each [d, models that count, l, k], of ``figures`` [each, models, lags, k] that equations give."""
        some = priors.only(self.which)
        nodes = np.unique(np.append(self.grid.low, np.minimum(self.grid.low + 1, len(at_nodes) - 1)))
        # Nodes that no shift lies at are not looked up.
        known = {i: figures(at_nodes[i], some) for i in nodes}
        none = np.zeros_like(known[nodes[0]])
        stacked = np.stack([known.get(i, none) for i in range(len(at_nodes))], axis=1)
        return [self.grid.with_lags(each) for each in stacked]

    def mean(self, watts: Values) -> Values:
        """[k] over models, shifts and lags, of [d, models that count, l, k]."""
        return np.asarray(np.sum(self.of_lags * np.sum(self.of_models * watts, axis=1), axis=(0, 1)))


def _mixed(
    weights: _Weights, watts: Values, noise: Values, model: Values, node_ns: Values, apart: Values, in_step_w: Values
) -> Solution:
    of_lags, both = weights.of_lags, (0, 1)
    # [shifts, lags, kinds], with the models mixed.
    each = np.sum(weights.of_models * watts, axis=1)
    mean = np.sum(of_lags * each, axis=both)
    away = each - mean
    limit = np.abs(away).max(axis=both)
    lag_ns = weights.grid.lag_ns[:, :, None]
    lag_ns = lag_ns - np.sum(of_lags * lag_ns)
    with_lag = np.sum(of_lags * lag_ns * away, axis=both) ** 2 / np.maximum(np.sum(of_lags * lag_ns**2), 1e-300)
    of_lag = np.clip(with_lag / np.maximum(np.sum(of_lags * away**2, axis=both), 1e-300), 0.0, 1.0)
    random = np.maximum(weights.mean(noise), apart)
    inside_w = np.sqrt(weights.mean(model + (watts - each[:, None]) ** 2))
    return Solution(node_ns, mean, np.sqrt(random), inside_w, limit, of_lag, in_step_w)


def _scatter(at_nodes: list[Equations], priors: Priors, usual_w: float, marks: Values) -> tuple[float, Values]:
    """Variance of readings, such that it explains how blocks of them differ; and the variance [k] that means by
    ``marks`` [k, p] have by how blocks differ."""
    sigma2 = noise_of(at_nodes, priors.precision[-1], usual_w)
    middle, q = at_nodes[len(at_nodes) // 2], priors.scaled(usual_w)
    best = int(np.argmax(evidence(middle.total, sigma2, q)))
    noise = means_and_variances(middle.total, sigma2, q.only(slice(best, best + 1)), marks[None])[1, 0, 0]
    # Iterations differ, and readings that overlap are off together: blocks that lie apart tell by how much.
    apart = jackknife(middle, q.precision[best], sigma2, marks)
    return sigma2 * max(1.0, float(np.min(apart / np.maximum(noise, 1e-300))) / _BY_CHANCE), apart
