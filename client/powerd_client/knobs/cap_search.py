"""The best power cap from a few windows of one training: which cap to try next, and what the windows say in the end.
What is said of caps (W) holds for clocks (MHz), too: time falls with either.

Windows of candidates lie between windows at the default cap, the reference: A B C D A E F G A ... Each candidate
counts relative to the references before and behind it. What drifts slowly drops out that way.

Spread caps come first, from the default downwards, until one is too slow or clearly worse: lower ones then are, too,
as time falls with the cap and the metric has one minimum. Then the minimum is refined where a curve through all windows
is least, with golden-section steps where that does not advance (Brent, "Algorithms for minimization without
derivatives", 1973, chapter 5), over the logarithm of the cap and not below the cap that is just fast enough. The curve
is the mean of a Gaussian process on ln M: a parabola, and what is smooth beside it. By it the best cap is chosen, too:
the least of a few windows is the one with the luckiest noise.

Nothing here reads a clock or draws a number: the same windows give the same decisions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from powerd_core.errors import ConfigError

METRICS: Mapping[str, tuple[int, int]] = {"e": (1, 0), "edp": (1, 1), "ed2p": (1, 2)}
"""Exponents of energy and time."""
MOST_WINDOWS = 14
BETWEEN = 3
"""Candidates between two references: these cost more than they tell."""
SPREAD = 4
"""Caps below the default that are tried first, in equal ratios."""
CLEARLY_WORSE, WORSE_STEPS = 0.02, 1.5
"""Of ln M above the least so far, and in steps between references: the greater one counts."""
NOISE = 0.03
"""Standard deviation of ln M between two windows, as long as there is one reference alone."""
NEAR = 0.02
"""Of ln cap: closer caps are one. A minimum is so flat that M differs by less than 0.1 % there."""
WIDE = 0.15
"""Of ln cap: such a gap beside the best cap is looked into."""
GOLDEN = (3 - math.sqrt(5)) / 2
LEAST_CURVE = 4
"""Caps that a curve is drawn through."""
PARABOLA_SD, SMOOTH_SD, SMOOTH_LENGTH = 1.0, 0.03, 0.25
"""Standard deviations of ln M that a curve may have: of a parabola's coefficients, and of the rest, which is smooth
over so much of ln cap."""
NEARBY = 0.5
"""Of ln cap: caps so near the best one are what the curve is drawn through. Farther away a cap may not bind at all."""
LEAST_NOISE = 0.003
"""Of ln M of a window, which a few equal references do not refute."""
LEAST_STEP = 0.004
"""Of ln cap: what the search for the cap that is just fast enough still tells apart."""
TIME_MARGIN = 0.001
"""Of ln t: a cap that is to be just fast enough aims so far inside, as windows have noise."""
FIRST_LOSS, NEXT_GAIN = 0.1, 0.01
"""Of M: what a window of the search is thought to lose before any was seen, and what a further cap is thought to
gain."""
STUDENT_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
"""By degrees of freedom, from 1 on."""


@dataclass(frozen=True, slots=True)
class CapWindow:
    """Whole iterations under one cap, or at one clock: joules and seconds of an iteration."""

    level: float
    energy_j: float
    u95_j: float
    time_s: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen cap against the default one, for an iteration each."""

    level: float
    default: float
    windows: int
    energy_j: float
    time_s: float
    default_energy_j: float
    default_time_s: float
    saving_j: float
    saving_u95_j: float
    """Of the scatter of windows and of what the sensor is not sure of; infinite where one reference alone was seen."""
    slowdown: float
    """A share of the default's time."""
    as_good: tuple[float, ...]
    """Caps that were tried and cannot be told from the chosen one, itself among them."""


class CapSearch:
    """The windows of one training, and what they say."""

    def __init__(self, least_w: float, default: float, metric: str = "edp", max_slowdown: float = 0.05) -> None:
        """Raises `ConfigError` for a metric that is none, and for a slowdown that is no share."""
        if metric not in METRICS:
            raise ConfigError(f"{metric!r} is no metric to choose a cap by: there are {', '.join(METRICS)}")
        if not 0 <= max_slowdown < 1:
            raise ConfigError(f"max_slowdown={max_slowdown}: give a share of the time, from 0 to 1, as 0.05 for 5 %")
        self._least_w, self.default, self._exponents = float(least_w), float(default), METRICS[metric]
        self._slowest = math.log1p(max_slowdown)
        self._windows: list[CapWindow] = []
        self._refused_w: float | None = None
        ratio = least_w / default
        self._spread = [self._whole(default * ratio ** (i / SPREAD)) for i in range(1, SPREAD + 1)]

    def next_cap(self, windows_left: float = math.inf) -> float | None:
        """The cap of the next window, None where the search is over: nothing more is to be found, or the rest of the
        training, as long as so many windows, cannot repay the search."""
        caps = [window.level for window in self._windows]
        if not caps:
            return self.default
        candidate = self._candidate() if len(caps) < MOST_WINDOWS - 1 and self._repays(windows_left) else None
        if caps[-1] == self.default:
            return candidate
        if candidate is None or self.default not in caps[-BETWEEN:]:
            return self.default
        return candidate

    def _repays(self, windows_left: float) -> bool:
        """Whether a further cap and the reference beside it are worth what they cost, by what windows have cost."""
        if math.isinf(windows_left):
            return True
        points = self._points()
        least = self._log_m(points[self._best(points)])
        losses = [math.expm1(self._log_m(points[window.level]) - least) for window in self._windows]
        loss = fmean(losses) if len(points) > 1 else FIRST_LOSS
        return (windows_left - 2) * NEXT_GAIN > 2 * loss

    def observe(self, window: CapWindow) -> None:
        self._windows.append(window)

    def refuse(self, cap_w: float) -> None:
        """The cap could not be set: it and lower ones are not asked for again."""
        self._least_w = cap_w + 1.0
        self._refused_w = cap_w
        self._spread = [cap for cap in self._spread if cap > cap_w]

    def decision(self) -> Decision:
        """Raises `ValueError` before the first window."""
        points = self._points()
        best_w = self._best(points)
        log_e, log_t = points[best_w]
        references = [w for w in self._windows if w.level == self.default]
        default_j, default_s = fmean(w.energy_j for w in references), fmean(w.time_s for w in references)
        counts = Counter(w.level for w in self._windows)
        ratio, noise = math.exp(log_e), self._noise("energy_j")
        saving_j = default_j * (1 - ratio)
        scatter_j = default_j * ratio * noise * math.sqrt(1 / counts[best_w] + 1 / len(references))
        sensor = median(w.u95_j / w.energy_j for w in self._windows)
        # An error of gain is common to both caps: it is a share of what is saved.
        u95_j = math.hypot(scatter_j, sensor * saving_j) if best_w != self.default else 0.0
        least, told_apart = self._log_m(points[best_w]), noise * math.sqrt(2)
        as_good = (c for c in points if self._is_fast(points[c]) and self._log_m(points[c]) <= least + told_apart)
        return Decision(
            best_w,
            self.default,
            len(self._windows),
            default_j * ratio,
            default_s * math.exp(log_t),
            default_j,
            default_s,
            saving_j,
            u95_j,
            math.expm1(log_t),
            tuple(sorted({best_w, *as_good})),
        )

    def spent(self, iterations: Mapping[float, int]) -> tuple[float, float]:
        """Joules and seconds that iterations by cap have taken more than as many at the chosen cap: what searching has
        cost. Iterations at caps without a window are left out."""
        points, decision = self._points(), self.decision()
        energy_j = time_s = 0.0
        for cap_w, count in iterations.items():
            if cap_w in points:
                log_e, log_t = points[cap_w]
                energy_j += count * (decision.default_energy_j * math.exp(log_e) - decision.energy_j)
                time_s += count * (decision.default_time_s * math.exp(log_t) - decision.time_s)
        return energy_j, time_s

    def _whole(self, cap_w: float) -> float:
        return min(max(float(round(cap_w)), math.ceil(self._least_w)), self.default)

    def _points(self) -> dict[float, tuple[float, float]]:
        """ln E and ln t of each cap relative to the default, the mean of its windows."""
        found: dict[float, list[tuple[float, float]]] = {self.default: [(0.0, 0.0)]}
        at = [i for i, window in enumerate(self._windows) if window.level == self.default]
        for i, window in enumerate(self._windows):
            if window.level == self.default:
                continue
            before = max(n for n in at if n < i)
            behind = min((n for n in at if n > i), default=before)
            share = (i - before) / (behind - before) if behind > before else 0.0
            first, last = self._windows[before], self._windows[behind]
            log_e = math.log(first.energy_j) + share * math.log(last.energy_j / first.energy_j)
            log_t = math.log(first.time_s) + share * math.log(last.time_s / first.time_s)
            found.setdefault(window.level, []).append(
                (math.log(window.energy_j) - log_e, math.log(window.time_s) - log_t)
            )
        return {cap: (fmean(e for e, _ in every), fmean(t for _, t in every)) for cap, every in found.items()}

    def _noise(self, name: str) -> float:
        """U95 of ln of a window's value: of the steps between references, which a slow drift hardly changes."""
        logs = [math.log(getattr(w, name)) for w in self._windows if w.level == self.default]
        steps = [b - a for a, b in pairwise(logs)]
        if not steps:
            return math.inf
        return STUDENT_95[min(len(steps), len(STUDENT_95)) - 1] * math.sqrt(fmean(s * s for s in steps) / 2)

    def _step_of_m(self) -> float:
        """Root mean square of the steps of ln M between references, `NOISE` where there are none."""
        references = [w for w in self._windows if w.level == self.default]
        logs = [self._log_m((math.log(w.energy_j), math.log(w.time_s))) for w in references]
        steps = [b - a for a, b in pairwise(logs)]
        return math.sqrt(fmean(s * s for s in steps)) if steps else NOISE

    def _log_m(self, point: tuple[float, float]) -> float:
        return self._exponents[0] * point[0] + self._exponents[1] * point[1]

    def _is_fast(self, point: tuple[float, float]) -> bool:
        return point[1] <= self._slowest

    def _best(self, points: Mapping[float, tuple[float, float]]) -> float:
        """The least ln M of the caps that are fast enough; the default itself is."""
        fast = [cap for cap in points if self._is_fast(points[cap])]
        return min(fast, key=self._curve(points))

    def _curve(self, points: Mapping[float, tuple[float, float]]) -> Callable[[float], float]:
        """ln M over the cap: of a Gaussian process that has seen the windows near the least one. Farther away, and of
        few caps, what was measured."""
        fast = [cap for cap in points if self._is_fast(points[cap])]
        least = min(fast, key=lambda cap: self._log_m(points[cap]))
        near = [cap for cap in points if abs(math.log(cap / least)) <= NEARBY]
        if len(near) < LEAST_CURVE:
            return lambda cap: self._log_m(points[cap])
        counts = Counter(window.level for window in self._windows)
        variance = max(self._step_of_m() ** 2 / 2, LEAST_NOISE**2)  # of a step: two windows'
        places = {cap: math.log(cap / least) for cap in near}
        covariances = [[_covariance(x, y) for y in places.values()] for x in places.values()]
        for i, cap in enumerate(near):
            covariances[i][i] += variance / counts[cap]
        weights = _solved(covariances, [self._log_m(points[cap]) for cap in near])

        def mean(cap: float) -> float:
            if cap in points and cap not in places:
                return self._log_m(points[cap])
            x = math.log(cap / least)
            return math.fsum(w * _covariance(x, y) for w, y in zip(weights, places.values(), strict=True))

        return mean

    def _candidate(self) -> float | None:
        """The next cap that is not the reference, None where there is nothing more to try."""
        points = self._points()
        caps = sorted(points)
        best_w = self._best(points)
        lowest = points[caps[0]]
        worse = max(CLEARLY_WORSE, WORSE_STEPS * self._step_of_m())
        is_past = not self._is_fast(lowest) or self._log_m(lowest) > self._log_m(points[best_w]) + worse
        if not is_past and (lower := [cap for cap in self._spread if cap < caps[0]]):
            return lower[0]
        if not is_past and self._refused_w is not None:
            halfway = self._whole(math.sqrt(self._refused_w * caps[0]))
            if math.log(caps[0] / halfway) > NEAR:
                return halfway
        vertex_w, just_fast_w = self._vertex(points, caps, best_w), self._just_fast_w(points, caps)
        if just_fast_w is not None and (vertex_w is None or just_fast_w >= vertex_w):
            tried, apart = [just_fast_w], LEAST_STEP
        else:
            tried, apart = [vertex_w or best_w, self._golden(points, caps, best_w)], NEAR
        for wanted_w in tried:
            cap_w = self._whole(wanted_w)
            if all(abs(math.log(cap_w / known)) > apart for known in caps):
                return cap_w
        is_seen_once = sum(window.level == best_w for window in self._windows) == 1
        return best_w if is_seen_once and best_w != self.default else None

    def _vertex(self, points: Mapping[float, tuple[float, float]], caps: list[float], best_w: float) -> float | None:
        """Where the curve is least between the neighbours of the best cap; None where they do not enclose a minimum:
        the best cap is the first or last, or the one below it is better and too slow."""
        i, curve = caps.index(best_w), self._curve(points)
        if not 0 < i < len(caps) - 1 or curve(caps[i - 1]) < curve(best_w):
            return None
        if len([cap for cap in caps if abs(math.log(cap / best_w)) <= NEARBY]) < LEAST_CURVE:
            return best_w
        return float(min(range(math.ceil(caps[i - 1]), math.floor(caps[i + 1]) + 1), key=curve))

    def _just_fast_w(self, points: Mapping[float, tuple[float, float]], caps: list[float]) -> float | None:
        """The cap that is just fast enough; None where all caps are.

        It lies between the slow cap and the cap that the line to the next fast one tells: time is convex over the cap.
        """
        slow = [cap for cap in caps if not self._is_fast(points[cap])]
        if not slow:
            return None
        low = slow[-1]
        high = caps[caps.index(low) + 1]
        t_low, t_high = points[low][1], points[high][1]
        left = self._slowest - TIME_MARGIN - t_high
        if left <= TIME_MARGIN:
            return high
        line = high * (low / high) ** (left / (t_low - t_high))
        return line if line / low < 1 + WIDE / 3 else math.sqrt(line * low)

    def _golden(self, points: Mapping[float, tuple[float, float]], caps: list[float], best_w: float) -> float:
        """A golden-section step into the wider gap beside the best cap; that cap where both are narrow or too slow."""
        i, x = caps.index(best_w), math.log(best_w)
        beside = [caps[n] for n in (i - 1, i + 1) if 0 <= n < len(caps) and self._is_fast(points[caps[n]])]
        gap = max((math.log(cap) - x for cap in beside), key=abs, default=0.0)
        return math.exp(x + GOLDEN * gap) if abs(gap) > WIDE else best_w


def _covariance(x: float, y: float) -> float:
    """Of a curve's values at two places, in ln cap."""
    parabola = PARABOLA_SD**2 * (1 + x * y + (x * y) ** 2)
    return parabola + SMOOTH_SD**2 * math.exp(-(((x - y) / SMOOTH_LENGTH) ** 2) / 2)


def _solved(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a few linear equations whose matrix is positive definite (Gauss)."""
    rows, n = [[*row, value] for row, value in zip(matrix, right, strict=True)], len(right)
    for i in range(n):
        for below in rows[i + 1 :]:
            share = below[i] / rows[i][i]
            below[i:] = [a - share * b for a, b in zip(below[i:], rows[i][i:], strict=True)]
    solution = [0.0] * n
    for i in reversed(range(n)):
        solution[i] = (rows[i][n] - math.fsum(rows[i][k] * solution[k] for k in range(i + 1, n))) / rows[i][i]
    return solution
