"""Whether two means differ by more than chance: Welch's t, repeats that are not independent, many tests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, inf, lgamma, log, sqrt

import numpy as np
from numpy.typing import NDArray

LEAST_BLOCKS = 8
"""Fewer block means say too little of their own spread."""
LEVEL = 0.05
"""Of the family of all rows of a comparison, after Holm's correction."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with the standard uncertainty of chance and the degrees of freedom behind it."""

    value: float
    u: float
    dof: float


def mean_of_repeats(values: Values) -> Mean:
    """Of independent repeats [n >= 2]."""
    n = len(values)
    return Mean(float(values.mean()), float(np.std(values, ddof=1) / sqrt(n)), n - 1)


def block_means(values: Values) -> Values:
    """Means of as short blocks of consecutive values as have no positive correlation from one to the next.

    Iterations that follow each other share what drifts (temperature, clocks), so their spread is too small a measure
    of the mean's (Flyvbjerg and Petersen, J. Chem. Phys. 91, 461, 1989). A length is good when neither it nor twice
    and four times of it show correlation between neighbours. At least `LEAST_BLOCKS` are left where there are as many.
    """
    if len(values) < 2:
        return values
    lengths = [1]
    while len(values) // (2 * lengths[-1]) >= LEAST_BLOCKS:
        lengths.append(2 * lengths[-1])
    correlated = [_neighbours_correlate(_blocks(values, length)) for length in lengths]
    for i, length in enumerate(lengths):
        if not any(correlated[i : i + 3]):
            return _blocks(values, length)
    return _blocks(values, lengths[-1])


def mean_of_series(values: Values) -> Mean:
    """Of values [n >= 2] in the order of time, which may be correlated.

    The larger of two uncertainties: that of the block means, and that of as many independent values as a series with
    the same correlation of neighbours is worth, n (1 - r) / (1 + r) (Bayley and Hammersley, 1946, for a first-order
    process; r corrected for its bias of (1 + 3 r) / n). Blocks see what is slow, the second what few
    blocks cannot show.
    """
    blocks, n = mean_of_repeats(block_means(values)), len(values)
    d = values - values.mean()
    square = float(np.sum(d**2))
    if n < 4 or square == 0:
        return blocks
    r = float(np.sum(d[:-1] * d[1:])) / square
    r = min(max(r + (1 + 3 * r) / n, 0.0), 1 - 2 / n)
    worth = max(n * (1 - r) / (1 + r), 2.0)
    # Values that go along with each other scatter less about their own mean than about the true one.
    unseen = max(1 - (1 / worth - 1 / n), 0.3)
    u = sqrt(square / (n - 1) / unseen / worth)
    return Mean(blocks.value, max(blocks.u, u), min(blocks.dof, max(worth - 1, 1.0)))


def _blocks(values: Values, length: int) -> Values:
    n = len(values) // length
    made: Values = values[len(values) - n * length :].reshape(n, length).mean(axis=1)
    return made


def _neighbours_correlate(values: Values) -> bool:
    d = values - values.mean()
    square = float(np.sum(d**2))
    return len(values) > 2 and square > 0 and float(np.sum(d[:-1] * d[1:])) / square > 1.645 / sqrt(len(values))


def difference_p(a: Mean, b: Mean, u_systematic: float = 0.0) -> float | None:
    """Two-sided p of ``b - a`` being 0: Welch's t with a further uncertainty of the difference that no repeat shows.

    The degrees of freedom are Welch and Satterthwaite's; those of the systematic part are infinite (GUM G.4). None
    where there is no uncertainty at all to compare with.
    """
    u, dof = _combined(a, b, u_systematic)
    return student_p(abs(b.value - a.value) / u, dof) if u > 0 else None


def difference_u95(a: Mean, b: Mean, u_systematic: float = 0.0) -> float:
    """Half-width of the 95 % interval of ``b - a``: Student's factor for the same degrees of freedom (GUM G.6.4)."""
    u, dof = _combined(a, b, u_systematic)
    return student_factor(dof) * u


def _combined(a: Mean, b: Mean, u_systematic: float) -> tuple[float, float]:
    variance = a.u**2 + b.u**2 + u_systematic**2
    spread = sum(m.u**4 / m.dof for m in (a, b) if m.u > 0)
    return sqrt(variance), variance**2 / spread if spread > 0 else inf


def student_factor(dof: float) -> float:
    """The t that Student's t with so many degrees of freedom exceeds, to either side, with probability 0.05."""
    low, high = 1.9, 1.97
    while student_p(high, dof) > 0.05:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, dof) > 0.05 else (low, middle)
    return high


def student_p(t: float, dof: float) -> float:
    """Probability that Student's t with ``dof`` degrees of freedom lies farther from 0 than ``t``."""
    if dof > 1e6:
        # Normal within 1e-6 there.
        return erfc(abs(t) / sqrt(2))
    return incomplete_beta(dof / 2, 0.5, dof / (dof + t * t))


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22), Lentz's method."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    tiny = 1e-300
    c, d, fraction = 1.0, 0.0, 1.0
    for i in range(100_000):
        m = i // 2
        if i == 0:
            numerator = 1.0
        elif i % 2 == 0:
            numerator = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            numerator = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / ((1 + numerator * d) or tiny)
        c = (1 + numerator / c) or tiny
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * (fraction - 1)


def holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (1979): each p for the family of all; None stays None and counts for nothing."""
    known = sorted((value, i) for i, value in enumerate(p) if value is not None)
    found: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        found[i] = highest
    return found
