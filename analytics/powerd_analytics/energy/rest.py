"""Sums that agree: what lies between phases, so that phases and rest together can be held against the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.stretches import JOIN_SHARE
from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies
from powerd_analytics.energy.gaps import Gaps, Moments
from powerd_analytics.runs.phases import pieces
from powerd_analytics.signals.streams import plain_j

Ints = NDArray[np.int64]

AT_A_TIME = 1 << 18
"""Gaps whose energies are in memory together."""


def merged(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of intervals [m] as disjoint intervals in order."""
    if not len(begin):
        return begin, end
    begin, end = _sorted(begin, end)
    if all(np.all(begin[some][1:] > end[some][:-1]) for some in _pieces(len(begin))):
        return begin, end  # disjoint as they are, which millions of outermost phases are: no copies
    reach = np.maximum.accumulate(end)
    starts = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    return begin[starts], reach[np.append(starts[1:] - 1, len(begin) - 1)]


def overlapping(begin: Ints, end: Ints) -> bool:
    """Whether any two of the intervals overlap by more than an edge."""
    begin, end = _sorted(begin, end)
    return any(bool(np.any(begin[some][1:] < end[some][:-1])) for some in _pieces(len(begin)))


def _pieces(count: int) -> Iterator[slice]:
    """All of ``count`` rows in pieces, each with the first row of the next."""
    return (slice(i, i + AT_A_TIME + 1) for i in range(0, count, AT_A_TIME))


def _sorted(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals in the order of their beginnings, which phases nearly always are in: no copies then."""
    if _is_sorted(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def _is_sorted(moments: Ints) -> bool:
    return all(np.all(moments[some][1:] >= moments[some][:-1]) for some in _pieces(len(moments)))


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
    if not _is_sorted(cover[0]):
        order = np.argsort(cover[0], kind="stable")
        cover, columns = (cover[0][order], cover[1][order]), Given(columns.begin_j[order], columns.end_j[order])
    # With equal times, the end of what encloses comes last and its beginning first.
    gaps = Gaps(Moments(outer[0], cover[1], "left"), Moments(outer[1], cover[0], "right"))
    # Edges that two phases share without a gap took nothing from the gap, which no sensor resolves either.
    is_long = np.empty(len(gaps), bool)
    rest = 0.0
    for some in pieces(len(gaps), AT_A_TIME):
        begin, end = gaps.between(np.arange(some.start, some.stop))
        is_long[some] = end - begin > part.gap_ns
        rest += _plain_j(part, begin, end, ~is_long[some])
    for which in _numbers(_with_neighbours(part, gaps, is_long)):
        given = np.zeros(len(which))
        for moments, edge_j in ((gaps.begins, columns.end_j), (gaps.ends, columns.begin_j)):
            number = moments.of_cover(which)
            given[number >= 0] += edge_j[number[number >= 0]]
        begin, end = gaps.between(which)
        none = np.zeros(len(which), np.int64)
        found = interval_energies(part, begin, end, none, none)
        joules = np.where(found.resolvable, np.nan_to_num(found.energy_j), found.linear_j - given)
        rest += float(joules[is_long[which]].sum())
    return rest


def _plain_j(part: Part, begin: Ints, end: Ints, which: NDArray[np.bool_]) -> float:
    """Joules of gaps, plainly integrated; readings are not looked at for those of no length."""
    own = which & (end > begin)
    return float(sum(plain_j(s, (begin[own], end[own]))[0].sum() for s in part.signals)) if own.any() else 0.0


def _with_neighbours(part: Part, gaps: Gaps, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The gaps ``which``, and those on their sides: how far an edge can be looked at depends on the next edge, where
    edges nearer than lines can tell are none."""
    kept = which.copy()
    last = len(gaps) - 1
    for signal in part.signals if which.any() else ():
        near = round(JOIN_SHARE * signal.resolution_ns)
        for some in pieces(len(which), AT_A_TIME):
            begin, end = gaps.between(np.flatnonzero(which[some]) + some.start)
            # Of gaps in order: these hold the nearest begin and the nearest end on either side.
            before, after = gaps.ended_before(begin - near), gaps.begun_before(end + near)
            for at in (before - 1, before, after - 1, after, after + 1):
                kept[np.clip(at, 0, last)] = True
    return kept


def _numbers(which: NDArray[np.bool_]) -> Iterator[NDArray[np.intp]]:
    """The numbers of those that are True, `AT_A_TIME` at a time."""
    waiting = np.zeros(0, np.intp)
    for some in pieces(len(which), AT_A_TIME):
        waiting = np.concatenate([waiting, np.flatnonzero(which[some]) + some.start])
        if len(waiting) >= AT_A_TIME:
            yield waiting[:AT_A_TIME]
            waiting = waiting[AT_A_TIME:]
    if len(waiting):
        yield waiting
