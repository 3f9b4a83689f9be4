"""Two clocks: what a run's exchanges say about host time minus board time, and how sure that is.

Two things come out, kept apart. The *bound* is guaranteed: the true offset at an exchange lies within half its
delay, two clocks drift apart by at most ``drift_ppm``, so the intersection of all these intervals holds the truth
whatever the network did. The *estimate* is better than its bound says: a robust line through the exchanges with the
lowest delay in a sliding window, kept inside the bound. An empty intersection is a clock that stepped, and begins a
new piece; no mapping crosses one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange

DRIFT_PPM = 100.0
"""Two free-running quartz clocks differ by less: +-50 ppm each over temperature and age."""


@dataclass(frozen=True, slots=True)
class ClockPiece:
    """Host minus board time between two steps of a clock, at increasing board times (all four of one length).

    Between knots the estimate is linear; the bound is the knots' interval widened by ``drift_ppm``.
    """

    t_board_ns: tuple[int, ...]
    offset_ns: tuple[float, ...]
    low_ns: tuple[float, ...]
    high_ns: tuple[float, ...]
    drift_ppm: float = DRIFT_PPM

    def at(self, t_board_ns: int) -> tuple[float, float, float]:
        """Estimate, lower and upper bound of the offset at a board time, inside or outside the knots."""
        after = bisect_right(self.t_board_ns, t_board_ns)
        near = [i for i in (after - 1, after) if 0 <= i < len(self.t_board_ns)]
        spread = [abs(t_board_ns - self.t_board_ns[i]) * self.drift_ppm * 1e-6 for i in near]
        low = max(self.low_ns[i] - s for i, s in zip(near, spread, strict=True))
        high = min(self.high_ns[i] + s for i, s in zip(near, spread, strict=True))
        if len(near) == 2:
            (t0, t1), (o0, o1) = ([series[i] for i in near] for series in (self.t_board_ns, self.offset_ns))
            offset = o0 + (o1 - o0) * (t_board_ns - t0) / (t1 - t0)
        else:
            offset = self.offset_ns[near[0]]
        return min(max(offset, low), high), low, high


def map_clock(
    exchanges: Sequence[ClockExchange],
    *,
    drift_ppm: float = DRIFT_PPM,
    window_ns: int = 8_000_000_000,
    keep: float = 0.12,
) -> tuple[ClockPiece, ...]:
    """The mapping from a board's clock to the host's over a whole run, from all its exchanges.

    Exchanges of several epochs or with a negative delay are refused with `ClockError`; so is an empty list.
    """
    if not exchanges:
        raise ClockError("no clock exchange with the board succeeded: its times cannot be mapped")
    if len({e.epoch for e in exchanges}) > 1:
        raise ClockError("exchanges of different epochs do not share a clock")
    if any(e.delay_ns < 0 for e in exchanges):
        raise ClockError("an exchange took less time at the client than at the board: not one clock each")
    ordered = sorted(exchanges, key=lambda e: e.t_board_ns)
    # Two exchanges may end at one board time only in simulations; knots must increase strictly.
    unique = [e for i, e in enumerate(ordered) if i == 0 or e.t_board_ns > ordered[i - 1].t_board_ns]
    return tuple(_fit(piece, drift_ppm, window_ns, keep) for piece in _split_at_steps(unique, drift_ppm * 1e-6))


def _split_at_steps(ordered: Sequence[ClockExchange], drift: float) -> list[list[ClockExchange]]:
    pieces: list[list[ClockExchange]] = []
    low = high = 0.0
    for e in ordered:
        e_low, e_high = e.offset_ns - e.delay_ns / 2, e.offset_ns + e.delay_ns / 2
        if pieces:
            spread = drift * (e.t_board_ns - pieces[-1][-1].t_board_ns)
            low, high = max(low - spread, e_low), min(high + spread, e_high)
            if low <= high:
                pieces[-1].append(e)
                continue
        pieces.append([e])
        low, high = e_low, e_high
    return pieces


def _fit(piece: Sequence[ClockExchange], drift_ppm: float, window_ns: int, keep: float) -> ClockPiece:
    times = [e.t_board_ns for e in piece]
    lows, highs = _intersect(piece, drift_ppm * 1e-6)
    centres, slopes, offsets = _lines(piece, window_ns, keep, drift_ppm * 1e-6)
    estimates = []
    for t, low, high in zip(times, lows, highs, strict=True):
        after = bisect_right(centres, t)
        near = [i for i in (after - 1, after) if 0 <= i < len(centres)]
        values = [offsets[i] + slopes[i] * (t - centres[i]) for i in near]
        value = values[0]
        if len(near) == 2:
            share = (t - centres[near[0]]) / (centres[near[1]] - centres[near[0]])
            value = values[0] * (1 - share) + values[1] * share
        estimates.append(min(max(value, low), high))
    return ClockPiece(tuple(times), tuple(estimates), tuple(lows), tuple(highs), drift_ppm)


def _intersect(piece: Sequence[ClockExchange], drift: float) -> tuple[list[float], list[float]]:
    """Bounds at every exchange from all exchanges: one pass forward, one back."""
    lows = [e.offset_ns - e.delay_ns / 2 for e in piece]
    highs = [e.offset_ns + e.delay_ns / 2 for e in piece]
    n = len(piece)
    for order in (range(1, n), range(n - 2, -1, -1)):
        for i in order:
            j = i - order.step
            spread = drift * abs(piece[i].t_board_ns - piece[j].t_board_ns)
            lows[i] = max(lows[i], lows[j] - spread)
            highs[i] = min(highs[i], highs[j] + spread)
    return lows, highs


def _lines(
    piece: Sequence[ClockExchange], window_ns: int, keep: float, drift: float
) -> tuple[list[float], list[float], list[float]]:
    """Centre, slope and offset of a robust line in each of the half-overlapping windows."""
    centres: list[float] = []
    slopes: list[float] = []
    offsets: list[float] = []
    first, last = piece[0].t_board_ns, piece[-1].t_board_ns
    start = first
    begin = end = 0
    while True:
        stop = start + window_ns
        while begin < len(piece) and piece[begin].t_board_ns < start:
            begin += 1
        while end < len(piece) and piece[end].t_board_ns <= stop:
            end += 1
        inside = sorted(piece[begin:end], key=lambda e: e.delay_ns)
        if inside:
            best = inside[: max(3, round(keep * len(inside)))]
            centre = median(e.t_board_ns for e in best)
            # Theil-Sen, over pairs far enough apart for their slope to mean something.
            pairs = [
                (b.offset_ns - a.offset_ns) / (b.t_board_ns - a.t_board_ns)
                for i, a in enumerate(best)
                for b in best[i + 1 :]
                if abs(b.t_board_ns - a.t_board_ns) > window_ns // 4
            ]
            slope = min(max(median(pairs), -drift), drift) if len(pairs) >= 3 else 0.0
            if not centres or centre > centres[-1]:
                centres.append(centre)
                slopes.append(slope)
                offsets.append(median(e.offset_ns - slope * (e.t_board_ns - centre) for e in best))
        if stop >= last:
            return centres, slopes, offsets
        start += window_ns // 2
