"""Two clocks: what a run's exchanges say about host time minus board time, and how sure that is.

Two things come out, kept apart. The *bound* is guaranteed (`powerd_core.clock_bound`): the intersection of what all
exchanges of a piece guarantee, widened by ``drift_ppm``, holds the truth whatever the network did. The *estimate* is
better than its bound says (`powerd_core.clock_line`), is made from exchanges on both sides of each moment, and is kept
inside the bound. A clock that stepped begins a new piece; between two pieces there is no mapping.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, nextafter

from powerd_core.clock_bound import Intervals, intersect, interval_of, split_at_steps
from powerd_core.clock_line import estimate
from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange

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
