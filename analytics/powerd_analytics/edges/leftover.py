"""Joules around an edge that a step right at it does not explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.cells import Cells
from powerd_analytics.edges.lowpass import filter_ns
from powerd_analytics.signals.integral import Integral
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

MOST_BETWEEN = 16
"""Readings between two clean ones that are looked at; more can only be there after missing data."""


@dataclass(frozen=True, slots=True)
class Side:
    """The clean cells [m] nearest to edges on one side, what power is held, and the slope (W/ns) towards each edge."""

    cell: Ints
    watts: Values
    slope: Values


def left_over_j(signal: Signal, cells: Cells, integral: Integral, edge: Ints, low: Side, high: Side) -> Values:
    """What the sensor saw between the clean cells around each edge [m], less what a step at the edge would show it.

    A counter misses nothing, so its joules are compared. Readings are compared one by one with what their window
    would have seen of the step, which leaves nothing to chance but their own noise: averaged over edges at shifting
    moments, reading distance times difference is the integral of what is not a step.
    """
    begin, end = cells.right[low.cell], np.maximum(cells.left[high.cell], cells.right[low.cell])
    inside = np.clip(edge, begin, end)
    before_ns, after_ns = (inside - begin).astype(np.float64), (end - inside).astype(np.float64)
    w_low, w_high = low.watts, high.watts
    if signal.is_counter:
        half = cells.half_ns
        step = w_low * before_ns + low.slope * before_ns * (before_ns / 2 + half)
        step += w_high * after_ns + high.slope * after_ns * (after_ns / 2 + half)
        counted: Values = integral.between(begin, end) - step * 1e-9
        return counted
    t, n, tau = signal.t_ns, len(signal), filter_ns(signal)
    left = np.zeros(len(edge))
    for j in range(1, min(MOST_BETWEEN, int(np.max(high.cell - low.cell, initial=0)))):
        k = low.cell + j
        between = k < high.cell
        k = np.clip(k, 1, n - 2)
        share = seen_of_step((t[k] - edge).astype(np.float64), signal.window_ns, signal.centre_ns, tau)
        old = w_low + low.slope * np.clip(t[k] - begin, 0, before_ns)
        new = w_high + high.slope * np.clip(end - t[k], 0, after_ns)
        weight = (t[k + 1] - t[k - 1]) / 2 * 1e-9
        left += np.where(between, (cells.watts[k] - old - share * (new - old)) * weight, 0.0)
    return left


def seen_of_step(after_ns: Values, window_ns: float, centre_ns: float, tau_ns: float = 0.0) -> Values:
    """Mean share of a step that a reading shows whose timestamp lies ``after_ns`` behind it.

    The window is ``window_ns`` wide and centred anywhere within ± ``centre_ns`` of the timestamp. Behind a low-pass of
    the time constant ``tau_ns`` only that counts, with its weight centred there.
    """

    def reached(x: Values) -> Values:
        """Integral of the share over the centre's position: 0 before the window's first touch, x after its last."""
        if tau_ns > 0:
            since = np.maximum(x + tau_ns, 0)
            return np.asarray(since + tau_ns * np.expm1(-since / tau_ns))
        if window_ns <= 0:
            return np.clip(x, 0, None)
        part = (x + window_ns / 2) ** 2 / (2 * window_ns)
        return np.where(x <= -window_ns / 2, 0.0, np.where(x >= window_ns / 2, x, part))

    width = max(centre_ns, 0.5)
    share: Values = (reached(after_ns + width) - reached(after_ns - width)) / (2 * width)
    return share
