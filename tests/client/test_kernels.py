"""`Meter.record_kernels`: which kernels a step runs stands in the run, and the training goes on as without it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity

from powerd_client import Meter
from powerd_client.training import kernels
from powerd_core.errors import ConfigError
from support.tape import TapedMeter


class Training:
    def __init__(self, *, convolves=True):
        torch.manual_seed(1)
        middle = nn.Conv2d(3, 4, 3, padding=1) if convolves else nn.Identity()
        self.model = nn.Sequential(middle, nn.Flatten(), nn.LazyLinear(2))
        self.x = torch.randn(4, 3, 8, 8)
        self.model(self.x)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.losses = []

    def step(self):
        loss = nn.functional.cross_entropy(self.model(self.x), torch.tensor([0, 1, 0, 1]))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())


pytestmark = pytest.mark.filterwarnings("ignore:Lazy modules")


def recorded(training, iterations=10):
    meter = TapedMeter()
    meter.record_kernels(training.step, iterations)
    (event,) = meter.tape.events
    assert event[0] == "kernels"
    return event[1]


def test_the_operators_of_ten_iterations_with_their_counts():
    values = recorded(Training())
    assert (values["where"], values["iterations"]) == ("cpu", 10)
    assert values["names"]["aten::convolution"] == values["names"]["aten::convolution_backward"] == 10
    assert list(values["names"]) == sorted(values["names"])
    assert values["distinct"] == len(values["names"])


def test_the_digest_is_that_of_what_ran_and_not_of_how_often():
    with_convolution, again, without = Training(), Training(), Training(convolves=False)
    first = recorded(with_convolution, 2)["digest"]
    assert recorded(again, 3)["digest"] == first
    assert recorded(without, 2)["digest"] != first


def test_another_algorithm_has_another_digest(monkeypatch):
    ours = recorded(Training(), 2)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    others = recorded(Training(), 2)
    assert ours["digest"] != others["digest"]
    assert "aten::mkldnn_convolution" in ours["names"]
    assert "aten::mkldnn_convolution" not in others["names"]


def test_the_training_is_the_same_with_it_without_it_and_unrecorded(tmp_path):
    plain, profiled, unrecorded = Training(), Training(), Training()
    for _ in range(3):
        plain.step()
    recorded(profiled, 3)
    with pytest.warns(UserWarning, match="not recorded"):
        meter = Meter("tcp://127.0.0.1:1", tmp_path / "run.h5", required=False)
    meter.record_kernels(unrecorded.step, 3)
    assert plain.losses == profiled.losses == unrecorded.losses


def test_its_iterations_are_marked_as_nothing_and_later_ones_are():
    training = Training()
    with TapedMeter() as meter:
        meter.watch(training.model, training.optimizer)
        meter.record_kernels(training.step, 2)
        assert meter.tree() == ""
        training.step()
        assert meter.tree() == "forward backward update"


def test_what_the_step_raises_is_raised_and_the_profiler_has_ended():
    meter = TapedMeter()
    with pytest.raises(ZeroDivisionError):
        meter.record_kernels(lambda: 1 / 0, 2)
    assert meter.tape.events == []
    recorded(Training(), 1)


def test_a_profiler_that_fails_is_told_and_all_steps_run(monkeypatch, capfd):
    class Failing(kernels.profile):
        def start(self):
            raise RuntimeError("another profiler\nis at work")

    monkeypatch.setattr(kernels, "profile", Failing)
    training, meter = Training(), TapedMeter()
    meter.record_kernels(training.step, 3)
    assert len(training.losses) == 3
    assert meter.tape.events == []
    text = "the kernels could not be recorded: RuntimeError: another profiler is at work"
    assert meter.tape.notes == [text]
    assert text in capfd.readouterr().err


@pytest.mark.parametrize(("step", "iterations"), [(None, 10), (print, 0), (print, "10"), (print, 1.5)])
def test_arguments_of_the_wrong_type(step, iterations):
    with pytest.raises(ConfigError, match="record_kernels"):
        TapedMeter().record_kernels(step, iterations)


def test_of_a_gpu_its_kernels_count_and_not_the_calls_of_its_driver(monkeypatch):
    """On an H200 the profiler gives `Command Buffer Full` in some profiles of one step and not in others."""
    gpu, cpu = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    calls = []

    class Profiler:
        def __init__(self, activities):
            calls.append(activities)

        def start(self):
            calls.append("start")

        def stop(self):
            calls.append("stop")

        def events(self):
            names = [("sgemm", gpu), ("cudaLaunchKernel", cpu), ("Command Buffer Full", cpu), ("Memset (Device)", gpu)]
            return [SimpleNamespace(name=name, device_type=of) for name, of in names]

    monkeypatch.setattr(kernels, "profile", Profiler)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    values, failure = kernels.profiled(lambda: calls.append("step"), 2)
    assert (values["where"], values["names"], failure) == ("gpu", {"sgemm": 1}, "")
    assert calls == [[ProfilerActivity.CUDA], "start", "step", "step", "wait", "stop"]


def test_names_of_a_gpu_are_cut_and_copies_left_out():
    kernel = "void cutlass::Kernel2<" + "x" * 5000 + ">(Params)"
    counts = {kernel: 10, "ampere_sgemm_128x64_nn": 20, "Memcpy HtoD (Pinned -> Device)": 10, "Memset (Device)": 1}
    values = kernels.event_of("gpu", counts, 10)
    cut = "cutlass::Kernel2<" + "x" * 182 + "…"
    assert values["names"] == {"ampere_sgemm_128x64_nn": 20, cut: 10}
    other = kernels.event_of("gpu", {**counts, kernel.replace("xx>", "xy>"): 1}, 10)
    assert other["digest"] != values["digest"]
    assert other["distinct"] == 3
    assert other["names"][cut] == 11


def test_of_many_names_the_most_frequent_are_kept():
    values = kernels.event_of("gpu", {f"kernel_{n}": n for n in range(1, 301)}, 1)
    assert values["distinct"] == 300
    assert len(values["names"]) == 200
    assert min(values["names"].values()) == 101
