"""Intervals taken together: their union, and their energy as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, interval_energies
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, Estimate, sum_of
from powerd_analytics.runs.phases import moments_of

Ints = NDArray[np.int64]

AT_A_TIME = 1 << 18
"""Intervals that are looked at together."""


def merged(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of intervals [m] as disjoint intervals in order."""
    if not len(begin):
        return begin, end
    begin, end = _sorted(begin, end)
    if all(np.all(begin[some][1:] > end[some][:-1]) for some in _overlapping_pieces(len(begin))):
        return begin, end  # disjoint as they are, which millions of outermost phases are: no copies
    reach = np.maximum.accumulate(end)
    starts = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    return begin[starts], reach[np.append(starts[1:] - 1, len(begin) - 1)]


def without(begin: Ints, end: Ints, hole_begin: Ints, hole_end: Ints) -> tuple[Ints, Ints]:
    """Disjoint intervals in order, less others: what is left of them, as disjoint intervals in order."""
    if not len(hole_begin):
        return begin, end
    hole_begin, hole_end = merged(hole_begin, hole_end)
    at = moments_of(begin, end, hole_begin, hole_end)

    def is_open(begins: Ints, ends: Ints) -> NDArray[np.bool_]:
        return np.asarray(np.searchsorted(begins, at[:-1], "right") > np.searchsorted(ends, at[:-1], "right"))

    left = is_open(begin, end) & ~is_open(hole_begin, hole_end)
    return at[:-1][left], at[1:][left]


def overlapping(begin: Ints, end: Ints) -> bool:
    """Whether any two of the intervals overlap by more than an edge."""
    begin, end = _sorted(begin, end)
    return any(bool(np.any(begin[some][1:] < end[some][:-1])) for some in _overlapping_pieces(len(begin)))


def _overlapping_pieces(count: int) -> Iterator[slice]:
    """All of ``count`` rows in pieces, each with the first row of the next."""
    return (slice(i, i + AT_A_TIME + 1) for i in range(0, count, AT_A_TIME))


def _sorted(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals in the order of their beginnings, which phases nearly always are in: no copies then."""
    if all(np.all(begin[some][1:] >= begin[some][:-1]) for some in _overlapping_pieces(len(begin))):
        return begin, end
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


@dataclass(frozen=True, slots=True)
class Whole:
    """Disjoint intervals [m] together."""

    energy: Estimate
    """NaN where a line has fewer than two readings."""
    off_by_j: float
    missing_s: float
    duration_s: float


def whole_of(part: Part, begin_ns: Ints, end_ns: Ints) -> Whole:
    """Energies of disjoint intervals [m] added up."""
    columns = interval_energies(part, begin_ns, end_ns, is_whole=True)
    return Whole(
        sum_of(*(getattr(columns, name) for name in MEAN_COLUMNS)),
        float(columns.off_by_j.sum()),
        float(columns.missing_s.sum()),
        float(columns.duration_s.sum()),
    )
