"""The simulated card against the published sweep that it was fitted to, and what must hold for any card."""

import csv
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.gpu_physics import CARDS, NETWORKS, RTX_6000, Network, busy_w, clock_at, operate, timed


def table_2():
    """Krzywaniak, Czarnul, Proficz (ICCS 2022), Table 2: Quadro RTX 6000."""
    with (Path(__file__).parents[1] / "data/krzywaniak/table2_rtx6000_power_caps.csv").open() as file:
        return list(csv.DictReader(file))


NAMES = {
    "Alexnet": "alexnet",
    "VGG-19": "vgg19",
    "Inception3": "inception3",
    "Inception4": "inception4",
    "Resnet50": "resnet50",
    "Resnet152": "resnet152",
}
CAPS = range(100, 261, 5)


def rows_of(model):
    return [row for row in table_2() if row["model"] == model]


def fitted_time_s(model):
    """T, the one number of a network that its cells decide."""
    network = NETWORKS[NAMES[model]]
    ratios = [float(r["time_s"]) / operate(RTX_6000, network, float(r["power_cap_w"])).time_s for r in rows_of(model)]
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


@pytest.mark.parametrize("model", NAMES)
def test_every_cell_of_the_published_table(model):
    network = timed(NETWORKS[NAMES[model]], fitted_time_s(model))
    for row in rows_of(model):
        at = operate(RTX_6000, network, float(row["power_cap_w"]))
        assert at.power_w == pytest.approx(float(row["avg_power_w"]), rel=0.012)
        assert at.time_s == pytest.approx(float(row["time_s"]), rel=0.012)


def minima(network):
    at = {cap: operate(RTX_6000, network, cap) for cap in CAPS}
    reference = at[260]

    def eds(k):
        alpha, beta = (k - 1) / (k * reference.energy_j), 1 / (k * reference.time_s)
        return min(CAPS, key=lambda cap: alpha * at[cap].energy_j + beta * at[cap].time_s)

    return {
        "min E": min(CAPS, key=lambda cap: at[cap].energy_j),
        "min EDP": min(CAPS, key=lambda cap: at[cap].energy_j * at[cap].time_s),
        "min EDS(k=2.0)": eds(2.0),
        "min EDS(k=1.5)": eds(1.5),
    }


def test_the_printed_minima():
    """E, EDP and EDS 2 within 10 W in all networks, EDS 1.5 in five of six."""
    off = {}
    for model, name in NAMES.items():
        found = minima(NETWORKS[name])
        for row in rows_of(model):
            if row["target"] != "default":
                off[model, row["target"]] = abs(found[row["target"]] - float(row["power_cap_w"]))
    assert all(watts <= 10 for (_, target), watts in off.items() if target != "min EDS(k=1.5)"), off
    assert sum(watts <= 10 for (_, target), watts in off.items() if target == "min EDS(k=1.5)") >= 5, off


networks = st.builds(Network, st.floats(20, 600), st.floats(0, 0.9), st.floats(0, 0.95), st.floats(0.01, 10), st.none())
cards = st.sampled_from(list(CARDS.values()))


@given(cards, networks, st.floats(0.05, 1), st.floats(0.05, 1))
def test_a_higher_cap_is_never_slower_nor_draws_less(card, network, a, b):
    least, _, greatest = card.limits_w
    low, high = sorted(least + x * (greatest - least) for x in (a, b))
    slow, fast = operate(card, network, low), operate(card, network, high)
    assert fast.time_s <= slow.time_s * (1 + 1e-9)
    assert fast.f >= slow.f - 1e-12
    assert busy_w(card, network.busy_w, fast.f) >= busy_w(card, network.busy_w, slow.f) - 1e-9


@given(cards, networks, st.floats(0, 1))
def test_a_cap_is_kept_wherever_the_card_can(card, network, x):
    cap_w = card.limits_w[0] + x * (card.limits_w[2] - card.limits_w[0])
    f = clock_at(card, network.busy_w, cap_w)
    assert card.least_f <= f <= 1
    if f > card.least_f:
        assert busy_w(card, network.busy_w, f) <= cap_w + 1e-6


@given(cards, networks, st.floats(0.1, 1))
def test_a_cap_that_does_not_bind_changes_nothing(card, network, f_most):
    if busy_w(card, network.busy_w, f_most) <= card.limits_w[2]:
        at = operate(card, network, card.limits_w[2], f_most=f_most)
        assert (at.f, at.at_cap) == (f_most, 0.0)


@given(networks, st.floats(0.4, 1))
def test_a_slower_memory_slows_what_waits_for_it_alone(network, g):
    plain, slow = operate(RTX_6000, network, 260.0, f_most=0.7), operate(RTX_6000, network, 260.0, f_most=0.7, g=g)
    memory_s = (1 - network.waiting) * network.time_s * network.memory
    assert slow.time_s - plain.time_s == pytest.approx(memory_s * (1 / g - 1), abs=1e-9 * network.time_s) or (
        slow.f != plain.f
    )


def test_several_cards_share_the_work_and_exchange():
    network = Network(189.0, 0.1, 0.5, 8.0, {2: 0.5})
    one, two = operate(RTX_6000, network, 260.0), operate(RTX_6000, network, 260.0, cards=2)
    assert two.time_s == pytest.approx(one.time_s / 2 + 0.5)
    assert two.power_w < one.power_w
