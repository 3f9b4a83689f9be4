"""What the page's traces are drawn from: readings, or least and greatest where there are too many; phases; gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part
from powerd_analytics.report.packing import Packed, PackedValues, pack, pack_values
from powerd_analytics.runs.run import Run
from powerd_analytics.signals.envelopes import envelope_of
from powerd_analytics.signals.signal import LATE_FACTOR, Signal
from powerd_analytics.signals.streams import Points, count_points, fastest_of, holes_of, points_of, summed_of
from powerd_analytics.tables.groups import group_line

UNIT_NS = 1000
"""Times in the page are whole microseconds since the run began."""
MOST_PHASES = 400_000
"""Phases of one run in a page; of more, the innermost are left out."""
MOST_GAPS = 2000
FARTHEST_NS = 1 << 55
"""A year: what is farther from the run's begin than this is no part of it."""

Ints = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One curve. ``block`` is how many readings each point stands for; its least and greatest power are kept."""

    name: str
    role: str
    """``sum``, ``feed`` or ``compared``."""
    readings: int
    block: int
    gap_us: float
    """Points farther apart than this are not joined."""
    time: Packed
    watts: PackedValues
    """One column, or least and greatest."""

    @property
    def size(self) -> int:
        """Characters in the page."""
        return len(self.time.text) + sum(len(c.text) for c in self.watts.columns)


@dataclass(frozen=True, slots=True)
class TracePhases:
    """Phases by row of the picture: processes one below the other, each with its depths."""

    names: tuple[str, ...]
    details: tuple[str, ...]
    """Group of each class, such as the model and the batch size."""
    columns: tuple[Packed, ...]
    """Begin, duration (both microseconds), class, row."""
    rows: int
    left_out: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The picture of one device: curves, phases, stretches without readings [us]."""

    device: str
    provenance: str
    length_us: int
    lines: tuple[TraceLine, ...]
    gaps: tuple[tuple[int, int], ...]
    has_sum: bool


def trace_of(run: Run, part: Part, compared: Sequence[Signal], most_points: int) -> Trace:
    """The trace of one device with at most about ``most_points`` points in all curves together."""
    signals = [s for s in (*part.signals, *compared) if len(s) > 1]
    whole = [s for s in part.signals if len(s) > 1]
    has_sum = len(whole) > 1
    each = max(most_points // max(len(signals) + has_sum, 1), 1000)
    lines = []
    if has_sum:
        fastest = fastest_of(whole)
        name, gap = f"{part.device}, sum of lines", LATE_FACTOR * max(s.spacing_ns for s in whole)
        lines.append(_line(run, name, "sum", summed_of(whole, fastest), count_points(fastest), gap, each))
    for s in signals:
        role = "feed" if s in whole else "compared"
        lines.append(_line(run, s.line.name, role, _finite(s), count_points(s), LATE_FACTOR * s.spacing_ns, each))
    gaps = _gaps(run, whole)
    return Trace(part.device, part.provenance, _us(run, run.end_ns), tuple(lines), gaps, has_sum)


def phases_of(run: Run, most: int = MOST_PHASES) -> TracePhases:
    """The phases of a run, outermost first where not all fit."""
    p = run.phases
    kept = np.arange(len(p))
    if len(p) > most:
        deepest = np.searchsorted(np.cumsum(np.bincount(p.depth)), most, "right")
        kept = np.flatnonzero(p.depth < max(int(deepest), 1))[:most]
    overlaps = np.isin(p.label, [i for i, c in enumerate(p.classes) if c.overlaps])
    lanes = p.process.astype(np.int64) * 1000 + np.where(overlaps, 999, p.depth)
    used = np.unique(lanes[kept]) if len(kept) else np.zeros(0, np.int64)
    begin, end = _within(run, p.begin_ns[kept]), _within(run, p.end_ns[kept])
    rows = np.searchsorted(used, lanes[kept])
    order = np.lexsort((begin, rows))
    columns = tuple(pack(c[order]) for c in (begin, end - begin, p.label[kept], rows))
    details = tuple(group_line(dict(c.group)) for c in p.classes)
    names = tuple(c.name for c in p.classes)
    return TracePhases(names, details, columns, len(used), len(p) - len(kept))


def _us(run: Run, t_ns: int) -> int:
    return (t_ns - run.begin_ns) // UNIT_NS


def _within(run: Run, t_ns: Ints) -> Ints:
    """Microseconds since the run began; times that are wildly wrong are brought to where a page can hold them."""
    found: Ints = np.clip(t_ns, run.begin_ns - FARTHEST_NS, run.begin_ns + FARTHEST_NS) - run.begin_ns
    return found // UNIT_NS


def _finite(signal: Signal) -> Iterator[Points]:
    for t, watts in points_of(signal):
        good = np.isfinite(watts)
        if good.any():
            yield t[good], watts[good]


def _line(run: Run, name: str, role: str, points: Iterator[Points], n: int, gap_ns: float, most: int) -> TraceLine:
    block = 1 if n <= most else int(np.ceil(2 * n / most))
    t_ns, low, high = envelope_of(points, np.arange(0, n, block))
    time, watts_columns = _within(run, t_ns), (low,) if block == 1 else (low, high)
    # What a block spans is known only to the next one's begin.
    gap_us = gap_ns / UNIT_NS * (1 if block == 1 else block + 1)
    return TraceLine(name, role, n, block, gap_us, pack(time), pack_values(*watts_columns))


def _gaps(run: Run, signals: Sequence[Signal]) -> tuple[tuple[int, int], ...]:
    """Stretches that miss readings of any line, those that overlap as one; of very many, the longest."""
    found = np.concatenate([np.zeros((0, 2), np.int64), *(holes_of(s) for s in signals)])
    found = np.unique((found - run.begin_ns) // UNIT_NS, axis=0)
    if not len(found):
        return ()
    ends = np.maximum.accumulate(found[:, 1])
    first = np.flatnonzero(np.concatenate([[True], found[1:, 0] > ends[:-1]]))
    joined = np.stack([found[first, 0], ends[np.append(first[1:], len(found)) - 1]], 1)
    longest = joined[np.argsort(joined[:, 0] - joined[:, 1], kind="stable")[:MOST_GAPS]]
    return tuple((b, e) for b, e in sorted(map(tuple, longest.tolist())))
