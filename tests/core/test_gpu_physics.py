"""The simulated card against the published sweep that it was fitted to, and what must hold for any card."""

import math
import statistics

import pytest
from bench_gpu_physics import NAMES, best_caps, best_caps_of, cells, fitted, node_at, saving_pct, table_2, traces
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.gpu_physics import (
    CARDS,
    EIGHT_CARDS,
    P100,
    RTX_6000,
    V100,
    XCEPTION,
    Network,
    busy_w,
    clock_at,
    operate,
    operate_machine,
    steps,
    timed,
)


@pytest.mark.parametrize("model", NAMES)
def test_every_cell_of_the_published_table(model):
    errors = cells(model, table_2()[model])
    assert all(abs(error) <= 0.012 for of_cell in errors.values() for error in of_cell), errors


def test_the_published_table_has_28_cells():
    assert sum(len(cells(model, rows)) for model, rows in table_2().items()) == 28


def test_the_printed_minima():
    """E, EDP and EDS 2 within 10 W in all networks, EDS 1.5 in five of six."""
    off = {}
    for model, rows in table_2().items():
        found = best_caps_of(NAMES[model])
        for row in rows:
            if row["target"] != "default":
                off[model, row["target"]] = abs(found[row["target"]] - float(row["power_cap_w"]))
    assert len(off) == 24
    assert all(watts <= 10 for (_, target), watts in off.items() if target != "min EDS(k=1.5)"), off
    assert sum(watts <= 10 for (_, target), watts in off.items() if target == "min EDS(k=1.5)") >= 5, off


@pytest.mark.parametrize(("name", "card"), [("v100", V100), ("p100", P100)])
def test_the_public_traces_of_other_cards(name, card):
    """With the card's constants as they are, four numbers a training meet its powers and times at all limits."""
    errors = [error for rows in traces(name).values() for error in fitted(card, rows)]
    assert len(errors) >= 70
    assert statistics.median(map(abs, errors)) < 0.012
    assert math.sqrt(statistics.fmean(e * e for e in errors)) < 0.03


class TestMachine:
    """Koszczal, Dobrosolski, Matuszek, Czarnul: one to eight of eight RTX 6000, at the wall."""

    def test_the_best_caps_for_eight_cards(self):
        at = node_at(8)
        best = best_caps(at)
        assert (best["min EDP"], best["min EDS(k=1.5)"], best["min EDS(k=2.0)"]) == (170, 200, 170)
        # Saving minus loss is 2 (1 - EDS(k = 2)).
        reference = at[260]

        def gain(cap):
            return 2 - at[cap].energy_j / reference.energy_j - at[cap].time_s / reference.time_s

        assert max(at, key=gain) == 170

    def test_times_and_what_is_saved_by_the_number_of_cards(self):
        times = [node_at(n)[260].time_s for n in (1, 2, 4, 8)]
        assert times == pytest.approx([424, 228, 128, 85.6], rel=1e-3)
        assert [node_at(n)[170].time_s for n in (1, 2, 8)] == pytest.approx([477, 256, 93.6], rel=0.02)
        saved = [saving_pct(node_at(n)) for n in (1, 2, 4, 8)]
        assert saved == sorted(saved)
        assert saved[0] < 5
        assert saved[3] > 20

    @given(st.integers(1, 8), st.floats(100, 260))
    def test_the_wall_has_all_and_the_loss(self, cards, cap_w):
        at = operate_machine(EIGHT_CARDS, RTX_6000, XCEPTION, cap_w, cards=cards)
        one = operate(RTX_6000, XCEPTION, cap_w, cards=cards)
        inside_w = 250.0 + cards * one.power_w + (8 - cards) * RTX_6000.idle_w
        assert at.power_w == pytest.approx(1.08 * inside_w)
        assert at.time_s == one.time_s


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


@given(cards, networks, st.floats(0.05, 1))
def test_nothing_is_faster_than_the_full_clock_nor_cheaper_than_the_least_power(card, network, x):
    cap_w = card.limits_w[0] + x * (card.limits_w[2] - card.limits_w[0])
    at = operate(card, network, cap_w)
    assert at.time_s >= network.time_s * (1 - 1e-12)
    # Waiting costs its own power; kernels at least what the card takes at its least clock.
    least_j = network.waiting * network.time_s * card.wait_w
    least_j += (at.time_s - network.waiting * network.time_s) * busy_w(card, network.busy_w, card.least_f)
    assert at.energy_j >= least_j * (1 - 1e-12)


@given(cards, networks, st.floats(0, 1))
def test_orders_of_the_best_caps_are_those_that_can_be_proved(card, network, x):
    """With t >= 1 >= E, relative to the default: E <= EDP <= EDS 2 <= EDS 1.5."""
    least, default, _ = card.limits_w
    best = list(
        best_caps({cap: operate(card, network, cap) for cap in range(int(least), int(default) + 1, 10)}).values()
    )
    assert best == sorted(best)


@given(cards, st.floats(0, 1))
def test_a_card_dithers_between_two_listed_clocks(card, x):
    f = card.least_f + x * (1 - card.least_f)
    lower, upper, share = steps(card, f)
    assert {lower, upper} <= set(card.core_mhz)
    assert lower + share * (upper - lower) == pytest.approx(f * card.core_mhz[-1])


def test_the_clocks_of_the_studies_are_listed():
    assert {544, 683, 810, 936, 1063, 1202, 1328} <= set(P100.core_mhz)
    assert {510, 652, 802, 945, 1087, 1237, 1380} <= set(V100.core_mhz)


@given(networks, st.floats(0.1, 100))
def test_a_longer_iteration_is_the_same_training(network, time_s):
    whole, part = operate(RTX_6000, network, 150.0), operate(RTX_6000, timed(network, time_s), 150.0)
    assert part.time_s / time_s == pytest.approx(whole.time_s / network.time_s)
    assert part.power_w == pytest.approx(whole.power_w)
