"""Lines that are neither power nor energy, a piece at a time: their good readings, and how often each code came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError
from powerd_core.model import BAD

AT_A_TIME = 1 << 20
"""Readings that are in memory together."""


@dataclass(frozen=True, slots=True)
class GoodReadings:
    """The good ones [n] of some readings in a row: host times and raw codes by column."""

    t_ns: NDArray[np.int64]
    codes: Mapping[str, NDArray[Any]]
    bad: int
    """Readings among them that are flagged, and left out."""


def good_pieces(run: Run, name: str, column: str, *others: str) -> Iterator[GoodReadings]:
    """A line's good readings in the order of the file, with ``column`` and those of ``others`` that there are.

    Raises `RunFileError`, and `AnalysisError` for an unknown line or one without that column.
    """
    count = run.line(name).count
    with run.reader(name) as reader:
        for first in range(0, count, AT_A_TIME):
            readings = reader.values((column, *others), first, min(first + AT_A_TIME, count))
            if column not in readings.codes:
                raise AnalysisError(f"line {name!r} has no column {column!r}, which its conversion needs")
            good = (readings.flags & np.uint16(int(BAD))) == 0
            codes = {key: values[good] for key, values in readings.codes.items()}
            yield GoodReadings(readings.t_ns[good], codes, len(good) - int(np.count_nonzero(good)))


class CodeCounts:
    """How often each code came. Of a hundred million readings of a clock or a limit there are few different ones."""

    def __init__(self, pieces: Iterable[NDArray[Any]] = ()) -> None:
        self._codes, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        for codes in pieces:
            self.add(codes)

    def add(self, codes: NDArray[Any]) -> None:
        """More codes [n], of whole numbers."""
        new, counts = np.unique(codes, return_counts=True)
        if not len(self._codes):
            self._codes, self._counts = new, counts.astype(np.int64)
            return
        self._codes, place = np.unique(np.concatenate([self._codes, new]), return_inverse=True)
        both = np.concatenate([self._counts, counts])
        self._counts = np.bincount(place.ravel(), both, len(self._codes)).astype(np.int64)

    def __len__(self) -> int:
        return int(self._counts.sum())

    def median(self) -> float:
        """The middle one of all codes, or the mean of the middle two. There is at least one."""
        upto, n = np.cumsum(self._counts), len(self)
        low, high = (self._codes[np.searchsorted(upto, k, "right")] for k in ((n - 1) // 2, n // 2))
        return (float(low) + float(high)) / 2

    def largest(self) -> float:
        """The largest code. There is at least one."""
        return float(self._codes[-1])
