"""Lines with more readings than memory holds: read in slices of time, each with a margin of its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.readings import LineReader, Readings
from powerd_analytics.runs.run import Run, RunLine
from powerd_analytics.signals.signal import Signal, clipped_times, good_readings, load_signal, make_signal
from powerd_core.model import CounterConversion, ShuntConversion

IN_MEMORY = 1 << 22
"""Readings of all lines together up to which they are loaded whole: some hundred MB."""
SLICE = 1 << 20
"""Readings of a slice. What their phases need on the way is about 400 bytes a reading."""
_MARGIN_SHARE, _LEAST_MARGIN, _RESOLUTIONS = 32, 64, 16
FAR_NS = 1 << 61
"""Before the first and behind the last moment of any run."""

Ints = NDArray[np.int64]
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class SlicedSignal(Signal):
    """A line as a whole, whose readings stay in the file.

    ``t_ns`` and ``value`` have its first and its last good reading only. `slice_of` reads a slice.
    """

    run: Run | None = None
    cuts_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[k-1] times of good readings at which the slices meet."""
    bounds: Ints = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """[k, 3] for each slice: its first reading in the file and the one behind its last, with margins, and the good
    one at which it meets the slice before where that lies in front of these, else -1."""
    good: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[k] good readings of each slice, without its margins."""
    unknown_ns: int = 0
    """Time in which the counter was set back."""
    whole: dict[int, Any] = field(default_factory=dict)
    """What one phase all through a slice is worth, by slice, once it has been computed (see `pieces`)."""
    progress: Progress = lambda share, text: None

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
        parts = [reader.values(columns, first, last)]
        if before >= 0:
            # The bad reading behind it goes along: it tells that there are some between.
            parts.insert(0, reader.values(columns, before, min(before + 2, first)))
        made = make_signal(self.line, _joined(parts), self.clock)
        return replace(made, spacing_ns=self.spacing_ns, range_w=self.range_w)


def columns_of(line: RunLine) -> tuple[str, ...]:
    """The columns that a line's conversion needs."""
    c = line.conversion
    return (c.shunt, c.bus) if isinstance(c, ShuntConversion) else (c.column,)


def load_sliced(run: Run, name: str, size: int = SLICE, progress: Progress = lambda share, text: None) -> SlicedSignal:
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
            scan.add(line, reader.values(columns_of(line), first, last), first)
    begins, before = np.maximum(starts - margin, 0), np.array(scan.before)
    bounds = np.stack([begins, np.minimum(stops + margin, line.count), np.where(before < begins, before, -1)], axis=1)
    whole = make_signal(line, _joined([scan.ends[0], scan.ends[-1]]), clock)
    kept = {f.name: getattr(whole, f.name) for f in fields(Signal)}
    kept |= {
        "spacing_ns": scan.spacing_ns(line),
        "centre_ns": scan.centre_ns,
        "bad": scan.bad,
        "clipped_ns": np.concatenate(scan.clipped),
        "clipped_low_ns": np.concatenate(scan.clipped_low),
        "range_w": scan.range_w,
    }
    return SlicedSignal(
        **kept,
        run=run,
        cuts_ns=np.array(scan.cuts[:-1], np.int64),
        bounds=bounds,
        good=np.array(scan.good, np.int64),
        unknown_ns=scan.unknown_ns,
        progress=progress,
    )


def load_bounded(run: Run, name: str, progress: Progress = lambda share, text: None) -> Signal:
    """The signal of one line, read in slices when it is too long to be loaded."""
    is_long = run.line(name).count > IN_MEMORY
    return load_sliced(run, name, progress=progress) if is_long else load_signal(run, name)


def load_together(run: Run, names: Sequence[str], progress: Progress = lambda share, text: None) -> list[Signal]:
    """The signals of lines that are looked at together, in slices when they are too long together."""
    is_long = sum(run.line(name).count for name in names) > IN_MEMORY
    found: list[Signal] = []
    for i, name in enumerate(names):
        progress(i / len(names), f"reading {name}")
        found.append(load_sliced(run, name, progress=progress) if is_long else load_signal(run, name))
    return found


def parts_between(signal: Signal, low_ns: int, high_ns: int) -> Iterator[Signal]:
    """The signal in pieces that together hold all readings between two moments, some of them perhaps twice."""
    if not isinstance(signal, SlicedSignal):
        yield signal
        return
    first, last = np.searchsorted(signal.cuts_ns, [low_ns, high_ns])
    with signal.slices() as read:
        for i in range(int(first), int(last) + 1):
            yield read(i)


class _Scan:
    """What one pass over a line's readings, slice after slice, finds out."""

    def __init__(self) -> None:
        self.ends: list[Readings] = []
        self.cuts: list[int] = []
        self.clipped: list[Ints] = [np.zeros(0, np.int64)]
        self.clipped_low: list[Ints] = [np.zeros(0, np.int64)]
        self.before: list[int] = []
        self.good: list[int] = []
        self.bad, self.unknown_ns, self.centre_ns = 0, 0, 0.0
        self.range_w: tuple[float, float] | None = None
        self._spacings: list[tuple[int, float]] = []
        self._last: Readings | None = None
        self._last_good = -1

    def add(self, line: RunLine, readings: Readings, first: int) -> None:
        joined = _joined([self._last, readings]) if self._last is not None else readings
        old = 0 if self._last is None else 1
        good = np.flatnonzero(good_readings(joined)[old:])
        self.before.append(self._last_good)
        self.good.append(len(good))
        self.bad += len(readings.t_ns) - len(good)
        for found, times in zip((self.clipped, self.clipped_low), clipped_times(line, readings), strict=True):
            found.append(times)
        if not self.ends:
            self.ends = [_at(readings, slice(0, 0))] * 2
        if len(good):
            self._measure(make_signal(line, joined))
            begin, self._last_good = _at(readings, slice(good[0], good[0] + 1)), int(first + good[-1])
            self._last = _at(readings, slice(good[-1], good[-1] + 1))
            self.ends = [self.ends[0] if len(self.ends[0].t_ns) else begin, self._last]
        self.cuts.append(int(self._last.t_ns[0]) if self._last is not None else -FAR_NS)

    def _measure(self, signal: Signal) -> None:
        if len(signal) > 2:
            self._spacings.append((len(signal), signal.spacing_ns))
        self.centre_ns = max(self.centre_ns, signal.centre_ns)
        self.unknown_ns += int(np.diff(signal.t_ns)[signal.broken].sum())
        _, watts = signal.power()
        if signal.is_counter and len(watts) > 2:
            watts = watts[1:-1]  # where a slice ends, a counter need not have just moved
        if len(watts):
            low, high = self.range_w or (np.inf, -np.inf)
            self.range_w = min(low, float(watts.min())), max(high, float(watts.max()))

    def spacing_ns(self, line: RunLine) -> float:
        """The usual distance of good readings: the median over slices of their medians, by readings."""
        if not self._spacings:
            return float(max(line.period_ns, 1))
        count, spacing = (np.array(column) for column in zip(*self._spacings, strict=True))
        order = np.argsort(spacing)
        half = np.searchsorted(np.cumsum(count[order]), count.sum() / 2)
        return float(spacing[order][half])


def _reach_ns(line: RunLine) -> int:
    a = line.accuracy
    return max(a.update_ns, a.reach_ns + 2 * a.centre_ns, line.period_ns if _counts(line) else 0)


def _counts(line: RunLine) -> bool:
    return isinstance(line.conversion, CounterConversion)


def _at(r: Readings, one: slice) -> Readings:
    return Readings(
        r.t_board_ns, r.t_ns[one].copy(), r.flags[one].copy(), {k: v[one].copy() for k, v in r.codes.items()}
    )


def _joined(parts: list[Readings]) -> Readings:
    if len(parts) == 1:
        return parts[0]
    codes = {k: np.concatenate([p.codes[k] for p in parts]) for k in parts[0].codes}
    times, flags = np.concatenate([p.t_ns for p in parts]), np.concatenate([p.flags for p in parts])
    return Readings(parts[0].t_board_ns, times, flags, codes)
