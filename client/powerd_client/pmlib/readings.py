"""The good readings of one line around a stretch of time: watts at moments and joules between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_core.errors import ConfigError
from powerd_core.model import BAD, CounterConversion, Flag, Line, ScaledConversion, ShuntConversion

Times = NDArray[np.int64]
Values = NDArray[np.float64]

_LATE, _FLAGGED = 3.5, 1.8
"""Good readings farther apart than this many usual distances miss some between them; the second where a bad one lies
there. The same limits as in the tables."""


@dataclass(frozen=True, slots=True)
class LineReadings:
    """Good readings [n] of one line, times on the host's clock.

    Power is linear between readings; a line that counts energy has constant power between two of them.
    """

    line: Line
    t_ns: Times
    energy_j: Values
    """[n] since the first of them."""
    watts: Values | None
    """[n], None for a line that counts energy."""
    lost_ns: Values
    """[n-1] how much of each interval has lost its readings."""
    clipped: Times
    """Times of readings at full scale. They are left out, since the truth is only known to be more."""

    def joules(self, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
        """Energy between pairs of moments; what lies before the first and after the last reading counts nothing."""
        found: Values = self._energy(end_ns) - self._energy(begin_ns)
        return found

    def _energy(self, t_ns: ArrayLike) -> Values:
        if len(self.t_ns) < 2:
            return np.zeros(np.shape(t_ns))
        at, i = self._place(t_ns)
        into_s, length_s = (at - self.t_ns[i]) * 1e-9, (self.t_ns[i + 1] - self.t_ns[i]) * 1e-9
        if self.watts is None:
            part: Values = (self.energy_j[i + 1] - self.energy_j[i]) * (into_s / length_s)
        else:
            rise = self.watts[i + 1] - self.watts[i]
            part = into_s * (self.watts[i] + 0.5 * rise * (into_s / length_s))
        found: Values = self.energy_j[i] + part
        return found

    def watts_at(self, t_ns: Times) -> Values:
        """Power at moments, NaN where nobody knows: outside the readings and where readings were lost."""
        if len(self.t_ns) < 2:
            return np.full(len(t_ns), np.nan)
        at, i = self._place(t_ns)
        if self.watts is None:
            found: Values = np.diff(self.energy_j)[i] / (np.diff(self.t_ns)[i] * 1e-9)
        else:
            share = (at - self.t_ns[i]) / (self.t_ns[i + 1] - self.t_ns[i])
            found = self.watts[i] + share * (self.watts[i + 1] - self.watts[i])
        is_reading = (at == self.t_ns[i]) | (at == self.t_ns[i + 1])
        known = (at == t_ns) & (is_reading | (self.lost_ns[i] == 0))
        return np.where(known, found, np.nan)

    def missing_s(self, begin_ns: int, end_ns: int) -> float:
        """Seconds between two moments for which there are no readings."""
        if len(self.t_ns) < 2:
            return (end_ns - begin_ns) * 1e-9
        low, high = np.clip([begin_ns, end_ns], self.t_ns[0], self.t_ns[-1])
        outside = (end_ns - begin_ns) - (high - low)
        overlap = np.minimum(self.t_ns[1:], high) - np.maximum(self.t_ns[:-1], low)
        inside = np.clip(overlap, 0, None) / np.diff(self.t_ns) * self.lost_ns
        return float(outside + inside.sum()) * 1e-9

    def _place(self, t_ns: ArrayLike) -> tuple[Times, NDArray[np.intp]]:
        at = np.clip(np.asarray(t_ns, np.int64), self.t_ns[0], self.t_ns[-1])
        return at, np.clip(np.searchsorted(self.t_ns, at, "right") - 1, 0, len(self.t_ns) - 2)


def convert(
    line: Line, period_ns: int, t_ns: Times, flags: NDArray[np.uint16], codes: Mapping[str, NDArray[np.integer]]
) -> LineReadings:
    """Readings from raw codes [n] by the line's conversion; flags decide what is a value."""
    good = (flags & np.uint16(int(BAD))) == 0
    if len(t_ns) > 1:
        # After a clock step the mapping may fold back: time goes on where it passes what was there.
        latest = np.maximum.accumulate(np.where(good, t_ns, np.iinfo(np.int64).min))
        good[1:] &= t_ns[1:] > latest[:-1]
    t = t_ns[good]
    flagged = np.diff(np.flatnonzero(good)) > 1
    clipped = t_ns[(flags & np.uint16(int(Flag.SATURATED))) != 0]
    if isinstance(line.conversion, CounterConversion):
        return _counted(line, line.conversion, period_ns, t, codes[line.conversion.column][good], flagged, clipped)
    watts = _power_w(line, {name: column[good] for name, column in codes.items()})
    steps: Values = np.diff(t) * 0.5e-9 * (watts[1:] + watts[:-1])
    spacing = max(_spacing(t, period_ns), float(line.accuracy.update_ns))
    return LineReadings(line, t, _cumulated(steps, len(t)), watts, _lost_ns(t, spacing, flagged), clipped)


def _power_w(line: Line, codes: Mapping[str, NDArray[np.integer]]) -> Values:
    match line.conversion:
        case ShuntConversion() as c:
            bus_v = (codes[c.bus].astype(np.int64) >> c.bus_shift) * c.bus_lsb_v
            current_a = (codes[c.shunt] * (c.shunt_lsb_v / c.shunt_ohm) + c.offset_a) * c.gain
            return np.asarray(bus_v * current_a, np.float64)
        case ScaledConversion() as c:
            return np.asarray(codes[c.column] * c.w_per_code, np.float64)
    raise ConfigError(f"line {line.name!r} measures no power")


def _counted(
    line: Line,
    conversion: CounterConversion,
    period_ns: int,
    t: Times,
    codes: NDArray[np.integer],
    flagged: NDArray[np.bool_],
    clipped: Times,
) -> LineReadings:
    unsigned = codes.astype(np.int64).view(np.uint64)
    # Unsigned differences wrap by themselves at 64 bits; narrower counters wrap earlier.
    steps = (unsigned[1:] - unsigned[:-1]) & np.uint64((1 << conversion.bits) - 1)
    # A counter of 64 bits never wraps in practice: one that falls was set back, and what it counted then is unknown.
    reset = steps >> np.uint64(63) != 0
    counts = _cumulated(np.where(reset, 0, steps).astype(np.float64), len(t))
    period = _spacing(t, period_ns)
    if line.accuracy.update_ns > 1.2 * period and len(t) > 2:
        # Read more often than it moves: only where it moved is its value that of the moment.
        keep = np.concatenate([[True], (np.diff(counts) > 0) | reset])
        keep |= t - np.maximum.accumulate(np.where(keep, t, t[0])) > line.accuracy.update_ns + period
        keep[-1] = True
        kept = np.flatnonzero(keep)
        reset, flagged = (np.logical_or.reduceat(mask, kept[:-1]) for mask in (reset, flagged))
        t, counts = t[keep], counts[keep]
    energy_j: Values = counts * conversion.j_per_code
    if len(t):
        energy_j = energy_j + conversion.background_w * ((t - t[0]) * 1e-9)
    spacing = max(_spacing(t, period_ns), float(line.accuracy.update_ns))
    lost = np.where(reset, np.diff(t).astype(np.float64), _lost_ns(t, spacing, flagged))
    return LineReadings(line, t, energy_j, None, lost, clipped)


def _cumulated(steps: Values, n: int) -> Values:
    found = np.zeros(n)
    np.cumsum(steps, out=found[1:])
    return found


def _spacing(t: Times, nominal_ns: int) -> float:
    return float(np.median(np.diff(t))) if len(t) > 2 else float(max(nominal_ns, 1))


def _lost_ns(t: Times, spacing_ns: float, flagged: NDArray[np.bool_]) -> Values:
    dt = np.diff(t).astype(np.float64)
    limit = np.where(flagged, _FLAGGED, _LATE) * spacing_ns
    found: Values = np.where(dt > limit, dt - spacing_ns, 0.0)
    return found
