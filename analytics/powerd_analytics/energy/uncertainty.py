"""How sure an energy is, after the GUM: a statistical and a systematic part, kept apart and combined.

Statistical: what differs from one phase to the next and averages out. Systematic: gain and zero of the sensor, its
quantisation, what the edges leave open, the clocks, missing readings; it is shared by all phases of a kind, so that
repeating does not shrink it. `powerd_analytics.energy.budget` has the parts by name.

How far a 95 % interval reaches follows from the shapes of the parts. A limit (a data sheet's, a guaranteed clock bound)
is a rectangle, of which ± 1.645 u holds 95 %; noise is normal, and ± 1.960 u does. Of a sum of parts, the largest
rectangles decide: `one_rectangle` says which single one they amount to (the eighth-power norm of their standard
uncertainties, close to the largest unless several are equal), and `factor` is exact for that rectangle and a normal
remainder. Against the convolution (JCGM 101) of one to six rectangles with and without noise that is right to 1.3 % of
the width, and exact for a rectangle, for noise, and for both together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import erf, exp, pi, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]

CONFIDENCE = 0.95
NORMAL = 1.959964
"""Factor of a normal distribution."""
COVERAGE_FACTOR = 2.0
"""k of an expanded uncertainty whose parts are not known one by one: about 95 % if they are many (GUM 6.2)."""
MEAN_COLUMNS = ("energy_j", "u_random_j", "u_systematic_j", "rectangle_j")
"""Of `powerd_analytics.energy.devices.PhaseColumns`: what `average_of` and `sum_of` take, in their order."""
ROUNDING = 1e-12
"""Of a value: sums of doubles are no more exact than this, and no sensor or clock is as good by far."""
_GRID = 129


def one_rectangle(*u: ArrayLike) -> Values:
    """Standard uncertainty of the rectangle that independent ones with standard uncertainties ``u`` >= 0 amount to:
    (sum u^8)^(1/8).

    Any unit and equal shapes. Those that amount to something already are taken in like any other.
    """
    largest = np.full(np.broadcast_shapes(*(np.shape(x) for x in u)), 1e-300)
    for x in u:
        largest = np.maximum(largest, x)
    total = np.zeros_like(largest)
    for x in u:
        square = (np.asarray(x, np.float64) / largest) ** 2
        total += (square * square) ** 2
    return np.asarray(np.where(largest > 1e-300, largest * np.sqrt(np.sqrt(np.sqrt(total))), 0.0))


def factor(u: ArrayLike, rectangle: ArrayLike) -> Values:
    """k of the interval ± k u that holds 95 %, from 1.645 (a rectangle alone) to 1.960 (normal).

    ``u`` is the combined standard uncertainty, ``rectangle`` that of the one rectangle in it; same unit, equal shapes.
    """
    total = np.asarray(u, np.float64)
    share = (np.asarray(rectangle, np.float64) / np.where(total > 0, total, 1.0)) ** 2
    return np.asarray(np.interp(share, *_factors()))


@cache
def _factors() -> tuple[Values, Values]:
    """Shares of the variance that are a rectangle's [n], and their factors."""
    # The factor falls steeply only towards a bare rectangle: that end has most of the points.
    shares = 1 - (1 - np.linspace(0, 1, _GRID)) ** 3
    return shares, np.array([_exact_factor(float(s)) for s in shares])


def _exact_factor(share: float) -> float:
    """The factor of a rectangle of variance ``share`` and a normal part of the remaining one."""
    half, sigma = sqrt(3 * share), sqrt(max(1 - share, 0.0))
    if half < 1e-3:
        return NORMAL
    if sigma < 1e-6:
        return CONFIDENCE * half

    def area(z: float) -> float:
        """Integral of the normal distribution function up to ``z``."""
        return z * (1 + erf(z / sqrt(2))) / 2 + exp(-z * z / 2) / sqrt(2 * pi)

    low, high = 1.5, 2.1
    for _ in range(40):
        k = (low + high) / 2
        inside = sigma / half * (area((k + half) / sigma) - area((k - half) / sigma)) - 1
        low, high = (k, high) if inside < CONFIDENCE else (low, k)
    return (low + high) / 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """An energy with the two parts of its standard uncertainty, all in joules."""

    energy_j: float
    u_statistical_j: float
    u_systematic_j: float
    rectangle_j: float = 0.0
    """The one rectangle that the limits within ``u_systematic_j`` amount to; 0 when it is all normal."""

    @property
    def u_j(self) -> float:
        """Combined standard uncertainty."""
        return float(np.hypot(self.u_statistical_j, self.u_systematic_j))

    @property
    def u95_j(self) -> float:
        """Expanded uncertainty: the energy lies within ± this in 95 % of cases, by the shapes of the parts."""
        return float(factor(self.u_j, self.rectangle_j)) * self.u_j

    def scaled(self, by: float) -> Estimate:
        """The same with everything multiplied by a factor that is known exactly."""
        return Estimate(*(by * x for x in (self.energy_j, self.u_statistical_j, self.u_systematic_j, self.rectangle_j)))


def expanded_uncertainty(
    u_statistical: ArrayLike,
    u_systematic: ArrayLike,
    rectangle: ArrayLike = 0.0,
    degrees_of_freedom: ArrayLike = np.inf,
) -> Values:
    """Half of the 95 % interval of values with these standard uncertainties, any unit, equal shapes.

    ``rectangle`` is the one rectangle within ``u_systematic``. ``degrees_of_freedom`` are those of ``u_statistical``:
    few repeats make them small, and Student's factor then stands for the normal one. Where something systematic is
    added, the degrees of freedom grow by (u / u_statistical)^1.5. With the power of 4 (Welch and Satterthwaite) only
    86 % of the intervals hold the truth where two repeats meet a limit of a third of their uncertainty; with 1.5 it is
    92 to 97 % for 2 to 10 repeats (tests/analytics/test_repeats.py). It is never less than that of the statistical part
    alone.
    """
    us, uy, freedom = (np.asarray(x, np.float64) for x in (u_statistical, u_systematic, degrees_of_freedom))
    u = np.hypot(us, uy)
    k = factor(u, rectangle)
    is_few = np.isfinite(freedom) & (us > 0)
    if np.any(is_few):
        few = np.where(is_few, freedom, 1.0) * (u / np.where(us > 0, us, 1.0)) ** 1.5
        k = k * np.where(is_few, student(np.where(is_few, few, 1.0)), NORMAL) / NORMAL
        return np.maximum(k * u, np.where(is_few, student(np.where(is_few, freedom, 1.0)) * us, 0.0))
    return np.asarray(k * u)


def student(degrees_of_freedom: ArrayLike) -> Values:
    """Student's factor of a 95 % interval; any degrees of freedom above 0, whole or not."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(np.minimum(degrees_of_freedom, 1e9), 0.5 + CONFIDENCE / 2))


def beyond_rounding(u: float, value: float) -> float:
    """An uncertainty of a value, or a part of an uncertainty; 0 where it is less than the rounding of the value.

    One that is not known (NaN) stays so.
    """
    return 0.0 if u <= ROUNDING * abs(value) else u


def without_rounding(estimate: Estimate) -> Estimate:
    """The same, with parts of its uncertainty that are rounding as 0."""
    parts = {n: beyond_rounding(getattr(estimate, n), estimate.energy_j) for n in ("u_statistical_j", "u_systematic_j")}
    rectangle_j = estimate.rectangle_j if parts["u_systematic_j"] else 0.0
    return replace(estimate, **parts, rectangle_j=rectangle_j)


def average_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values) -> Estimate:
    """Mean energy of just these intervals [n >= 1]: how sure the measurement is, whatever they are spread."""
    n = len(energy_j)
    return sum_of(energy_j, u_random_j, u_systematic_j, rectangle_j).scaled(1 / n)


def sum_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values | None = None) -> Estimate:
    """Sum of energies: random parts in quadrature, shared ones one to one."""
    rectangle = float(np.sum(rectangle_j)) if rectangle_j is not None else 0.0
    return Estimate(
        float(np.sum(energy_j)), float(np.sqrt(np.sum(u_random_j**2))), float(np.sum(u_systematic_j)), rectangle
    )
