"""What pictures and the report compare: alternatives, not the parts of one machine; repeats by the batch."""

import pytest

from powerd_analytics.campaigns.components import of_trainings, parts_of_machines, without_summands
from powerd_analytics.campaigns.repeats import of_a_batch


def record(device, path="a.h5", **others):
    names = ("energy_j", "u95_j", "u_statistical_j", "u_systematic_j", "time_s", "rest_j", "residual_j", "missing_s")
    return {
        "kind": "total", "path": path, "provenance": "measured", "device": device, "batch_size": 64, "phase": None,
        "attributes": "{}", "iterations": None, "edp_js": None, **dict.fromkeys(names), **others,
    }  # fmt: skip


def test_devices_of_different_runs_are_alternatives():
    assert parts_of_machines([record("gpu0"), record("gpu1", "b.h5")]) == {"gpu0": "", "gpu1": ""}


def test_a_processor_and_its_gpus_are_parts():
    found = parts_of_machines([record("cpu0"), record("gpu0"), record("cpu0", "b.h5"), record("gpu0+gpu1", "b.h5")])
    assert found == {"cpu0": "cpu", "gpu0": "gpu", "gpu0+gpu1": "gpu"}


def test_gpus_that_are_not_added_up_are_parts_of_their_own():
    assert parts_of_machines([record("gpu0"), record("gpu1"), record("cpu0")]) == {
        "gpu0": "gpu0", "gpu1": "gpu1", "cpu0": "cpu",
    }  # fmt: skip


def test_means_of_repeats_belong_to_all_their_runs():
    assert parts_of_machines([record("gpu0", "a.h5; b.h5"), record("cpu0", "b.h5")])["gpu0"] == "gpu"


def test_summands_are_no_configurations():
    every = [record("gpu0"), record("gpu1"), record("gpu0+gpu1"), record("gpu0", "b.h5")]
    assert [(r["device"], r["path"]) for r in without_summands(every)] == [("gpu0+gpu1", "a.h5"), ("gpu0", "b.h5")]


def test_layers_warm_ups_and_what_overlaps_are_no_trainings():
    training = record("gpu0")
    others = [
        record("gpu0", attributes='{"layer": "conv1"}'), record("gpu0", attributes='{"overlaps": true}'),
        record("gpu0", batch_size=None), record("gpu0", phase="baseline"),
    ]  # fmt: skip
    assert of_trainings([training, *others]) == [training]
    assert of_trainings([others[2]]) == [others[2]]  # where nothing says a batch size, that is what there is


def test_a_total_by_the_batch():
    made = of_a_batch(record("gpu0", energy_j=100.0, time_s=4.0, u95_j=2.0, iterations=8, edp_js=400.0))
    assert (made["energy_j"], made["time_s"], made["u95_j"], made["iterations"]) == (12.5, 0.5, 0.25, 1)
    assert made["edp_js"] == pytest.approx(12.5 * 0.5)
    assert made["rest_j"] is None
