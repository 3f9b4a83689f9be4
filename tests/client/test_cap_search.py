"""The search for a cap, on the published curves of power and time over the cap."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.knobs.cap_search import METRICS, MOST_WINDOWS, CapSearch, CapWindow
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import CARDS, NETWORKS, RTX_6000, operate

cards, networks = st.sampled_from(sorted(CARDS)), st.sampled_from(sorted(NETWORKS))
metrics, slowdowns = st.sampled_from(sorted(METRICS)), st.sampled_from([0.05, 0.1, 0.5])


def searched(card, network, search, drift=0.0, noise=lambda n: 0.0):
    """The caps that a search asks for, each answered from the curve; energies drift by so much a window."""
    caps = []
    while (cap_w := search.next_cap()) is not None:
        at = operate(card, network, cap_w)
        factor = (1 + drift * len(caps)) * math.exp(noise(len(caps)))
        search.observe(CapWindow(cap_w, at.energy_j * factor, 0.02 * at.energy_j, at.time_s))
        caps.append(cap_w)
    return caps


def excess(card, network, cap_w, metric, max_slowdown):
    """By how much more the metric is than at the best whole watt that is fast enough."""
    of_energy, of_time = METRICS[metric]
    least, default, _ = card.limits_w
    slowest_s = operate(card, network, default).time_s * (1 + max_slowdown)

    def value(cap):
        at = operate(card, network, cap)
        return at.energy_j**of_energy * at.time_s**of_time

    fast = [cap for cap in range(int(least), int(default) + 1) if operate(card, network, cap).time_s <= slowest_s]
    return value(cap_w) / min(map(value, fast)) - 1


@given(cards, networks, metrics, slowdowns, st.sampled_from([0.0, 0.002, -0.002]))
def test_the_chosen_cap_is_the_best_that_is_fast_enough_also_under_drift(card, network, metric, max_slowdown, drift):
    card, network = CARDS[card], NETWORKS[network]
    search = CapSearch(card.limits_w[0], card.limits_w[1], metric, max_slowdown)
    caps = searched(card, network, search, drift)
    decision = search.decision()
    assert len(caps) <= MOST_WINDOWS
    assert excess(card, network, decision.level, metric, max_slowdown) < 0.0075
    at, reference = operate(card, network, decision.level), operate(card, network, card.limits_w[1])
    assert at.time_s <= reference.time_s * (1 + max_slowdown)
    assert decision.slowdown == pytest.approx(at.time_s / reference.time_s - 1)
    assert decision.saving_j == pytest.approx(reference.energy_j - at.energy_j, rel=0.05, abs=0.03 * at.energy_j)


@given(cards, networks, metrics, slowdowns)
def test_at_most_three_candidates_stand_between_two_references(card, network, metric, max_slowdown):
    card = CARDS[card]
    least, default, _ = card.limits_w
    caps = searched(card, NETWORKS[network], CapSearch(least, default, metric, max_slowdown))
    assert caps[0] == caps[-1] == default
    for i, cap_w in enumerate(caps):
        assert least <= cap_w <= default
        assert default in caps[i : i + 4]


@given(networks, metrics)
def test_without_slowdown_nothing_slower_than_the_default_is_chosen(network, metric):
    search = CapSearch(100.0, 260.0, metric, 0.0)
    searched(RTX_6000, NETWORKS[network], search)
    assert search.decision().slowdown <= 1e-9


def test_caps_that_cannot_be_set_are_not_asked_for_again():
    search, asked = CapSearch(100.0, 260.0, "edp", 0.5), []
    while (cap_w := search.next_cap()) is not None:
        asked.append(cap_w)
        if cap_w < 180:
            search.refuse(cap_w)
            continue
        at = operate(RTX_6000, NETWORKS["vgg19"], cap_w)
        search.observe(CapWindow(cap_w, at.energy_j, 0.0, at.time_s))
    refused = [cap_w for cap_w in asked if cap_w < 180]
    assert refused == sorted(set(refused))
    assert refused
    assert 180 <= search.decision().level < 187


@given(st.integers(0, 1000))
def test_the_saving_is_as_sure_as_its_windows_are_alike(seed):
    """Windows whose references scatter by a per cent do not promise a saving to a tenth of that."""
    import random

    rng = random.Random(seed)
    search = CapSearch(100.0, 260.0, "edp", 0.5)
    searched(RTX_6000, NETWORKS["vgg19"], search, noise=lambda _: rng.gauss(0.0, 0.01))
    exact = CapSearch(100.0, 260.0, "edp", 0.5)
    searched(RTX_6000, NETWORKS["vgg19"], exact)
    assert search.decision().saving_u95_j > exact.decision().saving_u95_j * 0.9
    assert len(search.decision().as_good) >= 1


def test_what_searching_has_cost_is_told_against_the_best():
    search = CapSearch(100.0, 260.0, "edp", 0.5)
    searched(RTX_6000, NETWORKS["vgg19"], search)
    decision = search.decision()
    extra_j, extra_s = search.spent({260.0: 10, decision.level: 1000})
    assert extra_j == pytest.approx(10 * decision.saving_j)
    assert extra_s == pytest.approx(10 * (decision.default_time_s - decision.time_s))
    assert extra_s < 0 < extra_j


@pytest.mark.parametrize(
    "wrong", [{"metric": "speed"}, {"max_slowdown": -0.1}, {"max_slowdown": 5}, {"max_slowdown": math.nan}]
)
def test_what_is_no_metric_or_slowdown_is_refused(wrong):
    with pytest.raises(ConfigError):
        CapSearch(100.0, 260.0, **wrong)
