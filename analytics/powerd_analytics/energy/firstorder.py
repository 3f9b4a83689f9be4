"""How sure the mean of repeats is of which each is a share of the last and something new, when the share is not known.

One share, the likeliest, would do for many repeats. Of few, shares close to 1 stay possible, with which the mean of the
process may lie far from that of the repeats, and shares close to 0, with which it cannot: each counts for what the
repeats say of it. The process is taken as normal and as having begun long before, so that the likelihood is exact, not
conditional on the first repeat (Box, Jenkins and Reinsel, "Time Series Analysis", section A7.4); nothing is assumed of
its mean and its scale, and every share from 0 to 1 is as likely before.
"""

from __future__ import annotations

from functools import cache
from math import erf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.coverage import CONFIDENCE, NORMAL, student

Values = NDArray[np.float64]

SHARES = 96
CLOSEST = 5e-4
"""To 1 of all shares: a process of 2000 repeats, many times those that are so correlated that this is asked."""
LEAST_DEGREES = 2.0
"""Of freedom: near a share of 1 the mean is known to 1 / sqrt(1 - share), so that what lies farther off than h falls as
1 / h^2, as it does in Student's distribution with two."""


def first_order(away: Values) -> tuple[float, float]:
    """Standard uncertainty of the mean of n >= 3 repeats and its degrees of freedom, which give the 95 % interval.

    ``away`` [n], any unit: the repeats in the order of time, less their mean, not all equal.
    """
    n = len(away)
    scale = float(np.sqrt(np.dot(away, away) / n))
    z = away / scale
    first, last, square, next_to = float(z[0]), float(z[-1]), float(n), float(np.dot(z[1:], z[:-1]))
    rho, weight = _shares()
    # The exponent of the likelihood is a parabola in the mean: curvature, vertex, and what is left there.
    curvature = (1 - rho) * (n - (n - 2) * rho)
    slope = (1 - rho**2) * first - (1 - rho) * (first - rho * last)
    centre = slope / curvature
    left = square - 2 * rho * next_to + rho**2 * (square - first**2 - last**2) - slope * centre
    left = np.maximum(left, 1e-12 * n)  # repeats on a straight line leave nothing
    log_share = 0.5 * np.log((1 - rho**2) / curvature) - 0.5 * (n - 1) * np.log(left)
    share = weight * np.exp(log_share - np.max(log_share))
    share /= np.sum(share)
    u = np.sqrt(left / ((n - 1) * curvature))
    half = _half_width(share, centre, u * student(n - 1))
    # As if it were worth so many independent ones: their scatter is as unsure as the share is.
    middle = float(rho[np.searchsorted(np.cumsum(share), 0.5)])
    degrees = max(n * (1 - middle) / (1 + middle) - 1, LEAST_DEGREES)
    return scale * half / (NORMAL * student(degrees)), degrees


@cache
def _shares() -> tuple[Values, Values]:
    """Shares of the last repeat [n], the closer to 1 the denser, and the range that each stands for."""
    away = np.exp(np.linspace(0.0, log(CLOSEST), SHARES))
    return 1 - away, away


def _half_width(share: Values, centre: Values, u: Values) -> float:
    """Half the interval about 0 that holds 95 % of a mixture of normal distributions."""
    at, inside = _normal()
    low, high = 0.0, float(np.max(np.abs(centre) + 8 * u))
    while high - low > 1e-4 * high:
        h = 0.5 * (low + high)
        held = np.interp((h + centre) / u, at, inside) + np.interp((h - centre) / u, at, inside)
        low, high = (h, high) if 0.5 * float(np.dot(share, held)) < CONFIDENCE else (low, h)
    return high


@cache
def _normal() -> tuple[Values, Values]:
    """Numbers of standard deviations, and twice the area of the normal distribution from 0 to them, odd."""
    at = np.linspace(-8, 8, 4097)
    return at, np.array([erf(x / sqrt(2)) for x in at])
