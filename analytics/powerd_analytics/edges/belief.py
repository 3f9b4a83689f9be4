"""How far a mean that chance can have made is believed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def believed(mean: Values, variance: Values, count: Values) -> tuple[Values, Values]:
    """The share (0 to 1) of a ``mean`` over ``count`` edges that is believed, and the variance of what there is in
    truth about that share of it.

    Either power steps at the edge and nothing is left over, or something is, of a size that one edge shows by chance:
    normal, with ``count`` times the ``variance`` of the mean (unit information: Kass and Wasserman, 1995). Both are as
    likely beforehand. These are the mean and the variance of what is then known.
    """
    v, n = np.maximum(variance, 1e-300), np.maximum(count, 1)
    of_something = n / (n + 1)
    log_odds = mean**2 / (2 * v) * of_something - np.log1p(n) / 2
    p = 1 / (1 + np.exp(-np.clip(log_odds, -700, 700)))
    return p * of_something, p * of_something * v + p * (1 - p) * (of_something * mean) ** 2
