"""From raw codes to a signal: watts at moments, or joules counted, with the bad readings left out.

Whoever uses a signal takes it slice by slice (`Signal.slices`). One whose readings are in memory is one slice. Lines
with more readings than memory holds stay in the file (`SlicedSignal`): they are read in slices of time, each with a
margin of its neighbours, which meet at good readings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.run import LineReader, Progress, Readings, Run, RunClock, RunLine, no_progress
from powerd_analytics.signals.integral import Integral, unwrap_counter
from powerd_core.errors import AnalysisError
from powerd_core.model import BAD, CounterConversion, Flag, QuantityConversion, ScaledConversion, ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

LATE_FACTOR, FLAGGED_FACTOR = 3.5, 1.8
"""Good readings farther apart than this many usual distances miss some between them; the second where a bad one lies
there. A scan that is late on a busy machine is ordinary sampling, and its uncertainty follows from the signal."""
IN_MEMORY = 1 << 22
"""Readings of all lines together up to which they are loaded whole: some hundred MB."""
SLICE = 1 << 19
"""Readings of a slice. What their phases need on the way is about 400 bytes a reading, of two slices at once."""
_MARGIN_SHARE, _LEAST_MARGIN, _RESOLUTIONS = 32, 64, 16
FAR_NS = 1 << 61
"""Before the first and behind the last moment of any run."""


def _no_times() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Signal:
    """The good readings of one line on the host's clock.

    ``value`` [n] is power in watts, or for counters the joules since the first reading. ``window_ns`` and
    ``centre_ns`` say over which time one reading averages (for counters, what is unsure about its moment).
    """

    line: RunLine
    t_ns: Ints
    value: Values
    is_counter: bool
    broken: Mask
    """[n-1] intervals whose energy is unknown because the counter was set back, or may have gone round unseen."""
    flagged: Mask
    """[n-1] intervals with a bad reading in them."""
    spacing_ns: float
    """Usual distance of two readings that carry news."""
    window_ns: float
    centre_ns: float
    bad: int
    """Readings left out: flagged, or not later than the one before."""
    clock: RunClock | None
    clipped_ns: Ints = field(default_factory=_no_times)
    """Times of readings at full scale: left out too, but known to be at least that much."""
    clipped_low_ns: Ints = field(default_factory=_no_times)
    """The same at negative full scale: known to be at most that."""
    range_w: tuple[float, float] | None = None
    """Least and greatest power of the whole line, where these readings are a part of it."""
    cuts_ns: Ints = field(default_factory=_no_times)
    """[k-1] times of good readings at which the k slices meet; a signal in memory is one slice."""
    unordered: int = 0
    """Readings not later than the one before, as no line of a run file has them (`powerd_client.verify`)."""
    progress: Progress = no_progress

    def __len__(self) -> int:
        return len(self.t_ns)

    @property
    def guard_ns(self) -> float:
        """A reading says nothing of what is farther from its timestamp than this (clock bound apart)."""
        return self.window_ns / 2 + self.centre_ns

    @property
    def resolution_ns(self) -> float:
        """The shortest time that two readings can tell apart."""
        return max(self.spacing_ns, 2 * self.guard_ns)

    def integral(self) -> Integral:
        """The signal's energy integral."""
        if self.is_counter:
            return Integral.of_energy(self.t_ns, self.value)
        return Integral.of_power(self.t_ns, self.value)

    def power(self) -> tuple[Ints, Values]:
        """Moments and watts for pictures; for counters the mean power of each interval at its middle."""
        if not self.is_counter:
            return self.t_ns, self.value
        dt = np.diff(self.t_ns)
        return self.t_ns[:-1] + dt // 2, np.diff(self.value) / (dt * 1e-9)

    def shown_w(self) -> tuple[float, float]:
        """Least and greatest power that the line showed in the run. The signal has two readings or more."""
        if self.range_w is not None:
            return self.range_w
        _, watts = self.power()
        return float(watts.min()), float(watts.max())

    def set_back_ns(self) -> int:
        """Time in which a counter was set back: what it counted there is unknown."""
        return int(np.diff(self.t_ns)[self.broken].sum())

    @contextmanager
    def slices(self) -> Iterator[Callable[[int], Signal]]:
        """A function that gives slice ``i`` of `len(cuts_ns) + 1`, with its margins."""
        yield lambda i: self

    def missing_ns(self) -> Values:
        """[n-1] how much of each interval between good readings has lost its readings."""
        dt = np.diff(self.t_ns)
        if not self.broken.any() and dt.max(initial=0) <= FLAGGED_FACTOR * self.spacing_ns:
            return np.zeros(len(dt))
        limit = np.where(self.flagged, FLAGGED_FACTOR, LATE_FACTOR) * self.spacing_ns
        return np.where(self.broken, dt, np.where(dt > limit, dt - self.spacing_ns, 0.0))


def load_signal(run: Run, line: str) -> Signal:
    """The signal of a line of a run. Raises `AnalysisError` for an unknown line or one with unusable columns."""
    info = run.line(line)
    return make_signal(info, run.readings(line), run.clocks.get(info.clock))


def make_signal(line: RunLine, readings: Readings, clock: RunClock | None = None) -> Signal:
    """Convert readings by the line's conversion; flags decide what is a value."""
    t_all, good = readings.t_ns, good_readings(readings)
    if isinstance(line.conversion, CounterConversion):
        return _counter_signal(line, line.conversion, readings, good, clock)
    t, value = t_all[good], _power_w(line, readings, good)
    a = line.accuracy
    clipped = (readings.flags & np.uint16(int(Flag.SATURATED))) != 0
    t_clipped, is_low = t_all[clipped], _power_w(line, readings, clipped) < 0
    spacing = _spacing(t, line.period_ns)
    # A value that is renewed more rarely than it is read may be older than its timestamp by that much.
    stale = a.update_ns if a.update_ns > 1.2 * spacing else 0
    return Signal(
        line=line,
        t_ns=t,
        value=value,
        is_counter=False,
        broken=np.zeros(max(0, len(t) - 1), bool),
        flagged=np.diff(np.flatnonzero(good)) > 1,
        spacing_ns=max(spacing, float(a.update_ns)),
        window_ns=float(a.reach_ns),
        centre_ns=float(a.centre_ns + stale),
        bad=len(t_all) - len(t),
        clock=clock,
        clipped_ns=t_clipped[~is_low],
        clipped_low_ns=t_clipped[is_low],
        unordered=_unordered(readings),
    )


def _unordered(readings: Readings) -> int:
    # While a clock steps nobody knows the order, and the flag says so.
    t_ns = readings.t_ns[(readings.flags & np.uint16(int(Flag.MISSING))) == 0]
    return int(np.count_nonzero(t_ns[1:] <= t_ns[:-1]))


def good_readings(readings: Readings) -> Mask:
    """[n] which readings are values: not flagged, and later than all values before them."""
    good: Mask = (readings.flags & np.uint16(int(BAD))) == 0
    t_all = readings.t_ns
    if len(t_all) > 1:
        # After a clock step the mapping may fold back: time goes on where it passes what was there.
        latest = np.maximum.accumulate(np.where(good, t_all, np.iinfo(np.int64).min))
        good[1:] &= t_all[1:] > latest[:-1]
    return good


def _power_w(line: RunLine, readings: Readings, good: Mask) -> Values:
    match line.conversion:
        case ShuntConversion() as c:
            bus = (_column(line, readings, c.bus)[good].astype(np.int64) >> c.bus_shift) * c.bus_lsb_v
            shunt = _column(line, readings, c.shunt)[good].astype(np.float64)
            watts: Values = bus * ((shunt * (c.shunt_lsb_v / c.shunt_ohm) + c.offset_a) * c.gain)
            return watts
        case ScaledConversion() as c:
            return _column(line, readings, c.column)[good].astype(np.float64) * c.w_per_code
        case QuantityConversion() as c:
            raise AnalysisError(f"line {line.name!r} is {c.quantity}, no power: `joules info` shows it")
        case _:
            raise AnalysisError(f"line {line.name!r} counts energy: it has no power readings")


def _counter_signal(
    line: RunLine, c: CounterConversion, readings: Readings, good: Mask, clock: RunClock | None
) -> Signal:
    codes, t = _column(line, readings, c.column)[good], readings.t_ns[good]
    bad = len(good) - len(t)
    counts, broken = unwrap_counter(codes, c.bits)
    flagged = np.diff(np.flatnonzero(good)) > 1
    centre = float(line.accuracy.centre_ns)
    period = _spacing(t, line.period_ns)
    counts, broken = _without_lost_turns(t, counts, broken, c, period)
    if line.accuracy.update_ns > 1.2 * period and len(t) > 2:
        # Read more often than it moves: only where it moved is its value that of the moment, at most a reading late.
        keep = np.concatenate([[True], np.diff(counts) > 0]) | np.concatenate([[True], broken])
        # One that has stood still for longer than it ever does stands: nothing was counted.
        keep |= t - np.maximum.accumulate(np.where(keep, t, t[0])) > line.accuracy.update_ns + period
        keep[-1] = True
        broken, flagged = (_any_between(mask, keep) for mask in (broken, flagged))
        t, counts, centre = t[keep], counts[keep], centre + period
    energy = counts * c.j_per_code
    if len(t):
        energy = energy + c.background_w * ((t - t[0]) * 1e-9)
    spacing = max(_spacing(t, line.period_ns), float(line.accuracy.update_ns))
    unordered = _unordered(readings)
    return Signal(line, t, energy, True, broken, flagged, spacing, 0.0, centre, bad, clock, unordered=unordered)


def _without_lost_turns(
    t: Ints, counts: Values, broken: Mask, c: CounterConversion, period: float
) -> tuple[Values, Mask]:
    """Counts [n] and broken intervals [n-1] of a counter that may have gone round more than once where readings miss.

    At the greatest power that it showed between two readings, it would have: how often is in no reading, so that what
    it counted there is unknown like what one counted that was set back.
    """
    steps, dt = np.diff(counts), np.diff(t).astype(np.float64)
    is_late = dt > LATE_FACTOR * period
    if c.bits >= 64 or is_late.all() or not is_late.any():
        return counts, broken
    fastest = float(np.max(steps[~is_late] / dt[~is_late]))
    lost = is_late & (fastest * dt >= 2.0**c.bits)
    return np.concatenate([[0.0], np.cumsum(np.where(lost, 0.0, steps))]), broken | lost


def _column(line: RunLine, readings: Readings, name: str) -> NDArray[np.integer]:
    if name not in readings.codes:
        raise AnalysisError(f"line {line.name!r} has no column {name!r}, which its conversion needs")
    return readings.codes[name]


def _spacing(t: Ints, nominal_ns: int) -> float:
    return float(np.median(np.diff(t))) if len(t) > 2 else float(max(nominal_ns, 1))


def _any_between(mask: Mask, keep: Mask) -> Mask:
    """Of intervals [n-1], whether any is True between two readings [n] that are kept (both ends are)."""
    ends = np.flatnonzero(keep)[:-1]
    return np.asarray(np.logical_or.reduceat(mask, ends))


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
        signal = make_signal(self.line, _joined(parts), self.clock)
        return replace(signal, spacing_ns=self.spacing_ns, range_w=self.range_w)


def columns_of(line: RunLine) -> tuple[str, ...]:
    """The columns that a line's conversion needs."""
    c = line.conversion
    return (c.shunt, c.bus) if isinstance(c, ShuntConversion) else (c.column,)


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
    ends = make_signal(line, _joined(scan.ends or [none]), clock)
    high, low = (np.concatenate(times) for times in zip(*scan.clipped, strict=True))
    whole = replace(
        ends,
        spacing_ns=scan.spacing_ns(line),
        centre_ns=scan.centre_ns,
        bad=scan.bad,
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
        self.bad, self.unordered, self.unknown_ns, self.centre_ns, self.last_good = 0, 0, 0, 0.0, -1
        self.range_w: tuple[float, float] | None = None
        self._spacings: list[tuple[int, float]] = []

    def add(self, line: RunLine, readings: Readings, first: int) -> None:
        """The next slice, from the reading with the number ``first`` on."""
        # The last good reading goes along: an interval across two slices is one like any other.
        joined = _joined([self.ends[1], readings]) if self.ends else readings
        good = np.flatnonzero(good_readings(joined)[len(joined.t_ns) - len(readings.t_ns) :])
        self.before.append(self.last_good)
        self.bad += len(readings.t_ns) - len(good)
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
            begin, end = (_at(readings, slice(k, k + 1)) for k in (good[0], good[-1]))
            self.ends, self.last_good = [self.ends[0] if self.ends else begin, end], int(first + good[-1])
        self.cuts.append(int(self.ends[1].t_ns[0]) if self.ends else -FAR_NS)

    def spacing_ns(self, line: RunLine) -> float:
        """The usual distance of good readings: the median over slices of their medians, by readings."""
        if not self._spacings:
            return float(max(line.period_ns, 1))
        count, spacing = (np.array(column) for column in zip(*self._spacings, strict=True))
        order = np.argsort(spacing)
        half = np.searchsorted(np.cumsum(count[order]), count.sum() / 2)
        return float(spacing[order][half])


def _reach_ns(line: RunLine) -> int:
    a, is_counter = line.accuracy, isinstance(line.conversion, CounterConversion)
    return max(a.update_ns, a.reach_ns + 2 * a.centre_ns, line.period_ns if is_counter else 0)


def _at(r: Readings, one: slice) -> Readings:
    return Readings(r.t_ns[one].copy(), r.flags[one].copy(), {k: v[one].copy() for k, v in r.codes.items()})


def _joined(parts: list[Readings]) -> Readings:
    if len(parts) == 1:
        return parts[0]
    codes = {k: np.concatenate([p.codes[k] for p in parts]) for k in parts[0].codes}
    times, flags = np.concatenate([p.t_ns for p in parts]), np.concatenate([p.flags for p in parts])
    return Readings(times, flags, codes)
