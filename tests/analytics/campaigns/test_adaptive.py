"""Rounds of runs that end with a promise, or without one."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_analytics.campaigns.adaptive import MOST_RUNS, PROMISE, Adaptive
from powerd_core.errors import AnalysisError
from powerd_core.gpu_physics import NETWORKS, RTX_6000, operate

CAPS = list(range(100, 261, 5))


def truth(name):
    at = [operate(RTX_6000, NETWORKS[name], cap) for cap in CAPS]
    return np.array([o.energy_j for o in at]), np.array([o.time_s for o in at])


def run_all(adaptive, energy, time, noise, seed):
    """Every run until the verdict, in order."""
    rng, runs = np.random.default_rng(seed), []
    while caps := adaptive.next_round():
        for cap in caps:
            e, t = np.exp(noise * rng.standard_normal(2))
            i = CAPS.index(int(cap))
            runs.append((cap, float(energy[i] * e), float(time[i] * t)))
            adaptive.observe(*runs[-1])
    return runs


def test_five_caps_twice_then_rounds_with_a_reference():
    energy, time = truth("resnet50")
    adaptive, rounds = Adaptive(CAPS, 260, seed=1), []
    rng = np.random.default_rng(1)
    while caps := adaptive.next_round():
        assert adaptive.verdict is None
        rounds.append(caps)
        for cap in caps:
            i = CAPS.index(int(cap))
            adaptive.observe(cap, energy[i] * np.exp(0.01 * rng.standard_normal()), time[i])
    assert sorted(rounds[0]) == sorted(rounds[1]) == [100, 125, 160, 205, 260]
    assert len(rounds) > 2
    for caps in rounds[2:]:
        assert len(caps) == 4
        assert 260 in caps
    verdict = adaptive.verdict
    assert verdict.is_promised
    assert any(verdict.cap_w in caps for caps in rounds)
    assert (verdict.runs, verdict.remaining) == (sum(map(len, rounds)), ())
    assert verdict.excess < PROMISE


def test_with_a_card_that_is_like_it_the_five_caps_come_once_and_its_constants_count():
    energy, time = truth("resnet50")
    known, free = (Adaptive(CAPS, 260, seed=1, like=like) for like in (RTX_6000, None))
    for adaptive in (known, free):
        for cap in adaptive.next_round():
            i = CAPS.index(int(cap))
            adaptive.observe(cap, energy[i], time[i])
    assert len(free.next_round()) == 5
    assert len(known.next_round() or ()) < 5
    sd = [np.sqrt(np.diag(adaptive.curve.covariance)).mean() for adaptive in (known, free)]
    assert sd[0] < sd[1]


def test_promises_are_kept_for_a_tenth_of_the_grid():
    kept, shares = [], []
    for k, name in enumerate(NETWORKS):
        energy, time = truth(name)
        log_m = np.log(energy * time)
        adaptive = Adaptive(CAPS, 260, "edp", k)
        runs = run_all(adaptive, energy, time, 0.005, k)
        kept.append(log_m[CAPS.index(int(adaptive.verdict.cap_w))] - log_m.min() < PROMISE)
        shares.append(sum(e for _, e, _ in runs) / energy.sum() / 5)
        assert adaptive.verdict.is_promised
    assert all(kept)
    assert np.mean(shares) < 1 / 8


@settings(max_examples=6)
@given(
    st.sampled_from(sorted(NETWORKS)), st.integers(0, 2**32), st.integers(0, 40), st.sampled_from(["edp", "eds:1.5"])
)
def test_the_same_runs_again_lead_to_the_same_caps(name, seed, stopped_after, metric):
    """A campaign that was killed after some runs goes on as one that was not."""
    energy, time = truth(name)
    whole = Adaptive(CAPS, 260, metric, seed)
    runs = run_all(whole, energy, time, 0.01, seed)
    resumed = Adaptive(CAPS, 260, metric, seed)
    for i, run in enumerate(runs):
        if i >= stopped_after:
            assert run[0] == resumed.next_round()[0]
        resumed.observe(*run)
    assert resumed.next_round() is None
    assert resumed.verdict == whole.verdict


def test_another_seed_is_another_order():
    assert len({tuple(Adaptive(CAPS, 260, seed=seed).next_round()) for seed in range(8)}) > 1


def test_without_a_promise_the_best_and_its_neighbours_are_still_needed():
    energy, time = truth("resnet50")
    adaptive = Adaptive(CAPS, 260, seed=3)
    runs = run_all(adaptive, energy, time, 0.15, 3)
    verdict, counts = adaptive.verdict, Counter(cap for cap, *_ in runs)
    assert not verdict.is_promised
    assert MOST_RUNS - 4 < verdict.runs == len(runs) <= MOST_RUNS
    at = CAPS.index(int(verdict.cap_w))
    beside = {*CAPS[max(0, at - 2) : at + 3], 260}
    assert dict(verdict.remaining) == {cap: 5 - counts[cap] for cap in beside if counts[cap] < 5}


def test_a_card_that_disobeys_the_form_gets_more_runs_at_its_best_cap_and_beside_it():
    energy, time = truth("vgg19")
    energy = energy * (1 - 0.10 * np.exp(-0.5 * ((np.array(CAPS) - 160) / 12) ** 2))
    obedient, other = Adaptive(CAPS, 260, seed=5), Adaptive(CAPS, 260, seed=5)
    run_all(obedient, *truth("vgg19"), 0.003, 5)
    runs = run_all(other, energy, time, 0.003, 5)
    assert obedient.curve.deviation < 0.01 <= other.curve.deviation
    assert other.verdict.runs > obedient.verdict.runs
    counts = Counter(cap for cap, *_ in runs)
    best = CAPS.index(int(other.verdict.cap_w))
    assert not other.verdict.is_promised or counts[CAPS[best]] >= 2
    assert not other.verdict.is_promised or all(counts[cap] for cap in CAPS[best - 2 : best + 3])


def test_a_default_below_the_greatest_cap_is_the_reference():
    adaptive = Adaptive(range(100, 281, 10), 250)
    assert sorted(adaptive.next_round()) == [100, 130, 170, 220, 250]


def test_other_runs_are_refused_and_change_nothing():
    adaptive = Adaptive(CAPS, 260)
    before = adaptive.next_round()
    with pytest.raises(AnalysisError, match="no run at 105 W is awaited"):
        adaptive.observe(105, 1.0, 1.0)
    with pytest.raises(AnalysisError, match="repeat it"):
        adaptive.observe(before[0], 0.0, 1.0)
    assert adaptive.next_round() == before


@pytest.mark.parametrize(
    ("levels", "default", "metric"), [(CAPS[:4], 100, "edp"), (CAPS, 262, "edp"), (CAPS, 260, "joules")]
)
def test_rounds_that_cannot_be_made_are_refused(levels, default, metric):
    with pytest.raises(AnalysisError):
        Adaptive(levels, default, metric)
