"""Where windows lie against the power of phases: the sensor's place and the lag of power behind its phases.

Power comes later than the marks of its phase: a launch is queued, a regulator takes its time, filters take theirs. By
how much is unknown, 0 to a bound, but the same for all edges of a run. For the readings only the window's place less
the lag matters. For the joules between marks the lag matters alone: with power P1 before an edge and P2 behind it, the
later phase has (P1 - P2) * lag more than it would without a lag, and the one before has that much less.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

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
NO_LAG = 0.25
"""How likely it is beforehand that power moves with its marks: there are such loads, and an even share of all lags has
none of them."""
_LONGEST_MS = 50.0
_NODES, _MOST_NODES, _OF_WINDOW = 7, 15, 0.25
"""Differences at which the equations are solved at first: this many, or as many as lie a quarter of a window apart."""
_LEAST_FINE, _FINE_NS = 9, 80_000.0
"""And then, where the readings have them: this many, or as many as lie this far apart, `_MOST_NODES` at most. A step
that lies between two nodes fits neither."""
_LEAST_ROOM_NS = 2_000_000
_LOOKED_UP, _LAGS, _WITHIN = 9, 9, 4
"""Lags for which it is looked up what marks hold, lags that go with a difference, and cases from node to node."""


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
    """A place of all windows within ± ``beside_ns``, evenly likely, and a lag of power from 0 to ``most_lag_ns``: none
    with a probability of its own (`NO_LAG`), else evenly likely."""

    beside_ns: float
    most_lag_ns: float
    window_ns: float

    @property
    def lag_ns(self) -> Values:
        """[lags] at which it is looked up what marks hold; between them it is interpolated."""
        return np.linspace(0, self.most_lag_ns, _LOOKED_UP if self.most_lag_ns else 1)

    @property
    def room_ns(self) -> int:
        """How far windows must lie from what is not known, so that no difference takes them there."""
        return round(self.beside_ns + max(self.most_lag_ns, _LEAST_ROOM_NS))

    def nodes(self) -> Values:
        """[nodes] differences place - lag from end to end."""
        low, high = -self.beside_ns - self.most_lag_ns, self.beside_ns
        n = min(max(_NODES, 1 + round((high - low) / max(_OF_WINDOW * self.window_ns, 1.0))), _MOST_NODES)
        return np.asarray(np.linspace(low, high, n) if high > low else [high], np.float64)

    @staticmethod
    def finer(node_ns: Values, possible: NDArray[np.bool_]) -> Values:
        """[nodes] between the neighbours of the nodes that are possible."""
        at = np.flatnonzero(possible)
        low, high = node_ns[max(at[0] - 1, 0)], node_ns[min(at[-1] + 1, len(node_ns) - 1)]
        n = min(max(_LEAST_FINE, 1 + round((high - low) / _FINE_NS)), _MOST_NODES)
        return np.asarray(np.linspace(low, high, n) if high > low else [high], np.float64)

    def cases(self, node_ns: Values) -> Cases:
        """What to weigh between nodes that are in order."""
        if len(node_ns) == 1:
            none, lag_ns = np.zeros((1, 1)), np.full((1, 1), -node_ns[0])
            first = np.zeros(1, np.int64)
            return Cases(np.ones(1), np.zeros(1), first, np.zeros(1), first[:, None], none, lag_ns)
        width = np.diff(node_ns)
        # The ends are cases too.
        low = np.append(np.repeat(np.arange(len(width)), _WITHIN), len(width) - 1)
        share = np.append(np.tile(np.arange(_WITHIN) / _WITHIN, len(width)), 1.0)
        difference = node_ns[low] + share * width[low]
        first = np.maximum(0.0, -difference - self.beside_ns)
        last = np.minimum(self.most_lag_ns, self.beside_ns - difference)
        # As many pairs make a difference as lags are possible with it; without a place there is one.
        both = min(self.beside_ns, self.most_lag_ns) >= 1
        pairs = np.maximum(last - first, 0.0) / self.most_lag_ns if both else np.ones(len(low))
        stands_for = np.convolve(np.repeat(width, _WITHIN) / _WITHIN, [0.5, 0.5])
        places = 2 * self.beside_ns if both else 2 * self.beside_ns + self.most_lag_ns
        weight = pairs * stands_for / places
        no_lag = np.where(-difference - self.beside_ns < 1, stands_for, 0.0)
        if self.beside_ns >= 1:
            # The share of all places that lies between the nodes, however coarse these are.
            inside = min(node_ns[-1], self.beside_ns) - max(node_ns[0], -self.beside_ns)
            no_lag *= max(inside, 0.0) / (2 * self.beside_ns) / max(no_lag.sum(), 1e-300)
        else:
            no_lag = (no_lag > 0).astype(np.float64)
        lag = first[:, None] + np.maximum(last - first, 0.0)[:, None] * np.linspace(0, 1, _LAGS)
        step = self.most_lag_ns / (_LOOKED_UP - 1)
        of = np.clip(lag / step if step else 0 * lag, 0, _LOOKED_UP - 1)
        lag_low = np.minimum(of.astype(np.int64), _LOOKED_UP - 2) if step else np.zeros(lag.shape, np.int64)
        return Cases(weight / weight.sum(), no_lag / weight.sum(), low, share, lag_low, of - lag_low, lag)


@dataclass(frozen=True, slots=True)
class Cases:
    """Differences [d] with lags [d, l] that go with each, and where among the nodes both are."""

    weight: Values
    """[d] how likely before any reading, with all lags alike."""
    no_lag: Values
    """[d] the same without a lag, in the same units."""
    low: Ints
    share: Values
    """[d] the node below, and how far towards the next."""
    lag_low: Ints
    lag_share: Values
    """[d, l] the same for `Places.lag_ns`."""
    lag_ns: Values

    @property
    def prior(self) -> Values:
        """[d, l] of both together."""
        lags = self.lag_ns.shape[1]
        made: Values = np.repeat((1 - NO_LAG) * self.weight[:, None] / lags, lags, axis=1)
        made[:, 0] += NO_LAG * self.no_lag
        return made

    def only(self, which: NDArray[np.bool_]) -> Cases:
        """Some of the differences."""
        return Cases(*(getattr(self, f.name)[which] for f in fields(self)))

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
