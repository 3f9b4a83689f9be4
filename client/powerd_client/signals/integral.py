"""Energy of a sampled signal between any moments: prefix sums and one search an edge, no loop over phases.

All of it is the integral of piecewise-linear power and nothing else. What happens at the edges of phases, where power
steps between two readings, is the business of `powerd_analytics.energy.lines`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

BLOCK = 1 << 16
"""Readings that `energy_j` sums at a time: what is needed of so many stays in a core's cache."""


class Integral:
    """Prefix sums over one signal, to be asked for many intervals.

    Of power that is straight between readings (`of_power`), or of energies counted at readings, with constant power
    between two of them (`of_energy`). The mean power is taken out of the sums and put back exactly for each interval,
    so that after hours a phase of milliseconds is not a small difference of two huge numbers.
    """

    def __init__(self, t_ns: Ints, prefix: Values, mean_w: float, power_w: Values | None) -> None:
        self.t_ns, self._prefix, self.mean_w, self._power = t_ns, prefix, mean_w, power_w

    @classmethod
    def of_power(cls, t_ns: ArrayLike, power_w: ArrayLike) -> Integral:
        """Of power readings [n] at increasing int64 times [n]."""
        t, p = _checked(t_ns, power_w, "power_w")
        mean = float(p.mean()) if len(p) else 0.0
        p = p - mean
        steps = np.diff(t).astype(np.float64)
        steps *= p[1:] + p[:-1]
        steps *= 0.5e-9
        prefix = np.zeros(len(t))
        np.cumsum(steps, out=prefix[1:])
        return cls(t, prefix, mean, p)

    @classmethod
    def of_energy(cls, t_ns: ArrayLike, energy_j: ArrayLike) -> Integral:
        """Of an energy counter [n], already unwrapped, at increasing int64 times [n]."""
        t, e = _checked(t_ns, energy_j, "energy_j")
        mean = float((e[-1] - e[0]) / ((t[-1] - t[0]) * 1e-9)) if len(t) > 1 else 0.0
        return cls(t, (e - e[0] if len(e) else e) - mean * 1e-9 * (t - t[0] if len(t) else t), mean, None)

    def between(self, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
        """Joules between pairs of moments; what lies outside the readings counts nothing."""
        if len(self.t_ns) < 2:
            return np.zeros(np.broadcast(begin_ns, end_ns).shape)
        begin = np.clip(np.asarray(begin_ns, np.int64), self.t_ns[0], self.t_ns[-1])
        end = np.clip(np.asarray(end_ns, np.int64), self.t_ns[0], self.t_ns[-1])
        return np.asarray(self._at(end) - self._at(begin) + self.mean_w * ((end - begin) * 1e-9))

    def covered_s(self, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
        """Seconds of each interval that lie between the first and the last reading."""
        if len(self.t_ns) < 2:
            return np.zeros(np.broadcast(begin_ns, end_ns).shape)
        first, last = self.t_ns[0], self.t_ns[-1]
        return np.asarray((np.clip(end_ns, first, last) - np.clip(begin_ns, first, last)) * 1e-9)

    def _at(self, t_ns: Ints) -> Values:
        i = np.clip(np.searchsorted(self.t_ns, t_ns, "right") - 1, 0, len(self.t_ns) - 2)
        into = (t_ns - self.t_ns[i]).astype(np.float64)
        share = into / (self.t_ns[i + 1] - self.t_ns[i])
        if self._power is None:
            part: Values = (self._prefix[i + 1] - self._prefix[i]) * share
        else:
            part = into * 1e-9 * (self._power[i] + 0.5 * share * (self._power[i + 1] - self._power[i]))
        return np.asarray(self._prefix[i] + part)


def energy_j(t_ns: ArrayLike, power_w: ArrayLike, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
    """Joules between each ``begin_ns`` and ``end_ns`` [m]: exact for power that is linear between readings.

    ``t_ns`` int64 [n] must increase; times before the first and after the last reading count nothing.
    One pass, whatever the number of phases, and no second array of the readings' length is made.
    Raises `AnalysisError` for lengths that differ, times that do not increase and values that are not finite.
    """
    begin, end = np.broadcast_arrays(np.asarray(begin_ns, np.int64), np.asarray(end_ns, np.int64))
    edges, place = np.unique(np.concatenate([begin.ravel(), end.ravel()]), return_inverse=True)
    upto_j = energy_upto_j(t_ns, power_w, edges)
    joules = upto_j[place[begin.size :]] - upto_j[place[: begin.size]]
    return np.asarray(joules.astype(np.float64).reshape(begin.shape))


def energy_upto_j(t_ns: ArrayLike, power_w: ArrayLike, moments_ns: Ints) -> NDArray[np.longdouble]:
    """The same from the first reading up to moments [m] in order."""
    t, power = np.asarray(t_ns), np.asarray(power_w)
    _check_shapes(t, power, "power_w")
    # After days, a phase of milliseconds must not be a small difference of two huge numbers of double precision.
    upto_j, done = np.zeros(len(moments_ns), np.longdouble), 0
    total_j: Any = np.longdouble(0)
    for i in range(0, len(t), BLOCK):
        block_ns, watts = _checked(t[i : i + BLOCK + 1], power[i : i + BLOCK + 1], "power_w")
        if len(block_ns) < 2:
            break
        last = int(np.searchsorted(moments_ns, block_ns[-1], "right"))
        at = np.clip(moments_ns[done:last], block_ns[0], block_ns[-1])
        # Between moments the readings are summed without a prefix sum.
        steps_j = (block_ns[1:] - block_ns[:-1]) * 0.5e-9
        steps_j *= watts[1:] + watts[:-1]
        k = np.minimum(np.searchsorted(block_ns, at, "right") - 1, len(steps_j) - 1)
        between_j = np.add.reduceat(steps_j, np.append(0, k))
        between_j[:-1][np.diff(k, prepend=0) == 0] = 0.0  # of no readings it gives one
        readings_j = total_j + np.cumsum(between_j, dtype=np.longdouble)
        share = (at - block_ns[k]) / (block_ns[k + 1] - block_ns[k])
        upto_j[done:last] = readings_j[:-1] + (at - block_ns[k]) * 1e-9 * (
            watts[k] + 0.5 * share * (watts[k + 1] - watts[k])
        )
        total_j, done = readings_j[-1], last
    upto_j[done:] = total_j
    return upto_j


def counter_energy_j(t_ns: ArrayLike, counter_j: ArrayLike, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
    """The same from an unwrapped energy counter: interpolated differences."""
    return Integral.of_energy(t_ns, counter_j).between(begin_ns, end_ns)


def unwrap_counter(codes: NDArray[np.integer], bits: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Codes since the first one [n], and for each interval [n-1] whether the counter was set back in it.

    A counter of fewer than 64 bits wraps around; one of 64 bits does so never in practice: one that falls was
    reset, and what it counted in that interval is unknown (0 here).
    """
    unsigned = codes.astype(np.int64).view(np.uint64)
    # Unsigned differences wrap by themselves at 64 bits; narrower counters wrap earlier.
    steps: NDArray[np.uint64] = (unsigned[1:] - unsigned[:-1]) & np.uint64((1 << bits) - 1)
    reset = steps >> np.uint64(63) != 0
    steps[reset] = 0
    return np.concatenate([[0], np.cumsum(steps)]).astype(np.float64) if len(codes) else np.zeros(0), reset


def _check_shapes(t: NDArray[np.generic], v: NDArray[np.generic], name: str) -> None:
    if t.ndim != 1 or t.shape != v.shape:
        raise AnalysisError(f"t_ns has shape {t.shape}, {name} {v.shape}: one value for each time is needed")
    if len(t) and not np.issubdtype(t.dtype, np.integer):
        raise AnalysisError("t_ns must be integer nanoseconds")


def _checked(t_ns: ArrayLike, values: ArrayLike, name: str) -> tuple[Ints, Values]:
    t, v = np.asarray(t_ns), np.asarray(values, dtype=np.float64)
    _check_shapes(t, v, name)
    t = t.astype(np.int64, copy=False)
    if np.any(t[1:] <= t[:-1]):
        raise AnalysisError("t_ns must increase from reading to reading")
    with np.errstate(invalid="ignore"):
        is_finite = np.isfinite(v.sum())
    if not is_finite:
        raise AnalysisError(f"{name} holds values that are not finite: leave failed readings out, never guess them")
    return t, v
