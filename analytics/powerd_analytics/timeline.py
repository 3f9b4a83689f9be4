"""Which bin of which kind of phase goes on when, and what share of each a sensor's window holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_PAIRS = 1 << 21
"""Overlaps of windows and bins that are worked on at a time."""


EARLY_MS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Where bins begin behind the begin of a phase, beside those of equal length: there its power is on its way."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The columns of the model: each kind's bins side by side."""

    edges: tuple[tuple[float, ...], ...]
    """For each kind the shares of a phase at which its bins begin, from 0."""
    length_ms: tuple[float, ...]
    """Usual length of a phase of each kind."""

    @staticmethod
    def of_lengths(length_ms: Sequence[float], equal: Sequence[int]) -> Bins:
        """Bins for kinds of these usual lengths: so many equal ones, and short ones behind the begin."""
        edges = []
        for length, n in zip(length_ms, equal, strict=True):
            early = [t / length for t in EARLY_MS if n > 1 and t < 0.75 * length]
            edges.append(tuple(sorted({i / n for i in range(n)} | set(early))))
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
        self.columns = bins.columns

    def shares(self, begin_ns: Ints, end_ns: Ints) -> Values:
        """[n, columns] shares of windows [n] that lie in each bin. Windows must lie inside the timeline."""
        first = np.searchsorted(self.begin_ns, begin_ns, "right") - 1
        count = np.searchsorted(self.begin_ns, end_ns, "left") - first
        row = np.repeat(np.arange(len(begin_ns)), count)
        at = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - first, count)
        overlap = np.minimum(self.end_ns[at], end_ns[row]) - np.maximum(self.begin_ns[at], begin_ns[row])
        shares = np.bincount(
            row * self.columns + self.column[at], np.maximum(overlap, 0), len(begin_ns) * self.columns
        ).reshape(len(begin_ns), self.columns)
        made: Values = shares / (end_ns - begin_ns)[:, None]
        return made

    def blocks(self, begin_ns: Ints, end_ns: Ints) -> Sequence[slice]:
        """Rows to be asked for at a time."""
        widest = int(np.max(end_ns - begin_ns, initial=1))
        usual = max(int(np.median(self.end_ns - self.begin_ns)), 1)
        rows = max(1, _PAIRS // (widest // usual + 2 + self.columns))
        return [slice(i, i + rows) for i in range(0, len(begin_ns), rows)]
