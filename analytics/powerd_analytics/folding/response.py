"""What a reading shows of the power before it: the mean over a window, and a low-pass of first order behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.signal import Signal

Values = NDArray[np.float64]

_CONSTANTS = 7
"""Time constants of a low-pass after which nothing is looked at: 0.1 % is left."""


@dataclass(frozen=True, slots=True)
class Response:
    """Of power that is ``age`` older than the newest that a reading has seen, `before` says which share is newer."""

    window_ns: float
    filter_ns: float = 0.0

    @staticmethod
    def of(signal: Signal) -> Response:
        """Of a signal's readings; a counter's is the mean since the one before."""
        if signal.is_counter:
            return Response(signal.spacing_ns)
        accuracy = signal.line.accuracy
        beside = accuracy.reach_ns - accuracy.window_ns
        return Response(max(signal.window_ns - beside, 2.0), float(accuracy.filter_ns))

    def with_filter(self, times: float) -> Response:
        """The same with another time constant."""
        return Response(self.window_ns, self.filter_ns * times)

    @property
    def newest_ns(self) -> int:
        """From the centre of the weight, where a reading's timestamp stands, to the newest that it has seen."""
        return round(self.window_ns / 2 + self.filter_ns)

    @property
    def length_ns(self) -> int:
        """From the oldest to the newest that counts."""
        return 2 * round(self.window_ns / 2) + round(_CONSTANTS * self.filter_ns)

    @property
    def width_ns(self) -> float:
        """Of the rectangle whose weight is spread as much: the shortest time that can be told apart goes with it."""
        return float(np.sqrt(self.window_ns**2 + 12 * self.filter_ns**2))

    def before(self, age_ns: Values) -> Values:
        """Share of the weight that is newer than ``age_ns``, from 0 to 1 at `length_ns`."""
        found = self._before(np.asarray(age_ns, np.float64))
        made: Values = found / self._before(np.array([float(self.length_ns)]))
        return made

    def _before(self, age: Values) -> Values:
        w, tau = self.window_ns, self.filter_ns
        if not tau:
            return np.asarray(np.clip(age / w, 0, 1), np.float64)
        made: Values = 1 - tau / w * -np.expm1(-w / tau) * np.exp(-(np.maximum(age, w) - w) / tau)
        # Windows in front of a low-pass are short: few ages are within one.
        is_within = age < w
        within = age[is_within]
        made[is_within] = (within + tau * np.expm1(-within / tau)) / w
        return made
