"""What every policy keeps to: state, seeds, settings of the job, an end for every recurrence."""

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from drift import PIVOTS, SHAPES, drifting
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_analytics.optimise.lognormal import (
    expected_improvement,
    lognormal_mean_above,
    truncated_normal,
)
from powerd_analytics.optimise.policy import (
    POLICIES,
    Change,
    EpochCost,
    Go,
    Job,
    Outcome,
    Stop,
    Target,
    TrainingSettings,
    carry_out,
    find_policy,
)
from powerd_analytics.optimise.simulate import simulate
from powerd_analytics.optimise.traces import NEVER, JobTrace, LearningCurve, TraceEnvironment, read_zeus
from powerd_core.errors import ConfigError

TRACES = Path(__file__).parents[2] / "data/zeus/traces"


@lru_cache
def trace(name="imagenet", gpu="v100", eta=0.5):
    return next(t for t in read_zeus(TRACES, gpu, eta) if t.job.name == name)


def decisions(policy, environment, recurrences, first=0):
    """Trials and how they ended, every recurrence to its target or to its sixth try."""
    seen = []
    for recurrence in range(first, first + recurrences):
        for _ in range(6):
            trial = policy.begin(recurrence)
            outcome = carry_out(policy, environment, trial)
            policy.end(trial, outcome)
            seen.append((trial, outcome))
            if outcome.is_reached:
                break
    return seen


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000), after=st.integers(0, 25), job=st.sampled_from(["imagenet", "squad"]))
def test_a_policy_goes_on_from_its_state_as_if_it_had_never_stopped(name, seed, after, job):
    cls = find_policy(name)
    environment = TraceEnvironment(trace(job), seed)
    policy = cls(trace(job).job, seed)
    decisions(policy, environment, after)
    restored = cls.restore(json.loads(json.dumps(policy.state())))
    at_there = [TraceEnvironment(trace(job), seed + 1) for _ in range(2)]
    there, here = (decisions(p, e, 8, after) for p, e in zip((restored, policy), at_there, strict=True))
    assert there == here
    assert restored.state() == policy.state()


@pytest.mark.parametrize("name", POLICIES)
def test_a_seed_gives_the_same_history_again(name):
    one, other = (simulate(trace(), name, seed=7, recurrences=30).runs for _ in range(2))
    assert one == other


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_only_settings_of_the_job_are_chosen_and_every_recurrence_ends(name, eta):
    of_eta = trace("movielens-1m", eta=eta)
    history = simulate(of_eta, name, seed=3, recurrences=25)
    known = set(of_eta.settings)
    assert {run.settings for run in history.runs} <= known
    assert history.failures == 0
    assert math.isfinite(history.regret())
    assert sorted({run.recurrence for run in history.runs if run.is_reached}) == list(range(25))


@pytest.mark.parametrize("pivot", PIVOTS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("job", ["cifar100", "movielens-1m"])
def test_no_recurrence_is_given_up_where_a_job_drifts(shape, pivot, job):
    history = simulate(trace(job), "ours", seed=5, recurrences=30, at=drifting(trace(job), shape, pivot, 30))
    assert len(set(history.oracle_j)) > 1  # it has drifted
    assert history.failures == 0


def test_a_jump_of_the_default_batch_size_is_followed():
    """What was seen before it is forgotten in time: the last recurrences cost hardly more than the best."""
    job = trace("squad")
    history = simulate(job, "ours", seed=3, recurrences=120, at=drifting(job, "jump", "middle", 120))
    last = sum(history.costs_j()[-20:]) / sum(history.oracle_j[-20:])
    jumped = sum(history.costs_j()[60:70]) / sum(history.oracle_j[60:70])
    assert jumped > last, "the jump is seen at first"
    assert last < 1.25


def test_what_was_seen_long_ago_counts_less():
    policy = find_policy("ours")(trace().job)
    size = trace().job.default.batch_size
    for recurrence in range(2):
        trial = policy.begin(recurrence)
        policy.observe(trial, TraceEnvironment(trace(), 1).start(trial).begin())
        policy.end(trial, Outcome("reached", 20, 1e6, 1e3, replace(trial.settings, batch_size=size)))
    place = trace().job.batch_sizes.index(size)
    young = policy.belief().variance[place]
    policy.memory.past[-1].recurrence += 60
    policy._epochs_known = None
    assert policy.belief().variance[place] > young


@pytest.mark.parametrize("name", POLICIES)
def test_a_job_without_limits_has_its_batch_size_chosen(name):
    limited = trace("cifar100")
    job = replace(limited.job, power_caps_w=(), default=TrainingSettings(limited.job.default.batch_size))
    unlimited = JobTrace(job, limited.curves, {b: {250.0: caps[250.0]} for b, caps in limited.costs.items()})
    history = simulate(unlimited, name, seed=1, recurrences=40)
    assert history.failures == 0
    assert history.last_settings.batch_size in (64, 128, 256)


def test_ours_does_not_begin_twice_what_it_learns_once():
    policy = find_policy("ours")(trace("cifar100").job, 1)
    environment = TraceEnvironment(trace("cifar100"), 1)
    decisions(policy, environment, 1)
    begun = policy.begin(1)
    assert begun.settings.batch_size != policy.job.default.batch_size  # it explores
    pending = [begun]
    for recurrence in range(2, 5):
        pending.append(policy.begin(recurrence, pending))
    sizes = [trial.settings.batch_size for trial in pending]
    assert len(set(sizes)) > 1


def test_ours_costs_less_than_zeus_and_than_the_default():
    histories = {name: simulate(trace(), name, seed=103) for name in POLICIES}
    default = sum(histories["ours"].default_j) / histories["ours"].oracle_j[0] - histories["ours"].recurrences
    assert histories["ours"].regret() < 0.7 * histories["zeus"].regret() < default


@pytest.mark.parametrize("name", POLICIES)
def test_a_lost_training_teaches_nothing(name):
    policy = find_policy(name)(trace().job, 1)
    environment = TraceEnvironment(trace(), 1)
    decisions(policy, environment, 5)
    before = policy.state()["memory"]
    trial = policy.begin(5)
    policy.end(trial, Outcome("lost", 3, 1e9, 1e9, trial.settings))
    after = policy.state()["memory"]
    for key in ("past", "rewards", "profiles", "min_cost_j", "recurrences"):
        assert after.get(key) == before.get(key)


@pytest.mark.parametrize("name", POLICIES)
def test_a_state_of_another_policy_is_refused(name):
    state = find_policy("ours" if name != "ours" else "zeus")(trace().job).state()
    with pytest.raises(ConfigError, match="cannot go on with it"):
        find_policy(name).restore(state)


@pytest.mark.parametrize("name", POLICIES)
def test_a_damaged_state_is_refused(name):
    state = json.loads(json.dumps(find_policy(name)(trace().job).state()))
    state["memory"]["profiles"] = [{"batch_size": "many"}]
    with pytest.raises(ConfigError, match="damaged"):
        find_policy(name).restore(state)


def test_an_unknown_policy_is_refused_with_its_nearest():
    with pytest.raises(ConfigError, match="did you mean 'zeus'"):
        find_policy("zues")


# ---- trainings of a trace ------------------------------------------------------------------------------------------

COST = {100.0: EpochCost(1000.0, 10.0), 200.0: EpochCost(1500.0, 6.0)}
SMALL = JobTrace(
    Job("small", (8, 16), (100.0, 200.0), TrainingSettings(8, 200.0), Target(0.9), 10, 200.0),
    {8: (LearningCurve(6, ((2, 0.5), (4, 0.8))),), 16: (LearningCurve(NEVER),)},
    {8: COST, 16: COST},
)


def start(batch_size, cap_w, profile=()):
    policy = find_policy("ours")(SMALL.job)
    return TraceEnvironment(SMALL, 0).start(policy.next_trial(0, TrainingSettings(batch_size, cap_w), profile))


def test_a_limit_changes_in_the_middle_of_a_training():
    training = start(8, 200.0)
    training.begin()
    assert training.obey(Go(2)).energy_j == 3000.0
    changed = training.obey(Change(TrainingSettings(8, 100.0)))
    assert (changed.epoch, changed.settings.power_cap_w) == (2, 100.0)
    outcome = training.obey(Go(10))
    assert (outcome.ending, outcome.epochs) == ("reached", 6)
    assert (outcome.energy_j, outcome.time_s) == (3000.0 + 4000.0, 12.0 + 40.0)


def test_a_profiled_epoch_costs_the_mean_of_its_limits():
    training = start(8, 200.0, (100.0, 200.0))
    assert training.begin().profile == COST
    training.obey(Change(TrainingSettings(8, 100.0)))
    observation = training.obey(Go())
    assert (observation.epoch, observation.energy_j, observation.time_s) == (1, 1250.0, 8.0)


def test_a_training_shows_the_metrics_that_it_passes():
    training = start(8, 200.0)
    seen = [training.begin().metric] + [training.obey(Go()).metric for _ in range(5)]
    assert seen == [None, None, 0.5, 0.5, 0.8, 0.8]


def test_a_limit_that_was_not_traced_is_clamped_to_the_nearest():
    assert start(8, 300.0).begin().settings.power_cap_w == 200.0


def test_a_training_that_never_ends_fails_or_is_stopped():
    training = start(16, 200.0)
    training.begin()
    outcome = training.obey(Go(10))
    assert (outcome.ending, outcome.epochs) == ("failed", 10)
    stopped = start(16, 200.0)
    stopped.begin()
    assert stopped.obey(Stop()).energy_j == 0


def test_a_state_may_be_taken_while_a_training_goes_on():
    for name in POLICIES:
        policy = find_policy(name)(SMALL.job, 1)
        environment = TraceEnvironment(SMALL, 1)
        decisions(policy, environment, 3)
        trial = policy.begin(3)
        training = environment.start(trial)
        event = training.obey(policy.observe(trial, training.begin()))
        restored = find_policy(name).restore(json.loads(json.dumps(policy.state())))
        if not isinstance(event, Outcome):
            assert restored.observe(trial, event) == policy.observe(trial, event)


# ---- distributions -------------------------------------------------------------------------------------------------


@given(mean=st.floats(-2, 5), sd=st.floats(0.05, 2.0), above=st.floats(-3, 6))
def test_a_truncated_distribution_lies_above_its_bound(mean, sd, above):
    middle, variance = truncated_normal(mean, sd * sd, above)
    assert middle > above
    assert 0 < variance <= sd * sd * (1 + 1e-9)
    assert lognormal_mean_above(mean, sd * sd, above) > math.exp(above)


@given(best=st.floats(0.1, 100), middle=st.floats(-3, 5), sd=st.floats(0, 2))
def test_improvement_is_at_least_that_of_the_mean_and_at_most_all(best, middle, sd):
    gain = expected_improvement(best, middle, sd * sd)
    assert gain <= best * (1 + 1e-12)
    assert gain >= max(best - math.exp(middle + sd * sd / 2), 0.0) - 1e-9 * best
