"""What a signal does not know of an interval: seconds without readings, and what they can do to the joules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.integral import Integral
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]


def missing_in(signal: Signal, integral: Integral, begin: Ints, end: Ints) -> tuple[Values, Values, Values]:
    """Seconds without readings in each interval, the largest error that they can cause, and how much of it is of time
    in which nothing is counted: before the first reading, behind the last, and where a counter was set back."""
    length = (end - begin).astype(np.float64) * 1e-9
    if len(signal) < 2:
        nan = np.full(len(length), np.nan)
        return length, nan, nan
    t, lost = signal.t_ns, signal.missing_ns()
    edges = *locate(t, begin), *locate(t, end)
    bridged, outside = _lost_s(lost, *edges), length - integral.covered_s(begin, end)
    if signal.broken.any():
        set_back = _lost_s(np.where(signal.broken, lost, 0.0), *edges)
        bridged, outside = np.maximum(bridged - set_back, 0.0), outside + set_back
    low, high = signal.shown_w()
    # Between readings the estimate stays in the observed range.
    beyond: Values = outside * max(abs(high), abs(low))
    return bridged + outside, bridged * (high - low) + beyond, beyond


def _lost_s(lost: Values, i_b: Ints, share_b: Values, i_e: Ints, share_e: Values) -> Values:
    """Seconds of what is ``lost`` [n-1] (ns) between two readings, between edges as `locate` finds them."""
    prefix = np.concatenate([[0.0], np.cumsum(lost)])
    inside = (prefix[i_e] + share_e * lost[i_e] - prefix[i_b] - share_b * lost[i_b]) * 1e-9
    # What rounding leaves of a difference of sums is no time.
    return np.asarray(np.maximum(inside, 0.0))


def locate(t: Ints, at: Ints) -> tuple[Ints, Values]:
    at = np.clip(at, t[0], t[-1])
    i = np.clip(np.searchsorted(t, at, "right") - 1, 0, len(t) - 2)
    return i, (at - t[i]) / (t[i + 1] - t[i])
