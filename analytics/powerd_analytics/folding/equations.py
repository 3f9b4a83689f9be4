"""Normal equations of readings, and what their scatter is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.response import Response
from powerd_analytics.folding.timeline import Timeline

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Total = tuple[Values, Values, float, int]
"""Of all readings: normal equations [p, p], right sides [p], sum of squares, how many."""

_TOLD_BY = 20
"""Readings whose worth of evidence is believed at most: no model is right to more than that, however many agree."""


@dataclass(frozen=True, slots=True)
class Equations:
    """Normal equations of blocks of readings [b] that lie apart in time; watts around ``usual_w``."""

    normal: Values
    """[b, p, p]; unknowns are the bins, then for each kind what its longer phases have more of."""
    right: Values
    """[b, p]"""
    square: Values
    """[b] sum of squares."""
    rows: Ints
    """[b]"""

    @staticmethod
    def of_block(
        timeline: Timeline, begin_ns: Ints, end_ns: Ints, watts: Values, response: Response | None = None
    ) -> Equations:
        """One block: windows [n] inside the timeline, and what they showed."""
        return Equations.of_parts(timeline, begin_ns, end_ns, watts, response, [slice(None)])

    @staticmethod
    def of_parts(
        timeline: Timeline,
        begin_ns: Ints,
        end_ns: Ints,
        watts: Values,
        response: Response | None,
        parts: Sequence[slice | NDArray[np.bool_]],
    ) -> Equations:
        """The same with its windows in blocks ``parts``, each of [n]."""
        p = timeline.columns + timeline.kinds
        normal, right = np.zeros((len(parts), p, p)), np.zeros((len(parts), p))
        for rows in timeline.blocks(begin_ns, end_ns):
            shares, shown = timeline.equations(begin_ns[rows], end_ns[rows], response), watts[rows]
            for i, part in enumerate(parts):
                of = part if isinstance(part, slice) else part[rows]
                normal[i] += shares[of].T @ shares[of]
                right[i] += shares[of].T @ shown[of]
        seen = [watts[part] for part in parts]
        return Equations(normal, right, np.array([w @ w for w in seen]), np.array([len(w) for w in seen]))

    def __add__(self, other: Equations) -> Equations:
        """Block by block."""
        return Equations(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def coarser(self, which: Values) -> Equations:
        """The same for bins that are joined, ``which`` of `Bins.joined`."""
        to = joining(which, self.right.shape[1])
        return Equations(to.T @ self.normal @ to, self.right @ to, self.square, self.rows)

    @property
    def told(self) -> float:
        """How much of their evidence is believed."""
        return min(1.0, _TOLD_BY / int(self.rows.sum()))

    @property
    def total(self) -> Total:
        """Of all blocks together: normal, right, square, rows."""
        return self.normal.sum(axis=0), self.right.sum(axis=0), float(self.square.sum()), int(self.rows.sum())

    @staticmethod
    def joined(blocks: list[Equations]) -> Equations:
        """All blocks together."""
        return Equations(*(np.concatenate([getattr(b, f.name) for b in blocks]) for f in fields(Equations)))


def joining(which: Values, unknowns: int) -> Values:
    """[unknowns, theirs] from bins that are joined, and what longer phases have more of, to what they were."""
    kinds = unknowns - len(which)
    to = np.zeros((unknowns, which.shape[1] + kinds))
    to[: len(which), : which.shape[1]], to[len(which) :, which.shape[1] :] = which, np.eye(kinds)
    return to


def noise_of(all_equations: Iterable[Equations], prior: Values, usual_w: float) -> float:
    """Variance of readings: what the most pliant model leaves where it leaves least."""
    found = []
    for e in all_equations:
        normal, right, square, n = e.total
        found.append(_left(normal, right, square, n, prior) / max(n - len(right), 1))
    return max(min(found), (1e-6 * usual_w) ** 2)


def _left(normal: Values, right: Values, square: float, n: int, prior: Values) -> float:
    """Squares that are left of a pliant model."""
    x = np.linalg.solve(normal + 1e-9 * n * prior, right)
    return max(square - 2 * float(x @ right) + float(x @ normal @ x), 0.0)


def jackknife(equations: Equations, prior: Values, sigma2: float, means: Values) -> Values:
    """[k] variance of the means when blocks are left out in turn (Efron and Stein, 1981)."""
    b = len(equations.rows)
    if b < 4:
        return np.zeros(len(means))
    normal = equations.normal.sum(axis=0) - equations.normal
    right = equations.right.sum(axis=0) - equations.right
    without = np.linalg.solve(normal / sigma2 + prior, right[..., None] / sigma2)[..., 0] @ means.T
    made: Values = (b - 1) / b * np.sum((without - without.mean(axis=0)) ** 2, axis=0)
    return made
