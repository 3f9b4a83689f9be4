"""Sums that agree: what lies between phases, so that phases and rest together can be held against the whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.stretches import JOIN_SHARE
from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies
from powerd_analytics.signals.streams import plain_j

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
    # With equal times, the end of what encloses comes last and its beginning first.
    begin, from_start = _in_order(outer[0], cover[1])
    end, from_end = _in_order(cover[0], outer[1])
    np.maximum(begin, end, out=end)
    # Edges that two phases share without a gap took nothing from the gap, which no sensor resolves either.
    is_short = end - begin <= part.gap_ns
    rest = _plain_j(part, begin, end, is_short)
    looked_at = np.flatnonzero(_with_neighbours(part, begin, end, ~is_short))
    begin, end, from_start, from_end = (x[looked_at] for x in (begin, end, from_start, from_end))
    counted = ~is_short[looked_at]
    given = np.zeros(len(begin))
    after, before = from_start >= n_outer, from_end < n_cover
    given[after] += columns.end_j[from_start[after] - n_outer]
    given[before] += columns.begin_j[from_end[before]]
    for i in range(0, len(begin), AT_A_TIME):
        some = slice(i, i + AT_A_TIME)
        none = np.zeros(len(begin[some]), np.int64)
        gaps = interval_energies(part, begin[some], end[some], none, none)
        joules = np.where(gaps.resolvable, np.nan_to_num(gaps.energy_j), gaps.linear_j - given[some])
        rest += float(joules[counted[some]].sum())
    return rest


def _in_order(first: Ints, second: Ints) -> tuple[Ints, NDArray[np.intp]]:
    """Two lists of moments in one order, of equal ones those of ``first`` earlier, and where each one was."""
    times = np.concatenate([first, second])
    order = np.argsort(times, kind="stable")
    return times[order], order


def _plain_j(part: Part, begin: Ints, end: Ints, which: NDArray[np.bool_]) -> float:
    """Joules of gaps, plainly integrated; readings are not looked at for those of no length."""
    which = which & (end > begin)
    if not which.any():
        return 0.0
    return float(sum(plain_j(s, (begin[which], end[which]))[0].sum() for s in part.signals))


def _with_neighbours(part: Part, begin: Ints, end: Ints, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The gaps ``which``, and those on their sides: how far an edge can be looked at depends on the next edge, where
    edges nearer than lines can tell are none."""
    kept = which.copy()
    last = len(begin) - 1
    for signal in part.signals if which.any() else ():
        near = round(JOIN_SHARE * signal.resolution_ns)
        # Of gaps in order: these hold the nearest begin and the nearest end on either side.
        before, after = np.searchsorted(end, begin[which] - near, "left"), np.searchsorted(begin, end[which] + near)
        for at in (before - 1, before, after - 1, after, after + 1):
            kept[np.clip(at, 0, last)] = True
    return kept
