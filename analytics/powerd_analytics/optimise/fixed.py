"""Policies that learn nothing of batch sizes: the default settings for ever, and one look at everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from powerd_analytics.optimise.policy import (
    Decision,
    Go,
    Job,
    Observation,
    Outcome,
    RememberingPolicy,
    TrainingSettings,
    Trial,
)


@dataclass(slots=True)
class _Count:
    trials: int = 0


class FixedPolicy(RememberingPolicy[_Count]):
    """What the owner of the job would do: the default settings."""

    name = "fixed"
    memory_type = _Count

    def begin(self, recurrence: int, pending: Sequence[Trial] = ()) -> Trial:
        return self.next_trial(recurrence, self.job.default)

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        return Go(self.job.max_epochs)

    def end(self, trial: Trial, outcome: Outcome) -> None:
        pass


@dataclass(slots=True)
class _Result:
    settings: TrainingSettings
    cost_j: float | None = None
    """None: did not reach the target."""


@dataclass(slots=True)
class _Grid:
    trials: int = 0
    results: list[_Result] = field(default_factory=list)


class GridPolicy(RememberingPolicy[_Grid]):
    """Every batch size under every limit once, then the best for ever. Where a training fails, the best so far."""

    name = "grid"
    memory_type = _Grid

    def __init__(self, job: Job, seed: int = 0) -> None:
        super().__init__(job, seed)
        caps = job.power_caps_w or (None,)
        self._all = [TrainingSettings(b, cap) for b in job.batch_sizes for cap in caps]

    def begin(self, recurrence: int, pending: Sequence[Trial] = ()) -> Trial:
        results = self.memory.results
        tried = {result.settings for result in results} | {trial.settings for trial in pending}
        untried = next((settings for settings in self._all if settings not in tried), None)
        has_failed = bool(results) and results[-1].cost_j is None and results[-1].settings != self.job.default
        if has_failed or untried is None:
            reached = [result for result in results if result.cost_j is not None]
            settings = min(reached, key=lambda r: r.cost_j or 0.0).settings if reached else self.job.default
        else:
            settings = untried
        return self.next_trial(recurrence, settings)

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        return Go(self.job.max_epochs)

    def end(self, trial: Trial, outcome: Outcome) -> None:
        if outcome.ending != "lost":
            cost = self.job.cost_j(outcome.energy_j, outcome.time_s) if outcome.is_reached else None
            self.memory.results.append(_Result(trial.settings, cost))
