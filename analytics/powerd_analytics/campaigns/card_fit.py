"""A card from a sweep of power caps: the constants of `powerd_core.gpu_physics` by least squares.

Of each training of the sweep the mean power and the time of a run at several caps are known. Four constants belong to
the card (floor, knee, voltage, power while it waits), four to each training (what its kernels add, its shares that wait
and that wait for memory, its length at full clock). The residuals are those of ln power and ln time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import fdtrc

from powerd_analytics.frame.figure import Figure, Record, number_of
from powerd_analytics.frame.figures import Frame, factors_in, floats, of_kind, rows_of
from powerd_analytics.frame.repeats import FACTORS, average_repeats, cells_of, of_a_batch
from powerd_analytics.views.breakdown import configuration, of_trainings
from powerd_analytics.views.layouts import without_violated
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
"""Of power and of time: a card of which more is left than what its repeats scatter by does not obey the form."""
REJECTED_BELOW = 0.01
"""p of the residuals by the scatter of repeats alone."""
LEAST_NOISE = 1e-4
STARTS = ((0.45, 1.0, 0.3), (0.45, 1.0, 0.65), (0.6, 2.5, 0.3), (0.6, 2.5, 0.65))
"""Knee, voltage and memory share at which a fit begins; the best of them is taken."""


class SweepPoint(NamedTuple):
    """The mean of a training's runs at a cap."""

    cap_w: float
    time_s: float
    power_w: float
    runs: int = 1


class Scatter(NamedTuple):
    """Relative standard deviation of single runs around the mean of their cap."""

    power: float
    time: float
    freedom: float
    """Degrees of freedom of both."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What runs at several caps say of one card."""

    points: Mapping[str, tuple[SweepPoint, ...]]
    """By training, whose name says what parts it from the others; of a batch where the runs count them."""
    scatter: Scatter | None
    """None where no cap was run twice."""
    product: str
    """Of the card; empty where nobody says it."""
    provenances: tuple[str, ...]
    default_w: float | None
    """The limit that the card's driver begins with."""
    left_out: tuple[str, ...]
    """What does not count, one sentence each."""

    @property
    def limits_w(self) -> tuple[float, float, float]:
        """Least, default and greatest power limit, within the caps that were run."""
        caps = [point.cap_w for own in self.points.values() for point in own]
        least, greatest = min(caps), max(caps)
        is_inside = self.default_w is not None and least <= self.default_w <= greatest
        return least, self.default_w if self.default_w is not None and is_inside else greatest, greatest


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
class Residuals:
    """What the fit leaves of ln power, or of ln time."""

    rms: float
    worst: float
    noise: float | None
    """What repeats say that the points scatter by; None without repeats."""


@dataclass(frozen=True, slots=True)
class CardFit:
    """A card that was fitted."""

    card: Card
    networks: Mapping[str, Network]
    constants: tuple[FittedConstant, ...]
    points: Mapping[str, tuple[SweepPoint, ...]]
    power: Residuals
    time: Residuals
    freedom: int
    """Degrees of freedom of all residuals."""
    p_noise: float
    """How probable residuals at least so large are, where repeats scatter as they do and the card obeys the form; NaN
    where that cannot be tested."""

    @property
    def form_off(self) -> tuple[float, float]:
        """What the form is off in power and in time, rms: the residuals, less the noise where repeats tell it."""
        if self.p_noise >= REJECTED_BELOW:
            return 0.0, 0.0
        share = max(0, self.freedom) / sum(2 * len(own) for own in self.points.values())
        power, time = (
            float(np.sqrt(max(0.0, r.rms**2 - share * (r.noise or 0.0) ** 2))) for r in (self.power, self.time)
        )
        return power, time

    @property
    def is_obeyed(self) -> bool:
        return max(self.form_off) <= OBEYS


# -- the points --------------------------------------------------------------------------------------------------------

_NO_CELL = ("cell",)
"""A campaign's digest of all factors has the cap in it: the factors themselves part cells."""
_OF_A_CAP = (*_NO_CELL, "power_cap_w")


def sweep_of(frame: Frame, where: str) -> Sweep:
    """The points in a frame of runs, or of a table (`powerd_analytics.frame.published`).

    Totals count that have a cap, on one card each. What parts cells parts trainings, but for the cap; repeats are
    averaged. Raises `AnalysisError`, which begins with ``where``, for runs of several products, and where no training
    has `LEAST_CAPS` caps.
    """
    trainings = of_trainings(frame)
    totals, left_out = without_violated(trainings)
    beside = len(of_kind(frame, "total")) - len(trainings)
    if beside:
        left_out += (f"left out: {beside} totals of a warm-up or an evaluation, or without a batch size",)
    counted, more = _counted(totals)
    left_out += more
    products = list(dict.fromkeys(_products(counted)))
    if len(products) > 1:
        raise AnalysisError(
            f"{where}: runs of {' and '.join(products)}: a card is fitted to the runs of one; choose them with --where"
        )
    runs = of_a_batch(counted)
    points: dict[str, tuple[SweepPoint, ...]] = {}
    for name, own in _trainings(_points(runs)).items():
        if len(own) >= LEAST_CAPS:
            points[name] = tuple(sorted(own))
        else:
            left_out += (f"left out: {name}, which has {len(own)} of the {LEAST_CAPS} power caps that a fit needs",)
    if not points:
        why = f" ({'; '.join(left_out)})" if left_out else ""
        raise AnalysisError(
            f"{where}: no training has runs at {LEAST_CAPS} power caps, with joules and seconds of one card{why}"
        )
    limits = runs["default_power_limit_w"].dropna().unique()
    return Sweep(
        points,
        _scatter(runs),
        products[0],
        tuple(sorted(set(runs["provenance"].dropna()))),
        float(limits[0]) if len(limits) == 1 else None,
        left_out,
    )


def _counted(totals: Frame) -> tuple[Frame, tuple[str, ...]]:
    """The totals that count, and what does not, by the first reason that applies."""
    device, gpus = totals["device"].fillna(""), floats(totals, "gpus")
    is_several = device.str.contains(r"\+| GPUs$|^node$") | ((device == "") & (gpus > 1))
    is_clock_set = totals["clock_hz"].notna() | totals["memory_clock_hz"].notna()
    is_bound = totals["is_lower_bound"].fillna(False).astype(bool)
    is_known = (floats(totals, "energy_j") > 0) & (floats(totals, "time_s") > 0) & ~is_bound
    reasons = {
        "no power cap": ~(floats(totals, "power_cap_w") > 0),
        "the cap changed in the run": totals["power_cap_in_run"].notna(),
        "a clock was set": is_clock_set,
        "joules of several GPUs together, or of a machine": is_several,
        "no joules or no seconds, or joules that are a lower bound": ~is_known,
    }
    counts, notes = np.ones(len(totals), bool), []
    for reason, fails in reasons.items():
        hit = counts & np.asarray(fails, bool)
        notes += [f"left out: {hit.sum()} of {len(totals)} totals: {reason}"] if hit.any() else []
        counts &= ~hit
    return totals[counts].reset_index(drop=True), tuple(notes)


def _products(frame: Frame) -> pd.Series:
    """[rows] which card each row is of: cards of one machine that say no product are alike."""
    return frame["device_name"].fillna(frame["device"].str.replace(r"^gpu\d+$", "", regex=True)).fillna("")


def _points(runs: Frame) -> list[tuple[Record, SweepPoint]]:
    """The mean of each cell."""
    cells = pd.factorize(cells_of(runs, ignore=_NO_CELL))[0]
    rows = rows_of(average_repeats(runs, ignore=_NO_CELL)) if len(runs) else []
    found = []
    for row, count in zip(rows, np.bincount(cells), strict=True):
        cap_w, time_s, power_w = (number_of(row, name) or 0.0 for name in ("power_cap_w", "time_s", "power_w"))
        found.append((row, SweepPoint(cap_w, time_s, power_w, int(count))))
    return found


def _scatter(runs: Frame) -> Scatter | None:
    cells = cells_of(runs, ignore=_NO_CELL)
    logs = np.log(np.stack([floats(runs, "power_w"), floats(runs, "time_s")], axis=1))
    freedom = len(logs) - len(np.unique(cells))
    if freedom <= 0:
        return None
    within = logs - pd.DataFrame(logs).groupby(cells).transform("mean").to_numpy()
    power, time = np.sqrt((within**2).sum(axis=0) / freedom).tolist()
    return Scatter(power, time, float(freedom))


def _trainings(points: Sequence[tuple[Record, SweepPoint]]) -> dict[str, list[SweepPoint]]:
    """The points by the name of their training."""
    groups: dict[tuple[object, ...], list[SweepPoint]] = {}
    first: dict[tuple[object, ...], Record] = {}
    for row, point in points:
        key = tuple(row[name] for name in _factors(row))
        groups.setdefault(key, []).append(point)
        first.setdefault(key, row)
    rising = sorted(first, key=lambda key: (str(first[key]["model"]), number_of(first[key], "batch_size") or 0.0))
    return dict(zip(_names([first[key] for key in rising]), (groups[key] for key in rising), strict=True))


def _factors(row: Record) -> list[str]:
    return [name for name in (*FACTORS, *factors_in(row)) if name not in _OF_A_CAP]


def _names(trainings: Sequence[Record]) -> list[str]:
    """The model, with what parts it from other trainings of that model."""
    names = []
    for row in trainings:
        model, same = row["model"], [other for other in trainings if other["model"] == row["model"]]
        same = [{**other, "power_cap_w": None, "run": ""} for other in same]
        own = configuration({**row, "power_cap_w": None, "run": ""}, same, without_model=True) if len(same) > 1 else ""
        names.append(", ".join(filter(None, (str(model or "training"), own))))
    return [_told_apart(i, names, trainings) for i in range(len(names))]


def _told_apart(i: int, names: Sequence[str], trainings: Sequence[Record]) -> str:
    """A name that no other training has: with the first factor that parts it from those of the same name."""
    alike = [row for name, row in zip(names, trainings, strict=True) if name == names[i]]
    for factor in _factors(trainings[i]) if len(alike) > 1 else ():
        if len({row[factor] for row in alike}) == len(alike):
            return f"{names[i]}, {trainings[i][factor]}"
    return names[i] if len(alike) < 2 else f"{names[i]} ({1 + sum(name == names[i] for name in names[:i])})"


# -- the fit -----------------------------------------------------------------------------------------------------------


def fit_card(
    points: Mapping[str, Sequence[SweepPoint]], like: Card, *, scatter: Scatter | None = None, keeps_card: bool = False
) -> CardFit:
    """The card that explains the points best; what they say nothing of is that of ``like``. With ``keeps_card`` the
    constants of the card are those of ``like``, and the trainings' are fitted. ``scatter``: of repeats, to be told
    from what the form is off."""
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
    all_points = {name: tuple(of) for name, of in points.items()}
    per_run = np.mean([1 / point.runs for of in points.values() for point in of])
    noises = (None, None) if scatter is None else tuple(float(sd * np.sqrt(per_run)) for sd in scatter[:2])
    power, time = (
        Residuals(float(np.sqrt(np.mean(r**2))), float(np.abs(r).max()), noise)
        for r, noise in zip((residuals[::2], residuals[1::2]), noises, strict=True)
    )
    p_noise = np.nan
    if scatter is not None and freedom > 0:
        misfit = sum(len(residuals) / 2 * (r.rms / max(r.noise or 0.0, LEAST_NOISE)) ** 2 for r in (power, time))
        p_noise = float(fdtrc(freedom, scatter.freedom, misfit / freedom))
    return CardFit(card, networks, constants, all_points, power, time, freedom, p_noise)


def fit_notes(fit: CardFit) -> list[str]:
    """What a reader has to know of how well a card fits, one sentence each."""
    both = ("power", fit.power), ("time", fit.time)
    notes = [f"residuals of {name}: {100 * r.rms:.2g} % rms, {100 * r.worst:.2g} % at worst" for name, r in both]
    if fit.freedom <= 0:
        return [*notes, "there are not more figures than constants: residuals tell nothing"]
    noises, has_repeats = [f"{100 * (r.noise or 0.0):.2g}" for _, r in both], fit.power.noise is not None
    if not has_repeats:
        notes += ["each cap was run once: noise cannot be told from what the form is off"]
    elif fit.p_noise >= REJECTED_BELOW:
        notes += [f"that is no more than repeats scatter the points by: {' and '.join(noises)} %"]
    else:
        off = " and ".join(f"{100 * share:.2g}" for share in fit.form_off)
        notes += [f"repeats scatter the points by {' and '.join(noises)} %: without that the form is off by {off} %"]
    if not fit.is_obeyed:
        or_noise = "" if has_repeats else ", or its runs have that noise"
        notes += [f"over {100 * OBEYS:g} % rms: this card does not obey the form{or_noise}"]
    return notes


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
    return np.clip(start, low, high), np.array(low), np.array(high)


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
    """[2 x points] of ln power and ln time, in turn."""
    card, networks = _of(x, list(points), like, keeps_card)
    found = []
    for name, of in points.items():
        for point in of:
            at = operate(card, networks[name], point.cap_w)
            found += [np.log(at.power_w / point.power_w), np.log(at.time_s / point.time_s)]
    return np.array(found)
