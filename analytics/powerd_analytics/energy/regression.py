"""The regression behind a line's model, in the symbols of docs/explanation/energy.md.

    y_k = sum over columns c of A[k, c] p[c] + (dy_k / d timing) timing + drift(t_k) + r_k

Three values are passed on, none of which changes: the `FitDesign` (A, y and the readings' weights, and of these N = A'A
and A'y), the `Prior` (what is believed of the unknowns beforehand, as a factor L of their covariance), and the `Fit`
(the noise s2 that makes the evidence greatest, and the unknowns there). The unknowns u are the power of each of the q
columns less the mean power of the readings, the three of the timing (place, lag, time constant), and the drift.
Of lines that see power alike the first says where the others begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.model import (
    COMES_S,
    Beginning,
    LineModel,
    Posterior,
    Residual,
    Sample,
    integral_of,
    most_lag_ns,
)
from powerd_analytics.energy.response import Response, place_limit_ns
from powerd_analytics.energy.states import StateCells, States
from powerd_analytics.runs.signals import parts_between
from powerd_client.signals.signal import Signal

Values = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_ROWS, MOST_ENTRIES, LEAST_ROWS = 1 << 15, 1 << 20, 1 << 12
"""Readings that the regression sees, entries of its design, and readings that it sees of any number of columns."""
STRETCHES = 12
RELAXATIONS_S = (0.0, 1e-3, 4e-3)
"""Time constants with which power comes to a state's level from that of the state before: regulators, capacitors."""
SMOOTHNESS = (0.05, 0.2)
"""Standard deviations of the step from one bin of a state to the next, as shares of the power's scale."""
HYPOTHESES = tuple(product(RELAXATIONS_S, SMOOTHNESS))
BEGINNINGS = (1, 3, 5)
"""Numbers of those with which the fit begins: the first for how much readings count, the best for the timing."""
BELIEVED = 500.0
"""Independent readings' worth of evidence that is believed of one hypothesis against another."""
BELIEVED_AT_ALL = 1e-3
"""Weight of a hypothesis below which it is not looked at again."""
LEVEL_SHARE = 0.5
"""Least standard deviation of a state's level beforehand, as a share of the mean power."""
REST_SHARE = 0.5
"""Standard deviation of a rest's level about what all rests have in common, as a share of that of any level: while
nothing is marked, less goes on."""
LENGTH_SHARE = 0.25
"""Standard deviation of the power by which an interval differs that is twice as long as usual, as a share of the mean
power."""
DRIFTS, DRIFT_SHARE = 4, 0.03
"""Polynomials (Legendre's) of the slow drift, and their standard deviation as a share of the power's scale."""
OTHERS = 3 + DRIFTS
"""Unknowns that are no power of a column."""
LEAST_SHARE = 0.01
"""Least share of phases in a reading that is believed to tell how much phases may differ."""
LEAST_NOISE = 0.01
"""Least standard deviation of a single phase's power about that of its kind, as a share of the readings' range: no two
take quite the same way. A reading that sees several of them has the less of it."""
MISFIT = 5.0
"""Factor of the variance that the prior of the states' power leaves open: how power moves within a phase is nobody's
prior. What the readings' noise leaves open has none."""
LOCAL, LEAST_WEIGHT = 64, 1 / 256
"""Readings over which the size of what is left over is looked at, and the least weight of those where it is large."""
STARTS = (0.0, -0.25, -0.6, -1.2, 0.3)
"""Places less the lag from which the fit begins, in standard deviations of what is known of them; 0 is the first."""
ROUNDS = 2
"""Of finding the power at a timing, and the timing at that power."""
TAU_SHARE = 0.06
"""Standard uncertainty of a low-pass's time constant that was not identified."""
LEAST_LAG_S = 0.12e-3
"""Least standard deviation of the place less the lag: readings tell it only as far as power steps at marks and nowhere
else."""
ORDER, READINGS_OF_ORDER = 16, 20
"""Readings before one that may lead one to expect what it leaves over, and all that it takes for each of them."""
MOST_LAGS, LAGS_OF = 256, 10
"""Readings over which what is left over may be correlated, at most, and as a part of all of them."""
STANDS_OUT = 2.0
"""Standard deviations of a correlation of independent values beyond which it counts."""
LEAST_KEPT = 0.3
"""Least correlation, from one reading to the next, of the part of the residual that is no noise."""
GAINS_APART = 0.01
"""Standard deviation of the gain of one line of a source as a share of that of another one of the same power."""
LEAST_APART = 1e-3
"""Least standard deviation of a block of one line about that of the other, as a share of the power's scale."""
BLOCKS, LEAST_BLOCK, LEAST_IN = 16, 10.0, 10
"""Of another line in one stretch, at most; how long each of them is at least, as a multiple of how far the line's
moment may be off; and how many readings it has at least, but those of a counter."""
PLACES = np.linspace(-1, 1, 9)
"""That are looked at of the windows of another line, as shares of how far they may lie beside their timestamps."""
ALIKE, DISAGREES = 0.5, 3.0
"""Share of the mean power, and standard deviations of how much two gains may differ: a line that is farther off
measures another power."""
NOISES = np.geomspace(1e-9, 1.0, 109)
"""Variances that are tried, over the square of the power's scale,"""
FIRST_NOISES = 6
"""and how many of them to begin with, spread over all: there may be more than one summit."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """How much each reading of a sample counts."""

    weight: Values
    """[r] 0 where a reading is not good, 1 where what is left over is as large as usual."""
    a: Values = field(default_factory=lambda: np.zeros(0))
    """Coefficients of the autoregression of what is left over: what readings before one lead one to expect of it."""
    blocks: tuple[Block, ...] = ()
    """What other lines say of the same power,"""
    noise2: float = 0.0
    """and the variance of a reading's noise, which theirs counts in relation to; 0 while it is not known."""

    def of(self, X: Values, rows: slice) -> Values:
        """Values [r] or [r, c] of some readings in a row as the regression takes them."""
        X = (X.T * np.sqrt(self.weight[rows])).T
        left = X.copy() if len(self.a) else X
        for j, a_j in enumerate(self.a.tolist(), 1):
            left[j:] -= a_j * X[:-j]
        return left


@dataclass(frozen=True, slots=True)
class Block:
    """Blocks of seconds [b] of another line, in standard deviations that are independent."""

    B: Values
    """[b, unknowns] design"""
    y: Values
    """[b] power less the mean power of the readings,"""
    power: Values
    """and power."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of the unknowns beforehand: they are L z, where all z are independent with a standard deviation
    of 1. Of L the parts that are not 0.

    z are the level of each state, what all rests have in common, the steps between a state's bins, the power by
    length, the timing, and the drift.
    """

    hypothesis: int
    """Its number in `HYPOTHESES`."""
    mean_w: float
    scale_w: float
    """S: standard deviation of a level."""
    least_noise_w: float
    level: Values
    """[bins, states + 1] power of each bin by levels."""
    step: tuple[Values, ...]
    """[b, b - 1] of each state, by steps from one bin to the next."""
    by_length: int
    """Columns behind those of the bins, `States.by_length`."""
    step_w: Values
    """[bins] scale of a step,"""
    smoothness: float
    """and its standard deviation as a share of that."""
    u_timing: Values
    """Standard uncertainties of place (s), lag (s) and time constant (a share of it)."""
    of_sensor: float
    """Share of what is believed of the place that is the sensor's: its clock is tied anew in each run."""

    @property
    def columns(self) -> int:
        return len(self.level) + self.by_length

    @property
    def mean(self) -> Values:
        """[q] the mean power of the readings in each bin, and none by length."""
        return np.append(np.full(len(self.level), self.mean_w), np.zeros(self.by_length))

    @property
    def _alone(self) -> Values:
        """Standard deviations of the unknowns that are no power of a bin."""
        of_length = np.full(self.by_length, LENGTH_SHARE * abs(self.mean_w))
        drifts = np.full(DRIFTS, DRIFT_SHARE * self.scale_w)
        return np.concatenate([of_length, np.maximum(self.u_timing, 1e-9), drifts])

    def times(self, X: Values) -> Values:
        """X L [r, z] of X [r, unknowns]."""
        first, bins = np.cumsum([0, *map(len, self.step)]), len(self.level)
        steps = [
            X[:, a : a + len(step)] @ (self.smoothness * step)
            for a, step in zip(first.tolist(), self.step, strict=False)
        ]
        return np.concatenate([X[:, :bins] @ self.level, *steps, X[:, bins:] * self._alone], axis=1)

    def applied(self, Z: Values) -> Values:
        """L Z [unknowns, c] of Z [z, c]."""
        power, z = self.level @ Z[: self.level.shape[1]], self.level.shape[1]
        first = 0
        for step in self.step:
            power[first : first + len(step)] += self.smoothness * (step @ Z[z : z + step.shape[1]])
            first, z = first + len(step), z + step.shape[1]
        return np.concatenate([power, self._alone[:, None] * Z[z:]])


@dataclass(frozen=True, slots=True)
class FitDesign:
    """What the readings of a sample say: y = A u + r, at a timing."""

    sample: Sample
    weighing: Weighing
    timing: Values
    """[3] at which A holds; the unknowns are differences from it."""
    A: Values
    """[r, unknowns]"""
    y: Values
    """[r] less the mean power."""
    seen: tuple[Ints, ...]
    """Unknowns that the readings of each stretch see."""
    N_own: Values
    """A'A of the weighted readings,"""
    N: Values
    """and of the blocks of other lines too,"""
    Ay: Values
    """A'y,"""
    yy: float
    """y'y."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The posterior of the unknowns, if the prior were right and what is left over noise."""

    design: FitDesign
    prior: Prior
    u: Values
    """[unknowns] their means, as differences from the mean power and from the design's timing."""
    s2: float
    """Variance of the noise, the ``at``-th of those that are tried."""
    at: int
    M: Values
    """[z, z] L'NL + s2: the posterior's covariance is s2 L M^-1 L',"""
    with_timing: Values
    """[unknowns, 3] of which these are the timing's columns."""
    evidence: float
    """Logarithm of the probability of the readings."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The fits of one design by several hypotheses, each as its evidence says."""

    fits: tuple[Fit, ...]
    """The one with the most evidence first,"""
    weight: Values
    """[fits] and their weights."""

    @property
    def best(self) -> Fit:
        return self.fits[0]

    @property
    def u(self) -> Values:
        """[unknowns]"""
        return np.asarray(self.weight @ np.array([f.u for f in self.fits]))

    @property
    def spread(self) -> Values:
        """[unknowns, fits] by how much the fits differ; its product with its transpose is a covariance."""
        return np.asarray((np.array([f.u for f in self.fits]) - self.u).T * np.sqrt(self.weight))

    @property
    def by_timing(self) -> Values:
        """[q, 3] watts by which each column goes with each of the timing."""
        q, timing = self.best.prior.columns, self._with_timing
        return np.asarray(timing[:q] @ np.linalg.pinv(timing[q : q + 3]))

    @property
    def power(self) -> Values:
        """[q] less the mean power, at the design's timing."""
        q = self.best.prior.columns
        return np.asarray(self.u[:q] - self.by_timing @ self.u[q : q + 3])

    @property
    def next_timing(self) -> Values:
        """[3] where the readings want it, within what is believed. Power does not lead its marks."""
        q, u_timing = self.best.prior.columns, self.best.prior.u_timing
        timing = self.best.design.timing + np.clip(self.u[q : q + 3], -u_timing, u_timing)
        with_lag = self._with_timing[q : q + 3, 1]
        timing = timing - with_lag / max(float(with_lag[1]), 1e-18) * min(float(timing[1]), 0.0)
        return np.asarray(np.clip(timing, -np.sqrt(3) * u_timing, np.sqrt(3) * u_timing))

    @property
    def _with_timing(self) -> Values:
        """[unknowns, 3] covariances with the timing."""
        q, spread = self.best.prior.columns, self.spread
        each = sum(w * f.with_timing for w, f in zip(self.weight.tolist(), self.fits, strict=True))
        return np.asarray(each + spread @ spread[q : q + 3].T)


def fit_line(
    signal: Signal,
    states: States,
    clock_bound_ns: float = 0.0,
    others: Sequence[Signal] = (),
    beginning: Beginning | None = None,
) -> Posterior:
    """What a line with two good readings or more tells of the power. The ``others`` measure the same power; the
    ``beginning`` is that of a line that sees power alike."""
    response = Response.of(signal)
    states = states.seen_by(max(signal.spacing_ns * 1e-9, response.width_s))
    sample = sample_of(signal, states, response)
    priors = priors_of(sample, signal, states, response, clock_bound_ns)
    prior = priors[BEGINNINGS[0]]
    if sample.readings < 2:
        return _without_readings(signal, states, response, prior)
    first = fit(
        design(sample, response, prior, initial_weighing(sample, states, response, prior)),
        prior,
        None if beginning is None else beginning.at,
    )
    weighing = reweight(first, response, prior, signal.spacing_ns * 1e-9)
    believed = list(others)
    while True:
        blocks = tuple(block_of(other, sample, states, prior) for other in believed)
        most, begun = _fit_timing(sample, response, priors, replace(weighing, blocks=blocks), first, beginning)
        agreeing = [o for o, block in zip(believed, blocks, strict=True) if _gain_off(block, most.u) <= DISAGREES]
        if len(agreeing) == len(believed):
            return _posterior(most, begun, signal, states, response)
        believed = agreeing


def _fit_timing(
    sample: Sample,
    response: Response,
    priors: Sequence[Prior],
    weighing: Weighing,
    first: Fit,
    beginning: Beginning | None,
) -> tuple[Mixture, Beginning]:
    """The fits at the timing with the most evidence, and from where they began."""
    if beginning is None:
        starts = _starts(sample, response, [priors[number] for number in BEGINNINGS], weighing, first.at)
        start = max(starts, key=_credible)
        timing, hypotheses = start.design.timing, tuple(range(len(priors)))
    else:
        start, timing, hypotheses = first, beginning.timing, beginning.hypotheses
    began, power, rounds = timing, start.u[: first.prior.columns], []
    for _ in range(ROUNDS):
        says = design(sample, response, first.prior, weighing, timing, power)
        rounds.append(mixture([fit(says, priors[number], start.at) for number in hypotheses]))
        hypotheses = tuple(f.prior.hypothesis for f in rounds[-1].fits)
        timing, power = rounds[-1].next_timing, rounds[-1].power
    most = max(rounds, key=lambda of: of.best.evidence)
    bent = _bent(most, starts) / first.prior.scale_w if beginning is None else beginning.bent
    return most, Beginning(began, hypotheses, first.at, bent)


# -- the readings


def sample_of(signal: Signal, states: States, response: Response) -> Sample:
    """All readings where they are few, else stretches all over the run and where rare states are."""
    runs: list[tuple[Ints, Values, NDArray[np.bool_]]] = []
    done_ns = -(1 << 62)
    for low, high in _wanted(signal, states):
        for piece in parts_between(signal, low, high):
            # Pieces of a signal in slices overlap by their margins, and meet at a reading.
            a, b = np.searchsorted(piece.t_ns, [max(low, done_ns), high])
            if b - a < 2:
                continue
            t_ns, value = piece.t_ns[a:b].copy(), piece.value[a:b]  # copies: the rest of the slice is not kept
            if signal.is_counter:
                watts, good = np.diff(value) / (np.diff(t_ns) * 1e-9), ~piece.broken[a : b - 1]
            else:
                watts, good = value.copy(), np.ones(b - a, bool)
            if t_ns[0] == done_ns:
                again = 0 if signal.is_counter else 1
                before_ns, watts_before, good_before = runs.pop()
                t_ns = np.append(before_ns, t_ns[1:])
                watts, good = np.append(watts_before, watts[again:]), np.append(good_before, good[again:])
            runs.append((t_ns, watts, good))
            done_ns = int(t_ns[-1])
    return _sample(runs, states, response)


def _wanted(signal: Signal, states: States) -> list[tuple[int, int]]:
    """Stretches of time, in order."""
    columns = max(int(states.first_column[-1]), 1)
    budget = int(np.clip(MOST_ENTRIES // columns, LEAST_ROWS, MOST_ROWS))
    if not len(signal.cuts_ns) and len(signal) <= budget:
        return [(-(1 << 61), 1 << 61)]
    first, last = int(signal.t_ns[0]), int(signal.t_ns[-1])
    rare = np.unique(states.state, return_index=True)[1]
    rare = rare[(rare > 0) & (rare < len(states.state) - 1)]
    spread = np.linspace(first, last, STRETCHES + 2).astype(np.int64)
    moments = np.concatenate([spread, states.edge_ns[rare - 1]])
    half = int(budget / len(moments) * signal.spacing_ns / 2)
    return _joined([(int(m) - half, int(m) + half) for m in np.sort(moments)])


def _sample(runs: Sequence[tuple[Ints, Values, NDArray[np.bool_]]], states: States, response: Response) -> Sample:
    """Of stretches: times [n], power [r] of the readings, or of what a counter has between two, and whether it is
    good."""
    if not runs:
        cells = StateCells(0, np.array([0.0, 1e-9]), np.zeros(1, np.int64))
        return Sample(cells, np.zeros(0), np.zeros(0), np.zeros(0, bool), (), np.zeros((0, 2), np.int64))
    before, behind = (int(x * 1e9) + 5_000_000 for x in response.margin_s)
    spans = np.array([t_ns[[0, -1]] for t_ns, _, _ in runs])
    around = [states.cells(*ends) for ends in _joined([(low - before, high + behind) for low, high in spans.tolist()])]
    origin = around[0].origin_ns
    # Whole nanoseconds: a reading at an edge is at it.
    at_s = [(np.rint(c.at_s * 1e9) + (c.origin_ns - origin)) * 1e-9 for c in around]
    at_s = [*(at[:-1] for at in at_s[:-1]), at_s[-1]]
    columns = (np.concatenate([getattr(c, name) for c in around]) for name in ("column", "longer", "length_column"))
    cells = StateCells(origin, np.concatenate(at_s), *columns)
    first = np.cumsum([0, *(len(t_ns) for t_ns, _, _ in runs)]).tolist()
    rows = tuple(slice(a, a + len(watts)) for a, (_, watts, _) in zip(first, runs, strict=False))
    t_s = cells.since(np.concatenate([t_ns for t_ns, _, _ in runs]))
    # Between two stretches a counter has what is no row of either.
    watts, is_good = np.zeros(rows[-1].stop), np.zeros(rows[-1].stop, bool)
    for own, (_, power, good) in zip(rows, runs, strict=True):
        watts[own], is_good[own] = power, good
    return Sample(cells, t_s, watts, is_good, rows, spans)


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in spans:
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def initial_weighing(sample: Sample, states: States, response: Response, prior: Prior) -> Weighing:
    """Less weight for readings that see where a state follows another one for once: power comes from there in a way
    that is not the state's, and one such reading of few would turn all others round."""
    begin_s, rare_s = sample.cells.at_s[:-1], sample.cells.since(states.rare_ns)
    is_new = np.searchsorted(rare_s, begin_s, "right") > np.searchsorted(rare_s + COMES_S, begin_s, "right")
    away_w = LEVEL_SHARE * prior.scale_w * response.seen(sample.cells, is_new.astype(np.float64), sample.t_s)
    return Weighing(
        sample.is_good.astype(np.float64) * np.maximum(1 / (1 + (away_w / prior.least_noise_w) ** 2), LEAST_WEIGHT)
    )


def reweight(fit: Fit, response: Response, prior: Prior, spacing_s: float) -> Weighing:
    """Less weight for readings where what a first fit leaves over is larger than usual for seconds: while a GPU starts
    up, say, which says nothing of the training. And where a reading sees most of what those before it saw, it counts
    for what these do not lead one to expect of what is left over, an autoregression (Cochrane and Orcutt, 1949;
    coefficients by Yule and Walker)."""
    sample, weight = fit.design.sample, fit.design.weighing.weight
    left = fit.design.y - fit.design.A[:, : prior.columns] @ fit.u[: prior.columns]
    rounding2, near = (1e-9 * prior.scale_w) ** 2, np.zeros(len(left))
    for rows in sample.rows:
        x, w = left[rows], weight[rows]
        ends = np.clip(np.arange(len(x))[:, None] + [-LOCAL // 2, LOCAL // 2 + 1], 0, len(x))
        upto = np.concatenate([np.zeros((1, 2)), np.cumsum(np.column_stack([x**2 * w, w]), axis=0)])
        square, weights = (upto[ends[:, 1]] - upto[ends[:, 0]]).T
        near[rows] = square / np.maximum(weights, LEAST_WEIGHT)
    noise2 = max(float(np.median(np.concatenate([near[rows] for rows in sample.rows]))), rounding2)
    weight = weight * np.clip(noise2 / np.maximum(near, rounding2), LEAST_WEIGHT, 1.0)
    # How many readings before one saw a part of what it sees.
    saw = 0 if response.is_counter else int(response.seen_s / spacing_s + 1e-6) - 1
    order = min(ORDER, sample.readings // READINGS_OF_ORDER, saw)
    if order < 1:
        return Weighing(weight, noise2=noise2)
    series = [left[rows] * np.sqrt(weight[rows]) for rows in sample.rows]
    lags = range(order + 1)
    products = np.array([sum(float(x[j:] @ x[: max(len(x) - j, 0)]) for x in series) for j in lags])
    # The noise that is believed beforehand is not correlated.
    products[0] += sample.readings * prior.least_noise_w**2
    apart = np.abs(np.subtract.outer(np.arange(order), np.arange(order)))
    a = np.linalg.solve(products[apart], products[1:])
    return Weighing(weight, a, noise2=noise2 * (1 - float(a @ products[1:]) / products[0]))


# -- what is believed beforehand


def priors_of(sample: Sample, signal: Signal, states: States, response: Response, clock_bound_ns: float) -> list[Prior]:
    """Of all hypotheses, by what the readings show together, and what is stated of the sensor."""
    watts = sample.watts[sample.is_good]
    mean_w = float(np.mean(watts)) if len(watts) else 0.0
    low, high = np.percentile(watts, [0.5, 99.5]) if len(watts) else (0.0, 0.0)
    # A counter may hide by its steps what they leave out.
    rounded_w = signal.line.accuracy.step_j / (signal.spacing_ns * 1e-9)
    scale_w = max(float(high - low), LEVEL_SHARE * abs(mean_w), rounded_w, 1e-9)
    seen_s = signal.spacing_ns * 1e-9 if response.is_counter else response.width_s
    several = 1 + seen_s / states.mean_s
    step_w = np.repeat(_step_scales(sample, states, scale_w), np.diff(states.first_column))
    place_ns = float(np.hypot(place_limit_ns(signal), clock_bound_ns))
    u_timing = np.array(
        [
            place_ns * 1e-9 / np.sqrt(3),
            most_lag_ns() * 1e-9 / np.sqrt(6),
            (signal.line.accuracy.u_filter or TAU_SHARE) if response.tau_s else 0.0,
        ]
    )
    least_noise_w = max(LEAST_NOISE * float(high - low) / float(np.sqrt(several)), rounded_w / np.sqrt(3), 1e-9)
    level_w = np.where(states.is_rest, REST_SHARE * scale_w, scale_w / _most_seen(sample, states, response))
    rests_w = np.where(states.is_rest, scale_w, 0.0)
    levels = {of: _levels(states, np.column_stack([np.diag(level_w), rests_w]), of) for of in RELAXATIONS_S}
    steps = tuple(_steps(step_w[a:b]) for a, b in zip(states.first_column[:-1], states.first_column[1:], strict=True))
    of_sensor, by_length = place_limit_ns(signal) / max(place_ns, 1e-9), len(states.by_length)
    return [
        Prior(
            i, mean_w, scale_w, least_noise_w, levels[relaxation_s], steps, by_length, step_w, smoothness, u_timing,
            of_sensor,
        )
        for i, (relaxation_s, smoothness) in enumerate(HYPOTHESES)
    ]  # fmt: skip


def _steps(step_w: Values) -> Values:
    """[b, b - 1] power of a state's bins by the steps between them, without their mean."""
    behind = np.tri(len(step_w), len(step_w) - 1, -1)
    return np.asarray((behind - behind.mean(axis=0)) * step_w[:, None] if len(step_w) > 1 else behind)


def _step_scales(sample: Sample, states: States, scale_w: float) -> Values:
    """[s] scale of the steps within each state: the range of the readings from when it first lasts until it last
    does."""
    t_ns = np.round(sample.at_s[sample.is_good] * 1e9).astype(np.int64) + sample.cells.origin_ns
    watts, state, edge_ns = sample.watts[sample.is_good], states.state, states.edge_ns
    scale = np.full(len(states.bin_ends_s), scale_w)
    first = np.unique(state[1:-1], return_index=True)
    last = np.unique(state[1:-1][::-1], return_index=True)[1]
    for s, i, k in zip(*first, len(state) - 3 - last, strict=True):
        some = watts[np.searchsorted(t_ns, edge_ns[i]) : np.searchsorted(t_ns, edge_ns[k + 1])]
        if k > i and len(some) > LOCAL:
            low, high = np.percentile(some, [0.5, 99.5])
            scale[s] = min(max(high - low, LEVEL_SHARE * abs(float(np.mean(some)))), scale_w)
    return scale


def _most_seen(sample: Sample, states: States, response: Response) -> float:
    """The largest share that one reading sees of phases. So much more may phases differ than readings do, which never
    see phases alone."""
    in_phase = np.repeat(np.where(states.is_rest, 0.0, 1.0), np.diff(states.first_column))
    share = response.seen(sample.cells, in_phase[sample.cells.column], sample.t_s)[sample.is_good]
    return float(np.clip(share.max(initial=0.0), LEAST_SHARE, 1.0))


def _levels(states: States, level: Values, relaxation_s: float) -> Values:
    """[q, l] power of each column by independent levels, of which each state's level is made [s, l], as power comes to
    that from what the state before ends with."""
    first, count = states.first_column, len(states.bin_ends_s)
    state = np.repeat(np.arange(count), np.diff(first))
    if not relaxation_s:
        return np.asarray(level[state])
    before, usual_s = states.before, states.usual_s
    left = np.where((before >= 0) & (usual_s > 0), np.exp(-usual_s / relaxation_s), 0.0)
    of_before = np.zeros((count, count))
    of_before[np.arange(count), before] = before >= 0
    at_end = np.linalg.solve(np.eye(count) - left[:, None] * of_before, np.diag(1 - left))
    come = np.where(before[:, None] >= 0, of_before @ at_end, np.eye(count)) @ level
    # What is left of the difference to the power that the state began with, the mean over each bin.
    begins = np.concatenate([np.append(0.0, ends) for ends in states.bin_ends_s])
    ends = np.append(begins[1:], 0.0)
    last = first[1:] - 1
    ends[last] = np.where(usual_s > begins[last], usual_s, np.inf)
    e = relaxation_s * (np.exp(-begins / relaxation_s) - np.exp(-ends / relaxation_s)) / (ends - begins)
    return np.asarray(level[state] + e[:, None] * (come - level)[state])


def _credible(start: Fit) -> float:
    """The evidence of a fit that takes a timing as known, and what is believed of that timing."""
    away = start.design.timing[:2] / np.maximum(start.prior.u_timing[:2], 1e-9)
    return start.evidence - 0.5 * float(np.sum(away**2))


def _starts(sample: Sample, response: Response, priors: Sequence[Prior], weighing: Weighing, near: int) -> list[Fit]:
    """Fits at timings from which to begin: from any one alone the power of the first bins might make up for a place
    that is wrong, and stay so. The best prior at one of them is the best one at the others, or nearly so."""
    spread, starts = priors[0].u_timing[:2], []
    for share in STARTS:
        place, late = share * np.hypot(*spread) * spread**2 / max(float(spread @ spread), 1e-18)
        timing = np.array([place, -late, 0.0] if late < 0 else [min(place + late, spread[0]), 0.0, 0.0])
        says = design(sample, response, priors[0], weighing, timing)
        starts.append(max((fit(says, prior, near) for prior in priors), key=lambda f: f.evidence))
        priors = [starts[-1].prior]
    return starts


# -- the normal equations


def _at(response: Response, timing: Values) -> Response:
    place, lag, slower = timing
    return response.moved(float(place - lag)).slowed(float(slower))


def design(
    sample: Sample,
    response: Response,
    prior: Prior,
    weighing: Weighing,
    timing: Values | None = None,
    power: Values | None = None,
) -> FitDesign:
    """What a sample says at a timing; with the power of the columns less the mean, also by how much the timing moves
    the readings."""
    timing = np.zeros(3) if timing is None else timing
    q, at, cells = prior.columns, _at(response, timing), sample.cells
    A = np.zeros((len(sample.watts), q + OTHERS))
    A[:, :q] = at.design(cells, sample.t_s, q)
    if power is not None:
        step_s, watts = max(float(np.hypot(*prior.u_timing[:2])) / 4, 0.02e-3), cells.power(power)
        late, early = (at.moved(x).seen(cells, watts, sample.t_s) for x in (step_s, -step_s))
        A[:, q] = (late - early) / (2 * step_s)
        A[:, q + 1] = -A[:, q]
        if response.tau_s:
            slow, fast = (at.slowed(x).seen(cells, watts, sample.t_s) for x in (0.03, -0.03))
            A[:, q + 2] = (slow - fast) / 0.06
    A[:, q + 3 :] = _drift(sample, sample.at_s)
    y = sample.watts - prior.mean_w
    N, Ay, yy, seen = np.zeros((q + OTHERS, q + OTHERS)), np.zeros(q + OTHERS), 0.0, []
    for rows in sample.rows:
        seen.append(np.flatnonzero(A[rows].any(axis=0)))
        own, watts = weighing.of(A[rows, seen[-1]], rows), weighing.of(y[rows], rows)
        N[np.ix_(seen[-1], seen[-1])] += own.T @ own
        Ay[seen[-1]] += own.T @ watts
        yy += float(watts @ watts)
    N_own = N
    for block in weighing.blocks:
        N = N + weighing.noise2 * (block.B.T @ block.B)
        Ay += weighing.noise2 * (block.B.T @ block.y)
        yy += weighing.noise2 * float(block.y @ block.y)
    return FitDesign(sample, weighing, timing, A, y, tuple(seen), N_own, N, Ay, yy)


def _drift(sample: Sample, t_s: Values) -> Values:
    """[n, drifts] the polynomials of the drift at moments."""
    first, last = sample.t_s[0], sample.t_s[-1]
    at = (t_s - (last + first) / 2) / max((last - first) / 2, 1e-9)
    return np.asarray(np.polynomial.legendre.legvander(at, DRIFTS)[:, 1:])


def block_of(other: Signal, sample: Sample, states: States, prior: Prior) -> Block:
    """What another line says of blocks of seconds [b]: next to nothing of phases, and the mean power where all readings
    see the same moments of the iterations.

    Of readings every row is its mean over all places that the windows may have, and what these differ by, as far as
    power is believed to, is a part of the variance: all blocks have one place, or each has its own."""
    q, response, limit_s = prior.columns, Response.of(other), place_limit_ns(other) * 1e-9
    places_s = np.zeros(1) if other.is_counter else limit_s * PLACES
    designs, watts, variance = [np.zeros((len(places_s), 0, q + OTHERS))], [np.zeros(0)], [np.zeros(0)]
    for span_ns in sample.spans_ns:
        a, b = np.searchsorted(other.t_ns, span_ns)
        time_s = float(np.ptp(other.t_ns[a:b])) * 1e-9 if b - a > 1 else 0.0
        most = (b - a - 1) // (1 if other.is_counter else LEAST_IN)
        count = min(BLOCKS, most, int(time_s / max(LEAST_BLOCK * limit_s, 1e-9)))
        if count < 1 or other.broken[a : b - 1].any():
            continue
        ends = np.linspace(a, b - 1, count + 1).astype(np.int64)
        t, readings = sample.cells.since(other.t_ns[a:b]), np.diff(ends)
        B = np.zeros((len(places_s), count, q + OTHERS))
        if other.is_counter:
            t = t[ends - a]
            watts.append(np.diff(other.value[ends]) / np.diff(t))
            variance.append((prior.scale_w * limit_s / np.diff(t)) ** 2 * 2 / 3)
            B[0, :, :q] = response.design(sample.cells, t, q)
            middle = (t[1:] + t[:-1]) / 2
        else:
            mean, square, middle = (
                np.add.reduceat(x[:-1], ends[:-1] - a) / readings for x in (other.value[a:b], other.value[a:b] ** 2, t)
            )
            watts.append(mean)
            variance.append((square - mean**2) / readings)
            for of_place, place_s in zip(B, places_s, strict=True):
                rows = response.moved(float(place_s)).design(sample.cells, t[:-1], q)
                of_place[:, :q] = np.add.reduceat(rows, ends[:-1] - a) / readings[:, None]
        B[:, :, q + 3 :] = _drift(sample, middle)
        designs.append(B)
    power, B = np.concatenate(watts), np.concatenate(designs, axis=1)
    if not len(power) or abs(float(power.mean()) - prior.mean_w) > ALIKE * abs(prior.mean_w):
        return Block(np.zeros((0, q + OTHERS)), np.zeros(0), np.zeros(0))
    away = [prior.times(of_place - B.mean(axis=0)) for of_place in B]
    of_places = sum(x @ x.T for x in away) / len(places_s)
    own2 = np.concatenate(variance) + np.diag(of_places) + (LEAST_APART * prior.scale_w) ** 2
    covariance = np.diag(own2) + of_places + GAINS_APART**2 * np.outer(power, power)
    every = np.column_stack([B.mean(axis=0), power - prior.mean_w, power])
    own = np.linalg.solve(np.linalg.cholesky(covariance), every)
    return Block(own[:, :-2], own[:, -2], own[:, -1])


def _gain_off(block: Block, u: Values) -> float:
    """By how many standard deviations the gain of another line is off: if by many, no power fits both the readings and
    that line."""
    return abs(float(block.power @ (block.y - block.B @ u))) / max(float(np.linalg.norm(block.power)), 1e-30)


# -- their solution


def fit(design: FitDesign, prior: Prior, near: int | None = None) -> Fit:
    """The unknowns at the noise that makes the evidence greatest, which is looked for beside the ``near``-th of those
    that are tried, and without a number among all.

    In place of the differences u from the timing the sums are solved for: y + A timing = A (timing + u)."""
    q = prior.columns
    known = np.zeros(q + OTHERS)
    known[q : q + 3] = design.timing
    moved = design.N @ known
    yy, Ay = design.yy + 2 * float(design.Ay @ known) + float(known @ moved), design.Ay + moved
    LNL, LAy = prior.times(prior.times(design.N).T), prior.times(Ay[None])[0]
    z = len(LAy)
    bordered = np.empty((z + 1, z + 1))
    bordered[:z, :z], bordered[z, :z], bordered[:z, z], diagonal = LNL, LAy, LAy, np.diag(LNL)
    noises = np.unique(np.maximum(NOISES * prior.scale_w**2, prior.least_noise_w**2))
    readings, rounding = design.sample.readings, 1e-12 * yy + 1e-300

    def cost(at: int) -> float:
        # The last pivot is what the unknowns leave of y'y.
        bordered[np.arange(z), np.arange(z)], bordered[z, z] = diagonal + noises[at], yy + rounding
        try:
            pivots = np.diag(np.linalg.cholesky(bordered))
        except np.linalg.LinAlgError:
            return np.inf  # the noise is lost in the rounding
        left = max(float(pivots[z]) ** 2 - rounding, 0.0)
        log_det = 2 * float(np.sum(np.log(pivots[:z])))
        return float((readings - z) * np.log(noises[at]) + log_det + left / noises[at])

    at, lowest = _least(cost, len(noises), near)
    s2 = float(noises[at])
    M = LNL + s2 * np.eye(z)
    timing = np.zeros((3, q + OTHERS))
    timing[:, q : q + 3] = np.eye(3)
    solved = prior.applied(np.linalg.solve(M, np.column_stack([LAy, prior.times(timing).T])))
    return Fit(design, prior, solved[:, 0] - known, s2, at, M, s2 * solved[:, 1:], -0.5 * lowest)


def _least(cost: Callable[[int], float], count: int, near: int | None) -> tuple[int, float]:
    """The number below ``count`` at which something is least, and that: beside ``near``, or beside the least of a few
    spread over all."""
    known: dict[int, float] = {}

    def at(i: int) -> float:
        if i not in known:
            known[i] = cost(i)
        return known[i]

    step, best = 1, min(near or 0, count - 1)
    if near is None:
        some = np.linspace(0, count - 1, min(FIRST_NOISES, count)).astype(int)
        step, best = max(count // (2 * len(some)), 1), min(some.tolist(), key=at)
    while step:
        beside = min((best, max(best - step, 0), min(best + step, count - 1)), key=at)
        step, best = (step, beside) if at(beside) < at(best) else (step // 2, best)
    return best, at(best)


def mixture(fits: Sequence[Fit]) -> Mixture:
    """Those that are believed. Every hypothesis is a little wrong: a long run must not make one of them certain."""
    fits = sorted(fits, key=lambda f: -f.evidence)
    away = np.array([f.evidence - fits[0].evidence for f in fits])
    weight = np.exp(away * min(1.0, BELIEVED / fits[0].design.sample.readings))
    count = int(np.sum(weight > BELIEVED_AT_ALL * weight.sum()))
    return Mixture(tuple(fits[:count]), weight[:count] / weight[:count].sum())


# -- how sure it is


def _posterior(most: Mixture, begun: Beginning, signal: Signal, states: States, response: Response) -> Posterior:
    design, prior, spread = most.best.design, most.best.prior, most.spread
    q, sample, timing = prior.columns, design.sample, design.timing
    plain = covariance = (spread @ spread.T)[: q + 3, : q + 3]
    scatter, freedom = _scatter(design, most.u), 0.0
    for weight, fit in zip(most.weight.tolist(), most.fits, strict=True):
        # With L'NL + s2 = G G' the posterior's covariance is F F', F = L Q, Q = s G'^-1.
        Q = np.sqrt(fit.s2) * np.linalg.inv(np.linalg.cholesky(fit.M)).T
        F = fit.prior.applied(Q)
        plain = plain + weight * (F[: q + 3] @ F[: q + 3].T)
        covariance = covariance + weight * _covariance(fit, scatter, Q, F)[: q + 3, : q + 3]
        freedom += weight * (len(Q) - float(np.sum(Q**2)))
    common = np.column_stack([_common_errors(timing, prior, covariance, plain), begun.bent * prior.scale_w])
    covariance = covariance + common[:, 3:] @ common[:, 3:].T
    model = LineModel(
        signal, states, _at(response, timing), float(timing[1]), most.power + prior.mean,
        Residual(0.0, 0.0, 1.0, signal.spacing_ns * 1e-9),
    )  # fmt: skip
    model = replace(model, residual=residual_of(model, sample, design.weighing.weight, freedom))
    smoothness = float(most.weight @ [fit.prior.smoothness for fit in most.fits])
    within_w = np.sqrt(MISFIT) * smoothness * prior.step_w
    integral = integral_of(model, sample, design.A[:, : q + 3])
    return Posterior(model, covariance, plain, common, within_w, sample, begun, integral)


def _without_readings(signal: Signal, states: States, response: Response, prior: Prior) -> Posterior:
    """All columns have one power, of which nothing is known."""
    q, bins, spacing_s = prior.columns, len(prior.level), signal.spacing_ns * 1e-9
    residual = Residual(0.0, 0.0, spacing_s, spacing_s)
    model = LineModel(signal, states, response, 0.0, prior.mean, residual)
    nothing, empty = np.zeros((q + 3, q + 3)), np.zeros((0, q + 4))
    sample = _sample([], states, response)
    return Posterior(model, nothing, nothing, np.zeros((q + 3, 5)), np.zeros(bins), sample, None, (empty, empty))


def _covariance(fit: Fit, scatter: Values, Q: Values, F: Values) -> Values:
    """C [unknowns, unknowns] by the scatter of the scores, in no direction surer than F F'. The prior of the power
    counts `MISFIT` times."""
    middle = F.T @ ((scatter / fit.s2 - fit.design.N_own) @ F) / fit.s2
    middle += (MISFIT - 1) * (Q[:-OTHERS].T @ Q[:-OTHERS])
    eigen, U = _eigen((middle + middle.T) / 2)
    wide = (F @ U) * np.sqrt(1 + np.maximum(eigen, 0))
    return np.asarray(wide @ wide.T)


def _scatter(design: FitDesign, u: Values) -> Values:
    """What the scores, A' times what is left over, scatter by (Newey and West, 1987): readings that are off alike, one
    after the other or once in so many, and those that are off by more than others, count as what they are.

    By the sums over every window of so many scores in a row, which is the same as their tapered covariances."""
    weighing, scatter = design.weighing, np.zeros_like(design.N)
    lags = int(np.clip(design.sample.readings // LAGS_OF, 1, MOST_LAGS)) + 1
    left = design.y - design.A @ u
    for rows, seen in zip(design.sample.rows, design.seen, strict=True):
        scores = weighing.of(design.A[rows, seen], rows) * weighing.of(left[rows], rows)[:, None]
        upto = np.concatenate([np.zeros((1, len(seen))), np.cumsum(scores, axis=0)])
        ends = np.clip(np.arange(1, len(scores) + lags)[:, None] - [0, lags], 0, len(scores))
        g = upto[ends[:, 0]] - upto[ends[:, 1]]
        scatter[np.ix_(seen, seen)] += g.T @ g / lags
    return scatter


def _eigen(symmetric: Values) -> tuple[Values, Values]:
    """Eigenvalues and eigenvectors. Divide and conquer, numpy's way, did not converge in one of 20,000 regressions with
    OpenBLAS' kernels for Haswell; scipy's other way takes as long, but to import it takes longer than a fit."""
    try:
        values, vectors = np.linalg.eigh(symmetric)
    except np.linalg.LinAlgError:
        from scipy import linalg

        values, vectors = linalg.eigh(symmetric, driver="evr", check_finite=False)
    return values, vectors


def _common_errors(timing: Values, prior: Prior, covariance: Values, plain: Values) -> Values:
    """[q + 3, 5] what the error of each part of the timing that is believed beforehand does to all unknowns, and what
    is wrong with the difference of place and lag does, as error of the one and of the other; power goes with it as it
    does in the regression."""
    q, u_timing = prior.columns, prior.u_timing
    by_prior = plain[:, q:] / np.maximum(u_timing, 1e-9)
    by_prior[:, 0] *= prior.of_sensor
    # Power does not lead its marks: a difference that wants it to says that the place is wrong.
    place_s = min(LEAST_LAG_S, float(u_timing[0])) if timing[1] <= 0 else 0.0
    lag_s = min(float(np.sqrt(LEAST_LAG_S**2 - place_s**2)), float(u_timing[1]))
    by_difference = []
    for one, others, least_s in ((q, [q + 1, q + 2], place_s), (q + 1, [q, q + 2], lag_s)):
        of_others = np.linalg.pinv(covariance[np.ix_(others, others)]) @ covariance[others, one]
        alone = covariance[:, one] - covariance[:, others] @ of_others
        more = np.sqrt(max(least_s**2 - float(alone[one]), 0.0))
        by_difference.append(alone / max(float(alone[one]), 1e-30) * more)
    return np.column_stack([by_prior, *by_difference])


def _bent(most: Mixture, starts: Sequence[Fit]) -> Values:
    """[q + 3, starts] power at other timings, but for what is linear in them, by how likely each timing is.

    Readings in step see few moments of a phase, where the model is off alike each time: their evidence counts as that
    of so many readings as it has columns."""
    q = most.best.prior.columns
    evidence = np.array([_credible(start) for start in starts])
    weight = np.exp((evidence - evidence.max()) * min(1.0, q / most.best.design.sample.readings))
    first = starts[int(evidence.argmax())]
    bent = np.zeros((q + 3, len(starts)))
    for column, w, start in zip(bent.T, weight / weight.sum(), starts, strict=True):
        linear = most.by_timing @ (start.design.timing - first.design.timing)
        column[:q] = np.sqrt(w) * (start.u[:q] - first.u[:q] - linear)
    return bent


def residual_of(model: LineModel, sample: Sample, weight: Values, freedom: float) -> Residual:
    """The process of what is left over, from its correlation over one and two readings."""
    left = (sample.watts - model.seen(sample.cells, sample.t_s)) * np.sqrt(weight) * sample.is_good
    series, count, spacing_s = [left[rows] for rows in sample.rows], sample.readings, model.residual.spacing_s
    more = count / max(count - freedom, 0.25 * count, 1.0)
    pairs = [sum(max(len(x) - lag, 0) for x in series) for lag in range(3)]
    c0, c1, c2 = (
        more * sum(float(x[lag:] @ x[: len(x) - lag]) for x in series if len(x) > lag) / max(pairs[lag], 1)
        for lag in range(3)
    )
    if c0 <= 0:
        return Residual(0.0, 0.0, spacing_s, spacing_s)
    if c1 < STANDS_OUT * c0 / np.sqrt(count):
        return Residual(c0, 0.0, spacing_s / 4, spacing_s)
    kept = float(np.clip(c2 / c1, LEAST_KEPT, 0.9999))
    slow = min(c1 / kept, c0)
    return Residual(c0 - slow, slow, -spacing_s / float(np.log(kept)), spacing_s)
