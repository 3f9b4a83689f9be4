"""What a step of the power between two readings does to their integral, from how far apart and how wide they are.

All figures are for steps at moments that know nothing of the readings, exact for power made of such steps (a random
walk is many small ones), by numerical integration over where the step lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_PLACES, _CENTRES = 48, 32
_CONSTANTS = 7
"""Time constants of a low-pass after which nothing is looked at: 0.1 % is left."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of one sensor, for steps of 1 W, in units of the reading distance h."""

    square: float
    """Sum of the squared differences of neighbouring readings that a step leaves (1 for readings of no width)."""
    second: float
    """Half the sum of the squared second differences: the same for steps, near 0 for power that moves smoothly."""
    inside: float
    """[h^2] variance of the trapezoid sum over all readings around a step: the mean over moments of the step."""
    edge: float
    """[h^3] what steps near an edge between two readings add, per step and h: variance integrated over the step's
    moment, less what ``inside`` counts up to the edge."""


def geometry_of(
    spacing_ns: float, window_ns: float, centre_ns: float, tau_ns: float = 0.0, *, is_counter: bool
) -> Geometry:
    """Of readings ``spacing_ns`` apart that average over a window centred within ± ``centre_ns`` of their time.

    A counter's energy is exact at its readings and straight between them. Behind a low-pass of the time constant
    ``tau_ns`` only that counts, with its weight centred there.
    """
    if is_counter:
        # Means over whole intervals; within one, a step's error is that of a Brownian bridge: h^3 / 90.
        return Geometry(2 / 3, 0.5, 0.0, 1 / 90)
    h = max(spacing_ns, 1.0)
    return _averaged(round(window_ns / h, 3), round(centre_ns / h, 3), round(tau_ns / h, 3))


@lru_cache(maxsize=64)
def _averaged(window: float, centre: float, tau: float) -> Geometry:
    """Distances in units of the reading distance; readings at whole numbers, an edge between 0 and 1."""
    reach = int(np.ceil((_CONSTANTS * tau if tau else window / 2) + centre)) + 1
    readings = np.arange(-2 * reach - 2, 2 * reach + 4)
    step = np.arange(-reach - 1, reach + 2, 1 / _PLACES) + 0.5 / _PLACES
    off = (np.arange(_CENTRES) + 0.5) / _CENTRES * 2 - 1
    x = readings[None, :, None] - step[:, None, None] + centre * off[None, None, :]
    if tau > 0:
        seen = -np.expm1(-np.maximum(x / tau + 1, 0))
    else:
        seen = np.clip(x / window + 0.5, 0, 1) if window > 0 else (x >= 0).astype(np.float64)
    mean = seen.mean(axis=2)
    spread = seen.var(axis=2)
    one = (step >= 0) & (step < 1)  # one reading distance stands for all
    # Differences of readings whose windows lie independently: their spreads add.
    d, v1 = np.diff(mean[one], axis=1), spread[one][:, 1:] + spread[one][:, :-1]
    dd = np.diff(d, axis=1)
    v2 = spread[one][:, 2:] + 4 * spread[one][:, 1:-1] + spread[one][:, :-2]
    whole = np.ones(len(readings))
    whole[-1] = 0.5
    bias = (mean[one] @ whole) - (readings[-1] - step[one])
    inside = float(np.mean(bias**2 + spread[one] @ whole**2))
    edges = []
    for at in (np.arange(16) + 0.5) / 16:
        weight = np.where(readings > 1, 1.0, 0.0)
        weight[readings == 0], weight[readings == 1] = (1 - at) ** 2 / 2, (1 - at) * (1 + at) / 2 + 0.5
        weight[-1] = 0.5
        bias = mean @ weight - (readings[-1] - np.maximum(step, at))
        variance = bias**2 + spread @ weight**2
        edges.append(float(np.sum(variance)) / _PLACES - inside * (step[-1] + 0.5 / _PLACES - at))
    return Geometry(
        float(np.mean(np.sum(d**2 + v1, axis=1))), float(np.mean(np.sum(dd**2 + v2, axis=1))) / 2, inside,
        max(float(np.mean(edges)), 0.0),
    )  # fmt: skip
