"""How far an interval must reach beyond a limit, so that it holds wherever within the limit the truth lies."""

from __future__ import annotations

from math import erf, sqrt

from powerd_analytics.energy.coverage import CONFIDENCE, NORMAL

_STEPS = 50
_NEXT_TO_NOTHING = 1e-6


def as_normal(limit: float, u: float) -> float:
    """What to add to ``u`` in squares for an error that lies anywhere within ± ``limit`` >= 0. Same unit.

    The truth of a run lies at one place within a limit, at its end for instance, and repeating does not move it.
    The standard deviation of a rectangle is right on the average of places only: with an error at the end and noise
    beside it, an interval made from both holds in 82 % (u = 0.3 limit). Here its half-width x is the one that holds
    95 % for an error at the end, P(-x <= limit + u z <= x) = 0.95, and so at least that everywhere within.
    """
    if not limit > 0:
        return 0.0
    if u <= _NEXT_TO_NOTHING * limit:
        return limit / NORMAL
    low, high = limit, limit + NORMAL * u
    for _ in range(_STEPS):
        x = (low + high) / 2
        inside = (erf((x - limit) / (u * sqrt(2))) + erf((x + limit) / (u * sqrt(2)))) / 2
        low, high = (x, high) if inside < CONFIDENCE else (low, x)
    return sqrt(max((high / NORMAL) ** 2 - u**2, 0.0))
