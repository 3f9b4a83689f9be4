"""Many intervals taken together, of which only so many are looked at at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy import rest
from powerd_analytics.energy.devices import Part, interval_energies
from powerd_analytics.energy.reasons import MOSTLY
from powerd_analytics.energy.rest import Given
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, Estimate, sum_of
from powerd_analytics.runs.phases import pieces

Ints = NDArray[np.int64]


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
    for some in pieces(m, rest.AT_A_TIME):
        none = np.zeros(some.stop - some.start, np.int64)
        found = interval_energies(part, begin_ns[some], end_ns[some], none, none)
        if is_given:
            given.begin_j[some], given.end_j[some] = found.begin_j, found.end_j
        sums.append(sum_of(*(getattr(found, name) for name in MEAN_COLUMNS)))
        off_by_j += float(found.off_by_j.sum())
        missing_s += float(found.missing_s.sum())
        duration_s += float(found.duration_s.sum())
        mostly += int(np.count_nonzero(found.missing_s > MOSTLY * found.duration_s))
        is_resolvable &= bool(found.resolvable.all())
    energy = Estimate(
        float(sum(s.energy_j for s in sums)),
        hypot(*(s.u_statistical_j for s in sums)),
        float(sum(s.u_systematic_j for s in sums)),
        float(sum(s.rectangle_j for s in sums)),
    )
    return Whole(energy, is_resolvable, off_by_j, missing_s, duration_s, mostly / max(m, 1), given)
