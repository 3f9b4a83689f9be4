"""How far a mean is believed that chance, or a limit of what is known, can have made."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

_NARROW = 1e-3
"""Half-widths of less than this many standard deviations are none."""
_LOST = 1e-9
"""Differences of error functions below this are mostly rounding."""


def believed(mean: Values, variance: Values, half: Values, size2: Values, is_there: Mask) -> tuple[Values, Values]:
    """The share (0 to 1) of a ``mean`` that is believed, and the variance of what there is in truth about that share.

    The mean is off by chance, normal with the ``variance``, and by anything within ± ``half``, evenly. Either power
    steps at the edge and nothing is left over, or something is: normal, with the variance ``size2``. Both are as likely
    beforehand, but where ``is_there`` says that something is. These are the mean and the variance of what is then
    known; where something is left over all errors count as normal.
    """
    v = np.maximum(variance + half**2 / 3, 1e-300)
    n = np.maximum(size2, 0) / v
    of_something = n / (n + 1)
    # In units in which the mean's errors have the variance 1.
    x, wide = mean / np.sqrt(v), np.sqrt(np.minimum(half**2 / v, 3.0))
    chance2 = np.maximum(1 - wide**2 / 3, 1e-6)
    log_odds = _log_density(x, wide, chance2 + n) - _log_density(x, wide, chance2)
    p = np.where(is_there, 1.0, 1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))
    return p * of_something, p * of_something * v + p * (1 - p) * (of_something * mean) ** 2


def _log_density(x: Values, half: Values, variance: Values) -> Values:
    """Logarithm of the density of ``x``, the sum of something even within ± ``half`` and something normal."""
    sigma = np.sqrt(variance)
    is_wide = half > _NARROW * sigma
    wide = np.where(is_wide, half, 1.0)
    area = _erf((x + wide) / (sigma * np.sqrt(2))) - _erf((x - wide) / (sigma * np.sqrt(2)))
    even = np.log(np.maximum(area / (4 * wide), 1e-300))
    normal = -(x**2) / (2 * variance) - np.log(2 * np.pi * variance) / 2
    # Far out, where the difference of both is lost, what lies nearest to ``x`` counts alone.
    far = -(np.maximum(np.abs(x) - wide, 0) ** 2) / (2 * variance) - np.log(2 * wide)
    found: Values = np.where(is_wide, np.where(area > _LOST, even, far), normal)
    return found


_erf = np.vectorize(math.erf, otypes=[np.float64])
