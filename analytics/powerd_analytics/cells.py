"""Single looks at the power, and sums over them that tell steps, ramps and noise apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signal import Signal

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
            self.half_ns, self.window_ns = 0.0, min(signal.window_ns, signal.spacing_ns)
        self.spacing_ns = signal.spacing_ns
        centres = (self.left + self.right) // 2
        d, h = np.diff(self.watts), np.diff(centres).astype(np.float64)
        # A step inside a phase that falls between two looks (h apart, each w long) moves the integral by a
        # sawtooth of +-(h - w)/2 times the step; the moment of the look is itself unsure by +-c.
        q = self.window_ns / max(self.spacing_ns, 1.0)
        spread = (np.clip(h - self.window_ns, 0, None) ** 2 / 12 + signal.centre_ns**2 / 3) / (1 - min(q, 1) / 3)
        if signal.is_counter:
            spread = np.zeros(len(h))  # a counter misses nothing between two of its readings
        lag2 = (self.watts[2:] - self.watts[:-2]) ** 2
        noise = np.zeros(0) if signal.is_counter else -d[:-1] * d[1:] * h[:-1] * h[1:]
        self.square = prefix_sums(d**2)
        self.square2 = prefix_sums(lag2)
        self.product = prefix_sums(-d[:-1] * d[1:])
        self.inside = prefix_sums(d**2 * spread)
        self.noise = prefix_sums(noise) if len(noise) else np.zeros(len(self.product))
        # White noise moves the integral by sigma^2 h^2 a reading; ``inside`` has already counted a part of that.
        h2 = max(self.spacing_ns, 1.0) ** 2
        counted = (max(self.spacing_ns - self.window_ns, 0.0) ** 2 / 12 + signal.centre_ns**2 / 3) / (1 - min(q, 1) / 3)
        self.noise_share = max(0.0, 1 - 2 * counted / h2) if not signal.is_counter else 0.0

    def __len__(self) -> int:
        return len(self.watts)


def prefix_sums(values: Values) -> Values:
    return np.concatenate([[0.0], np.cumsum(values)])


def span(prefix: Values, first: Ints, last: Ints) -> Values:
    """Sum of the terms first..last-1."""
    n = len(prefix) - 1
    b = np.clip(first, 0, n)
    return prefix[np.clip(last, b, n)] - prefix[b]
