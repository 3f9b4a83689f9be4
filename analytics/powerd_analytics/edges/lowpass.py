"""A low-pass of first order behind a reading's window: what it leaves of the power before an edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

MOST_LEFT = float(np.exp(-3))
"""Of what was before, in a clean reading: its weight, centred one time constant behind the newest that it has seen, is
taken as four long, so that the newest lies three behind the edge at least (`powerd_core.model.Accuracy.reach_ns`)."""


def filter_ns(signal: Signal) -> float:
    """Time constant behind a signal's readings, 0 for none."""
    return 0.0 if signal.is_counter else float(signal.line.accuracy.filter_ns)


def without_the_old(watts: Values, old_w: Values, after_ns: Ints, tau_ns: float) -> Values:
    """[n] power since an edge that clean readings show as ``watts``, ``after_ns`` behind it; before it was ``old_w``.

    Left of that is exp(-(after_ns + tau_ns) / tau_ns), 5 to 0 % of the step: little, but always to the same side, and
    a slope that is no slope of the power.
    """
    if tau_ns <= 0:
        return watts
    left = np.minimum(np.exp(-1 - np.maximum(after_ns, 0) / tau_ns), MOST_LEFT)
    return np.asarray((watts - left * old_w) / (1 - left))
