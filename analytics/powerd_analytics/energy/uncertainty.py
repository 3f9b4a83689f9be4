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

The mean of repeats is as sure as `standard_error` says. Repeats that go up and down together count for fewer, by their
integrated autocorrelation time: as a sum of correlations, which is right for many repeats, and where they are worth few
as those of a first-order process, of which each repeat is a share of the last and something new. The likeliest share
alone would do for many repeats. Of few, shares close to 1 stay possible, with which the mean of the process may lie far
from that of the repeats, and shares close to 0, with which it cannot: each counts for what the repeats say of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import erf, exp, inf, log, pi, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Values = NDArray[np.float64]

CONFIDENCE = 0.95
NORMAL = 1.959964
"""Factor of a normal distribution."""
COVERAGE_FACTOR = 2.0
"""k of an expanded uncertainty whose parts are not known one by one: about 95 % if they are many (GUM 6.2)."""
MEAN_COLUMNS = ("energy_j", "u_random_j", "u_systematic_j", "rectangle_j")
"""Of `powerd_analytics.energy.devices.PhaseColumns`: what `mean_of` and `sum_of` take, in their order."""
ROUNDING = 1e-12
"""Of a value: sums of doubles are no more exact than this, and no sensor or clock is as good by far."""
_GRID = 129
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Two-sided 95 % factors of Student's distribution with 1 to 20 degrees of freedom (GUM table G.2)."""

MOST_LAGS, NEED_REPEATS = 256, 16
"""Lags up to which repeats are compared with each other, and how many of them that takes."""
FEW = 30
"""Independent repeats that all are worth, below which what they have in common is badly known."""
STANDS_OUT = 1.645
"""Standard deviations of a correlation of independent repeats that 5 % of them exceed."""
ENOUGH = 5
"""Degrees of freedom from which on the sum of correlations knows its own size well enough to be asked beside the first
order: with fewer it makes the widest tenth of the intervals up to half again as wide, and none more hold."""
SHARES = 96
CLOSEST = 5e-4
"""To 1 of all shares: a process of 2000 repeats, many times those that are so correlated that this is asked."""
LEAST_DEGREES = 2.0
"""Of freedom: near a share of 1 the mean is known to 1 / sqrt(1 - share), so that what lies farther off than h falls as
1 / h^2, as it does in Student's distribution with two."""


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


def student(degrees: float) -> float:
    """How much wider than normal an interval is whose u was estimated with so many degrees of freedom (GUM G.3)."""
    if not degrees < inf:
        return 1.0
    if degrees <= len(_STUDENT):
        return float(np.interp(degrees, np.arange(1, len(_STUDENT) + 1), _STUDENT)) / NORMAL
    # Cornish-Fisher about the normal quantile; right to 1e-4 from 20 degrees on.
    z = NORMAL
    return 1 + (z**2 + 1) / (4 * degrees) + (5 * z**4 + 16 * z**2 + 3) / (96 * degrees**2)


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
    degrees: float = inf
    """Degrees of freedom of ``u_statistical_j``."""

    @property
    def u_j(self) -> float:
        """Combined standard uncertainty."""
        return float(np.hypot(self.u_statistical_j, self.u_systematic_j))

    @property
    def u95_j(self) -> float:
        """Expanded uncertainty: the energy lies within ± this in 95 % of cases.

        From the shapes of the parts, and with Student's factor for the effective degrees of freedom (GUM G.4).
        """
        u = self.u_j
        if not u > 0:
            return u
        share = (self.u_statistical_j / u) ** 4
        effective = self.degrees / share if share > 0 else inf
        return float(factor(u, self.rectangle_j)) * student(effective) * u

    def scaled(self, by: float) -> Estimate:
        """The same with everything multiplied by a factor that is known exactly."""
        u_statistical_j, u_systematic_j = self.u_statistical_j * by, self.u_systematic_j * by
        return Estimate(self.energy_j * by, u_statistical_j, u_systematic_j, self.rectangle_j * by, self.degrees)


def known(u: float, value: float) -> float:
    """An uncertainty of a value, or a part of an uncertainty; 0 where it is less than the rounding of the value.

    One that is not known (NaN) stays so.
    """
    return 0.0 if u <= ROUNDING * abs(value) else u


def without_rounding(estimate: Estimate) -> Estimate:
    """The same, with parts of its uncertainty that are rounding as 0."""
    parts = {n: known(getattr(estimate, n), estimate.energy_j) for n in ("u_statistical_j", "u_systematic_j")}
    rectangle_j = estimate.rectangle_j if parts["u_systematic_j"] else 0.0
    return replace(estimate, **parts, rectangle_j=rectangle_j)


def average_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values) -> Estimate:
    """Mean energy of just these intervals [n >= 1]: how sure the measurement is, whatever they are spread."""
    n = len(energy_j)
    return sum_of(energy_j, u_random_j, u_systematic_j, rectangle_j).scaled(1 / n)


def mean_of(
    energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values | None = None
) -> Estimate:
    """Mean energy of repeats [n >= 1] in the order of time.

    It stands for the energy that a phase of the kind takes: the spread of the repeats is their statistical
    uncertainty. Where it is smaller than what single phases are known to be unsure of (few repeats, or errors that
    repeat), that counts.
    """
    of_singles = float(np.sqrt(np.sum(u_random_j**2)) / len(energy_j))
    of_spread = standard_error(energy_j)
    return Estimate(
        float(np.mean(energy_j)),
        max(of_singles, of_spread.u),
        float(np.mean(u_systematic_j)),
        float(np.mean(rectangle_j)) if rectangle_j is not None else 0.0,
        of_spread.degrees if of_spread.u > of_singles else inf,
    )


def sum_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values | None = None) -> Estimate:
    """Sum of energies: random parts in quadrature, shared ones one to one."""
    rectangle = float(np.sum(rectangle_j)) if rectangle_j is not None else 0.0
    return Estimate(
        float(np.sum(energy_j)), float(np.sqrt(np.sum(u_random_j**2))), float(np.sum(u_systematic_j)), rectangle
    )


class StandardError(NamedTuple):
    """Standard uncertainty of a mean, in the unit of its values, and the degrees of freedom behind it."""

    u: float
    degrees: float

    @property
    def half_width(self) -> float:
        """Of the 95 % interval, over that of a normal distribution."""
        return self.u * student(self.degrees)


def standard_error(series: Values) -> StandardError:
    """How sure the mean of values [n], in the order of time, is by how they differ. They may be correlated.

    A single value, and values that are all equal, are taken as exact.
    """
    n = len(series)
    if n < 2:
        return StandardError(0.0, inf)
    away = series - np.mean(series)
    square = float(np.dot(away, away))
    rho = float(np.dot(away[1:], away[:-1])) / square if square > 0 else 0.0
    summed = _windowed(away, square)
    if n < NEED_REPEATS or not square > 0 or summed.degrees >= FEW:
        return summed
    if _put_back(rho, n) <= STANDS_OUT / np.sqrt(n):
        other = StandardError(float(np.sqrt(square / (n - 1) / n)), float(n - 1))
    else:
        other = first_order(away)
        if summed.degrees < ENOUGH:
            return other
    return max(summed, other, key=lambda error: error.half_width)


def _put_back(rho: float, n: int) -> float:
    """A first correlation of n repeats with what their own mean has taken out of it (Kendall, 1954)."""
    return min((n * rho + 1) / (n - 3), 1 - 1 / n)


def _windowed(away: Values, square: float) -> StandardError:
    """With 1 + 2 sum rho_k over the lags k up to the first whose correlation does not stand out (Sokal's integrated
    autocorrelation time). Their own mean has taken a part of what they have in common out of the deviations ``away``,
    whose squares are ``square`` together: of that time over n, put back to first order (Wolff, 2004, equation 49)."""
    n, time, window = len(away), 1.0, 0
    if n >= NEED_REPEATS and square > 0:
        for lag in range(1, min(n // 2, MOST_LAGS)):
            rho = float(np.dot(away[lag:], away[:-lag])) / square
            if rho < 1 / np.sqrt(n):
                break
            time, window = time + 2 * rho, lag
        time *= 1 + (2 * window + 1) / n
    return StandardError(float(np.sqrt(square / (n - 1) / n * time)), max(n / time - 1, 1.0))


def first_order(away: Values) -> StandardError:
    """Of n >= 3 repeats of a first-order process; both figures together give the 95 % interval.

    ``away`` [n], any unit: the repeats in the order of time, less their mean, not all equal. The process is taken as
    normal and as having begun long before, so that the likelihood is exact, not conditional on the first repeat (Box,
    Jenkins and Reinsel, "Time Series Analysis", section A7.4); nothing is assumed of its mean and its scale, and every
    share rho from 0 to 1 is as likely before. For each rho, with A = (1 - rho) (n - (n - 2) rho), the mean lies as
    Student's distribution with n - 1 degrees of freedom and s^2 = R / ((n - 1) A) says, R the least sum of squares,
    and rho counts for sqrt((1 - rho^2) / A) R^(-(n - 1) / 2).
    """
    n = len(away)
    scale = float(np.sqrt(np.dot(away, away) / n))
    z = away / scale
    first, last, square, next_to = float(z[0]), float(z[-1]), float(n), float(np.dot(z[1:], z[:-1]))
    rho, weight = _shares()
    # The exponent of the likelihood is a parabola in the mean: curvature, vertex, and what is left there.
    A = (1 - rho) * (n - (n - 2) * rho)
    slope = (1 - rho**2) * first - (1 - rho) * (first - rho * last)
    centre = slope / A
    R = square - 2 * rho * next_to + rho**2 * (square - first**2 - last**2) - slope * centre
    R = np.maximum(R, 1e-12 * n)  # repeats on a straight line leave nothing
    log_share = 0.5 * np.log((1 - rho**2) / A) - 0.5 * (n - 1) * np.log(R)
    share = weight * np.exp(log_share - np.max(log_share))
    share /= np.sum(share)
    half = _mixture_half_width(share, centre, np.sqrt(R / ((n - 1) * A)) * student(n - 1))
    # As if it were worth so many independent ones: their scatter is as unsure as the share is.
    middle = float(rho[np.searchsorted(np.cumsum(share), 0.5)])
    degrees = max(n * (1 - middle) / (1 + middle) - 1, LEAST_DEGREES)
    return StandardError(scale * half / (NORMAL * student(degrees)), degrees)


@cache
def _shares() -> tuple[Values, Values]:
    """Shares of the last repeat [n], the closer to 1 the denser, and the range that each stands for."""
    away = np.exp(np.linspace(0.0, log(CLOSEST), SHARES))
    return 1 - away, away


def _mixture_half_width(share: Values, centre: Values, u: Values) -> float:
    """Half the interval about 0 that holds 95 % of a mixture of normal distributions."""
    z, inside = _normal_areas()
    low, high = 0.0, float(np.max(np.abs(centre) + 8 * u))
    while high - low > 1e-4 * high:
        h = 0.5 * (low + high)
        held = np.interp((h + centre) / u, z, inside) + np.interp((h - centre) / u, z, inside)
        low, high = (h, high) if 0.5 * float(np.dot(share, held)) < CONFIDENCE else (low, h)
    return high


@cache
def _normal_areas() -> tuple[Values, Values]:
    """Numbers of standard deviations, and twice the area of the normal distribution from 0 to them, odd."""
    z = np.linspace(-8, 8, 4097)
    return z, np.asarray(special.erf(z / sqrt(2)))
