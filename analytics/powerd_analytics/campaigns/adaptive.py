"""The best cap from a few runs: five caps twice, then rounds of runs where they tell most. With a card that is known to
be like the one at hand the five caps come once.

`Adaptive` says which caps to run next, takes what the runs gave, and ends with a promise or without one. A promise
means that the chosen cap costs at most 1 % more of the metric than the best cap, with 95 % probability: steps of a
card's voltage alone move the least cap by up to 0.6 %, so that nobody could keep 0.5 %. The curve is
the fit of `curve`, guarded against cards that disobey its form. Nothing here reads a clock or a file; what is random
comes from the seed and the number of runs so far. The state is therefore rebuilt by observing the same runs again.

The next caps are those with the greatest expected improvement (Jones, Schonlau and Welch, "Efficient global
optimization of expensive black-box functions", 1998).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.campaigns.curve import CapCurve, Runs, cells_of, curve_of
from powerd_analytics.frame.merits import merit_of
from powerd_core.errors import AnalysisError
from powerd_core.gpu_physics import Card

FIRST_CAPS, FIRST_ROUNDS = 5, 2
FIRST_ROUNDS_LIKE = 1
"""With a card that is like this one. Without any, promises after five runs are broken where a loader overlaps."""
MOST_RUNS = 34
PROMISE = 0.01
"""Of ln M: what the chosen cap may cost more than the best."""
DRAWS = 400
FORM_FAILS = 0.01
"""A deviation from the form from this amplitude on asks for more before a promise."""
NEIGHBOURS = 2
"""Levels on either side of the chosen cap that must then be measured."""
APART = 1 / 16
"""Of the range of levels: two caps of a round are at least so far apart (10 W where caps go from 100 to 260 W)."""


class Verdict(NamedTuple):
    """How the rounds ended."""

    is_promised: bool
    cap_w: float
    """The best cap as far as is known."""
    excess: float
    """By how much more of the metric it may cost than the best, a share: the quantile that a promise asks for."""
    runs: int
    remaining: tuple[tuple[float, int], ...]
    """The best cap and those beside it, and how many runs each still needs to be told from the others by its own;
    empty where it is promised."""
    is_flat: bool = False
    """Whether no cap binds, by the driver: then all are one."""


class _State(NamedTuple):
    """What the runs so far tell."""

    curve: CapCurve
    best: int
    """Index of the level with the least mean ln M."""
    excess: NDArray[np.float64]
    """[DRAWS] of ln M at the best level over the least of the draw."""
    improvement: NDArray[np.float64]
    """[L] expected, of each level over the best."""


class Adaptive:
    """The rounds of one training on one card."""

    def __init__(
        self,
        levels_w: Sequence[float],
        default_w: float,
        metric: str = "edp",
        seed: int = 0,
        grid_repeats: int = 5,
        like: Card | None = None,
    ) -> None:
        """``levels_w``: caps that can be set, the default among them; ``like``: a card that was fitted to this one, or
        to one of its kind, where the curve begins with its constants. Raises `AnalysisError` for fewer than five, and
        for a metric that is none."""
        self.levels_w = tuple(sorted({float(level) for level in levels_w}))
        self.default_w, self.metric, self.seed = float(default_w), merit_of(metric), seed
        self.grid_repeats, self.like = grid_repeats, like
        if len(self.levels_w) < FIRST_CAPS or self.default_w not in self.levels_w:
            raise AnalysisError(
                f"rounds need at least {FIRST_CAPS} levels of the cap, the default of {default_w:g} W among them"
            )
        self._runs: list[tuple[float, float, float, int]] = []
        self._round = 0
        self._waiting: list[float] = []
        self._verdict: Verdict | None = None
        self._plan()

    def end_flat(self) -> None:
        """The driver says that the least cap does not bind: no other one does, and the default is as good as any."""
        self._verdict = Verdict(True, self.default_w, 0.0, len(self._runs) + 1, (), is_flat=True)
        self._waiting = []

    @property
    def verdict(self) -> Verdict | None:
        """None while rounds go on."""
        return self._verdict

    @property
    def curve(self) -> CapCurve:
        """What the runs so far tell. Raises `AnalysisError` for runs at fewer than three caps."""
        return self._curve()

    def next_round(self) -> list[float] | None:
        """Caps (W) still to run in this round, in their order, the reference at the default among them; None: the
        rounds are over, see `verdict`."""
        return list(self._waiting) or None

    def observe(self, cap_w: float, energy_j: float, time_s: float) -> None:
        """One run of the round. Raises `AnalysisError` for a cap that the round does not wait for, and for no joules
        or seconds above 0."""
        if cap_w not in self._waiting:
            raise AnalysisError(f"no run at {cap_w:g} W is awaited: leave it out")
        if not (0 < energy_j < np.inf and 0 < time_s < np.inf):
            raise AnalysisError(f"a run at {cap_w:g} W has no joules or no seconds above 0: repeat it")
        self._waiting.remove(cap_w)
        self._runs.append((float(cap_w), energy_j, time_s, self._round))
        if not self._waiting:
            self._round += 1
            self._plan()

    def _plan(self) -> None:
        """The caps of the next round, or the verdict."""
        rng = np.random.default_rng([self.seed, len(self._runs)])
        if self._round < (FIRST_ROUNDS if self.like is None else FIRST_ROUNDS_LIKE):
            caps = self._first_caps()
        else:
            state = self._state(rng)
            needed = self._needed(state)
            is_sure, excess = self._promise(state)
            if is_sure and not needed:
                self._verdict = Verdict(True, self.levels_w[state.best], excess, len(self._runs), ())
                return
            caps = self._caps_of_round(state, needed)
            if len(self._runs) + len(caps) > MOST_RUNS:
                self._verdict = Verdict(
                    False, self.levels_w[state.best], excess, len(self._runs), self._remaining(state)
                )
                return
        self._waiting = [caps[i] for i in rng.permutation(len(caps))]

    def _first_caps(self) -> list[float]:
        """Five levels in about equal ratios; the one nearest to the default is the default, the reference."""
        levels = np.log(self.levels_w)
        wanted = np.linspace(levels[0], levels[-1], FIRST_CAPS)
        wanted[np.argmin(np.abs(wanted - np.log(self.default_w)))] = np.log(self.default_w)
        caps: list[float] = []
        for log_w in wanted:
            free = [i for i, level in enumerate(self.levels_w) if level not in caps]
            caps.append(self.levels_w[min(free, key=lambda i: abs(levels[i] - log_w))])
        return caps

    def _curve(self) -> CapCurve:
        caps, joules, seconds, rounds = zip(*self._runs, strict=True) if self._runs else ((), (), (), ())
        cells = cells_of(Runs(caps, joules, seconds, rounds), self.levels_w)
        return curve_of(cells, self.levels_w, self.default_w, guarded=True, like=self.like)

    def _state(self, rng: np.random.Generator) -> _State:
        curve = self._curve()
        log_m = self.metric.logarithm(*curve.draws(DRAWS, rng))
        best = int(np.argmin(log_m.mean(axis=0)))
        improvement = np.maximum(log_m[:, [best]] - log_m, 0.0).mean(axis=0)
        return _State(curve, best, log_m[:, best] - log_m.min(axis=1), improvement)

    def _promise(self, state: _State) -> tuple[bool, float]:
        """Whether the best level is sure enough, and the quantile that decides."""
        quantile = 0.95 if state.curve.deviation < FORM_FAILS else 0.99
        excess = float(np.quantile(state.excess, quantile))
        return excess < PROMISE, excess

    def _needed(self, state: _State) -> list[float]:
        """Levels that must be run before a promise: the best one; where the form fails the best one twice, and its
        neighbours."""
        counts = Counter(cap_w for cap_w, *_ in self._runs)
        best = state.best
        wanted = Counter([self.levels_w[best]])
        if state.curve.deviation >= FORM_FAILS:
            first, last = max(0, best - NEIGHBOURS), best + NEIGHBOURS
            wanted = Counter([self.levels_w[best], *self.levels_w[first : last + 1]])
        return list((wanted - counts).elements())

    def _caps_of_round(self, state: _State, needed: Sequence[float]) -> list[float]:
        """The reference, the best level, and two more: those that a promise still needs, then those with the greatest
        expected improvement."""
        best_w = self.levels_w[state.best]
        apart_w = APART * (self.levels_w[-1] - self.levels_w[0])
        others: list[float] = [cap_w for cap_w in needed if cap_w != best_w][:2]
        for i in np.argsort(-state.improvement, kind="stable"):
            cap_w = self.levels_w[i]
            if len(others) < 2 and cap_w != best_w and all(abs(cap_w - other) >= apart_w for other in others):
                others.append(cap_w)
        return [self.default_w, best_w, *others]

    def _remaining(self, state: _State) -> tuple[tuple[float, int], ...]:
        counts = Counter(cap_w for cap_w, *_ in self._runs)
        beside = self.levels_w[max(0, state.best - NEIGHBOURS) : state.best + NEIGHBOURS + 1]
        left = ((cap_w, self.grid_repeats - counts[cap_w]) for cap_w in sorted({*beside, self.default_w}))
        return tuple((cap_w, runs) for cap_w, runs in left if runs > 0)
