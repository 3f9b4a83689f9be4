"""The wired check of a clock's mapping: edges seen by a pin against the marks of a phase that toggles it.

The training raises a pin where a phase begins and lowers it where it ends. The board, or a node behind it, notes the
edges by its own clock; the run file maps them to the host's. What is left between edge and mark is the error of the
mapping, and the time from the mark to the pin's change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.reasons import seconds
from powerd_analytics.runs.names import pick
from powerd_analytics.runs.quantities import good_pieces
from powerd_analytics.runs.run import Run
from powerd_core.errors import AnalysisError
from powerd_core.model import QuantityConversion

REACH_NS = 100_000_000
"""An edge farther from every mark than this belongs to none."""
_COUNT = "edge"
"""The column in which a source counts edges, where it does."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MarkerReport:
    """Edges less marks. ``bound_*`` is what the clocks guarantee: board against host, and node against board."""

    line: str
    phase: str
    marks: int
    edges: int
    pairs: int
    median_s: float
    p99_s: float
    """Of the absolute differences."""
    bound_median_s: float
    outside: int
    """Pairs farther apart than their bound."""

    @property
    def holds(self) -> bool:
        return not self.outside


def compare_marker(run: Run, line: str, phase: str) -> MarkerReport:
    """Pair the edges of a marker line with a phase's begins (rising) and ends (falling). Raises `AnalysisError`."""
    found = run.line(line)
    c = found.conversion
    if not isinstance(c, QuantityConversion) or not c.quantity.endswith("_bits"):
        raise AnalysisError(f"line {found.name!r} is {found.quantity}: a marker is a line of bits, such as a node's")
    p = run.phases
    name = pick(phase, dict.fromkeys(k.name for k in p.classes), "phase")
    of_name = np.isin(p.label, [i for i, k in enumerate(p.classes) if k.name == name])
    rising, falling = _edges(run, found.name, c.column)
    pairs = [_pair(rising, p.begin_ns[of_name]), _pair(falling, np.sort(p.end_ns[of_name & ~p.cut]))]
    edge, mark = (np.concatenate(series) for series in zip(*pairs, strict=True))
    if not len(edge):
        raise AnalysisError(
            f"no edge of {found.name!r} is within {seconds(REACH_NS * 1e-9)} of a begin or end of {name!r}: "
            "is it this phase that moves the pin?"
        )
    if found.clock not in run.clocks:
        raise AnalysisError(f"the clock of line {found.name!r} is not in the run file: it was never compared")
    bound = run.clocks[found.clock].bound_ns(edge) + found.accuracy.centre_ns
    apart = (edge - mark).astype(np.float64)
    return MarkerReport(
        found.name,
        name,
        int(of_name.sum() + (of_name & ~p.cut).sum()),
        len(rising) + len(falling),
        len(edge),
        float(np.median(apart)) * 1e-9,
        float(np.quantile(np.abs(apart), 0.99)) * 1e-9,
        float(np.median(bound)) * 1e-9,
        int((np.abs(apart) > bound).sum()),
    )


def describe_marker(report: MarkerReport) -> Iterator[str]:
    """Lines of text for people."""
    r = report
    yield f"marker {r.line} against the marks of {r.phase}: {r.pairs} pairs of {r.edges} edges and {r.marks} marks"
    yield f"  edge less mark: {'-' if r.median_s < 0 else ''}{seconds(abs(r.median_s))} median, {seconds(r.p99_s)} p99"
    held = "held by all" if r.holds else f"NOT held by {r.outside} of {r.pairs}"
    yield f"  guaranteed bound ± {seconds(r.bound_median_s)} (median): {held}; the pin's own delay counts as error"


def _edges(run: Run, line: str, column: str) -> tuple[Ints, Ints]:
    """Host times of rising and falling edges. A reading that only repeats the level is none."""
    t, level, counted = np.zeros(0, np.int64), np.zeros(0, bool), np.zeros(0, np.int64)
    rising, falling = [t], [t]
    for piece in good_pieces(run, line, column, _COUNT):
        # An edge is told by the reading before it, which may be the last of another piece.
        t = np.concatenate([t[-1:], piece.t_ns])
        level = np.concatenate([level[-1:], piece.codes[column] != 0])
        is_edge = level[1:] != level[:-1]
        if _COUNT in piece.codes:
            counted = np.concatenate([counted[-1:], piece.codes[_COUNT].astype(np.int64)])
            is_edge &= ((counted[1:] - counted[:-1]) & 0xFFFF) == 1
        for gap in run.gaps:
            # Behind lost edges the level may be told by a status, at a time at which nothing happened.
            if line in gap.lines:
                is_edge &= ~((t[1:] >= gap.begin_ns) & (t[:-1] <= gap.end_ns))
        rising.append(t[1:][is_edge & level[1:]])
        falling.append(t[1:][is_edge & ~level[1:]])
    return np.concatenate(rising), np.concatenate(falling)


def _pair(edges: Ints, marks: Ints) -> tuple[Ints, Ints]:
    """Edges and marks that are each other's nearest, and not too far."""
    if not len(edges) or not len(marks):
        return edges[:0], marks[:0]
    mark_of, edge_of = _nearest(marks, edges), _nearest(edges, marks)
    own = np.arange(len(edges))
    good = (edge_of[mark_of] == own) & (np.abs(edges - marks[mark_of]) <= REACH_NS)
    return edges[good], marks[mark_of[good]]


def _nearest(among: Ints, to: Ints) -> Ints:
    after = np.searchsorted(among, to).clip(1, max(len(among) - 1, 1))
    before = after - 1
    after = after.clip(max=len(among) - 1)
    return np.where(np.abs(among[after] - to) < np.abs(among[before] - to), after, before)
