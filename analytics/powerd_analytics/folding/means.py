"""Mean power of phases that are shorter than the sensor's window, from many iterations seen at shifting moments.

A reading is the mean power over its window: a linear function of the power in each bin of each kind of phase, with the
shares of the window as coefficients. Iterations come at moments that have nothing to do with the sensor's, so that many
readings are many different equations for the same unknowns. Least squares solves them. Windows say little of what goes
on inside a phase much shorter than they are; there a prior takes over (`powerd_analytics.folding.priors`): after an
edge the power comes from its old level with some time constant, and beside that it walks at random. Time constant and
size of the walk are unknown; all are weighed by how well they explain the readings (Bayesian model averaging), so that
what the readings leave open widens the interval instead of being decided by a choice. Where the windows lie, and how
much later than its phases power comes (`powerd_analytics.folding.lag`), are limits: what they make is taken from end to
end of what the readings do not speak against.

Where every window holds whole iterations, only phases that last longer or shorter than usual tell the kinds apart, and
what they tell is the power of the time that is more, which need not be that of the rest. It is an unknown of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.lag import Cases, Places
from powerd_analytics.folding.response import Response
from powerd_analytics.folding.timeline import Timeline

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_TOLD_BY = 20
"""Readings whose worth of evidence is believed at most: no model is right to more than that, however many agree."""
_AGAINST = 1.92
"""How much smaller the logarithm of that evidence is where readings speak against a place and a lag of the windows: the
95 % limit of a likelihood ratio for one unknown (Wilks, 1938)."""


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
    def of_block(
        timeline: Timeline, begin_ns: Ints, end_ns: Ints, watts: Values, response: Response | None = None
    ) -> Equations:
        """One block: windows [n] inside the timeline, and what they showed."""
        p = timeline.columns + timeline.kinds
        normal, right = np.zeros((p, p)), np.zeros(p)
        for rows in timeline.blocks(begin_ns, end_ns):
            shares = timeline.equations(begin_ns[rows], end_ns[rows], response)
            normal += shares.T @ shares
            right += shares.T @ watts[rows]
        return Equations(normal[None], right[None], np.array([watts @ watts]), np.array([len(watts)]))

    def coarser(self, which: Values) -> Equations:
        """The same for bins that are joined, ``which`` of `Bins.joined`."""
        to = joining(which, self.right.shape[1])
        return Equations(to.T @ self.normal @ to, self.right @ to, self.square, self.rows)

    @property
    def total(self) -> tuple[Values, Values, float, int]:
        """Of all blocks together: normal, right, square, rows."""
        return self.normal.sum(axis=0), self.right.sum(axis=0), float(self.square.sum()), int(self.rows.sum())

    @staticmethod
    def joined(blocks: list[Equations]) -> Equations:
        """All blocks together."""
        names = ("normal", "right", "square", "rows")
        return Equations(*(np.concatenate([getattr(b, n) for b in blocks]) for n in names))


def joining(which: Values, unknowns: int) -> Values:
    """[unknowns, theirs] from bins that are joined, and what longer phases have more of, to what they were."""
    kinds = unknowns - len(which)
    to = np.zeros((unknowns, which.shape[1] + kinds))
    to[: len(which), : which.shape[1]], to[len(which) :, which.shape[1] :] = which, np.eye(kinds)
    return to


@dataclass(frozen=True, slots=True)
class Solution:
    """Mean power of each kind [k], around ``usual_w``, with standard uncertainties (W)."""

    node_ns: Values
    """[nodes] differences of place and lag that are possible, `Places.nodes`."""
    watts: Values
    u_random_w: Values
    """From the scatter of the readings and of the iterations: shrinks with their number."""
    u_model_w: Values
    """From what windows cannot see inside a phase: stays."""
    limit_w: Values
    """How far the places of windows and the lags of power that are possible take it at most: stays."""
    of_lag: Values
    """Share of that which goes with the lag, 0 to 1, as of a variance; the rest goes with the place."""


def solve(
    equations: Callable[[float], Equations],
    places: Places,
    marks: Values,
    priors: Values,
    usual_w: float,
    node_ns: Values | None = None,
) -> Solution:
    """Weigh all ``priors`` [models, p, p] at all ``places`` that are possible, and mix what they give.

    ``equations`` are those of windows that are later by a number of ns than they seem. ``marks`` [lags, k, p] takes the
    mean power between the marks of a kind's phases. ``node_ns`` are the differences to look at, when that is known.
    """
    q = priors / usual_w**2
    log_q = np.linalg.slogdet(q)[1]
    nodes = places.nodes() if node_ns is None else node_ns
    made = [equations(by) for by in nodes.tolist()]
    sigma2 = _noise(made, priors[-1], usual_w)
    middle, of_lags = made[len(made) // 2], len(marks) // 2
    few = marks[of_lags : of_lags + 1]
    first = _Fits(middle, sigma2, q, log_q, few)
    # Iterations differ, and readings that overlap are off together: blocks that lie apart tell by how much.
    best = int(np.argmax(first.evidence))
    apart = _jackknife(middle, q[best], sigma2, marks[of_lags])
    sigma2 *= max(1.0, float(np.median(apart / np.maximum(first.noise[best, 0], 1e-300))))
    if node_ns is None:
        told = _together(np.array([f.told * f.evidence for f in (_Fits(e, sigma2, q, log_q, few) for e in made)]))
        nodes = places.finer(nodes, told >= told.max() - _AGAINST)
        made = [equations(by) for by in nodes.tolist()]
    return _mixed([_Fits(e, sigma2, q, log_q, marks) for e in made], places.cases(nodes), nodes, apart)


def _mixed(fits: list[_Fits], cases: Cases, node_ns: Values, apart: Values) -> Solution:
    evidence = fits[0].told * cases.between_nodes(np.array([f.evidence for f in fits]))
    told = _together(evidence)
    # One run has one place and one lag, which may be any that the readings do not speak against.
    possible = told >= told.max() - _AGAINST
    weights = np.exp(evidence - told[:, None])[possible][:, :, None, None]
    watts, noise, model = (
        cases.with_lags(np.array([getattr(f, name) for f in fits]))[possible] for name in ("watts", "noise", "model")
    )
    # [differences, lags, kinds], with the models mixed.
    each = np.sum(weights * watts, axis=1)
    inside = np.sum(weights * (model + (watts - each[:, None]) ** 2), axis=1)
    usual = np.maximum(cases.prior * np.exp(told - told.max())[:, None], 1e-300)[possible][:, :, None]
    usual /= usual.sum()
    both = (0, 1)
    mean = np.sum(usual * each, axis=both)
    beside = each - mean
    limit = np.abs(beside).max(axis=both)
    late = cases.lag_ns[possible][:, :, None]
    late = late - np.sum(usual * late)
    with_lag = np.sum(usual * late * beside, axis=both) ** 2 / np.maximum(np.sum(usual * late**2), 1e-300)
    of_lag = np.clip(with_lag / np.maximum(np.sum(usual * beside**2, axis=both), 1e-300), 0.0, 1.0)
    random = np.maximum(np.sum(usual * np.sum(weights * noise, axis=1), axis=both), apart)
    inside_w = np.sqrt(np.sum(usual * inside, axis=both))
    return Solution(node_ns, mean, np.sqrt(random), inside_w, limit, of_lag)


def _together(evidence: Values) -> Values:
    """[n] of all models together, from the logarithms [n, models]."""
    best = evidence.max(axis=1)
    made: Values = best + np.log(np.sum(np.exp(evidence - best[:, None]), axis=1))
    return made


def _noise(all_equations: Iterable[Equations], prior: Values, usual_w: float) -> float:
    """Variance of readings: what the most pliant model leaves where it leaves least."""
    found = []
    for e in all_equations:
        normal, right, square, n = e.total
        found.append(_left(normal, right, square, n, prior) / max(n - len(right), 1))
    return max(min(found), (1e-6 * usual_w) ** 2)


def _left(normal: Values, right: Values, square: float, n: int, prior: Values) -> float:
    """Squares that are left of a pliant model."""
    x = np.linalg.solve(normal + 1e-9 * n * prior, right)
    return max(square - 2 * float(x @ right) + float(x @ normal @ x), 0.0)


class _Fits:
    """Posteriors under each prior: watts [models, lags, k], variances of noise and prior alike, evidence [models]."""

    def __init__(self, equations: Equations, sigma2: float, prior: Values, log_prior: Values, marks: Values) -> None:
        normal, right, square, n = equations.total
        lags, kinds, p = marks.shape
        self.told = min(1.0, _TOLD_BY / n)
        flat = marks.reshape(-1, p)
        precision = normal / sigma2 + prior
        known = np.linalg.solve(precision, np.column_stack([right / sigma2, flat.T])[None])
        x, to = known[..., 0], known[..., 1:]
        shape = (len(prior), lags, kinds)
        self.watts = (x @ flat.T).reshape(shape)
        self.noise = np.sum(to * (normal / sigma2 @ to), axis=1).reshape(shape)
        self.model = np.maximum(np.sum(to * flat.T, axis=1).reshape(shape) - self.noise, 0.0)
        self.evidence = 0.5 * (
            log_prior - np.linalg.slogdet(precision)[1] - (square - x @ right) / sigma2 - n * np.log(sigma2)
        )


def _jackknife(equations: Equations, prior: Values, sigma2: float, means: Values) -> Values:
    """[k] variance of the means when blocks are left out in turn (Efron and Stein, 1981)."""
    b = len(equations.rows)
    if b < 4:
        return np.zeros(len(means))
    normal = equations.normal.sum(axis=0) - equations.normal
    right = equations.right.sum(axis=0) - equations.right
    without = np.linalg.solve(normal / sigma2 + prior, right[..., None] / sigma2)[..., 0] @ means.T
    made: Values = (b - 1) / b * np.sum((without - without.mean(axis=0)) ** 2, axis=0)
    return made
