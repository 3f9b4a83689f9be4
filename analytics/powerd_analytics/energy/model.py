"""What a line's readings tell of the power of every state: the model that all its energies come from.

`powerd_analytics.energy.regression` finds it. The unknowns are the power of each column (a bin of a state), the place
of the windows, the lag of power behind its marks, and the time constant of a low-pass; what they leave over of the
readings is a process correlated in time. docs/explanation/energy.md has the theory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.response import Response
from powerd_analytics.energy.states import StateCells, States
from powerd_analytics.runs.phases import pieces
from powerd_client.signals.signal import LATE_FACTOR, Signal
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


@dataclass(frozen=True, slots=True)
class Sample:
    """The readings that the regression sees: those of stretches of time, one after the other."""

    cells: StateCells
    """Of all stretches. What lies between two of them belongs to the last cell of the first."""
    t_s: Values
    """[n] since the first cell."""
    watts: Values
    """[r] power of each reading; of a counter, r = n - 1, of each interval between two."""
    is_good: NDArray[np.bool_]
    """[r] False for what a counter has of an interval in which it was set back, and between two stretches."""
    rows: tuple[slice, ...]
    """Rows r of each stretch."""
    spans_ns: Ints
    """[stretches, 2] the first and the last reading of each."""

    @property
    def readings(self) -> int:
        return int(self.is_good.sum())

    @property
    def at_s(self) -> Values:
        """[r] moments of the rows; of a counter's where they end."""
        return self.t_s[len(self.t_s) - len(self.watts) :]


@dataclass(frozen=True)  # without slots: what follows from the fields is worked out once
class LineModel:
    """The power of one line by states."""

    signal: Signal
    states: States
    response: Response
    """With the place and the lag taken into account."""
    lag_s: float
    watts: Values
    """[q] of each column; of those by length, for intervals twice as long as usual less what the mean one has."""
    residual: Residual

    def upto(self, cells: StateCells, t_s: Values) -> Values:
        """Joules of the model from the first cell up to moments."""
        return np.asarray(np.interp(t_s - self.lag_s, cells.at_s, cells.joules(cells.power(self.watts))))

    def seen(self, cells: StateCells, t_s: Values) -> Values:
        """What readings at moments would show of the model."""
        return self.response.seen(cells, cells.power(self.watts), t_s)

    @cached_property
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

    def from_elsewhere(self, begin_ns: Ints, end_ns: Ints, length_s: Values) -> Values:
        """Variance (J^2) of intervals [m] that begin at an `unusual` moment or soon after one, or end there or soon
        before: power may come from there for as long as no reading tells, or what a reading saw of both sides of the
        moment is split in the wrong place."""
        variance, unseen_s = np.zeros(len(begin_ns)), min(COMES_S, self.residual.spacing_s + self.response.seen_s)
        for at_ns, share, (edge_ns, away_w) in zip((begin_ns, -end_ns), (1 / 2, 1 / 4), self.unusual, strict=True):
            if len(edge_ns):
                last = np.searchsorted(edge_ns, at_ns, "right") - 1
                left_s = np.where(last >= 0, unseen_s - (at_ns - edge_ns[last]) * 1e-9, 0.0)
                variance += (share * away_w[last] * np.clip(left_s, 0.0, length_s)) ** 2
        return variance


def integral_of(model: LineModel, sample: Sample, A: Values) -> tuple[Values, Values]:
    """[r, q + 4] the design A of a sample and the square of what the model leaves over, and [n, q + 4] their integral
    up to each reading, as the residual is interpolated."""
    dt, response = np.diff(sample.t_s), model.response
    left = sample.watts - model.seen(sample.cells, sample.t_s)
    rows = np.column_stack([A, left**2]) * sample.is_good[:, None]
    steps = (rows if response.is_counter else (rows[1:] + rows[:-1]) / 2) * dt[:, None]
    if not response.is_counter:
        steps[:, :-1] *= model.residual.bridged(dt - response.seen_s)[0][:, None]
    return rows, np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(steps, axis=0)])


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the regression of one line finds that serves those that see power alike."""

    timing: Values
    """[3] from which its rounds begin."""
    hypotheses: tuple[int, ...]
    """Numbers of those that are believed."""
    at: int
    """Number of the noise of its first fit."""
    bent: Values
    """[q + 3, starts] what other timings do to the power, but for what is linear in them, as a share of its scale."""


@dataclass(frozen=True)  # likewise
class Posterior:
    """What the regression knows and does not know of the power of a line.

    The unknowns are the power of each of the q columns, the place, the lag and the time constant.
    """

    model: LineModel
    covariance: Values
    """[q + 3, q + 3]"""
    plain: Values
    """The same if the prior were right and what is left over noise."""
    common: Values
    """[q + 3, c] what every run of this sensor has wrong alike, as sums of independent errors with a standard deviation
    of 1: by the stated place, lag and time constant, by what no readings tell of place and lag, and by what is not
    linear in the timing."""
    within_w: Values
    """[bins] standard deviation of the power within each column's bin."""
    sample: Sample
    beginning: Beginning | None
    integral: tuple[Values, Values]
    """By `integral_of`."""

    @cached_property
    def readings(self) -> int:
        """How many tell something of the power: all that the regression saw, none where they hardly saw a phase."""
        states, (rows, _) = self.model.states, self.integral
        in_phase = np.repeat(~states.is_rest, np.diff(states.first_column))
        seen = float(rows[:, : len(in_phase)].sum(axis=0) @ in_phase) if len(rows) else 0.0
        return self.sample.readings if seen >= LEAST_SEEN or not in_phase.any() else 0

    @cached_property
    def _leverages(self) -> dict[bytes, tuple[Values, Values]]:
        """By the digest of what was asked: tables ask for the same intervals up to three times, and the answer is small
        where it takes long."""
        return {}

    def leverage(self, begin_ns: Ints, end_ns: Ints, label: Numbers) -> tuple[Values, Values]:
        """As `_leverage_of`, worked out once."""
        digest = sha256(usedforsecurity=False)
        for array in (begin_ns, end_ns, label):
            digest.update(np.ascontiguousarray(array).data)
            digest.update(array.dtype.str.encode())
        key = digest.digest()
        if key not in self._leverages:
            self._leverages[key] = self._leverage_of(begin_ns, end_ns, label)
        leverage, restless = self._leverages[key]
        return leverage.copy(), restless.copy()

    def _leverage_of(self, begin_ns: Ints, end_ns: Ints, label: Numbers) -> tuple[Values, Values]:
        """[l, q + 4] seconds (joules by unit) by which each unknown moves the energy of all intervals [m] of a label
        together, as the readings that the regression saw tell: the model's part less what its readings take back. And
        [l] the square of what is left over in them, over that of all readings."""
        labels = int(label.max(initial=-1)) + 1
        model, q = self.model, len(self.model.watts)
        total, seconds = np.zeros((labels, q + 6)), np.zeros(labels)
        if len(self.sample.spans_ns):
            for own in pieces(len(label)):
                self._add_leverage(total, seconds, begin_ns[own], end_ns[own], label[own])
        first, last = (int(t) for t in model.signal.t_ns[[0, -1]])
        length = np.zeros(labels)
        for own in pieces(len(label)):
            inside_ns = np.clip(end_ns[own], first, last) - np.clip(begin_ns[own], first, last)
            length += np.bincount(label[own], weights=inside_ns * 1e-9, minlength=labels)
        of_all = np.maximum(model.residual.all2, 1e-18) * np.maximum(seconds, 1e-12)
        restless = np.where(seconds > 0, np.clip(total[:, q + 4] / of_all, *RESTLESS), 1.0)
        later, earlier = total[:, q + 1], total[:, q + 5]
        total[:, q + 1] = np.where(np.abs(earlier) > np.abs(later), earlier, later)
        total = total[:, : q + 4] * np.where(seconds > 0, length / np.maximum(seconds, 1e-12), 0.0)[:, None]
        # What no stretch has, and what lies before the first reading or behind the last one, is the model's alone.
        is_seen = seconds > 0
        for low, high, chosen in ((_EVER[0], first, None), (last, _EVER[1], None), (first, last, ~is_seen)):
            if chosen is not None and not chosen.any():
                continue
            some = (end_ns > low) & (begin_ns < high)
            if chosen is not None:
                some &= chosen[label]
            which = np.flatnonzero(some)
            which = which[np.argsort(label[which], kind="stable")]
            for of_label in np.split(which, np.flatnonzero(np.diff(label[which])) + 1) if len(which) else ():
                share = self._share_of(np.maximum(begin_ns[of_label], low), np.minimum(end_ns[of_label], high))
                total[int(label[of_label[0]])][:q] += share
        return total, restless

    def _add_leverage(self, total: Values, seconds: Values, begin_ns: Ints, end_ns: Ints, label: Numbers) -> None:
        """Add those of intervals to the sums [l, q + 6] of each label, and to the seconds [l] that lie in stretches."""
        spans = self.sample.spans_ns
        covered_ns = np.concatenate([[0], np.cumsum(spans[:, 1] - spans[:, 0])])
        # A moment between two stretches is as good as the end of the first.
        ends = np.concatenate([begin_ns, end_ns])
        number = np.clip(np.searchsorted(spans[:, 0], ends, "right") - 1, 0, len(spans) - 1)
        inside = np.clip(ends, spans[number, 0], spans[number, 1])
        upto_s = (covered_ns[number] + inside - spans[number, 0]) * 1e-9
        labels, m = len(seconds), len(begin_ns)
        seconds += np.bincount(label, weights=upto_s[m:] - upto_s[:m], minlength=labels)
        edges, place = np.unique(np.concatenate([inside, spans.ravel()]), return_inverse=True)
        sign = np.concatenate([np.full(m, -1.0), np.ones(m)])
        both = np.concatenate([label, label]).astype(np.int64) * len(edges) + place[: 2 * m]
        pairs, where = np.unique(both, return_inverse=True)
        weight = np.bincount(where, weights=sign)
        pairs, weight = pairs[weight != 0], weight[weight != 0]
        if not len(pairs):
            return
        upto = self._leverage_upto(self.sample.cells.since(edges), np.searchsorted(edges, spans[1:, 0]))
        of, at = np.divmod(pairs, len(edges))
        first = np.flatnonzero(np.diff(of, prepend=-1))
        for a, b in zip(first, np.append(first[1:], len(of)), strict=True):
            total[of[a]] += weight[a:b] @ upto[at[a:b]]

    def _leverage_upto(self, at_s: Values, begins: NDArray[np.intp]) -> Values:
        """[e, q + 6] up to each of some moments, the first readings of stretches with the numbers ``begins`` among
        them; what lies before these, between two stretches, counts nothing."""
        model, cells = self.model, self.sample.cells
        q = len(model.watts)
        upto = np.zeros((len(at_s), q + 6))
        between = Response(0.0, 0.0, is_counter=True, shift_s=-model.lag_s).design(cells, at_s, q)
        np.cumsum(between * np.diff(at_s)[:, None], axis=0, out=upto[1:, :q])
        # Power follows its marks and never leads them: what matters at a mark is the power before it.
        step, now = LAG_STEP_S, model.upto(cells, at_s)
        upto[:, q + 1] = upto[:, q + 5] = (model.upto(cells, at_s - step) - now) / step
        upto[:, q + 3] = -upto[:, q + 1]
        if model.lag_s > LATE_SHARE * step:
            # It may also follow less late: behind a pause as short as that there is another power.
            upto[:, q + 5] = (now - model.upto(cells, at_s + step)) / step
        back = self._line_upto(at_s)
        upto[:, : q + 3] -= back[:, :-1]
        upto[:, q + 4] = back[:, -1]
        upto[:, q + 5] -= back[:, q + 1]
        for begin in begins.tolist():
            upto[begin:] -= upto[begin] - upto[begin - 1]
        return upto

    def _line_upto(self, at_s: Values) -> Values:
        """[e, q + 4] integral up to moments of the design as the residual is interpolated, and of its square."""
        t, (rows, upto) = self.sample.t_s, self.integral
        i = np.clip(np.searchsorted(t, at_s, "right") - 1, 0, len(t) - 2)
        dt = t[i + 1] - t[i]
        into = np.clip((at_s - t[i]) / dt, 0, 1)[:, None]
        if self.model.response.is_counter:
            return np.asarray(upto[i] + (upto[i + 1] - upto[i]) * into)
        part = (rows[i] + (rows[i + 1] - rows[i]) * into / 2) * into * dt[:, None]
        part[:, :-1] *= self.model.residual.bridged(dt - self.model.response.seen_s)[0][:, None]
        return np.asarray(upto[i] + part)

    def _share_of(self, begin_ns: Ints, end_ns: Ints) -> Values:
        """Seconds [q] of intervals in each column, for those that the regression did not see: a few of them tell."""
        some = np.linspace(0, len(begin_ns) - 1, min(len(begin_ns), 16)).astype(int)
        share = np.zeros(len(self.model.watts))
        for b, e in zip(begin_ns[some].tolist(), end_ns[some].tolist(), strict=True):
            if e > b:
                cells = self.model.states.cells(b, e)
                length = np.diff(cells.at_s)
                share += np.bincount(cells.column, weights=length, minlength=len(share))
                if len(cells.longer):
                    share += np.bincount(cells.length_column, weights=length * cells.longer, minlength=len(share))
        total = share[: self.model.states.first_column[-1]].sum()
        return share * (((end_ns - begin_ns) * 1e-9).sum() / total) if total > 0 else share

    def is_lumped(self, begin_ns: Ints, end_ns: Ints, label: Numbers, labels: int) -> NDArray[np.bool_]:
        """[l] classes of which most intervals lie in the state that stands for several, and are shorter than twenty
        readings."""
        if self.model.states.lumped < 0:
            return np.zeros(labels, bool)
        middle = np.searchsorted(self.model.states.edge_ns, begin_ns + (end_ns - begin_ns) // 2, "right")
        is_short = (end_ns - begin_ns) * 1e-9 < 20 * max(self.model.residual.spacing_s, self.model.response.width_s)
        lumped = (self.model.states.state[middle] == self.model.states.lumped) & is_short
        count = np.bincount(label, minlength=labels)
        return np.asarray(np.bincount(label, weights=lumped, minlength=labels) > count / 2)

    def common_j(self, begin_ns: Ints, end_ns: Ints) -> Values:
        """[c] what each of the `common` errors does to the mean energy of intervals [m >= 1] of one class."""
        leverage, _ = self.leverage(begin_ns, end_ns, np.zeros(len(begin_ns), np.int32))
        return np.asarray(leverage[0, :-1] @ self.common / len(begin_ns))

    def variance(self, leverage: Values, length_s: Values) -> tuple[Values, Values, Values]:
        """Variances (J^2) [l] of energies with a leverage, of intervals of a mean length: by the states' power alone,
        by what the place, the lag and the time constant add, and how much of the first is misfit."""
        q = len(self.model.watts)
        states = leverage[:, :q]
        whole = np.sum(leverage @ self.covariance * leverage, axis=1)
        power = np.sum(states @ self.covariance[:q, :q] * states, axis=1)
        other = self.covariance[q:, q:]
        if np.any(other):
            with_timing = states @ self.covariance[:q, q:]
            power -= np.sum(with_timing @ np.linalg.pinv(other) * with_timing, axis=1)
        power = np.clip(power, 0, np.maximum(whole, 0))
        plain = np.sum(states @ self.plain[:q, :q] * states, axis=1)
        # As power lags, an interval may have a part of a bin that is longer than itself, and not the mean one.
        bin_s = self.model.states.bin_s
        is_part = np.clip(1 - length_s[:, None] / np.maximum(bin_s, 1e-9), 0, 1)
        within = np.sum((states[:, : len(bin_s)] * self.within_w) ** 2 * is_part, axis=1)
        return power + within, np.maximum(whole - power, 0), np.maximum(power - plain, 0) + within
