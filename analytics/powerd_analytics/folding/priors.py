"""What is taken as possible inside a phase: levels, a time constant after each edge, a walk; as precision matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.timeline import Bins

Values = NDArray[np.float64]

WALKS = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Sizes of the walk from a phase's begin to its end, over the usual power."""
DELAYS_MS = (0.001, 0.15, 0.3, 0.6, 1.0, 1.6, 2.5, 4.0, 6.0)
"""Time constants with which power comes to its level after an edge."""
_LEVEL, _LEAST = 10.0, 1e-3
"""Standard deviation of a kind's mean power around the usual one, over that: says nothing, but keeps sums finite.
The second: how much bins differ at least."""


@dataclass(frozen=True, slots=True)
class Priors:
    """All combinations of `WALKS` and `DELAYS_MS` with either meaning of a longer phase, as normal distributions around
    the usual power; the last is among the most pliant."""

    precision: Values
    """[models, p, p] of the bins, and behind them of what longer phases have more of, over the phase's mean."""
    log_det: Values
    """[models] logarithms of the determinants."""

    @staticmethod
    def of(bins: Bins, before: Values) -> Priors:
        """In units of the usual power. ``before`` is `powerd_analytics.folding.segments.Segments.before`."""
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

    def only(self, which: NDArray[np.bool_] | slice) -> Priors:
        """Some of the models."""
        return Priors(self.precision[which], self.log_det[which])


def _levels(bins: Bins, walk: float) -> Values:
    """[p, p] covariance of what power goes to in each bin."""
    made: Values = np.zeros((bins.columns, bins.columns))
    for k, (first, n) in enumerate(zip(bins.first, bins.count, strict=True)):
        middle = np.asarray(bins.edges[k]) + bins.shares_of(k) / 2
        here = slice(first, first + n)
        made[here, here] = _LEVEL**2 + walk**2 * np.minimum(middle[:, None], middle[None, :])
    return made


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
    made: Values = np.exp(-begin / constant) * -np.expm1(-share / constant) * constant / share
    return made
