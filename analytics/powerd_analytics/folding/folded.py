"""Phases too short for the sensor, folded: joules of a kind from all its iterations, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerd_analytics.energy.budget import distribution
from powerd_analytics.energy.coverage import one_rectangle
from powerd_analytics.energy.uncertainty import Estimate
from powerd_analytics.folding.blocks import BLOCKS
from powerd_analytics.folding.limits import as_normal
from powerd_analytics.folding.line import Watts, fold_line
from powerd_analytics.folding.segments import Phases
from powerd_analytics.signals.signal import Signal

FOLDING, LAG = "folding", "lag"
LEAST_PHASES = 50
"""Phases of a kind that folding needs."""
WIDEST = 0.5
"""The largest U95, as a share of the energy, that is still a number."""
MOST_UNLIKE = 2.0
"""Usual length over the length of the phases, or the other way round, for all but a tenth of them at most."""


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
    lines = _fold_lines(signals, phases)
    return [
        Folded(None, int(count[k]), why[k]) if why[k] else _sum(signals, [line[k] for line in lines], int(count[k]))
        for k in range(phases.kinds)
    ]


def _fold_lines(signals: Sequence[Signal], phases: Phases) -> list[list[Watts]]:
    from threadpoolctl import threadpool_limits

    # Hundreds of matrices of some fifty columns: threads inside one product wait for each other more than they work.
    with threadpool_limits(1, "blas"):
        return [fold_line(signal, phases) for signal in signals]


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


def _sum(signals: Sequence[Signal], found: list[Watts], count: int) -> Folded:
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
    limits = [
        u
        for name, of_name in of_lines.items()
        for s, u in zip(signals, of_name, strict=True)
        if distribution(name, s) == "rectangular"
    ]
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
    estimate = Estimate(watts, random_w, float(np.sqrt(sum(u**2 for u in parts.values()))), rectangle, BLOCKS - 1)
    if not estimate.u95_j <= WIDEST * abs(watts):
        return Folded(None, count, f"folded over {count} it is only known to ± {estimate.u95_j / abs(watts):.0%}")
    return Folded(estimate, count, "", tuple(parts.items()), limit_w, limit_u_w)
