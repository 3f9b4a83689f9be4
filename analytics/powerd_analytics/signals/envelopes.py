"""Many points as few: least and greatest of every block, from pieces of which one at a time is in memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.streams import Points

Ints = NDArray[np.int64]
Values = NDArray[np.float64]


def joined(points: Iterable[Points]) -> Points:
    """All points in one piece, for few of them."""
    every = [(np.zeros(0, np.int64), np.zeros(0)), *points]
    t, watts = zip(*every, strict=True)
    return np.concatenate(t), np.concatenate(watts)


def envelope_of(points: Iterable[Points], starts: Ints) -> tuple[Ints, Values, Values]:
    """Time of the first point of each block, and the block's least and greatest watts.

    ``starts`` [b], in order from 0 on, are the numbers of the points at which blocks begin. Blocks without points are
    left out: when there are fewer points than was thought.
    """
    at = np.zeros(len(starts), np.int64)
    low, high = np.full(len(starts), np.inf), np.full(len(starts), -np.inf)
    done = 0
    for t, watts in points:
        first, last = _blocks(starts, done, len(t))
        begins = np.maximum(starts[first:last] - done, 0)
        low[first:last] = np.minimum(low[first:last], np.minimum.reduceat(watts, begins))
        high[first:last] = np.maximum(high[first:last], np.maximum.reduceat(watts, begins))
        new = starts[first:last] >= done
        at[first:last][new] = t[begins[new]]
        done += len(t)
    there = int(np.searchsorted(starts, done, "left"))
    return at[:there], low[:there], high[:there]


def extremes_of(points: Iterable[Points], n: int, most: int) -> Points:
    """At most about ``most`` of ``n`` points: the first and the last, and the lowest and the highest of every stretch,
    each at its own time. Of equal ones it is the first lowest and the last highest."""
    if n <= max(most, 4):
        return joined(points)
    starts = np.linspace(0, n, max(most // 2, 1), endpoint=False).astype(np.int64)
    number = np.full((2, len(starts)), -1, np.int64)
    t_ns, watts = np.zeros((2, len(starts)), np.int64), np.zeros((2, len(starts)))
    ends: list[tuple[int, int, float]] = []
    done = 0
    for t, values in points:
        first, last = _blocks(starts, done, len(t))
        begins = np.maximum(starts[first:last] - done, 0)
        which = np.repeat(np.arange(last - first), np.diff(np.append(begins, len(t))))
        order = np.lexsort((values, which))  # within each stretch from low to high
        lowest, highest = order[begins], order[np.append(begins[1:], len(t)) - 1]
        for side, found in enumerate((lowest, highest)):
            known, best = number[side, first:last] >= 0, watts[side, first:last]
            is_better = values[found] >= best if side else values[found] < best
            take = ~known | is_better
            at = first + np.flatnonzero(take)
            number[side, at] = done + found[take]
            t_ns[side, at], watts[side, at] = t[found[take]], values[found[take]]
        ends = [ends[0] if ends else (done, int(t[0]), float(values[0]))]
        ends.append((done + len(t) - 1, int(t[-1]), float(values[-1])))
        done += len(t)
    there = number.ravel() >= 0
    numbers = np.concatenate([number.ravel()[there], [e[0] for e in ends]]).astype(np.int64)
    _, keep = np.unique(numbers, return_index=True)
    times = np.concatenate([t_ns.ravel()[there], np.array([e[1] for e in ends], np.int64)])
    return times[keep], np.concatenate([watts.ravel()[there], [e[2] for e in ends]])[keep]


def _blocks(starts: Ints, done: int, count: int) -> tuple[int, int]:
    """The blocks that points ``done`` to ``done + count - 1`` lie in."""
    first = int(np.searchsorted(starts, done, "right")) - 1
    return first, int(np.searchsorted(starts, done + count, "left"))
