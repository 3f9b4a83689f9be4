"""Many runs: repeats, whole trainings, several GPUs, the field's tables, and what is refused."""

import json
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
from command import joules
from hypothesis import given, settings
from hypothesis import strategies as st
from make_campaign import one_run
from make_job import TRAINED, machine, phases_of
from make_run import MS, LineSpec, PhaseSpec, S, constant, make_run

from powerd_analytics.frame.figures import program_of, rows_of, rows_where
from powerd_analytics.frame.repeats import average_repeats
from powerd_analytics.frame.trainings import Length, read_runs, summed_devices, whole_trainings, with_sums
from powerd_analytics.views.layouts import field_tables
from powerd_core.errors import ConfigError


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Two products, three repeats on one GPU and a run on two: maxwell takes 1.3 times the power."""
    folder = tmp_path_factory.mktemp("campaign")
    for product, scale in (("pascal", 1.0), ("maxwell", 1.3)):
        for gpus in (1, 2):
            for i, repeat in enumerate((0.99, 1.0, 1.01) if gpus == 1 else (1.0,)):
                one_run(
                    folder / f"{product}{gpus}{i}.h5", scale * repeat, (64, 128), 5, gpus, device_name=product,
                    accuracy={"u_gain": 0.02, "u_offset_w": 0.0, "step_w": 0.0, "window_ns": 0, "origin": "test"},
                )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """One run of each of two products."""
    folder = tmp_path_factory.mktemp("small")
    for product in ("pascal", "maxwell"):
        one_run(folder / f"{product}.h5", iterations=4, device_name=product)
    return folder


@pytest.fixture(scope="module")
def frame(campaign):
    return read_runs([campaign])


def test_repeats_average_what_is_statistical_and_keep_what_is_systematic(frame):
    chosen = {"device_name": "pascal", "gpus": "1", "phase": "forward", "batch_size": "64"}
    some = rows_where(frame, [f"{name}={value}" for name, value in chosen.items()])
    single = rows_of(some)
    (mean,) = rows_of(average_repeats(some))
    joules = [r["j_per_batch"] for r in single]
    assert (mean["runs"], mean["degrees_of_freedom"]) == (3, 2)
    assert mean["j_per_batch"] == pytest.approx(np.mean(joules))
    assert mean["u_statistical_j"] == pytest.approx(np.std(joules, ddof=1) / np.sqrt(3))
    # The repeats came from one sensor: three of them know its gain no better than one.
    assert mean["u_systematic_j"] == pytest.approx(np.mean([r["u_systematic_j"] for r in single]))
    assert mean["u_systematic_j"] > 0.02 * mean["j_per_batch"]
    # A gain is a limit: less than two standard uncertainties of it hold 95 %.
    assert 1.64 < mean["u95_j"] / np.hypot(mean["u_statistical_j"], mean["u_systematic_j"]) < 2.1
    assert mean["power_w"] == pytest.approx(mean["j_per_batch"] / mean["s_per_batch"])


@pytest.mark.parametrize(
    ("commands", "runs"),
    [
        ([["python3", "-u", "train.py", "--seed=1"], ["/home/me/train.py", "--seed", "2"]], [2]),
        ([["train.py", "--width", "1"], ["train.py", "--width", "2"]], [1, 1]),
        ([["python", "-m", "models.train"], ["/home/me/models/train.py", "--out", "b.h5"], ["other.py"]], [2, 1]),
        ([["train.py", "a.h5"], ["train.py", "b.h5"]], [2]),
        ([["t.py", "--dtype", "a"], ["t.py", "--dtype", "b"]], [1, 1]),  # files may be named by what was tried
        ([["t.py", "-o", "a.h5", "--amp"], ["t.py", "-o", "b.h5", "--no-amp"]], [1, 1]),
        ([["joules", "import", "a.csv", "-o", "a.h5"], ["/bin/joules", "import", "x/b.csv", "--output=b.h5"]], [2]),
        ([["ipykernel_launcher.py", "-f", "x-1.json"], ["ipykernel_launcher.py", "-f", "x-2.json"]], [2]),
    ],
)
def test_repeats_are_of_one_program_with_the_same_arguments(tmp_path, commands, runs):
    for name, command in zip("abc", commands, strict=False):
        one_run(tmp_path / f"{name}.h5", iterations=2)
        with h5py.File(tmp_path / f"{name}.h5", "r+") as file:
            file.attrs["command"] = json.dumps(command)
    every = read_runs([tmp_path])
    found = average_repeats(every[every["phase"] == "forward"].reset_index(drop=True))
    assert found["runs"].tolist() == runs


def test_measured_and_modelled_are_never_averaged(tmp_path):
    for name, provenance in (("a", "measured"), ("b", "modelled")):
        one_run(tmp_path / f"{name}.h5", provenance=provenance)
    found = average_repeats(read_runs([tmp_path]))
    assert set(found["runs"]) == {1}
    assert set(found["provenance"]) == {"measured", "modelled"}


def test_a_whole_training_is_iterations_times_a_batch(frame):
    records = rows_of(frame)
    scaled = rows_of(whole_trainings(frame, Length(epochs=90, dataset_size=1_281_167)))
    forward = next(r for r in scaled if r["phase"] == "forward" and r["batch_size"] == 128)
    n = 90 * 10_010  # the last batch of each epoch is smaller
    assert forward["s_per_training"] == pytest.approx(forward["s_per_batch"] * n)
    assert forward["j_per_training"] == pytest.approx(forward["j_per_batch"] * n)
    before = next(r for r in records if r["kind"] == "total" and r["batch_size"] == 128)
    total = next(r for r in scaled if r["kind"] == "total" and r["path"] == before["path"] and r["batch_size"] == 128)
    assert total["energy_j"] == pytest.approx(before["energy_j"] / before["iterations"] * n)
    assert total["edp_js"] == pytest.approx(total["energy_j"] * total["time_s"])
    assert total["u95_j"] / total["energy_j"] == pytest.approx(before["u95_j"] / before["energy_j"])


@pytest.mark.parametrize(
    "given",
    [
        {"epochs": 1}, {"iterations": 10, "epochs": 1, "dataset_size": 5}, {"iterations": 0}, {"iterations": 2.5},
        {"epochs": float("nan"), "dataset_size": 5}, {"epochs": 1e308, "dataset_size": 5},
    ],
)  # fmt: skip
def test_lengths_that_say_nothing_or_two_things_are_refused(given):
    with pytest.raises(ConfigError):
        Length(**given)


@pytest.mark.parametrize(
    "arguments",
    [
        "--format parquet", "--format csv --table time --table energy", "--pivot model", "--pivot model:gpus:speed",
        "--format json --table time --table energy", "--pivot model:gpus:note", "--averages", "--gain pascal",
        "--gain pascal,volta", "--above-idle --job", "--into no/such/dir/x.h5", "--iterations -1",
        "--table gain --where generation=pascal", "--where gpus=9",
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused(small, capsys, arguments):
    code, out, err = joules(capsys, "tables", small, *arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("joules: ")
    assert err.count("\n") == 1


def test_gpus_of_one_run_are_added_up_with_independent_uncertainties(frame):
    records = rows_of(frame)
    summed = [r for r in rows_of(summed_devices(frame.assign(cores=8))) if r["kind"] == "total"]
    assert {r["device"] for r in summed} == {"gpu0+gpu1"}
    assert {r["cores"] for r in summed} == {8}, "both GPUs are in one machine"
    for total in summed:
        parts = [r for r in records if r["kind"] == "total" and r["path"] == total["path"]]
        parts = [r for r in parts if r["batch_size"] == total["batch_size"]]
        assert total["energy_j"] == pytest.approx(sum(r["energy_j"] for r in parts))
        assert total["u_systematic_j"] == pytest.approx(np.sqrt(sum(r["u_systematic_j"] ** 2 for r in parts)))
        assert total["gflops_per_w"] == pytest.approx(parts[0]["gflops_per_w"], rel=1e-6)


def test_the_tables_of_the_field(frame):
    sheets = {s.name: s for s in field_tables(with_sums(frame, Length(iterations=1000)))}
    assert list(sheets) == ["time", "energy", "totals", "efficiency", "gain", "records"]
    for name, columns in (
        ("time", {"s_per_batch", "samples_per_s", "s_per_training"}),
        ("energy", {"j_per_batch", "u95_j_per_batch", "power_w", "j_per_training", "u95_j_per_training"}),
        ("totals", {"time_s", "energy_j", "u95_j", "edp_js", "u95_edp_js", "gflops_per_w", "u95_gflops_per_w"}),
    ):
        there = set(sheets[name].names)
        assert columns | {"model", "gpus", "batch_size", "device_name", "provenance", "runs"} <= there
    # The watts are scaled by 1.3: so are the joules, and the gain is the inverse of that, in every cell.
    gain = sheets["gain"].records()
    values = [v for row in gain for k, v in row.items() if k.startswith("gain") and v is not None]
    assert len(values) == 4
    assert values == pytest.approx([1.3] * 4, rel=2e-3)
    efficiency = sheets["efficiency"]
    assert "average" in [c.heading for c in efficiency.columns]
    assert efficiency.records()[-1]["model"] == "average"
    column = next(c.name for c in efficiency.columns if c.heading.startswith("pascal"))
    of_column = [row[column] for row in efficiency.records()]
    assert of_column[-1] == pytest.approx(np.mean(of_column[:-1]))


# -- Whole trainings of ranks that share a device: seconds of one rank, joules of all

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
    found = rows_of(with_sums(read_runs([path]), Length(epochs=1, dataset_size=SAMPLES)))
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_other_machines_train_their_batches_too(tmp_path, ranks):
    """One machine's part of a training over two, by itself: half of the samples are the other's."""
    part, other = (machine(tmp_path / f"{n}.h5", n, ranks) for n in (0, 1))
    length = Length(epochs=1, dataset_size=SAMPLES)
    alone, both = (
        next(r for r in rows_of(with_sums(read_runs(paths), length)) if r["kind"] == "total")
        for paths in ([part], [part, other])
    )
    assert alone["iterations"] == both["iterations"] == SAMPLES // BATCH // (2 * ranks)
    assert alone["time_s"] == pytest.approx(both["time_s"])


@pytest.mark.parametrize("batch", [64, 1000])
def test_an_evaluation_beside_the_training_counts_as_often_as_it_did_in_the_run(batch, tmp_path):
    """Whatever its batch size: 10 iterations of 64 and 2 evaluations, hence 200 evaluations of 1000 iterations."""
    own = {"model": "m", "batch_size": 64}
    phases = [PhaseSpec("iteration", k * 100 * MS, (k + 1) * 100 * MS, own) for k in range(10)]
    at = [S + k * 100 * MS for k in range(2)]
    phases += [PhaseSpec("evaluation", t, t + 100 * MS, own | {"batch_size": batch}) for t in at]
    run = make_run(tmp_path / "r.h5", [LineSpec("gpu0.a", constant)], phases, end_ns=2 * S)
    frame = with_sums(read_runs([run]), Length(iterations=1000))
    joules = {(r["kind"], r["attribute_passes"]): r["j_per_training"] for r in rows_of(frame) if r["kind"] != "run"}
    expected = {None: pytest.approx(10_000), "evaluation": pytest.approx(2_000)}
    assert joules == {(kind, passes): expected[passes] for kind in ("phase", "total") for passes in expected}


NAMING = st.sampled_from(
    [
        ["-o", "{}.h5"], ["--out", "{}"], ["--output={}.pt"], ["--log-dir", "logs/{}"], ["--seed", "{}"], ["seed={}"],
        ["out=x/{}"], ["hydra.run.dir=x/{}"], ["--tb_log_dir={}"], ["--save", "{}.pt"], ["--random-seed", "-{}"],
    ]
)  # fmt: skip
FACTOR = st.sampled_from(
    [
        ["--amp"], ["--no-amp"], ["--lr", "0.1"], ["--lr=-0.2"], ["lr=0.3"], ["train"], ["--save", "--half"],
        ["--log", "resnet"],
        ["--dry-run"], ["--drop-out", "0.5"], ["--time-out=3"], ["cfg/a.yaml"], ["--config", "b.yaml"], ["--"], ["-5"],
    ]
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(FACTOR, max_size=5), st.lists(st.tuples(st.integers(0, 5), NAMING), max_size=4))
def test_whatever_names_files_parts_no_programs_and_everything_else_does(factors, naming):
    """Options of names may stand anywhere between the others. Only ``--save x/y`` may be a flag, and is none."""

    def program(number):
        options = [*factors]
        for place, words in naming:
            options.insert(min(place, len(options)), [word.format(number) for word in words])
        return program_of(["t.py", *(word for option in options for word in option)], Path("run.h5"))

    assert program(1) == program(2) == program_of(["t.py", *(w for option in factors for w in option)], Path("run.h5"))
    assert shlex.split(program(1))[1:] == [word for option in factors for word in option]
