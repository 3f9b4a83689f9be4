"""The simulator: one policy, one job, many recurrences; what it cost, and what the best would have cost.

A recurrence is over when a training has reached the target. Its cost is that of all trainings that it took, those that
were stopped or failed among them. What it could have cost is the *oracle*: the settings of the least expected cost,
taken every time. The *regret* of a policy is its cost less the oracle's, in units of one recurrence of the oracle.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from powerd_analytics.optimise.policy import Outcome, Policy, TrainingSettings, Trial, carry_out, find_policy
from powerd_analytics.optimise.traces import JobTrace, Slope, TraceEnvironment
from powerd_core.errors import AnalysisError

MOST_TRIES = 20
"""Trainings after which a recurrence is given up, as in the simulator of Zeus."""
LAST = 5
"""Trainings of which the end of a history is made, as in the published evaluation."""
Drift = Literal["none", "jump", "tilt", "season"]


@dataclass(frozen=True, slots=True)
class SimulatedTraining:
    """One training of a history."""

    recurrence: int
    settings: TrainingSettings
    energy_j: float
    time_s: float
    is_reached: bool


@dataclass(frozen=True, slots=True)
class SimulatedHistory:
    """What became of one job under one policy with one seed."""

    trace: JobTrace
    policy: str
    seed: int
    runs: tuple[SimulatedTraining, ...]
    """In the order in which they ended; without those that were stopped before their first epoch."""
    failures: int
    """Recurrences that were given up."""
    oracle_j: tuple[float, ...]
    """Expected cost of each recurrence with the best settings, which change where the job drifts."""
    default_j: tuple[float, ...]
    """The same with the default settings."""

    @property
    def recurrences(self) -> int:
        return len(self.oracle_j)

    @property
    def energy_j(self) -> float:
        return math.fsum(run.energy_j for run in self.runs)

    @property
    def time_s(self) -> float:
        return math.fsum(run.time_s for run in self.runs)

    def costs_j(self) -> list[float]:
        """Cost of each recurrence."""
        costs = [0.0] * self.recurrences
        for run in self.runs:
            costs[run.recurrence] += self.trace.job.cost_j(run.energy_j, run.time_s)
        return costs

    def regret(self, first: int | None = None) -> float:
        """Of all recurrences, or of the first ones."""
        costs, best = self.costs_j()[:first], self.oracle_j[:first]
        return (math.fsum(costs) - math.fsum(best)) / fmean(best)

    @property
    def last_settings(self) -> TrainingSettings:
        """Those that the last runs had most often."""
        return Counter(run.settings for run in self.runs[-LAST:]).most_common(1)[0][0]


# ---- drift ---------------------------------------------------------------------------------------------------------

_SLOPES = [sign * step / 20 for step in range(1, 41) for sign in (1, -1)]
SEASONS = 3
"""Within one history."""


def slope_of(trace: JobTrace, drift: Drift, recurrences: int) -> Slope | None:
    """How the epochs of batch sizes change. The greatest slope is the least one that moves the best batch size by two
    places, or by one where there are no two. ``jump``: from half of the recurrences on; ``tilt``: all the way up to it;
    ``season``: a sine of three periods."""
    if drift == "none":
        return None
    greatest = _moving_slope(trace)
    shapes: dict[Drift, Slope] = {
        "jump": lambda t: greatest if 2 * t >= recurrences else 0.0,
        "tilt": lambda t: greatest * t / recurrences,
        "season": lambda t: greatest * math.sin(2 * math.pi * SEASONS * t / recurrences),
    }
    return shapes[drift]


def _moving_slope(trace: JobTrace) -> float:
    sizes = trace.job.batch_sizes
    before = sizes.index(_oracle(trace, 0.0)[0].batch_size)
    for places in (2, 1):
        for slope in _SLOPES:
            if abs(sizes.index(_oracle(trace, slope)[0].batch_size) - before) >= places:
                return slope
    return _SLOPES[-1]


def _oracle(trace: JobTrace, slope: float) -> tuple[TrainingSettings, float]:
    """The settings of the least expected cost, and that cost, of a job that has drifted so far."""
    costs = {settings: trace.expected_cost_j(settings, slope) for settings in trace.settings}
    best = min(costs, key=lambda settings: costs[settings])
    return best, costs[best]


def oracle(trace: JobTrace) -> TrainingSettings:
    """The settings of the least expected cost."""
    return _oracle(trace, 0.0)[0]


# ---- histories -----------------------------------------------------------------------------------------------------


def usual_recurrences(trace: JobTrace) -> int:
    """Twice as many as there are batch sizes times limits, as in the published evaluation."""
    return 2 * len(trace.job.batch_sizes) * len(trace.job.power_caps_w)


def simulate(
    trace: JobTrace,
    policy: str | type[Policy],
    *,
    seed: int = 1,
    recurrences: int | None = None,
    drift: Drift = "none",
    concurrency: int = 1,
) -> SimulatedHistory:
    """Let a job recur under a policy.

    With a ``concurrency`` above 1, so many recurrences go on at any time: each ends when its trainings have taken their
    time, and the next one begins. A policy decides on a training with what it knows when the training begins.
    """
    count = usual_recurrences(trace) if recurrences is None else recurrences
    if count < 1 or concurrency < 1:
        raise AnalysisError("a history needs at least one recurrence, and one at a time")
    cls = find_policy(policy) if isinstance(policy, str) else policy
    chooser = cls(trace.job, seed)
    slope = slope_of(trace, drift, count)
    environment = TraceEnvironment(trace, seed, slope)
    runs: list[SimulatedTraining] = []
    tries: Counter[int] = Counter()
    failures = 0
    going: list[tuple[float, int, Trial, Outcome]] = []

    def start(recurrence: int, at_s: float) -> None:
        trial = chooser.begin(recurrence, [pending for _, _, pending, _ in sorted(going, key=lambda g: g[1])])
        outcome = carry_out(chooser, environment, trial)
        heapq.heappush(going, (at_s + outcome.time_s, trial.number, trial, outcome))

    begun = min(concurrency, count)
    for recurrence in range(begun):
        start(recurrence, 0.0)
    while going:
        now_s, _, trial, outcome = heapq.heappop(going)
        chooser.end(trial, outcome)
        recurrence = trial.recurrence
        tries[recurrence] += 1
        if outcome.epochs > 0:
            runs.append(
                SimulatedTraining(recurrence, outcome.settings, outcome.energy_j, outcome.time_s, outcome.is_reached)
            )
        if not outcome.is_reached and tries[recurrence] < MOST_TRIES:
            start(recurrence, now_s)
            continue
        failures += not outcome.is_reached
        if begun < count:
            start(begun, now_s)
            begun += 1
    slopes = [0.0 if slope is None else slope(recurrence) for recurrence in range(count)]
    best_j = {value: _oracle(trace, value)[1] for value in set(slopes)}
    default_j = {value: trace.expected_cost_j(trace.job.default, value) for value in set(slopes)}
    return SimulatedHistory(
        trace, policy if isinstance(policy, str) else getattr(cls, "name", cls.__name__), seed, tuple(runs), failures,
        tuple(best_j[value] for value in slopes), tuple(default_j[value] for value in slopes),
    )  # fmt: skip


# ---- what could be saved -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Savings:
    """Energy that the best settings save against the default ones, in per cent."""

    power_cap_pct: float
    """Choosing the limit alone."""
    batch_size_pct: float
    """Choosing the batch size alone."""
    both_pct: float


def potential_savings(trace: JobTrace) -> Savings:
    """By knob, from the mean energy to the target."""
    default = trace.job.default
    before_j = trace.expected(default).energy_j

    def saved_pct(settings: Sequence[TrainingSettings]) -> float:
        return 100.0 * (1.0 - min(trace.expected(s).energy_j for s in settings) / before_j)

    everything = trace.settings
    return Savings(
        saved_pct([s for s in everything if s.batch_size == default.batch_size]),
        saved_pct([s for s in everything if s.power_cap_w == default.power_cap_w]),
        saved_pct(everything),
    )
