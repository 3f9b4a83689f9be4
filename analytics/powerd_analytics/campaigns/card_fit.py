"""A card from a sweep of power caps: the constants of `powerd_core.gpu_physics` by least squares.

Of each training of the sweep the mean power and the time of a run at several caps are known. Four constants belong to
the card (floor, knee, voltage, power while it waits), four to each training (what its kernels add, its shares that wait
and that wait for memory, its length at full clock). The residuals are those of ln power and ln time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from powerd_analytics.frame.figure import Figure
from powerd_core.errors import AnalysisError
from powerd_core.gpu_physics import Card, Network, operate

Values = NDArray[np.float64]
OF_CARD = ("floor_w", "knee", "voltage", "wait_w")
OF_TRAINING = ("busy_w", "waiting", "memory", "time_s")
_BOUNDS = {
    "floor_w": (1.0, 400.0), "knee": (0.2, 0.95), "voltage": (0.05, 8.0), "wait_w": (1.0, 300.0),
    "busy_w": (5.0, 1200.0), "waiting": (0.0, 0.9), "memory": (0.0, 0.95),
}  # fmt: skip
_SHARES = ("knee", "waiting", "memory")
SHARE_TOLD = 0.1
"""A share is told where its U95 is at most this, other constants where it is at most half of them."""
LEAST_CAPS = 3
OBEYS = 0.015
"""Of power and time, rms: a card whose residuals are larger does not obey the form, or the runs have that noise."""
STARTS = ((0.45, 1.0, 0.3), (0.45, 1.0, 0.65), (0.6, 2.5, 0.3), (0.6, 2.5, 0.65))
"""Knee, voltage and memory share at which a fit begins; the best of them is taken."""


class SweepPoint(NamedTuple):
    """The mean of a training's runs at a cap."""

    cap_w: float
    time_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """A constant of the card, or of the training that is named."""

    training: str
    name: str
    value: float
    u95: float
    """Infinite where the points do not tell it."""

    @property
    def is_told(self) -> bool:
        return self.u95 <= self.value / 2 or (self.name in _SHARES and self.u95 <= SHARE_TOLD)


@dataclass(frozen=True, slots=True)
class CardFit:
    """A card that was fitted."""

    card: Card
    networks: Mapping[str, Network]
    constants: tuple[FittedConstant, ...]
    points: Mapping[str, tuple[SweepPoint, ...]]
    rms: float
    """Of the residuals of ln power and ln time, all of them."""
    worst: float

    @property
    def is_obeyed(self) -> bool:
        return self.rms <= OBEYS


def points_of(rows: Iterable[Mapping[str, Any]], where: str) -> dict[str, tuple[SweepPoint, ...]]:
    """The points of a sweep by training (``model``): means of rows with ``power_cap_w``, ``energy_j`` and ``time_s``.
    Raises `AnalysisError` where no training has `LEAST_CAPS` caps."""
    runs: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for row in rows:
        try:
            cap_w, energy_j, time_s = (float(row[name]) for name in ("power_cap_w", "energy_j", "time_s"))
        except (KeyError, TypeError, ValueError):
            continue
        if cap_w > 0 and 0 < energy_j < 1e15 and 0 < time_s < 1e12:
            runs.setdefault(str(row.get("model") or "training"), {}).setdefault(cap_w, []).append((energy_j, time_s))
    found = {}
    for name, by_cap in runs.items():
        if len(by_cap) >= LEAST_CAPS:
            means = {cap: np.mean(own, axis=0) for cap, own in sorted(by_cap.items())}
            found[name] = tuple(SweepPoint(cap, float(t), float(e / t)) for cap, (e, t) in means.items())
    if not found:
        raise AnalysisError(f"{where}: no training has runs at {LEAST_CAPS} power caps, with joules and seconds")
    return found


def fit_card(points: Mapping[str, Sequence[SweepPoint]], like: Card, *, keeps_card: bool = False) -> CardFit:
    """The card that explains the points best; what they say nothing of is that of ``like``. With ``keeps_card`` the
    constants of the card are those of ``like``, and the trainings' are fitted."""
    names = list(points)
    best: Any = None
    for knee, voltage, memory in STARTS:
        start, low, high = _start(points, like, knee, voltage, memory, keeps_card)
        scale, args = np.maximum(np.abs(start), 0.1), (points, like, keeps_card)
        found = least_squares(_residuals, start, bounds=(low, high), x_scale=scale, xtol=1e-10, ftol=1e-12, args=args)
        best = found if best is None or found.cost < best.cost else best
    card, networks = _of(best.x, names, like, keeps_card)
    residuals = _residuals(best.x, points, like, keeps_card)
    freedom = len(residuals) - len(best.x)
    variance = 2 * best.cost / freedom if freedom > 0 else np.inf
    u95 = _u95(best.jac, variance, freedom, best.x, low, high)
    own = [("", name) for name in (() if keeps_card else OF_CARD)]
    own += [(training, name) for training in names for name in OF_TRAINING]
    constants = tuple(
        FittedConstant(training, name, float(value), float(u))
        for (training, name), value, u in zip(own, best.x, u95, strict=True)
    )
    rms = float(np.sqrt(np.mean(residuals**2)))
    all_points = {name: tuple(of) for name, of in points.items()}
    return CardFit(card, networks, constants, all_points, rms, float(np.abs(residuals).max()))


def _u95(jacobian: Values, variance: float, freedom: int, x: Values, low: Values, high: Values) -> Values:
    """Of each constant, by Student's t; infinite at a bound, and where the points do not tell it."""
    if freedom <= 0:
        return np.full(len(x), np.inf)
    scale = np.maximum(np.linalg.norm(jacobian, axis=0), 1e-12)
    covariance = np.linalg.pinv((jacobian / scale).T @ (jacobian / scale), rcond=1e-10) / np.outer(scale, scale)
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0) * variance)
    told = [
        Figure(float(value), float(u), degrees_of_freedom=float(freedom)).u95
        for value, u in zip(x, spread, strict=True)
    ]
    u95 = np.array([np.inf if u is None else u for u in told])
    is_free = (x > low + 1e-6 * (high - low)) & (x < high - 1e-6 * (high - low))
    return np.where(is_free & (scale > 1e-9), u95, np.inf)


def _start(
    points: Mapping[str, Sequence[SweepPoint]], like: Card, knee: float, voltage: float, memory: float, keeps_card: bool
) -> tuple[Values, Values, Values]:
    """Where a fit begins, and its bounds."""
    start = [] if keeps_card else [like.floor_w, knee, voltage, like.wait_w]
    low = [] if keeps_card else [_BOUNDS[name][0] for name in OF_CARD]
    high = [] if keeps_card else [_BOUNDS[name][1] for name in OF_CARD]
    for of in points.values():
        most, least_s = max(p.power_w for p in of), min(p.time_s for p in of)
        start += [max(most - like.floor_w, 20.0) * 1.2, 0.1, memory, least_s]
        low += [_BOUNDS["busy_w"][0], 0.0, 0.0, least_s / 3]
        high += [_BOUNDS["busy_w"][1], _BOUNDS["waiting"][1], _BOUNDS["memory"][1], least_s * 3]
    return np.array(start), np.array(low), np.array(high)


def _of(x: Values, names: Sequence[str], like: Card, keeps_card: bool) -> tuple[Card, dict[str, Network]]:
    count, card, values = 0, like, [float(value) for value in x]
    if not keeps_card:
        count = len(OF_CARD)
        floor_w, knee, voltage, wait_w = values[:count]
        card = replace(like, floor_w=floor_w, knee=knee, voltage=voltage, wait_w=wait_w)
    networks = {}
    for at, name in zip(range(count, len(values), len(OF_TRAINING)), names, strict=True):
        busy_w, waiting, memory, time_s = values[at : at + len(OF_TRAINING)]
        networks[name] = Network(busy_w, waiting, memory, time_s)
    return card, networks


def _residuals(x: Values, points: Mapping[str, Sequence[SweepPoint]], like: Card, keeps_card: bool) -> Values:
    card, networks = _of(x, list(points), like, keeps_card)
    found = []
    for name, of in points.items():
        for point in of:
            at = operate(card, networks[name], point.cap_w)
            found += [np.log(at.power_w / point.power_w), np.log(at.time_s / point.time_s)]
    return np.array(found)
