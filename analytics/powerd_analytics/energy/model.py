"""What a line's readings tell of the power of every state: the model that all its energies come from.

`powerd_analytics.energy.regression` finds it. The unknowns are the power of each column (a bin of a state), the place
of the windows, the lag of power behind its marks, and the time constant of a low-pass; what they leave over of the
readings is a process correlated in time. docs/explanation/energy.md has the theory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from powerd_analytics.energy.response import Response
from powerd_analytics.energy.states import Cells, States
from powerd_analytics.runs.phases import pieces
from powerd_client.signal import LATE_FACTOR, Signal
from powerd_core.errors import AnalysisError

Ints = NDArray[np.int64]
Values = NDArray[np.float64]
Numbers = NDArray[np.signedinteger[Any]]
Moments = tuple[Ints, Values]
"""Nanoseconds in order, and watts at each."""

MOST_LAG_MS, LAG_VARIABLE = 2.0, "POWERD_LAG_MS"
LAG_STEP_S, LATE_SHARE = 0.4e-3, 0.75
"""By which the lag is moved to see what it does to an energy, and how much of that it must be to be moved back."""
COMES_S = 10e-3
"""Time within which power comes to a state from the one before."""
ARRIVES = 0.02
"""Differences of the power that a state follows, as a share of their range, that are not looked at."""
RESTLESS = (0.25, 256.0)
"""Least and greatest variance of the residual of one class of intervals, over that of all readings."""
LEAST_SEEN = 0.1
"""Readings' worth of phases that are to be seen, if there are any: the power of rests says nothing of theirs."""
_EVER = -(1 << 62), 1 << 62


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
        # A counter loses nothing between its readings. Elsewhere what is white counts as noise, in full; if it is power
        # that changes faster than that, it does more at the ends only, where no reading need have seen it.
        spacing = self.spacing_s
        short_s, unseen = np.minimum(spacing, length_s), 1.0 - min(response.seen_s / spacing, 1.0)
        variance = 0.0 if response.is_counter else self.white2 * (length_s + unseen * short_s) * short_s
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
    whitening: Values = field(default_factory=lambda: np.ones(1))
    """Filter that leaves of every reading what those before it do not lead one to expect."""

    integral: tuple[Values, Values] = field(default_factory=lambda: (np.zeros((0, 0)), np.zeros((0, 0))))
    """[r, c] design and square of what is left over, and [r, c] their integral up to each reading."""

    def weighted(self, values: Values) -> Values:
        """Values [r] or [r, c] as the regression takes them."""
        return np.asarray(lfilter(self.whitening, 1.0, (values.T * np.sqrt(self.weight)).T, axis=0))

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
    common: NDArray[np.float64]
    """[q + 3, c] what every run of this sensor has wrong alike, as sums of independent errors with a standard deviation
    of 1: by the stated place, lag and time constant, by what no readings tell of place and lag, and by what is not
    linear in the timing."""
    within_w: Values
    """[q] standard deviation of the power within each column's bin."""
    residual: Residual
    stretches: list[Stretch]

    @property
    def columns(self) -> int:
        return len(self.watts)

    @property
    def readings(self) -> int:
        """How many tell something of the power: all that the regression saw, none where they hardly saw a phase."""
        in_phase = np.repeat(~self.states.is_rest, np.diff(self.states.first_column))
        seen = sum(float(s.design[s.is_good][:, : self.columns][:, in_phase].sum()) for s in self.stretches)
        count = sum(int(s.is_good.sum()) for s in self.stretches)
        return count if seen >= LEAST_SEEN or not in_phase.any() else 0

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
        first, last = (int(t) for t in self.signal.t_ns[[0, -1]])
        length = np.zeros(labels)
        for own in pieces(len(label)):
            inside_ns = np.clip(end_ns[own], first, last) - np.clip(begin_ns[own], first, last)
            length += np.bincount(label[own], weights=inside_ns * 1e-9, minlength=labels)
        of_all = np.maximum(self.residual.all2, 1e-18) * np.maximum(seconds, 1e-12)
        restless = np.where(seconds > 0, np.clip(total[:, q + 4] / of_all, *RESTLESS), 1.0)
        later, earlier = total[:, q + 1], total[:, q + 5]
        total[:, q + 1] = np.where(np.abs(earlier) > np.abs(later), earlier, later)
        total = total[:, : q + 4] * np.where(seconds > 0, length / np.maximum(seconds, 1e-12), 0.0)[:, None]
        # What no stretch has, and what lies before the first reading or behind the last one, is the model's alone.
        for low, high, chosen in (
            (_EVER[0], first, seconds >= 0),
            (last, _EVER[1], seconds >= 0),
            (first, last, seconds <= 0),
        ):
            if not chosen.any():
                continue
            some = (end_ns > low) & (begin_ns < high) & chosen[label]
            for one in np.unique(label[some]).tolist():
                own = some & (label == one)
                total[one, :q] += self._share_of(np.maximum(begin_ns[own], low), np.minimum(end_ns[own], high))
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

    def unusual(self) -> tuple[Moments, Moments]:
        """Moments at which a state follows another power than it does on average, as at the begin of a training, and by
        how many watts that power differs; and those, backwards in time, at which another power follows than usual."""
        states = self.states
        behind, before = states.state[1:], states.state[:-1]
        last_w, first_w = (self.watts[c] for c in (states.first_column[1:] - 1, states.first_column[:-1]))
        found = []
        for follows, other_w, own, other, time in (
            (states.follows, last_w, behind, before, 1),
            (states.follows.T, first_w, before, behind, -1),
        ):
            usual_w = follows @ other_w / np.maximum(follows.sum(axis=1), 1)
            away_w = np.abs(other_w - usual_w[:, None])
            away_w[away_w < ARRIVES * np.ptp(other_w)] = 0.0
            edge_ns, watts = [np.zeros(0, np.int64)], [np.zeros(0)]
            for some in pieces(len(states.edge_ns)):
                away = away_w[own[some], other[some]]
                edge_ns.append(time * states.edge_ns[some][away > 0])
                watts.append(away[away > 0])
            found.append((np.concatenate(edge_ns)[::time], np.concatenate(watts)[::time]))
        return found[0], found[1]

    def from_elsewhere(
        self, begin_ns: Ints, end_ns: Ints, length_s: Values, unusual: tuple[Moments, Moments]
    ) -> Values:
        """Variance (J^2) of intervals [m] that begin at an `unusual` moment or soon after one, or end there or soon
        before: power may come from there for as long as no reading tells, or what a reading saw of both sides of the
        moment is split in the wrong place."""
        variance, unseen_s = np.zeros(len(begin_ns)), min(COMES_S, self.residual.spacing_s + self.response.seen_s)
        for at_ns, share, (edge_ns, away_w) in zip((begin_ns, -end_ns), (1 / 2, 1 / 4), unusual, strict=True):
            if len(edge_ns):
                last = np.searchsorted(edge_ns, at_ns, "right") - 1
                left_s = np.where(last >= 0, unseen_s - (at_ns - edge_ns[last]) * 1e-9, 0.0)
                variance += (share * away_w[last] * np.clip(left_s, 0.0, length_s)) ** 2
        return variance

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

    def common_j(self, begin_ns: Ints, end_ns: Ints) -> Values:
        """[c] what each of the `common` errors does to the mean energy of intervals [m >= 1] of one class."""
        leverage, _ = self.leverage(begin_ns, end_ns, np.zeros(len(begin_ns), np.int32))
        return np.asarray(leverage[0, :-1] @ self.common / len(begin_ns))

    def variance(self, leverage: Values, length_s: Values) -> tuple[Values, Values, Values]:
        """Variances (J^2) [l] of energies with a leverage, of intervals of a mean length: by the states' power alone,
        by what the place, the lag and the time constant add, and how much of the first is misfit."""
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
        # As power lags, an interval may have a part of a bin that is longer than itself, and not the mean one.
        is_part = np.clip(1 - length_s[:, None] / np.maximum(self.states.bin_s, 1e-9), 0, 1)
        within = np.sum((leverage[:, :q] * self.within_w) ** 2 * is_part, axis=1)
        return power + within, np.maximum(whole - power, 0), np.maximum(power - plain, 0) + within
