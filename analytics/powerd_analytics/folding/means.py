"""Mean power of phases that are shorter than the sensor's window, from many iterations seen at shifting moments.

A reading is the mean power over its window: a linear function of the power in each bin of each kind of phase, with the
shares of the window as coefficients. Iterations come at moments that have nothing to do with the sensor's, so that many
readings are many different equations for the same unknowns. Least squares solves them. Windows say little of what goes
on inside a phase much shorter than they are; there a prior takes over: after an edge the power comes from its old level
with some time constant, and beside that it walks at random. Time constant and size of the walk are unknown; all are
weighed by how well they explain the readings (Bayesian model averaging), so that what the readings leave open widens
the interval instead of being decided by a choice.

Where every window holds whole iterations, only phases that last longer or shorter than usual tell the kinds apart, and
what they tell is the power of the time that is more, which need not be that of the rest. It is an unknown of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.timeline import Bins, Timeline

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

WALKS = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Sizes of the walk from a phase's begin to its end, over the usual power."""
DELAYS_MS = (0.001, 0.15, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0, 6.0)
"""Time constants with which power comes to its level after an edge."""
_TOLD_BY = 100
"""Readings whose worth of evidence is believed at most: no model is right to more than that, however many agree."""
_NOT_TOLD_APART = float(np.e)
"""Evidence of one model over another's, below which neither is preferred (Kass and Raftery, 1995, section 3.2)."""
_LEVEL, _LEAST = 10.0, 1e-3
"""Standard deviation of a kind's mean power around the usual one, over that: says nothing, but keeps sums finite.
The second: how much bins differ at least."""


@dataclass(frozen=True, slots=True)
class Equations:
    """Normal equations of blocks of readings [b] that lie apart in time; watts around ``usual_w``."""

    normal: Values
    """[b, p, p]; unknowns are the bins, then for each kind what its longer phases have more of."""
    right: Values
    """[b, p]"""
    square: Values
    """[b] sum of squares."""
    rows: Ints
    """[b]"""

    @staticmethod
    def of_block(timeline: Timeline, begin_ns: Ints, end_ns: Ints, watts: Values) -> Equations:
        """One block: windows [n] inside the timeline, and what they showed."""
        p = timeline.columns + timeline.kinds
        normal, right = np.zeros((p, p)), np.zeros(p)
        for rows in timeline.blocks(begin_ns, end_ns):
            shares = timeline.equations(begin_ns[rows], end_ns[rows])
            normal += shares.T @ shares
            right += shares.T @ watts[rows]
        return Equations(normal[None], right[None], np.array([watts @ watts]), np.array([len(watts)]))

    def coarser(self, which: Values) -> Equations:
        """The same for bins that are joined, ``which`` of `Bins.joined`."""
        kinds = self.right.shape[1] - len(which)
        to = np.zeros((self.right.shape[1], which.shape[1] + kinds))
        to[: len(which), : which.shape[1]], to[len(which) :, which.shape[1] :] = which, np.eye(kinds)
        return Equations(to.T @ self.normal @ to, self.right @ to, self.square, self.rows)

    @staticmethod
    def joined(blocks: list[Equations]) -> Equations:
        """All blocks together."""
        names = ("normal", "right", "square", "rows")
        return Equations(*(np.concatenate([getattr(b, n) for b in blocks]) for n in names))


@dataclass(frozen=True, slots=True)
class Solution:
    """Mean power of each kind [k], around ``usual_w``, with standard uncertainties (W)."""

    watts: Values
    u_random_w: Values
    """From the scatter of the readings and of the iterations: shrinks with their number."""
    u_model_w: Values
    """From what windows cannot see inside a phase: stays."""


def solve(equations: Equations, bins: Bins, before: Values, usual_w: float) -> Solution:
    """Weigh all `WALKS` and `DELAYS_MS`, with either meaning of a longer phase (`_precision`), and mix what they give.

    ``before`` [kinds, kinds] is the share of a kind's phases (row) that follow one of another (column).
    """
    n = int(equations.rows.sum())
    normal, right = equations.normal.sum(axis=0), equations.right.sum(axis=0)
    square = float(equations.square.sum())
    means = np.pad(bins.means(), ((0, 0), (0, len(bins.edges))))
    priors = [
        _precision(bins, before, walk, delay, grows) / usual_w**2
        for grows in (False, True) for walk in WALKS for delay in DELAYS_MS
    ]  # fmt: skip
    # The noise is what the most pliant model leaves.
    loose = np.linalg.solve(normal + 1e-9 * n * priors[-len(DELAYS_MS)] * usual_w**2, right)
    left = max(square - 2 * loose @ right + loose @ normal @ loose, 0.0)
    sigma2 = max(left / max(n - len(right), 1), (1e-6 * usual_w) ** 2)
    fits = [_Fit(normal, right, square, n, sigma2, q, means) for q in priors]
    weights = _weights(fits, n)
    # Iterations differ, and readings that overlap are off together: blocks that lie apart tell by how much.
    best = fits[int(np.argmax(weights))]
    apart = _jackknife(equations, best, means)
    inflation = max(1.0, float(np.median(apart / np.maximum(best.noise, 1e-300))))
    fits = [_Fit(normal, right, square, n, sigma2 * inflation, q, means) for q in priors]
    weights = _weights(fits, n)
    watts = np.array([f.watts for f in fits])
    mean = weights @ watts
    noise = weights @ np.array([f.noise for f in fits])
    # What readings do not tell apart is equally possible, also where most of the models happen to say another thing.
    alike = np.abs(watts - mean)[weights >= weights.max() / _NOT_TOLD_APART].max(axis=0)
    between = np.maximum(weights @ (watts - mean) ** 2, alike**2 / 3)
    model = weights @ np.array([f.model for f in fits]) + between
    return Solution(mean, np.sqrt(np.maximum(noise, apart)), np.sqrt(model))


class _Fit:
    """The posterior under one prior."""

    def __init__(
        self, normal: Values, right: Values, square: float, n: int, sigma2: float, prior: Values, means: Values
    ) -> None:
        self.sigma2, self.prior = sigma2, prior
        precision = normal / sigma2 + prior
        self.x = np.linalg.solve(precision, right / sigma2)
        self.to_means = np.linalg.solve(precision, means.T).T
        self.watts = means @ self.x
        self.noise = np.einsum("kp,pq,kq->k", self.to_means, normal / sigma2, self.to_means)
        self.model = np.einsum("kp,pq,kq->k", self.to_means, prior, self.to_means)
        self.evidence = 0.5 * (
            np.linalg.slogdet(prior)[1]
            - np.linalg.slogdet(precision)[1]
            - (square - right @ self.x) / sigma2
            - n * np.log(sigma2)
        )


def _precision(bins: Bins, before: Values, walk: float, delay_ms: float, grows: bool) -> Values:
    """[p, p] of the prior, in units of the usual power: of bins, and behind them of what longer phases have more of,
    over the phase's mean. ``grows``: that is more of the last level; else it is like the rest of the phase."""
    p, first = bins.columns, bins.first
    levels: Values = np.zeros((p, p))
    lag, own, last = np.zeros((p, len(first))), np.zeros((len(first), p)), np.zeros((len(first), p))
    left = np.diag(np.exp(-np.asarray(bins.length_ms) / delay_ms))
    for k, n in enumerate(bins.count):
        begin, share = np.asarray(bins.edges[k]), bins.shares_of(k)
        middle = begin + share / 2
        here = slice(first[k], first[k] + n)
        levels[here, here] = _LEVEL**2 + walk**2 * np.minimum(middle[:, None], middle[None, :])
        lag[here, k] = _mean_decay(begin, share, delay_ms / bins.length_ms[k])
        own[k, first[k]], last[k, first[k] + n - 1] = 1, 1
    # Power after an edge is its level, and what is still there of the power before: with levels z, power e at the ends
    # of phases, e = last z + left (before e - own z), and in bins x = z + lag (before e - own z).
    end = np.linalg.solve(np.eye(len(first)) - left @ before, last - left @ own)
    follows = np.eye(p) + lag @ (before @ end - own)
    # A phase that goes on for longer at its last level takes that much more, whatever the time constant: what has not
    # come when it ends comes in the phases behind it.
    more = (last - bins.means() @ follows) if grows else np.zeros((len(first), p))
    of_levels = np.concatenate([follows, more])
    own_part = np.concatenate([np.full(p, _LEAST**2), np.full(len(first), _LEAST**2 + walk**2 / 3)])
    return np.asarray(np.linalg.inv(of_levels @ levels @ of_levels.T + np.diag(own_part)), np.float64)


def _mean_decay(begin: Values, share: Values, constant: float) -> Values:
    """exp(-u/constant) averaged over each bin."""
    made: Values = np.exp(-begin / constant) * -np.expm1(-share / constant) * constant / share
    return made


def _weights(fits: list[_Fit], n: int) -> Values:
    evidence = np.array([f.evidence for f in fits])
    weights = np.exp((evidence - evidence.max()) * min(1.0, _TOLD_BY / n))
    made: Values = weights / weights.sum()
    return made


def _jackknife(equations: Equations, fit: _Fit, means: Values) -> Values:
    """[k] variance of the means when blocks are left out in turn (Efron and Stein, 1981)."""
    b = len(equations.rows)
    if b < 4:
        return np.zeros(len(means))
    normal, right = equations.normal.sum(axis=0), equations.right.sum(axis=0)
    without = np.array(
        [
            means
            @ np.linalg.solve(
                (normal - equations.normal[i]) / fit.sigma2 + fit.prior, (right - equations.right[i]) / fit.sigma2
            )
            for i in range(b)
        ]
    )
    made: Values = (b - 1) / b * np.sum((without - without.mean(axis=0)) ** 2, axis=0)
    return made
