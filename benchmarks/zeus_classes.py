"""Between our policies and the optimisers of the package zeus, both ways.

Zeus has two abstract classes (``zeus._legacy.policy.interface``): a `BatchSizeOptimizer` with register_job, predict and
observe, and a `PowerLimitOptimizer` with predict and observe. They hear of costs alone, not of epochs, energy or time.

`as_zeus` shows one of our policies as such a pair, for Zeus' simulator. `ZeusOptimisersPolicy` runs such a pair on our
environments. Neither needs the package: its classes are asked for nothing but these methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from powerd_analytics.optimise.policy import (
    Change,
    Decision,
    EpochCost,
    Go,
    Job,
    Observation,
    Outcome,
    Policy,
    Stop,
    TrainingSettings,
    Trial,
)
from powerd_core.errors import ConfigError


class BatchSizeOptimizer(Protocol):
    def register_job(self, job: Any, batch_sizes: list[int]) -> None: ...

    def predict(self, job: Any) -> int: ...

    def observe(self, job: Any, batch_size: int, cost: float, converged: bool | None = None) -> None: ...


class PowerLimitOptimizer(Protocol):
    def predict(self, job: Any, batch_size: int) -> int | None: ...

    def observe(self, job: Any, batch_size: int, power_limit: int, cost: float) -> None: ...


# ---- ours for Zeus -------------------------------------------------------------------------------------------------


def as_zeus(policy: Policy) -> tuple[BatchSizeOptimizer, PowerLimitOptimizer]:
    """A policy as Zeus sees its own, for one simulation. It cannot stop a training there: Zeus' simulator does, by its
    own bound."""
    both = _Shown(policy)
    return _ShownBatchSizes(both), _ShownLimits(both)


class _Shown:
    """One policy behind two objects, and the trial that is between predict and observe."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.trial: Trial | None = None
        self.recurrence = 0
        self.limits: dict[int, float] = {}
        self.costs: dict[int, dict[float, EpochCost]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Zeus' simulator copies the two optimisers apart from each other: they would lose the policy that they share.
        return self

    def epoch(self, cost_j: float) -> EpochCost:
        """An epoch of that cost: joules and seconds apart are not known."""
        return EpochCost(cost_j, cost_j / self.policy.job.max_power_w)


class _ShownBatchSizes:
    def __init__(self, shown: _Shown) -> None:
        self._shown = shown

    @property
    def name(self) -> str:
        return type(self._shown.policy).__name__

    def register_job(self, job: Any, batch_sizes: list[int]) -> None:
        unknown = set(batch_sizes) - set(self._shown.policy.job.batch_sizes)
        if unknown:
            raise ConfigError(f"batch sizes {sorted(unknown)} are not among those of the policy's job")

    def predict(self, job: Any) -> int:
        shown = self._shown
        shown.trial = shown.policy.begin(shown.recurrence)
        return shown.trial.settings.batch_size

    def observe(self, job: Any, batch_size: int, cost: float, converged: bool | None = None) -> None:
        shown = self._shown
        assert shown.trial is not None
        cap_w = shown.limits[batch_size]
        each = shown.costs[batch_size][cap_w]
        epochs = max(round(cost / each.energy_j), 1)
        spent = shown.epoch(cost)
        ending = Outcome(
            "reached" if converged else "stopped",
            epochs,
            spent.energy_j,
            spent.time_s,
            TrainingSettings(batch_size, cap_w),
        )
        shown.policy.end(shown.trial, ending)
        shown.recurrence += bool(converged)


class _ShownLimits:
    def __init__(self, shown: _Shown) -> None:
        self._shown = shown

    @property
    def name(self) -> str:
        return type(self._shown.policy).__name__

    def predict(self, job: Any, batch_size: int) -> int | None:
        """What the policy takes at the begin of its trial; None where nothing is profiled yet."""
        shown = self._shown
        assert shown.trial is not None
        profile = shown.costs.get(batch_size)
        if profile is None:
            return None
        settings = shown.trial.settings
        known = dict(profile) if shown.trial.profile_caps_w else {}
        asked_w = shown.trial.profile_caps_w
        decision = shown.policy.observe(shown.trial, Observation(0, 0.0, 0.0, settings, None, known, asked_w))
        chosen = decision.settings if isinstance(decision, Change) else settings
        assert chosen.power_cap_w is not None
        shown.limits[batch_size] = chosen.power_cap_w
        return round(chosen.power_cap_w)

    def observe(self, job: Any, batch_size: int, power_limit: int, cost: float) -> None:
        """One limit of a profile: Zeus profiles all of them before it asks again."""
        self._shown.costs.setdefault(batch_size, {})[float(power_limit)] = self._shown.epoch(cost)


# ---- Zeus' on our environments ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ZeusJob:
    """What Zeus' optimisers read of a job."""

    dataset: str
    default_bs: int
    max_epochs: int
    target_metric: float


class ZeusOptimisersPolicy:
    """A pair of Zeus' optimisers as a policy, with the bound of Zeus' simulator: a training stops before it has cost
    ``beta`` times the cheapest recurrence. They run one training at a time, and have no state that could be kept."""

    def __init__(
        self, job: Job, batch_sizes: BatchSizeOptimizer, limits: PowerLimitOptimizer, beta: float = 2.0
    ) -> None:
        self.job, self._beta = job, beta
        self._batch_sizes, self._limits = batch_sizes, limits
        self._theirs = ZeusJob(job.name, job.default.batch_size, job.max_epochs, job.target.metric)
        self._trials = 0
        self._costs: dict[int, dict[float, float]] = {}
        self._spent_j = 0.0
        self._min_cost_j: float | None = None
        batch_sizes.register_job(self._theirs, list(job.batch_sizes))

    def begin(self, recurrence: int, pending: Sequence[Trial] = ()) -> Trial:
        batch_size = int(self._batch_sizes.predict(self._theirs))
        limit = self._limits.predict(self._theirs, batch_size)
        number, self._trials = self._trials, self._trials + 1
        if limit is None:
            return Trial(number, recurrence, TrainingSettings(batch_size, self.job.max_power_w), self.job.power_caps_w)
        return Trial(number, recurrence, TrainingSettings(batch_size, float(limit)))

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        batch_size = trial.settings.batch_size
        if observation.epoch > 0:
            return Stop()
        if observation.profile and batch_size not in self._costs:
            greatest_w = max(observation.profile)
            self._costs[batch_size] = {
                cap_w: self.job.eta * cost.energy_j + (1 - self.job.eta) * greatest_w * cost.time_s
                for cap_w, cost in sorted(observation.profile.items(), reverse=True)
            }
            for cap_w, cost_j in self._costs[batch_size].items():
                self._limits.observe(self._theirs, batch_size, round(cap_w), cost_j)
        limit = self._limits.predict(self._theirs, batch_size)
        assert limit is not None
        if observation.settings.power_cap_w != limit:
            return Change(TrainingSettings(batch_size, float(limit)))
        if self._min_cost_j is None:
            return Go(self.job.max_epochs)
        most = int(min(self._beta * self._min_cost_j // self._costs[batch_size][float(limit)], self.job.max_epochs))
        return Go(most) if most > 0 else Stop()

    def end(self, trial: Trial, outcome: Outcome) -> None:
        batch_size = trial.settings.batch_size
        if outcome.epochs == 0:
            self._batch_sizes.observe(self._theirs, batch_size, 100 * self._beta * (self._min_cost_j or 0.0), False)
            return
        cost_j = self.job.cost_j(outcome.energy_j, outcome.time_s)
        self._spent_j += cost_j
        self._batch_sizes.observe(self._theirs, batch_size, cost_j, outcome.is_reached)
        if outcome.is_reached:
            self._min_cost_j = min(self._spent_j, self._min_cost_j or self._spent_j)
            self._spent_j = 0.0

    def state(self) -> dict[str, Any]:
        raise ConfigError("optimisers of zeus keep no state: use the policy zeus, which decides alike")

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        raise ConfigError("optimisers of zeus keep no state: use the policy zeus, which decides alike")
