"""Many intervals taken together, of which no more than a million are looked at at a time."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.devices import Part, Seen, interval_energies
from powerd_analytics.energy.rest import Given
from powerd_analytics.energy.uncertainty import MEAN_COLUMNS, Estimate, sum_of
from powerd_analytics.runs.phases import pieces

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Whole:
    """Disjoint intervals [m] together."""

    energy: Estimate
    """NaN where one of them is not resolvable."""
    off_by_j: float
    seen: Seen
    given: Given


def whole_of(part: Part, begin_ns: Ints, end_ns: Ints) -> Whole:
    """Energies of disjoint intervals [m] of one kind, added up. Errors as `interval_energies`."""
    m = len(begin_ns)
    seen, given = Seen(np.empty(m, bool), np.empty(m), np.empty(m)), Given(np.empty(m), np.empty(m))
    sums: list[Estimate] = []
    off_by_j = 0.0
    for some in pieces(m):
        none = np.zeros(some.stop - some.start, np.int64)
        found = interval_energies(part, begin_ns[some], end_ns[some], none, none)
        for kept in (seen, given):
            for name in kept.__dataclass_fields__:
                getattr(kept, name)[some] = getattr(found, name)
        sums.append(sum_of(*(getattr(found, name) for name in MEAN_COLUMNS)))
        off_by_j += float(found.off_by_j.sum())
    energy = Estimate(
        float(sum(s.energy_j for s in sums)),
        hypot(*(s.u_statistical_j for s in sums)),
        float(sum(s.u_systematic_j for s in sums)),
        float(sum(s.rectangle_j for s in sums)),
    )
    return Whole(energy, off_by_j, seen, given)
