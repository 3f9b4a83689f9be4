"""Whole trainings of ranks that share a device: seconds of one rank, joules of all."""

import json

import h5py
import pytest
from make_job import TRAINED, machine, phases_of
from make_run import LineSpec, make_run

from powerd_analytics.campaigns.campaign import read_campaign
from powerd_analytics.campaigns.fieldtables import prepared
from powerd_analytics.campaigns.trainings import Length

SAMPLES = 64_000
BATCH = 64


def sharing(path, ranks, gpus=1, marking=None):
    """A run of ``ranks`` ranks, as many on each of ``gpus`` GPUs, of which the first ``marking`` mark phases."""
    uuids = [f"{k:08d}-1111-2222-3333-444444444444" for k in range(gpus)]
    lines = [LineSpec(f"gpu{k}.nvml", TRAINED.power(), f"gpu{k}", detail={"uuid": f"GPU-{u}"})
             for k, u in enumerate(uuids)]  # fmt: skip
    make_run(path, lines, phases_of(ranks if marking is None else marking, TRAINED.phases), end_ns=TRAINED.end_ns)
    processes = [
        {"pid": 100 + k, "rank": k, "local_rank": k, "world_size": ranks,
         "devices": [{"index": 0, "uuid": f"GPU-{uuids[k * gpus // ranks]}", "pci": ""}]}
        for k in range(ranks)
    ]  # fmt: skip
    with h5py.File(path, "r+") as file:
        del file["processes"]
        file.create_dataset("processes", data=[json.dumps(p) for p in processes], dtype=h5py.string_dtype())
    return path


def of_training(path, device="gpu0"):
    """Records by phase, the total as ``all``."""
    found = prepared(read_campaign([path]), Length(epochs=1, dataset_size=SAMPLES))
    return {str(r["phase"] or "all"): r for r in found if r["kind"] in ("phase", "total") and r["device"] == device}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return of_training(sharing(tmp_path_factory.mktemp("alone") / "r.h5", 1))


@pytest.mark.parametrize(("ranks", "gpus"), [(2, 1), (4, 2), (2, 2)])
def test_ranks_on_one_device_are_so_many_times_as_fast(tmp_path, alone, ranks, gpus):
    """Each rank trains its batch in the same time and at the device's same power as one alone: a share of the time."""
    found = of_training(sharing(tmp_path / "r.h5", ranks, gpus))
    one, total = alone["all"], found["all"]
    assert total["iterations"] == SAMPLES // BATCH // ranks
    assert total["time_s"] == pytest.approx(one["time_s"] / ranks)
    assert total["s_per_batch"] == pytest.approx(one["s_per_batch"])
    for name in ("energy_j", "u95_j", "u_systematic_j"):
        assert total[name] == pytest.approx(one[name] / ranks)
    assert total["power_w"] == pytest.approx(one["power_w"])
    assert total["edp_js"] == pytest.approx(total["energy_j"] * total["time_s"])
    assert total["samples_per_s"] * total["time_s"] == pytest.approx(SAMPLES / gpus)
    assert "n counts the iterations" not in total["note"]
    for phase in ("iteration", "forward", "backward", "update"):
        assert found[phase]["s_per_training"] == pytest.approx(alone[phase]["s_per_training"] / ranks)
        assert found[phase]["j_per_training"] == pytest.approx(alone[phase]["j_per_training"] / ranks)
    inner = sum(found[phase]["j_per_training"] for phase in ("forward", "backward", "update"))
    assert inner == pytest.approx(total["energy_j"], rel=0.01)


def test_all_gpus_together_train_all_samples(tmp_path, alone):
    both = of_training(sharing(tmp_path / "r.h5", 4, 2), "gpu0+gpu1")["all"]
    assert both["samples_per_s"] * both["time_s"] == pytest.approx(SAMPLES)
    assert both["energy_j"] == pytest.approx(alone["all"]["energy_j"] / 2)  # two devices, a quarter of the time


def test_a_rank_that_marks_nothing_counts_no_iterations(tmp_path):
    found = of_training(sharing(tmp_path / "r.h5", 2, marking=1))
    both = of_training(sharing(tmp_path / "b.h5", 2))
    assert found["all"]["energy_j"] == pytest.approx(both["all"]["energy_j"])
    assert found["all"]["time_s"] == pytest.approx(both["all"]["time_s"])
    recorded = next(r for r in read_campaign([tmp_path / "r.h5"]) if r["kind"] == "total")
    assert "n counts the iterations of 1 of 2 ranks" in recorded["note"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_other_machines_train_their_batches_too(tmp_path, ranks):
    """One machine's part of a training over two, by itself: half of the samples are the other's."""
    part, other = (machine(tmp_path / f"{n}.h5", n, ranks) for n in (0, 1))
    alone = next(r for r in prepared(read_campaign([part]), Length(epochs=1, dataset_size=SAMPLES))
                 if r["kind"] == "total")  # fmt: skip
    both = next(r for r in prepared(read_campaign([part, other]), Length(epochs=1, dataset_size=SAMPLES))
                if r["kind"] == "total")  # fmt: skip
    assert alone["iterations"] == both["iterations"] == SAMPLES // BATCH // (2 * ranks)
    assert alone["time_s"] == pytest.approx(both["time_s"])


def test_gpus_that_share_a_ranks_batch_are_no_further_batches(tmp_path):
    path = sharing(tmp_path / "r.h5", 2, 2)
    with h5py.File(path, "r+") as file:
        kinds = [json.loads(k) for k in file["phases/kinds"].asstr()[:]]
        del file["phases/kinds"]
        for kind in kinds:
            kind["attributes"] |= {"gpus": 4} if kind["name"] == "training" else {}
        file["phases"].create_dataset("kinds", data=[json.dumps(k) for k in kinds], dtype=h5py.string_dtype())
    assert of_training(path)["all"]["iterations"] == SAMPLES // BATCH // 2


def test_seconds_that_are_all_equal_are_sure(alone):
    for phase in ("iteration", "forward", "backward", "update"):
        assert alone[phase]["u_s_per_batch"] == 0
