"""The simulator: one policy, one job, many recurrences; what it cost, and what the best would have cost.

A recurrence is over when a training has reached the target. Its cost is that of all trainings that it took, those that
were stopped or failed among them. What it could have cost is the *oracle*: the settings of the least expected cost,
taken every time. The *regret* of a policy is its cost less the oracle's, in units of one recurrence of the oracle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from powerd_analytics.optimise.policy import Policy, TrainingSettings, carry_out, find_policy
from powerd_analytics.optimise.traces import JobTrace, TraceEnvironment
from powerd_core.errors import AnalysisError

MOST_TRIES = 20
"""Trainings after which a recurrence is given up, as in the simulator of Zeus."""
LAST = 5
"""Trainings of which the end of a history is made, as in the published evaluation."""


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


def oracle(trace: JobTrace) -> TrainingSettings:
    """The settings of the least expected cost."""
    costs = {settings: trace.expected_cost_j(settings) for settings in trace.settings}
    return min(costs, key=lambda settings: costs[settings])


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
    at: Callable[[int], JobTrace] | None = None,
) -> SimulatedHistory:
    """Let a job recur under a policy; ``at`` gives the job as it is at each recurrence, where it changes."""
    count = usual_recurrences(trace) if recurrences is None else recurrences
    if count < 1:
        raise AnalysisError("a history needs at least one recurrence")
    cls = find_policy(policy) if isinstance(policy, str) else policy
    chooser, environment = cls(trace.job, seed), TraceEnvironment(trace, seed, at)
    runs: list[SimulatedTraining] = []
    failures = 0
    for recurrence in range(count):
        for _ in range(MOST_TRIES):
            trial = chooser.begin(recurrence)
            outcome = carry_out(chooser, environment, trial)
            chooser.end(trial, outcome)
            if outcome.epochs > 0:
                own = outcome.settings, outcome.energy_j, outcome.time_s, outcome.is_reached
                runs.append(SimulatedTraining(recurrence, *own))
            if outcome.is_reached:
                break
        else:
            failures += 1
    jobs = [trace if at is None else at(recurrence) for recurrence in range(count)]
    best_j = {id(job): job.expected_cost_j(oracle(job)) for job in {id(job): job for job in jobs}.values()}
    return SimulatedHistory(
        trace, policy if isinstance(policy, str) else getattr(cls, "name", cls.__name__), seed, tuple(runs), failures,
        tuple(best_j[id(job)] for job in jobs), tuple(job.expected_cost_j(trace.job.default) for job in jobs),
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
