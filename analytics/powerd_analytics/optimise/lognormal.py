"""Epochs to the target as a log-normal process over batch size: the policy that is ours.

The cost of a training is N(b) epochs times c(b, p), what an epoch costs at batch size b under limit p. c is known once
an epoch was profiled, so that the best limit of a batch size is known after its first training. Only N is random.

- log N over log2 b is a Gaussian process: a constant, a linear trend, a smooth part, and a part of each batch size
  alone; the noise of one training is pooled over all batch sizes. log c over log2 b is a second process, for batch
  sizes that were not profiled yet.
- A training that was stopped says that N is greater than what it had: it counts with the mean of the truncated normal
  distribution, or with what its learning curve said of its end.
- Learning curves: the epoch at which a metric was passed, and how much later completed trainings ended that had passed
  the same metric, predict the end of a training.
- Choice: knowledge gradient (Frazier, Powell and Dayanik, "The knowledge-gradient policy for correlated normal
  beliefs", 2009) over 1, 2, 4 or 8 trainings at a batch size, with the expected improvement of a log-normal cost, over
  a horizon: a job that has recurred t times will recur about as often again. Only batch sizes near those that were
  tried come into question.
- A training is stopped when its expected rest costs more than a new one at the best batch size and than what its end
  would teach.
- Second looks, ever more rarely, at the batch size that could be the best at the luckiest: they cure a bad first draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from powerd_analytics.optimise.policy import (
    Change,
    Decision,
    EpochCost,
    Go,
    Job,
    Observation,
    Outcome,
    RememberingPolicy,
    Stop,
    TrainingSettings,
    Trial,
)
from powerd_analytics.optimise.profiles import Profile, add_to_profile, profile_at

Values = NDArray[np.float64]
Places = NDArray[np.intp]
"""Of batch sizes among those of the job."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Set by hand on the traces of Zeus with seeds 1 to 5. Standard deviations are of natural logarithms."""

    noise_sd: float = 0.14
    """Of one training, before any was seen; worth ``noise_weight`` degrees of freedom."""
    noise_weight: float = 4.0
    constant_sd: float = 1.0
    trend_sd: float = 0.25
    """An octave of batch size."""
    smooth_sd: float = 0.3
    length_octaves: float = 2.0
    own_sd: float = 0.05
    """Of a batch size alone."""
    reach_octaves: float = 1.5
    """How far from what was tried the next batch size may lie."""
    least_horizon: int = 20
    half_life: float = 40.0
    """Recurrences after which a training counts half."""
    curve_share: float = 0.3
    """Uncertainty of what a learning curve predicts, as a share of the predicted rest, in logarithms."""
    first_look: float = 4.0
    """Recurrences before the first second look; the next comes when there are ``look_ratio`` times as many."""
    look_ratio: float = 1.5
    look_quantile: float = 1.64
    limit_window: int = 1
    """Steps of the limit that are profiled on either side of the best one of the nearest batch size."""
    proved: int = 5
    """Trainings at a batch size that have reached the target, after which all limits are profiled at it."""
    never: float = 0.1
    """Probability that a training never reaches the target at a batch size at which none has; of each that has, this
    is a factor more."""
    most_tries: int = 2
    """Trainings of a recurrence that may be stopped; the next runs to its end at the default batch size."""


LOOKAHEAD = (1, 2, 4, 8)
LEAST_NEVER = 1e-6
"""A training may break at any batch size."""
MOST_CURVES = 12
"""Learning curves that are kept, the last ones."""


# ---- memory --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Passed:
    """That a training had reached a metric, and when first."""

    epoch: int
    metric: float


@dataclass(slots=True)
class Past:
    """A training that has ended. ``log_epochs``: of the target, or, where it was not reached, of how far it came."""

    recurrence: int
    batch_size: int
    log_epochs: float
    is_reached: bool
    predicted: float | None = None
    """By the learning curve, of a training that did not reach its target."""
    predicted_sd: float = 0.0


@dataclass(slots=True)
class Curve:
    """The learning curve of a training; ``epochs`` is 0 while it goes on."""

    trial: int
    epochs: int = 0
    passed: list[Passed] = field(default_factory=list)


@dataclass(slots=True)
class Tries:
    recurrence: int
    count: int


@dataclass(slots=True)
class Memory:
    trials: int = 0
    recurrences: int = 0
    """That have reached their target."""
    next_look: float = 0.0
    look: int = -1
    """Trial that is the last second look; what it may cost is not asked so closely."""
    past: list[Past] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    tries: list[Tries] = field(default_factory=list)


MOST_HALVINGS = 40.0


class PastTrainings(NamedTuple):
    """Trainings [n] as the process of log N has them."""

    places: Places
    ages: Values
    """In recurrences."""
    values: Values
    """log N, or what stands for it."""
    noise: Values
    """Variance of that."""

    def chosen(self, which: NDArray[np.bool_]) -> PastTrainings:
        return PastTrainings(self.places[which], self.ages[which], self.values[which], self.noise[which])

    def with_expected(self, places: list[int], mean: Values, noise_variance: float) -> PastTrainings:
        """With trainings that go on now, as if they had ended as expected."""
        count = len(places)
        return PastTrainings(
            np.concatenate([self.places, np.array(places, dtype=np.intp)]),
            np.concatenate([self.ages, np.zeros(count)]),
            np.concatenate([self.values, mean[places]]),
            np.concatenate([self.noise, np.full(count, noise_variance)]),
        )


class Belief(NamedTuple):
    """What is thought of each batch size of the job."""

    mean: Values
    """Of log N."""
    variance: Values
    noise_variance: float
    """Of log N of one training."""
    cost_mean: Values
    """Of the logarithm of an epoch's cost in joules, at the best limit."""
    cost_variance: Values
    expected_j: Values
    """Of the cost of one training."""


class _Prospect(NamedTuple):
    """What a training is thought to need, and what it competes with, when it begins."""

    mean: float
    variance: float
    noise_variance: float
    epoch_j: float
    best_j: float
    """Expected cost of a training at the best batch size; infinite before any reached the target."""
    horizon: int
    never: float
    """Probability that it never reaches the target, before it began."""
    is_last_resort: bool


# ---- the policy ----------------------------------------------------------------------------------------------------


class LognormalPolicy(RememberingPolicy[Memory]):
    """Draws nothing: the same history gives the same decisions, whatever the seed."""

    name = "ours"
    memory_type = Memory
    parameters = Parameters()

    def __init__(self, job: Job, seed: int = 0) -> None:
        super().__init__(job, seed)
        self.memory.next_look = self.parameters.first_look
        self._octaves = np.log2(np.array(job.batch_sizes) / job.default.batch_size)
        p = self.parameters
        self._kernel = _kernel(self._octaves, p.constant_sd, p.trend_sd, p.smooth_sd, p.length_octaves, p.own_sd)
        # Costs are smooth, and nearly without noise.
        self._cost_kernel = _kernel(self._octaves, 3.0, 0.5, 0.2, p.length_octaves, 0.03)
        self._prospects: dict[int, _Prospect] = {}
        self._epochs_known: tuple[tuple[int, tuple[int, ...]], tuple[float, Values, Values]] | None = None
        """What follows from the trainings that have ended, of which there are ever more: it is asked for twice."""
        self._costs_known: tuple[dict[int, float], tuple[Values, Values]] | None = None

    # -- before a training -----------------------------------------------------------------------------------------

    def begin(self, recurrence: int, pending: Sequence[Trial] = ()) -> Trial:
        tries = next((t.count for t in self.memory.tries if t.recurrence == recurrence), 0)
        batch_size = self.job.default.batch_size
        if any(past.is_reached for past in self.memory.past) and tries < self.parameters.most_tries:
            belief = self.belief([trial.settings.batch_size for trial in pending])
            best = self._best(belief)
            place = best if tries else self._choose(belief, best, pending)
            batch_size = self.job.batch_sizes[place]
        profile = profile_at(self.memory.profiles, batch_size)
        caps = self._caps_to_profile(batch_size)
        cap = caps[0] if profile is None and caps else self._best_cap_w(profile)
        trial = self.next_trial(recurrence, TrainingSettings(batch_size, cap), caps)
        self.memory.curves.append(Curve(trial.number))
        return trial

    def _best(self, belief: Belief) -> int:
        """The place of the batch size with the least expected cost, of those that have reached the target."""
        reached = {past.batch_size for past in self.memory.past if past.is_reached}
        places = [place for place, size in enumerate(self.job.batch_sizes) if size in reached]
        expected_j = belief.expected_j
        return min(places, key=lambda place: float(expected_j[place]))

    def _choose(self, belief: Belief, best: int, pending: Sequence[Trial]) -> int:
        """The best batch size, or another one from which so much may be learnt that it is worth its price."""
        memory = self.memory
        others = [place for place in self._within_reach() if place != best]
        best_j = float(belief.expected_j[best])
        if memory.recurrences >= memory.next_look:
            memory.next_look = self.parameters.look_ratio * memory.recurrences
            spread = np.sqrt(belief.variance + belief.cost_variance)
            luckiest = belief.mean + belief.cost_mean + belief.noise_variance / 2
            luckiest = luckiest - self.parameters.look_quantile * spread
            looked_at = min(others, key=lambda place: float(luckiest[place]), default=best)
            if math.exp(luckiest[looked_at]) < best_j:
                memory.look = memory.trials
                return looked_at
        values = {place: self._value(belief, place, best_j) for place in others}
        chosen = max(values, key=lambda place: values[place], default=best)
        return chosen if values.get(chosen, 0.0) > 0 else best

    def _within_reach(self) -> list[int]:
        tried = {past.batch_size for past in self.memory.past}
        near = self._octaves[[place for place, size in enumerate(self.job.batch_sizes) if size in tried]]
        distance = np.abs(self._octaves[:, None] - near[None, :]).min(axis=1)
        return [int(place) for place in np.flatnonzero(distance <= self.parameters.reach_octaves + 1e-9)]

    def _horizon(self) -> int:
        return max(self.parameters.least_horizon, self.memory.recurrences)

    def _never(self, batch_size: int) -> float:
        """Probability that a training at a batch size never reaches the target."""
        reached = sum(past.is_reached for past in self.memory.past if past.batch_size == batch_size)
        return max(self.parameters.never ** (1 + reached), LEAST_NEVER)

    def _value(self, belief: Belief, place: int, best_j: float) -> float:
        """Joules that some trainings at a batch size are expected to save over the horizon, less what they cost more.

        A training at a new batch size that turns out hopeless costs an epoch, and one at the best batch size. Where
        trainings were stopped, more has to be promised than they have cost in vain.
        """
        own = [past for past in self.memory.past if past.batch_size == self.job.batch_sizes[place]]
        epoch_j = math.exp(belief.cost_mean[place] + belief.cost_variance[place] / 2)
        never = self._never(self.job.batch_sizes[place])
        price_j = (1 - never) * (float(belief.expected_j[place]) - best_j) + never * best_j
        if not own:
            price_j = min(price_j, epoch_j)
        wasted_j = epoch_j * sum(math.exp(past.log_epochs) for past in own if not past.is_reached)
        level = float(belief.mean[place] + belief.cost_mean[place])
        variance, noise = float(belief.variance[place]), belief.noise_variance
        gains = []
        for count in LOOKAHEAD:
            learnt = variance**2 / (variance + noise / count)
            middle = level + (variance - learnt + noise) / 2
            gain_j = expected_improvement(best_j, middle, learnt + float(belief.cost_variance[place]))
            gains.append((1 - never) * self._horizon() * gain_j - count * price_j)
        return max(gains) - wasted_j

    # -- while it goes on --------------------------------------------------------------------------------------------

    def observe(self, trial: Trial, observation: Observation) -> Decision:
        batch_size = trial.settings.batch_size
        profile = profile_at(self.memory.profiles, batch_size)
        is_new = profile is None or any(cap not in profile.asked_w for cap in observation.asked_w)
        if observation.profile and is_new:
            profile = add_to_profile(self.memory.profiles, batch_size, observation.profile, observation.asked_w)
        if observation.epoch == 0 or (observation.profile and is_new):
            best_w = self._best_cap_w(profile)
            if best_w is not None and observation.settings.power_cap_w != best_w:
                return Change(TrainingSettings(batch_size, best_w))
        if observation.epoch == 0:
            return Go()
        curve = next(c for c in self.memory.curves if c.trial == trial.number)
        if observation.metric is not None and self._is_better(observation.metric, curve):
            curve.passed.append(Passed(observation.epoch, observation.metric))
        return Stop() if self._is_hopeless(trial, observation.epoch, curve) else Go()

    def _is_better(self, metric: float, curve: Curve) -> bool:
        if not curve.passed:
            return True
        last = curve.passed[-1].metric
        return metric < last if self.job.target.is_lower_better else metric > last

    def _is_hopeless(self, trial: Trial, epoch: int, curve: Curve) -> bool:
        prospect = self._prospect(trial)
        if prospect.is_last_resort or math.isinf(prospect.best_j):
            return False
        mean, variance = prospect.mean, prospect.variance + prospect.noise_variance
        predicted = self._predicted(curve)
        if predicted is not None:
            weight = variance / (variance + predicted[1] ** 2)
            mean, variance = mean + weight * (predicted[0] - mean), variance * (1 - weight)
        log_epoch = math.log(epoch)
        # The longer it lasts, the more likely is a training that never ends.
        survival = normal_cdf((mean - log_epoch) / math.sqrt(variance))
        never = prospect.never / (prospect.never + (1 - prospect.never) * survival)
        rest_j = (1 - never) * prospect.epoch_j * (lognormal_mean_above(mean, variance, log_epoch) - epoch)
        # Such a one would be stopped when it has cost about as much again as the best.
        rest_j += never * (min(prospect.epoch_j * (self.job.max_epochs - epoch), prospect.best_j) + prospect.best_j)
        if rest_j <= prospect.best_j:
            return False
        gain_j = self._gain_j(prospect, *truncated_normal(mean, variance, log_epoch), variance)
        if trial.number == self.memory.look:
            gain_j = max(gain_j, prospect.best_j)
        return rest_j > prospect.best_j + (1 - never) * gain_j

    def _gain_j(self, prospect: _Prospect, end: float, end_variance: float, variance: float) -> float:
        """What the end of a training would teach, alone or with further ones after it.

        ``end`` and ``end_variance`` are what is expected of its log N now, ``variance`` what it was at the begin.
        """
        own, noise = prospect.variance, prospect.noise_variance
        moved = own / (own + noise) * (end - prospect.mean)
        price_j = max(prospect.epoch_j * math.exp(prospect.mean + moved + (own + noise) / 2) - prospect.best_j, 0.0)
        gains = []
        for count in LOOKAHEAD:
            share = own / (own + noise / count)
            middle = math.log(prospect.epoch_j) + prospect.mean + moved + (own * (1 - share) + noise) / 2
            gain_j = expected_improvement(prospect.best_j, middle, own * share * end_variance / variance)
            gains.append(prospect.horizon * gain_j - (count - 1) * price_j)
        return max(gains)

    def _prospect(self, trial: Trial) -> _Prospect:
        """Made once a training, when its first epoch is over: its state needs not be kept."""
        if trial.number not in self._prospects:
            tries = next((t.count for t in self.memory.tries if t.recurrence == trial.recurrence), 0)
            belief = self.belief()
            place = self.job.batch_sizes.index(trial.settings.batch_size)
            has_best = any(past.is_reached for past in self.memory.past)
            self._prospects[trial.number] = _Prospect(
                float(belief.mean[place]), float(belief.variance[place]), belief.noise_variance,
                math.exp(belief.cost_mean[place]),
                float(belief.expected_j[self._best(belief)]) if has_best else math.inf,
                self._horizon(), self._never(trial.settings.batch_size),
                tries >= self.parameters.most_tries,
            )  # fmt: skip
        return self._prospects[trial.number]

    def _predicted(self, curve: Curve) -> tuple[float, float] | None:
        """Of log N by the last metric that a training has passed, with its standard deviation; None without any."""
        if not curve.passed:
            return None
        last, is_lower_better = curve.passed[-1], self.job.target.is_lower_better
        ratios = []
        for other in self.memory.curves:
            if not other.epochs:
                continue
            for passed in other.passed:
                if passed.metric <= last.metric if is_lower_better else passed.metric >= last.metric:
                    ratios.append(math.log(other.epochs / passed.epoch))
                    break
        if not ratios:
            return None
        rest = math.fsum(ratios) / len(ratios)
        # Epochs are whole: the metric was passed some time in the one before.
        return math.log(last.epoch) + rest, self.parameters.curve_share * rest + 0.05 + 0.5 / last.epoch

    # -- after it ----------------------------------------------------------------------------------------------------

    def end(self, trial: Trial, outcome: Outcome) -> None:
        memory = self.memory
        curve = next(c for c in memory.curves if c.trial == trial.number)
        self._prospects.pop(trial.number, None)
        predicted = None if outcome.is_reached else self._predicted(curve)
        if outcome.is_reached:
            curve.epochs = outcome.epochs
        ended = [c for c in memory.curves if c.epochs][:-MOST_CURVES]
        memory.curves = [c for c in memory.curves if c not in ended and (c.epochs or c.trial != trial.number)]
        if outcome.ending == "lost":
            return
        if outcome.epochs and not self.job.power_caps_w:
            self._keep_costs(outcome)
        log_epochs = math.log(max(outcome.epochs, 1))
        past = Past(trial.recurrence, trial.settings.batch_size, log_epochs, outcome.is_reached)
        if predicted is not None:
            past.predicted, past.predicted_sd = predicted
        memory.past.append(past)
        tries = next((t for t in memory.tries if t.recurrence == trial.recurrence), Tries(trial.recurrence, 0))
        memory.tries = [t for t in memory.tries if t is not tries]
        if outcome.is_reached:
            memory.recurrences += 1
        else:
            memory.tries.append(Tries(trial.recurrence, tries.count + 1))

    # -- limits --------------------------------------------------------------------------------------------------------

    def _best_cap_w(self, profile: Profile | None) -> float | None:
        if profile is None or not self.job.power_caps_w:
            return self.job.default.power_cap_w
        return profile.best(self.job).power_cap_w

    def _caps_to_profile(self, batch_size: int) -> tuple[float, ...]:
        """All limits at the first batch size, and at one that has proved itself: costs have more than one minimum. At
        others those around the best one of the nearest batch size, and then around the best one so far. What says most
        comes first: a training may end before all are measured."""
        caps = self.job.power_caps_w
        if not caps:
            return ()
        profile = profile_at(self.memory.profiles, batch_size)
        if profile is not None:
            best_w = profile.best(self.job).power_cap_w
            place = caps.index(best_w)
            reached = sum(past.is_reached for past in self.memory.past if past.batch_size == batch_size)
            around = caps if reached >= self.parameters.proved else caps[max(place - 1, 0) : place + 2]
            new = [cap for cap in around if cap not in profile.asked_w]
            return (*new, best_w) if new else ()
        if not self.memory.profiles:
            return caps[::-1]
        nearest = min(self.memory.profiles, key=lambda p: abs(math.log2(p.batch_size / batch_size)))
        best_w, window = nearest.best(self.job).power_cap_w, self.parameters.limit_window
        place = caps.index(best_w)
        return (best_w, *caps[max(place - window, 0) : place], *caps[place + 1 : place + window + 1])

    def _keep_costs(self, outcome: Outcome) -> None:
        """What an epoch took, where no limit can be set and nothing is profiled: under one limit, whatever it is."""
        cost = EpochCost(outcome.energy_j / outcome.epochs, outcome.time_s / outcome.epochs)
        add_to_profile(self.memory.profiles, outcome.settings.batch_size, {0.0: cost}, ())

    # -- belief --------------------------------------------------------------------------------------------------------

    def belief(self, pending: Sequence[int] = ()) -> Belief:
        """What is thought now. Trainings that go on at the batch sizes ``pending`` count as if they had ended as
        expected, so that nobody begins another one to learn the same."""
        asked = (len(self.memory.past), tuple(pending))
        if self._epochs_known is None or self._epochs_known[0] != asked:
            noise_variance = self._noise_variance()
            self._epochs_known = asked, (noise_variance, *self._epochs_belief(noise_variance, pending))
        noise_variance, mean, variance = self._epochs_known[1]
        cost_mean, cost_variance = self._cost_belief()
        spread = variance + cost_variance + noise_variance
        expected_j = np.exp(mean + cost_mean + spread / 2)
        return Belief(mean, variance, noise_variance, cost_mean, cost_variance, expected_j)

    def _noise_variance(self) -> float:
        """Pooled over the batch sizes, and shrunk towards what is usual."""
        p = self.parameters
        groups: dict[int, list[float]] = {}
        for past in self._remembered():
            if past.is_reached:
                groups.setdefault(past.batch_size, []).append(past.log_epochs)
        squares = sum(self._squares(values) for values in groups.values())
        freedom = sum(len(values) - 1 for values in groups.values())
        return (p.noise_weight * p.noise_sd**2 + squares) / (p.noise_weight + freedom)

    def _squares(self, values: Sequence[float]) -> float:
        """Sum of the squares of what trainings at one batch size, in their order, differ by chance."""
        mean = math.fsum(values) / len(values)
        return math.fsum((value - mean) ** 2 for value in values)

    def _remembered(self) -> list[Past]:
        """The trainings that a belief is made of."""
        return self.memory.past

    def _epochs_belief(self, noise_variance: float, pending: Sequence[int]) -> tuple[Values, Values]:
        """Mean and variance of log N by batch size."""
        past = self._remembered()
        place_of = {size: place for place, size in enumerate(self.job.batch_sizes)}
        now = max((p.recurrence for p in past), default=0) + 1
        seen = PastTrainings(
            np.array([place_of[p.batch_size] for p in past], dtype=np.intp),
            np.array([now - p.recurrence for p in past], dtype=np.float64),
            np.array([p.log_epochs for p in past], dtype=np.float64),
            np.full(len(past), noise_variance),
        )
        is_reached = np.array([p.is_reached for p in past], dtype=bool)
        centre = float(seen.values[is_reached].mean()) if is_reached.any() else math.log(self.job.max_epochs / 3)
        mean, variance = self._posterior(seen.chosen(is_reached), centre)
        censored = np.flatnonzero(~is_reached)
        for _ in range(2 if len(censored) else 0):
            for i in censored:
                own_mean, own_variance = float(mean[seen.places[i]]), float(variance[seen.places[i]])
                seen.values[i], seen.noise[i] = self._imputed(past[i], own_mean, own_variance, noise_variance)
            mean, variance = self._posterior(seen, centre)
        expected = [place_of[size] for size in pending if size in place_of]
        if expected:
            mean, variance = self._posterior(seen.with_expected(expected, mean, noise_variance), centre)
        return mean, variance

    def _imputed(self, past: Past, mean: float, variance: float, noise_variance: float) -> tuple[float, float]:
        """Where a training that did not reach its target would have, and the variance of that."""
        if past.predicted is not None and past.predicted > past.log_epochs:
            return past.predicted, noise_variance + past.predicted_sd**2
        return truncated_normal(mean, variance + noise_variance, past.log_epochs)[0], noise_variance

    def _posterior(self, seen: PastTrainings, centre: float) -> tuple[Values, Values]:
        """Of the process at all batch sizes. Trainings at one batch size count together."""
        # What was seen long ago says less of a job that may have drifted.
        noise = seen.noise * np.exp2(np.minimum(seen.ages / self.parameters.half_life, MOST_HALVINGS))
        weight = np.bincount(seen.places, 1 / noise, len(self._octaves))
        at = np.flatnonzero(weight)
        together = np.bincount(seen.places, seen.values / noise, len(self._octaves))[at] / weight[at]
        return _conditioned(self._kernel, at, together - centre, 1 / weight[at], centre)

    def _cost_belief(self) -> tuple[Values, Values]:
        """Mean and variance of the logarithm of an epoch's cost by batch size, at the best limit."""
        best = {p.batch_size: p.best(self.job) for p in self.memory.profiles}
        costs = {size: self.job.cost_j(cap.energy_j, cap.time_s) for size, cap in best.items()}
        if self._costs_known is not None and self._costs_known[0] == costs:
            return self._costs_known[1]
        at = np.array([place for place, size in enumerate(self.job.batch_sizes) if size in costs], dtype=np.intp)
        values = np.log([costs[self.job.batch_sizes[place]] for place in at])
        centre = float(values.mean()) if len(values) else 0.0
        mean, variance = _conditioned(self._cost_kernel, at, values - centre, np.full(len(at), 1e-6), centre)
        mean[at], variance[at] = values, 0.0
        self._costs_known = costs, (mean, variance)
        return mean, variance


# ---- distributions -------------------------------------------------------------------------------------------------


def _kernel(octaves: Values, constant: float, trend: float, smooth: float, length: float, own: float) -> Values:
    """Covariances [batch size, batch size] of a process, from the standard deviations of its parts."""
    distance = octaves[:, None] - octaves[None, :]
    covariance = constant**2 + trend**2 * np.outer(octaves, octaves)
    covariance = covariance + smooth**2 * np.exp(-0.5 * (distance / length) ** 2) + own**2 * np.eye(len(octaves))
    return np.asarray(covariance, dtype=np.float64)


def _conditioned(
    kernel: Values, at: NDArray[np.intp], values: Values, noise: Values, centre: float
) -> tuple[Values, Values]:
    """Mean and variance [batch size] of a process of which values were seen at some batch sizes."""
    if not len(at):
        return np.full(len(kernel), centre), kernel.diagonal().copy()
    gain = np.linalg.solve(kernel[np.ix_(at, at)] + np.diag(noise), kernel[at])
    mean = centre + gain.T @ values
    variance = kernel.diagonal() - np.einsum("ij,ij->j", kernel[at], gain)
    return mean, np.maximum(variance, 1e-12)


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def expected_improvement(best: float, middle: float, variance: float) -> float:
    """E[max(best - X, 0)] of a log-normal X, the logarithm of which has that mean and variance."""
    if variance < 1e-14:
        return max(best - math.exp(middle), 0.0)
    sd = math.sqrt(variance)
    z = (math.log(best) - middle) / sd
    return best * normal_cdf(z) - math.exp(middle + variance / 2) * normal_cdf(z - sd)


_FAR = 6.0
"""Standard deviations beyond which a tail is taken for exponential: the quotients of its areas are no numbers."""


def truncated_normal(mean: float, variance: float, above: float) -> tuple[float, float]:
    """Mean and variance of a normal variable that is greater than ``above``."""
    sd = math.sqrt(variance)
    z = (above - mean) / sd
    if z > _FAR:
        return above + sd / z, (sd / z) ** 2
    hazard = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) / normal_cdf(-z)
    return mean + sd * hazard, max(variance * (1 + z * hazard - hazard**2), 1e-12)


def lognormal_mean_above(mean: float, variance: float, log_above: float) -> float:
    """E[X | X > above] of a log-normal X."""
    sd = math.sqrt(variance)
    z = (log_above - mean) / sd
    if z > _FAR:
        return math.exp(log_above) * (1 + sd / z)
    return math.exp(mean + variance / 2) * normal_cdf(sd - z) / normal_cdf(-z)
