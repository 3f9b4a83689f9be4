"""Back-to-back phases of one kind, taken as one stretch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

JOIN_SHARE = 0.05
"""Phases of one kind closer together than this share of the resolution are one stretch,"""
SMALL_SHARE = 0.1
"""where that is also no more than this share of the earlier one."""


@dataclass(frozen=True, slots=True)
class Stretches:
    """Back-to-back phases of one class and process, taken as one. Between them no edge needs resolving."""

    begin_ns: Ints
    end_ns: Ints
    label: Ints
    of_phase: Ints
    """[m] the stretch of each phase."""
    is_first: Mask
    is_last: Mask
    """[m] whether a phase begins, ends its stretch."""


def join_stretches(begin: Ints, end: Ints, label: Ints, process: Ints, gap_ns: float) -> Stretches:
    """Group phases [m], in any order, into stretches."""
    m = len(begin)
    order = np.lexsort((begin, process, label))
    b, e, c, p = begin[order], end[order], label[order], process[order]
    joined = np.zeros(m, bool)
    # What lies between must be little for the phases too, or short phases would swallow others between them.
    near = np.minimum(gap_ns, SMALL_SHARE * (e[:-1] - b[:-1]))
    joined[1:] = (c[1:] == c[:-1]) & (p[1:] == p[:-1]) & (np.abs(b[1:] - e[:-1]) <= near)
    starts = np.flatnonzero(~joined)
    number = np.empty(m, np.int64)
    number[order] = np.cumsum(~joined) - 1
    first, last = np.empty(m, bool), np.empty(m, bool)
    first[order] = ~joined
    last[order] = np.append(~joined[1:], True) if m else np.zeros(0, bool)
    ends = np.maximum.reduceat(e, starts) if m else e
    return Stretches(b[starts], ends, c[starts], number, first, last)
