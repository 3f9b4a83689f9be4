"""The best estimate of an offset over time from exchanges on a path with queues, as against what is guaranteed.

A queue only ever delays. So the greatest t1 - t2 and the least t4 - t3 of a few seconds are nearly free of queueing,
each in its own direction, even where no single exchange is; the offset is half-way between. How far these two are
apart, beyond what they are in quieter times, says how little to trust them. They are joined by a smoother in both
directions of time, whose model is an offset that changes at a rate, and a rate that wanders as that of a quartz does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from powerd_core.clock_bound import Intervals

WANDER_NS = 30.0
"""Random walk of the rate: 0.03 ppm after a second, 1 ppm after 20 minutes."""
RATE_NS = 50_000.0
"""What a rate is before anything is known: 0 +- 50 ppm (ns a second)."""
FLOOR_NS = 2_000.0
"""No reading of two clocks over a network is trusted to better than this."""
DOUBT = 1.0
"""Uncertainty by excess delay: twice the greatest error that it can cause, since load in one direction lasts."""
QUIET_NS = 600_000_000_000
"""How far around a moment the quietest moment is looked for: routes change."""
ROUGH_NS = 1_000_000_000
FINE_NS = 2_000_000_000


@dataclass(slots=True)
class RateFilter:
    """Offset (ns) and rate (ns a second) of a clock with their covariances at time ``t_s``, by a Kalman filter."""

    t_s: float
    offset: float
    rate: float = 0.0
    p_offset: float = 0.0
    p_both: float = 0.0
    p_rate: float = RATE_NS**2

    def predict(self, t_s: float) -> None:
        dt = t_s - self.t_s
        wander = WANDER_NS * WANDER_NS * dt
        self.t_s = t_s
        self.offset += self.rate * dt
        self.p_offset += dt * (2 * self.p_both + dt * self.p_rate) + wander * dt * dt / 3
        self.p_both += dt * self.p_rate + wander * dt / 2
        self.p_rate += wander

    def update(self, offset: float, sigma: float) -> None:
        total = self.p_offset + sigma * sigma
        gain, gain_rate = self.p_offset / total, self.p_both / total
        surprise = offset - self.offset
        self.offset += gain * surprise
        self.rate += gain_rate * surprise
        self.p_rate -= gain_rate * self.p_both
        self.p_both *= 1 - gain
        self.p_offset *= 1 - gain


@dataclass(frozen=True, slots=True)
class Curve:
    """Offsets (ns) and rates (ns a second) at increasing times (s)."""

    t_s: Sequence[float]
    offset: Sequence[float]
    rate: Sequence[float]

    def at_all(self, times_s: Sequence[float]) -> list[float]:
        """Offsets at increasing times: linear between the curve's points, along the last rates outside."""
        found, i, n = [], 0, len(self.t_s)
        knots, offset, rate = self.t_s, self.offset, self.rate
        for t in times_s:
            while i < n and knots[i] <= t:
                i += 1
            if 0 < i < n:
                share = (t - knots[i - 1]) / (knots[i] - knots[i - 1])
                found.append(offset[i - 1] + share * (offset[i] - offset[i - 1]))
            else:
                near = min(i, n - 1) if i == 0 else n - 1
                found.append(offset[near] + rate[near] * (t - knots[near]))
        return found


def estimate(intervals: Intervals) -> tuple[list[float], float, float]:
    """Offsets at the times of one piece's exchanges, and the rates before the first and after the last of them."""
    first = intervals.t_ns[0]
    times = [(t - first) * 1e-9 for t in intervals.t_ns]
    rough = _rough(intervals, times)
    curve = _fine(intervals, times, rough.at_all(times))
    return curve.at_all(times), curve.rate[0] * 1e-9, curve.rate[-1] * 1e-9


def _rough(intervals: Intervals, times: Sequence[float]) -> Curve:
    """Through the quickest exchange of each second: good enough to take the clocks' drift out of a few seconds."""
    lows, highs = intervals.low_ns, intervals.high_ns
    best: list[int] = []
    last = -1
    for i, t in enumerate(intervals.t_ns):
        number = (t - intervals.t_ns[0]) // ROUGH_NS
        if number != last:
            best.append(i)
            last = number
        elif highs[i] - lows[i] < highs[best[-1]] - lows[best[-1]]:
            best[-1] = i
    return _smooth(
        [times[i] for i in best], [(lows[i] + highs[i]) / 2 for i in best], [highs[i] - lows[i] for i in best]
    )


def _fine(intervals: Intervals, times: Sequence[float], rough: Sequence[float]) -> Curve:
    """Through the middles between the two directions' least delays in stretches of two seconds."""
    centres: list[float] = []
    offsets: list[float] = []
    widths: list[float] = []
    n, i = len(times), 0
    t_ns, lows, highs = intervals.t_ns, intervals.low_ns, intervals.high_ns
    while i < n:
        number = (t_ns[i] - t_ns[0]) // FINE_NS
        end_ns = t_ns[0] + (number + 1) * FINE_NS
        low, high, at_low, at_high = lows[i] - rough[i], highs[i] - rough[i], i, i
        while i < n and t_ns[i] < end_ns:
            if lows[i] - rough[i] > low:
                low, at_low = lows[i] - rough[i], i
            if highs[i] - rough[i] < high:
                high, at_high = highs[i] - rough[i], i
            i += 1
        centres.append((times[at_low] + times[at_high]) / 2)
        offsets.append((rough[at_low] + rough[at_high] + low + high) / 2)
        widths.append(max(high - low, 0.0))
    return _smooth(centres, offsets, widths)


def _smooth(times: Sequence[float], offsets: Sequence[float], widths: Sequence[float]) -> Curve:
    """A Kalman filter forward and the Rauch-Tung-Striebel recursion back."""
    sigmas = [FLOOR_NS + DOUBT * (w - q) for w, q in zip(widths, _quietest(times, widths), strict=True)]
    state = RateFilter(times[0], offsets[0], p_offset=sigmas[0] ** 2)
    n = len(times)
    found = [(state.offset, state.rate, state.p_offset, state.p_both, state.p_rate)]
    for i in range(1, n):
        state.predict(times[i])
        state.update(offsets[i], sigmas[i])
        found.append((state.offset, state.rate, state.p_offset, state.p_both, state.p_rate))
    smooth, rates = [0.0] * n, [0.0] * n
    smooth[-1], rates[-1] = state.offset, state.rate
    for i in range(n - 2, -1, -1):
        offset, rate, p_offset, p_both, p_rate = found[i]
        dt = times[i + 1] - times[i]
        wander = WANDER_NS * WANDER_NS * dt
        # The covariance predicted for the next moment, and its inverse.
        q_offset = p_offset + dt * (2 * p_both + dt * p_rate) + wander * dt * dt / 3
        q_both = p_both + dt * p_rate + wander * dt / 2
        q_rate = p_rate + wander
        determinant = q_offset * q_rate - q_both * q_both
        ahead, ahead_rate = smooth[i + 1] - (offset + rate * dt), rates[i + 1] - rate
        x = (q_rate * ahead - q_both * ahead_rate) / determinant
        y = (q_offset * ahead_rate - q_both * ahead) / determinant
        smooth[i] = offset + (p_offset + dt * p_both) * x + p_both * y
        rates[i] = rate + (p_both + dt * p_rate) * x + p_rate * y
    return Curve(times, smooth, rates)


def _quietest(times: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The least width within `QUIET_NS` of each moment."""
    reach, n, ahead = QUIET_NS * 1e-9, len(times), 0
    window: deque[int] = deque()
    found = []
    for t in times:
        while ahead < n and times[ahead] <= t + reach:
            while window and widths[window[-1]] >= widths[ahead]:
                window.pop()
            window.append(ahead)
            ahead += 1
        while times[window[0]] < t - reach:
            window.popleft()
        found.append(widths[window[0]])
    return found
