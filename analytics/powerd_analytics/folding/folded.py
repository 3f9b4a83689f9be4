"""Phases too short for the sensor, folded: joules of a kind from all its iterations, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.edges.cells import prefix_sums
from powerd_analytics.energy.budget import KINDS, distribution
from powerd_analytics.energy.coverage import one_rectangle
from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.folding.lag import Places, most_lag_ns
from powerd_analytics.folding.limits import as_normal
from powerd_analytics.folding.means import Equations, Solution, joining, solve
from powerd_analytics.folding.priors import precisions
from powerd_analytics.folding.response import Response
from powerd_analytics.folding.segments import Phases, Segments, segments_of
from powerd_analytics.folding.timeline import Timeline
from powerd_analytics.signals.signal import Signal
from powerd_analytics.signals.slices import parts_between
from powerd_core.model import ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

FOLDING, LAG = "folding", "lag"
LEAST_PHASES = 50
"""Phases of a kind that folding needs."""
LEAST_READINGS = 60
LOOKED_AT = 0.7
"""Share of the positions of a window against a phase that must have occurred."""
WIDEST = 0.5
"""The largest U95, as a share of the energy, that is still a number."""
NEED_LENGTH = 1.5
"""Length of a phase over the bound of a window's place: of shorter ones it is not known which readings saw them."""
NEED_LENGTH_FREE = 2.0
"""The same for chips that convert freely: their place differs from reading to reading, and is taken as one for all."""
MOST_UNLIKE = 2.0
"""Usual length over the length of the phases, or the other way round, for all but a tenth of them at most."""
_BLOCKS, _BLOCK_SEGMENTS = 16, 4096
"""Stretches of phases that are looked at, spread over the run: more only cost time."""
_PARTS = 10
"""Positions that are told apart for `LOOKED_AT`."""
_FILTER_SHARE = 0.06
"""By how much the time constant of a low-pass may be another: on two H200 it was found to be 12 to 13.5 ms."""
_ROOM_NS = 2_000_000
"""Distance of windows from the ends of what is known, beside the sensor's own: clocks."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Mean power of one kind of phase: an estimate for one second of it, or why there is none."""

    per_s: Estimate | None
    iterations: int
    why: str = ""
    parts_w: tuple[tuple[str, float], ...] = ()
    """What ``per_s`` is systematically unsure of: `FOLDING`, and parts of `powerd_analytics.energy.budget`."""
    limit_w: float = 0.0
    """How far the windows' place and the lag can take ``per_s`` to either side."""
    limit_u_w: float = 0.0
    """The same as it is in ``parts_w``, see `powerd_analytics.folding.limits.as_normal`."""


def fold(signals: Sequence[Signal], phases: Phases) -> list[Folded]:
    """Each kind's mean power over the lines together, from their readings inside and between the phases."""
    count = np.bincount(phases.kind, minlength=phases.kinds)
    why = [_unfit(phases, k, int(count[k])) for k in range(phases.kinds)]
    if all(why) or not signals:
        return [Folded(None, int(n), w) for n, w in zip(count, why, strict=True)]
    lines = [_fold_line(s, phases) for s in signals]
    return [
        Folded(None, int(count[k]), why[k]) if why[k] else _sum(signals, [line[k] for line in lines], int(count[k]))
        for k in range(phases.kinds)
    ]


def _unfit(phases: Phases, kind: int, count: int) -> str:
    """What forbids to fold a kind, whatever its readings are."""
    if count < LEAST_PHASES:
        return f"folding needs {LEAST_PHASES} of them, there are {count}"
    length = (phases.end_ns - phases.begin_ns)[phases.kind == kind]
    usual = float(np.median(length))
    if np.mean((length > MOST_UNLIKE * usual) | (length < usual / MOST_UNLIKE)) > 0.1:
        # What takes another time does another thing, and takes another power.
        return "their lengths differ too much for folding"
    return ""


@dataclass(frozen=True, slots=True)
class _Watts:
    watts: float
    u_random_w: float
    u_model_w: float
    limit_w: float
    of_lag: float
    """Of ``limit_w`` the share that goes with the lag, as of a variance."""
    why: str = ""


def _sum(signals: Sequence[Signal], found: list[_Watts], count: int) -> Folded:
    why = next((f.why for f in found if f.why), "")
    if why:
        return Folded(None, count, why)
    watts = sum(f.watts for f in found)
    lines = list(zip(signals, found, strict=True))
    of_lines = {
        "gain": [s.line.accuracy.u_gain * abs(f.watts) for s, f in lines],
        "offset": [s.line.accuracy.u_offset_w for s in signals],
        "quantisation": [s.line.accuracy.step_w / np.sqrt(12) for s in signals],
    }
    limits = [u for name in of_lines if name in KINDS for s, u in zip(signals, of_lines[name], strict=True)
              if distribution(name, s) == "rectangular"]  # fmt: skip
    parts = {name: float(np.linalg.norm(u)) for name, u in of_lines.items()}
    # All lines of a device follow the same load: what no window sees is in all of them, and late in all of them.
    model_w, limit_w = float(sum(f.u_model_w for f in found)), float(sum(f.limit_w for f in found))
    random_w = float(np.sqrt(sum(f.u_random_w**2 for f in found)))
    limit_u_w = as_normal(limit_w, float(np.linalg.norm([random_w, model_w, *parts.values()])))
    of_lag = sum(f.of_lag * f.limit_w for f in found) / limit_w if limit_w > 0 else 0.0
    parts |= {
        FOLDING: float(np.hypot(model_w, limit_u_w * np.sqrt(1 - of_lag))),
        LAG: float(limit_u_w * np.sqrt(of_lag)),
    }
    rectangle = float(one_rectangle(0.0, *limits))
    estimate = Estimate(watts, random_w, float(np.sqrt(sum(u**2 for u in parts.values()))), rectangle, _BLOCKS - 1)
    if not estimate.u95_j <= WIDEST * abs(watts):
        return Folded(None, count, f"folded over {count} it is only known to ± {estimate.u95_j / abs(watts):.0%}")
    return Folded(estimate, count, "", tuple(parts.items()), limit_w, limit_u_w)


def _fold_line(signal: Signal, phases: Phases) -> list[_Watts]:
    response = Response.of(signal)
    segments = segments_of(phases, response.width_ns)
    blocks = [b for b in _blocks(signal, response, segments) if len(b.watts)]
    watts = np.concatenate([np.zeros(0), *(b.watts for b in blocks)])
    if len(watts) < LEAST_READINGS:
        why = f"folding needs {LEAST_READINGS} readings among them, {signal.line.name} has {len(watts)}"
        return [_Watts(0.0, 0.0, 0.0, 0.0, 0.0, why)] * phases.kinds
    usual_w = float(np.mean(watts))
    # All windows together may lie beside where they are said to be: for the sensor, and for the clocks.
    bound_ns = 0.0 if signal.clock is None else float(np.median(signal.clock.bound_ns(phases.begin_ns)))
    beside = round(signal.centre_ns + bound_ns)
    places = Places(beside, most_lag_ns(), response.width_ns)
    equations = cache(lambda by_ns: _equations(blocks, response, segments, usual_w, round(by_ns)))
    marks = np.array([segments.between_marks(round(by), [b.which for b in blocks]) for by in places.lag_ns.tolist()])
    fine = precisions(segments.bins, segments.before())
    at = solve(equations, places, marks, fine, _scale(usual_w))
    flat = _flat(equations, segments, places, marks, usual_w, at)
    smooth = _other_filter(blocks, response, segments, places, marks, usual_w, at)
    model = np.sqrt(at.u_model_w**2 + flat**2 + smooth**2 + segments.edge_u_w(at.watts, response.width_ns) ** 2)
    is_free = isinstance(signal.line.conversion, ShuntConversion)
    made = []
    for k in range(phases.kinds):
        seen = _looked_at(blocks, phases, k)
        why = "" if seen >= LOOKED_AT else _aliased(signal, seen)
        if segments.bins.length_ms[k] * 1e6 < (NEED_LENGTH_FREE if is_free else NEED_LENGTH) * beside:
            why = f"when {signal.line.name} looks is only known to ± {beside * 1e-6:.3g} ms"
        random, of_model, limit, of_lag = (float(x[k]) for x in (at.u_random_w, model, at.limit_w, at.of_lag))
        made.append(_Watts(usual_w + float(at.watts[k]), random, of_model, limit, of_lag, why))
    return made


def _flat(
    equations: Callable[[float], Equations],
    segments: Segments,
    places: Places,
    marks: Values,
    usual_w: float,
    at: Solution,
) -> Values:
    """[kinds] what it makes that power is taken as flat in each bin: bins twice as long show how much."""
    coarse, which = segments.bins.joined()
    # Marks cut bins where they lie: the joined ones have the shares of both.
    joined = marks @ joining(which, marks.shape[-1])
    priors = precisions(coarse, segments.before())
    found = solve(lambda by_ns: equations(by_ns).coarser(which), places, joined, priors, _scale(usual_w), at.node_ns)
    return np.asarray(np.abs(found.watts - at.watts) / np.sqrt(3), np.float64)


def _other_filter(
    blocks: list[_Block],
    response: Response,
    segments: Segments,
    places: Places,
    marks: Values,
    usual_w: float,
    at: Solution,
) -> Values:
    """[kinds] what it makes that a low-pass's time constant is known to ± `_FILTER_SHARE` only."""
    if not response.filter_ns:
        return np.zeros(len(at.watts))
    other = response.with_filter(1 + _FILTER_SHARE)
    # The centre of its weight stays where it is; what is older than the windows counts for next to nothing.
    later = other.newest_ns - response.newest_ns
    slower = cache(lambda by_ns: _equations(blocks, other, segments, usual_w, round(by_ns) + later))
    priors = precisions(segments.bins, segments.before())
    found = solve(slower, places, marks, priors, _scale(usual_w), at.node_ns)
    return np.asarray(np.abs(found.watts - at.watts) / np.sqrt(3), np.float64)


def _scale(usual_w: float) -> float:
    return max(abs(usual_w), 1e-9)


def _aliased(signal: Signal, seen: float) -> str:
    return f"{signal.line.name} always looks at the same moments, {seen:.0%} of those that tell of this phase"


@dataclass(frozen=True, slots=True)
class _Block:
    """Windows [n] that lie among segments ``which``, with room for a shift, and what they showed."""

    which: slice
    begin_ns: Ints
    end_ns: Ints
    watts: Values


def _blocks(signal: Signal, response: Response, segments: Segments) -> Iterator[_Block]:
    """Stretches of segments, spread over all of them."""
    n = len(segments.kind)
    size = min(-(-n // _BLOCKS), _BLOCK_SEGMENTS)
    beside = round(signal.centre_ns) + _ROOM_NS
    pause = prefix_sums(np.where(segments.unknown, segments.end_ns - segments.begin_ns, 0).astype(np.float64))
    for first in np.unique(np.linspace(0, max(n - size, 0), _BLOCKS).astype(int)).tolist():
        which = slice(first, min(first + size, n))
        low, high = int(segments.begin_ns[first]), int(segments.end_ns[which.stop - 1])
        begin, end, watts = _windows(signal, response, low, high)
        use = (begin - beside >= low) & (end + beside <= high)
        at = [np.searchsorted(segments.begin_ns, edge, "right") for edge in (begin - beside, end + beside)]
        # A pause that a window touches has begun before the window's end, and is not over when it begins.
        use &= pause[np.minimum(at[1], n)] == pause[np.maximum(at[0] - 1, 0)]
        yield _Block(which, begin[use], end[use], watts[use])


def _windows(signal: Signal, response: Response, low: int, high: int) -> tuple[Ints, Ints, Values]:
    """Windows of readings that lie between two moments: begin, end, mean power."""
    found: list[tuple[Ints, Ints, Values]] = []
    for part in parts_between(signal, low, high):
        t = part.t_ns
        if part.is_counter:
            use = (part.missing_ns() == 0) & (t[:-1] >= low) & (t[1:] <= high)
            watts = np.diff(part.value) / (np.diff(t) * 1e-9)
            found.append((t[:-1][use], t[1:][use], watts[use]))
            continue
        newest = t + response.newest_ns
        oldest = newest - response.length_ns
        use = (oldest >= low) & (newest <= high)
        found.append((oldest[use], newest[use], part.value[use]))
    none = np.zeros(0, np.int64)
    begin, end, watts = (np.concatenate(c) for c in zip((none, none, np.zeros(0)), *found, strict=True))
    # Slices overlap by their margins.
    _, first = np.unique(begin, return_index=True)
    return begin[first], end[first], watts[first]


def _equations(blocks: list[_Block], response: Response, segments: Segments, usual_w: float, by_ns: int) -> Equations:
    made = []
    for b in blocks:
        timeline = Timeline(segments.begin_ns[b.which], segments.end_ns[b.which], segments.kind[b.which], segments.bins)
        made.append(Equations.of_block(timeline, b.begin_ns + by_ns, b.end_ns + by_ns, b.watts - usual_w, response))
    return Equations.joined(made)


def _looked_at(blocks: list[_Block], phases: Phases, kind: int) -> float:
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
