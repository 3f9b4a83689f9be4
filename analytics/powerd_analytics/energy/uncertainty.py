"""How sure an energy is, after the GUM: a statistical and a systematic part, kept apart and combined.

Statistical: what differs from one phase to the next and averages out. Systematic: gain and zero of the sensor, its
quantisation, what the edges leave open, the clocks, missing readings; it is shared by all phases of a kind, so that
repeating does not shrink it. `powerd_analytics.energy.budget` has the parts by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.coverage import factor, student
from powerd_analytics.energy.firstorder import first_order

COVERAGE_FACTOR = 2.0
"""k of an expanded uncertainty whose parts are not known one by one: about 95 % if they are many (GUM 6.2)."""

Values = NDArray[np.float64]

MEAN_COLUMNS = ("energy_j", "u_random_j", "u_systematic_j", "rectangle_j")
"""Of `powerd_analytics.energy.devices.PhaseColumns`: what `mean_of` and `sum_of` take, in their order."""
MOST_LAGS, NEED_REPEATS = 256, 16
"""Lags up to which repeats are compared with each other, and how many of them that takes."""
FEW = 30
"""Independent repeats that all are worth, below which what they have in common is badly known."""
STANDS_OUT = 1.645
"""Standard deviations of a correlation of independent repeats that 5 % of them exceed."""
ENOUGH = 5
"""Degrees of freedom from which on the sum of correlations knows its own size well enough to be asked beside the first
order: with fewer it makes the widest tenth of the intervals up to half again as wide, and none more hold."""
BY_CHANCE = 0.01
"""Of series of independent repeats that seem to have a period."""
SHARE_OF_LOW, MOST_LOW = 6, 16
"""The lowest frequencies are this part of the repeats, and at most so many."""
MOST_PERIODIC = 1 << 16
"""Repeats up to which a period is looked for: of more a mean is known well enough."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An energy with the two parts of its standard uncertainty, all in joules."""

    energy_j: float
    u_statistical_j: float
    u_systematic_j: float
    rectangle_j: float = 0.0
    """The one rectangle that the limits within ``u_systematic_j`` amount to; 0 when it is all normal."""
    degrees: float = float("inf")
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
        effective = self.degrees / share if share > 0 else float("inf")
        return float(factor(u, self.rectangle_j)) * student(effective) * u

    def scaled(self, factor: float) -> Estimate:
        """The same with everything multiplied by a factor that is known exactly."""
        return Estimate(
            self.energy_j * factor, self.u_statistical_j * factor, self.u_systematic_j * factor,
            self.rectangle_j * factor, self.degrees,
        )  # fmt: skip


def mean_of(
    energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values | None = None
) -> Estimate:
    """Mean energy of repeats [n >= 1] in the order of time.

    It stands for the energy that a phase of the kind takes: the spread of the repeats is their statistical
    uncertainty. Where it is smaller than what single phases are known to be unsure of (few repeats, or errors that
    repeat), that counts.
    """
    n = len(energy_j)
    of_singles = float(np.sqrt(np.sum(u_random_j**2)) / n)
    of_spread, degrees = _of_spread(energy_j)
    rectangle = float(np.mean(rectangle_j)) if rectangle_j is not None else 0.0
    return Estimate(
        float(np.mean(energy_j)),
        max(of_singles, of_spread),
        float(np.mean(u_systematic_j)),
        rectangle,
        degrees if of_spread > of_singles else float("inf"),
    )


def _of_spread(energy_j: Values) -> tuple[float, float]:
    """Standard uncertainty of the mean of repeats from how they differ, and its degrees of freedom.

    Repeats that go up and down together count for fewer, by their integrated autocorrelation time: as a sum of
    correlations, which is right for many repeats, and where they are worth few as those of a first-order process
    (`powerd_analytics.energy.firstorder`), which loses less of it. The one that gives the wider interval counts.
    Repeats that come and go with a period count for more, as ups and downs cancel.
    """
    n = len(energy_j)
    if n < 2:
        return 0.0, float("inf")
    away = energy_j - np.mean(energy_j)
    square = float(np.dot(away, away))
    rho = float(np.dot(away[1:], away[:-1])) / square if square > 0 else 0.0
    if NEED_REPEATS <= n <= MOST_PERIODIC and square > 0 and (periodic := _periodic(away, rho)) is not None:
        return periodic
    summed = _windowed(away, square)
    if n < NEED_REPEATS or not square > 0 or summed[1] >= FEW:
        return summed
    if _put_back(rho, n) <= STANDS_OUT / np.sqrt(n):
        independent = float(np.sqrt(square / (n - 1) / n)), float(n - 1)
        return max(summed, independent, key=_half_width)
    found = first_order(away)
    return max(summed, found, key=_half_width) if summed[1] >= ENOUGH else found


def _half_width(of_mean: tuple[float, float]) -> float:
    """Of the 95 % interval, over that of a normal distribution: of a standard uncertainty and its degrees."""
    return of_mean[0] * student(of_mean[1])


def _periodic(away: Values, rho: float) -> tuple[float, float] | None:
    """Where deviations ``away`` from their mean have a period, from their lowest frequencies; else None.

    The variance of a mean is the spectrum at frequency 0 over n, and that is taken as the mean of the lowest ordinates
    of the periodogram, two degrees of freedom each (Heidelberger and Welch, 1981), up to half the frequency of the
    period: what a period that fits in no whole number of times leaves in the mean, it leaves in them too. A period is
    an ordinate that stands out from all together (Fisher, 1929) and, as repeats that hang together have more of low
    frequencies, from those of a first-order process with the first correlation ``rho``. That of independent repeats
    says nothing of the lowest ones, so that taking a chance for a period costs width and no coverage.
    """
    n = len(away)
    power = np.abs(np.fft.rfft(away)[1:]) ** 2 / n
    if not np.sum(power) > np.finfo(float).tiny:
        return None  # equal repeats, all as far from their mean as it is rounded
    if n % 2 == 0:
        power[-1] /= 2  # one degree of freedom: its tail is within that of the others so
    rho = max(_put_back(rho, n), 0.0)
    white = power * (1 + rho**2 - 2 * rho * np.cos(2 * np.pi * np.arange(1, len(power) + 1) / n))
    m, at = len(power), int(np.argmax(power))
    share = float(min(power[at] / np.sum(power), white[at] / np.sum(white)))
    low = min(n // SHARE_OF_LOW, MOST_LOW, (at + 1) // 2)
    if low < 2 or m * (1 - share) ** (m - 1) > BY_CHANCE:
        return None
    return float(np.sqrt(np.mean(power[:low]) / n)), 2.0 * low


def _put_back(rho: float, n: int) -> float:
    """A first correlation of n repeats with what their own mean has taken out of it (Kendall, 1954)."""
    return min((n * rho + 1) / (n - 3), 1 - 1 / n)


def _windowed(away: Values, square: float) -> tuple[float, float]:
    """With 1 + 2 sum rho_k over the lags k up to the first whose correlation does not stand out (Sokal's integrated
    autocorrelation time). Their own mean has taken a part of what they have in common out of the deviations ``away``,
    whose squares are ``square`` together: of that time over n, put back to first order (Wolff, 2004, equation 49)."""
    n, together, window = len(away), 1.0, 0
    if n >= NEED_REPEATS and square > 0:
        for lag in range(1, min(n // 2, MOST_LAGS)):
            rho = float(np.dot(away[lag:], away[:-lag])) / square
            if rho < 1 / np.sqrt(n):
                break
            together, window = together + 2 * rho, lag
        together *= 1 + (2 * window + 1) / n
    return float(np.sqrt(square / (n - 1) / n * together)), max(n / together - 1, 1.0)


def sum_of(energy_j: Values, u_random_j: Values, u_systematic_j: Values, rectangle_j: Values | None = None) -> Estimate:
    """Sum of energies: random parts in quadrature, shared ones one to one."""
    rectangle = float(np.sum(rectangle_j)) if rectangle_j is not None else 0.0
    return Estimate(
        float(np.sum(energy_j)), float(np.sqrt(np.sum(u_random_j**2))), float(np.sum(u_systematic_j)), rectangle
    )
