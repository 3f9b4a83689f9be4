"""Zeus' own policy on Zeus' own traces gives Zeus' own figures; what could be saved on them, by knob."""

import json
from copy import deepcopy
from pathlib import Path
from statistics import fmean

import pytest
from zeus_classes import ZeusOptimisersPolicy, as_zeus

from powerd_analytics.optimise.policy import find_policy
from powerd_analytics.optimise.simulate import LAST, oracle, potential_savings, simulate, usual_recurrences
from powerd_analytics.optimise.traces import read_zeus
from powerd_core.errors import AnalysisError, ConfigError

TRACES = Path(__file__).parents[2] / "data/zeus/traces"
REFERENCE = {row["job"]: row for row in json.loads((TRACES / "reference_v100.json").read_text())}
V100 = {trace.job.name: trace for trace in read_zeus(TRACES, "v100")}
SAVINGS_PCT = {  # limit alone, batch size alone, both
    "cifar100": (31.4, 63.2, 74.7),
    "imagenet": (22.5, 3.0, 23.8),
    "squad": (17.8, 6.7, 27.6),
    "librispeech": (16.2, 18.0, 42.8),
    "movielens-1m": (3.0, 65.0, 66.6),
    "sentiment140": (21.2, 3.4, 26.4),
}


@pytest.mark.parametrize("job", REFERENCE)
def test_zeus_policy_gives_the_figures_of_its_own_simulator(job):
    reference, trace = REFERENCE[job], V100[job]
    history = simulate(trace, "zeus", seed=1)
    last = history.runs[-LAST:]
    exactly = {"rel": 1e-12, "abs": 0.0}
    assert trace.job.default.batch_size == reference["b0"]
    assert usual_recurrences(trace) == history.recurrences == reference["nrec"]
    assert len(history.runs) == reference["runs"]
    assert history.energy_j == pytest.approx(reference["sumE"], **exactly)
    assert history.time_s == pytest.approx(reference["sumT"], **exactly)
    assert fmean(run.energy_j for run in last) == pytest.approx(reference["l5E"], **exactly)
    assert fmean(run.time_s for run in last) == pytest.approx(reference["l5T"], **exactly)
    settings = history.last_settings
    assert [settings.batch_size, settings.power_cap_w] == reference["l5cfg"]


@pytest.mark.parametrize("job", SAVINGS_PCT)
def test_savings_by_knob_are_those_of_the_traces(job):
    savings = potential_savings(V100[job])
    found = (savings.power_cap_pct, savings.batch_size_pct, savings.both_pct)
    assert found == pytest.approx(SAVINGS_PCT[job], abs=0.05)


@pytest.mark.parametrize("job", ["cifar100", "movielens-1m"])
def test_a_policy_is_the_same_behind_the_classes_of_zeus(job):
    def through_zeus(of_job, seed):
        batch_sizes, limits = deepcopy(as_zeus(find_policy("zeus")(of_job, seed)))  # as Zeus' simulator does
        return ZeusOptimisersPolicy(of_job, batch_sizes, limits)

    wanted = simulate(V100[job], "zeus", seed=1)
    assert simulate(V100[job], through_zeus, seed=1).runs == wanted.runs


def test_optimisers_of_zeus_have_no_state_to_keep():
    job = V100["squad"].job
    policy = ZeusOptimisersPolicy(job, *as_zeus(find_policy("ours")(job)))
    with pytest.raises(ConfigError, match="keep no state"):
        policy.state()


def test_the_oracle_cannot_be_beaten_by_any_fixed_settings():
    for trace in V100.values():
        least = trace.expected_cost_j(oracle(trace))
        assert all(trace.expected_cost_j(settings) >= least for settings in trace.settings)


def test_a_device_that_is_not_in_the_traces_is_named_with_those_that_are():
    with pytest.raises(AnalysisError, match="no traces of 'h100'.*there are: p100, v100"):
        read_zeus(TRACES, "h100")


def test_the_default_batch_size_is_the_greatest_that_fits():
    defaults = {t.job.name: t.job.default.batch_size for t in read_zeus(TRACES, "p100")}
    assert defaults["imagenet"] == 128
    assert defaults["librispeech"] == 72
