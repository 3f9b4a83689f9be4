"""The signals of a run's lines: loaded, or read from the file slice by slice; their points in order, and plain joules.

Lines with more readings than memory holds stay in the file (`SlicedSignal`): they are read in slices of time, each with
a margin of its neighbours, which meet at good readings. One slice is in memory at a time, and each gives the points
between the two readings at which it meets its neighbours: every point once, as with all of them in memory. Pictures
show many points as few: the least and the greatest of every block (`envelope_of`, `extremes_of`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.run import LineReader, Progress, Run, no_progress
from powerd_client.signals.signal import (
    LATE_FACTOR,
    Readings,
    RunLine,
    Signal,
    columns_of,
    count_faults,
    good_readings,
    joined_readings,
    make_signal,
    usual_spacing,
)
from powerd_core.model import CounterConversion, Fault

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Points = tuple[Ints, Values]
"""Moments and watts [n]."""

IN_MEMORY = 1 << 22
"""Readings of all lines together up to which they are loaded whole: some hundred MB."""
SLICE = 1 << 19
"""Readings of a slice. What their phases need on the way is about 400 bytes a reading, of two slices at once."""
FAR_NS = 1 << 61
"""Before the first and behind the last moment of any run."""
_MARGIN_SHARE, _LEAST_MARGIN, _RESOLUTIONS = 32, 64, 16


def _no_times() -> Ints:
    return np.zeros(0, np.int64)


def load_signal(run: Run, line: str) -> Signal:
    """The signal of a line of a run. Raises `AnalysisError` for an unknown line or one with unusable columns."""
    info = run.line(line)
    return make_signal(info, run.readings(line), run.clocks.get(info.clock))


@dataclass(frozen=True, slots=True)
class SlicedSignal(Signal):
    """A line as a whole, whose readings stay in the file.

    ``t_ns`` and ``value`` have its first and its last good reading only.
    """

    run: Run | None = None
    bounds: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """[k, 3] for each slice: its first reading in the file and the one behind its last, with margins, and the good
    one at which it meets the slice before where that lies in front of these, else -1."""
    unknown_ns: int = 0
    """Time in which the counter was set back."""

    def set_back_ns(self) -> int:
        return self.unknown_ns

    @contextmanager
    def slices(self) -> Iterator[Callable[[int], Signal]]:
        """A function that reads slice ``i`` with its margins; the file stays open meanwhile."""
        assert self.run is not None
        with self.run.reader(self.line.name) as reader:
            yield lambda i: self._read(reader, i)

    def _read(self, reader: LineReader, i: int) -> Signal:
        first, last, before = (int(n) for n in self.bounds[i])
        columns = columns_of(self.line)
        parts = [reader.readings(first, last, columns)]
        if before >= 0:
            # The bad reading behind it goes along: it tells that there are some between.
            parts.insert(0, reader.readings(before, min(before + 2, first), columns))
        signal = make_signal(self.line, joined_readings(parts), self.clock)
        return replace(signal, spacing_ns=self.spacing_ns, range_w=self.range_w)


def load_sliced(run: Run, name: str, size: int = SLICE, progress: Progress = no_progress) -> SlicedSignal:
    """Go once through the readings of a line. Raises `RunFileError`, and `AnalysisError` for an unknown line."""
    line = run.line(name)
    clock = run.clocks.get(line.clock)
    margin = max(size // _MARGIN_SHARE, _LEAST_MARGIN, _RESOLUTIONS * _reach_ns(line) // line.period_ns)
    starts = np.arange(0, max(line.count, 1), size)
    stops = np.append(starts[1:], line.count)
    scan = _Scan()
    with run.reader(name) as reader:
        for i, (first, last) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            progress(i / len(starts), f"reading {name}")
            scan.add(line, reader.readings(first, last, columns_of(line)), first)
    begins, before = np.maximum(starts - margin, 0), np.array(scan.before)
    bounds = np.stack([begins, np.minimum(stops + margin, line.count), np.where(before < begins, before, -1)], axis=1)
    none = Readings(_no_times(), np.zeros(0, np.uint16), {name: _no_times() for name in columns_of(line)})
    ends = make_signal(line, joined_readings(scan.ends or [none]), clock)
    high, low = (np.concatenate(times) for times in zip(*scan.clipped, strict=True))
    whole = replace(
        ends,
        spacing_ns=scan.spacing_ns(line),
        centre_ns=scan.centre_ns,
        bad=scan.bad,
        faults=scan.faults,
        unordered=scan.unordered,
        clipped_ns=high,
        clipped_low_ns=low,
        range_w=scan.range_w,
        cuts_ns=np.array(scan.cuts[:-1], np.int64),
        progress=progress,
    )
    own = {f.name: getattr(whole, f.name) for f in fields(Signal)}
    return SlicedSignal(**own, run=run, bounds=bounds, unknown_ns=scan.unknown_ns)


def load_bounded(run: Run, name: str, progress: Progress = no_progress) -> Signal:
    """The signal of one line, read in slices when it is too long to be loaded."""
    return load_together(run, [name], progress)[0]


def load_together(
    run: Run,
    names: Sequence[str],
    progress: Progress = no_progress,
    *,
    in_memory: float | None = None,
    slice_size: int = SLICE,
) -> list[Signal]:
    """The signals of lines that are looked at together, in slices of ``slice_size`` when they have more than
    ``in_memory`` readings together (`IN_MEMORY` without a number)."""
    is_long = sum(run.line(name).count for name in names) > (IN_MEMORY if in_memory is None else in_memory)
    signals: list[Signal] = []
    for i, name in enumerate(names):
        progress(i / len(names), f"reading {name}")
        signals.append(load_sliced(run, name, slice_size, progress) if is_long else load_signal(run, name))
    return signals


def parts_between(signal: Signal, low_ns: int, high_ns: int) -> Iterator[Signal]:
    """The signal in pieces that together hold all readings between two moments, some of them perhaps twice."""
    first, last = np.searchsorted(signal.cuts_ns, [low_ns, high_ns])
    with signal.slices() as read:
        for i in range(int(first), int(last) + 1):
            yield read(i)


class _Scan:
    """What one pass over a line's readings, slice after slice, finds out."""

    def __init__(self) -> None:
        self.ends: list[Readings] = []
        """The first and the last good reading so far."""
        self.cuts: list[int] = []
        self.before: list[int] = []
        """For each slice, the number of the last good reading before it, -1 for none."""
        self.clipped: list[tuple[Ints, Ints]] = [(_no_times(), _no_times())]
        self.faults: Counter[Fault] = Counter()
        self.bad, self.unordered, self.unknown_ns, self.centre_ns, self.last_good = 0, 0, 0, 0.0, -1
        self.range_w: tuple[float, float] | None = None
        self._spacings: list[tuple[int, float]] = []

    def add(self, line: RunLine, readings: Readings, first: int) -> None:
        """The next slice, from the reading with the number ``first`` on."""
        # The last good reading goes along: an interval across two slices is one like any other.
        joined = joined_readings([self.ends[1], readings]) if self.ends else readings
        good = np.flatnonzero(good_readings(joined)[len(joined.t_ns) - len(readings.t_ns) :])
        self.before.append(self.last_good)
        self.bad += len(readings.t_ns) - len(good)
        self.faults.update(count_faults(readings.flags))
        signal = make_signal(line, joined)
        self.unordered += signal.unordered
        self.clipped.append((signal.clipped_ns, signal.clipped_low_ns))
        if len(signal) > 2:
            self._spacings.append((len(signal), signal.spacing_ns))
        self.centre_ns = max(self.centre_ns, signal.centre_ns)
        self.unknown_ns += signal.set_back_ns()
        _, watts = signal.power()
        if signal.is_counter and len(watts) > 2:
            watts = watts[1:-1]  # where a slice ends, a counter need not have just moved
        if len(watts):
            low, high = self.range_w or (np.inf, -np.inf)
            self.range_w = min(low, float(watts.min())), max(high, float(watts.max()))
        if len(good):
            begin, end = (readings.at(int(k)) for k in (good[0], good[-1]))
            self.ends, self.last_good = [self.ends[0] if self.ends else begin, end], int(first + good[-1])
        self.cuts.append(int(self.ends[1].t_ns[0]) if self.ends else -FAR_NS)

    def spacing_ns(self, line: RunLine) -> float:
        """The usual distance of good readings: the median over slices of their medians, by readings."""
        return usual_spacing(self._spacings, line)


def _reach_ns(line: RunLine) -> int:
    a, is_counter = line.accuracy, isinstance(line.conversion, CounterConversion)
    return max(a.update_ns, a.reach_ns + 2 * a.centre_ns, line.period_ns if is_counter else 0)


# ---- points in order of time -------------------------------------------------------------------------------------


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
    first, last = _slices_in(signal, view)
    numbers = range(first, last + 1)
    for number, (piece, low, high) in zip(numbers, cores_of(signal, numbers), strict=True):
        t, watts = view.points(piece) if len(piece) > 1 or not piece.is_counter else (piece.t_ns[:0], piece.value[:0])
        keep = view.cut(t, is_first=number == first, is_last=number == last)
        side = "left" if view.is_step else "right"
        begin = keep.start if number == first else int(np.searchsorted(t, low, side))  # type: ignore[call-overload]
        end = keep.stop if number == last else int(np.searchsorted(t, high, side))  # type: ignore[call-overload]
        if end > begin:
            yield t[begin:end], watts[begin:end]


def count_points(signal: Signal, view: View = View()) -> int:
    """How many points `points_of` gives."""
    return sum(len(t) for t, _ in points_of(signal, view))


def good_readings_of(signal: Signal) -> int:
    """Readings that its energies come from."""
    return sum(int(np.count_nonzero((s.t_ns > low) & (s.t_ns <= high))) for s, low, high in cores_of(signal))


def cores_of(signal: Signal, which: Sequence[int] | None = None) -> Iterator[tuple[Signal, int, int]]:
    """A signal piece by piece, each with the readings between which it counts: behind the first, up to the second.

    What a piece has beyond them are its neighbours' readings. ``which`` are the numbers of slices, all without it.
    """
    cuts = np.concatenate([[-FAR_NS], signal.cuts_ns, [FAR_NS]])
    numbers = range(len(cuts) - 1) if which is None else which
    with signal.slices() as read:
        for done, i in enumerate(numbers):
            signal.progress(done / len(numbers), f"{signal.line.name}: slice {i + 1} of {len(cuts) - 1}")
            yield read(i), int(cuts[i]), int(cuts[i + 1])


def holes_of(signal: Signal, view: View = View()) -> Ints:
    """Intervals between good readings that miss some and meet a view: their ends [h, 2]."""
    holes = [np.zeros((0, 2), np.int64)]
    first, last = _slices_in(signal, view)
    # A counter's interval may have begun well before the reading at which a slice does.
    for piece, low, high in cores_of(signal, range(max(first - 1, 0), last + 1)):
        if len(piece) < 2:
            continue
        t = piece.t_ns
        # An interval is its first reading's: the one at which two slices meet begins in the later one.
        own = (t[:-1] >= low) & (t[:-1] < high) & (t[1:] >= view.begin_ns) & (t[:-1] <= view.end_ns)
        at = np.flatnonzero((piece.missing_ns() > 0) & own)
        holes.append(np.stack([t[at], t[at + 1]], axis=1))
    return np.concatenate(holes)


def silences_of(signal: Signal, begin_ns: int, end_ns: int) -> Values:
    """Stretches of a run without good readings, at its two ends too: seconds since its begin [h, 2]."""
    holes = holes_of(signal, View(begin_ns, end_ns))
    if len(signal) and not signal.line.accuracy.step_j:
        ends = np.array([[begin_ns, signal.t_ns[0]], [signal.t_ns[-1], end_ns]])
        is_late = ends[:, 1] - ends[:, 0] > LATE_FACTOR * signal.resolution_ns
        holes = np.concatenate([ends[:1][is_late[:1]], holes, ends[1:][is_late[1:]]])
    since_s: Values = (np.clip(holes, begin_ns, end_ns) - begin_ns).astype(np.float64) * 1e-9
    return since_s


def missing_of(signal: Signal, begin_ns: int, end_ns: int) -> tuple[float, float]:
    """Seconds between two moments without readings, as a line's share in ``missing_s`` of an energy; and the longest
    stretch between two good readings of the signal."""
    missing_ns = longest_ns = 0.0
    first, last = end_ns, begin_ns
    for piece, low, high in cores_of(signal):
        if len(piece) < 2:
            continue
        # An interval is its first reading's: the one at which two slices meet begins in the later one.
        own = (piece.t_ns[:-1] >= low) & (piece.t_ns[:-1] < high)
        upto = np.concatenate([[0.0], np.cumsum(np.where(own, piece.missing_ns(), 0.0))])
        ends = np.interp([0, end_ns - begin_ns], piece.t_ns - begin_ns, upto)
        missing_ns += float(ends[1] - ends[0])
        longest_ns = max(longest_ns, float(np.diff(piece.t_ns)[own].max(initial=0)))
        first, last = min(first, int(piece.t_ns[0])), max(last, int(piece.t_ns[-1]))
    outside_ns = min(max(first - begin_ns, 0) + max(end_ns - last, 0), end_ns - begin_ns)
    return (missing_ns + outside_ns) * 1e-9, longest_ns * 1e-9


def plain_j(signal: Signal, *intervals: tuple[Ints, Ints]) -> list[Values]:
    """Plain integrals over several lists of intervals [m], each list disjoint and in order, in one pass over the slices
    that they lie in."""
    joules = [np.zeros(len(begin)) for begin, _ in intervals]
    there = [(int(begin[0]), int(end[-1])) for begin, end in intervals if len(begin)]
    if not there:
        return joules
    first, last = np.searchsorted(signal.cuts_ns, [min(b for b, _ in there), max(e for _, e in there)], "left")
    for piece, low, high in cores_of(signal, range(int(first), int(last) + 1)):
        if len(piece) < 2:
            continue
        integral = piece.integral()
        for total, (begin, end) in zip(joules, intervals, strict=True):
            some = slice(int(np.searchsorted(end, low, "right")), int(np.searchsorted(begin, high, "left")))
            total[some] += integral.between(np.clip(begin[some], low, high), np.clip(end[some], low, high))
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
        watts = np.asarray(np.interp(x, knots, self._watts))
        past = max(int(np.searchsorted(self._t, t_ns[-1], "right")) - 1, 0)
        self._t, self._watts = self._t[past:], self._watts[past:]
        return watts


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


def _slices_in(signal: Signal, view: View) -> tuple[int, int]:
    """The first and the last slice that a view needs."""
    first = np.searchsorted(signal.cuts_ns, view.begin_ns, "right" if view.is_step else "left")
    return int(first), int(np.searchsorted(signal.cuts_ns, view.end_ns, "right"))


def join_points(points: Iterable[Points]) -> Points:
    """All points in one piece, for few of them."""
    every = [(np.zeros(0, np.int64), np.zeros(0)), *points]
    t, watts = zip(*every, strict=True)
    return np.concatenate(t), np.concatenate(watts)


def envelope_of(points: Iterable[Points], starts: Ints) -> tuple[Ints, Values, Values, Values]:
    """Time of the first point of each block, and the block's least, mean and greatest watts. The mean is over the time
    up to the next block, power being straight between points.

    ``starts`` [b], in order from 0 on, are the numbers of the points at which blocks begin. Blocks without points are
    left out: when there are fewer points than was thought.
    """
    at, joules = np.zeros(len(starts), np.int64), np.zeros(len(starts))
    low, high = np.full(len(starts), np.inf), np.full(len(starts), -np.inf)
    done, before = 0, (np.zeros(0, np.int64), np.zeros(0))
    for t, watts in points:
        first, last = _blocks(starts, done, len(t))
        begins = np.maximum(starts[first:last] - done, 0)
        low[first:last] = np.minimum(low[first:last], np.minimum.reduceat(watts, begins))
        high[first:last] = np.maximum(high[first:last], np.maximum.reduceat(watts, begins))
        new = starts[first:last] >= done
        at[first:last][new] = t[begins[new]]
        # What lies between two points belongs to the block of the earlier one, which may be of the piece before.
        known = done - len(before[0])
        edges_ns, edges_w = np.concatenate([before[0], t]), np.concatenate([before[1], watts])
        if len(edges_ns) > 1:
            first, last = _blocks(starts, known, len(edges_ns) - 1)
            steps = np.diff(edges_ns) * (edges_w[1:] + edges_w[:-1]) / 2
            joules[first:last] += np.add.reduceat(steps, np.maximum(starts[first:last] - known, 0))
        done, before = done + len(t), (t[-1:], watts[-1:])
    there = int(np.searchsorted(starts, done, "left"))
    lasts = np.append(at[1:there], before[0])[:there] - at[:there]
    mean = np.divide(joules[:there], lasts, out=(low[:there] + high[:there]) / 2, where=lasts > 0)
    return at[:there], low[:there], mean, high[:there]


def extremes_of(points: Iterable[Points], n: int, most: int) -> Points:
    """At most about ``most`` of ``n`` points: the first and the last, and the lowest and the highest of every stretch,
    each at its own time. Of equal ones it is the first lowest and the last highest."""
    if n <= max(most, 4):
        return join_points(points)
    starts = np.linspace(0, n, max(most // 2, 1), endpoint=False).astype(np.int64)
    kept = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
    done = 0
    for t, watts in points:
        numbers = done + np.arange(len(t))
        at = _extremes(numbers, watts, starts)
        kept.append((numbers[at], t[at], watts[at]))
        done += len(t)
    numbers, t_ns, watts = (np.concatenate(column) for column in zip(*kept, strict=True))
    at = _extremes(numbers, watts, starts)
    return t_ns[at], watts[at]


def _extremes(numbers: Ints, watts: Values, starts: Ints) -> NDArray[np.intp]:
    """Which of some points in order are the first, the last, and the extremes of the stretches that begin at
    ``starts``."""
    stretch = np.searchsorted(starts, numbers, "right")
    order = np.lexsort((watts, stretch))  # within each stretch from low to high
    lowest = np.flatnonzero(np.diff(stretch, prepend=0))
    highest = np.append(lowest[1:], len(order)) - 1
    return np.unique(np.concatenate([[0, len(order) - 1], order[lowest], order[highest]]))


def _blocks(starts: Ints, done: int, count: int) -> tuple[int, int]:
    """The blocks that points ``done`` to ``done + count - 1`` lie in."""
    first = int(np.searchsorted(starts, done, "right")) - 1
    return first, int(np.searchsorted(starts, done + count, "left"))
