"""Jobs that drift, for benchmarks of policies: the epochs of batch sizes change from recurrence to recurrence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal

from powerd_analytics.optimise.simulate import oracle
from powerd_analytics.optimise.traces import NEVER, JobTrace, LearningCurve

Shape = Literal["jump", "tilt", "season"]
Pivot = Literal["default", "middle"]
SHAPES: tuple[Shape, ...] = ("jump", "tilt", "season")
PIVOTS: tuple[Pivot, ...] = ("default", "middle")
SEASONS = 3
"""Within one history."""
_SLOPES = [sign * step / 20 for step in range(1, 41) for sign in (1, -1)]


def drifting(trace: JobTrace, shape: Shape, pivot: Pivot, recurrences: int) -> Callable[[int], JobTrace]:
    """The job as it is at each recurrence: log2 of the epochs has changed by a slope for every octave away from the
    ``pivot``, the default batch size or the one in the middle.

    The greatest slope is the least one that moves the best batch size by two places, or by one where there are no two.
    ``jump``: from half of the recurrences on; ``tilt``: all the way up to it; ``season``: a sine of three periods.
    """
    sizes = trace.job.batch_sizes
    at = trace.job.default.batch_size if pivot == "default" else sizes[len(sizes) // 2]

    @cache
    def drifted(slope: float) -> JobTrace:
        return replace(
            trace,
            curves={
                size: tuple(_stretched(curve, math.exp2(slope * math.log2(size / at))) for curve in curves)
                for size, curves in trace.curves.items()
            },
        )

    before = sizes.index(oracle(trace).batch_size)
    moves = {slope: abs(sizes.index(oracle(drifted(slope)).batch_size) - before) for slope in _SLOPES}
    greatest = next((slope for places in (2, 1) for slope in _SLOPES if moves[slope] >= places), _SLOPES[-1])
    shapes: dict[Shape, Callable[[int], float]] = {
        "jump": lambda t: greatest if 2 * t >= recurrences else 0.0,
        "tilt": lambda t: greatest * t / recurrences,
        "season": lambda t: greatest * math.sin(2 * math.pi * SEASONS * t / recurrences),
    }
    slope_at = shapes[shape]
    return lambda t: trace if slope_at(t) == 0 else drifted(slope_at(t))


def _stretched(curve: LearningCurve, factor: float) -> LearningCurve:
    """The same training with so many times the epochs: whole ones, and at least one."""
    epochs = curve.epochs if curve.epochs == NEVER else max(1, round(curve.epochs * factor))
    return LearningCurve(epochs, tuple((max(1, round(e * factor)), metric) for e, metric in curve.passed))
