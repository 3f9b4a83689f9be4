"""What a sweep over power caps says: energy and time at every cap, the best cap, and the caps as good as it.

Minima are flat. The least of the measured means is therefore a cap chosen by noise; the best cap is read from a fit.
The fit is of the form of `powerd_core.gpu_physics` to ln E and ln t together:

    ln E = ln g + ln T + ln(w P_wait + b P_busy)         b = (1 - w) ((1 - m) / f + m), busy time over T
    ln t = ln T + ln(w + b)                              f the greatest clock with P_busy(f) <= cap

``u``, ``w``, ``m``, ``T`` and a gain ``g`` (1 within 3 %) belong to the training; ``P0``, ``fk``, ``kv`` and ``P_wait``
belong to the card. Their priors are weak, by the cards that are known, and narrow where a card says them. The form is
linearised at the fit. What is known of the curve is then a Gaussian process whose covariance is that of the form's
parameters.

A card may disobey the form. A deviation delta(cap) from it is a Gaussian process, too:

    delta ~ GP(0, a^2 exp(-(ln c - ln c')^2 / 2 l^2))    of ln E and of ln t

with a = 0.1 % for what no test would find, and another one where chi-squared rejects the form (p < 0.01), with a and l
by marginal likelihood (Rasmussen and Williams, "Gaussian processes for machine learning", 2006, 2.7 and 5.4.1).

Caps are as good as the best by the difference of ln M from the best cap's, as `powerd_analytics.frame.best` has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc, stdtrit

from powerd_analytics.frame.best import Best, best_of_curve, lowest
from powerd_analytics.frame.merits import Merit, merit_of
from powerd_core.errors import AnalysisError
from powerd_core.gpu_physics import Card

Values = NDArray[np.float64]

REJECTED_BELOW = 0.01
"""p of the form's chi-squared."""
BLOCK_SD = 0.012
"""By how much the level differs between blocks, before anything was measured."""
NOISE_SD, NOISE_FREEDOM = 0.01, 4.0
"""What is known of a run's noise beforehand, and as how many degrees of freedom it counts where repeats are few."""
ALIKE = 8.0
"""As how many degrees of freedom it counts, where repeats are few, that noise of energy and time are alike."""
ENOUGH_FREEDOM = 30
"""With so many degrees of freedom of their own, repeats alone tell the noise."""
LEAST_NOISE = 1e-4
AMPLITUDES = (0.003, 0.01, 0.02, 0.04, 0.08)
LENGTHS = (0.03, 0.08, 0.25)
"""a and l of the deviation from the form; l is of ln cap."""
UNSEEN, UNSEEN_LENGTH = 0.001, 0.03
"""a and l of what a form that is not rejected may still be off, as by the steps of a card's voltage."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one training at several caps, the same work in each."""

    cap_w: ArrayLike
    energy_j: ArrayLike
    time_s: ArrayLike
    block: ArrayLike | None = None
    """The number of each run's block, whose level the others do not share; None: one block."""


class BestCap(NamedTuple):
    """The best cap by one figure of merit."""

    cap_w: float
    value: float
    """The merit there, relative to the default; of saving minus loss in points."""
    u95: float
    best: Best
    """By the levels' indices."""
    as_good: tuple[float, ...]
    """Caps that cannot be told from it and are surely near it, itself among them."""
    open: tuple[float, ...]
    """Caps that cannot be told from it either, of which too little is known."""


@dataclass(frozen=True, slots=True)
class CapMeans:
    """Means of the runs at each cap [K], with the levels of blocks taken off, and how they vary together."""

    caps_w: Values
    counts: NDArray[np.intp]
    mean: Values
    """[2K] ln E of all, then ln t of all."""
    covariance: Values
    """[2K, 2K] of ``mean``."""
    noise: Values
    """[2, 2] covariance of a run's ln E and ln t."""
    freedom: float
    """Degrees of freedom of ``noise``."""


@dataclass(frozen=True, slots=True)
class CapCurve:
    """What is known of energy and time at each level [L] of the cap."""

    levels_w: Values
    default_w: float
    mean: Values
    """[2L] ln E (J), then ln t (s)."""
    covariance: Values
    """[2L, 2L]"""
    cells: CapMeans
    p_form: float
    """How probable a deviation from the form at least this large is, where the form is true; NaN: cannot be tested."""
    deviation: float
    """a of the deviation from the form that was added; 0: none."""

    @property
    def is_form_kept(self) -> bool:
        return not self.p_form < REJECTED_BELOW

    def values(self, metric: str) -> tuple[Values, Values, Values]:
        """Levels (W), the merit relative to the default, and its U95, each [L]."""
        merit = merit_of(metric)
        log_m, slopes = self._linear(merit)
        ratio, log_u95 = np.exp(log_m), self._factor(0.975) * self._sd(slopes, self._default)
        return self.levels_w, merit.printed(ratio), np.abs(merit.printed(ratio * (1 + log_u95)) - merit.printed(ratio))

    def best(self, metric: str, among: Sequence[float] = ()) -> BestCap:
        """The best level, or the best ``among`` some. Raises `AnalysisError` for a name that is no merit."""
        merit = merit_of(metric)
        log_m, slopes = self._linear(merit)
        at = np.flatnonzero(np.isin(self.levels_w, among)) if among else np.arange(len(log_m))
        i = int(at[lowest(log_m[at])])
        half = self._factor(0.975) * self._sd(slopes, i)
        also = None if self.is_form_kept else self._near_in_means(merit)
        best = best_of_curve(i, log_m - log_m[i], half, np.isin(self.levels_w, self.cells.caps_w), also)
        _, value, u95 = self.values(metric)
        as_good, unsure = (tuple(self.levels_w[list(rows)].tolist()) for rows in (best.as_good, best.open))
        return BestCap(float(self.levels_w[i]), float(value[i]), float(u95[i]), best, as_good, unsure)

    def draws(self, n: int, rng: np.random.Generator) -> tuple[Values, Values]:
        """ln E and ln t relative to the default, each [n, L], of curves drawn from what is known."""
        values, vectors = np.linalg.eigh(self.covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        both = self.mean + rng.standard_normal((n, len(values))) @ root.T
        log_e, log_t = np.split(both, 2, axis=1)
        i = self._default
        return log_e - log_e[:, [i]], log_t - log_t[:, [i]]

    @property
    def _default(self) -> int:
        return int(np.flatnonzero(self.levels_w == self.default_w)[0])

    def _factor(self, quantile: float) -> float:
        return float(stdtrit(self.cells.freedom, quantile))

    def _linear(self, merit: Merit) -> tuple[Values, Values]:
        """ln M [L] relative to the default, and its derivatives [L, 2L] by the curve's ln E and ln t."""
        log_e, log_t = np.split(self.mean, 2)
        i, n = self._default, len(log_e)
        log_e, log_t = log_e - log_e[i], log_t - log_t[i]
        slopes = np.zeros((n, 2 * n))
        each = np.arange(n)
        for first, slope in zip((0, n), merit.slopes(log_e, log_t), strict=True):
            slopes[each, first + each] += slope
            slopes[:, first + i] -= slope
        return merit.logarithm(log_e, log_t), slopes

    def _sd(self, slopes: Values, i: int) -> Values:
        """[L] standard uncertainty of the difference of ln M from that at level ``i``."""
        differences = slopes - slopes[i]
        sd: Values = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", differences, self.covariance, differences), 0.0))
        return sd

    def _near_in_means(self, merit: Merit) -> NDArray[np.bool_]:
        """[L] whether the mean of the runs at a level is within chance of the least mean: Student's t, the spread
        pooled over all caps. It needs no form."""
        cells, near = self.cells, np.zeros(len(self.levels_w), bool)
        log_e, log_t = np.split(cells.mean, 2)
        at = np.searchsorted(self.levels_w, cells.caps_w)
        log_e, log_t = log_e - self.mean[self._default], log_t - self.mean[len(self.levels_w) + self._default]
        log_m = merit.logarithm(log_e, log_t)
        slopes = np.stack(merit.slopes(log_e, log_t), axis=1)
        i = lowest(log_m)
        variance = np.einsum("ij,jk,ik->i", slopes, cells.noise, slopes)
        sd = np.sqrt(variance * (1 / cells.counts + 1 / cells.counts[i]))
        near[at] = log_m - log_m[i] <= self._factor(0.975) * sd
        return near


def fit(runs: Runs, levels_w: Sequence[float], default_w: float) -> CapCurve:
    """The curve that runs at some of the levels tell.

    ``levels_w`` are the caps to choose from, the default among them.
    Raises `AnalysisError` for runs at no level, at fewer than three caps, or without joules and seconds above 0.
    """
    cells = cells_of(runs, levels_w)
    return curve_of(cells, levels_w, default_w)


def curve_of(
    cells: CapMeans,
    levels_w: Sequence[float],
    default_w: float,
    *,
    guarded: bool = False,
    like: Card | None = None,
) -> CapCurve:
    """The curve of cells' means; ``guarded``: with a deviation from the form, whether the form is rejected or not;
    ``like``: a card whose constants are about those of this one."""
    levels = _levels(levels_w)
    if not (levels == default_w).any():
        raise AnalysisError(f"the default of {default_w:g} W is none of the levels: add it")
    form = _Form(levels, default_w, math.exp(cells.mean[len(cells.caps_w) :].min()), like)
    at = np.searchsorted(levels, cells.caps_w)
    rows = np.concatenate([at, len(levels) + at])
    theta, jacobian = form.most_probable(cells, rows)
    misfit, freedom = _misfit(cells, form, theta, jacobian[rows])
    p = float(fdtrc(freedom, 2 * cells.freedom, misfit / freedom)) if freedom >= 1 else math.nan
    mean, covariance = form.prior_curve(theta, jacobian)
    if not guarded:  # The other deviation is never less than AMPLITUDES[0].
        covariance = covariance + _deviation(levels, UNSEEN_LENGTH, UNSEEN)
    prior = mean, covariance
    if guarded or p < REJECTED_BELOW:
        process = _guarded(prior, cells, rows, levels)
        return CapCurve(levels, default_w, process.mean, process.covariance, cells, p, process.deviation)
    process = _conditioned(prior, cells, rows)
    scale = max(1.0, misfit / freedom) if freedom >= 1 else 1.0
    return CapCurve(levels, default_w, process.mean, scale * process.covariance, cells, p, 0.0)


def cells_of(runs: Runs, levels_w: Sequence[float]) -> CapMeans:
    """Runs made means by cap: generalised least squares with blocks as random effects."""
    levels = _levels(levels_w)
    cap, energy, time = (np.asarray(x, np.float64) for x in (runs.cap_w, runs.energy_j, runs.time_s))
    block = np.zeros(len(cap), np.intp) if runs.block is None else np.unique(runs.block, return_inverse=True)[1]
    if not len(cap) == len(energy) == len(time) == len(block):
        raise AnalysisError("caps, joules, seconds and blocks of runs: needs as many of each")
    if not (np.isfinite(energy) & np.isfinite(time) & (energy > 0) & (time > 0)).all():
        raise AnalysisError("a run has no joules or no seconds above 0: leave it out")
    if not np.isin(cap, levels).all():
        raise AnalysisError("a run was made at a cap that is none of the levels: leave it out, or add the level")
    caps, which, counts = np.unique(cap, return_inverse=True, return_counts=True)
    if len(caps) < 3:
        raise AnalysisError(f"runs at {len(caps)} caps tell no curve: needs at least three")
    y = np.log(np.stack([energy, time], axis=1))
    in_cell, in_block = which[:, None] == np.arange(len(caps)), block[:, None] == np.arange(block.max() + 1)
    noise, freedom = _noise(y, np.hstack([in_cell, in_block]).astype(float))
    # The noise's principal axes make ln E and ln t two problems of their own; the blocks' variance has no axes.
    variances, axes = np.linalg.eigh(noise)
    rotated, means, covariances = y @ axes, [], []
    shared = BLOCK_SD**2 * (in_block @ in_block.T.astype(float))
    for column, variance in zip(rotated.T, variances, strict=True):
        weighted = np.linalg.solve(shared + variance * np.eye(len(cap)), in_cell.astype(float))
        covariance = np.linalg.inv(in_cell.T @ weighted)
        means.append(covariance @ (weighted.T @ column))
        covariances.append(covariance)
    mean = axes @ np.stack(means)
    covariance = np.einsum("ai,bi,ijk->ajbk", axes, axes, np.stack(covariances))
    return CapMeans(caps, counts, mean.ravel(), covariance.reshape(2 * len(caps), -1), noise, freedom)


def _noise(y: Values, effects: Values) -> tuple[Values, float]:
    """Covariance [2, 2] of what caps and blocks leave of ln E and ln t [N, 2], and its degrees of freedom.

    Where repeats are few, one variance is estimated from both with what is known beforehand, and the covariance is
    drawn towards it."""
    residual = y - effects @ np.linalg.lstsq(effects, y, rcond=None)[0]
    freedom = float(len(y) - int(np.linalg.matrix_rank(effects)))
    squares = residual.T @ residual
    if freedom < ENOUGH_FREEDOM:
        both = NOISE_FREEDOM + 2 * freedom
        variance = (NOISE_FREEDOM * NOISE_SD**2 + float(np.trace(squares))) / both
        squares, freedom = squares + ALIKE * variance * np.eye(2), freedom + ALIKE
    return squares / freedom + LEAST_NOISE**2 * np.eye(2), freedom


def _levels(levels_w: Sequence[float]) -> Values:
    levels = np.unique(np.asarray(levels_w, np.float64))
    if len(levels) < 3 or not (np.isfinite(levels) & (levels > 0)).all():
        raise AnalysisError("levels of the cap: needs at least three, in watts above 0")
    return levels


# The form, for many sets of parameters at once


class _Prior(NamedTuple):
    mean: float
    sd: float


LEAST_F = 0.1
"""Least clock of a card, as a share of its greatest."""
LOG_TIME = 3
"""Which parameter is ln T."""


OF_A_CARD = (0.1, 0.02, 0.15, 0.1)
"""Standard deviations of ln P0, fk, ln kv and ln P_wait around the constants of a card that was fitted: what a sweep
leaves open, and by how much two cards of one kind differ."""


def _of_any_card(default_w: float) -> list[_Prior]:
    """Shares of the default cap, and constants, of the cards that `gpu_physics` knows."""
    return [
        _Prior(math.log(0.2 * default_w), 0.4),
        _Prior(0.5, 0.08),
        _Prior(math.log(1.4), 0.5),
        _Prior(math.log(0.11 * default_w), 0.4),
    ]


def _of_card(card: Card) -> list[_Prior]:
    means = (math.log(card.floor_w), card.knee, math.log(card.voltage), math.log(card.wait_w))
    return [_Prior(mean, sd) for mean, sd in zip(means, OF_A_CARD, strict=True)]


class _Form:
    """The form at given levels, with what is known of its parameters beforehand.

    Parameters: ln u, logit w, logit m, ln T, ln g, ln P0, fk, ln kv, ln P_wait.
    """

    def __init__(self, levels_w: Values, default_w: float, least_time_s: float, like: Card | None) -> None:
        self.levels_w, self.least_f = levels_w, LEAST_F
        of_card = _of_any_card(default_w) if like is None else _of_card(like)
        priors = [
            _Prior(math.log(0.7 * default_w), 0.6),
            _Prior(-1.7, 1.3),
            _Prior(0.3, 1.0),
            _Prior(math.log(least_time_s) - 0.05, 1.0),
            _Prior(0.0, 0.03),
            *of_card,
        ]
        self.prior_mean, self.prior_sd = np.array(priors).T

    def at(self, theta: Values) -> Values:
        """[..., 2L] ln E and ln t of sets of parameters [..., P]."""
        u, w, m, log_time, log_gain, floor_w, knee, kv, wait_w = np.moveaxis(theta[..., None], -2, 0)
        u, floor_w, kv, wait_w = np.exp(u), np.exp(floor_w), np.exp(kv), np.exp(wait_w)
        w, m = 1 / (1 + np.exp(-w)), 1 / (1 + np.exp(-m))
        f = self._clock(u, floor_w, knee, kv)
        v = (1 + kv * np.maximum(0.0, f - knee) ** 2) / (1 + kv * (1 - knee) ** 2)
        busy = (1 - w) * ((1 - m) / f + m)
        log_t = log_time + np.log(w + busy)
        log_e = log_gain + log_time + np.log(w * wait_w + busy * (floor_w + u * f * v * v))
        return np.concatenate([log_e, log_t], axis=-1)

    def _clock(self, u: Values, floor_w: Values, knee: Values, kv: Values) -> Values:
        """`gpu_physics.clock_at` for arrays: Newton's method from above, the power being convex in the clock."""
        scale = u / (1 + kv * (1 - knee) ** 2) ** 2
        target_w = np.minimum(self.levels_w - floor_w, u)
        f = np.ones(np.broadcast_shapes(target_w.shape, scale.shape))
        for _ in range(20):
            above = np.maximum(0.0, f - knee)
            v = 1 + kv * above * above
            step = (scale * f * v * v - target_w) / (scale * v * (v + 4 * f * kv * above))
            f = np.maximum(f - step, self.least_f)
            if np.abs(step).max() < 1e-11:
                break
        return f

    def jacobian(self, theta: Values, here: Values) -> Values:
        """[2L, P] by forward differences."""
        step = 1e-6
        moved = theta + step * np.eye(len(theta))
        return (self.at(moved) - here).T / step

    def most_probable(self, cells: CapMeans, rows: NDArray[np.intp]) -> tuple[Values, Values]:
        """Parameters of the greatest posterior density, by Levenberg and Marquardt's method, and the Jacobian there."""
        whiten = np.linalg.inv(np.linalg.cholesky(cells.covariance))
        best: tuple[float, Values, Values] | None = None
        for start in self._starts(cells, rows):
            found = self._descended(start, cells, rows, whiten)
            if best is None or found[0] < best[0] - 1e-6:
                best = found
        assert best is not None
        return best[1], best[2]

    def _starts(self, cells: CapMeans, rows: NDArray[np.intp]) -> Values:
        """The two of a coarse grid that come nearest, T as the seconds want it."""
        grid = np.array([(u, w, m) for u in (-0.5, 0.0, 0.3, 0.6) for w in (-2.5, -1.2, 0.2) for m in (-0.8, 0.3, 1.3)])
        starts = np.tile(self.prior_mean, (len(grid), 1))
        starts[:, :3] = grid
        starts[:, 0] += self.prior_mean[0]
        n = len(cells.caps_w)
        residual = cells.mean - self.at(starts)[:, rows]
        shift = residual[:, n:].mean(axis=1)
        starts[:, LOG_TIME] += shift
        squares = ((residual - shift[:, None]) ** 2).sum(axis=1)
        nearest: Values = starts[np.argsort(squares, kind="stable")[:2]]
        return nearest

    def _descended(
        self, theta: Values, cells: CapMeans, rows: NDArray[np.intp], whiten: Values
    ) -> tuple[float, Values, Values]:
        """Cost, parameters and Jacobian where the descent from a start ends."""

        def residuals(at: Values, curve: Values) -> Values:
            prior = (at - self.prior_mean) / self.prior_sd
            return np.concatenate([whiten @ (cells.mean - curve[rows]), -prior])

        damping, curve = 1e-3, self.at(theta)
        r = residuals(theta, curve)
        cost = float(r @ r)
        jacobian = self.jacobian(theta, curve)
        for _ in range(60):
            a = np.vstack([whiten @ jacobian[rows], np.diag(1 / self.prior_sd)])
            normal, gradient = a.T @ a, a.T @ r
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = theta + np.clip(step, -1.0, 1.0)
            trial_curve = self.at(trial)
            trial_r = residuals(trial, trial_curve)
            trial_cost = float(trial_r @ trial_r)
            if not trial_cost < cost:
                if damping > 1e8:
                    break
                damping *= 8
                continue
            gained = cost - trial_cost
            theta, curve, r, cost = trial, trial_curve, trial_r, trial_cost
            jacobian = self.jacobian(theta, curve)
            damping = max(damping / 10, 1e-9)
            if gained < 1e-6:
                break
        return cost, theta, jacobian

    def prior_curve(self, theta: Values, jacobian: Values) -> tuple[Values, Values]:
        """Mean [2L] and covariance [2L, 2L] of the curve before anything was measured, the form being linear."""
        return self.at(theta) + jacobian @ (self.prior_mean - theta), (jacobian * self.prior_sd**2) @ jacobian.T


def _misfit(cells: CapMeans, form: _Form, theta: Values, jacobian: Values) -> tuple[float, float]:
    """chi-squared of the cells' means around the form, and its degrees of freedom: cells less the effective number of
    parameters, a parameter that its prior holds counting in part."""
    at = np.searchsorted(form.levels_w, cells.caps_w)
    curve = form.at(theta)[np.concatenate([at, len(form.levels_w) + at])]
    weights = np.linalg.inv(cells.covariance)
    residual = cells.mean - curve
    told = jacobian.T @ weights @ jacobian
    effective = float(np.trace(np.linalg.solve(told + np.diag(form.prior_sd**-2), told)))
    return float(residual @ weights @ residual), len(residual) - effective


# What is known of the curve, as a Gaussian process


class _Process(NamedTuple):
    mean: Values
    covariance: Values
    log_likelihood: float
    deviation: float


def _conditioned(
    prior: tuple[Values, Values], cells: CapMeans, rows: NDArray[np.intp], deviation: float = 0.0
) -> _Process:
    """The process after the cells were seen (Rasmussen and Williams, algorithm 2.1)."""
    mean, covariance = prior
    seen = covariance[np.ix_(rows, rows)] + cells.covariance
    lower = np.linalg.cholesky(seen)
    residual = np.linalg.solve(lower, cells.mean - mean[rows])
    gain = np.linalg.solve(lower, covariance[rows])
    log_likelihood = -0.5 * float(residual @ residual) - float(np.log(np.diag(lower)).sum())
    return _Process(mean + gain.T @ residual, covariance - gain.T @ gain, log_likelihood, deviation)


def _deviation(levels_w: Values, length: float, amplitude: float) -> Values:
    """[2L, 2L] covariance of the deviation from the form."""
    distance = np.subtract.outer(np.log(levels_w), np.log(levels_w))
    return np.asarray(np.kron(np.eye(2), amplitude**2 * np.exp(-0.5 * (distance / length) ** 2)), np.float64)


def _guarded(prior: tuple[Values, Values], cells: CapMeans, rows: NDArray[np.intp], levels_w: Values) -> _Process:
    """The process with a deviation from the form, as large and as smooth as the cells make most likely."""
    mean, covariance = prior
    best: _Process | None = None
    for length in LENGTHS:
        shape = _deviation(levels_w, length, 1.0)
        for amplitude in AMPLITUDES:
            process = _conditioned((mean, covariance + amplitude**2 * shape), cells, rows, amplitude)
            if best is None or process.log_likelihood > best.log_likelihood:
                best = process
    assert best is not None
    return best
