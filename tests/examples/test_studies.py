"""The trainings of the published studies: networks of the published sizes, and the scripts as a user calls them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sgemm
import simulated
import torch
import train
import training
from networks import NETWORKS
from operations import OPERATIONS

from powerd_analytics.campaigns.executors import OUT_OF_MEMORY, failure
from powerd_analytics.frame.figures import frame_of, rows_of
from powerd_analytics.operations import count_operations
from powerd_analytics.run_tables.table import phase_table
from powerd_analytics.runs.run import read_run
from powerd_core.gpu_physics import RTX_6000, V100, operate
from support.tape import TapedMeter

SCRIPT = Path(train.__file__)
PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_998_552,
    "googlenet-auxiliary": 13_378_280,
    "inception3": 23_834_568,
    "inception4": 42_679_816,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "xception": 22_855_952 - 2049 * (1000 - 69),
    "caffenet": 60_965_224,
    "resnet-im": 21_797_672 - (64 + 2) * 128 - (128 + 2) * 256 - (256 + 2) * 512,
}
"""As published, or as its authors' own program has them; Xception with 69 classes, ResNet-34 without projections."""
CASTRO_MOPS = {
    "caffenet": (726.4, 0.05),
    "2d-cnn-full5": (800.9, 0.05),
    "2d-cnn": (784.1, 0.05),
    "resnet-gait": (427.5, 17.6),
    "resnet-im": (3655.0, 3.0),
}
"""Millions, and how far off: by the equations of Castro et al., table 1; the text leaves the padding of gait open."""
DEFAULT_S = {
    "alexnet": (128, 28.2),
    "vgg19": (128, 220.5),
    "inception3": (128, 184.4),
    "inception4": (64, 348.9),
    "resnet50": (128, 125.4),
    "resnet152": (64, 280.2),
}
"""Batch size, and seconds of 32,000 images at 260 W on a Quadro RTX 6000: Krzywaniak et al., table 2."""


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_published_size_and_runs_forward_and_backward(name):
    network = NETWORKS[name]
    with torch.device("meta"):
        model = network.make(network.classes)
    shapes = []
    model.register_forward_hook(
        lambda _model, _images, logits: shapes.append(
            logits[0].shape if isinstance(logits, tuple | list) else logits.shape
        )
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == PARAMETERS.get(name, parameters)
    count = count_operations(model.train(), network.shape, batch_size=2)
    executed = count.forward.operations + count.backward.operations
    assert shapes == [(2, network.classes)]
    assert OPERATIONS[name] == (count.total, executed // 2)
    if name in CASTRO_MOPS:
        mops, off = CASTRO_MOPS[name]
        assert count.total / 1e6 == pytest.approx(mops, abs=off)


def test_all_networks_have_operations_and_a_place_on_the_simulated_card():
    assert set(OPERATIONS) == set(NETWORKS) == set(simulated.FITTED) | set(simulated.LIKE)
    assert set(simulated.LIKE.values()) <= set(simulated.FITTED)


def test_auxiliary_classifiers_are_heard_in_training_alone():
    with torch.device("meta"):
        model = NETWORKS["googlenet-auxiliary"].make(1000)
        images = torch.empty(2, 3, 224, 224)
    assert [output.shape for output in model.train()(images)] == [(2, 1000)] * 3
    assert model.eval()(images).shape == (2, 1000)


# -- on this machine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch, tmp_path):
    """Calls a script as from a shell, in a folder of its own; torch's switches are put back."""
    switches = [
        (torch.backends.cudnn, ("enabled", "benchmark", "deterministic", "allow_tf32")),
        (torch.backends.cuda.matmul, ("allow_tf32",)),
        (torch.backends.mkldnn, ("enabled",)),
    ]
    kept = [(of, name, getattr(of, name)) for of, names in switches for name in names]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POWERD_QUIET", "1")
    monkeypatch.delenv("POWERD_SIM_GPU", raising=False)

    def call(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__file__, *arguments])
        return module.main()

    yield call
    for of, name, value in kept:
        setattr(of, name, value)


def event(run, name):
    return next(e.values for e in run.events if e.name == name)


def phases_and_total(run):
    rows = rows_of(frame_of(run, phase_table(run)))
    phases = {row["phase"] for row in rows if row["kind"] == "phase"}
    return phases, next(row for row in rows if row["kind"] == "total")


@pytest.fixture
def taped(script, monkeypatch):
    """Calls `train.py` with a meter whose marks and events stay in memory: the meter."""

    def call(*arguments):
        meters = []
        monkeypatch.setattr(training, "Meter", lambda: meters.append(TapedMeter()) or meters[0])
        assert script(train, *arguments) == 0
        return meters[0]

    return call


def values_of(meter, name):
    """Of all events of a name, the last value of each."""
    return {key: value for event, values in meter.tape.events if event == name for key, value in values.items()}


def test_a_training_is_one_row_of_a_table(script):
    assert script(train, "--images", "160", "--warm-up", "2") == 0
    run = read_run(Path("run.h5"))
    assert set(run.result) == {"epoch", "loss"}
    assert event(run, "kernels")["iterations"] == 2
    phases, total = phases_and_total(run)
    assert phases == {"iteration", "data", "forward", "backward", "update"}
    assert (total["model"], total["batch_size"], total["iterations"]) == ("small", 64, 3)
    assert total["samples_per_batch"] == pytest.approx(160 / 3)
    assert total["gflops_per_w_executed"] > total["gflops_per_w"] > 0


def test_runs_of_a_seed_have_the_same_loss_and_say_which_kernels_they_used(taped):
    of = ["--images", "160", "--warm-up", "2"]
    first, again = taped(*of), taped(*of)
    native, other = taped(*of, "--algorithm", "native"), taped(*of, "--seed", "2")
    losses = [values_of(meter, "result")["loss"] for meter in (first, again, other)]
    assert losses[0] == losses[1] != losses[2]
    digests = [values_of(meter, "kernels")["digest"] for meter in (first, again, native)]
    assert digests[0] == digests[1] != digests[2]


def test_a_pilot_stops_at_the_target_and_says_after_how_many_epochs(taped, capsys):
    of = ["--images", "500", "--warm-up", "0", "--validation", "200", "--epochs", "30", "--target", "0.9"]
    result = values_of(taped(*of), "result")
    assert 1 < result["epochs_to_target"] == result["epoch"] < 30
    assert result["top1"] >= 0.9
    assert f"0.9 is reached after {result['epoch']} epochs" in capsys.readouterr().out
    # A learning rate at which nothing is learnt: it ends by its patience, and promises nothing.
    result = values_of(taped(*of, "--lr", "1e-9", "--patience", "2"), "result")
    assert "epochs_to_target" not in result
    assert result["epoch"] < 30
    assert "0.9 was not reached" in capsys.readouterr().out


def test_inference_is_evaluation_alone(taped):
    meter = taped("--mode", "infer", "--iterations", "3", "--warm-up", "0")
    names = re.sub(r":[^\[\]! ]+", "", meter.tree())
    assert names == "iteration[data evaluation] " * 3 + "iteration![data!]"


def test_a_batch_that_does_not_fit_ends_in_one_line_that_a_campaign_counts_as_out_of_memory(
    script, monkeypatch, capfd, tmp_path
):
    monkeypatch.setattr(training, "Meter", TapedMeter)
    assert script(train, "--batch-size", str(10**14), "--iterations", "1", "--warm-up", "0") == 1
    log = tmp_path / "log"
    log.write_text(capfd.readouterr().err)
    assert log.read_text().splitlines() == ["train: out of memory: small with a batch of 100000000000000 does not fit"]
    assert failure(1, log).reason == OUT_OF_MEMORY


def test_several_gpus_are_processes_of_torchrun(script, monkeypatch):
    class Replaced(BaseException):
        pass

    def execv(path, arguments):
        raise Replaced(arguments)

    monkeypatch.setattr(train.os, "execv", execv)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(Replaced) as replaced:
        script(train, "--gpus", "2")
    (arguments,) = replaced.value.args
    assert arguments[1:] == [
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT), "--gpus", "2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", [["--batch-size", "0"], ["--images", "10"], ["--gpus", "65"], ["--mode", "infer", "--target", "0.9"]]
)
def test_what_makes_no_training_is_refused(script, capsys, wrong):
    with pytest.raises(SystemExit, match="2"):
        script(train, *wrong)
    assert "train.py: error: " in capsys.readouterr().err


def test_sgemm_has_gflops_per_watt_by_both_conventions(script):
    assert script(sgemm, "--size", "128", "--iterations", "1000", "--warm-up", "2") == 0
    run = read_run(Path("run.h5"))
    assert "aten::mm" in event(run, "kernels")["names"]
    _, total = phases_and_total(run)
    assert (total["model"], total["iterations"]) == ("sgemm", 1000)
    # Three products of 128^3 multiply-accumulates are executed; the paper's convention counts two, and each as one.
    executed = 1000 * 3 * 2 * 128**3
    assert total["gflops_per_w_executed"] == pytest.approx(3 * total["gflops_per_w"])
    assert total["gflops_per_w_executed"] == pytest.approx(executed / total["energy_j"] / 1e9, rel=0.3)


# -- on a simulated card -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFAULT_S)
def test_the_simulated_card_is_as_fast_as_the_published_one(name):
    batch_size, published_s = DEFAULT_S[name]
    work = simulated.work_of(name, batch_size, 1, RTX_6000)
    assert 32_000 / batch_size * operate(RTX_6000, work, 260.0).time_s == pytest.approx(published_s, rel=0.01)


def test_cards_share_xception_as_published():
    times = {n: simulated.work_of("xception", 32, n, RTX_6000) for n in (1, 8)}
    seconds = {n: 50_000 / 32 * (work.time_s + (work.communication_s[n] if n > 1 else 0)) for n, work in times.items()}
    assert seconds[1] == pytest.approx(424, rel=0.01)
    assert seconds[8] == pytest.approx(85.6, rel=0.01)


def test_kernels_take_as_long_as_the_batch_is_large_and_as_the_card_is_slow():
    work, half = (simulated.work_of("vgg16", n, 1, RTX_6000) for n in (64, 32))
    assert work.time_s * work.waiting == pytest.approx(half.time_s * half.waiting)
    assert work.time_s * (1 - work.waiting) == pytest.approx(2 * half.time_s * (1 - half.waiting))
    like = simulated.work_of("vgg19", 64, 1, RTX_6000)
    ratio = work.time_s * (1 - work.waiting) / (like.time_s * (1 - like.waiting))
    assert ratio == pytest.approx(OPERATIONS["vgg16"].executed / OPERATIONS["vgg19"].executed)
    slower = simulated.work_of("vgg16", 64, 1, V100)
    memory_s, slower_s = (w.time_s * (1 - w.waiting) * w.memory for w in (work, slower))
    assert slower_s == pytest.approx(memory_s * RTX_6000.bytes_per_s / V100.bytes_per_s)


@pytest.mark.timeout(170)
def test_a_capped_training_takes_longer_and_less_power(tmp_path):
    record = [sys.executable, "-m", "powerd_analytics", "record", "--quiet", "--power-cap", "120", "-o", "caps.h5"]
    command = [sys.executable, str(SCRIPT), "--model", "vgg19", "--batch-size", "32", "--iterations", "5"]
    simulation = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--control", "--"]
    done = subprocess.run(
        [*simulation, *record, "--", *command, "--on", "sim:rtx6000"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, capped = phases_and_total(read_run(tmp_path / "caps.h5"))
    free = operate(RTX_6000, simulated.work_of("vgg19", 32, 1, RTX_6000), 260.0)
    assert capped["provenance"] == "simulated"
    assert capped["time_s"] > 1.1 * 5 * free.time_s
    assert capped["power_w"] < 120 < free.energy_j / free.time_s
    assert capped["energy_j"] < 5 * free.energy_j
    assert capped["gflops_per_w_executed"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--on", "sim"], "start `powerd sim-gpu`"),
        (["--on", "gpu"], "--on gpu: there is sim, sim:rtx6000"),
        (["--on", "sim:h900"], "--on sim:h900: there is sim, sim:rtx6000"),
        (["--on", "sim", "--target", "0.9"], "nothing is learnt"),
    ],
)
def test_what_a_simulated_card_cannot_do_is_one_line(script, capsys, arguments, words):
    assert script(train, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("train: ")
    assert error.count("\n") == 1
    assert words in error


def test_the_card_asked_for_is_the_card_that_works(monkeypatch):
    answers = {"nvmlDeviceGetName": V100.name, "nvmlDeviceGetCount": 2}

    class Answering:
        here = classmethod(lambda cls: cls())

        def call(self, name, arguments):
            return answers[name]

    monkeypatch.setattr(simulated, "SimGpu", Answering)
    assert simulated.card_here("sim:v100")[1] is simulated.card_here("sim")[1] is V100
    with pytest.raises(simulated.ConfigError, match="is a v100: start `powerd sim-gpu --card p100`"):
        simulated.card_here("sim:p100")
    with pytest.raises(simulated.ConfigError, match="the simulation has 2"):
        simulated.check_cards(Answering(), 3)
    with pytest.raises(simulated.ConfigError, match="how 2 cards share vgg19"):
        simulated.work_of("vgg19", 64, 2, V100)
