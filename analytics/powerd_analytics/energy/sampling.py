"""What one reading of a sensor tells of the power, and what reading only now and then costs an integral.

A reading averages over a window; behind that there may be a low-pass of first order, and the whole may lie beside its
timestamp by the offset of the sampling instant. A counter's sample is the interval between two of its readings. What a
step of the power between two readings does to their integral follows from their distance h and their width alone
(`step_figures`). docs/explanation/energy.md has the equations under "Sampling" and "Quantisation".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.signals.signal import Signal
from powerd_core.model import ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_MOST_LEFT = float(np.exp(-3))
"""Of what was before, in a clean reading: its weight, centred one time constant behind the newest that it has seen, is
taken as four long, so that the newest lies three behind the edge at least (`powerd_core.model.Accuracy.reach_ns`)."""
_LATCH_NS = 15_000.0
"""What a register's transfer adds to the moment of a reading: the part that is left where a chip's cycle is known."""
_CLOCKS = {"INA226": 0.10, "INA228": 0.01, "INA3221": 0.10}
"""Limits of the conversion clocks of chips whose cycle nobody measures (SBOS547, SLYS021, SBOS576)."""
_AT_ONCE = frozenset({"INA3221"})
"""Of these, those that renew a register when its own conversion ends. Of the others it is not stated when they do."""
_STEPS, _CENTRES, _EDGES = 48, 32, 16
"""Moments of a step, of a window's centre and of an edge within a reading distance, over which figures are averaged."""
_CONSTANTS = 7
"""Time constants of a low-pass after which nothing is looked at: 0.1 % is left."""
_HARMONICS = 8


def filter_ns(signal: Signal) -> float:
    """Time constant of the low-pass behind a signal's readings, 0 for none."""
    return 0.0 if signal.is_counter else float(signal.line.accuracy.filter_ns)


def without_filter_tail(watts: Values, old_w: Values, after_ns: Ints, tau_ns: float) -> Values:
    """[n] power since an edge that clean readings show as ``watts``, ``after_ns`` behind it; before it was ``old_w``.

    The low-pass has exp(-(after_ns + tau_ns) / tau_ns) of that left, 5 to 0 % of the step: little, but always to the
    same side, and a slope that is no slope of the power.
    """
    if tau_ns <= 0:
        return watts
    left = np.minimum(np.exp(-1 - np.maximum(after_ns, 0) / tau_ns), _MOST_LEFT)
    return np.asarray((watts - left * old_w) / (1 - left))


def seen_of_step(after_ns: Values, window_ns: float, centre_ns: float, tau_ns: float = 0.0) -> Values:
    """Mean share of a step that a reading shows whose timestamp lies ``after_ns`` behind it.

    The window is ``window_ns`` wide and centred anywhere within ± ``centre_ns`` of the timestamp. Behind a low-pass of
    the time constant ``tau_ns`` only that counts, with its weight centred there.
    """

    def integrated(x: Values) -> Values:
        """The share, integrated over the centre's position: 0 before the window's first touch, x after its last."""
        if tau_ns > 0:
            since = np.maximum(x + tau_ns, 0)
            return np.asarray(since + tau_ns * np.expm1(-since / tau_ns))
        if window_ns <= 0:
            return np.clip(x, 0, None)
        part = (x + window_ns / 2) ** 2 / (2 * window_ns)
        return np.where(x <= -window_ns / 2, 0.0, np.where(x >= window_ns / 2, x, part))

    width = max(centre_ns, 0.5)
    share: Values = (integrated(after_ns + width) - integrated(after_ns - width)) / (2 * width)
    return share


def instant_offset_ns(signal: Signal) -> float:
    """How far the sampling instants of all readings may lie beside their timestamps together: the part a of
    ``centre_ns`` that no number of readings averages out.

    A sensor that is no chip on a bus always has the same delay: all of it. A chip converts freely and is read at any
    moment of its cycle: half a cycle of ``centre_ns`` averages out, and what its clock and the renewing of its register
    leave open does not. How long the cycle is follows from what ``centre_ns`` is made of (`docs/howto/board.md`): for a
    cycle z, of which the window w is a part and the rest b is the bus voltage's, half a cycle, the clock's tolerance of
    what a code's age can be, and b where the register may be renewed earlier. The INA219's cycle is measured when its
    driver starts. Where the chip is not named, only what half a reading distance cannot be is shared.
    """
    centre = signal.centre_ns
    if signal.is_counter:
        return 0.0
    if not isinstance(signal.line.conversion, ShuntConversion):
        return centre
    chip = signal.line.sensor.get("chip", "")
    if chip not in _CLOCKS:
        named = _LATCH_NS if chip == "INA219" else 0.0
        return min(max(centre - signal.spacing_ns / 2, named), centre)
    w, tolerance = signal.window_ns, _CLOCKS[chip]
    # centre = z/2 + tolerance (age + z/2) + latch (+ b), with age = z/2 + w/2 (renewed at once) or 3z/2 - w/2.
    of_bus = centre - _LATCH_NS - w / 2 - 1.5 * tolerance * w
    b = of_bus / (0.5 + tolerance) if chip in _AT_ONCE else of_bus / (1.5 + 2 * tolerance)
    return max(centre - (w + max(b, 0.0)) / 2, 0.0)


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a step of 1 W at a moment that knows nothing of the readings does to them, in units of their distance h.

    Exact for power made of such steps (a random walk is many small ones), by numerical integration over where the step
    lies.
    """

    a: float
    """Sum of the squared differences of neighbouring readings that a step leaves (1 for readings of no width)."""
    b: float
    """Half the sum of the squared second differences: the same for steps, near 0 for power that moves smoothly."""
    g: float
    """[h^2] variance of the trapezoid sum over all readings around a step: the mean over moments of the step."""
    g_edge: float
    """[h^3] what steps near an edge between two readings add, per step and h: variance integrated over the step's
    moment, less what ``g`` counts up to the edge."""


def step_figures(
    spacing_ns: float, window_ns: float, centre_ns: float, tau_ns: float = 0.0, *, is_counter: bool
) -> StepFigures:
    """Of readings ``spacing_ns`` apart that average over a window centred within ± ``centre_ns`` of their time.

    A counter's energy is exact at its readings and straight between them. Behind a low-pass of the time constant
    ``tau_ns`` only that counts, with its weight centred there.
    """
    if is_counter:
        # Means over whole intervals; within one, a step's error is that of a Brownian bridge: h^3 / 90.
        return StepFigures(2 / 3, 0.5, 0.0, 1 / 90)
    h = max(spacing_ns, 1.0)
    return _averaged_figures(round(window_ns / h, 3), round(centre_ns / h, 3), round(tau_ns / h, 3))


@lru_cache(maxsize=64)
def _averaged_figures(window: float, centre: float, tau: float) -> StepFigures:
    """Distances in units of the reading distance; readings at whole numbers, an edge between 0 and 1."""
    reach = int(np.ceil((_CONSTANTS * tau if tau else window / 2) + centre)) + 1
    readings = np.arange(-2 * reach - 2, 2 * reach + 4)
    step = np.arange(-reach - 1, reach + 2, 1 / _STEPS) + 0.5 / _STEPS
    off = (np.arange(_CENTRES) + 0.5) / _CENTRES * 2 - 1
    x = readings[None, :, None] - step[:, None, None] + centre * off[None, None, :]
    if tau > 0:
        seen = -np.expm1(-np.maximum(x / tau + 1, 0))
    else:
        seen = np.clip(x / window + 0.5, 0, 1) if window > 0 else (x >= 0).astype(np.float64)
    mean, spread = seen.mean(axis=2), seen.var(axis=2)
    one = (step >= 0) & (step < 1)  # one reading distance stands for all
    # Differences of readings whose windows lie independently: their spreads add.
    d, v = np.diff(mean[one], axis=1), spread[one]
    a = float(np.mean(np.sum(d**2 + (v[:, 1:] + v[:, :-1]), axis=1)))
    b = float(np.mean(np.sum(np.diff(d, axis=1) ** 2 + (v[:, 2:] + 4 * v[:, 1:-1] + v[:, :-2]), axis=1))) / 2
    whole = np.ones(len(readings))
    whole[-1] = 0.5
    bias = (mean[one] @ whole) - (readings[-1] - step[one])
    g = float(np.mean(bias**2 + v @ whole**2))
    edges = []
    for at in (np.arange(_EDGES) + 0.5) / _EDGES:
        weight = np.where(readings > 1, 1.0, 0.0)
        weight[readings == 0], weight[readings == 1] = (1 - at) ** 2 / 2, (1 - at) * (1 + at) / 2 + 0.5
        weight[-1] = 0.5
        bias = mean @ weight - (readings[-1] - np.maximum(step, at))
        variance = bias**2 + spread @ weight**2
        edges.append(float(np.sum(variance)) / _STEPS - g * (step[-1] + 0.5 / _STEPS - at))
    return StepFigures(a, b, g, max(float(np.mean(edges)), 0.0))


def rounding_u(step: float, seen2: Values) -> Values:
    """Standard uncertainty, in the unit of ``step``, of the mean of a steady value rounded to multiples of ``step``.

    ``seen2`` is the variance of the readings between which the value stands still, rounding included. Without noise
    every reading is rounded the same way: step / sqrt(12). Normal noise of variance s^2 ahead of the rounding leaves
    of the k-th harmonic of the saw-tooth, step / (pi k) high, the share exp(-2 (pi k s / step)^2) in the mean
    (Widrow, 1956); the value's place within a step is evenly likely.
    """
    if step <= 0:
        return np.zeros_like(seen2)
    noise2 = np.maximum(seen2 / step**2 - 1 / 12, 0)[..., None]
    k2 = np.arange(1, _HARMONICS + 1) ** 2
    square = np.sum(np.exp(-4 * np.pi**2 * k2 * noise2) / k2, axis=-1) / (2 * np.pi**2)
    # What the harmonics left out add where there is no noise.
    rest = (np.pi**2 / 6 - np.sum(1 / k2)) / (2 * np.pi**2)
    return np.asarray(step * np.sqrt(square + np.where(noise2[..., 0] > 0, 0.0, rest)), np.float64)


class Samples:
    """The samples of a signal [n], each a reading or the interval between two readings of a counter, and prefix sums
    over them that tell steps, ramps and noise apart."""

    def __init__(self, signal: Signal) -> None:
        t = signal.t_ns
        if signal.is_counter:
            dt = np.diff(t).astype(np.float64)
            self.left, self.right = t[:-1], t[1:]
            self.watts = np.diff(signal.value) / (dt * 1e-9)
            self.half_ns, self.window_ns = signal.spacing_ns / 2, signal.spacing_ns
        else:
            self.left = self.right = t
            self.watts = signal.value
            self.half_ns, self.window_ns = 0.0, signal.window_ns
        self.spacing_ns = signal.spacing_ns
        # What all windows lie beside their stamps together is no scatter; it is a part of its own.
        self.centre_ns = signal.centre_ns - instant_offset_ns(signal)
        centre_ns = 0.0 if signal.is_counter else self.centre_ns
        self.figures = step_figures(
            signal.spacing_ns, self.window_ns, centre_ns, filter_ns(signal), is_counter=signal.is_counter
        )
        d, h = np.diff(self.watts), np.diff((self.left + self.right) // 2).astype(np.float64)
        # A sample that came late leaves more room for what nobody saw: its movement counts by the square of its time.
        late2 = (h[1:] ** 2 + h[:-1] ** 2) / (2 * max(signal.spacing_ns, 1.0) ** 2)
        self.power2 = prefix_sums(self.watts**2)
        self.square = prefix_sums(d**2)
        self.square2 = prefix_sums((self.watts[2:] - self.watts[:-2]) ** 2)
        self.second = prefix_sums(np.diff(d) ** 2 / 2 * late2)

    def __len__(self) -> int:
        return len(self.watts)

    def at(self, t_ns: Ints) -> Values:
        """[n] power at moments on the straight line between readings, or of the interval that holds them."""
        if self.half_ns:
            return self.watts[np.clip(np.searchsorted(self.left, t_ns, "right") - 1, 0, len(self) - 1)]
        return np.interp(t_ns, self.left, self.watts)


def prefix_sums(values: Values) -> Values:
    """[n + 1] sums of the first 0, 1, ... n values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def range_sum(prefix: Values, first: Ints, last: Ints) -> Values:
    """Sum of the terms first..last-1, from their prefix sums."""
    n = len(prefix) - 1
    b = np.clip(first, 0, n)
    return prefix[np.clip(last, b, n)] - prefix[b]
