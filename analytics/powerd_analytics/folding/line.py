"""Mean power of each kind of phase from the readings of one line, folded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.folding.blocks import POSITIONS, Block, blocks_of, by_position, equations_of, looked_at
from powerd_analytics.folding.equations import joining
from powerd_analytics.folding.lag import Places, most_lag_ns
from powerd_analytics.folding.limits import as_normal
from powerd_analytics.folding.means import Solution, means_at, solve
from powerd_analytics.folding.priors import Priors
from powerd_analytics.folding.response import Response
from powerd_analytics.folding.segments import Phases, Segments, segments_of
from powerd_analytics.signals.signal import Signal
from powerd_core.model import ShuntConversion

Values = NDArray[np.float64]

LEAST_READINGS = 60
LOOKED_AT = 0.7
"""Share of the positions of a window against a phase that must have occurred."""
NEED_LENGTH = 1.5
"""Length of a phase over the bound of a window's place: of shorter ones it is not known which readings saw them."""
NEED_LENGTH_FREE = 2.0
"""The same for chips that convert freely: their place differs from reading to reading, and is taken as one for all."""
IN_STEP, OF_ALL = 2.5, 1.2
"""Where readings at the same moments of an iteration are off together by more than so many times what their scatter
explains, and that is more than so many times all other uncertainty, power moves with the sensor, not the phases."""
_FILTER_SHARE = 0.06
"""By how much the time constant of a low-pass may be another: on two H200 it was found to be 12 to 13.5 ms."""


@dataclass(frozen=True, slots=True)
class Watts:
    """Of one kind; uncertainties are standard ones, or a limit."""

    watts: float
    u_random_w: float
    u_model_w: float
    limit_w: float
    of_lag: float
    """Of ``limit_w`` the share that goes with the lag, as of a variance."""
    why: str = ""
    """Why there is no number, if there is none."""


def fold_line(signal: Signal, phases: Phases) -> list[Watts]:
    """Of each kind of phase."""
    response = Response.of(signal)
    segments = segments_of(phases, response.width_ns)
    # All windows together may lie beside where they are said to be: for the sensor, and for the clocks.
    bound_ns = 0.0 if signal.clock is None else float(np.median(signal.clock.bound_ns(phases.begin_ns)))
    beside = round(signal.centre_ns + bound_ns)
    places = Places(beside, most_lag_ns(), response.width_ns)
    blocks = blocks_of(signal, response, segments, places.room_ns)
    readings = sum(len(b.watts) for b in blocks)
    if readings < LEAST_READINGS:
        why = f"folding needs {LEAST_READINGS} readings among them, {signal.line.name} has {readings}"
        return [Watts(0.0, 0.0, 0.0, 0.0, 0.0, why)] * phases.kinds
    usual_w = float(np.mean(np.concatenate([b.watts for b in blocks])))
    # Kinds that there are none of: of gaps nearly always.
    there = np.bincount(segments.kind, minlength=len(segments.bins.edges)) > 0
    at, beside_model = _solved(blocks, response, segments, places, usual_w, phases, there)
    of_kinds = np.zeros((len(there), 4))
    of_kinds[there] = np.column_stack([at.watts, at.u_random_w, at.limit_w, at.of_lag])
    model = np.hypot(np.hypot(at.u_model_w, beside_model), segments.edge_u_w(of_kinds[:, 0], response.width_ns)[there])
    is_in_step = _is_in_step(at, model)
    of_model = np.zeros(len(there))
    of_model[there] = np.sqrt(model**2 + np.maximum(at.u_in_step_w**2 - at.u_random_w**2, 0))
    is_free = isinstance(signal.line.conversion, ShuntConversion)
    made = []
    for k in range(phases.kinds):
        seen = looked_at(blocks, phases, k)
        why = ""
        if segments.bins.length_ms[k] * 1e6 < (NEED_LENGTH_FREE if is_free else NEED_LENGTH) * beside:
            why = f"when {signal.line.name} looks is only known to ± {beside * 1e-6:.3g} ms"
        elif seen < LOOKED_AT:
            why = f"{signal.line.name} always looks at the same moments, {seen:.0%} of those that tell of this phase"
        elif is_in_step:
            why = f"{signal.line.name} is off alike at the same moments of an iteration: power moves in step with it"
        beside_w, random, limit, of_lag = of_kinds[k].tolist()
        made.append(Watts(usual_w + beside_w, random, float(of_model[k]), limit, of_lag, why))
    return made


def _solved(
    blocks: list[Block],
    response: Response,
    segments: Segments,
    places: Places,
    usual_w: float,
    phases: Phases,
    there: NDArray[np.bool_],
) -> tuple[Solution, Values]:
    """Of the kinds that are ``there``, and what it makes [k] that power is taken as flat in each bin, and a low-pass's
    time constant as known."""
    scale_w = max(abs(usual_w), 1e-9)
    equations = cache(lambda by_ns: equations_of(blocks, response, usual_w, round(by_ns)))
    lags_ns = [round(by) for by in places.lag_ns.tolist()]
    marks = segments.between_marks(lags_ns, [b.which for b in blocks])[:, there]
    before = segments.before()
    priors = Priors.of(segments.bins, before)
    # Of windows that are long enough, each moment of an iteration is seen from two positions at least.
    is_seen_twice = POSITIONS * response.width_ns >= 2 * phases.iteration_ns
    in_step = (lambda by: by_position(blocks, response, usual_w, round(by), phases)) if is_seen_twice else None
    at = solve(equations, places, marks, priors, scale_w, in_step)
    # Bins twice as long show what flat ones make. Marks cut bins where they lie: joined ones have the shares of both.
    coarse, which = segments.bins.joined()
    joined = (lambda by: equations(by).coarser(which)), places, marks @ joining(which, marks.shape[-1])
    beside = np.abs(means_at(at.node_ns, *joined, Priors.of(coarse, before), scale_w) - at.watts) / np.sqrt(3)
    if response.filter_ns:
        # The centre of the weight stays where it is; what is older than the windows counts for next to nothing.
        other = response.with_filter(1 + _FILTER_SHARE)
        later = other.newest_ns - response.newest_ns
        slower = (lambda by: equations_of(blocks, other, usual_w, round(by) + later)), places, marks
        beside = np.hypot(beside, (means_at(at.node_ns, *slower, priors, scale_w) - at.watts) / np.sqrt(3))
    return at, beside


def _is_in_step(at: Solution, model_w: Values) -> bool:
    """Whether readings at the same moments of an iteration are off by what nothing else explains."""
    others = np.hypot(at.u_random_w, model_w)
    of_limits = [as_normal(limit, u) for limit, u in zip(at.limit_w.tolist(), others.tolist(), strict=True)]
    of_all = np.median(at.u_in_step_w / np.maximum(np.hypot(others, of_limits), 1e-300))
    of_random = np.median(at.u_in_step_w / np.maximum(at.u_random_w, 1e-300))
    return bool(of_random > IN_STEP and of_all > OF_ALL)
