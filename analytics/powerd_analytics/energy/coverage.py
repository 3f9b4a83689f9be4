"""How far 95 % intervals reach: from the shapes of the parts of an uncertainty, not from 2 u whatever they are.

A limit (a data sheet's, a guaranteed clock bound) is a rectangle, of which ± 1.645 u holds 95 %; noise is normal, and
± 1.960 u does. Of a sum of parts, the largest rectangles decide: `one_rectangle` says which single one they amount to
(the eighth-power norm of their standard uncertainties, close to the largest unless several are equal), and `factor` is
exact for that rectangle and a normal remainder. Against the convolution (JCGM 101) of one to six rectangles with and
without noise that is right to 1.3 % of the width, and exact for a rectangle, for noise, and for both together.
"""

from __future__ import annotations

from functools import cache
from math import erf, exp, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.95
NORMAL = 1.959964
"""Factor of a normal distribution."""
_GRID = 129
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Two-sided 95 % factors of Student's distribution with 1 to 20 degrees of freedom (GUM table G.2)."""


def one_rectangle(*u: ArrayLike) -> Values:
    """Standard uncertainty of the rectangle that independent ones with standard uncertainties ``u`` >= 0 amount to.

    Any unit and equal shapes. Those that amount to something already are taken in like any other.
    """
    largest = np.full(np.broadcast_shapes(*(np.shape(x) for x in u)), 1e-300)
    for x in u:
        largest = np.maximum(largest, x)
    total = np.zeros_like(largest)
    for x in u:
        square = (np.asarray(x, np.float64) / largest) ** 2
        total += (square * square) ** 2
    found: Values = np.where(largest > 1e-300, largest * np.sqrt(np.sqrt(np.sqrt(total))), 0.0)
    return found


def factor(u: ArrayLike, rectangle: ArrayLike) -> Values:
    """k of the interval ± k u that holds 95 %, from 1.645 (a rectangle alone) to 1.960 (normal).

    ``u`` is the combined standard uncertainty, ``rectangle`` that of the one rectangle in it; same unit, equal shapes.
    """
    total = np.asarray(u, np.float64)
    share = (np.asarray(rectangle, np.float64) / np.where(total > 0, total, 1.0)) ** 2
    shares, factors = _table()
    found: Values = np.interp(share, shares, factors)
    return found


def student(degrees: float) -> float:
    """How much wider than normal an interval is whose u was estimated with so many degrees of freedom (GUM G.3)."""
    if not degrees < float("inf"):
        return 1.0
    if degrees <= len(_STUDENT):
        return float(np.interp(degrees, np.arange(1, len(_STUDENT) + 1), _STUDENT)) / NORMAL
    # Cornish-Fisher about the normal quantile; right to 1e-4 from 20 degrees on.
    z = NORMAL
    return 1 + (z**2 + 1) / (4 * degrees) + (5 * z**4 + 16 * z**2 + 3) / (96 * degrees**2)


@cache
def _table() -> tuple[Values, Values]:
    """Shares of the variance that are a rectangle's [n], and their factors."""
    # The factor falls steeply only towards a bare rectangle: that end has most of the points.
    shares = 1 - (1 - np.linspace(0, 1, _GRID)) ** 3
    return shares, np.array([_exact(float(s)) for s in shares])


def _exact(share: float) -> float:
    """The factor of a rectangle of variance ``share`` and a normal part of the remaining one."""
    half, sigma = sqrt(3 * share), sqrt(max(1 - share, 0.0))
    if half < 1e-3:
        return NORMAL
    if sigma < 1e-6:
        return CONFIDENCE * half

    def area(z: float) -> float:
        """Integral of the normal distribution function up to ``z``."""
        return z * (1 + erf(z / sqrt(2))) / 2 + exp(-z * z / 2) / sqrt(2 * pi)

    def inside(x: float) -> float:
        return sigma / half * (area((x + half) / sigma) - area((x - half) / sigma)) - 1

    low, high = 1.5, 2.1
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < CONFIDENCE else (low, middle)
    return (low + high) / 2
