"""How a GPU's driver sees power, from random loads whose edges are known: the fit behind `powerd identify`.

Loads of different power follow each other in random order for 2.5 to 90 ms, so that every frequency is in them (a
square wave tests one, and is blind where that fits the distance of the readings). A reading is then the sum over the
loads of a power times the share of the reading's weight in which that load ran. The weights follow from a response;
the powers are found by least squares for each one that is tried, so that only two or three parameters are searched.
Each load has a power of its own in the first 0.8 ms, while the regulators follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.response import Response
from powerd_analytics.energy.states import StateCells
from powerd_core.errors import AnalysisError

Values = NDArray[np.float64]

RAMP_S = 0.8e-3
DRIFTS, SLOW_S = 2, 100.0
"""Orders of a slow drift, as the chip warms, and the seconds in which it goes on."""
PRIOR = 1e-3
REACH_S = 4.0
"""Before and behind a reading's timestamp, in which loads can matter."""
PARTS = 10
"""Stretches that are fitted and held out in turn, the even and the odd ones."""
MOST_LEFT = 0.5
"""Of the spread of the readings: with more held out nothing is explained."""
SIMPLER = 1.1
"""A response of one parameter more must leave less than one part in this of the held-out residual."""
LEAST_READINGS, LEAST_LOADS = 200, 200
BLOCKS, DRAWS, SEED = 60, 1000, 1
"""Of the bootstrap: blocks of readings in a row, drawn with replacement."""
ROUNDS, TRIMS, ENOUGH_S = 12, 4, 10e-6
COARSE_READINGS = 400
LEAST_WIDTH_S, WIDTHS_S = 0.5e-3, (3e-3, 10e-3, 30e-3, 100e-3, 300e-3, 1.0)
"""The least time constant and window that are tried, those that the search begins with, and how far the weight may lie
off its stamp."""
FARTHEST_S, SHIFT_STEPS = 0.12, 13
OUTLYING = 4.0
"""Readings farther from the fit than so many (robust) standard deviations are left out: the driver stamps one in twenty
with an instant that its value is not of."""
FAMILIES = {"low-pass": ("tau_s",), "rectangle": ("window_s",), "low-pass behind a window": ("tau_s", "window_s")}
"""The parameters of each kind of response beside the place, the simplest first."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Readings of one line, and the loads that ran meanwhile. Seconds since any one moment, in order."""

    begin_s: Values
    end_s: Values
    kind: NDArray[np.int64]
    """[n] number of each load's kind; between loads nothing runs."""
    t_s: Values
    watts: Values
    """[m] good readings."""

    @property
    def columns(self) -> int:
        return 2 * int(self.kind.max()) + 3

    def cells(self) -> StateCells:
        """Columns: for each kind its first `RAMP_S`, then the rest of it; the last one is where nothing runs."""
        idle = self.columns - 1
        split = np.minimum(self.begin_s + RAMP_S, self.end_s)
        at = np.concatenate([np.column_stack([self.begin_s, split, self.end_s]).ravel(), [self.t_s[-1] + REACH_S]])
        column = np.column_stack([2 * self.kind, 2 * self.kind + 1, np.full(len(self.kind), idle)]).ravel()
        first = min(self.begin_s[0], self.t_s[0]) - REACH_S
        at, column = np.concatenate([[first], at]), np.concatenate([[idle], column])
        at = np.maximum.accumulate(at)
        some = np.diff(at) > 0
        return StateCells(0, np.concatenate([at[:-1][some], at[-1:]]), column[some])

    def part(self, some: NDArray[np.bool_] | slice) -> Loads:
        """Some of the readings, and the loads that they can have seen."""
        t_s, watts = self.t_s[some], self.watts[some]
        near = (self.end_s > t_s[0] - REACH_S) & (self.begin_s < t_s[-1] + REACH_S)
        return Loads(self.begin_s[near], self.end_s[near], self.kind[near], t_s, watts)


@dataclass(frozen=True, slots=True)
class ResponseFit:
    """The response that explains readings best, with 95 % intervals by the bootstrap. Seconds and watts."""

    family: str
    response: Response
    """Its ``shift_s`` is how far behind a reading's timestamp the centre of its weight lies."""
    u95_tau_s: float
    u95_window_s: float
    u95_shift_s: float
    residual_w: float
    """Standard deviation of the readings that were held out, by a fit to the others."""
    held_out_w: dict[str, float]
    """The same of every family."""
    delay_s: float
    """From the newest power that a reading sees to its timestamp."""
    u95_delay_s: float


def fit(loads: Loads) -> ResponseFit:
    """Raises `AnalysisError` for recordings from which nothing can be told."""
    inside = (loads.t_s > loads.begin_s[0] + FARTHEST_S) & (loads.t_s < loads.end_s[-1]) if len(loads.kind) else None
    if inside is None or int(inside.sum()) < LEAST_READINGS or len(loads.kind) < LEAST_LOADS:
        raise AnalysisError(
            f"{0 if inside is None else int(inside.sum())} readings of {len(loads.kind)} loads are too few, "
            f"{LEAST_READINGS} of {LEAST_LOADS} are needed: give more seconds"
        )
    loads = loads.part(inside)
    part = np.arange(len(loads.t_s)) * PARTS // len(loads.t_s)
    halves = loads.part(part % 2 == 0), loads.part(part % 2 == 1)
    held_out: dict[str, float] = {}
    found: dict[str, _Solution] = {}
    for family, names in FAMILIES.items():
        start = _start(loads, names, {f: known.response for f, known in found.items()})
        found[family] = _solve(loads, names, start)
        left = []
        for known, other in (halves, halves[::-1]):
            half = _solve(known, names, found[family].response)
            left.append(other.watts - _design(other, half.response) @ half.watts)
        held_out[family] = _spread(np.concatenate(left))
    best = min(FAMILIES, key=lambda f: held_out[f] * (SIMPLER if len(FAMILIES[f]) > 1 else 1.0))
    if held_out[best] > MOST_LEFT * _spread(loads.watts - np.median(loads.watts)):
        raise AnalysisError("the readings do not follow the loads: did something else run on this GPU?")
    response = found[best].response
    u95 = _bootstrap(loads, FAMILIES[best], found[best])
    return ResponseFit(
        best, response, u95["tau_s"], u95["window_s"], u95["shift_s"], held_out[best], held_out,
        -response.shift_s - response.tau_s - response.window_s / 2, u95["delay"],
    )  # fmt: skip


def _design(loads: Loads, response: Response) -> Values:
    """[m, c] what each reading sees of one watt in each column, and the drift."""
    cells = loads.cells()
    seen = [response.seen(cells, (cells.column == c).astype(np.float64), loads.t_s) for c in range(loads.columns)]
    return np.column_stack([*seen, np.polynomial.legendre.legvander(loads.t_s / SLOW_S, DRIFTS)[:, 1:]])


def _powers(loads: Loads, design: Values, weight: Values) -> Values:
    """[c] by least squares. A prior worth a thousandth of a reading keeps what is not seen near the mean."""
    mean = np.zeros(design.shape[1])
    mean[: loads.columns] = np.mean(loads.watts)
    weighted = design * weight[:, None]
    normal, right = weighted.T @ design, weighted.T @ (loads.watts - design @ mean)
    return np.asarray(mean + np.linalg.solve(normal + PRIOR * np.eye(len(mean)), right))


def _spread(left: Values) -> float:
    """Standard deviation by the median, which outliers do not move."""
    return 1.4826 * float(np.median(np.abs(left)))


def _start(loads: Loads, names: Sequence[str], found: dict[str, Response]) -> Response:
    """Where the search begins: the best of a coarse grid, or of two parameters what was found of one."""
    if len(names) > 1:
        return replace(found["low-pass"], window_s=max(found["low-pass"].tau_s / 4, 1e-3))
    some = loads.part(slice(COARSE_READINGS))
    even = np.ones(len(some.t_s))

    def left(response: Response) -> float:
        design = _design(some, response)
        return float(np.sum(np.abs(some.watts - design @ _powers(some, design, even))))

    shifts = np.linspace(-FARTHEST_S, FARTHEST_S, SHIFT_STEPS)
    tries = [Response(0.0, 0.0, False, float(shift)) for shift in shifts]
    widths = ({names[0]: width} for width in WIDTHS_S)
    return min((_with(r, new) for new in widths for r in tries), key=left)


def _with(response: Response, new: Mapping[str, float]) -> Response:
    return replace(response, window_s=new.get("window_s", response.window_s), tau_s=new.get("tau_s", response.tau_s))


def _moved(response: Response, names: Sequence[str], step: Values) -> Response:
    """By a step [place, parameters]; these stay above the least."""
    new = {
        name: max(getattr(response, name) + float(x), LEAST_WIDTH_S) for name, x in zip(names, step[1:], strict=True)
    }
    return replace(_with(response, new), shift_s=response.shift_s + float(step[0]))


def _slopes(loads: Loads, names: Sequence[str], response: Response, watts: Values) -> Values:
    """[m, 1 + p] how the readings move with the place and the parameters at these powers."""
    cells, columns = loads.cells(), []
    power = watts[cells.column]
    for i in range(1 + len(names)):
        step = np.zeros(1 + len(names))
        step[i] = 0.1e-3 if i == 0 else max(0.02 * getattr(response, names[i - 1]), 0.02e-3)
        ahead, back = _moved(response, names, step), _moved(response, names, -step)
        width = 2 * step[0] if i == 0 else getattr(ahead, names[i - 1]) - getattr(back, names[i - 1])
        columns.append((ahead.seen(cells, power, loads.t_s) - back.seen(cells, power, loads.t_s)) / width)
    return np.column_stack(columns)


@dataclass(frozen=True, slots=True)
class _Solution:
    """What one response explains of readings: outlying ones do not count."""

    response: Response
    design: Values
    watts: Values
    left: Values
    weight: Values
    """[m] 1, or 0 for a reading that is left out."""

    @classmethod
    def of(cls, loads: Loads, response: Response, weight: Values) -> _Solution:
        design = _design(loads, response)
        watts = _powers(loads, design, weight)
        return cls(response, design, watts, loads.watts - design @ watts, weight)

    @property
    def square(self) -> float:
        return float(self.weight @ self.left**2)

    def jacobian(self, loads: Loads, names: Sequence[str]) -> Values:
        return np.column_stack([_slopes(loads, names, self.response, self.watts), self.design])


def _solve(loads: Loads, names: Sequence[str], response: Response) -> _Solution:
    """By steps of Gauss and Newton, halved until they help; again and again without what then lies far off."""
    now = _Solution.of(loads, response, np.ones(len(loads.t_s)))
    for _ in range(TRIMS):
        for _ in range(ROUNDS):
            J, root = now.jacobian(loads, names), np.sqrt(now.weight)
            step = np.asarray(np.linalg.lstsq(J * root[:, None], now.left * root, rcond=None)[0][: 1 + len(names)])
            limit = np.array([5e-3] + [0.5 * getattr(now.response, name) + 1e-3 for name in names])
            step = np.asarray(step) / max(1.0, float(np.max(np.abs(step) / limit)))
            for _ in range(6):
                new = _Solution.of(loads, _moved(now.response, names, step), now.weight)
                if new.square < now.square:
                    break
                step = np.asarray(step / 2)
            else:
                break
            now = new
            if np.max(np.abs(step)) < ENOUGH_S:
                break
        weight = (np.abs(now.left) < OUTLYING * _spread(now.left)).astype(np.float64)
        if np.array_equal(weight, now.weight):
            break
        now = _Solution.of(loads, now.response, weight)
    return now


def _bootstrap(loads: Loads, names: Sequence[str], best: _Solution) -> dict[str, float]:
    """Half the 95 % intervals of the place, the parameters and the delay: blocks of readings drawn again, of which one
    step of Gauss and Newton tells where the best response would lie."""
    J, left = best.jacobian(loads, names) * best.weight[:, None], best.left * best.weight
    J /= (scale := np.sqrt(np.mean(J**2, axis=0)) + 1e-30)
    block = np.arange(len(left)) * BLOCKS // len(left)
    normal = np.stack([J[block == b].T @ J[block == b] for b in range(BLOCKS)])
    right = np.stack([J[block == b].T @ left[block == b] for b in range(BLOCKS)])
    drawn = np.random.default_rng(SEED).multinomial(BLOCKS, np.full(BLOCKS, 1 / BLOCKS), size=DRAWS).astype(np.float64)
    ridge = 1e-9 * len(left) * np.eye(J.shape[1])
    moved = np.stack([np.linalg.solve(np.tensordot(w, normal, 1) + ridge, w @ right) for w in drawn]) / scale
    steps = {"shift_s": moved[:, 0], "tau_s": np.zeros(DRAWS), "window_s": np.zeros(DRAWS)}
    steps |= {name: moved[:, 1 + i] for i, name in enumerate(names)}
    steps["delay"] = -steps["shift_s"] - steps["tau_s"] - steps["window_s"] / 2
    return {name: float(np.diff(np.percentile(x, [2.5, 97.5]))[0]) / 2 for name, x in steps.items()}
