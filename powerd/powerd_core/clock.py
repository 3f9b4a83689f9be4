"""What exchanges guarantee about host minus board time: where a clock stepped, and the interval that holds the truth.

A request cannot arrive before it was sent, nor an answer before it was given: when the board received, the offset is
at least t1 - t2; when it answered, at most t4 - t3. This is true whatever the network did. Two clocks drift apart by at
most a known rate, so what holds at one moment holds, widened, at every other, until a clock steps. Two exchanges that
contradict each other after widening prove a step between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, nextafter

from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange

READING_NS = 1
"""Times are cut to whole nanoseconds: each difference of two of them may be off by one."""


@dataclass(slots=True)
class Intervals:
    """What each exchange alone guarantees at its middle: ``low_ns`` and ``high_ns`` are above a base that all share."""

    t_ns: list[int] = field(default_factory=list)
    low_ns: list[float] = field(default_factory=list)
    high_ns: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.t_ns)

    def add(self, t_ns: int, low_ns: float, high_ns: float) -> None:
        self.t_ns.append(t_ns)
        self.low_ns.append(low_ns)
        self.high_ns.append(high_ns)

    def part(self, begin: int, end: int) -> Intervals:
        """Those numbered ``begin`` to ``end``, by increasing times, each time once."""
        rows = zip(self.t_ns[begin:end], self.low_ns[begin:end], self.high_ns[begin:end], strict=True)
        found = Intervals()
        for t, low, high in sorted(rows):
            if found.t_ns and found.t_ns[-1] == t:
                found.low_ns[-1] = max(found.low_ns[-1], low)
                found.high_ns[-1] = min(found.high_ns[-1], high)
            else:
                found.add(t, low, high)
        return found


def interval_of(exchange: ClockExchange, base_ns: int, drift: float) -> tuple[int, float, float]:
    """The middle of an exchange at the board, and the interval of the offset there, above ``base_ns``."""
    e = exchange
    t_ns = e.t_board_ns
    # Each end holds at its own moment: the time that the board took to answer is time to drift.
    low = e.t1_host_ns - e.t2_board_ns - base_ns - READING_NS - drift * (t_ns - e.t2_board_ns)
    high = e.t4_host_ns - e.t3_board_ns - base_ns + READING_NS + drift * (e.t3_board_ns - t_ns)
    return t_ns, low, high


def split_at_steps(intervals: Intervals, drift: float, torn: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Begin and end numbers of the exchanges that certainly share a clock, for each piece between two steps.

    The intervals come in the order in which the host sent. Before each number in ``torn`` there is a step for another
    reason. What could have been made on either side of a step is in no piece.
    """
    torn = frozenset(torn)
    starts = [0]
    reference, low, high = intervals.t_ns[0], intervals.low_ns[0], intervals.high_ns[0]
    for i in range(1, len(intervals)):
        t, own_low, own_high = intervals.t_ns[i], intervals.low_ns[i], intervals.high_ns[i]
        if i not in torn:
            if t >= reference:
                spread = drift * (t - reference)
                reference = t
                low, high = max(low - spread, own_low), min(high + spread, own_high)
            else:
                # Overtaken on the way: what it says is carried to the later moment.
                spread = drift * (reference - t)
                low, high = max(low, own_low - spread), min(high, own_high + spread)
            if low <= high:
                continue
        starts.append(i)
        reference, low, high = t, own_low, own_high
    pieces = list(zip(starts, [*starts[1:], len(intervals)], strict=True))
    for k, (begin, end) in enumerate(pieces[:-1]):
        if end not in torn:
            pieces[k] = begin, _last_before(intervals, begin, end, pieces[k + 1], drift)
    return pieces


def _last_before(intervals: Intervals, begin: int, end: int, after: tuple[int, int], drift: float) -> int:
    """The end of a piece without the exchanges at it that the next piece would accept as well: slow ones, as a rule."""
    first = intervals.t_ns[after[0]]
    numbers = range(*after)
    low = max(intervals.low_ns[i] - drift * abs(intervals.t_ns[i] - first) for i in numbers)
    high = min(intervals.high_ns[i] + drift * abs(intervals.t_ns[i] - first) for i in numbers)
    while end - 1 > begin:
        i = end - 1
        spread = drift * abs(intervals.t_ns[i] - first)
        if intervals.low_ns[i] > high + spread or intervals.high_ns[i] < low - spread:
            break
        end -= 1
    return end


def intersect(intervals: Intervals, drift: float) -> tuple[list[float], list[float]]:
    """Bounds at every exchange of one piece from all of its exchanges: one pass forward, one back."""
    t_ns, lows, highs = intervals.t_ns, list(intervals.low_ns), list(intervals.high_ns)
    _pass(t_ns, lows, highs, range(1, len(t_ns)), drift)
    _pass(t_ns, lows, highs, range(len(t_ns) - 2, -1, -1), drift)
    for i, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low > high:
            # Overtaken answers can hide a step of a microsecond from the split: what then holds is between both.
            lows[i], highs[i] = high, low
    return lows, highs


def _pass(t_ns: Sequence[int], lows: list[float], highs: list[float], order: range, drift: float) -> None:
    if not order:
        return
    before = order.start - order.step
    t, low, high = t_ns[before], lows[before], highs[before]
    for i in order:
        spread = drift * abs(t_ns[i] - t)
        t, low, high = t_ns[i], low - spread, high + spread
        if lows[i] > low:
            low = lows[i]
        else:
            lows[i] = low
        if highs[i] < high:
            high = highs[i]
        else:
            highs[i] = high


# The best estimate of an offset over time from exchanges on a path with queues, as against what is guaranteed.
#
# A queue only ever delays. So the greatest t1 - t2 and the least t4 - t3 of a few seconds are nearly free of queueing,
# each in its own direction, even where no single exchange is; the offset is half-way between. How far these two are
# apart, beyond what they are in quieter times, says how little to trust them. They are joined by a smoother in both
# directions of time, whose model is an offset that changes at a rate, and a rate that wanders as that of a quartz does.


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


# Two clocks: what a run's exchanges say about host time minus board time, and how sure that is.
#
# Two things come out, kept apart. The *bound* is guaranteed (`powerd_core.clock`): the intersection of what all
# exchanges of a piece guarantee, widened by ``drift_ppm``, holds the truth whatever the network did. The *estimate* is
# better than its bound says (`powerd_core.clock`), is made from exchanges on both sides of each moment, and is kept
# inside the bound. A clock that stepped begins a new piece; between two pieces there is no mapping.


DRIFT_PPM = 100.0
"""Two free-running quartz clocks differ by less: +-50 ppm each over temperature and age."""
_LONG_AGO_NS = -(1 << 62)


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

    def may_hold(self, t_board_ns: int) -> bool:
        """Whether this clock can have shown that time at all, on its side of the steps."""
        return (self.begin_ns is None or t_board_ns >= self.begin_ns) and (
            self.end_ns is None or t_board_ns <= self.end_ns
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
    found = [piece for piece in pieces if piece.may_hold(t_board_ns)]
    return found[0] if len(found) == 1 and found[0].holds(t_board_ns) else None


def map_clock(exchanges: Sequence[ClockExchange], *, drift_ppm: float = DRIFT_PPM) -> tuple[ClockPiece, ...]:
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
    drift = drift_ppm * 1e-6
    # Offsets are counted from one of them: a float of nanoseconds since boot would lose whole nanoseconds.
    base_ns = ordered[0].t1_host_ns - ordered[0].t2_board_ns
    intervals, torn = Intervals(), []
    for e in ordered:
        if e.delay_ns < 0:
            torn.append(len(intervals))
        else:
            intervals.add(*interval_of(e, base_ns, drift))
    if not intervals:
        raise ClockError("every exchange took less time at the client than at the board: not one clock each")
    parts = [intervals.part(*numbers) for numbers in split_at_steps(intervals, drift, torn)]
    pieces = [_piece(part, base_ns, drift_ppm) for part in parts]
    if 0 in torn:
        pieces[0] = replace(pieces[0], begin_ns=_LONG_AGO_NS)
    if len(intervals) in torn:
        pieces[-1] = replace(pieces[-1], end_ns=-_LONG_AGO_NS)
    for k in range(1, len(pieces)):
        pieces[k - 1], pieces[k] = _part(pieces[k - 1], pieces[k])
    return tuple(pieces)


def _piece(intervals: Intervals, base_ns: int, drift_ppm: float) -> ClockPiece:
    lows, highs = intersect(intervals, drift_ppm * 1e-6)
    offsets, before, after = estimate(intervals)
    # The sums are rounded: outwards, so that the bound stays a guarantee.
    return ClockPiece(
        tuple(intervals.t_ns),
        tuple(base_ns + min(max(o, low), high) for o, low, high in zip(offsets, lows, highs, strict=True)),
        tuple(nextafter(base_ns + low, -inf) for low in lows),
        tuple(nextafter(base_ns + high, inf) for high in highs),
        drift_ppm,
        (before, after),
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


# The offset of a board's clock while exchanges come in: for a recorder and for live views.
#
# Only the past counts, so this is less exact than `powerd_core.clock.map_clock` after the run; its bound is as much of
# a guarantee. Memory and time for each exchange are bounded.


FULL = 25
"""Exchanges after which a stretch ends even before its time: at first they come fast."""


class ClockFilter:
    """Host minus board time now, from the exchanges so far. Another epoch or a step begins anew."""

    def __init__(self, *, drift_ppm: float = DRIFT_PPM, window_ns: int = QUIET_NS) -> None:
        self._drift = drift_ppm * 1e-6
        self._window_ns = window_ns
        self.epoch = 0
        self.count = 0
        """Exchanges since the last step."""
        self.steps = 0
        self._base_ns = 0
        self._t_ns = 0
        self._origin_s = 0.0
        self._low = self._high = 0.0
        self._line = RateFilter(0.0, 0.0)
        # The least and the greatest that the present stretch allows above the line, the stretch's start and count.
        self._least = self._most = 0.0
        self._stretch_ns = self._inside = 0
        # Widths of past stretches that may still be the least of the window: times and widths increase.
        self._quick: deque[tuple[int, float]] = deque()

    @property
    def skew_ppm(self) -> float:
        """The rate at which the offset grows, as far as it is known."""
        return self._line.rate * 1e-3

    def add(self, exchange: ClockExchange) -> bool:
        """Take an exchange. True when it shows that a clock stepped or another board answers: all before is void."""
        if exchange.delay_ns < 0:
            # A step in the middle of the exchange: not even this one says where the clocks are now.
            was = self.count > 0
            self.count = 0
            self.steps += was
            return was
        if self.count == 0 or exchange.epoch != self.epoch:
            was = self.count > 0
            self.steps += was
            self._begin(exchange)
            return was
        t, low, high = interval_of(exchange, self._base_ns, self._drift)
        spread = self._drift * abs(t - self._t_ns)
        if t >= self._t_ns:
            new_low, new_high = max(self._low - spread, low), min(self._high + spread, high)
        else:
            new_low, new_high = max(self._low, low - spread), min(self._high, high + spread)
        if new_low > new_high:
            self.steps += 1
            self._begin(exchange)
            return True
        self.count += 1
        self._low, self._high = new_low, new_high
        self._t_ns = max(self._t_ns, t)
        self._follow(t, low, high)
        return False

    def at(self, t_board_ns: int) -> tuple[float, float, float]:
        """Estimate, lower and upper bound of the offset at a board time. Raises `ClockError` before any exchange."""
        if not self.count:
            raise ClockError("no clock exchange with the board succeeded since its clock was last known")
        spread = self._drift * abs(t_board_ns - self._t_ns)
        low, high = self._low - spread, self._high + spread
        value = min(max(self._value(t_board_ns), low), high)
        return self._base_ns + value, self._base_ns + low, self._base_ns + high

    def _begin(self, exchange: ClockExchange) -> None:
        self.epoch, self.count = exchange.epoch, 1
        self._base_ns = exchange.t1_host_ns - exchange.t2_board_ns
        self._t_ns, self._low, self._high = interval_of(exchange, self._base_ns, self._drift)
        self._origin_s = self._t_ns * 1e-9
        middle = (self._low + self._high) / 2
        # Corrected by the first stretch's end, and until then by what is found in it.
        self._line = RateFilter(0.0, middle, p_offset=(self._high - self._low) ** 2)
        self._least, self._most = self._low - middle, self._high - middle
        self._stretch_ns, self._inside = self._t_ns, 1
        self._quick.clear()

    def _value(self, t_ns: int) -> float:
        line = self._line
        value = line.offset + line.rate * (t_ns * 1e-9 - self._origin_s - line.t_s)
        # Before there is a line, the least delays of the present stretch are all that there is.
        return value if self._quick else value + (self._least + self._most) / 2

    def _follow(self, t: int, low: float, high: float) -> None:
        """Keep the least delay of either direction; at a stretch's end, correct the line by them."""
        line = self._line
        expected = line.offset + line.rate * (t * 1e-9 - self._origin_s - line.t_s)
        if self._inside:
            self._least = max(self._least, low - expected)
            self._most = min(self._most, high - expected)
        else:
            self._least, self._most, self._stretch_ns = low - expected, high - expected, t
        self._inside += 1
        if self._inside < FULL and t - self._stretch_ns < FINE_NS:
            return
        self._inside = 0
        middle_ns = (self._stretch_ns + t) // 2
        width = max(self._most - self._least, 0.0)
        line.predict(middle_ns * 1e-9 - self._origin_s)
        sigma = FLOOR_NS + DOUBT * (width - self._quietest(middle_ns, width))
        line.update(line.offset + (self._least + self._most) / 2, sigma)

    def _quietest(self, t_ns: int, width: float) -> float:
        quick = self._quick
        while quick and quick[-1][1] >= width:
            quick.pop()
        quick.append((t_ns, width))
        while quick[0][0] < t_ns - self._window_ns:
            quick.popleft()
        return quick[0][1]
