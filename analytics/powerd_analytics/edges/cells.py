"""Single looks at the power, and sums over them that tell steps, ramps and noise apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.geometry import geometry_of
from powerd_analytics.edges.lowpass import filter_ns
from powerd_analytics.edges.place import shared_place_ns
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]


class Cells:
    """What one look at the power is: a reading, or the interval between two readings of a counter."""

    def __init__(self, signal: Signal) -> None:
        t = signal.t_ns
        if signal.is_counter:
            dt = np.diff(t).astype(np.float64)
            self.left, self.right = t[:-1], t[1:]
            self.watts = np.diff(signal.value) / (dt * 1e-9)
            self.half_ns, self.window_ns = signal.spacing_ns / 2, signal.spacing_ns
        else:
            self.left = self.right = t
            self.watts = signal.value
            self.half_ns, self.window_ns = 0.0, signal.window_ns
        self.spacing_ns = signal.spacing_ns
        centres = (self.left + self.right) // 2
        # What all windows lie beside their stamps together is no scatter; it is a part of its own (`place`).
        self.centre_ns = signal.centre_ns - shared_place_ns(signal)
        self.geometry = geometry_of(
            signal.spacing_ns, self.window_ns, 0.0 if signal.is_counter else self.centre_ns,
            filter_ns(signal), is_counter=signal.is_counter,
        )  # fmt: skip
        d, h = np.diff(self.watts), np.diff(centres).astype(np.float64)
        # A cell that came late leaves more room for what nobody saw: its movement counts by the square of its time.
        late2 = (h[1:] ** 2 + h[:-1] ** 2) / (2 * max(signal.spacing_ns, 1.0) ** 2)
        self.power2 = prefix_sums(self.watts**2)
        self.square = prefix_sums(d**2)
        self.square2 = prefix_sums((self.watts[2:] - self.watts[:-2]) ** 2)
        self.second = prefix_sums(np.diff(d) ** 2 / 2 * late2)

    def __len__(self) -> int:
        return len(self.watts)

    def at(self, t_ns: Ints) -> Values:
        """[n] power at moments on the straight line between readings, or of the interval that holds them."""
        if self.half_ns:
            return self.watts[np.clip(np.searchsorted(self.left, t_ns, "right") - 1, 0, len(self) - 1)]
        return np.interp(t_ns, self.left, self.watts)


def prefix_sums(values: Values) -> Values:
    return np.concatenate([[0.0], np.cumsum(values)])


def span(prefix: Values, first: Ints, last: Ints) -> Values:
    """Sum of the terms first..last-1."""
    n = len(prefix) - 1
    b = np.clip(first, 0, n)
    return prefix[np.clip(last, b, n)] - prefix[b]
