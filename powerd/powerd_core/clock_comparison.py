"""Two clocks: what exchanges say about host time minus board time, and how sure that is.

Two things come out, kept apart: a *bound*, which is guaranteed, and an *estimate* inside it, which is better than the
bound says.

**Bound.** A request cannot arrive before it was sent, nor an answer before it was given: when the board received, the
offset is at least t1 - t2; when it answered, at most t4 - t3. This is true whatever the network did. Two clocks drift
apart by at most a known rate, so what holds at one moment holds, widened, at every other, until a clock steps. Two
exchanges that contradict each other after widening prove a step between them: a new piece begins, and between two
pieces there is no mapping.

**Estimate.** A queue only ever delays. So the greatest t1 - t2 and the least t4 - t3 of a few seconds are nearly free
of queueing, each in its own direction, even where no single exchange is; the offset is half-way between. Two things
say how little to trust it: how far these two are apart, beyond what they are in quieter times, and how far the next
delays of the same seconds lie from them, since the least of a few random delays lies about as far above the least that
there can be. The moments are joined by a smoother in both directions of time, whose model is an offset that changes at
a rate, and a rate that wanders as that of a quartz does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, hypot, inf, nextafter
from typing import NamedTuple

from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange

READING_NS = 1
"""Times are cut to whole nanoseconds: each difference of two of them may be off by one."""
DRIFT_PPM = 100.0
"""Two free-running quartz clocks differ by less: +-50 ppm each over temperature and age."""
WANDER_NS = 30.0
"""Random walk of the rate: 0.03 ppm after a second, 1 ppm after 20 minutes."""
RATE_NS = 50_000.0
"""What a rate is before anything is known: 0 +- 50 ppm (ns a second)."""
FLOOR_NS = 2_000.0
"""No reading of two clocks over a network is trusted to better than this."""
DOUBT = 1.0
"""Uncertainty by excess delay: twice the greatest error that it can cause, since load in one direction lasts."""
NEAREST = 4
"""So many of the least delays of a stretch tell how far the least of them is from one without queueing."""
QUIET_NS = 600_000_000_000
"""How far around a moment the quietest moment is looked for: routes change."""
ROUGH_NS = 1_000_000_000
FINE_NS = 2_000_000_000
_LONG_AGO_NS = -(1 << 62)


class Interval(NamedTuple):
    """What one exchange guarantees at its middle: the offset's ends above a base that all exchanges share."""

    t_ns: int
    low_ns: float
    high_ns: float


def interval_of(exchange: ClockExchange, base_ns: int, drift: float) -> Interval:
    """The middle of an exchange at the board, and the interval of the offset there, above ``base_ns``."""
    e = exchange
    t_ns = e.t_board_ns
    # Each end holds at its own moment: the time that the board took to answer is time to drift.
    low = e.t1_host_ns - e.t2_board_ns - base_ns - READING_NS - drift * (t_ns - e.t2_board_ns)
    high = e.t4_host_ns - e.t3_board_ns - base_ns + READING_NS + drift * (e.t3_board_ns - t_ns)
    return Interval(t_ns, low, high)


def _joined(one: Interval, other: Interval, drift: float) -> Interval:
    """What two intervals say together at the later of their moments; a contradiction has its low end above the high."""
    if other.t_ns < one.t_ns:
        one, other = other, one
    spread = drift * (other.t_ns - one.t_ns)
    return Interval(other.t_ns, max(one.low_ns - spread, other.low_ns), min(one.high_ns + spread, other.high_ns))


def _split_at_steps(intervals: Sequence[Interval], drift: float, torn: Collection[int]) -> list[tuple[int, int]]:
    """Begin and end numbers of the exchanges that certainly share a clock, for each piece between two steps.

    The intervals come in the order in which the host sent. Before each number in ``torn`` there is a step for another
    reason. What could have been made on either side of a step is in no piece.
    """
    starts, known = [0], intervals[0]
    for i, interval in enumerate(intervals[1:], 1):
        known = _joined(known, interval, drift)
        if i in torn or known.low_ns > known.high_ns:
            starts.append(i)
            known = interval
    pieces = list(zip(starts, [*starts[1:], len(intervals)], strict=True))
    for k, (begin, end) in enumerate(pieces[:-1]):
        if end not in torn:
            pieces[k] = begin, _last_before(intervals, begin, end, pieces[k + 1], drift)
    return pieces


def _last_before(intervals: Sequence[Interval], begin: int, end: int, after: tuple[int, int], drift: float) -> int:
    """The end of a piece without the exchanges at it that the next piece would accept as well: slow ones, as a rule."""
    first = intervals[after[0]].t_ns
    following = intervals[after[0] : after[1]]
    low = max(i.low_ns - drift * abs(i.t_ns - first) for i in following)
    high = min(i.high_ns + drift * abs(i.t_ns - first) for i in following)
    while end - 1 > begin:
        last = intervals[end - 1]
        spread = drift * abs(last.t_ns - first)
        if last.low_ns > high + spread or last.high_ns < low - spread:
            break
        end -= 1
    return end


def _by_time(intervals: Sequence[Interval]) -> list[Interval]:
    """The intervals of one piece by increasing times, each time once."""
    by_time: list[Interval] = []
    for i in sorted(intervals):
        if by_time and by_time[-1].t_ns == i.t_ns:
            by_time[-1] = _joined(by_time[-1], i, 0.0)
        else:
            by_time.append(i)
    return by_time


def _intersect(intervals: Sequence[Interval], drift: float) -> list[Interval]:
    """Bounds at every exchange of one piece from all of its exchanges: one pass forward, one back."""
    bounds = list(intervals)
    for order in (range(1, len(bounds)), range(len(bounds) - 2, -1, -1)):
        for i in order:
            t_ns, own_low, own_high = bounds[i]
            near = bounds[i - order.step]
            spread = drift * abs(t_ns - near.t_ns)
            bounds[i] = Interval(t_ns, max(near.low_ns - spread, own_low), min(near.high_ns + spread, own_high))
    # Overtaken answers can hide a step of a microsecond from the split: what then holds is between both.
    return [Interval(t, *sorted(ends)) for t, *ends in bounds]


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
class _Curve:
    """Offsets (ns) and rates (ns a second) at increasing times (s)."""

    t_s: Sequence[float]
    offset: Sequence[float]
    rate: Sequence[float]

    def at_all(self, times_s: Sequence[float]) -> list[float]:
        """Offsets at increasing times: linear between the curve's points, along the last rates outside."""
        offsets, i, n = [], 0, len(self.t_s)
        knots, offset = self.t_s, self.offset
        for t in times_s:
            while i < n and knots[i] <= t:
                i += 1
            if 0 < i < n:
                share = (t - knots[i - 1]) / (knots[i] - knots[i - 1])
                offsets.append(offset[i - 1] + share * (offset[i] - offset[i - 1]))
            else:
                near = 0 if i == 0 else n - 1
                offsets.append(offset[near] + self.rate[near] * (t - knots[near]))
        return offsets


def _estimate(intervals: Sequence[Interval]) -> tuple[list[float], float, float]:
    """Offsets at the times of one piece's exchanges, and the rates before the first and after the last of them."""
    times = [(i.t_ns - intervals[0].t_ns) * 1e-9 for i in intervals]
    rough = _rough(intervals, times)
    curve = _fine(intervals, times, rough.at_all(times))
    return curve.at_all(times), curve.rate[0] * 1e-9, curve.rate[-1] * 1e-9


def _rough(intervals: Sequence[Interval], times: Sequence[float]) -> _Curve:
    """Through the quickest exchange of each second: good enough to take the clocks' drift out of a few seconds."""
    widths = [i.high_ns - i.low_ns for i in intervals]
    seconds = _stretches(intervals, ROUGH_NS)
    best = [min(numbers, key=widths.__getitem__) for numbers in seconds]
    middles = [(intervals[k].low_ns + intervals[k].high_ns) / 2 for k in best]
    spacings = [_spacing([widths[k] for k in numbers]) for numbers in seconds]
    return _smooth([times[k] for k in best], middles, [widths[k] for k in best], spacings)


def _fine(intervals: Sequence[Interval], times: Sequence[float], rough: Sequence[float]) -> _Curve:
    """Through the middles between the two directions' least delays in stretches of two seconds."""
    lows = [i.low_ns - r for i, r in zip(intervals, rough, strict=True)]
    highs = [i.high_ns - r for i, r in zip(intervals, rough, strict=True)]
    centres, offsets, widths, spacings = [], [], [], []
    for numbers in _stretches(intervals, FINE_NS):
        at_low, at_high = max(numbers, key=lows.__getitem__), min(numbers, key=highs.__getitem__)
        centres.append((times[at_low] + times[at_high]) / 2)
        offsets.append((rough[at_low] + rough[at_high] + lows[at_low] + highs[at_high]) / 2)
        widths.append(max(highs[at_high] - lows[at_low], 0.0))
        spacings.append(hypot(_spacing([-lows[k] for k in numbers]), _spacing([highs[k] for k in numbers])))
    return _smooth(centres, offsets, widths, spacings)


def _stretches(intervals: Sequence[Interval], length_ns: int) -> list[list[int]]:
    """Numbers of the intervals in each stretch of time that has any."""
    stretches: dict[int, list[int]] = {}
    for k, i in enumerate(intervals):
        stretches.setdefault((i.t_ns - intervals[0].t_ns) // length_ns, []).append(k)
    return list(stretches.values())


def _spacing(delays: Sequence[float]) -> float:
    """Mean distance between neighbours of the least few delays: about how far the least of them lies above the least
    that there can be. 0 of a single delay, which says nothing of that."""
    least = sorted(delays)[:NEAREST]
    return (least[-1] - least[0]) / (len(least) - 1) if len(least) > 1 else 0.0


def _smooth(
    times: Sequence[float], offsets: Sequence[float], widths: Sequence[float], spacings: Sequence[float]
) -> _Curve:
    """A Kalman filter forward and the Rauch-Tung-Striebel recursion back."""
    # The offset is the middle of two ends: it has half of what is unknown of both.
    sigmas = [
        hypot(FLOOR_NS + DOUBT * (w - q), s / 2)
        for w, q, s in zip(widths, _quietest(times, widths), spacings, strict=True)
    ]
    state = RateFilter(times[0], offsets[0], p_offset=sigmas[0] ** 2)
    n = len(times)
    states = [replace(state)]
    for t, offset, sigma in zip(times[1:], offsets[1:], sigmas[1:], strict=True):
        state.predict(t)
        state.update(offset, sigma)
        states.append(replace(state))
    smooth, rates = [0.0] * n, [0.0] * n
    smooth[-1], rates[-1] = state.offset, state.rate
    for i in range(n - 2, -1, -1):
        s = states[i]
        dt = times[i + 1] - times[i]
        wander = WANDER_NS * WANDER_NS * dt
        # The covariance predicted for the next moment, and its inverse.
        q_offset = s.p_offset + dt * (2 * s.p_both + dt * s.p_rate) + wander * dt * dt / 3
        q_both = s.p_both + dt * s.p_rate + wander * dt / 2
        q_rate = s.p_rate + wander
        determinant = q_offset * q_rate - q_both * q_both
        ahead, ahead_rate = smooth[i + 1] - (s.offset + s.rate * dt), rates[i + 1] - s.rate
        x = (q_rate * ahead - q_both * ahead_rate) / determinant
        y = (q_offset * ahead_rate - q_both * ahead) / determinant
        smooth[i] = s.offset + (s.p_offset + dt * s.p_both) * x + s.p_both * y
        rates[i] = s.rate + (s.p_both + dt * s.p_rate) * x + s.p_rate * y
    return _Curve(times, smooth, rates)


def _quietest(times: Sequence[float], widths: Sequence[float]) -> list[float]:
    """The least width within `QUIET_NS` of each moment."""
    reach, n, ahead = QUIET_NS * 1e-9, len(times), 0
    window: deque[int] = deque()
    least = []
    for t in times:
        while ahead < n and times[ahead] <= t + reach:
            while window and widths[window[-1]] >= widths[ahead]:
                window.pop()
            window.append(ahead)
            ahead += 1
        while times[window[0]] < t - reach:
            window.popleft()
        least.append(widths[window[0]])
    return least


@dataclass(frozen=True, slots=True)
class ClockPiece:
    """Host minus board time between two steps of a clock, at increasing board times (all four of one length).

    Between knots the estimate is linear, outside it follows ``rates``; the bound is the knots' interval widened by
    ``drift_ppm``. Where a step precedes the first knot, the piece says nothing on times before it, and likewise behind
    the last.
    """

    t_board_ns: tuple[int, ...]
    offset_ns: tuple[float, ...]
    low_ns: tuple[float, ...]
    high_ns: tuple[float, ...]
    drift_ppm: float = DRIFT_PPM
    rates: tuple[float, float] = (0.0, 0.0)
    """Change of the offset, ns per ns of board time, before the first knot and after the last."""
    begin_ns: int | None = None
    """The earliest board time that this clock may have shown when a step precedes the piece; None without a step."""
    end_ns: int | None = None
    """The latest such time when a step follows."""

    def holds(self, t_board_ns: int) -> bool:
        """Whether the piece maps that board time: whether no step can lie between its exchanges and that moment."""
        return (self.begin_ns is None or t_board_ns >= self.t_board_ns[0]) and (
            self.end_ns is None or t_board_ns <= self.t_board_ns[-1]
        )

    def at(self, t_board_ns: int) -> tuple[float, float, float]:
        """Estimate, lower and upper bound of the offset at a board time, inside or outside the knots.

        Raises `ClockError` for a time that may lie beyond a step.
        """
        if not self.holds(t_board_ns):
            raise ClockError("the clock stepped near that time: no offset is known there")
        after = bisect_right(self.t_board_ns, t_board_ns)
        near = [i for i in (after - 1, after) if 0 <= i < len(self.t_board_ns)]
        spread = [abs(t_board_ns - self.t_board_ns[i]) * self.drift_ppm * 1e-6 for i in near]
        low = max(self.low_ns[i] - s for i, s in zip(near, spread, strict=True))
        high = min(self.high_ns[i] + s for i, s in zip(near, spread, strict=True))
        t0, o0 = self.t_board_ns[near[0]], self.offset_ns[near[0]]
        if len(near) == 2:
            t1, o1 = self.t_board_ns[near[1]], self.offset_ns[near[1]]
            offset = o0 + (o1 - o0) * (t_board_ns - t0) / (t1 - t0)
        else:
            offset = o0 + self.rates[0 if after == 0 else 1] * (t_board_ns - t0)
        return min(max(offset, low), high), low, high


def piece_at(pieces: Sequence[ClockPiece], t_board_ns: int) -> ClockPiece | None:
    """The piece that maps a board time; None where a step may be on either side or two clocks showed it."""
    possible = [
        p
        for p in pieces
        if (p.begin_ns is None or t_board_ns >= p.begin_ns) and (p.end_ns is None or t_board_ns <= p.end_ns)
    ]
    return possible[0] if len(possible) == 1 and possible[0].holds(t_board_ns) else None


def map_clock(exchanges: Sequence[ClockExchange]) -> tuple[ClockPiece, ...]:
    """The mapping from a board's clock to the host's over a whole run, from all its exchanges in any order.

    Pieces come in the order of host times. An exchange that took the client less time than the board had a clock
    step in its middle. Raises `ClockError` for exchanges of several epochs, and when none is left.
    """
    if not exchanges:
        raise ClockError("no clock exchange with the board succeeded: its times cannot be mapped")
    if len({e.epoch for e in exchanges}) > 1:
        raise ClockError("exchanges of different epochs do not share a clock")
    # The host's clock never goes back within a run; a board's may.
    ordered = sorted(exchanges, key=lambda e: e.t1_host_ns)
    drift = DRIFT_PPM * 1e-6
    # Offsets are counted from one of them: a float of nanoseconds since boot would lose whole nanoseconds.
    base_ns = ordered[0].t1_host_ns - ordered[0].t2_board_ns
    intervals: list[Interval] = []
    torn: set[int] = set()
    for e in ordered:
        if e.delay_ns < 0:
            torn.add(len(intervals))
        else:
            intervals.append(interval_of(e, base_ns, drift))
    if not intervals:
        raise ClockError("every exchange took less time at the client than at the board: not one clock each")
    numbers = _split_at_steps(intervals, drift, torn)
    pieces = [_piece(_by_time(intervals[begin:end]), base_ns) for begin, end in numbers]
    if 0 in torn:
        pieces[0] = replace(pieces[0], begin_ns=_LONG_AGO_NS)
    if len(intervals) in torn:
        pieces[-1] = replace(pieces[-1], end_ns=-_LONG_AGO_NS)
    for k in range(1, len(pieces)):
        pieces[k - 1], pieces[k] = _part(pieces[k - 1], pieces[k])
    return tuple(pieces)


def _piece(intervals: Sequence[Interval], base_ns: int) -> ClockPiece:
    bounds = _intersect(intervals, DRIFT_PPM * 1e-6)
    offsets, before, after = _estimate(intervals)
    # The sums are rounded: outwards, so that the bound stays a guarantee.
    return ClockPiece(
        tuple(i.t_ns for i in intervals),
        tuple(base_ns + min(max(o, b.low_ns), b.high_ns) for o, b in zip(offsets, bounds, strict=True)),
        tuple(nextafter(base_ns + b.low_ns, -inf) for b in bounds),
        tuple(nextafter(base_ns + b.high_ns, inf) for b in bounds),
        rates=(before, after),
    )


def _part(before: ClockPiece, after: ClockPiece) -> tuple[ClockPiece, ClockPiece]:
    """Two pieces with a step between them, told how far into the time between them either clock may have gone."""
    last, first = before.t_board_ns[-1], after.t_board_ns[0]
    if first > last:
        # A board's clock never goes back while it runs (CLOCK_MONOTONIC_RAW): no time was shown twice.
        return replace(before, end_ns=first - 1), replace(after, begin_ns=last + 1)
    # It did: this is another clock, and how long each of the two was read is known by the host alone.
    host_ns = ceil(first + after.high_ns[0] - last - before.low_ns[-1])
    reach_ns = ceil(max(0, host_ns) * (1 + 2e-6 * before.drift_ppm)) + 1
    return replace(before, end_ns=last + reach_ns), replace(after, begin_ns=first - reach_ns)
