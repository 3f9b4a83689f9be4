"""Where windows lie against the power of phases: the sensor's place and the lag of power behind its phases.

Power comes later than the marks of its phase: a launch is queued, a regulator takes its time, filters take theirs. By
how much is unknown, 0 to a bound, but the same for all edges of a run. For the readings only the window's place less
the lag matters. For the joules between marks the lag matters alone: with power P1 before an edge and P2 behind it, the
later phase has (P1 - P2) * lag more than it would without a lag, and the one before has that much less.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_core.errors import ConfigError
from powerd_core.text import printable

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

LAG_VARIABLE = "POWERD_LAG_MS"
"""Environment variable with the bound of the lag, for machines whose lag is known better."""
MOST_LAG_MS = 2.0
"""The bound when nothing is set. No data sheet has one: ramps behind a regulator are taken as 0.8 ms in this project's
simulations, and a launch and the filter of a sensor may come to as much again."""
_LONGEST_MS = 50.0
_NODES, _MOST_NODES, _OF_WINDOW = 7, 15, 0.25
"""Differences at which the equations are solved at first: this many, or as many as lie a quarter of a window apart."""
_LOOKED_UP, _LAGS, _WITHIN = 9, 5, 4
"""Lags for which it is looked up what marks hold, lags that go with a difference, and points between two nodes."""


def most_lag_ns() -> int:
    """The bound of the lag that is set. Raises `ConfigError` for one that is no number from 0 to 50."""
    text = os.environ.get(LAG_VARIABLE, "").strip()
    if not text:
        return round(MOST_LAG_MS * 1e6)
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _LONGEST_MS:
        raise ConfigError(
            f"{LAG_VARIABLE}={printable(text)!r}: give the longest lag of power behind its phases in ms, "
            f"0 to {_LONGEST_MS:g}"
        )
    return round(found * 1e6)


@dataclass(frozen=True, slots=True)
class Places:
    """A place of all windows within ± ``beside_ns`` and a lag of power from 0 to ``most_lag_ns``, evenly likely."""

    beside_ns: float
    most_lag_ns: float
    window_ns: float

    @property
    def lag_ns(self) -> Values:
        """[lags] at which it is looked up what marks hold; between them it is interpolated."""
        return np.linspace(0, self.most_lag_ns, _LOOKED_UP if self.most_lag_ns else 1)

    def nodes(self) -> Values:
        """[nodes] differences place - lag from end to end."""
        low, high = -self.beside_ns - self.most_lag_ns, self.beside_ns
        n = min(max(_NODES, 1 + round((high - low) / max(_OF_WINDOW * self.window_ns, 1.0))), _MOST_NODES)
        return np.asarray(np.linspace(low, high, n) if high > low else [high], np.float64)

    def cases(self, node_ns: Values) -> Cases:
        """What to weigh between nodes that are in order."""
        if len(node_ns) == 1:
            return Cases(np.ones(1), np.zeros(1, np.int64), np.zeros(1), np.zeros((1, 1), np.int64), np.zeros((1, 1)),
                         np.full((1, 1), -node_ns[0]))  # fmt: skip
        at = (np.arange(_WITHIN) + 0.5) / _WITHIN
        width = np.diff(node_ns)
        low = np.repeat(np.arange(len(width)), _WITHIN)
        share = np.tile(at, len(width))
        difference = node_ns[low] + share * width[low]
        first = np.maximum(0.0, -difference - self.beside_ns)
        last = np.minimum(self.most_lag_ns, self.beside_ns - difference)
        # As many pairs make a difference as lags are possible with it; without a place there is one.
        pairs = np.maximum(last - first, 0.0) if min(self.beside_ns, self.most_lag_ns) >= 1 else np.ones(len(low))
        weight = pairs * width[low] / _WITHIN
        lag = (first + last)[:, None] / 2 + (last - first)[:, None] / 2 * _even(_LAGS)
        step = self.most_lag_ns / (_LOOKED_UP - 1)
        of = np.clip(lag / step if step else 0 * lag, 0, _LOOKED_UP - 1)
        lag_low = np.minimum(of.astype(np.int64), _LOOKED_UP - 2) if step else np.zeros(lag.shape, np.int64)
        return Cases(weight / weight.sum(), low, share, lag_low, of - lag_low, lag)


@dataclass(frozen=True, slots=True)
class Cases:
    """Differences [d] with lags [d, l] that go with each, and where among the nodes both are."""

    weight: Values
    """[d] how likely before any reading."""
    low: Ints
    share: Values
    """[d] the node below, and how far towards the next."""
    lag_low: Ints
    lag_share: Values
    """[d, l] the same for `Places.lag_ns`."""
    lag_ns: Values

    def between_nodes(self, of_nodes: Values) -> Values:
        """[d, ...] of what is known at nodes [nodes, ...]."""
        share = self.share.reshape(-1, *(1,) * (of_nodes.ndim - 1))
        high = np.minimum(self.low + 1, len(of_nodes) - 1)
        made: Values = of_nodes[self.low] * (1 - share) + of_nodes[high] * share
        return made

    def with_lags(self, of_nodes: Values) -> Values:
        """[d, models, l, k] of what is known at nodes and lags [nodes, models, lags, k]."""
        at = self.between_nodes(of_nodes)
        high = np.minimum(self.lag_low + 1, at.shape[2] - 1)
        low, up = (np.take_along_axis(at, i[:, None, :, None], 2) for i in (self.lag_low, high))
        share = self.lag_share[:, None, :, None]
        made: Values = low * (1 - share) + up * share
        return made


def _even(n: int) -> Values:
    """``n`` points around 0 with the variance of a rectangle from -1 to 1."""
    return np.asarray(np.linspace(-1, 1, n) * np.sqrt((n - 1) / (n + 1)), np.float64)
