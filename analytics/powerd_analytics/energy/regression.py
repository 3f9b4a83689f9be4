"""The regression behind a line's model: what is believed of power beforehand, what the readings say, what is left over.

    y_k = sum over columns c of A[k, c] p[c] + drift(t_k) + r_k

A[k, c] is the share of reading k's weight that lies in column c. Three unknowns enter by their derivatives, with priors
of their own: the windows' place, the lag of power behind its marks, the time constant of a low-pass; together they are
the timing. How restless power is within a state, and how soon it comes to the level of a state from that of the one
before, is decided by the evidence of a few hypotheses together. What other lines of the same source say of the same
power is added as blocks of seconds. docs/explanation/energy.md has the theory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from powerd_analytics.energy.model import COMES_S, LineModel, Residual, Stretch, most_lag_ns
from powerd_analytics.energy.response import Response, place_limit_ns
from powerd_analytics.energy.states import States
from powerd_analytics.signals import parts_between
from powerd_client.signal import Signal

Values = NDArray[np.float64]

MOST_ROWS, MOST_ENTRIES, LEAST_ROWS = 1 << 15, 1 << 20, 1 << 12
"""Readings that the regression sees, entries of its design, and readings that it sees of any number of columns."""
STRETCHES = 12
RELAXATIONS_S = (0.0, 1e-3, 4e-3)
"""Time constants with which power comes to a state's level from that of the state before: regulators, capacitors."""
SMOOTHNESS = (0.05, 0.2)
"""Standard deviations of the step from one bin of a state to the next, as shares of the power's scale."""
HYPOTHESES = tuple(product(RELAXATIONS_S, SMOOTHNESS))
BELIEVED = 500.0
"""Independent readings' worth of evidence that is believed of one hypothesis against another."""
BELIEVED_AT_ALL = 1e-6
"""Weight of a hypothesis below which it is not worth working out."""
LEVEL_SHARE = 0.5
"""Least standard deviation of a state's level beforehand, as a share of the mean power."""
REST_SHARE = 0.5
"""Standard deviation of a rest's level about what all rests have in common, as a share of that of any level: while
nothing is marked, less goes on."""
DRIFTS, DRIFT_SHARE = 4, 0.03
"""Polynomials (Legendre's) of the slow drift, and their standard deviation as a share of the power's scale."""
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
_NOISES = np.geomspace(1e-9, 1.0, 109)
"""Variances that are tried, over the square of the power's scale."""


def fit(signal: Signal, states: States, clock_bound_ns: float = 0.0, others: Sequence[Signal] = ()) -> LineModel:
    """The model of a line with two good readings or more; the ``others`` measure the same power."""
    response = Response.of(signal)
    stretches = list(_stretches(signal, states, response))
    regression = _Regression(signal, states, stretches, response, clock_bound_ns, others)
    q = regression.columns
    power, timing = np.full(q, regression.mean_w), np.zeros(3)
    covariance = plain = np.zeros((q + 3, q + 3))
    common, within_w, freedom = np.zeros((q + 3, 5)), np.zeros(q), 0.0
    if regression.readings < 2:
        stretches.clear()
    else:
        known, power = regression.start()
        solutions = []
        for _ in range(ROUNDS):
            regression.build(known, power)
            solutions.append(regression.solve(known, power))
            known, power = regression.next_timing(solutions[-1]), solutions[-1].power
        best = max(solutions, key=lambda of: of.evidence)
        agreeing = [o for o, off in zip(others, regression.gains_off(best), strict=True) if off <= DISAGREES]
        if len(agreeing) < len(others):
            return fit(signal, states, clock_bound_ns, agreeing)
        if best is not solutions[-1]:
            regression.build(best.known, best.before)
        timing, power, plain, freedom = best.known, best.power, best.plain, best.freedom
        covariance = regression.covariance(best)
        common, bent = regression.common_errors(timing, covariance, plain), regression.bent(best)
        covariance = covariance + common[:, 3:] @ common[:, 3:].T + bent @ bent.T
        common, within_w = np.column_stack([common, bent]), regression.within_w(best)
    model = LineModel(
        signal, states, _at(response, timing), float(timing[1]), power, covariance, plain, common,
        within_w, Residual(0.0, 0.0, 1.0, signal.spacing_ns * 1e-9), stretches,
    )  # fmt: skip
    left = [(s.watts - model.seen(s.cells, s.t_s)) * np.sqrt(s.weight) for s in stretches]
    model.residual = _residual(left, [s.is_good for s in stretches], signal.spacing_ns * 1e-9, freedom)
    return model


def _stretches(signal: Signal, states: States, response: Response) -> Iterator[Stretch]:
    """All readings where they are few, else stretches all over the run and where rare states are."""
    columns = max(int(states.first_column[-1]), 1)
    budget = int(np.clip(MOST_ENTRIES // columns, LEAST_ROWS, MOST_ROWS))
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


def _at(response: Response, timing: Values) -> Response:
    place, lag, slower = timing
    return response.moved(float(place - lag)).slowed(float(slower))


@dataclass(frozen=True, slots=True)
class _Solution:
    """Power and timing by all hypotheses together."""

    known: Values
    """[3] the timing of the design, and the power that its derivatives by the timing are of."""
    before: Values
    power: Values
    """[q] at that timing."""
    values: Values
    """All unknowns, as differences from the mean power and from that timing."""
    plain: Values
    """[q + 3, q + 3] covariance if the prior were right and what is left over noise."""
    fits: Sequence[tuple[float, _Fit]]
    """With their weights."""
    evidence: float
    freedom: float


class _Regression:
    """Normal equations of one line, and their solutions.

    The unknowns are the power of each of the q columns less the mean power, the three of the timing, and the drift.
    """

    def __init__(
        self,
        signal: Signal,
        states: States,
        stretches: list[Stretch],
        response: Response,
        clock_bound_ns: float,
        others: Sequence[Signal],
    ) -> None:
        self.states, self.stretches, self.response = states, stretches, response
        self.columns = int(states.first_column[-1])
        watts = np.concatenate([s.watts[s.is_good] for s in stretches] or [np.zeros(0)])
        self.readings = len(watts)
        self.mean_w = float(np.mean(watts)) if len(watts) else 0.0
        low, high = np.percentile(watts, [0.5, 99.5]) if len(watts) else (0.0, 0.0)
        self.scale_w = max(float(high - low), LEVEL_SHARE * abs(self.mean_w), 1e-9)
        seen_s = signal.spacing_ns * 1e-9 if response.is_counter else response.width_s
        several = 1 + seen_s / states.mean_s
        self.least_noise_w = max(LEAST_NOISE * float(high - low) / float(np.sqrt(several)), 1e-9)
        self._rounding2 = (1e-9 * self.scale_w) ** 2
        self._seen_before = 0 if response.is_counter else int(response.seen_s / (signal.spacing_ns * 1e-9) + 1e-6) - 1
        """How many readings before one saw a part of what it sees."""
        self._trust()
        place_ns = float(np.hypot(place_limit_ns(signal), clock_bound_ns))
        self._of_sensor = place_limit_ns(signal) / max(place_ns, 1e-9)
        """Share of what is believed of the place that is the sensor's: its clock is tied anew in each run."""
        self.u_timing = np.array(
            [
                place_ns * 1e-9 / np.sqrt(3),
                most_lag_ns() * 1e-9 / np.sqrt(6),
                (signal.line.accuracy.u_filter or TAU_SHARE) if response.tau_s else 0.0,
            ]
        )
        """Standard uncertainties of place (s), lag (s) and time constant (a share of it) beforehand."""
        self._in_a_row = int(np.clip(self.readings // LAGS_OF, 1, MOST_LAGS)) + 1
        """Readings whose scores are added up, as they may be off alike."""
        self._hypotheses: Sequence[tuple[float, float]] = HYPOTHESES
        self._is_step = np.zeros(self.columns + 4 + DRIFTS, bool)
        self._is_step[: self.columns] = True
        self._is_step[states.first_column[:-1]] = False
        self._step_w = self._steps_w()
        self._believed = {relaxation_s: self._prior(relaxation_s) for relaxation_s in RELAXATIONS_S}
        ends = [s.cells.origin_ns * 1e-9 + t for s in stretches for t in (s.t_s[0], s.t_s[-1])] or [0.0, 1.0]
        self._middle_s, self._half_s = (max(ends) + min(ends)) / 2, max((max(ends) - min(ends)) / 2, 1e-9)
        self._blocks = [self._blocks_of(other) for other in others]
        self._starts: list[tuple[float, Values, Values]] = []
        """Timings from which the fit may begin, with their evidence and the power there."""
        self._noise2 = 0.0
        """Variance of a reading's noise, which a block's counts in relation to; 0 while it is not known."""

    def _trust(self) -> None:
        """Give less weight to readings that see where a state follows another one for once: power comes from there in a
        way that is not the state's, and one such reading of few would turn all others round."""
        rare_ns = self.states.rare_ns
        for s in self.stretches:
            begin_s, rare_s = s.cells.at_s[:-1], s.cells.since(rare_ns)
            is_new = np.searchsorted(rare_s, begin_s, "right") > np.searchsorted(rare_s + COMES_S, begin_s, "right")
            away_w = LEVEL_SHARE * self.scale_w * self.response.seen(s.cells, is_new.astype(np.float64), s.t_s)
            s.weight *= np.maximum(1 / (1 + (away_w / self.least_noise_w) ** 2), LEAST_WEIGHT)

    # -- what is believed beforehand

    def _steps_w(self) -> Values:
        """[s] scale of the steps within each state: the range of the readings from when it first lasts until it last
        does."""
        t_ns = np.concatenate(
            [np.round(s.t_s[-len(s.watts) :] * 1e9).astype(np.int64) + s.cells.origin_ns for s in self.stretches]
            or [np.zeros(0, np.int64)]
        )
        watts = np.concatenate([s.watts for s in self.stretches] or [np.zeros(0)])
        state, edge_ns = self.states.state, self.states.edge_ns
        scale = np.full(len(self.states.bin_ends_s), self.scale_w)
        first = np.unique(state[1:-1], return_index=True)
        last = np.unique(state[1:-1][::-1], return_index=True)[1]
        for s, i, k in zip(*first, len(state) - 3 - last, strict=True):
            some = watts[np.searchsorted(t_ns, edge_ns[i]) : np.searchsorted(t_ns, edge_ns[k + 1])]
            if k > i and len(some) > LOCAL:
                low, high = np.percentile(some, [0.5, 99.5])
                scale[s] = min(max(high - low, LEVEL_SHARE * abs(float(np.mean(some)))), self.scale_w)
        return scale

    def _prior(self, relaxation_s: float) -> Values:
        """[q + 3 + drifts, as many + 1] all unknowns as sums of others that are independent beforehand, with a standard
        deviation of 1: the level of each state, what all rests have in common, the steps between a state's bins (still
        to be multiplied by the smoothness), the timing and the drift."""
        states, q, first = self.states, self.columns, self.states.first_column
        prior = np.zeros((q + 3 + DRIFTS, q + 4 + DRIFTS))
        level = np.zeros((len(first) - 1, prior.shape[1]))
        level[np.arange(len(level)), first[:-1]] = self.scale_w * np.where(states.is_rest, REST_SHARE, self._diluted())
        level[states.is_rest, -1] = self.scale_w
        come = self._come_from(relaxation_s) @ level if relaxation_s else level
        for state, (a, b) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True)):
            left = self._left_of_before(state, relaxation_s)
            prior[a:b] = level[state] + left[:, None] * (come[state] - level[state])
            behind = np.tri(b - a, b - a - 1, -1)
            prior[a:b, a + 1 : b] += (behind - behind.mean(axis=0)) * self._step_w[state]
        prior[q : q + 3, q : q + 3] = np.diag(np.maximum(self.u_timing, 1e-9))
        prior[q + 3 :, q + 3 : -1] = np.eye(DRIFTS) * DRIFT_SHARE * self.scale_w
        return prior

    def _diluted(self) -> float:
        """By how much more phases may differ than readings do that never see phases alone: the reciprocal of the
        largest share that one reading sees of phases."""
        in_phase = np.repeat(np.where(self.states.is_rest, 0.0, 1.0), np.diff(self.states.first_column))
        share = [self.response.seen(s.cells, in_phase[s.cells.column], s.t_s)[s.is_good] for s in self.stretches]
        return 1 / float(np.clip(np.concatenate(share or [np.ones(1)]).max(initial=0.0), LEAST_SHARE, 1.0))

    def _come_from(self, relaxation_s: float) -> Values:
        """[s, s] shares of all levels in the power that each state begins with: that at the end of the state before,
        which came from the one before that."""
        before, count = self.states.before, len(self.states.bin_ends_s)
        usual_s = self.states.usual_s
        left = np.where((before >= 0) & (usual_s > 0), np.exp(-usual_s / relaxation_s), 0.0)
        of_before = np.zeros((count, count))
        of_before[np.arange(count), before] = before >= 0
        at_end = np.linalg.solve(np.eye(count) - left[:, None] * of_before, np.diag(1 - left))
        return np.where(before[:, None] >= 0, of_before @ at_end, np.eye(count))

    def _left_of_before(self, state: int, relaxation_s: float) -> Values:
        """[b] mean over each bin of what is left of the difference to the power that the state began with."""
        begins, usual_s = np.append(0.0, self.states.bin_ends_s[state]), float(self.states.usual_s[state])
        if not relaxation_s:
            return np.zeros(len(begins))
        ends = np.append(begins[1:], usual_s if usual_s > begins[-1] else np.inf)
        grown = np.exp(-begins / relaxation_s) - np.exp(-ends / relaxation_s)
        return np.asarray(relaxation_s * grown / (ends - begins))

    # -- the normal equations

    def build(self, timing: Values, power: Values | None = None) -> None:
        """Build the design at a timing; with the power of the columns, also derivatives by the timing."""
        q, at = self.columns, _at(self.response, timing)
        size = q + 3 + DRIFTS
        self.normal, self.right, self.square = np.zeros((size, size)), np.zeros(size), 0.0
        step_s = max(float(np.hypot(*self.u_timing[:2])) / 4, 0.02e-3)
        for s in self.stretches:
            design = np.zeros((len(s.watts), size))
            design[:, :q] = at.design(s.cells, s.t_s, q)
            if power is not None:
                watts = power[s.cells.column]
                late, early = (at.moved(x).seen(s.cells, watts, s.t_s) for x in (step_s, -step_s))
                design[:, q] = (late - early) / (2 * step_s)
                design[:, q + 1] = -design[:, q]
                if self.response.tau_s:
                    slow, fast = (at.slowed(x).seen(s.cells, watts, s.t_s) for x in (0.03, -0.03))
                    design[:, q + 2] = (slow - fast) / 0.06
            design[:, q + 3 :] = self._drift(s, s.t_s[1:] if at.is_counter else s.t_s)
            s.design = design
            rows, watts = s.weighted(design), s.weighted(s.watts - self.mean_w)
            self.normal += rows.T @ rows
            self.right += rows.T @ watts
            self.square += float(watts @ watts)
        self.of_readings = self.normal
        for rows, watts, _ in self._blocks:
            self.normal = self.normal + self._noise2 * (rows.T @ rows)
            self.right += self._noise2 * (rows.T @ watts)
            self.square += self._noise2 * float(watts @ watts)

    def _blocks_of(self, other: Signal) -> tuple[Values, Values, Values]:
        """What another line says of blocks of seconds [b]: next to nothing of phases, and the mean power where all
        readings see the same moments of the iterations. Design, power less the mean power, and power, in standard
        deviations that are independent.

        Of readings every row is its mean over all places that the windows may have, and what these differ by, as far
        as power is believed to, is a part of the variance: all blocks have one place, or each has its own."""
        q, response, limit_s = self.columns, Response.of(other), place_limit_ns(other) * 1e-9
        places_s = np.zeros(1) if other.is_counter else limit_s * PLACES
        designs, watts, variance = [np.zeros((len(places_s), 0, q + 3 + DRIFTS))], [np.zeros(0)], [np.zeros(0)]
        for s in self.stretches:
            a, b = np.searchsorted(other.t_ns, s.span_ns)
            time_s = float(np.ptp(other.t_ns[a:b])) * 1e-9 if b - a > 1 else 0.0
            most = (b - a - 1) // (1 if other.is_counter else LEAST_IN)
            count = min(BLOCKS, most, int(time_s / max(LEAST_BLOCK * limit_s, 1e-9)))
            if count < 1 or other.broken[a : b - 1].any():
                continue
            ends = np.linspace(a, b - 1, count + 1).astype(np.int64)
            t, readings = s.cells.since(other.t_ns[a:b]), np.diff(ends)
            design = np.zeros((len(places_s), count, q + 3 + DRIFTS))
            if other.is_counter:
                t = t[ends - a]
                watts.append(np.diff(other.value[ends]) / np.diff(t))
                variance.append((self.scale_w * limit_s / np.diff(t)) ** 2 * 2 / 3)
                design[0, :, :q] = response.design(s.cells, t, q)
                middle = (t[1:] + t[:-1]) / 2
            else:
                mean, square, middle = (
                    np.add.reduceat(x[:-1], ends[:-1] - a) / readings
                    for x in (other.value[a:b], other.value[a:b] ** 2, t)
                )
                watts.append(mean)
                variance.append((square - mean**2) / readings)
                for of_place, place_s in zip(design, places_s, strict=True):
                    rows = response.moved(float(place_s)).design(s.cells, t[:-1], q)
                    of_place[:, :q] = np.add.reduceat(rows, ends[:-1] - a) / readings[:, None]
            design[:, :, q + 3 :] = self._drift(s, middle)
            designs.append(design)
        power, design = np.concatenate(watts), np.concatenate(designs, axis=1)
        if not len(power) or abs(float(power.mean()) - self.mean_w) > ALIKE * abs(self.mean_w):
            return np.zeros((0, q + 3 + DRIFTS)), np.zeros(0), np.zeros(0)
        believed = self._believed[0.0] * np.where(self._is_step, SMOOTHNESS[-1], 1.0)
        away = np.concatenate(list((design - design.mean(axis=0)) @ believed), axis=1) / np.sqrt(len(places_s))
        of_places = away @ away.T
        own2 = np.concatenate(variance) + np.diag(of_places) + (LEAST_APART * self.scale_w) ** 2
        covariance = np.diag(own2) + of_places + GAINS_APART**2 * np.outer(power, power)
        every = np.column_stack([design.mean(axis=0), power - self.mean_w, power])
        own = linalg.solve_triangular(np.linalg.cholesky(covariance), every, lower=True)
        return own[:, :-2], own[:, -2], own[:, -1]

    def gains_off(self, solution: _Solution) -> list[float]:
        """By how many standard deviations the gain of each other line is off: if by many, no power fits both the
        readings and that line."""
        return [
            abs(float(power @ (watts - rows @ solution.values))) / max(float(np.linalg.norm(power)), 1e-30)
            for rows, watts, power in self._blocks
        ]

    def _drift(self, stretch: Stretch, t_s: Values) -> Values:
        """[n, drifts] the polynomials of the drift at moments."""
        at = (stretch.cells.origin_ns * 1e-9 + t_s - self._middle_s) / self._half_s
        return np.asarray(np.polynomial.legendre.legvander(at, DRIFTS)[:, 1:])

    def start(self) -> tuple[Values, Values]:
        """The timing to begin with, and the power there: of a few places less the lag, the best.

        From any one alone the power of the first bins might make up for a place that is wrong, and stay so."""
        self.build(np.zeros(3))
        smooth = SMOOTHNESS[-1]
        self._weigh(self._fits([(0.0, smooth)], np.zeros(3))[0].values[: self.columns] + self.mean_w)
        spread = self.u_timing[:2]
        hypotheses: Sequence[tuple[float, float]] = [(x, smooth) for x in RELAXATIONS_S]
        for share in STARTS:
            place, late = share * np.hypot(*spread) * spread**2 / max(float(spread @ spread), 1e-18)
            known = np.array([place, -late, 0.0]) if late < 0 else np.array([min(place + late, spread[0]), 0.0, 0.0])
            self.build(known)
            most = self._fits(hypotheses, known)[0]
            # The best hypothesis at one of these places is the best one at the others, or nearly so.
            hypotheses = (most.hypothesis,)
            evidence = most.evidence - 0.5 * float(np.sum((known[:2] / np.maximum(spread, 1e-9)) ** 2))
            self._starts.append((evidence, known, most.values[: self.columns] + self.mean_w))
        return max(self._starts, key=lambda of: of[0])[1:]

    def _weigh(self, power: Values) -> None:
        """Give less weight to readings where what this power of the columns leaves over is larger than usual for
        seconds: while a GPU starts up, say, which says nothing of the training."""
        left = [s.watts - self.mean_w - s.design[:, : self.columns] @ (power - self.mean_w) for s in self.stretches]
        local = []
        for s, x in zip(self.stretches, left, strict=True):
            upto = np.stack([np.cumsum(np.append(0.0, y)) for y in (x**2 * s.weight, s.weight)])
            ends = np.clip(np.arange(len(x))[:, None] + [-LOCAL // 2, LOCAL // 2 + 1], 0, len(x))
            sums = upto[:, ends[:, 1]] - upto[:, ends[:, 0]]
            local.append(sums[0] / np.maximum(sums[1], LEAST_WEIGHT))
        self._noise2 = usual = max(float(np.median(np.concatenate(local))), self._rounding2)
        for s, near in zip(self.stretches, local, strict=True):
            s.weight *= np.clip(usual / np.maximum(near, self._rounding2), LEAST_WEIGHT, 1.0)
        self._whiten([s.weighted(x) for s, x in zip(self.stretches, left, strict=True)])

    def _whiten(self, left: Sequence[Values]) -> None:
        """Where a reading sees most of what those before it saw, let it count for what these do not lead one to expect
        of what is ``left`` over, an autoregression (Cochrane and Orcutt, 1949; coefficients by Yule and Walker)."""
        order = min(ORDER, self.readings // READINGS_OF_ORDER, self._seen_before)
        if order < 1:
            return
        products = np.array([sum(float(x[k:] @ x[: max(len(x) - k, 0)]) for x in left) for k in range(order + 1)])
        # The noise that is believed beforehand is not correlated.
        products[0] += self.readings * self.least_noise_w**2
        expected = linalg.solve_toeplitz(products[:-1], products[1:])
        for s in self.stretches:
            s.whitening = np.append(1.0, -expected)
        self._noise2 *= 1 - float(expected @ products[1:]) / products[0]

    # -- their solutions

    def solve(self, known: Values, before: Values) -> _Solution:
        """By all hypotheses, each as its evidence says, at the design of the timing that is ``known``."""
        q = self.columns
        fits = self._fits(self._hypotheses, known)
        evidence = np.array([f.evidence for f in fits])
        # Every hypothesis is a little wrong: a long run must not make one of them certain.
        weight = np.exp((evidence - evidence.max()) * min(1.0, BELIEVED / max(self.readings, 1)))
        weight /= weight.sum()
        whole = np.einsum("k,kc->c", weight, [f.values for f in fits])
        believed = [(w, f) for w, f in zip(weight, fits, strict=True) if w > BELIEVED_AT_ALL]
        self._hypotheses = [f.hypothesis for _, f in believed]
        plain = np.zeros((q + 3, q + 3))
        for w, f in believed:
            plain += w * (f.factor @ f.factor.T + np.outer(f.values - whole, f.values - whole))[: q + 3, : q + 3]
        with_timing = plain[:q, q:] @ np.linalg.pinv(plain[q:, q:])
        power = whole[:q] + self.mean_w - with_timing @ whole[q : q + 3]
        freedom = float(sum(w * f.freedom for w, f in believed))
        return _Solution(known, before, power, whole, plain, believed, float(evidence.max()), freedom)

    def covariance(self, solution: _Solution) -> Values:
        """[q + 3, q + 3] of a solution at today's design, by what is left over."""
        size, whole = self.columns + 3, solution.values
        scatter = self._scatter(whole)
        covariance = np.zeros((size, size))
        for w, f in solution.fits:
            away = (f.values - whole)[:size]
            covariance += w * (f.robust(self.of_readings, scatter, self.columns)[:size, :size] + np.outer(away, away))
        return covariance

    def bent(self, solution: _Solution) -> Values:
        """[q + 3, starts] power at other timings, but for what is linear in them, by how likely each timing is.

        Readings in step see few moments of a phase, where the model is off alike each time: their evidence counts as
        that of so many readings as it has columns."""
        with_timing = solution.plain[:, self.columns :] @ np.linalg.pinv(solution.plain[self.columns :, self.columns :])
        most, known, power = max(self._starts, key=lambda of: of[0])
        weight = np.array([np.exp((of - most) * min(1.0, self.columns / self.readings)) for of, *_ in self._starts])
        bent = np.zeros((self.columns + 3, len(weight)))
        for column, w, (_, other, there) in zip(bent.T, weight / weight.sum(), self._starts, strict=True):
            column[: self.columns] = np.sqrt(w) * (there - power - with_timing[: self.columns] @ (other - known))
        return bent

    def within_w(self, solution: _Solution) -> Values:
        """[q] standard deviation of the power within a bin: as from one bin to the next."""
        smoothness = float(sum(w * f.hypothesis[1] for w, f in solution.fits))
        return np.asarray(np.sqrt(MISFIT) * smoothness * np.repeat(self._step_w, np.diff(self.states.first_column)))

    def next_timing(self, solution: _Solution) -> Values:
        """Where the readings want it, within what is believed. Power does not lead its marks."""
        q = self.columns
        timing = solution.known + np.clip(solution.values[q : q + 3], -self.u_timing, self.u_timing)
        with_lag = solution.plain[q:, q + 1]
        timing -= with_lag / max(with_lag[1], 1e-18) * min(timing[1], 0.0)
        return np.clip(timing, -np.sqrt(3) * self.u_timing, np.sqrt(3) * self.u_timing)

    def common_errors(self, timing: Values, covariance: Values, plain: Values) -> Values:
        """[q + 3, 5] what the error of each part of the timing that is believed beforehand does to all unknowns, and
        what is wrong with the difference of place and lag does, as error of the one and of the other; power goes with
        it as it does in the regression."""
        q = self.columns
        by_prior = plain[:, q:] / np.maximum(self.u_timing, 1e-9)
        by_prior[:, 0] *= self._of_sensor
        # Power does not lead its marks: a difference that wants it to says that the place is wrong.
        place_s = min(LEAST_LAG_S, float(self.u_timing[0])) if timing[1] <= 0 else 0.0
        lag_s = min(float(np.sqrt(LEAST_LAG_S**2 - place_s**2)), float(self.u_timing[1]))
        by_difference = []
        for one, others, least_s in ((q, [q + 1, q + 2], place_s), (q + 1, [q, q + 2], lag_s)):
            of_others = np.linalg.pinv(covariance[np.ix_(others, others)]) @ covariance[others, one]
            alone = covariance[:, one] - covariance[:, others] @ of_others
            more = np.sqrt(max(least_s**2 - float(alone[one]), 0.0))
            by_difference.append(alone / max(float(alone[one]), 1e-30) * more)
        return np.column_stack([by_prior, *by_difference])

    def _fits(self, hypotheses: Sequence[tuple[float, float]], known: Values) -> list[_Fit]:
        """The solutions under some hypotheses, that with the most evidence first, as differences from the mean power
        and from what is ``known`` of the timing."""
        q = self.columns
        prior = np.zeros(len(self.right))
        prior[q : q + 3] = known
        # In place of the differences d the sums are solved for: y + D known = A p + D (known + d).
        moved = self.normal @ prior
        square, right = self.square + 2 * float(self.right @ prior) + float(prior @ moved), self.right + moved
        fits = []
        for relaxation_s in dict.fromkeys(of for of, _ in hypotheses):
            of = self._believed[relaxation_s]
            normal = of.T @ self.normal @ of
            fits += [
                self._fit(h, of, (normal + normal.T) / 2, of.T @ right, square)
                for h in hypotheses
                if h[0] == relaxation_s
            ]
        return sorted((replace(f, values=f.values - prior) for f in fits), key=lambda f: -f.evidence)

    def _fit(self, hypothesis: tuple[float, float], of: Values, normal: Values, right: Values, square: float) -> _Fit:
        """In unknowns that are independent beforehand the noise is found by a search along the eigenvectors of the
        ``normal`` matrix of these."""
        scale = np.where(self._is_step, hypothesis[1], 1.0)
        eigen, U = _eigen(scale[:, None] * normal * scale)
        eigen = np.maximum(eigen, 0)
        z = U.T @ (scale * right)
        noise2 = np.maximum(_NOISES * self.scale_w**2, self.least_noise_w**2)
        left = np.maximum(square - np.sum(z**2 / (eigen + noise2[:, None]), axis=1), 0.0)
        evidence = self.readings * np.log(noise2) + np.sum(np.log1p(eigen / noise2[:, None]), axis=1) + left / noise2
        at = int(np.argmin(evidence))
        shrunk = noise2[at] / (eigen + noise2[at])
        of = of * scale
        values, freedom = of @ (U @ (z / (eigen + noise2[at]))), float(np.sum(1 - shrunk))
        return _Fit(hypothesis, values, of, U * np.sqrt(shrunk), float(noise2[at]), -0.5 * float(evidence[at]), freedom)

    def _scatter(self, values: Values) -> Values:
        """What the scores, A' times what is left over, scatter by (Newey and West, 1987): readings that are off alike,
        one after the other or once in so many, and those that are off by more than others, count as what they are.

        By the sums over every window of so many scores in a row, which is the same as their tapered covariances."""
        total, lags = np.zeros_like(self.normal), self._in_a_row
        for s in self.stretches:
            rows = s.weighted(s.design) * s.weighted(s.watts - self.mean_w - s.design @ values)[:, None]
            upto = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])
            ends = np.clip(np.arange(1, len(rows) + lags)[:, None] - [0, lags], 0, len(rows))
            sums = upto[ends[:, 0]] - upto[ends[:, 1]]
            total += sums.T @ sums / lags
        return total


@dataclass(frozen=True, slots=True)
class _Fit:
    """The solution under one hypothesis."""

    hypothesis: tuple[float, float]
    """A relaxation (s) and a smoothness."""
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
        """Its product with its transpose is the posterior's covariance of the unknowns, if so."""
        return self.of @ self.shrunk

    def robust(self, normal: Values, scatter: Values, columns: int) -> Values:
        """The covariance by the ``scatter`` of the scores, in no direction surer than without. The prior of the power
        of ``columns`` counts `MISFIT` times."""
        factor = self.factor
        is_power = np.ones(len(self.shrunk), bool)
        is_power[columns : columns + 3 + DRIFTS] = False
        power = self.shrunk[is_power]
        middle = factor.T @ (scatter / self.noise2 - normal) @ factor / self.noise2
        middle += (MISFIT - 1) * (power.T @ power)
        eigen, U = _eigen((middle + middle.T) / 2)
        wide = (factor @ U) * np.sqrt(1 + np.maximum(eigen, 0))
        return np.asarray(wide @ wide.T)


def _eigen(symmetric: Values) -> tuple[Values, Values]:
    """Eigenvalues and eigenvectors. Divide and conquer, numpy's way, did not converge in one of 20,000 regressions with
    OpenBLAS' kernels for Haswell; this way (MRRR) is as quick."""
    values, vectors = linalg.eigh(symmetric, driver="evr", check_finite=False)
    return values, vectors


def _residual(left: Sequence[Values], good: Sequence[NDArray[np.bool_]], spacing_s: float, freedom: float) -> Residual:
    """The process of what is left over, from its correlation over one and two readings."""
    series, count = [np.where(g, x, 0.0) for x, g in zip(left, good, strict=True)], sum(int(g.sum()) for g in good)
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
