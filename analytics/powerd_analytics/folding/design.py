"""The design matrix of phase-folded regression: what share of each bin of each kind of phase a reading's window holds.

A reading is the mean over its window of the power behind it, with a low-pass of first order where there is one
(`Response`). Phases and what lies between them are segments, one after the other (`segments_of`); each kind of segment
is cut into bins, in which power is taken as flat (`Bins`), and along the run these make a `Timeline`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.sampling import prefix_sums
from powerd_analytics.signals.signal import Signal

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_CONSTANTS = 7
"""Time constants of a low-pass after which nothing is looked at: 0.1 % is left."""
_PAIRS = 1 << 21
"""Overlaps of windows and bins that are worked on at a time."""
EARLY_MS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Where bins begin behind the begin of a phase, beside those of equal length: there its power is on its way."""
_LEAST_MS = 0.1
"""Bins of equal length that would begin nearer than this to one of these do not."""
_ON_ITS_WAY_MS, _OF_WINDOW = 10.0, 0.25
"""How long after an edge power is on its way, and the bins that this takes, in windows: power in a bin is taken as
flat, and a window that sees a part of a steep one puts the rest on its neighbours."""
_COLUMNS, _LEAST_BINS, _FINEST = 16, 2, 12
"""Bins of an iteration, about, and of a phase at least; as many as windows find room in it, up to the last."""
_EDGE_SHARE, _EDGE_NS = 0.001, 10_000
"""By how much power may move beside its edge, or otherwise than the model has it: of a window, and in any case."""
_MARKS = 512
"""Segments of a stretch from which it is found what marks hold of late power: they are much alike."""
_NEGLIGIBLE = 1e-3
"""Share of the time between phases, all together, below which nobody asks what goes on there."""


@dataclass(frozen=True, slots=True)
class Response:
    """Of power that is ``age`` older than the newest that a reading has seen, `before` says which share is newer."""

    window_ns: float
    filter_ns: float = 0.0

    @staticmethod
    def of(signal: Signal) -> Response:
        """Of a signal's readings; a counter's is the mean since the one before."""
        if signal.is_counter:
            return Response(signal.spacing_ns)
        accuracy = signal.line.accuracy
        beside = accuracy.reach_ns - accuracy.window_ns
        return Response(max(signal.window_ns - beside, 2.0), float(accuracy.filter_ns))

    def with_filter(self, times: float) -> Response:
        """The same with another time constant."""
        return Response(self.window_ns, self.filter_ns * times)

    @property
    def newest_ns(self) -> int:
        """From the centre of the weight, where a reading's timestamp stands, to the newest that it has seen."""
        return round(self.window_ns / 2 + self.filter_ns)

    @property
    def length_ns(self) -> int:
        """From the oldest to the newest that counts."""
        return 2 * round(self.window_ns / 2) + round(_CONSTANTS * self.filter_ns)

    @property
    def width_ns(self) -> float:
        """Of the rectangle whose weight is spread as much: the shortest time that can be told apart goes with it."""
        return float(np.sqrt(self.window_ns**2 + 12 * self.filter_ns**2))

    def before(self, age_ns: Values) -> Values:
        """Share of the weight that is newer than ``age_ns``, from 0 to 1 at `length_ns`."""
        newer = self._before(np.asarray(age_ns, np.float64))
        return np.asarray(newer / self._before(np.array([float(self.length_ns)])))

    def _before(self, age: Values) -> Values:
        w, tau = self.window_ns, self.filter_ns
        if not tau:
            return np.asarray(np.clip(age / w, 0, 1), np.float64)
        share: Values = 1 - tau / w * -np.expm1(-w / tau) * np.exp(-(np.maximum(age, w) - w) / tau)
        # Windows in front of a low-pass are short: few ages are within one.
        is_within = age < w
        within = age[is_within]
        share[is_within] = (within + tau * np.expm1(-within / tau)) / w
        return share


@dataclass(frozen=True, slots=True)
class Bins:
    """The columns of the model: each kind's bins side by side."""

    edges: tuple[tuple[float, ...], ...]
    """For each kind the shares of a phase at which its bins begin, from 0."""
    length_ms: tuple[float, ...]
    """Usual length of a phase of each kind."""

    @staticmethod
    def of_lengths(length_ms: Sequence[float], equal: Sequence[int], window_ms: float = np.inf) -> Bins:
        """Bins for kinds of these usual lengths: so many equal ones, short ones behind the begin, and where windows
        are short, ones that are short for them up to `_ON_ITS_WAY_MS` and within the last window before the end."""
        edges = []
        step = min(max(_OF_WINDOW * window_ms, EARLY_MS[0]), _ON_ITS_WAY_MS)
        ladder = np.arange(step, _ON_ITS_WAY_MS, step)
        back = np.arange(step, window_ms, step) if step < _ON_ITS_WAY_MS else ladder
        for length, n in zip(length_ms, equal, strict=True):
            at = [t for t in ladder if t < length] + [length - t for t in back if t < length]
            at += [t for t in EARLY_MS if t < 0.75 * length]
            early: list[float] = []
            for t in sorted(at if n > 1 else ()):
                if t - (early[-1] * length if early else 0.0) > _LEAST_MS < length - t:
                    early.append(t / length)
            # Where two nearly coincide one is enough.
            even = [i / n for i in range(n) if all(abs(i / n - t) > _LEAST_MS / length for t in early)]
            edges.append(tuple(sorted({0.0, *even, *early})))
        return Bins(tuple(edges), tuple(length_ms))

    @property
    def count(self) -> Ints:
        """[kinds] bins of each."""
        return np.array([len(e) for e in self.edges], np.int64)

    @property
    def first(self) -> Ints:
        """[kinds] first column of each."""
        return np.cumsum(self.count) - self.count

    @property
    def columns(self) -> int:
        return int(self.count.sum())

    def shares_of(self, kind: int) -> Values:
        """[bins] of a kind: the share of a phase that each is."""
        return np.diff(np.append(self.edges[kind], 1.0))

    def joined(self) -> tuple[Bins, Values]:
        """Every two bins of a kind as one, and [columns, their columns] which is in which."""
        coarse = Bins(tuple(e[::2] for e in self.edges), self.length_ms)
        which = np.zeros((self.columns, coarse.columns))
        for mine, theirs, n in zip(self.first, coarse.first, self.count, strict=True):
            which[mine + np.arange(n), theirs + np.arange(n) // 2] = 1
        return coarse, which

    def means(self) -> Values:
        """[kinds, columns] what takes the mean over a kind's bins."""
        mean = np.zeros((len(self.edges), self.columns))
        for k, first in enumerate(self.first):
            mean[k, first : first + len(self.edges[k])] = self.shares_of(k)
        return mean


class Timeline:
    """Segments [s] one after the other, each of a kind; bins are shares of a segment, however long it is."""

    def __init__(self, begin_ns: Ints, end_ns: Ints, kind: Ints, bins: Bins) -> None:
        count = bins.count[kind]
        of = np.repeat(np.arange(len(kind)), count)
        self.column = bins.first[kind][of] + np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
        into = np.concatenate(bins.edges)[self.column] * (end_ns - begin_ns)[of]
        self.begin_ns = begin_ns[of] + into.astype(np.int64)
        self.end_ns = np.append(self.begin_ns[1:], end_ns[-1:])
        self.columns, self.kinds = bins.columns, len(bins.edges)
        # What a segment has more than usual, over its length.
        length = np.maximum(end_ns - begin_ns, 1) * 1e-6
        self._kind, self._more = kind[of], (1 - np.asarray(bins.length_ms)[kind] / length)[of]
        self._usual_ns = max(int(np.median(self.end_ns - self.begin_ns)), 1)

    def design(self, begin_ns: Ints, end_ns: Ints, response: Response | None = None) -> Values:
        """[n, columns + kinds] rows A_j of the design matrix: shares of windows [n] that lie in each bin, and for each
        kind the share of the window that its phases there last longer than usual (or, below 0, that they are shorter).

        Windows must lie inside the timeline. With a response that has a low-pass, `Response.length_ns` long, the newest
        in a window counts for more.
        """
        row, at, begin, end = self._overlaps(begin_ns, end_ns)
        length = end_ns - begin_ns
        overlap: NDArray[Any] = end - begin
        if response is not None and response.filter_ns:
            newest = end_ns[row]
            older = response.before(np.asarray(newest - begin, np.float64))
            # What is newer than an overlap is what the next one of the window has, and nothing behind the last.
            newer = np.where(end < newest, np.append(older[1:], 0.0), 0.0)
            overlap = np.maximum(older - newer, 0) * length[row]
        shares = self._summed(row, self.column[at], overlap, self.columns, length)
        more = self._summed(row, self._kind[at], overlap * self._more[at], self.kinds, length)
        return np.concatenate([shares, more], axis=1)

    def _overlaps(self, begin_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """For each pair of a window and a bin in it, in order: both indices, and from when to when they overlap."""
        first = np.searchsorted(self.begin_ns, begin_ns, "right") - 1
        count = np.searchsorted(self.begin_ns, end_ns, "left") - first
        stop = np.cumsum(count)
        row = np.repeat(np.arange(len(begin_ns)), count)
        at = np.arange(len(row)) - np.repeat(stop - count - first, count)
        begin = self.begin_ns[at]
        begin[stop - count] = begin_ns
        # Bins have no gaps: where one ends the next begins.
        end = np.append(begin[1:], end_ns[-1:])
        end[stop - 1] = end_ns
        return row, at, begin, end

    @staticmethod
    def _summed(row: Ints, column: Ints, of: NDArray[Any], columns: int, length: Ints) -> Values:
        sums = np.bincount(row * columns + column, of, len(length) * columns).reshape(len(length), columns)
        return np.asarray(sums / length[:, None], np.float64)

    def blocks(self, begin_ns: Ints, end_ns: Ints) -> Sequence[slice]:
        """Rows to be asked for at a time."""
        widest = int(np.max(end_ns - begin_ns, initial=1))
        rows = max(1, _PAIRS // (widest // self._usual_ns + 2 + self.columns))
        return [slice(i, i + rows) for i in range(0, len(begin_ns), rows)]


@dataclass(frozen=True, slots=True)
class PhaseSequence:
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
        count = np.bincount(self.kind[1:] * kinds + self.kind[:-1], minlength=kinds * kinds)
        return count.reshape(kinds, kinds).astype(np.float64)

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
                shares = timeline.design(begin[use], end[use])
                length = (end - begin)[use].astype(np.float64)[:, None]
                np.add.at(total[i], kind[use], shares * length)
                np.add.at(time[i], kind[use], length)
        plain = np.pad(self.bins.means(), ((0, 0), (0, kinds)))
        # A kind that always comes after a pause: what went before it is not known, and is taken as the same.
        return np.asarray(np.where(time > 0, total / np.maximum(time, 1), plain))

    def edge_u_w(self, watts: Values, window_ns: float) -> Values:
        """[kinds] standard uncertainty from when power moves at edges. That it follows an edge with one time constant
        is a model; how far off it was in simulations grows with the window (docs/explanation/energy.md)."""
        pairs = self.pairs()
        jumps = [watts - _shares(p) @ watts for p in (pairs, pairs.T)]
        beside_ms = (_EDGE_SHARE * window_ns + _EDGE_NS) * 1e-6
        return np.asarray(beside_ms / np.sqrt(3) * np.hypot(*jumps) / np.asarray(self.bins.length_ms))


def _shares(pairs: Values) -> Values:
    return np.asarray(pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1))


def segments_of(phases: PhaseSequence, window_ns: float) -> Segments:
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
