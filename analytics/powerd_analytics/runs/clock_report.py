"""`joules info --check`: how the clocks of a run's boards went against the host's, and how sure their times are.

`read_traces` and `clock_report` say it in figures; `compare_marker` checks them against a pin that the training moves
where a phase begins and ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import h5py
import numpy as np
from numpy.typing import NDArray

from powerd_analytics.output.text import seconds
from powerd_analytics.runs.run import Run, pick
from powerd_client.runs.recover import open_run
from powerd_client.runs.runfile import reading
from powerd_core.errors import AnalysisError
from powerd_core.model import QuantityConversion

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

REACH_NS = 100_000_000
"""An edge farther from every mark than this belongs to none."""
_COUNT = "edge"
"""The column in which a source counts edges, where it does."""


@dataclass(frozen=True, slots=True)
class ClockTrace:
    """One board's clock in one epoch: at [x] exchanges that map it, and the [y] delays of all exchanges."""

    name: str
    board: str
    epoch: str
    drift_ppm: float
    t_board_ns: Ints
    t_host_ns: Floats
    offset_ns: Floats
    """Host minus board time: the estimate."""
    half_ns: Floats
    """Farther end of the guaranteed bound from the estimate."""
    piece: Ints
    delay_ns: Ints
    delay_t_host_ns: Ints
    not_used: int
    """Exchanges that map nothing."""

    def pieces(self) -> Iterator[slice]:
        """The stretches between steps of a clock."""
        for begin, end in pairwise([0, *(np.flatnonzero(np.diff(self.piece)) + 1).tolist(), len(self.piece)]):
            yield slice(begin, end)

    def trend_ns(self) -> Floats:
        """The straight line through the ends of each piece."""
        trend = np.array(self.offset_ns)
        for part in self.pieces():
            t, o = self.t_board_ns[part], self.offset_ns[part]
            if len(t) > 1:
                trend[part] = o[0] + (t - t[0]) * ((o[-1] - o[0]) / (t[-1] - t[0]))
        return trend


@dataclass(frozen=True, slots=True)
class ClockStep:
    """A clock stepped between two host times: the offset grew by ``by_s``."""

    begin_ns: int
    end_ns: int
    by_s: float


@dataclass(frozen=True, slots=True)
class ClockReport:
    """One board's clock in one epoch, in figures."""

    clock: str
    board: str
    epoch: str
    exchanges: int
    not_used: int
    """Exchanges that could have been made on either side of a step."""
    duration_s: float
    offset_begin_s: float
    offset_end_s: float
    skew_ppm: float | None
    """Growth of the offset, between steps; None for a single exchange."""
    delay_min_s: float
    delay_median_s: float
    delay_p99_s: float
    bound_median_s: float
    bound_max_s: float
    steps: tuple[ClockStep, ...]


@dataclass(frozen=True, slots=True)
class OtherClock:
    """A clock behind a board's, as far as the run says anything on it."""

    name: str
    what: str
    bound_median_s: float
    bound_max_s: float


def read_traces(run: Run) -> tuple[ClockTrace, ...]:
    """All clocks of a run with an exchange. Raises `RunFileError`."""
    with open_run(run.path) as file, reading(run.path):
        traces = [_trace(name, group) for name, group in file["clocks"].items()]
    return tuple(sorted((t for t in traces if len(t.t_board_ns)), key=lambda t: (t.board, t.t_host_ns[0])))


def _trace(name: str, group: h5py.Group) -> ClockTrace:
    t1, t2, t3, t4 = group["exchanges"][:].reshape(-1, 4).T
    (offset, low, high), t_board = group["map"][:].reshape(-1, 3).T, group["map_t_board_ns"][:]
    return ClockTrace(
        name=name,
        board=str(group.attrs.get("board", "")),
        epoch=str(group.attrs.get("epoch", "")),
        drift_ppm=float(group.attrs.get("drift_ppm", 100.0)),
        t_board_ns=t_board,
        t_host_ns=t_board + offset,
        offset_ns=offset,
        half_ns=np.maximum(high - offset, offset - low),
        piece=group["map_piece"][:].astype(np.int64),
        delay_ns=(t4 - t1) - (t3 - t2),
        delay_t_host_ns=(t1 + t4) // 2,
        not_used=int((~np.isin((t2 + t3) // 2, t_board)).sum()),
    )


def clock_report(trace: ClockTrace) -> ClockReport:
    """The figures of one clock."""
    parts, host = list(trace.pieces()), trace.t_host_ns
    t, o, delays = trace.t_board_ns, trace.offset_ns * 1e-9, trace.delay_ns * 1e-9
    length_s = sum(float(t[p][-1] - t[p][0]) for p in parts) * 1e-9
    growth_s = sum(float(o[p][-1] - o[p][0]) for p in parts)
    ends = [(a.stop - 1, b.start) for a, b in pairwise(parts)]
    return ClockReport(
        clock=trace.name,
        board=trace.board,
        epoch=trace.epoch,
        exchanges=len(delays),
        not_used=trace.not_used,
        duration_s=float(host.max() - host.min()) * 1e-9,
        offset_begin_s=float(o[0]),
        offset_end_s=float(o[-1]),
        skew_ppm=growth_s / length_s * 1e6 if length_s else None,
        delay_min_s=float(delays.min()),
        delay_median_s=float(np.median(delays)),
        delay_p99_s=float(np.quantile(delays, 0.99)),
        bound_median_s=float(np.median(trace.half_ns)) * 1e-9,
        bound_max_s=max(_widest_ns(trace, p) for p in parts) * 1e-9,
        steps=tuple(ClockStep(int(host[i]), int(host[j]), float(o[j] - o[i])) for i, j in ends),
    )


def _widest_ns(trace: ClockTrace, part: slice) -> float:
    """The greatest bound between two exchanges included: it is widest about half-way."""
    half, gaps = trace.half_ns[part], np.diff(trace.t_board_ns[part])
    between = (half[:-1] + half[1:]) / 2 + gaps * trace.drift_ppm * 1e-6 / 2
    return float(max(half.max(), between.max(initial=0.0)))


def other_clocks(run: Run) -> tuple[OtherClock, ...]:
    """Clocks of nodes and drivers: lines of the quantity ``clock_bound_s``, and what a node's streams say of it."""
    clocks: dict[str, OtherClock] = {}
    for line in run.lines.values():
        c = line.conversion
        if isinstance(c, QuantityConversion) and c.quantity == "clock_bound_s":
            bounds_s = run.good_readings(line.name, c.column).codes[c.column] * c.per_code
            if len(bounds_s):
                median, largest = float(np.median(bounds_s)), float(bounds_s.max())
                clocks[line.name] = OtherClock(line.name, line.description, median, largest)
        elif "clock_half_ns" in line.detail and (limit_ns := line.detail.get("clock_limit_ns")):
            name = f"{line.source} at {line.detail.get('port', '?')}"
            half_ns = float(line.detail["clock_half_ns"])
            what = "the node's clock against its board's: bound at the start, and the limit that readings are held to"
            clocks.setdefault(name, OtherClock(name, what, half_ns * 1e-9, float(limit_ns) * 1e-9))
    return tuple(clocks.values())


def describe_clocks(run: Run, reports: Sequence[ClockReport], others: Sequence[OtherClock]) -> Iterator[str]:
    """Lines of text for people."""
    for r in reports:
        yield f"clock of {r.board or 'the board'}, epoch {r.epoch}"
        unused = f", {r.not_used} of them not used (beside a step)" if r.not_used else ""
        yield f"  exchanges: {r.exchanges} over {seconds(r.duration_s)}{unused}"
        skew = f"{r.skew_ppm:.3f} ppm" if r.skew_ppm is not None else "unknown (one exchange)"
        yield f"  host minus board: {r.offset_begin_s:.9f} s at first, {r.offset_end_s:.9f} s at last; skew {skew}"
        delays = (r.delay_min_s, r.delay_median_s, r.delay_p99_s)
        yield "  delay: {} least, {} median, {} p99".format(*map(seconds, delays))
        yield f"  guaranteed bound: ± {seconds(r.bound_median_s)} median, ± {seconds(r.bound_max_s)} largest"
        for step in r.steps:
            at, around = (step.begin_ns - run.begin_ns) * 1e-9, seconds((step.end_ns - step.begin_ns) * 1e-9)
            yield f"  step of {step.by_s:+.6f} s, {at:.3f} s into the run; nothing is mapped in the {around} around it"
    if not reports:
        yield "no board's clock was ever compared with the host's"
    for other in others:
        bound = f"± {seconds(other.bound_median_s)} median, ± {seconds(other.bound_max_s)} largest"
        yield f"{other.name}: {bound} ({other.what})"


# ---- the wired check ---------------------------------------------------------------------------------------------


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
    marker, p = run.line(line), run.phases
    c = marker.conversion
    if not isinstance(c, QuantityConversion) or not c.quantity.endswith("_bits"):
        raise AnalysisError(f"line {marker.name!r} is {marker.quantity}: a marker is a line of bits, such as a node's")
    name = pick(phase, dict.fromkeys(k.name for k in p.classes), "phase")
    of_name = np.isin(p.label, [i for i, k in enumerate(p.classes) if k.name == name])
    rising, falling = _edges(run, marker.name, c.column)
    begins, ends = p.begin_ns[of_name], np.sort(p.end_ns[of_name & ~p.cut])
    edge, mark = np.concatenate([_pair(rising, begins), _pair(falling, ends)], axis=1)
    if not len(edge):
        raise AnalysisError(
            f"no edge of {marker.name!r} is within {seconds(REACH_NS * 1e-9)} of a begin or end of {name!r}: "
            "is it this phase that moves the pin?"
        )
    if marker.clock not in run.clocks:
        raise AnalysisError(f"the clock of line {marker.name!r} is not in the run file: it was never compared")
    bound = run.clocks[marker.clock].bound_ns(edge) + marker.accuracy.centre_ns
    apart = (edge - mark).astype(np.float64)
    return MarkerReport(
        line=marker.name,
        phase=name,
        marks=len(begins) + len(ends),
        edges=len(rising) + len(falling),
        pairs=len(edge),
        median_s=float(np.median(apart)) * 1e-9,
        p99_s=float(np.quantile(np.abs(apart), 0.99)) * 1e-9,
        bound_median_s=float(np.median(bound)) * 1e-9,
        outside=int((np.abs(apart) > bound).sum()),
    )


def describe_marker(r: MarkerReport) -> Iterator[str]:
    """Lines of text for people."""
    yield f"marker {r.line} against the marks of {r.phase}: {r.pairs} pairs of {r.edges} edges and {r.marks} marks"
    yield f"  edge less mark: {'-' if r.median_s < 0 else ''}{seconds(abs(r.median_s))} median, {seconds(r.p99_s)} p99"
    held = "held by all" if r.holds else f"NOT held by {r.outside} of {r.pairs}"
    yield f"  guaranteed bound ± {seconds(r.bound_median_s)} (median): {held}; the pin's own delay counts as error"


def _edges(run: Run, line: str, column: str) -> tuple[Ints, Ints]:
    """Host times of rising and falling edges. A reading that only repeats the level is none."""
    read = run.good_readings(line, column)
    t, level = read.t_ns, read.codes[column] != 0
    is_edge = level[1:] != level[:-1]
    if _COUNT in read.codes:
        counted: Ints = read.codes[_COUNT].astype(np.int64)
        is_edge &= ((counted[1:] - counted[:-1]) & 0xFFFF) == 1
    for gap in run.gaps:
        # Behind lost edges the level may be told by a status, at a time at which nothing happened.
        if line in gap.lines:
            is_edge &= ~((t[1:] >= gap.begin_ns) & (t[:-1] <= gap.end_ns))
    return t[1:][is_edge & level[1:]], t[1:][is_edge & ~level[1:]]


def _pair(edges: Ints, marks: Ints) -> Ints:
    """Edges and marks [2, n] that are each other's nearest, and not too far."""
    if not len(edges) or not len(marks):
        return np.zeros((2, 0), np.int64)
    mark_of, edge_of = _nearest(marks, edges), _nearest(edges, marks)
    good = (edge_of[mark_of] == np.arange(len(edges))) & (np.abs(edges - marks[mark_of]) <= REACH_NS)
    return np.stack([edges[good], marks[mark_of[good]]])


def _nearest(among: Ints, to: Ints) -> Ints:
    after = np.searchsorted(among, to).clip(1, max(len(among) - 1, 1))
    before = after - 1
    after = after.clip(max=len(among) - 1)
    return np.where(np.abs(among[after] - to) < np.abs(among[before] - to), after, before)
