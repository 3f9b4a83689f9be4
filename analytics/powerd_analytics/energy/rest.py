"""Sums that agree: intervals taken together, and what lies between phases, so that phases and rest can be held against
the whole.

There may be as many gaps as phases, ten million of them: so what is asked of intervals goes over them a piece at a
time, and gaps are never in memory as a list (`Gaps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, PhaseColumns, interval_energies
from powerd_analytics.energy.edges import JOIN_SHARE
from powerd_analytics.energy.reasons import MOSTLY
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, Estimate, one_rectangle, sum_of
from powerd_analytics.runs.phases import pieces
from powerd_analytics.signals.streams import plain_j

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.intp]

AT_A_TIME = 1 << 18
"""Gaps whose energies are in memory together."""


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


def overlapping(begin: Ints, end: Ints) -> bool:
    """Whether any two of the intervals overlap by more than an edge."""
    begin, end = _sorted(begin, end)
    return any(bool(np.any(begin[some][1:] < end[some][:-1])) for some in _overlapping_pieces(len(begin)))


def _overlapping_pieces(count: int) -> Iterator[slice]:
    """All of ``count`` rows in pieces, each with the first row of the next."""
    return (slice(i, i + AT_A_TIME + 1) for i in range(0, count, AT_A_TIME))


def _sorted(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals in the order of their beginnings, which phases nearly always are in: no copies then."""
    if _is_sorted(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    return begin[order], end[order]


def _is_sorted(moments: Ints) -> bool:
    return all(np.all(moments[some][1:] >= moments[some][:-1]) for some in _overlapping_pieces(len(moments)))


class Moments:
    """Moments of ``outer`` and of ``cover``, each in order, as one list in order. Among equal ones, those of ``outer``
    come first, or last with ``is_last``."""

    def __init__(self, outer: Ints, cover: Ints, *, is_last: bool) -> None:
        self._outer, self._cover = outer, cover
        self._place = np.arange(len(outer)) + np.searchsorted(cover, outer, "right" if is_last else "left")
        """Where those of ``outer`` are in the whole. Those of ``cover`` are by far more, and have no such list."""

    def __len__(self) -> int:
        return len(self._outer) + len(self._cover)

    def at(self, which: Numbers) -> Ints:
        """The moments [k] with these numbers."""
        of_cover, outer_before = self._of_cover(which)
        t_ns = np.empty(len(which), np.int64)
        t_ns[of_cover < 0] = self._outer[outer_before[of_cover < 0]]
        t_ns[of_cover >= 0] = self._cover[of_cover[of_cover >= 0]]
        return t_ns

    def of_cover(self, which: Numbers) -> Numbers:
        """Which moments of ``cover`` the moments [k] of the whole are; -1 for those of ``outer``."""
        return self._of_cover(which)[0]

    def _of_cover(self, which: Numbers) -> tuple[Numbers, Numbers]:
        before, upto = np.searchsorted(self._place, which, "left"), np.searchsorted(self._place, which, "right")
        return np.where(upto > before, -1, which - before), before

    def before(self, t_ns: Ints) -> Numbers:
        """How many of the whole are earlier than each of some moments [k]."""
        return np.asarray(np.searchsorted(self._outer, t_ns, "left") + np.searchsorted(self._cover, t_ns, "left"))


@dataclass(frozen=True, slots=True)
class Gaps:
    """From each of ``begins`` to the one of ``ends`` with its number; of no length where that is earlier."""

    begins: Moments
    ends: Moments

    def __len__(self) -> int:
        return len(self.begins)

    def between(self, which: Numbers) -> tuple[Ints, Ints]:
        """Beginnings and ends of the gaps [k] with these numbers."""
        begin = self.begins.at(which)
        return begin, np.maximum(begin, self.ends.at(which))


@dataclass(frozen=True, slots=True)
class Given:
    """What intervals [m] were given at their edges, beside the plain integral."""

    begin_j: Values
    end_j: Values


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
    gaps = Gaps(Moments(outer[0], cover[1], is_last=False), Moments(outer[1], cover[0], is_last=True))
    # Edges that two phases share without a gap took nothing from the gap, which no sensor resolves either.
    is_long = np.empty(len(gaps), bool)
    rest_j = 0.0
    for some in pieces(len(gaps), AT_A_TIME):
        begin, end = gaps.between(np.arange(some.start, some.stop))
        is_long[some] = end - begin > part.gap_ns
        # Readings are not looked at for gaps of no length.
        is_short = ~is_long[some] & (end > begin)
        if is_short.any():
            rest_j += float(sum(plain_j(s, (begin[is_short], end[is_short]))[0].sum() for s in part.signals))
    for which in _numbers(_with_neighbours(part, gaps, is_long)):
        given_j = np.zeros(len(which))
        for moments, edge_j in ((gaps.begins, columns.end_j), (gaps.ends, columns.begin_j)):
            number = moments.of_cover(which)
            given_j[number >= 0] += edge_j[number[number >= 0]]
        begin, end = gaps.between(which)
        none = np.zeros(len(which), np.int64)
        energies = interval_energies(part, begin, end, none, none)
        joules = np.where(energies.resolvable, np.nan_to_num(energies.energy_j), energies.linear_j - given_j)
        rest_j += float(joules[is_long[which]].sum())
    return rest_j


def _with_neighbours(part: Part, gaps: Gaps, which: Mask) -> Mask:
    """The gaps ``which``, and those on their sides: how far an edge can be looked at depends on the next edge, where
    edges nearer than lines can tell are none."""
    kept = which.copy()
    for signal in part.signals if which.any() else ():
        near = round(JOIN_SHARE * signal.resolution_ns)
        for some in pieces(len(which), AT_A_TIME):
            begin, end = gaps.between(np.flatnonzero(which[some]) + some.start)
            # Of gaps in order: these hold the nearest begin and the nearest end on either side. A gap has ended where
            # the moment is behind its number in both lists.
            before = np.minimum(gaps.begins.before(begin - near), gaps.ends.before(begin - near))
            after = gaps.begins.before(end + near)
            for at in (before - 1, before, after - 1, after, after + 1):
                kept[np.clip(at, 0, len(gaps) - 1)] = True
    return kept


def _numbers(which: Mask) -> Iterator[Numbers]:
    """The numbers of those that are True, `AT_A_TIME` at a time."""
    waiting = np.zeros(0, np.intp)
    for some in pieces(len(which), AT_A_TIME):
        waiting = np.concatenate([waiting, np.flatnonzero(which[some]) + some.start])
        if len(waiting) >= AT_A_TIME:
            yield waiting[:AT_A_TIME]
            waiting = waiting[AT_A_TIME:]
    if len(waiting):
        yield waiting


@dataclass(frozen=True, slots=True)
class Whole:
    """Disjoint intervals [m] together."""

    energy: Estimate
    """NaN where one of them is not resolvable."""
    is_resolvable: bool
    off_by_j: float
    missing_s: float
    duration_s: float
    mostly_missing: float
    """The share of them that has no number for want of readings, `powerd_analytics.energy.reasons.MOSTLY`."""
    given: Given
    """[m], or [0] where it was not asked for."""


def whole_of(part: Part, begin_ns: Ints, end_ns: Ints, *, is_given: bool = False) -> Whole:
    """Energies of disjoint intervals [m] of one kind, added up; ``is_given`` asks for what each was given at its edges.

    Errors as `interval_energies`.
    """
    m = len(begin_ns)
    given = Given(*(np.empty(m if is_given else 0) for _ in range(2)))
    sums: list[Estimate] = []
    off_by_j, missing_s, duration_s, mostly, is_resolvable = 0.0, 0.0, 0.0, 0, True
    for some in pieces(m, AT_A_TIME):
        none = np.zeros(some.stop - some.start, np.int64)
        energies = interval_energies(part, begin_ns[some], end_ns[some], none, none)
        if is_given:
            given.begin_j[some], given.end_j[some] = energies.begin_j, energies.end_j
        sums.append(sum_of(*(getattr(energies, name) for name in MEAN_COLUMNS)))
        off_by_j += float(energies.off_by_j.sum())
        missing_s += float(energies.missing_s.sum())
        duration_s += float(energies.duration_s.sum())
        mostly += int(np.count_nonzero(energies.missing_s > MOSTLY * energies.duration_s))
        is_resolvable &= bool(energies.resolvable.all())
    energy = Estimate(
        float(sum(s.energy_j for s in sums)),
        hypot(*(s.u_statistical_j for s in sums)),
        float(sum(s.u_systematic_j for s in sums)),
        float(sum(s.rectangle_j for s in sums)),
    )
    return Whole(energy, is_resolvable, off_by_j, missing_s, duration_s, mostly / max(m, 1), given)


STRETCH = 4
"""Intervals are looked at together where no gap between them is longer than so many times what the sensors resolve."""


def bounded_sum(part: Part, begin_ns: Ints, end_ns: Ints) -> Estimate | None:
    """The energy of disjoint intervals [m] in order, some of them too short for the sensors: the plain integral, within
    limits. None where a line has no two readings.

    The stretches that hold the intervals and the gaps between them have energies. What of these lies in the gaps is at
    least their time at the least power that the lines showed in the run, and at most that at the greatest. So is the
    energy of a stretch that is too short itself.
    """
    if not part.signals or any(len(signal) < 2 for signal in part.signals):
        return None
    reach_ns = round(STRETCH * max(signal.resolution_ns for signal in part.signals))
    first, last = merged(begin_ns, end_ns + reach_ns)
    last = last - reach_ns
    is_long = np.empty(len(first), bool)
    for some in pieces(len(first), AT_A_TIME):
        none = np.zeros(some.stop - some.start, np.int64)
        is_long[some] = interval_energies(part, first[some], last[some], none, none).resolvable
    stretches, length_ns = whole_of(part, first[is_long], last[is_long]), end_ns - begin_ns
    in_long_s = float(length_ns[is_long[np.searchsorted(first, begin_ns, "right") - 1]].sum()) * 1e-9
    in_short_s, gaps_s = float(length_ns.sum()) * 1e-9 - in_long_s, stretches.duration_s - in_long_s
    low_w, high_w = (float(sum(limits)) for limits in zip(*(s.shown_w() for s in part.signals), strict=True))
    whole = stretches.energy
    low_j = max(low_w * in_long_s, whole.energy_j - high_w * gaps_s) + low_w * in_short_s
    high_j = min(high_w * in_long_s, whole.energy_j - low_w * gaps_s) + high_w * in_short_s
    plain = sum(float(plain_j(signal, (begin_ns, end_ns))[0].sum()) for signal in part.signals)
    energy_j = min(max(plain, low_j), high_j)
    limit_j = max(high_j - energy_j, energy_j - low_j, 0.0) / sqrt(3)
    rectangle_j = float(one_rectangle(whole.rectangle_j, limit_j))
    return Estimate(energy_j, whole.u_statistical_j, hypot(whole.u_systematic_j, limit_j), rectangle_j)
