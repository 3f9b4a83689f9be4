"""Sums that agree: what lies between phases, so that phases and rest together can be held against the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    begin, end = _sorted(begin, end)
    reach = np.maximum.accumulate(end)
    starts = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    return begin[starts], reach[np.append(starts[1:] - 1, len(begin) - 1)]


def overlapping(begin: Ints, end: Ints) -> bool:
    """Whether any two of the intervals overlap by more than an edge."""
    begin, end = _sorted(begin, end)
    return bool(np.any(begin[1:] < end[:-1]))


def _sorted(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals in the order of their beginnings, which phases nearly always are in: no copies then."""
    if np.all(begin[1:] >= begin[:-1]):
        return begin, end
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


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
    if np.any(cover[0][1:] < cover[0][:-1]):
        order = np.argsort(cover[0], kind="stable")
        cover, columns = (cover[0][order], cover[1][order]), Given(columns.begin_j[order], columns.end_j[order])
    # With equal times, the end of what encloses comes last and its beginning first.
    begins, ends = _Merged(outer[0], cover[1], "left"), _Merged(outer[1], cover[0], "right")
    begin, end = begins.times, ends.times
    np.maximum(begin, end, out=end)
    # Edges that two phases share without a gap took nothing from the gap, which no sensor resolves either.
    is_short = end - begin <= part.gap_ns
    rest = _plain_j(part, begin, end, is_short)
    looked_at = np.flatnonzero(_with_neighbours(part, begin, end, ~is_short))
    for i in range(0, len(looked_at), AT_A_TIME):
        which = looked_at[i : i + AT_A_TIME]
        given = np.zeros(len(which))
        for moments, edge_j in ((begins, columns.end_j), (ends, columns.begin_j)):
            number = moments.of_cover(which)
            given[number >= 0] += edge_j[number[number >= 0]]
        none = np.zeros(len(which), np.int64)
        gaps = interval_energies(part, begin[which], end[which], none, none)
        joules = np.where(gaps.resolvable, np.nan_to_num(gaps.energy_j), gaps.linear_j - given)
        rest += float(joules[~is_short[which]].sum())
    return rest


class _Merged:
    """Moments of ``outer`` and of ``cover``, each in order, as one list; ``side`` says where among equal ones of
    ``cover`` those of ``outer`` come, before them or behind."""

    def __init__(self, outer: Ints, cover: Ints, side: Literal["left", "right"]) -> None:
        self._outer = np.arange(len(outer)) + np.searchsorted(cover, outer, side)
        """Where those of ``outer`` are in the whole. Those of ``cover`` are by far more, and have no such list."""
        self.times = np.empty(len(outer) + len(cover), np.int64)
        is_cover = np.ones(len(self.times), bool)
        is_cover[self._outer] = False
        self.times[self._outer] = outer
        self.times[is_cover] = cover

    def of_cover(self, which: NDArray[np.intp]) -> NDArray[np.intp]:
        """Which moments of ``cover`` the moments [k] of the whole are; -1 for those of ``outer``."""
        before, upto = (np.searchsorted(self._outer, which, side) for side in _SIDES)
        return np.where(upto > before, -1, which - before)


_SIDES: tuple[Literal["left"], Literal["right"]] = "left", "right"


def _plain_j(part: Part, begin: Ints, end: Ints, which: NDArray[np.bool_]) -> float:
    """Joules of gaps, plainly integrated; readings are not looked at for those of no length."""
    joules = 0.0
    for i in range(0, len(which), AT_A_TIME):
        some = slice(i, i + AT_A_TIME)
        own = which[some] & (end[some] > begin[some])
        if own.any():
            joules += float(sum(plain_j(s, (begin[some][own], end[some][own]))[0].sum() for s in part.signals))
    return joules


def _with_neighbours(part: Part, begin: Ints, end: Ints, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The gaps ``which``, and those on their sides: how far an edge can be looked at depends on the next edge, where
    edges nearer than lines can tell are none."""
    kept = which.copy()
    last = len(begin) - 1
    for signal in part.signals if which.any() else ():
        near = round(JOIN_SHARE * signal.resolution_ns)
        for i in range(0, len(which), AT_A_TIME):
            own = np.flatnonzero(which[i : i + AT_A_TIME]) + i
            # Of gaps in order: these hold the nearest begin and the nearest end on either side.
            before, after = np.searchsorted(end, begin[own] - near, "left"), np.searchsorted(begin, end[own] + near)
            for at in (before - 1, before, after - 1, after, after + 1):
                kept[np.clip(at, 0, last)] = True
    return kept
