"""PhaseSequence too short for the sensor, folded: mean power of a kind from all its iterations, or why there is none.

Readings among phases are taken from stretches of the run (`ReadingBlock`), each line is solved alone (`fold_line`,
with `powerd_analytics.folding.posterior`), and the lines of a device are added up (`fold`).
docs/explanation/energy.md has what is done here, and how often its intervals hold, under "Folding".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import erf, sqrt
from operator import add

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from powerd_analytics.energy.budget import distribution
from powerd_analytics.energy.sampling import prefix_sums
from powerd_analytics.energy.uncertainty import CONFIDENCE, NORMAL, Estimate, one_rectangle
from powerd_analytics.folding.design import PhaseSequence, Response, Segments, Timeline, segments_of
from powerd_analytics.folding.posterior import (
    Equations,
    Priors,
    ShiftPrior,
    Solution,
    joining,
    means_at,
    most_lag_ns,
    solve,
)
from powerd_analytics.signals.signal import Signal, parts_between
from powerd_core.model import ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Mask = NDArray[np.bool_]

FOLDING, LAG = "folding", "lag"
LEAST_PHASES = 50
"""Phases of a kind that folding needs."""
WIDEST = 0.5
"""The largest U95, as a share of the energy, that is still a number."""
MOST_UNLIKE = 2.0
"""Usual length over the length of the phases, or the other way round, for all but a tenth of them at most."""
LEAST_READINGS = 60
LOOKED_AT = 0.7
"""Share of the positions of a window against a phase that must have occurred."""
NEED_LENGTH = 1.5
"""Length of a phase over the limit of the sampling instants' offset: which readings saw a shorter one is not known."""
NEED_LENGTH_FREE = 2.0
"""The same for chips that convert freely: their offset differs from reading to reading, and is taken as one for all."""
IN_STEP, OF_ALL = 2.5, 1.2
"""Where readings at the same moments of an iteration are off together by more than so many times what their scatter
explains, and that is more than so many times all other uncertainty, power moves with the sensor, not the phases."""
_FILTER_SHARE = 0.06
"""By how much the time constant of a low-pass may be another: on two H200 it was found to be 12 to 13.5 ms."""
BLOCKS, _BLOCK_SEGMENTS = 16, 4096
"""Stretches of phases that are looked at, spread over the run: more only cost time."""
_PARTS = 10
"""Positions of a window against a phase that are told apart."""
POSITIONS = 8
"""Parts of an iteration in which windows end, that are left out in turn."""
_STEPS = 50
_NEXT_TO_NOTHING = 1e-6


def as_normal(limit: float, u: float) -> float:
    """What to add to ``u`` in squares for an error that lies anywhere within ± ``limit`` >= 0. Same unit.

    The truth of a run lies at one place within a limit, at its end for instance, and repeating does not move it.
    The standard deviation of a rectangle is right on the average of places only: with an error at the end and noise
    beside it, an interval made from both holds in 82 % (u = 0.3 limit). Here its half-width x is the one that holds
    95 % for an error at the end, P(-x <= limit + u z <= x) = 0.95, and so at least that everywhere within.
    """
    if not limit > 0:
        return 0.0
    if u <= _NEXT_TO_NOTHING * limit:
        return limit / NORMAL
    low, high = limit, limit + NORMAL * u
    for _ in range(_STEPS):
        x = (low + high) / 2
        inside = (erf((x - limit) / (u * sqrt(2))) + erf((x + limit) / (u * sqrt(2)))) / 2
        low, high = (x, high) if inside < CONFIDENCE else (low, x)
    return sqrt(max((high / NORMAL) ** 2 - u**2, 0.0))


@dataclass(frozen=True, slots=True)
class ReadingBlock:
    """Windows [n] that lie among segments ``which``, with room for a shift, and what they showed."""

    which: slice
    timeline: Timeline
    begin_ns: Ints
    end_ns: Ints
    watts: Values


def blocks_of(signal: Signal, response: Response, segments: Segments, room_ns: int) -> list[ReadingBlock]:
    """Stretches of segments, spread over all of them, with their windows; these can be shifted by ``room_ns`` both ways
    and still see nothing but segments that are known."""
    return [b for b in _blocks(signal, response, segments, room_ns) if len(b.watts)]


def _blocks(signal: Signal, response: Response, segments: Segments, room_ns: int) -> Iterator[ReadingBlock]:
    n = len(segments.kind)
    size = min(-(-n // BLOCKS), _BLOCK_SEGMENTS)
    pause = prefix_sums(np.where(segments.unknown, segments.end_ns - segments.begin_ns, 0).astype(np.float64))
    for first in np.unique(np.linspace(0, max(n - size, 0), BLOCKS).astype(int)).tolist():
        which = slice(first, min(first + size, n))
        low, high = int(segments.begin_ns[first]), int(segments.end_ns[which.stop - 1])
        begin, end, watts = _windows(signal, response, low, high)
        use = (begin - room_ns >= low) & (end + room_ns <= high)
        at = [np.searchsorted(segments.begin_ns, edge, "right") for edge in (begin - room_ns, end + room_ns)]
        # A pause that a window touches has begun before the window's end, and is not over when it begins.
        use &= pause[np.minimum(at[1], n)] == pause[np.maximum(at[0] - 1, 0)]
        timeline = Timeline(segments.begin_ns[which], segments.end_ns[which], segments.kind[which], segments.bins)
        yield ReadingBlock(which, timeline, begin[use], end[use], watts[use])


def _windows(signal: Signal, response: Response, low: int, high: int) -> tuple[Ints, Ints, Values]:
    """Windows of readings that lie between two moments: begin, end, mean power."""
    windows: list[tuple[Ints, Ints, Values]] = []
    for part in parts_between(signal, low, high):
        t = part.t_ns
        if part.is_counter:
            use = (part.missing_ns() == 0) & (t[:-1] >= low) & (t[1:] <= high)
            watts = np.diff(part.value) / (np.diff(t) * 1e-9)
            windows.append((t[:-1][use], t[1:][use], watts[use]))
            continue
        newest = t + response.newest_ns
        oldest = newest - response.length_ns
        use = (oldest >= low) & (newest <= high)
        windows.append((oldest[use], newest[use], part.value[use]))
    none = np.zeros(0, np.int64)
    begin, end, watts = (np.concatenate(c) for c in zip((none, none, np.zeros(0)), *windows, strict=True))
    # Slices overlap by their margins.
    _, first = np.unique(begin, return_index=True)
    return begin[first], end[first], watts[first]


def equations_of(
    blocks: list[ReadingBlock], response: Response, usual_w: float, by_ns: int, phases: PhaseSequence | None = None
) -> Equations:
    """Of windows that are later by so much than they seem; watts around ``usual_w``.

    With ``phases``, the readings whose windows end in the same part of an iteration are a block each, instead of those
    of the same stretch of the run.
    """
    parts: list[Equations] = []
    for b in blocks:
        which = [slice(None)] if phases is None else _by_position(b.end_ns, phases)
        windows = b.begin_ns + by_ns, b.end_ns + by_ns
        parts.append(Equations.of_block(b.timeline, *windows, b.watts - usual_w, response, which))
    return Equations.joined(parts) if phases is None else reduce(add, parts)


def _by_position(end_ns: Ints, phases: PhaseSequence) -> list[Mask]:
    """Which windows [n] end in each of `POSITIONS` parts of an iteration."""
    begins = phases.begin_ns[phases.kind == np.argmax(np.bincount(phases.kind))]
    at = np.clip(np.searchsorted(begins, end_ns, "right") - 1, 0, len(begins) - 2)
    into = np.clip((end_ns - begins[at]) / (begins[at + 1] - begins[at]), 0.0, 1.0)
    part = np.minimum((into * POSITIONS).astype(np.int64), POSITIONS - 1)
    return [part == i for i in range(POSITIONS)]


def looked_at(blocks: list[ReadingBlock], phases: PhaseSequence, kind: int) -> float:
    """Share of the positions of a window against a phase of this kind that windows have really had."""
    begins = phases.begin_ns[phases.kind == kind]
    if len(begins) < 2:
        return 0.0
    length = float(np.median((phases.end_ns - phases.begin_ns)[phases.kind == kind]))
    ends = np.concatenate([b.end_ns for b in blocks])
    window = float(np.median(ends - np.concatenate([b.begin_ns for b in blocks])))
    span = min(length + window, float(np.median(np.diff(begins))))
    after = np.searchsorted(begins, ends, "right") - 1
    into = (ends - begins[np.maximum(after, 0)])[after >= 0] / max(span, 1.0)
    return len(np.unique(np.floor(into[into < 1] * _PARTS))) / _PARTS


@dataclass(frozen=True, slots=True)
class LineWatts:
    """Of one kind; uncertainties are standard ones, or a limit."""

    watts: float
    u_random_w: float
    u_model_w: float
    limit_w: float
    of_lag: float
    """Of ``limit_w`` the share that goes with the lag, as of a variance."""
    why: str = ""
    """Why there is no number, if there is none."""


def fold_line(signal: Signal, phases: PhaseSequence) -> list[LineWatts]:
    """Of each kind of phase."""
    response = Response.of(signal)
    segments = segments_of(phases, response.width_ns)
    # All windows together may lie beside where they are said to be: for the sensor, and for the clocks.
    bound_ns = 0.0 if signal.clock is None else float(np.median(signal.clock.bound_ns(phases.begin_ns)))
    offset_ns = round(signal.centre_ns + bound_ns)
    shifts = ShiftPrior(offset_ns, most_lag_ns(), response.width_ns)
    blocks = blocks_of(signal, response, segments, shifts.room_ns)
    readings = sum(len(b.watts) for b in blocks)
    if readings < LEAST_READINGS:
        why = f"folding needs {LEAST_READINGS} readings among them, {signal.line.name} has {readings}"
        return [LineWatts(0.0, 0.0, 0.0, 0.0, 0.0, why)] * phases.kinds
    usual_w = float(np.mean(np.concatenate([b.watts for b in blocks])))
    # Kinds that there are none of: of gaps nearly always.
    there = np.bincount(segments.kind, minlength=len(segments.bins.edges)) > 0
    at, flat_w = _solved(blocks, response, segments, shifts, usual_w, phases, there)
    away_w, random_w, limit_w, of_lag, model_w = (np.zeros(len(there)) for _ in range(5))
    away_w[there], random_w[there], limit_w[there], of_lag[there] = at.watts, at.u_random_w, at.limit_w, at.of_lag
    model = np.hypot(np.hypot(at.u_model_w, flat_w), segments.edge_u_w(away_w, response.width_ns)[there])
    model_w[there] = np.sqrt(model**2 + np.maximum(at.u_in_step_w**2 - at.u_random_w**2, 0))
    is_in_step = _is_in_step(at, model)
    is_free = isinstance(signal.line.conversion, ShuntConversion)
    folded = []
    for k in range(phases.kinds):
        seen = looked_at(blocks, phases, k)
        why = ""
        if segments.bins.length_ms[k] * 1e6 < (NEED_LENGTH_FREE if is_free else NEED_LENGTH) * offset_ns:
            why = f"when {signal.line.name} looks is only known to ± {offset_ns * 1e-6:.3g} ms"
        elif seen < LOOKED_AT:
            why = f"{signal.line.name} always looks at the same moments, {seen:.0%} of those that tell of this phase"
        elif is_in_step:
            why = f"{signal.line.name} is off alike at the same moments of an iteration: power moves in step with it"
        watts, random, inside, limit, lag = (
            float(x[k]) for x in (usual_w + away_w, random_w, model_w, limit_w, of_lag)
        )
        folded.append(LineWatts(watts, random, inside, limit, lag, why))
    return folded


def _solved(
    blocks: list[ReadingBlock],
    response: Response,
    segments: Segments,
    shifts: ShiftPrior,
    usual_w: float,
    phases: PhaseSequence,
    there: Mask,
) -> tuple[Solution, Values]:
    """Of the kinds that are ``there``, and what it makes [k] that power is taken as flat in each bin, and a low-pass's
    time constant as known."""
    scale_w = max(abs(usual_w), 1e-9)
    equations = cache(lambda by_ns: equations_of(blocks, response, usual_w, round(by_ns)))
    lags_ns = [round(by) for by in shifts.lag_ns.tolist()]
    marks = segments.between_marks(lags_ns, [b.which for b in blocks])[:, there]
    before = segments.before()
    priors = Priors.of(segments.bins, before)
    # Of windows that are long enough, each moment of an iteration is seen from two positions at least.
    is_seen_twice = POSITIONS * response.width_ns >= 2 * phases.iteration_ns
    in_step = (lambda by: equations_of(blocks, response, usual_w, round(by), phases)) if is_seen_twice else None
    at = solve(equations, shifts, marks, priors, scale_w, in_step)
    # Bins twice as long show what flat ones make. Marks cut bins where they lie: joined ones have the shares of both.
    coarse, which = segments.bins.joined()
    joined = (lambda by: equations(by).coarser(which)), shifts, marks @ joining(which, marks.shape[-1])
    flat_w = np.abs(means_at(at.node_ns, *joined, Priors.of(coarse, before), scale_w) - at.watts) / np.sqrt(3)
    if response.filter_ns:
        # The centre of the weight stays where it is; what is older than the windows counts for next to nothing.
        other = response.with_filter(1 + _FILTER_SHARE)
        later = other.newest_ns - response.newest_ns
        slower = (lambda by: equations_of(blocks, other, usual_w, round(by) + later)), shifts, marks
        flat_w = np.hypot(flat_w, (means_at(at.node_ns, *slower, priors, scale_w) - at.watts) / np.sqrt(3))
    return at, flat_w


def _is_in_step(at: Solution, model_w: Values) -> bool:
    """Whether readings at the same moments of an iteration are off by what nothing else explains."""
    others = np.hypot(at.u_random_w, model_w)
    of_limits = [as_normal(limit, u) for limit, u in zip(at.limit_w.tolist(), others.tolist(), strict=True)]
    of_all = np.median(at.u_in_step_w / np.maximum(np.hypot(others, of_limits), 1e-300))
    of_random = np.median(at.u_in_step_w / np.maximum(at.u_random_w, 1e-300))
    return bool(of_random > IN_STEP and of_all > OF_ALL)


@dataclass(frozen=True, slots=True)
class Folded:
    """Mean power of one kind of phase: an estimate for one second of it, or why there is none."""

    per_s: Estimate | None
    iterations: int
    why: str = ""
    parts_w: tuple[tuple[str, float], ...] = ()
    """What ``per_s`` is systematically unsure of: `FOLDING`, and parts of `powerd_analytics.energy.budget`."""
    limit_w: float = 0.0
    """How far the sampling instants' offset and the lag can take ``per_s`` to either side."""
    limit_u_w: float = 0.0
    """The same as it is in ``parts_w``, see `powerd_analytics.folding.fold.as_normal`."""


def fold(signals: Sequence[Signal], phases: PhaseSequence) -> list[Folded]:
    """Each kind's mean power over the lines together, from their readings inside and between the phases."""
    count = np.bincount(phases.kind, minlength=phases.kinds)
    why = [_unfit(phases, k, int(count[k])) for k in range(phases.kinds)]
    if all(why) or not signals:
        return [Folded(None, int(n), w) for n, w in zip(count, why, strict=True)]
    # Hundreds of matrices of some fifty columns: threads inside one product wait for each other more than they work.
    with threadpool_limits(1, "blas"):
        lines = [fold_line(signal, phases) for signal in signals]
    return [
        Folded(None, int(count[k]), why[k]) if why[k] else _sum(signals, [line[k] for line in lines], int(count[k]))
        for k in range(phases.kinds)
    ]


def _unfit(phases: PhaseSequence, kind: int, count: int) -> str:
    """What forbids to fold a kind, whatever its readings are."""
    if count < LEAST_PHASES:
        return f"folding needs {LEAST_PHASES} of them, there are {count}"
    length = (phases.end_ns - phases.begin_ns)[phases.kind == kind]
    usual = float(np.median(length))
    if np.mean((length > MOST_UNLIKE * usual) | (length < usual / MOST_UNLIKE)) > 0.1:
        # What takes another time does another thing, and takes another power.
        return "their lengths differ too much for folding"
    return ""


def _sum(signals: Sequence[Signal], line_watts: list[LineWatts], count: int) -> Folded:
    why = next((f.why for f in line_watts if f.why), "")
    if why:
        return Folded(None, count, why)
    watts = sum(f.watts for f in line_watts)
    lines = list(zip(signals, line_watts, strict=True))
    of_lines = {
        "gain": [s.line.accuracy.u_gain * abs(f.watts) for s, f in lines],
        "offset": [s.line.accuracy.u_offset_w for s in signals],
        "quantisation": [s.line.accuracy.step_w / np.sqrt(12) for s in signals],
    }
    limits = [
        u
        for name, of_name in of_lines.items()
        for s, u in zip(signals, of_name, strict=True)
        if distribution(name, s) == "rectangular"
    ]
    parts = {name: float(np.linalg.norm(u)) for name, u in of_lines.items()}
    # All lines of a device follow the same load: what no window sees is in all of them, and late in all of them.
    model_w, limit_w = float(sum(f.u_model_w for f in line_watts)), float(sum(f.limit_w for f in line_watts))
    random_w = float(np.sqrt(sum(f.u_random_w**2 for f in line_watts)))
    limit_u_w = as_normal(limit_w, float(np.linalg.norm([random_w, model_w, *parts.values()])))
    of_lag = sum(f.of_lag * f.limit_w for f in line_watts) / limit_w if limit_w > 0 else 0.0
    parts |= {
        FOLDING: float(np.hypot(model_w, limit_u_w * np.sqrt(1 - of_lag))),
        LAG: float(limit_u_w * np.sqrt(of_lag)),
    }
    rectangle = float(one_rectangle(0.0, *limits))
    estimate = Estimate(watts, random_w, float(np.sqrt(sum(u**2 for u in parts.values()))), rectangle, BLOCKS - 1)
    if not estimate.u95_j <= WIDEST * abs(watts):
        return Folded(None, count, f"folded over {count} it is only known to ± {estimate.u95_j / abs(watts):.0%}")
    return Folded(estimate, count, "", tuple(parts.items()), limit_w, limit_u_w)
