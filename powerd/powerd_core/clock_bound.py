"""What exchanges guarantee about host minus board time: where a clock stepped, and the interval that holds the truth.

A request cannot arrive before it was sent, nor an answer before it was given: when the board received, the offset is
at least t1 - t2; when it answered, at most t4 - t3. This is true whatever the network did. Two clocks drift apart by at
most a known rate, so what holds at one moment holds, widened, at every other, until a clock steps. Two exchanges that
contradict each other after widening prove a step between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
