"""What a signal does not know of an interval: seconds without readings, and what they can do to the joules."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.integral import Integral
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]


def missing_in(signal: Signal, integral: Integral, begin: Ints, end: Ints) -> tuple[Values, Values]:
    """Seconds without readings in each interval, and the largest error that they can cause."""
    length = (end - begin).astype(np.float64) * 1e-9
    if len(signal) < 2:
        return length, np.full(len(length), np.nan)
    t, lost = signal.t_ns, signal.missing_ns()
    prefix = np.concatenate([[0.0], np.cumsum(lost)])
    i_b, share_b = locate(t, begin)
    i_e, share_e = locate(t, end)
    inside = (prefix[i_e] + share_e * lost[i_e] - prefix[i_b] - share_b * lost[i_b]) * 1e-9
    # What rounding leaves of a difference of sums is no time.
    inside = np.maximum(inside, 0.0)
    outside = length - integral.covered_s(begin, end)
    low, high = signal.shown_w()
    # Between readings the estimate stays in the observed range; outside them nothing was counted at all.
    off_by: Values = inside * (high - low) + outside * max(abs(high), abs(low))
    return inside + outside, off_by


def locate(t: Ints, at: Ints) -> tuple[Ints, Values]:
    at = np.clip(at, t[0], t[-1])
    i = np.clip(np.searchsorted(t, at, "right") - 1, 0, len(t) - 2)
    return i, (at - t[i]) / (t[i + 1] - t[i])
