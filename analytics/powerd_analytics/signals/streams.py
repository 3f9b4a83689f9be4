"""A line's power point by point in order of time, and its plain joules, whether or not its readings are in memory.

What is in memory comes as one piece. Of a `SlicedSignal` one slice is in memory at a time, and each slice gives the
points between the two readings at which it meets its neighbours: every point once, as with all of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import FAR_NS, SlicedSignal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Points = tuple[Ints, Values]
"""Moments and watts [n]."""


@dataclass(frozen=True, slots=True)
class View:
    """The time of which points are wanted, and what a point is.

    For curves, a counter's point is the mean power of an interval at its middle, and there is one more point on each
    side of the view where there is one. With ``is_step``, a point holds until the next: a counter's stands where its
    interval begins, and the first is the last one at or before the view.
    """

    begin_ns: int = -FAR_NS
    end_ns: int = FAR_NS
    is_step: bool = False

    def points(self, signal: Signal) -> Points:
        """All points of readings that are in memory."""
        if not self.is_step or not signal.is_counter:
            return signal.power()
        t, watts = signal.power()
        return signal.t_ns[: len(t)], watts

    def cut(self, t_ns: Ints, *, is_first: bool = True, is_last: bool = True) -> slice:
        """Those of the points that the view wants; of the first piece and the last only."""
        before, behind = ("right", 0) if self.is_step else ("left", 1)
        first = max(int(np.searchsorted(t_ns, self.begin_ns, before)) - 1, 0) if is_first else 0  # type: ignore[call-overload]
        last = int(np.searchsorted(t_ns, self.end_ns, "right")) + behind if is_last else len(t_ns)
        return slice(first, min(last, len(t_ns)))


def points_of(signal: Signal, view: View = View()) -> Iterator[Points]:
    """The points of a view, in order, as pieces that are not empty."""
    yield from (found for found in _points_by_slice(signal, view) if len(found[0]))


def count_points(signal: Signal, view: View = View()) -> int:
    """How many points `points_of` gives. Slices in the middle of the view are read only where a counter has to be
    looked at to know."""
    if not isinstance(signal, SlicedSignal):
        return sum(len(t) for t, _ in points_of(signal, view))
    first, last = _slices_in(signal, view)
    if signal.is_counter or last - first < 2:
        return sum(len(t) for t, _ in points_of(signal, view))
    found = sum(len(t) for t, _ in _points_by_slice(signal, view, (first, last)))
    return found + int(signal.good[first + 1 : last].sum())


def good_readings_of(signal: Signal) -> int:
    """Readings that its energies come from."""
    if not isinstance(signal, SlicedSignal):
        return len(signal)
    if not signal.is_counter:
        return int(signal.good.sum())
    return sum(int(np.count_nonzero(_of_core(piece.t_ns, low, high))) for piece, low, high in cores_of(signal))


def cores_of(signal: Signal, which: Sequence[int] | None = None) -> Iterator[tuple[Signal, int, int]]:
    """A signal piece by piece, each with the readings between which it counts: behind the first, up to the second.

    What a piece has beyond them are its neighbours' readings. ``which`` are the numbers of slices, all without it.
    """
    if not isinstance(signal, SlicedSignal):
        yield signal, -FAR_NS, FAR_NS
        return
    cuts = np.concatenate([[-FAR_NS], signal.cuts_ns, [FAR_NS]])
    numbers = range(len(cuts) - 1) if which is None else which
    with signal.slices() as read:
        for done, i in enumerate(numbers):
            signal.progress(done / len(numbers), f"{signal.line.name}: slice {i + 1} of {len(cuts) - 1}")
            yield read(i), int(cuts[i]), int(cuts[i + 1])


def holes_of(signal: Signal, view: View = View()) -> Ints:
    """Intervals between good readings that miss some and meet a view: their ends [h, 2]."""
    found = [np.zeros((0, 2), np.int64)]
    which = None
    if isinstance(signal, SlicedSignal):
        first, last = _slices_in(signal, view)
        # A counter's interval may have begun well before the reading at which a slice does.
        which = range(max(first - 1, 0), last + 1)
    for piece, low, high in cores_of(signal, which):
        if len(piece) < 2:
            continue
        t = piece.t_ns
        # An interval is its first reading's: the one at which two slices meet begins in the later one.
        own = (t[:-1] >= low) & (t[:-1] < high) & (t[1:] >= view.begin_ns) & (t[:-1] <= view.end_ns)
        at = np.flatnonzero((piece.missing_ns() > 0) & own)
        found.append(np.stack([t[at], t[at + 1]], axis=1))
    return np.concatenate(found)


def plain_j(signal: Signal, *intervals: tuple[Ints, Ints]) -> list[Values]:
    """Plain integrals over several lists of intervals [m], each list disjoint and in order, in one pass over the slices
    that they lie in."""
    if not isinstance(signal, SlicedSignal):
        integral = signal.integral()
        return [integral.between(begin, end) for begin, end in intervals]
    joules = [np.zeros(len(begin)) for begin, _ in intervals]
    there = [(int(begin[0]), int(end[-1])) for begin, end in intervals if len(begin)]
    if not there:
        return joules
    first, last = np.searchsorted(signal.cuts_ns, [min(b for b, _ in there), max(e for _, e in there)], "left")
    for piece, low, high in cores_of(signal, range(int(first), int(last) + 1)):
        if len(piece) < 2:
            continue
        integral = piece.integral()
        for found, (begin, end) in zip(joules, intervals, strict=True):
            some = slice(int(np.searchsorted(end, low, "right")), int(np.searchsorted(begin, high, "left")))
            found[some] += integral.between(np.clip(begin[some], low, high), np.clip(end[some], low, high))
    return joules


class Follower:
    """A line's power at the moments of another one, asked for in order: straight between its own points.

    Of its points only those around the moments asked for are kept.
    """

    def __init__(self, signal: Signal, view: View, origin_ns: int) -> None:
        self._points = points_of(signal, view)
        self._origin_ns = origin_ns
        self._t, self._watts = next(self._points, (np.zeros(0, np.int64), np.zeros(0)))
        self._is_done = False

    def at(self, t_ns: Ints) -> Values:
        """Watts at moments [n], none earlier than those before. Beyond its ends the line stays at its last power."""
        while not self._is_done and self._t[-1] < t_ns[-1]:
            t, watts = next(self._points, (self._t[:0], self._watts[:0]))
            self._is_done = not len(t)
            self._t, self._watts = np.concatenate([self._t, t]), np.concatenate([self._watts, watts])
        x, knots = (t_ns - self._origin_ns).astype(np.float64), (self._t - self._origin_ns).astype(np.float64)
        found: Values = np.interp(x, knots, self._watts)
        past = max(int(np.searchsorted(self._t, t_ns[-1], "right")) - 1, 0)
        self._t, self._watts = self._t[past:], self._watts[past:]
        return found


def fastest_of(signals: Sequence[Signal], view: View = View()) -> Signal:
    """The line that has most points."""
    return signals[int(np.argmax([count_points(s, view) for s in signals]))]


def summed_of(
    signals: Sequence[Signal], fastest: Signal, view: View = View(), since_ns: int = -FAR_NS
) -> Iterator[Points]:
    """Power of lines together, at the points of ``fastest`` from ``since_ns`` on.

    The others are taken in a straight line between their own points; all of them have one.
    """
    followers: list[Follower] = []
    for every, _ in points_of(fastest, view):
        t = every[int(np.searchsorted(every, since_ns, "left")) :]
        if not len(t):
            continue
        if not followers:
            # Their views have no end: the point behind the last moment is wanted too, and none is read that is not.
            followers = [Follower(s, View(int(t[0]), is_step=view.is_step), int(t[0])) for s in signals]
        total = np.zeros(len(t))
        for follower in followers:
            total += follower.at(t)
        yield t, total


def _points_by_slice(signal: Signal, view: View, which: Sequence[int] | None = None) -> Iterator[Points]:
    first, last = _slices_in(signal, view) if isinstance(signal, SlicedSignal) else (0, 0)
    numbers = range(first, last + 1) if which is None else which
    for number, (piece, low, high) in zip(numbers, cores_of(signal, numbers), strict=True):
        t, watts = view.points(piece) if len(piece) > 1 or not piece.is_counter else (piece.t_ns[:0], piece.value[:0])
        keep = view.cut(t, is_first=number == first, is_last=number == last)
        side = "left" if view.is_step else "right"
        begin = keep.start if number == first else int(np.searchsorted(t, low, side))  # type: ignore[call-overload]
        end = keep.stop if number == last else int(np.searchsorted(t, high, side))  # type: ignore[call-overload]
        yield t[begin:end], watts[begin:end]


def _slices_in(signal: SlicedSignal, view: View) -> tuple[int, int]:
    """The first and the last slice that a view needs."""
    first = np.searchsorted(signal.cuts_ns, view.begin_ns, "right" if view.is_step else "left")
    return int(first), int(np.searchsorted(signal.cuts_ns, view.end_ns, "right"))


def _of_core(t_ns: Ints, low_ns: int, high_ns: int) -> NDArray[np.bool_]:
    return (t_ns > low_ns) & (t_ns <= high_ns)
