"""Which bin of which kind of phase goes on when, and what share of each a sensor's window holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.response import Response

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_PAIRS = 1 << 21
"""Overlaps of windows and bins that are worked on at a time."""


EARLY_MS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Where bins begin behind the begin of a phase, beside those of equal length: there its power is on its way."""
_LEAST_MS = 0.1
"""Bins of equal length that would begin nearer than this to one of these do not."""
_ON_ITS_WAY_MS, _OF_WINDOW = 10.0, 0.25
"""How long after an edge power is on its way, and the bins that this takes, in windows: power in a bin is taken as
flat, and a window that sees a part of a steep one puts the rest on its neighbours."""


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
        made = np.zeros((len(self.edges), self.columns))
        for k, first in enumerate(self.first):
            made[k, first : first + len(self.edges[k])] = self.shares_of(k)
        return made


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

    def shares(self, begin_ns: Ints, end_ns: Ints) -> Values:
        """[n, columns] shares of windows [n] that lie in each bin. Windows must lie inside the timeline."""
        row, at, begin, end = self._overlaps(begin_ns, end_ns)
        return self._summed(row, self.column[at], end - begin, self.columns, end_ns - begin_ns)

    def equations(self, begin_ns: Ints, end_ns: Ints, response: Response | None = None) -> Values:
        """[n, columns + kinds] the same, and for each kind the share of the window that its phases there last longer
        than usual (or, below 0, that they are shorter). With a response that has a low-pass, `Response.length_ns` long,
        the newest in a window counts for more."""
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
        made = np.bincount(row * columns + column, of, len(length) * columns).reshape(len(length), columns)
        return np.asarray(made / length[:, None], np.float64)

    def blocks(self, begin_ns: Ints, end_ns: Ints) -> Sequence[slice]:
        """Rows to be asked for at a time."""
        widest = int(np.max(end_ns - begin_ns, initial=1))
        rows = max(1, _PAIRS // (widest // self._usual_ns + 2 + self.columns))
        return [slice(i, i + rows) for i in range(0, len(begin_ns), rows)]
