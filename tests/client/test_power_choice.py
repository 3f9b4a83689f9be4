"""The chooser of a cap or a clock, on a simulated card in virtual time: no helper, no recording, no waiting."""

from types import SimpleNamespace

import pytest
from bench_power_choice import RTX_6000, VirtualTraining, excess, make_chooser

from powerd_client import Meter
from powerd_core.errors import ConfigError
from powerd_core.gpu_physics import NETWORKS, operate

QUIET = SimpleNamespace(noise=0.0, jitter=0.002, wander=0.0, iteration_s=0.06, max_slowdown=0.5)


def chosen(network="vgg19", most=2000, **options):
    """The chooser of a training, and the training, when its iterations are over or it has decided."""
    training = VirtualTraining(QUIET, network, seed=1)
    chooser = make_chooser(QUIET, training, "edp", **options)
    done = 0
    with chooser:
        while done < most and chooser.decision is None:
            with chooser.iteration():
                training.iterate()
            done += 1
        limit_w, lock = training.gpu.set_to.limit_w, training.gpu.set_to.core_mhz
    assert training.gpu.set_to.limit_w == RTX_6000.limits_w[1]
    assert training.gpu.set_to.core_mhz is None
    return chooser.decision, done, limit_w, lock


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_cap_is_chosen_and_held(network):
    decision, _, limit_w, _ = chosen(network)
    assert limit_w == decision.level < 260
    assert excess(network, "edp", decision.level, 0.5) < 0.01


def test_a_clock_is_chosen_and_held():
    decision, _, limit_w, lock = chosen(knob="sm_clock_mhz")
    assert (limit_w, lock) == (260.0, (decision.level, decision.level))
    by_clock = {f: operate(RTX_6000, NETWORKS["vgg19"], 260.0, f_most=f / 2100) for f in range(600, 2101, 15)}
    best = min(at.energy_j * at.time_s for at in by_clock.values())
    at = operate(RTX_6000, NETWORKS["vgg19"], 260.0, f_most=decision.level / 2100)
    assert at.energy_j * at.time_s / best < 1.01


def test_a_training_whose_rest_cannot_repay_the_search_ends_it():
    """With 200 iterations a search of 250 and more is cut off; one that knows it does not even begin."""
    assert chosen(most=200)[0] is None
    _, whole, _, _ = chosen()
    assert whole > 200
    decision, done, limit_w, _ = chosen(most=200, iterations=200)
    assert (decision.level, limit_w) == (260.0, 260.0)
    assert done < 100


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_ranks_without_a_process_group_the_first_decides_for_the_machine(monkeypatch, rank):
    """What it holds there is what `own_devices` says; the others ask nobody."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for name, number in ranks.items():
        monkeypatch.setenv(name, str(number))
    decision, done, limit_w, _ = chosen(most=500)
    assert (decision is None, done == 500, limit_w == RTX_6000.limits_w[1]) == (bool(rank),) * 3


def test_several_machines_without_a_process_group_choose_nothing(monkeypatch, capfd):
    ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
    for name, number in ranks.items():
        monkeypatch.setenv(name, str(number))
    assert chosen(most=50)[0] is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "no power cap is chosen: torch.distributed has no process group" in line


def test_what_cannot_be_chosen_is_refused():
    with pytest.raises(ConfigError, match="power_cap_w, sm_clock_mhz"):
        Meter.__new__(Meter).optimise_power(knob="fan")
