"""Energy up to many moments in one pass over readings that need not be in memory together."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

BLOCK = 1 << 16
"""Readings that are summed at a time: what is needed of so many stays in a core's cache."""


class Sweep:
    """The integral of piecewise-linear power up to moments ``at_ns`` [m], int64, in order.

    Readings are given piece after piece to `add`. Sums run within a block of readings only, around its mean power;
    what lies before a block is one number of extended precision. So nothing of the readings' length is ever made,
    and after days a phase of milliseconds is not a small difference of two huge numbers.
    """

    def __init__(self, at_ns: ArrayLike) -> None:
        self._at = np.asarray(at_ns, np.int64)
        self._joules = np.zeros(len(self._at))
        self._block = np.zeros(len(self._at), np.int32)
        self._before: list[np.longdouble] = [np.longdouble(0)]
        self._done = 0
        self._last: tuple[int, float] | None = None
        self._first_ns = 0
        self._steps, self._sums = np.empty(BLOCK), np.empty(BLOCK + 1)

    def add(self, t_ns: Ints, power_w: ArrayLike) -> None:
        """The next readings [n]: times increase, from one piece to the next as well.

        Raises `AnalysisError` for times that do not and for values that are not finite.
        """
        power = np.asarray(power_w)
        if self._last is None and len(t_ns):
            self._first_ns = int(t_ns[0])
            self._done = int(np.searchsorted(self._at, self._first_ns, "left"))
        elif len(t_ns):
            joint_t = np.array([self._last[0], t_ns[0]], np.int64)  # type: ignore[index]
            self._segments(joint_t, np.array([self._last[1], power[0]], np.float64))  # type: ignore[index]
        for i in range(0, len(t_ns) - 1, BLOCK):
            self._segments(t_ns[i : i + BLOCK + 1], power[i : i + BLOCK + 1].astype(np.float64, copy=False))
        if len(t_ns):
            self._last = int(t_ns[-1]), _finite(float(power[-1]))

    def between(self, begin: NDArray[np.intp], end: NDArray[np.intp]) -> Values:
        """Joules between the moments numbered ``begin`` and ``end`` [k]; outside the readings nothing is counted."""
        self._block[self._done :], self._joules[self._done :] = len(self._before) - 1, 0.0
        before = np.array(self._before)
        joules: Values = (before[self._block[end]] - before[self._block[begin]]).astype(np.float64)
        joules += self._joules[end] - self._joules[begin]
        return joules

    def _segments(self, t: Ints, p: Values) -> None:
        n = len(t) - 1
        dt = t[1:] - t[:-1]
        if int(dt.min()) <= 0:
            raise AnalysisError("t_ns must increase from reading to reading")
        with np.errstate(invalid="ignore"):
            mean = _finite(float(p.mean()))
        steps, sums = self._steps[:n], self._sums[: n + 1]
        np.add(p[1:], p[:-1], out=steps)
        steps -= 2 * mean
        steps *= dt
        sums[0] = 0.0
        np.cumsum(steps, out=sums[1:])
        upto = int(np.searchsorted(self._at, t[-1], "right"))
        if upto > self._done:
            at = self._at[self._done : upto]
            i = np.minimum(np.searchsorted(t, at, "right") - 1, n - 1)
            into = (at - t[i]).astype(np.float64)
            part = into * (2 * (p[i] - mean) + into / dt[i] * (p[i + 1] - p[i]))
            self._joules[self._done : upto] = 0.5e-9 * (sums[i] + part) + mean * 1e-9 * (at - t[0])
            self._block[self._done : upto] = len(self._before) - 1
            self._done = upto
        whole = np.longdouble(mean) * int(t[-1] - t[0]) + np.longdouble(0.5) * np.longdouble(sums[-1])
        self._before.append(self._before[-1] + whole * np.longdouble(1e-9))


def _finite(value: float) -> float:
    if not np.isfinite(value):
        raise AnalysisError("power_w holds values that are not finite: leave failed readings out, never guess them")
    return value


def swept_j(t_ns: Ints, power_w: ArrayLike, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
    """Joules between pairs of moments, from readings [n] in memory of which no copy is made."""
    begin, end = np.broadcast_arrays(np.asarray(begin_ns, np.int64), np.asarray(end_ns, np.int64))
    edges = np.concatenate([begin.ravel(), end.ravel()])
    order = np.argsort(edges, kind="stable")
    sweep = Sweep(edges[order])
    sweep.add(t_ns, power_w)
    place = np.empty(len(edges), np.intp)
    place[order] = np.arange(len(edges))
    found: Values = sweep.between(place[: begin.size], place[begin.size :]).reshape(begin.shape)
    return found
