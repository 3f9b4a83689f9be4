"""How a sensor sees power: which share of its weight each reading has at which moment.

A reading is power at a moment, its mean over a window, or either of them behind a low-pass of first order; a
counter's is the mean between two of its readings. All of these are differences of one function of time: with M(t) the
joules up to a moment, a window sees (M(t + w/2) - M(t - w/2)) / w, and behind a low-pass stands M(t) - tau y(t) in
place of M(t), where y is power behind it. M is a straight line between two edges of cells, so all of it is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.energy.states import StateCells
from powerd_client.signals.signal import Signal
from powerd_core.model import ShuntConversion

Ints = NDArray[np.int64]
Values = NDArray[np.float64]

_LATCH_NS = 15_000.0
"""What a register's transfer adds to the moment of a reading: the part that is left where a chip's cycle is known."""
_CLOCKS = {"INA226": 0.10, "INA228": 0.01, "INA3221": 0.10}
"""Limits of the conversion clocks of chips whose cycle nobody measures (SBOS547, SLYS021, SBOS576)."""
_RENEWED = frozenset({"INA3221"})
"""Of these, those that renew a register when its own conversion ends. Of the others it is not stated when they do."""
_HARMONICS = 8
_REACH = 300.0
"""Time constants of a low-pass whose exponential is still far from the largest double."""
MEMORY = 12.0
"""Time constants before a stretch of readings that are looked at for what a low-pass remembers."""
_FORGOTTEN = 26.0
"""Time constants after which a low-pass remembers 5e-12 of a step."""
_AT_ONCE = 1 << 17
"""Pairs of a reading and a cell that are worked out together."""


@dataclass(frozen=True, slots=True)
class Response:
    """Seconds; a reading's weight is centred ``shift_s`` behind its timestamp."""

    window_s: float
    tau_s: float
    is_counter: bool
    shift_s: float = 0.0

    @classmethod
    def of(cls, signal: Signal) -> Response:
        """As the line states it."""
        if signal.is_counter:
            return cls(0.0, 0.0, True)
        a = signal.line.accuracy
        return cls(a.window_ns * 1e-9, a.filter_ns * 1e-9, False)

    @property
    def width_s(self) -> float:
        """Of the rectangle with the same spread."""
        return float(np.hypot(self.window_s, np.sqrt(12) * self.tau_s))

    @property
    def seen_s(self) -> float:
        """How much time a single reading stands for: the reciprocal of its weight's mean square."""
        return self.window_s + 2 * self.tau_s

    @property
    def margin_s(self) -> tuple[float, float]:
        """How far before and behind its timestamp a reading sees."""
        return self.window_s / 2 + (MEMORY * self.tau_s), self.window_s / 2 + self.tau_s

    def moved(self, by_s: float) -> Response:
        return replace(self, shift_s=self.shift_s + by_s)

    def slowed(self, share: float) -> Response:
        return replace(self, tau_s=self.tau_s * (1 + share))

    def seen(self, cells: StateCells, watts: Values, t_s: Values) -> Values:
        """What readings at ``t_s`` [n] see of power that is ``watts`` [c] in the cells; of a counter [n - 1]."""
        at = np.asarray(t_s) + self.shift_s
        upto = cells.joules(watts)
        if self.is_counter:
            return np.asarray(np.diff(_joules(cells, watts, upto, at)) / np.diff(t_s))
        level = _behind_low_pass(cells, watts, self.tau_s) if self.tau_s > 0 else None
        at = at + self.tau_s
        if self.window_s > 0:
            late, early = at + self.window_s / 2, at - self.window_s / 2
            joules = _joules(cells, watts, upto, late) - _joules(cells, watts, upto, early)
            if level is not None:
                joules -= self.tau_s * (
                    self._low_passed(cells, watts, level, late) - self._low_passed(cells, watts, level, early)
                )
            return np.asarray(joules / self.window_s)
        if level is not None:
            return self._low_passed(cells, watts, level, at)
        return np.asarray(watts[_cell(cells, at)])

    def design(self, cells: StateCells, t_s: Values, columns: int) -> Values:
        """[n, columns] the share of each reading's weight that lies in each column; of a counter [n - 1, columns]."""
        at = np.asarray(t_s) + self.shift_s
        window = np.full(len(at), self.window_s)
        if self.is_counter:
            at, window = (at[1:] + at[:-1]) / 2, np.diff(t_s)
        at = at + self.tau_s
        first = _cell(cells, at - window / 2 - _FORGOTTEN * self.tau_s)
        count = _cell(cells, at + window / 2) - first + 1
        pairs = np.concatenate([[0], np.cumsum(count)])
        design = np.zeros((len(at), columns))
        for a, b in zip(*_pieces(pairs), strict=True):
            row = np.repeat(np.arange(a, b), count[a:b])
            begins = pairs[a:b] - pairs[a]
            cell = np.arange(len(row)) + (first[a:b] - begins)[row - a]
            # What a reading shows of a step where a cell begins, less what it shows of one where the next begins.
            shown = self._of_step(at[row] - cells.at_s[cell], window[row])
            shown[begins] = 1.0
            shown[:-1] -= np.where(np.diff(row) > 0, 0.0, shown[1:])
            places, some = (row - a) * columns, design[a:b].reshape(-1)
            some += np.bincount(places + cells.column[cell], weights=shown, minlength=len(some))
            if len(cells.longer):
                places += cells.length_column[cell]
                some += np.bincount(places, weights=shown * cells.longer[cell], minlength=len(some))
        return design

    def _of_step(self, x: Values, window: Values) -> Values:
        """What a reading shows ``x`` seconds after power rose by one watt."""

        def joules(x: Values) -> Values:
            x = np.maximum(x, 0)
            return np.asarray(x + self.tau_s * np.expm1(-x / self.tau_s) if self.tau_s else x)

        if self.window_s > 0 or self.is_counter:
            return np.asarray((joules(x + window / 2) - joules(x - window / 2)) / window)
        return np.asarray(-np.expm1(-np.maximum(x, 0) / self.tau_s) if self.tau_s else (x >= 0) * 1.0)

    def _low_passed(self, cells: StateCells, watts: Values, level: Values, t_s: Values) -> Values:
        i = _cell(cells, t_s)
        left = np.exp(-np.maximum(t_s - cells.at_s[i], 0) / self.tau_s)
        return np.asarray(watts[i] + (level[i] - watts[i]) * left)


def _cell(cells: StateCells, t_s: Values) -> NDArray[np.intp]:
    """[n] the cell of each moment. Of many moments in order each cell is looked for, which are fewer."""
    last = len(cells.column) - 1
    if len(t_s) < len(cells.column):
        return np.clip(np.searchsorted(cells.at_s, t_s, "right") - 1, 0, last)
    first = np.searchsorted(t_s, cells.at_s[1:-1], "left")
    return np.repeat(np.arange(last + 1), np.diff(first, prepend=0, append=len(t_s)))


def _pieces(upto: Ints) -> tuple[list[int], list[int]]:
    """Rows [n] in pieces, by the number of pairs that all rows before each of them have together [n + 1]."""
    starts = np.searchsorted(upto, np.arange(0, max(int(upto[-1]), 1), _AT_ONCE))
    edges = np.unique(np.append(starts, len(upto) - 1)).tolist()
    return edges[:-1], edges[1:]


def _joules(cells: StateCells, watts: Values, upto: Values, t_s: Values) -> Values:
    """[n] joules from the first cell up to moments in order."""
    i = _cell(cells, t_s)
    into = np.clip(t_s, cells.at_s[0], cells.at_s[-1])
    into -= cells.at_s[i]
    into *= watts[i]
    into += upto[i]
    return np.asarray(into)


def _behind_low_pass(cells: StateCells, watts: Values, tau_s: float) -> Values:
    """[n] what a low-pass shows where each cell begins; at the first one it has come to rest.

    A recursion, solved in blocks so short that no exponential is too large.
    """
    level = np.empty(len(watts))
    now, i = float(watts[0]), 0
    while i < len(watts):
        last = max(int(np.searchsorted(cells.at_s, cells.at_s[i] + _REACH * tau_s, "right")) - 1, i + 1)
        last = min(last, len(watts))
        x = np.minimum((cells.at_s[i : last + 1] - cells.at_s[i]) / tau_s, 2 * _REACH)
        grown = np.exp(x)
        upto = (now + np.concatenate([[0.0], np.cumsum(watts[i:last] * np.diff(grown))])) / grown
        level[i:last], now, i = upto[:-1], float(upto[-1]), last
    return level


def place_limit_ns(signal: Signal) -> float:
    """How far the windows of all readings may lie beside their timestamps together: the part of ``centre_ns`` that no
    number of readings averages out.

    A sensor that is no chip on a bus always has the same delay: all of it. A chip converts freely and is read at any
    moment of its cycle: half a cycle of ``centre_ns`` averages out, and what its clock and the renewing of its register
    leave open does not. How long the cycle is follows from what ``centre_ns`` is made of (`docs/howto/board.md`): for a
    cycle z, of which the window w is a part and the rest b is the bus voltage's, half a cycle, the clock's tolerance of
    what a code's age can be, and b where the register may be renewed earlier. The INA219's cycle is measured when its
    driver starts. Where the chip is not named, only what half a reading distance cannot be is shared. What a slow
    adapter adds is shared by all readings.
    """
    shared = float(signal.line.accuracy.shared_centre_ns)
    centre = signal.centre_ns - shared
    if not isinstance(signal.line.conversion, ShuntConversion):
        return shared + centre
    chip = signal.line.sensor.get("chip", "")
    if chip not in _CLOCKS:
        named = _LATCH_NS if chip == "INA219" else 0.0
        return shared + min(max(centre - signal.spacing_ns / 2, named), centre)
    w, tolerance = signal.window_ns, _CLOCKS[chip]
    # centre = z/2 + tolerance (age + z/2) + latch (+ b), with age = z/2 + w/2 (renewed at once) or 3z/2 - w/2.
    of_bus = centre - _LATCH_NS - w / 2 - 1.5 * tolerance * w
    b = of_bus / (0.5 + tolerance) if chip in _RENEWED else of_bus / (1.5 + 2 * tolerance)
    return shared + max(centre - (w + max(b, 0.0)) / 2, 0.0)


def rounding_u(step: float, seen2: float) -> float:
    """Standard uncertainty, in the unit of ``step``, of the mean of a steady value rounded to multiples of ``step``.

    ``seen2`` is the variance of the readings between which the value stands still, rounding included. Without noise
    every reading is rounded the same way: step / sqrt(12). Normal noise of variance s^2 ahead of the rounding leaves
    of the k-th harmonic of the saw-tooth, step / (pi k) high, the share exp(-2 (pi k s / step)^2) in the mean
    (Widrow, 1956); the value's place within a step is evenly likely.
    """
    if step <= 0:
        return 0.0
    noise2 = max(seen2 / step**2 - 1 / 12, 0.0)
    k2 = np.arange(1, _HARMONICS + 1) ** 2
    square = float(np.sum(np.exp(-4 * np.pi**2 * k2 * noise2) / k2)) / (2 * np.pi**2)
    # What the harmonics left out add where there is no noise.
    rest = (np.pi**2 / 6 - float(np.sum(1 / k2))) / (2 * np.pi**2) if noise2 == 0 else 0.0
    return float(step * np.sqrt(square + rest))
