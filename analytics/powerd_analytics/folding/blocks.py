"""Readings among phases: windows in stretches of the run, what they showed, and their equations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.cells import prefix_sums
from powerd_analytics.folding.equations import Equations
from powerd_analytics.folding.response import Response
from powerd_analytics.folding.segments import Phases, Segments
from powerd_analytics.folding.timeline import Timeline
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import parts_between

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

BLOCKS, _BLOCK_SEGMENTS = 16, 4096
"""Stretches of phases that are looked at, spread over the run: more only cost time."""
_PARTS = 10
"""Positions of a window against a phase that are told apart."""
POSITIONS = 8
"""Parts of an iteration in which windows end, that are left out in turn."""


@dataclass(frozen=True, slots=True)
class Block:
    """Windows [n] that lie among segments ``which``, with room for a shift, and what they showed."""

    which: slice
    timeline: Timeline
    begin_ns: Ints
    end_ns: Ints
    watts: Values


def blocks_of(signal: Signal, response: Response, segments: Segments, room_ns: int) -> list[Block]:
    """Stretches of segments, spread over all of them, with their windows; these can be shifted by ``room_ns`` both ways
    and still see nothing but segments that are known."""
    return [b for b in _blocks(signal, response, segments, room_ns) if len(b.watts)]


def _blocks(signal: Signal, response: Response, segments: Segments, room_ns: int) -> Iterator[Block]:
    n = len(segments.kind)
    size = min(-(-n // BLOCKS), _BLOCK_SEGMENTS)
    pause = prefix_sums(np.where(segments.unknown, segments.end_ns - segments.begin_ns, 0).astype(np.float64))
    for first in np.unique(np.linspace(0, max(n - size, 0), BLOCKS).astype(int)).tolist():
        which = slice(first, min(first + size, n))
        low, high = int(segments.begin_ns[first]), int(segments.end_ns[which.stop - 1])
        begin, end, watts = _windows(signal, response, low, high)
        use = (begin - room_ns >= low) & (end + room_ns <= high)
        at = [np.searchsorted(segments.begin_ns, edge, "right") for edge in (begin - room_ns, end + room_ns)]
        # A pause that a window touches has begun before the window's end, and is not over when it begins.
        use &= pause[np.minimum(at[1], n)] == pause[np.maximum(at[0] - 1, 0)]
        timeline = Timeline(segments.begin_ns[which], segments.end_ns[which], segments.kind[which], segments.bins)
        yield Block(which, timeline, begin[use], end[use], watts[use])


def _windows(signal: Signal, response: Response, low: int, high: int) -> tuple[Ints, Ints, Values]:
    """Windows of readings that lie between two moments: begin, end, mean power."""
    found: list[tuple[Ints, Ints, Values]] = []
    for part in parts_between(signal, low, high):
        t = part.t_ns
        if part.is_counter:
            use = (part.missing_ns() == 0) & (t[:-1] >= low) & (t[1:] <= high)
            watts = np.diff(part.value) / (np.diff(t) * 1e-9)
            found.append((t[:-1][use], t[1:][use], watts[use]))
            continue
        newest = t + response.newest_ns
        oldest = newest - response.length_ns
        use = (oldest >= low) & (newest <= high)
        found.append((oldest[use], newest[use], part.value[use]))
    none = np.zeros(0, np.int64)
    begin, end, watts = (np.concatenate(c) for c in zip((none, none, np.zeros(0)), *found, strict=True))
    # Slices overlap by their margins.
    _, first = np.unique(begin, return_index=True)
    return begin[first], end[first], watts[first]


def equations_of(blocks: list[Block], response: Response, usual_w: float, by_ns: int) -> Equations:
    """Of windows that are later by so much than they seem; watts around ``usual_w``."""
    made = []
    for b in blocks:
        windows = b.begin_ns + by_ns, b.end_ns + by_ns
        made.append(Equations.of_block(b.timeline, *windows, b.watts - usual_w, response))
    return Equations.joined(made)


def by_position(blocks: list[Block], response: Response, usual_w: float, by_ns: int, phases: Phases) -> Equations:
    """The same equations, with the readings whose windows end in the same part of an iteration as a block each."""
    begins = phases.begin_ns[phases.kind == np.argmax(np.bincount(phases.kind))]
    made = []
    for b in blocks:
        at = np.clip(np.searchsorted(begins, b.end_ns, "right") - 1, 0, len(begins) - 2)
        into = np.clip((b.end_ns - begins[at]) / (begins[at + 1] - begins[at]), 0.0, 1.0)
        part = np.minimum((into * POSITIONS).astype(np.int64), POSITIONS - 1)
        windows = b.begin_ns + by_ns, b.end_ns + by_ns
        parts = [part == i for i in range(POSITIONS)]
        made.append(Equations.of_parts(b.timeline, *windows, b.watts - usual_w, response, parts))
    return reduce(add, made)


def looked_at(blocks: list[Block], phases: Phases, kind: int) -> float:
    """Share of the positions of a window against a phase of this kind that windows have really had."""
    begins = phases.begin_ns[phases.kind == kind]
    if len(begins) < 2:
        return 0.0
    length = float(np.median((phases.end_ns - phases.begin_ns)[phases.kind == kind]))
    ends = np.concatenate([b.end_ns for b in blocks])
    window = float(np.median(ends - np.concatenate([b.begin_ns for b in blocks])))
    span = min(length + window, float(np.median(np.diff(begins))))
    after = np.searchsorted(begins, ends, "right") - 1
    into = (ends - begins[np.maximum(after, 0)])[after >= 0] / max(span, 1.0)
    return len(np.unique(np.floor(into[into < 1] * _PARTS))) / _PARTS
