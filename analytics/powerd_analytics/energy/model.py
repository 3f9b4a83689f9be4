"""The power of every state as one line's readings tell it: a linear regression with priors, and what it leaves over.

    y_k = sum over columns c of A[k, c] p[c] + drift(t_k) + r_k

A[k, c] is the share of reading k's weight that lies in bin c of a state (`powerd_analytics.energy.states`), seen
through the sensor (`powerd_analytics.energy.response`). Three unknowns enter by their derivatives, with priors of their
own: the windows' place, the lag of power behind its marks, the time constant of a low-pass. How much power moves within
a state is decided by the evidence of a few smoothness scales together. What is left over, r, is a process correlated in
time. docs/explanation/energy.md has the theory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.response import Response, place_limit_ns
from powerd_analytics.energy.states import Cells, States
from powerd_analytics.runs.phases import pieces
from powerd_analytics.signals.signal import LATE_FACTOR, Signal, parts_between
from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Numbers = NDArray[np.signedinteger[Any]]

MOST_ROWS, MOST_ENTRIES, LEAST_ROWS = 1 << 15, 1 << 20, 1 << 12
"""Readings that the regression sees, entries of its design, and readings that it sees of any number of columns."""
STRETCHES = 12
SMOOTHNESS = (0.03, 0.1, 0.3)
"""Standard deviations of the step from one bin of a state to the next, as shares of the power's scale."""
EARLY_S, EARLY = 10e-3, 2.5
"""Age up to which the step from one bin to the next may be larger, and by how much."""
BELIEVED = 500.0
"""Independent readings' worth of evidence that is believed of one smoothness against another."""
BELIEVED_AT_ALL = 1e-6
"""Weight of a smoothness below which its covariance is not worth working out."""
LEVEL_SHARE = 0.5
"""Least standard deviation of a state's level beforehand, as a share of the mean power."""
DRIFTS, DRIFT_SHARE = 4, 0.03
"""Polynomials (Legendre's) of the slow drift, and their standard deviation as a share of the power's scale."""
LEAST_ROBUST = 0.5
"""Least factor of the covariance by which a correlated residual may make the power of states surer."""
MISFIT = 5.0
"""Factor of the variance that the prior of the states' power leaves open: how power moves within a phase is nobody's
prior. What the readings' noise leaves open has none."""
LOCAL, LEAST_WEIGHT = 64, 1 / 256
"""Readings over which the size of what is left over is looked at, and the least weight of those where it is large."""
ALIASED = 0.5
"""Share of the variance of what readings see that their means over `LOCAL` of them have wrong, from which on they are
nearly in step with the iterations."""
STARTS = (0.0, -0.25, -0.6, -1.2, 0.3)
"""Places less the lag from which the fit begins, in standard deviations of what is known of them; 0 is the first."""
LEAST_NOISE = 5e-3
"""Least standard deviation of what is left over, as a share of the readings' range: no two phases take quite the same
way."""
ROUNDS = 3
"""Of finding the power at a shift of the windows, and the shift at that power."""
TAU_SHARE = 0.06
"""Standard uncertainty of a low-pass's time constant."""
MOST_LAG_MS, LAG_VARIABLE = 2.0, "POWERD_LAG_MS"
MOST_LAGS = 64
"""Readings over which what is left over is looked at for correlation."""
STANDS_OUT = 2.0
"""Standard deviations of a correlation of independent values beyond which it counts."""
LEAST_LAG_S = 0.12e-3
"""Least standard deviation of the lag: readings tell it only as far as power steps at marks and nowhere else."""
LAG_STEP_S, LATE_SHARE = 0.4e-3, 0.75
"""By which the lag is moved to see what it does to an energy, and how much of that it must be to be moved back."""
_SCALES = np.geomspace(1e-9, 1.0, 109)


def most_lag_ns() -> float:
    """The most that power is taken to lag behind its marks. Raises `AnalysisError` for a variable that is no time."""
    text = os.environ.get(LAG_VARIABLE, str(MOST_LAG_MS))
    try:
        lag_ms = float(text)
    except ValueError:
        lag_ms = -1.0
    if not 0 <= lag_ms <= 50:
        raise AnalysisError(f"{LAG_VARIABLE}={text}: give milliseconds between 0 and 50")
    return lag_ms * 1e6


@dataclass(frozen=True, slots=True)
class Residual:
    """What the model leaves over of the readings, as a process: white, and correlated over ``length_s``. Watts."""

    white2: float
    slow2: float
    length_s: float
    spacing_s: float

    @property
    def all2(self) -> float:
        return self.white2 + self.slow2

    def bridged(self, gap_s: Values) -> tuple[Values, Values]:
        """Of times that no reading saw [n] between two readings: by how much the line between both counts, and the
        variance (J^2) of what lies between them. Exact for a process of first order."""
        if self.slow2 <= 0:
            # What is white in a hole is known at its ends only.
            is_hole = gap_s > LATE_FACTOR * self.spacing_s
            return np.where(is_hole, self.spacing_s / np.maximum(gap_s, 1e-12), 1.0), np.zeros(len(gap_s))
        x = np.maximum(gap_s, 0.0) / self.length_s
        damped = np.where(x > 1e-3, np.tanh(x / 2) / np.maximum(x / 2, 1e-9), 1.0)
        left = np.where(x > 1e-2, x - 2 * np.tanh(x / 2), x**3 / 12)
        return damped, 2 * self.slow2 * self.length_s**2 * left

    def beyond(self, time_s: Values) -> tuple[Values, Values]:
        """The same behind the last reading: seconds for which its residual counts, and the variance."""
        x = time_s / self.length_s
        left = np.exp(-x)
        variance = self.slow2 * self.length_s**2 * np.maximum(2 * x - 3 + 4 * left - left**2, 0)
        return self.length_s * (1 - left), np.asarray(variance)

    def of_interval(self, length_s: Values, response: Response) -> Values:
        """Variance (J^2) of intervals [n] by what is white and what windows let across their ends."""
        # A counter loses nothing between its readings.
        unseen = 0.0 if response.is_counter else 2.0 - min(response.seen_s / self.spacing_s, 1.0)
        spacing = self.spacing_s
        variance = unseen * self.white2 * length_s * np.minimum(spacing, length_s)
        # At the ends of a phase, what windows let across and what need not go on in the next phase; what changes
        # slowly does go on.
        width = max(response.seen_s, spacing if response.is_counter else 0.0)
        ends = [
            (self.white2 * (w == width) + self.slow2 * min(np.sqrt(w / self.length_s), 1.0))
            * w
            * np.minimum(length_s, w)
            / 2
            for w in (width, spacing)
        ]
        return np.asarray(variance + np.maximum(*ends))


RESTLESS = (0.25, 256.0)
"""Least and greatest variance of the residual of one class of intervals, over that of all readings."""


@dataclass(slots=True)
class Stretch:
    """Readings in a row that the regression sees."""

    cells: Cells
    t_s: Values
    watts: Values
    """[r] power of each reading, or of each interval between two of a counter."""
    is_good: NDArray[np.bool_]
    """[r]"""
    design: Values = field(default_factory=lambda: np.zeros((0, 0)))
    weight: Values = field(default_factory=lambda: np.ones(0))
    """[r] of each reading in the regression: 0 where it is not good, 1 where what is left over is as large as usual."""

    integral: tuple[Values, Values] = field(default_factory=lambda: (np.zeros((0, 0)), np.zeros((0, 0))))
    """[r, c] design and square of what is left over, and [r, c] their integral up to each reading."""
    demeaned: float = 0.0
    """How much of the mean of every `LOCAL` readings is taken out: a random effect (quasi-demeaning)."""

    def whitened(self, values: Values) -> Values:
        """Values [r] or [r, c] as the regression takes them: weighted, and without most of what is slow if what is
        left over is so."""
        x = values * np.sqrt(self.weight).reshape(-1, *[1] * (values.ndim - 1))
        if self.demeaned > 0 and len(x):
            starts = np.arange(0, len(x), LOCAL)
            count = np.add.reduceat(self.weight > 0, starts, dtype=np.float64)
            means = np.add.reduceat(x, starts, axis=0).T * (self.demeaned / np.maximum(count, 1.0))
            x -= np.repeat(means.T, LOCAL, axis=0)[: len(x)]
            x[self.weight <= 0] = 0.0
        return x

    @property
    def span_ns(self) -> tuple[int, int]:
        return tuple(round(float(x) * 1e9) + self.cells.origin_ns for x in (self.t_s[0], self.t_s[-1]))  # type: ignore[return-value]


@dataclass(slots=True)
class LineModel:
    """One line's power by states, with the covariance of what is not known of it.

    The unknowns are the power of each column, the place, the lag and the time constant; ``posterior`` is of all.
    """

    signal: Signal
    states: States
    response: Response
    """With the place and the lag taken into account."""
    lag_s: float
    watts: Values
    posterior: NDArray[np.float64]
    plain: NDArray[np.float64]
    """The posterior if the prior were right and what is left over noise."""
    residual: Residual
    stretches: list[Stretch]

    @property
    def columns(self) -> int:
        return len(self.watts)

    def upto(self, cells: Cells, t_s: Values) -> Values:
        """Joules of the model from the first cell up to moments."""
        return np.asarray(np.interp(t_s - self.lag_s, cells.at_s, cells.joules(self.watts[cells.column])))

    def seen(self, cells: Cells, t_s: Values) -> Values:
        """What readings at moments would show of the model."""
        return self.response.seen(cells, self.watts[cells.column], t_s)

    def leverage(self, begin_ns: Ints, end_ns: Ints, label: Numbers) -> tuple[Values, Values]:
        """[l, q + 4] seconds (joules by unit) by which each unknown moves the energy of all intervals [m] of a label
        together, as the readings that the regression saw tell: the model's part less what its readings take back."""
        labels = int(label.max(initial=-1)) + 1
        q = self.columns
        total = np.zeros((labels, q + 6))
        seconds = np.zeros(labels)
        for stretch in self.stretches:
            low, high = stretch.span_ns
            some = (end_ns > low) & (begin_ns < high)
            if not some.any():
                continue
            begin, end = np.clip(begin_ns[some], low, high), np.clip(end_ns[some], low, high)
            seconds += np.bincount(label[some], weights=(end - begin) * 1e-9, minlength=labels)
            edges, place = np.unique(np.concatenate([begin, end]), return_inverse=True)
            upto = self._leverage_upto(stretch, stretch.cells.since(edges))
            sign = np.concatenate([np.full(len(begin), -1.0), np.ones(len(end))])
            both = np.concatenate([label[some], label[some]]).astype(np.int64) * len(edges) + place
            pairs, where = np.unique(both, return_inverse=True)
            weight = np.bincount(where, weights=sign)
            for one in np.unique(pairs // len(edges)).tolist():
                own = pairs // len(edges) == one
                total[one] += weight[own] @ upto[pairs[own] % len(edges)]
        length = np.zeros(labels)
        for own in pieces(len(label)):
            length += np.bincount(label[own], weights=(end_ns[own] - begin_ns[own]) * 1e-9, minlength=labels)
        of_all = np.maximum(self.residual.all2, 1e-18) * np.maximum(seconds, 1e-12)
        restless = np.where(seconds > 0, np.clip(total[:, q + 4] / of_all, *RESTLESS), 1.0)
        later, earlier = total[:, q + 1], total[:, q + 5]
        total[:, q + 1] = np.where(np.abs(earlier) > np.abs(later), earlier, later)
        total = total[:, : q + 4] * np.where(seconds > 0, length / np.maximum(seconds, 1e-12), 0.0)[:, None]
        for one in np.flatnonzero((seconds <= 0) & (length > 0)):
            total[one, : self.columns] = self._share_of(begin_ns[label == one], end_ns[label == one])
        return total, restless

    def _leverage_upto(self, stretch: Stretch, at_s: Values) -> Values:
        cells, q = stretch.cells, self.columns
        upto = np.zeros((len(at_s), q + 6))
        between = Response(0.0, 0.0, is_counter=True, shift_s=-self.lag_s).design(cells, at_s, q)
        upto[1:, :q] = np.cumsum(between * np.diff(at_s)[:, None], axis=0)
        # Power follows its marks and never leads them: what matters at a mark is the power before it.
        step, now = LAG_STEP_S, self.upto(cells, at_s)
        upto[:, q + 1] = upto[:, q + 5] = (self.upto(cells, at_s - step) - now) / step
        upto[:, q + 3] = -upto[:, q + 1]
        if self.lag_s > LATE_SHARE * step:
            # It may also follow less late: behind a pause as short as that there is another power.
            upto[:, q + 5] = (now - self.upto(cells, at_s + step)) / step
        back = self._line_upto(stretch, at_s)
        upto[:, : q + 3] -= back[:, :-1]
        upto[:, q + 4] = back[:, -1]
        upto[:, q + 5] -= back[:, q + 1]
        return upto

    def _line_upto(self, stretch: Stretch, at_s: Values) -> Values:
        """[n, q + 4] integral up to moments of the design as the residual is interpolated, and of its square."""
        t, dt = stretch.t_s, np.diff(stretch.t_s)
        slope = np.ones((len(dt), self.columns + 4))
        if not self.response.is_counter:
            slope[:, :-1] = self.residual.bridged(dt - self.response.seen_s)[0][:, None]
        if not len(stretch.integral[0]):
            left = stretch.watts - self.seen(stretch.cells, t)
            rows = np.column_stack([stretch.design[:, : self.columns + 3], left**2]) * stretch.is_good[:, None]
            steps = (rows if self.response.is_counter else (rows[1:] + rows[:-1]) / 2) * dt[:, None] * slope
            stretch.integral = rows, np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(steps, axis=0)])
        rows, upto = stretch.integral
        i = np.clip(np.searchsorted(t, at_s, "right") - 1, 0, len(t) - 2)
        into = np.clip((at_s - t[i]) / dt[i], 0, 1)[:, None]
        if self.response.is_counter:
            return np.asarray(upto[i] + (upto[i + 1] - upto[i]) * into)
        part = rows[i] + (rows[i + 1] - rows[i]) * into / 2
        return np.asarray(upto[i] + part * into * dt[i][:, None] * slope[i])

    def _share_of(self, begin_ns: Ints, end_ns: Ints) -> Values:
        """Seconds [q] of intervals in each column, for those that the regression did not see: a few of them tell."""
        some = np.linspace(0, len(begin_ns) - 1, min(len(begin_ns), 16)).astype(int)
        share = np.zeros(self.columns)
        for b, e in zip(begin_ns[some].tolist(), end_ns[some].tolist(), strict=True):
            if e > b:
                cells = self.states.cells(b, e)
                share += np.bincount(cells.column, weights=np.diff(cells.at_s), minlength=self.columns)
        total = share.sum()
        return share * (((end_ns - begin_ns) * 1e-9).sum() / total) if total > 0 else share

    def before_w(self, begin_ns: Ints) -> Values:
        """Power of the states that end where intervals [m] begin."""
        before = self.states.state[np.searchsorted(self.states.edge_ns, begin_ns)]
        return self.watts[self.states.first_column[before + 1] - 1]

    def from_elsewhere(self, begin_ns: Ints, length_s: Values, usual_w: Values) -> Values:
        """Variance (J^2) of intervals [m] before which another power lies than ``usual_w`` before others of their
        class, such as the first of a training: power may come from there for as long as no reading tells."""
        unseen_s = min(EARLY_S, self.residual.spacing_s + self.response.seen_s)
        return np.asarray(((self.before_w(begin_ns) - usual_w) * np.minimum(length_s, unseen_s) / 2) ** 2)

    def is_lumped(self, begin_ns: Ints, end_ns: Ints, label: Numbers, labels: int) -> NDArray[np.bool_]:
        """[l] classes of which most intervals lie in the state that stands for several, and are shorter than twenty
        readings."""
        if self.states.lumped < 0:
            return np.zeros(labels, bool)
        middle = np.searchsorted(self.states.edge_ns, begin_ns + (end_ns - begin_ns) // 2, "right")
        is_short = (end_ns - begin_ns) * 1e-9 < 20 * max(self.residual.spacing_s, self.response.width_s)
        lumped = (self.states.state[middle] == self.states.lumped) & is_short
        count = np.bincount(label, minlength=labels)
        return np.asarray(np.bincount(label, weights=lumped, minlength=labels) > count / 2)

    def variance(self, leverage: Values) -> tuple[Values, Values, Values]:
        """Variances (J^2) [l] of energies with a leverage: by the states' power alone, by what the place, the lag and
        the time constant add, and how much of the first is misfit."""
        q = self.columns
        whole = np.einsum("lc,cd,ld->l", leverage, self.posterior, leverage)
        alone = self.posterior[:q, :q]
        other = self.posterior[q:, q:]
        if np.any(other):
            cross = self.posterior[:q, q:]
            alone = alone - cross @ np.linalg.pinv(other) @ cross.T
        power = np.einsum("lc,cd,ld->l", leverage[:, :q], alone, leverage[:, :q])
        power = np.clip(power, 0, np.maximum(whole, 0))
        plain = np.einsum("lc,cd,ld->l", leverage[:, :q], self.plain[:q, :q], leverage[:, :q])
        return power, np.maximum(whole - power, 0), np.maximum(power - plain, 0)


# -- the regression ----------------------------------------------------------------------------------------------------


def fit(signal: Signal, states: States, clock_bound_ns: float = 0.0) -> LineModel:
    """The model of a line with two good readings or more."""
    response = Response.of(signal)
    columns = int(states.first_column[-1])
    stretches = list(_stretches(signal, states, response, columns))
    watts = np.concatenate([s.watts[s.is_good] for s in stretches])
    mean = float(np.mean(watts)) if len(watts) else 0.0
    low, high = np.percentile(watts, [0.5, 99.5]) if len(watts) else (0.0, 0.0)
    scale = max(float(high - low), LEVEL_SHARE * abs(mean), 1e-9)
    place_s = np.hypot(place_limit_ns(signal), clock_bound_ns) * 1e-9 / np.sqrt(3)
    lag_s = most_lag_ns() * 1e-9 / np.sqrt(6)
    tau_share = (signal.line.accuracy.u_filter or TAU_SHARE) if response.tau_s else 0.0
    problem = _Problem(
        states, stretches, mean, scale, LEAST_NOISE * float(high - low), np.array([place_s, lag_s, tau_share])
    )
    values, covariance, time = np.zeros(columns + 3), np.zeros((columns + 3, columns + 3)), 1.0
    plain = covariance
    values[:columns] = mean
    if len(watts) >= 2:
        known, values[:columns] = problem.start(response)
        best = -np.inf
        for _ in range(1, ROUNDS):
            problem.see(response, known, values[:columns])
            found, spread, time, evidence = problem.solve(time, known)
            if evidence > best:
                # What the derivatives say of place, lag and time constant is for the next round: power goes with these.
                step = spread[:columns, columns:] @ np.linalg.pinv(spread[columns:, columns:]) @ found[columns:]
                best, values = evidence, np.concatenate([found[:columns] - step, known])
                covariance, plain = spread, problem.plain
                kept = [s.design for s in stretches]
            known = known + np.clip(found[columns : columns + 3], -problem.prior, problem.prior)
            # Power does not lead its marks.
            of_lag = spread[columns:, columns + 1]
            known -= of_lag / max(of_lag[1], 1e-18) * min(known[1], 0.0)
            known = np.clip(known, -np.sqrt(3) * problem.prior, np.sqrt(3) * problem.prior)
        for s, design in zip(stretches, kept, strict=True):
            s.design = design
        # Power goes with the lag as it does in the regression.
        with_lag = covariance[:, columns + 1] / max(covariance[columns + 1, columns + 1], 1e-30)
        least_s2 = min(LEAST_LAG_S, lag_s) ** 2
        covariance += max(least_s2 - covariance[columns + 1, columns + 1], 0.0) * np.outer(with_lag, with_lag)
    lag, response = values[columns + 1], _as_known(response, values[columns:])
    model = LineModel(
        signal, states, response, float(lag), values[:columns], covariance, plain,
        Residual(0.0, 0.0, 1.0, signal.spacing_ns * 1e-9), stretches,
    )  # fmt: skip
    left = [s.watts - model.seen(s.cells, s.t_s) for s in stretches]
    left = [x * np.sqrt(s.weight) for x, s in zip(left, stretches, strict=True)]
    model.residual = _residual(left, [s.is_good for s in stretches], signal.spacing_ns * 1e-9, problem.freedom)
    return model


def _stretches(signal: Signal, states: States, response: Response, columns: int) -> Iterator[Stretch]:
    """All readings where they are few, else stretches all over the run and where rare states are."""
    budget = int(np.clip(MOST_ENTRIES // max(columns, 1), LEAST_ROWS, MOST_ROWS))
    before, behind = (int(x * 1e9) + 5_000_000 for x in response.margin_s)
    if not len(signal.cuts_ns) and len(signal) <= budget:
        wanted: list[tuple[int, int]] = [(-(1 << 61), 1 << 61)]
    else:
        first, last = int(signal.t_ns[0]), int(signal.t_ns[-1])
        rare = np.unique(states.state, return_index=True)[1]
        rare = rare[(rare > 0) & (rare < len(states.state) - 1)]
        spread = np.linspace(first, last, STRETCHES + 2).astype(np.int64)
        moments = np.concatenate([spread, states.edge_ns[rare - 1]])
        half = int(budget / len(moments) * signal.spacing_ns / 2)
        wanted = _joined([(int(m) - half, int(m) + half) for m in np.sort(moments)])
    pieces = ((p, low, high) for low, high in wanted for p in parts_between(signal, low, high))
    done_ns = -(1 << 62)
    for piece, low, high in pieces:
        # Pieces of a signal in slices overlap by their margins.
        a, b = np.searchsorted(piece.t_ns, [max(low, done_ns), high])
        if b - a < 2:
            continue
        done_ns = int(piece.t_ns[b - 1])
        t = piece.t_ns[a:b]
        cells = states.cells(int(t[0]) - before, int(t[-1]) + behind)
        at = cells.since(t)
        if signal.is_counter:
            watts, is_good = np.diff(piece.value[a:b]) / np.diff(at), ~piece.broken[a : b - 1]
        else:
            watts, is_good = piece.value[a:b].copy(), np.ones(b - a, bool)  # the rest of the slice is not kept
        yield Stretch(cells, at, watts, is_good, weight=is_good.astype(np.float64))


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in spans:
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined


def _as_known(response: Response, known: Values) -> Response:
    place, lag, slower = known
    return response.moved(float(place - lag)).slowed(float(slower))


class _Problem:
    """Normal equations of the regression, and their solution under each smoothness."""

    def __init__(
        self, states: States, stretches: list[Stretch], mean: float, scale: float, least_w: float, prior: Values
    ) -> None:
        self.states, self.stretches, self.mean, self.scale, self.prior = states, stretches, mean, scale, prior
        self.least_w = least_w
        self.columns = int(states.first_column[-1])
        self.freedom, self.plain = 0.0, np.zeros((self.columns + 3, self.columns + 3))
        """Degrees of freedom, and the covariance of the last solution if only noise were left over."""
        self.steps = self._steps()
        self._of, self._is_step = self._independent()
        ends = [s.cells.origin_ns * 1e-9 + t for s in stretches for t in (s.t_s[0], s.t_s[-1])] or [0.0, 1.0]
        self._middle_s, self._half_s = (max(ends) + min(ends)) / 2, max((max(ends) - min(ends)) / 2, 1e-9)

    def _steps(self) -> Values:
        """[s] scale of the steps within each state: the range of the readings from when it first lasts until it last
        does."""
        t_ns = np.concatenate(
            [np.round(s.t_s[-len(s.watts) :] * 1e9).astype(np.int64) + s.cells.origin_ns for s in self.stretches]
            or [np.zeros(0, np.int64)]
        )
        watts = np.concatenate([s.watts for s in self.stretches] or [np.zeros(0)])
        state, edge_ns = self.states.state, self.states.edge_ns
        scale = np.full(len(self.states.bin_ends_s), self.scale)
        first = np.unique(state[1:-1], return_index=True)
        last = np.unique(state[1:-1][::-1], return_index=True)[1]
        for s, i, k in zip(*first, len(state) - 3 - last, strict=True):
            some = watts[np.searchsorted(t_ns, edge_ns[i]) : np.searchsorted(t_ns, edge_ns[k + 1])]
            if k > i and len(some) > LOCAL:
                low, high = np.percentile(some, [0.5, 99.5])
                scale[s] = min(max(high - low, LEVEL_SHARE * abs(float(np.mean(some)))), self.scale)
        return scale

    def see(self, response: Response, known: Values, power: Values | None) -> None:
        """Build the design at values of place, lag and time constant; with the power, also derivatives by them."""
        q = self.columns
        at = _as_known(response, known)
        size = q + 3 + DRIFTS
        self.normal, self.right, self.square, self.count = np.zeros((size, size)), np.zeros(size), 0.0, 0
        step = max(float(np.hypot(*self.prior[:2])) / 4, 0.02e-3)
        for s in self.stretches:
            design = np.zeros((len(s.watts), size))
            design[:, :q] = at.design(s.cells, s.t_s, q)
            if power is not None:
                watts = power[s.cells.column]
                late, early = (at.moved(x).seen(s.cells, watts, s.t_s) for x in (step, -step))
                design[:, q] = (late - early) / (2 * step)
                design[:, q + 1] = -design[:, q]
                if response.tau_s:
                    slow, fast = (at.slowed(x).seen(s.cells, watts, s.t_s) for x in (0.03, -0.03))
                    design[:, q + 2] = (slow - fast) / 0.06
            t = s.cells.origin_ns * 1e-9 + (s.t_s[1:] if at.is_counter else s.t_s)
            along = np.polynomial.legendre.legvander((t - self._middle_s) / self._half_s, DRIFTS)
            design[:, q + 3 :] = along[:, 1:]
            s.design = design
            rows, good = s.whitened(design), s.whitened(s.watts - self.mean)
            self.normal += rows.T @ rows
            self.right += rows.T @ good
            self.square += float(good @ good)
            self.count += int(s.is_good.sum())

    def start(self, response: Response) -> tuple[Values, Values]:
        """Place, lag and time constant to begin with, and the power there: of a few places less the lag, the best.

        From any one alone the power of the first bins might make up for a place that is wrong, and stay so."""
        self.see(response, np.zeros(3), None)
        first = max(self._under_each(SMOOTHNESS, np.zeros(3)), key=lambda f: f.evidence)
        self.weigh(first.values[: self.columns] + self.mean)
        spread, best = self.prior[:2], (-np.inf, np.zeros(3), np.zeros(0))
        smoothness: Sequence[float] = SMOOTHNESS
        for share in STARTS:
            place, late = share * np.hypot(*spread) * spread**2 / max(float(spread @ spread), 1e-18)
            known = np.array([place, -late, 0.0]) if late < 0 else np.array([min(place + late, spread[0]), 0.0, 0.0])
            self.see(response, known, None)
            most = max(self._under_each(smoothness, known), key=lambda f: f.evidence)
            # The best smoothness at one of these places is the best one at the others, or nearly so.
            smoothness = (most.share,)
            evidence = most.evidence - 0.5 * float(np.sum((known[:2] / np.maximum(spread, 1e-9)) ** 2))
            best = max(best, (evidence, known, most.values[: self.columns] + self.mean), key=lambda of: of[0])
        return best[1:]

    def weigh(self, power: Values) -> None:
        """Give less weight to readings where what this power of the columns leaves over is larger than usual for
        seconds: while a GPU starts up, say, which says nothing of the training."""
        local = []
        for s in self.stretches:
            left2 = (s.watts - self.mean - s.design[:, : self.columns] @ (power - self.mean)) ** 2
            upto = np.stack([np.cumsum(np.append(0.0, x)) for x in (left2 * s.is_good, s.is_good)])
            ends = np.clip(np.arange(len(left2))[:, None] + [-LOCAL // 2, LOCAL // 2 + 1], 0, len(left2))
            sums = upto[:, ends[:, 1]] - upto[:, ends[:, 0]]
            local.append(sums[0] / np.maximum(sums[1], 1))
        usual = np.median(np.concatenate(local))
        for s, near in zip(self.stretches, local, strict=True):
            s.weight = s.is_good * np.clip(usual / np.maximum(near, 1e-18), LEAST_WEIGHT, 1.0)
        self._take_out_means(power)

    def _take_out_means(self, power: Values) -> None:
        """Set how much of the mean of every `LOCAL` readings is taken out, by what is left over of them; nothing, and
        no drift either, where so many readings see another mean than the power has meanwhile, as they do when
        iterations are nearly in step with them: there it is these means that tell phases apart."""
        left, seen, aliased = np.zeros((0, LOCAL)), [np.zeros(0)], [np.zeros(0)]
        for s in self.stretches:
            fitted = self.mean + s.design[:, : self.columns] @ (power - self.mean)
            x = ((s.watts - fitted) * np.sqrt(s.weight))[s.weight > 0]
            left = np.concatenate([left, x[: len(x) // LOCAL * LOCAL].reshape(-1, LOCAL)])
            blocks = fitted[: len(fitted) // LOCAL * LOCAL].reshape(-1, LOCAL)
            at = s.t_s[np.minimum(np.arange(len(blocks) + 1) * LOCAL, len(s.t_s) - 1)]
            mean = np.diff(np.interp(at, s.cells.at_s, s.cells.joules(power[s.cells.column]))) / np.diff(at)
            aliased.append((blocks.mean(axis=1) - mean) ** 2)
            seen.append(np.mean((blocks - mean[:, None]) ** 2, axis=1))
        if np.concatenate(aliased).sum() > ALIASED * np.concatenate(seen).sum():
            self._of[-DRIFTS:] = 0.0
        elif len(left):
            between, within = float(np.mean(left.mean(axis=1) ** 2)), float(np.mean(left.var(axis=1)))
            for s in self.stretches:
                s.demeaned = 1 - np.sqrt(min(within / max(LOCAL * between, 1e-300), 1.0))

    def solve(self, time: float, known: Values) -> tuple[Values, NDArray[np.float64], float, float]:
        """Values and covariance [q + 3] under all smoothness scales, each as its evidence says; the correlation time of
        what is left over; and the evidence.

        Place, lag and time constant are told as differences from what is ``known``, and their prior is of the sum."""
        q = self.columns
        found = self._under_each(SMOOTHNESS, known)
        evidence = np.array([f.evidence for f in found])
        weight = np.ones(len(found))
        for _ in range(2):
            # Every smoothness is a little wrong: a long run must not make one of them certain.
            weight = np.exp((evidence - evidence.max()) * min(1.0, BELIEVED / max(self.count, 1)) / time)
            weight /= weight.sum()
            whole = np.einsum("k,kc->c", weight, [f.values for f in found])
            correlation = self._correlation(whole)
            time = 1 + 2 * float(correlation.sum())
        covariance = np.zeros((q + 3, q + 3))
        repeated = self._repeated(correlation)
        lack = self._lack_of_fit(whole, min(f.noise2 for f in found))
        believed = [(w, f) for w, f in zip(weight, found, strict=True) if w > BELIEVED_AT_ALL]
        plain = np.sum([w * (f.factor @ f.factor.T) for w, f in believed], axis=0)
        self.plain = plain[: q + 3, : q + 3]
        for w, f in believed:
            away = f.values - whole
            wide = f.robust(self.normal, repeated, q, lack) + np.outer(away, away)
            covariance += w * wide[: q + 3, : q + 3]
        self.freedom = float(sum(w * f.freedom for w, f in zip(weight, found, strict=True)))
        values = whole[: q + 3].copy()
        values[:q] += self.mean
        return values, covariance, time, float(evidence.max())

    def _under_each(self, shares: Sequence[float], known: Values) -> list[_Found]:
        """The solutions under some smoothness scales, as differences from the mean power and from what is ``known``."""
        prior = np.zeros(len(self.right))
        prior[self.columns : self.columns + 3] = known
        # In place of the differences d the sums are solved for: y + D known = A p + D (known + d).
        moved = self.normal @ prior
        square = self.square + 2 * float(self.right @ prior) + float(prior @ moved)
        normal, right = self._of.T @ self.normal @ self._of, self.right + moved
        found = [self._under(share, (normal + normal.T) / 2, right, square) for share in shares]
        return [replace(f, values=f.values - prior) for f in found]

    def _independent(self) -> tuple[Values, NDArray[np.bool_]]:
        """[size, size] all unknowns as sums of others that are independent beforehand, with a standard deviation of 1:
        the level of each state, the steps between its bins, and what is no power. And which of these are steps: those
        are still to be multiplied by the smoothness."""
        size, first = self.columns + 3 + DRIFTS, self.states.first_column
        of, is_step = np.zeros((size, size)), np.zeros(size, bool)
        for state, (a, b) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
            # Power that comes from another level is most restless at first.
            step = self.steps[state] * np.where(self.states.bin_ends_s[state] < EARLY_S, EARLY, 1.0)
            behind = np.tri(b - a, b - a - 1, -1)
            of[a:b, a] = self.scale
            of[a:b, a + 1 : b] = (behind - behind.mean(axis=0)) * step
            is_step[a + 1 : b] = True
        q = self.columns
        of[q : q + 3, q : q + 3] = np.diag(np.maximum(self.prior, 1e-9))
        of[q + 3 :, q + 3 :] = np.eye(DRIFTS) * DRIFT_SHARE * self.scale
        return of, is_step

    def _under(self, share: float, normal: Values, right: Values, square: float) -> _Found:
        """The solution under one smoothness. In unknowns that are independent beforehand the noise is found by a search
        along the eigenvectors of the ``normal`` matrix of these."""
        scale = np.where(self._is_step, share, 1.0)
        eigen, U = np.linalg.eigh(scale[:, None] * normal * scale)
        eigen = np.maximum(eigen, 0)
        of = self._of * scale
        z = U.T @ (of.T @ right)
        n = max(self.count, 1)
        grid = np.maximum(_SCALES * self.scale**2, max(self.least_w**2, 1e-18))[:, None]
        left = np.maximum(square - np.sum(z**2 / (eigen + grid), axis=1), 0.0)
        noise = grid[:, 0]
        evidence = -0.5 * (n * np.log(noise) + np.sum(np.log1p(eigen / grid), axis=1) + left / noise)
        at = int(np.argmax(evidence))
        shrunk = noise[at] / (eigen + noise[at])
        values = of @ (U @ (z / (eigen + noise[at])))
        return _Found(
            share, values, of, U * np.sqrt(shrunk), float(noise[at]), float(evidence[at]), float(np.sum(1 - shrunk))
        )

    def _correlation(self, values: Values) -> Values:
        """Of what is left over, at one reading's distance and more, up to where it does not stand out any more."""
        left = [s.whitened(s.watts - self.mean - s.design @ values) for s in self.stretches]
        covariance, count = _autocovariance(left, [s.is_good for s in self.stretches], MOST_LAGS)
        rho = covariance[1:] / covariance[0] if covariance[0] > 0 else np.zeros(MOST_LAGS)
        last = int(np.argmax(np.append(rho, -1.0) < STANDS_OUT / np.sqrt(max(count, 1))))
        return np.asarray(rho[:last])

    def _lack_of_fit(self, values: Values, noise2: float) -> float:
        """Which share of the variance of what is left over repeats at the same age of the same state, so that more
        readings do not make it less: the correlation of neighbours by age, which noise has none of. Of what is less
        than the least noise ``noise2`` nothing is said."""
        left, column, age = [], [], []
        for s in self.stretches:
            at = s.t_s[1:] if len(s.t_s) > len(s.watts) else s.t_s
            i = np.clip(np.searchsorted(s.cells.at_s, at, "right") - 1, 0, len(s.cells.column) - 1)
            good = s.weight > 0
            left.append(s.whitened(s.watts - self.mean - s.design @ values)[good])
            column.append(s.cells.column[i][good])
            age.append((at - s.cells.at_s[i])[good])
        x = np.concatenate(left)[np.lexsort((np.concatenate(age), np.concatenate(column)))]
        square = float(x @ x)
        share = float(x[1:] @ x[:-1]) / square if square > 0 else 0.0
        share *= min(square / max(len(x) * noise2, 1e-300), 1.0)
        return min(share, 1.0) if share > STANDS_OUT / np.sqrt(max(len(x), 1)) else 0.0

    def _repeated(self, correlation: Values) -> Values:
        """The normal matrix of readings that are correlated so: sum over lags of rho A' A shifted by the lag.

        Of many lags some stand for those around them."""
        if not len(correlation):
            return self.normal
        lags = np.unique(np.round(np.geomspace(1, len(correlation), 12)).astype(int))
        weights = np.add.reduceat(correlation, np.concatenate([[0], (lags[1:] + lags[:-1]) // 2]))
        total = self.normal / 2
        for s in self.stretches:
            rows = s.whitened(s.design)
            later = np.zeros_like(rows)
            for lag, weight in zip(lags.tolist(), weights.tolist(), strict=True):
                later[:-lag] += weight * rows[lag:]
            total += later.T @ rows
        return total + total.T


@dataclass(frozen=True, slots=True)
class _Found:
    """The solution under one smoothness."""

    share: float
    """The smoothness, one of `SMOOTHNESS`."""
    values: Values
    of: Values
    """The unknowns as sums of those that are independent beforehand."""
    shrunk: Values
    """The posterior's covariance of these, if what is left over were independent, is its product with its transpose."""
    noise2: float
    evidence: float
    freedom: float

    @property
    def factor(self) -> Values:
        """The same of the unknowns themselves."""
        return np.asarray(self.of @ self.shrunk)

    def robust(self, normal: Values, repeated: Values, columns: int, lack: float) -> Values:
        """The covariance with what is left over correlated: Huber's and White's, never less than `LEAST_ROBUST` of the
        one without in any direction. The prior of the power of ``columns`` counts `MISFIT` times, and so does the share
        ``lack`` of what is left over that is no noise."""
        power, factor = self.shrunk[:columns], self.factor
        middle = factor.T @ (repeated - normal + (MISFIT - 1) * lack * normal) @ factor / self.noise2
        middle += (MISFIT - 1) * (power.T @ power)
        eigen, U = np.linalg.eigh((middle + middle.T) / 2)
        wide = (factor @ U) * np.sqrt(np.maximum(1 + eigen, LEAST_ROBUST))
        return np.asarray(wide @ wide.T)


def _autocovariance(series: Sequence[Values], good: Sequence[NDArray[np.bool_]], lags: int) -> tuple[Values, int]:
    """Mean products of values so many places apart [lags + 1], 0 where bad, and how many values there are."""
    total, count = np.zeros(lags + 1), np.zeros(lags + 1)
    for values, is_good in zip(series, good, strict=True):
        x, n = np.where(is_good, values, 0.0), len(values)
        for lag in range(min(lags, n - 1) + 1):
            total[lag] += float(np.dot(x[lag:], x[: n - lag]))
            count[lag] += n - lag
    return total / np.maximum(count, 1), int(sum(int(g.sum()) for g in good))


LEAST_KEPT = 0.3
"""Least correlation, from one reading to the next, of the part of the residual that is no noise."""


def _residual(left: Sequence[Values], good: Sequence[NDArray[np.bool_]], spacing_s: float, freedom: float) -> Residual:
    """The process of what is left over, from its correlation over one and two readings."""
    (c0, c1, c2), count = _autocovariance(left, good, 2)
    more = count / max(count - freedom, 0.25 * count, 1.0)
    c0, c1, c2 = (float(c) * more for c in (c0, c1, c2))
    if c0 <= 0:
        return Residual(0.0, 0.0, spacing_s, spacing_s)
    if c1 < STANDS_OUT * c0 / np.sqrt(count):
        return Residual(c0, 0.0, spacing_s / 4, spacing_s)
    kept = float(np.clip(c2 / c1, LEAST_KEPT, 0.9999))
    slow = min(c1 / kept, c0)
    return Residual(c0 - slow, slow, -spacing_s / float(np.log(kept)), spacing_s)
