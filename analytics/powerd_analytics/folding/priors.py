"""What is taken as possible inside a phase: levels, a time constant after each edge, a walk; as precision matrices."""

from __future__ import annotations

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


def precisions(bins: Bins, before: Values) -> Values:
    """[models, p, p] of all combinations of `WALKS` and `DELAYS_MS` with either meaning of a longer phase, in units of
    the usual power; the last is among the most pliant."""
    return np.array(
        [
            _precision(bins, before, walk, delay, grows)
            for grows in (False, True) for walk in WALKS for delay in DELAYS_MS
        ]
    )  # fmt: skip


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
