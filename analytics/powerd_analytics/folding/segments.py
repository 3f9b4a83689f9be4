"""Phases of one level and what lies between them, as segments one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.cells import prefix_sums
from powerd_analytics.folding.timeline import Bins, Timeline

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_COLUMNS, _LEAST_BINS, _FINEST = 16, 2, 12
"""Bins of an iteration, about, and of a phase at least; as many as windows find room in it, up to the last."""
_EDGE_SHARE, _EDGE_NS = 0.001, 10_000
"""By how much power may move beside its edge, or otherwise than the model has it: of a window, and in any case."""
_MARKS = 512
"""Segments of a stretch from which it is found what marks hold of late power: they are much alike."""
_NEGLIGIBLE = 1e-3
"""Share of the time between phases, all together, below which nobody asks what goes on there."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases [m] of one level, in order and disjoint, of kinds 0, 1, ..."""

    begin_ns: Ints
    end_ns: Ints
    kind: Ints
    kinds: int

    @property
    def iteration_ns(self) -> float:
        """Usual time in phases from one of the most frequent kind to the next."""
        count = np.bincount(self.kind, minlength=self.kinds)
        return float(np.sum(self.end_ns - self.begin_ns)) / max(int(count.max()), 1)


@dataclass(frozen=True, slots=True)
class Segments:
    """Phases and the gaps between them [s], one after the other; kinds behind the phases' are those of gaps."""

    begin_ns: Ints
    end_ns: Ints
    kind: Ints
    unknown: NDArray[np.bool_]
    """Long pauses, in which anything can have gone on."""
    bins: Bins

    def pairs(self) -> Values:
        """[kinds, kinds] how often a segment of one kind (row) follows one of another (column)."""
        kinds = len(self.bins.edges)
        found = np.bincount(self.kind[1:] * kinds + self.kind[:-1], minlength=kinds * kinds)
        return found.reshape(kinds, kinds).astype(np.float64)

    def before(self) -> Values:
        """The same as shares of the kind in each row."""
        return _shares(self.pairs())

    def between_marks(self, lags_ns: Sequence[int], stretches: Sequence[slice]) -> Values:
        """[lags, kinds, columns + kinds] what takes the mean power between the marks of a kind's segments, when power
        follows them so late: what the marks hold of the bins is what a window as long as the segment, and that much
        before it, would."""
        kinds, columns = len(self.bins.edges), self.bins.columns
        total, time = np.zeros((len(lags_ns), kinds, columns + kinds)), np.zeros((len(lags_ns), kinds, 1))
        for which in stretches:
            few = slice(which.start, min(which.stop, which.start + _MARKS))
            timeline = Timeline(self.begin_ns[few], self.end_ns[few], self.kind[few], self.bins)
            pause = prefix_sums(self.unknown[few].astype(np.float64))
            for i, lag_ns in enumerate(lags_ns):
                begin, end, kind = self.begin_ns[few] - lag_ns, self.end_ns[few] - lag_ns, self.kind[few]
                first = np.searchsorted(self.begin_ns[few], begin, "right") - 1
                use = (begin >= self.begin_ns[few.start]) & (pause[1:] == pause[np.maximum(first, 0)]) & (end > begin)
                shares = timeline.equations(begin[use], end[use])
                length = (end - begin)[use].astype(np.float64)[:, None]
                np.add.at(total[i], kind[use], shares * length)
                np.add.at(time[i], kind[use], length)
        plain = np.pad(self.bins.means(), ((0, 0), (0, kinds)))
        # A kind that always comes after a pause: what went before it is not known, and is taken as the same.
        made: Values = np.where(time > 0, total / np.maximum(time, 1), plain)
        return made

    def edge_u_w(self, watts: Values, window_ns: float) -> Values:
        """[kinds] standard uncertainty from when power moves at edges. That it follows an edge with one time constant
        is a model; how far off it was in simulations grows with the window (docs/energy.md)."""
        pairs = self.pairs()
        jumps = [watts - _shares(p) @ watts for p in (pairs, pairs.T)]
        beside_ms = (_EDGE_SHARE * window_ns + _EDGE_NS) * 1e-6
        made: Values = beside_ms / np.sqrt(3) * np.hypot(*jumps) / np.asarray(self.bins.length_ms)
        return made


def _shares(pairs: Values) -> Values:
    made: Values = pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1)
    return made


def segments_of(phases: Phases, window_ns: float) -> Segments:
    """Phases and gaps in order; bins as fine as windows of ``window_ns`` can tell."""
    begin, end, kind, kinds = phases.begin_ns, phases.end_ns, phases.kind, phases.kinds
    count = np.maximum(np.bincount(kind, minlength=kinds), 1)
    mean = np.bincount(kind, end - begin, kinds) / count
    iteration = phases.iteration_ns
    gap = np.maximum(begin[1:] - end[:-1], 0)
    unknown = gap > iteration
    if gap[~unknown].sum() < _NEGLIGIBLE * (end - begin).sum():
        # Marks take a moment; what lies between two of them belongs to the phase before.
        end = np.append(np.where(unknown, end[:-1], begin[1:]), end[-1:])
        gap = np.where(unknown, gap, 0)
    there = np.flatnonzero(gap)
    after = np.concatenate([begin, end[there]])
    order = np.argsort(after, kind="stable")
    of_gap = kinds + kind[there]
    lengths = np.concatenate([mean, np.bincount(kind[there], gap[there], kinds) / np.maximum(1, count)]) * 1e-6
    equal = [
        # A phase that comes once in a long while may last many iterations.
        max(_LEAST_BINS, round(_COLUMNS * min(d / max(iteration, 1), 1)), min(_FINEST, int(d / max(window_ns, 1.0))))
        for d in mean
    ] + [1] * kinds
    return Segments(
        after[order],
        np.concatenate([end, begin[there + 1]])[order],
        np.concatenate([kind, of_gap])[order],
        np.concatenate([np.zeros(len(kind), bool), unknown[there]])[order],
        Bins.of_lengths(np.maximum(lengths, 1e-6).tolist(), equal, window_ns * 1e-6),
    )
