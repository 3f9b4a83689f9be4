"""The policy of Zeus as it is, and mended.

You, Chung and Chowdhury ("Zeus: Understanding and optimizing GPU energy consumption of DNN training", NSDI'23) explore
the batch sizes downwards and upwards from the default one, twice, and drop those beyond one that fails. A bandit with
Gaussian Thompson sampling then chooses among the rest. A training stops when its cost would exceed ``beta`` times the
least cost that a recurrence had. The power limit is found in the first epoch at a batch size and is kept.

`ZeusPolicy` decides as their program does, to the last draw: it is what others are compared with. `MendedZeusPolicy`
has the same plan without what the original's statistics get wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from powerd_analytics.optimise.policy import (
    Change,
    Decision,
    Go,
    Job,
    Observation,
    Outcome,
    RememberingPolicy,
    Stop,
    TrainingSettings,
    Trial,
)
from powerd_analytics.optimise.profiles import Profile, ProfiledCap, add_to_profile, profile_at

BETA = 2.0
"""Of the published evaluation."""


# ---- memory --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pruning:
    """One walk down from the default batch size, and then up."""

    batch_sizes: list[int]
    default: int
    rounds_left: int
    down: list[int] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    good: list[int] = field(default_factory=list)
    best_cost_j: float | None = None

    def next(self) -> int | None:
        """The batch size to explore; None when all rounds are over."""
        while not self.down and not self.up:
            if self.rounds_left == 0:
                return None
            self._begin_round()
        return (self.down or self.up)[0]

    def report(self, cost_j: float, is_reached: bool) -> None:
        """How the batch size that `next` gave did. One that fails ends its direction."""
        direction = self.down or self.up
        batch_size = direction.pop(0)
        if is_reached:
            self.good.append(batch_size)
            if self.best_cost_j is None or cost_j < self.best_cost_j:
                self.best_cost_j, self.default = cost_j, batch_size
        else:
            direction.clear()
        if not self.down and not self.up:
            self.batch_sizes = sorted(self.good)

    def _begin_round(self) -> None:
        self.rounds_left -= 1
        place = self.batch_sizes.index(self.default)
        self.down, self.up = self.batch_sizes[place::-1], self.batch_sizes[place + 1 :]
        self.good, self.best_cost_j = [], None


@dataclass(slots=True)
class _Reward:
    batch_size: int
    value: float


@dataclass(slots=True)
class _Spent:
    """Cost so far of a recurrence that has not reached its target."""

    recurrence: int
    cost_j: float
    tries: int


@dataclass(slots=True)
class _Memory:
    trials: int = 0
    pruning: _Pruning | None = None
    profiles: list[Profile] = field(default_factory=list)
    rewards: list[_Reward] = field(default_factory=list)
    is_bandit: bool = False
    arms: list[int] = field(default_factory=list)
    min_cost_j: float | None = None
    best_batch_size: int = 0
    """Of the recurrence with the least cost; 0 before any reached its target."""
    spent: list[_Spent] = field(default_factory=list)
    rng: list[str] = field(default_factory=list)
    """State of the generator; its whole numbers are too long for JSON's."""


# ---- Zeus as it is -------------------------------------------------------------------------------------------------


class ZeusPolicy(RememberingPolicy[_Memory]):
    """Zeus' batch size optimiser with pruning and Thompson sampling, and its power limit optimiser."""

    name = "zeus"
    memory_type = _Memory
    rounds = 2
    window = 0
    """Rewards of a batch size that count, the last ones; 0: all of them."""

    def __init__(self, job: Job, seed: int = 0) -> None:
        super().__init__(job, seed)
        self.memory.pruning = _Pruning(list(job.batch_sizes), job.default.batch_size, self.rounds)
        self._rng: np.random.Generator | None = None
        self._beliefs: dict[int, tuple[float, float]] = {}

    def begin(self, recurrence: int, pending: Sequence[Trial] = ()) -> Trial:
        batch_size = self._choose(pending)
        profile = profile_at(self.memory.profiles, batch_size)
        if profile is None:
            return self.next_trial(
                recurrence, TrainingSettings(batch_size, self.job.max_power_w), self.job.power_caps_w
            )
        return self.next_trial(recurrence, TrainingSettings(batch_size, self._best_cap(profile).power_cap_w))

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        batch_size = trial.settings.batch_size
        profile = profile_at(self.memory.profiles, batch_size)
        is_new = profile is None
        if profile is None:
            if not observation.profile:
                return Go() if trial.profile_caps_w else Go(self.job.max_epochs)
            profile = add_to_profile(self.memory.profiles, batch_size, observation.profile, observation.asked_w)
        best = self._best_cap(profile)
        if (is_new or observation.epoch == 0) and observation.settings.power_cap_w != best.power_cap_w:
            return Change(TrainingSettings(batch_size, best.power_cap_w))
        most = self._most_epochs(profile, best)
        return Go(most) if most > observation.epoch else Stop()

    def end(self, trial: Trial, outcome: Outcome) -> None:
        if outcome.ending == "lost":
            return
        batch_size = trial.settings.batch_size
        cost_j = self.job.cost_j(outcome.energy_j, outcome.time_s)
        if outcome.epochs == 0:
            self._learn(batch_size, 100 * BETA * (self.memory.min_cost_j or 0.0), outcome)
            return
        spent = self._spent(trial.recurrence)
        spent.cost_j += cost_j
        self._learn(batch_size, cost_j, outcome)
        if outcome.is_reached:
            self.memory.spent.remove(spent)
            if self.memory.min_cost_j is None or spent.cost_j < self.memory.min_cost_j:
                self.memory.min_cost_j, self.memory.best_batch_size = spent.cost_j, batch_size

    # -- the bound and the limit ---------------------------------------------------------------------------------------

    def _best_cap(self, profile: Profile) -> ProfiledCap:
        return profile.best(self.job, profile.caps[-1].power_cap_w)

    def _most_epochs(self, profile: Profile, cap: ProfiledCap) -> int:
        """Epochs before which the cost stays within its bound; 0 where not even one does."""
        if self.memory.min_cost_j is None:
            return self.job.max_epochs
        eta = self.job.eta
        cost_of_epoch = eta * cap.energy_j + (1 - eta) * profile.caps[-1].power_cap_w * cap.time_s
        return int(min(BETA * self.memory.min_cost_j // cost_of_epoch, self.job.max_epochs))

    def _spent(self, recurrence: int) -> _Spent:
        spent = next((s for s in self.memory.spent if s.recurrence == recurrence), None)
        if spent is None:
            spent = _Spent(recurrence, 0.0, 0)
            self.memory.spent.append(spent)
        return spent

    # -- the batch size ------------------------------------------------------------------------------------------------

    def _choose(self, pending: Sequence[Trial]) -> int:
        memory = self.memory
        if pending:  # trainings that overlap with others run with what was best so far
            return memory.best_batch_size or self.job.default.batch_size
        assert memory.pruning is not None
        if not memory.is_bandit:
            explored = memory.pruning.next()
            if explored is not None:
                return explored
            # The original ends with an error where no batch size is left.
            memory.arms = memory.pruning.batch_sizes or [self.job.default.batch_size]
            memory.is_bandit = True
        return self._sample()

    def _learn(self, batch_size: int, cost_j: float, outcome: Outcome) -> None:
        self.memory.rewards.append(_Reward(batch_size, -cost_j))
        self._beliefs.pop(batch_size, None)
        self._report(batch_size, cost_j, outcome)

    def _report(self, batch_size: int, cost_j: float, outcome: Outcome) -> None:
        """Tell the exploration, unless the training was one that ran beside it."""
        pruning = self.memory.pruning
        if not self.memory.is_bandit and pruning is not None and pruning.next() == batch_size:
            pruning.report(cost_j, outcome.is_reached)

    def _sample(self) -> int:
        """Thompson sampling: a draw of each batch size' mean reward, and the greatest."""
        rng = self._generator()
        # The original shuffles the arms to look for one without two rewards, and there is none.
        rng.choice(np.array(self.memory.arms), len(self.memory.arms), replace=False)
        draws = {arm: rng.normal(*self._belief(arm)) for arm in self.memory.arms}
        return max(draws, key=lambda arm: draws[arm])

    def _belief(self, arm: int) -> tuple[float, float]:
        """Mean and standard deviation of what is thought of the mean reward of a batch size."""
        if arm not in self._beliefs:
            rewards = np.array([r.value for r in self.memory.rewards if r.batch_size == arm][-self.window :])
            variance = np.var(rewards)
            if variance == 0:
                self._beliefs[arm] = (float(rewards.mean()), 0.0)
            else:
                precision = np.reciprocal(variance)
                whole = len(rewards) * precision
                self._beliefs[arm] = (float(precision * rewards.sum() / whole), float(np.sqrt(np.reciprocal(whole))))
        return self._beliefs[arm]

    # -- the generator ------------------------------------------------------------------------------------------------

    def _generator(self) -> np.random.Generator:
        """Goes on where the memory says; `state` writes there where it is."""
        if self._rng is None:
            self._rng = np.random.default_rng(self.seed)
            if self.memory.rng:
                state, increment, has_half, half = map(int, self.memory.rng)
                self._rng.bit_generator.state = {
                    "bit_generator": "PCG64", "state": {"state": state, "inc": increment},
                    "has_uint32": has_half, "uinteger": half,
                }  # fmt: skip
        return self._rng

    def state(self) -> dict[str, Any]:
        held = self._generator().bit_generator.state
        numbers = (held["state"]["state"], held["state"]["inc"], held["has_uint32"], held["uinteger"])
        self.memory.rng = [str(number) for number in numbers]
        return super().state()
