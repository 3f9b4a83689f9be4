"""Sums that agree: what lies between phases, so that phases and rest together can be held against the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies

Ints = NDArray[np.int64]

AT_A_TIME = 1 << 20
"""Gaps whose energies are in memory together."""


def merged(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of intervals [m] as disjoint intervals in order."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    b, reach = begin[order], np.maximum.accumulate(end[order])
    new = np.concatenate([[True], b[1:] > reach[:-1]])
    starts = np.flatnonzero(new)
    return b[starts], reach[np.append(starts[1:] - 1, len(b) - 1)]


def overlapping(begin: Ints, end: Ints) -> bool:
    """Whether any two of the intervals overlap by more than an edge."""
    order = np.argsort(begin, kind="stable")
    return bool(np.any(begin[order][1:] < end[order][:-1]))


@dataclass(frozen=True, slots=True)
class Given:
    """What intervals [m] were given at their edges, beside the plain integral."""

    begin_j: NDArray[np.float64]
    end_j: NDArray[np.float64]


def rest_energy_j(
    part: Part, outer: tuple[Ints, Ints], cover: tuple[Ints, Ints], columns: PhaseColumns | Given
) -> float:
    """Joules inside the disjoint intervals ``outer`` and outside the disjoint intervals ``cover``.

    ``columns`` are the energies of ``cover``. A gap that the sensors resolve is estimated like a phase. One that they
    do not is the plain integral less what the phases around it were given at their edges: a joule is counted once.
    """
    n_outer, n_cover = len(outer[0]), len(cover[0])
    starts = np.concatenate([outer[0], cover[1]])
    ends = np.concatenate([cover[0], outer[1]])
    # With equal times, the end of what encloses comes last and its beginning first.
    from_start = np.lexsort((np.repeat(np.array([0, 1], np.int8), [n_outer, n_cover]), starts))
    from_end = np.lexsort((np.repeat(np.array([0, 1], np.int8), [n_cover, n_outer]), ends))
    begin, end = starts[from_start], ends[from_end]
    del starts, ends  # with millions of phases every column counts
    np.maximum(begin, end, out=end)
    given = np.zeros(len(begin))
    after, before = from_start >= n_outer, from_end < n_cover
    given[after] += columns.end_j[from_start[after] - n_outer]
    given[before] += columns.begin_j[from_end[before]]
    del from_start, from_end, after, before
    # Edges that two phases share without a gap took nothing from the gap.
    given[end - begin <= part.gap_ns] = 0.0
    rest = 0.0
    for i in range(0, len(begin), AT_A_TIME):
        some = slice(i, i + AT_A_TIME)
        none = np.zeros(len(begin[some]), np.int64)
        gaps = interval_energies(part, begin[some], end[some], none, none)
        rest += float(np.where(gaps.resolvable, np.nan_to_num(gaps.energy_j), gaps.linear_j - given[some]).sum())
    return rest
