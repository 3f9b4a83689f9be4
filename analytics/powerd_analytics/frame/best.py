"""The best of several settings, and those that are as good: by means, by pairs of runs, or by a fitted curve.

Minima are flat: the least of a few values is often the one with the luckiest noise. So a best row comes with the rows
that cannot be told from it, each with by how much it may be worse. A row that cannot be told from the best and of which
too little is known to be near it is not as good: it is `Best.open`.

All values are logarithms of what is to be lowest, but for those of `best_of_means`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_analytics.energy.uncertainty import student
from powerd_core.errors import AnalysisError

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

TIE = 0.001
"""Of ln M: a row that may be as little worse as this cannot be told from the best."""
NEAR = 0.02
"""Of ln M: a row is as good only where it is surely no worse than this."""
NEAR_UNSEEN = 0.01
"""The same of a row that was not measured."""
EQUAL = 1e-9
"""Of ln M: rounding. Above the cap that binds, all caps are one."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best row, by its number, and those that are as good."""

    row: int
    as_good: tuple[int, ...]
    """The best among them."""
    within: tuple[float, ...]
    """Of each of these by how much it may be worse than the best, at most (95 %), as a share of the best's value."""
    how: Literal["means", "pairs", "curve"]
    open: tuple[int, ...] = ()
    """Rows that cannot be told from the best, and may be worse by more than `NEAR`."""

    @property
    def worst(self) -> float:
        """By how much the worst of those as good may be worse."""
        return max(self.within)


def lowest(values: Values) -> int:
    """Index of the least value; of equal ones the first."""
    return int(np.argmax(values <= values.min() + EQUAL))


def best_of_means(values: ArrayLike, u95: ArrayLike) -> Best:
    """By values [n] that are to be lowest, and their expanded uncertainties, which are off independently of each other.

    What they share, such as the gain of one sensor, is to be left out of ``u95``: it cancels in a difference. All rows
    that cannot be told from the least are as good: nothing else is known of them. Raises `AnalysisError` for NaN,
    infinities and arrays of other lengths.
    """
    x, u = np.asarray(values, np.float64), np.asarray(u95, np.float64)
    if x.ndim != 1 or x.shape != u.shape or not len(x) or not (np.isfinite(x) & np.isfinite(u)).all():
        raise AnalysisError("the best of values: needs at least one, all of them finite, and a U95 of each")
    row = int(np.argmin(x))
    off, half = x - x[row], np.hypot(u, u[row])
    alike = np.flatnonzero(off <= half)
    scale = abs(x[row]) or 1.0
    with np.errstate(over="ignore"):
        within = [0.0 if i == row else float((off[i] + half[i]) / scale) for i in alike]
    return Best(row, tuple(alike.tolist()), tuple(within), "means")


def best_of_pairs(logs: Sequence[Mapping[int, float]], beside: int | None = None) -> Best:
    """By runs in blocks: of each row ln M by block. A row counts by its mean over that of row ``beside``, in the same
    blocks, or by its mean; those as good by their mean over the best row's. Raises `AnalysisError` where no row has a
    block in common with row ``beside``."""
    means = [float(np.mean(list(own.values()))) if own else inf for own in logs]
    least = np.array(means if beside is None else [_mean_and_half(own, logs[beside])[0] for own in logs])
    if not np.isfinite(least).any():
        raise AnalysisError("no setting has a run in the same block as another")
    row = int(np.argmin(least))
    off, half = np.array([_mean_and_half(own, logs[row]) for own in logs]).T
    half[row] = 0.0
    return _told(row, off, half, np.isfinite(least), "pairs")


def _mean_and_half(own: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float]:
    """The mean of the differences block by block, and half of its 95 % interval; infinite where nothing tells it."""
    x = np.array([value - other[block] for block, value in own.items() if block in other])
    if not len(x):
        return inf, inf
    n = len(x)
    half = float(student(n - 1.0)) * float(np.std(x, ddof=1)) / np.sqrt(n) if n > 1 else inf
    return float(np.mean(x)), float(half)


def best_of_curve(row: int, off: Values, half: Values, is_seen: Flags, also: Flags | None = None) -> Best:
    """By a curve: ``off`` [n] is ln M over that of ``row``, the best, ``half`` the half-widths of its 95 % intervals,
    ``is_seen`` which rows were measured. Of rows that are ``also`` near by their own means the curve is not asked."""
    near = np.where(is_seen, NEAR, NEAR_UNSEEN)
    return _told(row, off, half, np.ones(len(off), bool), "curve", also, near)


def _told(
    row: int,
    off: Values,
    half: Values,
    is_there: Flags,
    how: Literal["pairs", "curve"],
    also: Flags | None = None,
    near: Values | float = NEAR,
) -> Best:
    alike = is_there & (off - half <= TIE)
    alike[row] = True
    if also is not None:
        alike |= also
    with np.errstate(invalid="ignore"):
        most = np.where(np.arange(len(off)) == row, 0.0, np.maximum(off + half, 0.0))
    is_near = alike & (most <= near)
    as_good = np.flatnonzero(is_near)
    within = tuple(float(np.expm1(most[i])) for i in as_good)
    return Best(row, tuple(as_good.tolist()), within, how, tuple(np.flatnonzero(alike & ~is_near).tolist()))
