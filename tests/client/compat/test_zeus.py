"""Zeus' names: windows of a recording, and power limits under lease on a simulated card in virtual time."""

import json
import math
import sys
import time
import types
from functools import partial
from types import SimpleNamespace

import pytest
from bench_power_choice import RTX_6000, LateWorker, VirtualHold, VirtualTraining

from powerd_client.compat import windows as windows_module
from powerd_client.compat.windows import windows_here
from powerd_client.compat.zeus import (
    CallbackSet,
    Energy,
    GlobalPowerLimitOptimizer,
    MaxSlowdownConstraint,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
    ZeusMonitor,
    get_env,
    power_limit,
)
from powerd_client.host import visible_gpus
from powerd_client.runs.build import build_run
from powerd_client.runs.recover import open_run
from powerd_client.runs.runfile import read_objects
from powerd_core.errors import ConfigError, PeerError
from support.joined import join_recording

GPU0_W, GPU1_W, PACKAGE_W, DRAM_W = 100.0, 250.0, 40.0, 8.0


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Begins a recording around this process."""
    monkeypatch.setattr(windows_module, "_here", None)
    monkeypatch.setattr("powerd_client.energies.live_energy.analytics", lambda: None)  # the plain integral: no scipy
    yield partial(join_recording, tmp_path, monkeypatch)
    if windows_module._here is not None:
        windows_module._here.meter.close()


@pytest.fixture
def two_gpus(joined):
    return joined({"gpu0": lambda _: GPU0_W, "gpu1": lambda _: GPU1_W})


def measure(monitor, name, seconds=0.06):
    monitor.begin_window(name)
    time.sleep(seconds)
    return monitor.end_window(name)


def test_a_window_has_joules_with_their_u95_and_provenance(two_gpus):
    measurement = measure(ZeusMonitor(), "step")
    expected = {0: GPU0_W * measurement.time, 1: GPU1_W * measurement.time}
    assert measurement.time >= 0.06
    assert measurement.gpu_energy == pytest.approx(expected, rel=1e-3)
    assert measurement.total_energy == sum(measurement.gpu_energy.values())
    assert measurement.gpu_u95 == pytest.approx({i: 1.96 * 0.01 * j for i, j in expected.items()}, rel=0.01)
    assert measurement.provenance == {0: "simulated", 1: "simulated"}
    assert measurement.missing_s == {0: 0.0, 1: 0.0}
    assert "SIMULATED" in str(measurement)
    assert "gpu_u95" in repr(measurement)
    assert (measurement.cpu_energy, measurement.dram_energy, measurement.soc_energy) == (None, None, None)


def test_windows_one_behind_the_other_add_up(joined):
    joined({"gpu0": lambda t: 300.0 if t % 0.02 < 0.01 else 20.0})
    monitor = ZeusMonitor([0])
    monitor.begin_window("whole")
    parts = [measure(monitor, name, 0.007) for _ in range(10) for name in ("data", "forward", "backward")]
    whole = monitor.end_window("whole")
    between_s = whole.time - sum(part.time for part in parts)
    parts_j = sum(part.total_energy for part in parts)
    assert whole.total_energy - 300.0 * between_s - 1e-6 <= parts_j <= whole.total_energy + 1e-6
    assert all("interpolated" in part.notes[0] for part in parts)
    assert parts[0].gpu_u95[0] > 0.2 * parts[0].gpu_energy[0]


def test_windows_that_nest_and_that_overlap_are_phases_of_the_run(two_gpus, tmp_path):
    monitor = ZeusMonitor()
    monitor.begin_window("epoch")
    measure(monitor, "step")
    monitor.begin_window("validation")
    epoch = monitor.end_window("epoch")
    validation = monitor.end_window("validation")
    assert epoch.gpu_energy[0] == pytest.approx(GPU0_W * epoch.time, rel=1e-3)
    assert validation.gpu_energy[0] == pytest.approx(GPU0_W * validation.time, rel=0.01)
    windows_here().meter.close()
    build_run(two_gpus, tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as file:
        names = [kind["name"] for kind in read_objects(file["phases/kinds"])]
        rows = zip(file["phases/kind"][:], file["phases/parent"][:], file["phases/cut"][:], strict=True)
        whole = [(names[kind], int(parent)) for kind, parent, cut in rows if not cut]
    assert sorted(whole) == [("epoch", -1), ("step", 0), ("validation", -1)]


def test_indices_are_those_of_cuda_visible_devices(two_gpus, monkeypatch):
    cards = [{"name": "Card", "uuid": f"GPU-gpu{i}-0000", "pci": "", "mig": ""} for i in (0, 1)]
    monkeypatch.setattr(visible_gpus, "list_gpus", lambda: cards)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    measurement = measure(ZeusMonitor([0]), "step")
    assert measurement.gpu_energy[0] == pytest.approx(GPU1_W * measurement.time, rel=1e-3)


def test_processors_and_memory_are_those_of_rapl(joined):
    joined({"gpu0": lambda _: GPU0_W}, {"cpu0.package_0": lambda _: PACKAGE_W, "cpu0.dram_0": lambda _: DRAM_W})
    measurement = measure(ZeusMonitor(), "step")
    assert measurement.cpu_energy == pytest.approx({0: PACKAGE_W * measurement.time}, rel=0.01)
    assert measurement.dram_energy == pytest.approx({0: DRAM_W * measurement.time}, rel=0.01)
    assert measure(ZeusMonitor(cpu_indices=[]), "step").cpu_energy is None


def test_what_is_wrong_is_said_as_zeus_says_it(two_gpus):
    monitor = ZeusMonitor()
    monitor.begin_window("step")
    with pytest.raises(ValueError, match="window 'step' already exists"):
        monitor.begin_window("step")
    monitor.begin_window("step", restart=True)
    monitor.end_window("step")
    with pytest.raises(ValueError, match="window 'step' does not exist"):
        monitor.end_window("step")
    monitor.begin_window("other")
    monitor.reset_windows()
    monitor.begin_window("other")
    cancelled = monitor.end_window("other", cancel=True)
    assert cancelled.time == 0
    assert math.isnan(cancelled.total_energy)
    for arguments, text in (
        ({"gpu_indices": [0, 7]}, "there is no GPU 7 here: there are 0, 1"),
        ({"cpu_indices": [0]}, "there is no processor 0 here: no processor is measured"),
        ({"sync_execution_with": "tensorflow"}, "give one of torch, jax, cupy"),
    ):
        with pytest.raises(ConfigError, match=text):
            ZeusMonitor(**arguments)


def test_without_a_gpu_joules_are_unknown_and_not_0(joined, capfd):
    joined({}, {"cpu0.package_0": lambda _: PACKAGE_W})
    measurement = measure(ZeusMonitor(), "step")
    assert measurement.gpu_energy == {}
    assert math.isnan(measurement.total_energy)
    assert capfd.readouterr().err.count("no GPU is measured here") == 1
    with pytest.raises(ConfigError, match="there is no GPU 0 here: no GPU is measured"):
        ZeusMonitor([0])


def test_without_a_powerd_one_line_says_so_and_the_training_goes_on(monkeypatch, capfd):
    def refused(*_, **__):
        raise PeerError("no powerd can begin here")

    monkeypatch.setattr(windows_module, "_here", None)
    monkeypatch.setattr("powerd_client.meter.take_part", refused)
    measurement = measure(ZeusMonitor([0]), "step", 0.01)
    assert measurement.time >= 0.01
    assert math.isnan(measurement.gpu_energy[0])
    assert (measurement.gpu_u95, measurement.missing_s) == ({0: None}, {0: None})
    assert "nothing is recorded" in str(measurement)
    assert capfd.readouterr().err == "powerd: this training is not recorded: no powerd can begin here\n"


def test_the_log_has_a_row_a_window(two_gpus, tmp_path):
    path = tmp_path / "logs" / "zeus.csv"
    monitor = ZeusMonitor([0, 1], log_file=path)
    every = {name: measure(monitor, name) for name in ("a", "b")}
    monitor._writing.shutdown(wait=True)  # as the end of the process does
    head, *rows = [line.split(",") for line in path.read_text().splitlines()]
    assert head == ["start_time", "window_name", "elapsed_time", "gpu0_energy", "gpu1_energy"]
    for (start, name, elapsed, *joules), measurement in zip(rows, every.values(), strict=True):
        assert abs(float(start) - time.time()) < 60
        assert every[name] is measurement
        assert [float(elapsed), *map(float, joules)] == [measurement.time, *measurement.gpu_energy.values()]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_windows_wait_for_the_framework_where_it_is_imported(two_gpus, monkeypatch, is_wanted):
    waited = []
    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, synchronize=waited.append)
    monitor = ZeusMonitor([1])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monitor.begin_window("step", sync_execution=is_wanted)
    monitor.end_window("step", sync_execution=is_wanted)
    assert waited == [1, 1] * is_wanted


# ---- power limits ----------------------------------------------------------------------------------------------------

SWEPT = [PowerLimitMeasurement(w, j, s) for w, j, s in ((260, 90.0, 1.0), (210, 80.0, 1.05), (160, 85.0, 1.2))]


@pytest.mark.parametrize(
    ("selector", "watts"),
    [
        (Energy(), 210),
        (Time(), 260),
        (ZeusCost(1.0), 210),
        (ZeusCost(0.0), 260),
        (MaxSlowdownConstraint(1.1), 210),
        (MaxSlowdownConstraint(1.3), 160),
    ],
)
def test_selectors_choose_as_those_of_zeus(selector, watts):
    assert selector.select(SWEPT) == watts


def test_selectors_refuse_what_zeus_refuses():
    for make in (lambda: ZeusCost(1.5), lambda: ZeusCost(0.5, 0), lambda: MaxSlowdownConstraint(0.9)):
        with pytest.raises(ValueError, match="give"):
            make()


class Trial:
    """A training on a simulated card in virtual time, and what chooses its limit."""

    def __init__(self, monkeypatch, **options):
        o = SimpleNamespace(noise=0.0, jitter=0.0, wander=0.0, iteration_s=0.06, max_slowdown=0.5)
        self.training = VirtualTraining(o, "vgg19", seed=1)

        def make(search, hold, energy_between, emit, **chosen):
            chosen["find_range"] = lambda knob: (["gpu0"], *RTX_6000.limits_w[:2])
            return power_choice(
                search,
                lambda _: VirtualHold(self.training.gpu),
                self.training.energy_between,
                emit,
                now=lambda: round(self.training.now_s * 1e9),
                worker=LateWorker(self.training),
                **chosen,
            )

        power_choice = power_limit.PowerChooser
        with monkeypatch.context() as patch:
            patch.setattr(power_limit, "PowerChooser", make)
            self.optimizer = GlobalPowerLimitOptimizer(ZeusMonitor([0]), **options)

    def train(self, steps, epochs=1, pause_s=0.0):
        for _ in range(epochs):
            for _ in range(steps):
                self.optimizer.on_step_begin()
                self.training.iterate()
                self.optimizer.on_step_end()
            self.optimizer.on_epoch_end()
            if pause_s:
                self.training.gpu.advance(pause_s)
        return self.optimizer

    @property
    def limit_w(self):
        return self.training.gpu.set_to.limit_w


def test_limits_are_tried_downwards_the_best_is_held_and_the_profile_is_kept(two_gpus, tmp_path, monkeypatch):
    path = tmp_path / "profile.json"
    trial = Trial(monkeypatch, optimum_selector=Energy(), pl_step=40, profile_path=path)
    done = trial.train(600)
    assert [m.power_limit for m in done.measurements] == [260, 220, 180, 140, 100]
    least = min(done.measurements, key=lambda m: m.energy)
    assert (done.optimal_power_limit, trial.limit_w) == (least.power_limit, least.power_limit)
    times_s = [m.time for m in done.measurements]
    assert times_s == sorted(times_s)
    assert times_s[0] == pytest.approx(40 * 0.06, rel=0.02)
    rows = json.loads(path.read_text())["measurements"]
    assert rows[0] == {"power_limit": 260, "energy": done.measurements[0].energy, "time": done.measurements[0].time}
    done._chooser.__exit__()
    assert trial.limit_w == 260

    again = Trial(monkeypatch, optimum_selector=MaxSlowdownConstraint(1.0), profile_path=path)
    assert (again.optimizer.optimal_power_limit, again.limit_w) == (260, 260)
    assert len(again.optimizer.measurements) == 5


def test_what_lies_between_epochs_is_no_step(two_gpus, monkeypatch):
    """A validation as long as two steps: by its length alone it would be taken for one."""
    plain = Trial(monkeypatch, pl_step=80).train(600).measurements
    with_pauses = Trial(monkeypatch, pl_step=80).train(20, epochs=30, pause_s=0.12).measurements
    assert [m.power_limit for m in plain] == [m.power_limit for m in with_pauses] == [260, 180, 100]
    for one, other in zip(plain, with_pauses, strict=True):
        assert other.time == pytest.approx(one.time, rel=0.01)


def test_a_choice_that_was_not_measured_is_given_up(two_gpus, monkeypatch, capfd):
    trial = Trial(monkeypatch, optimum_selector=SimpleNamespace(select=lambda every: 17), pl_step=80)
    assert trial.train(600).optimal_power_limit is None
    assert "chose 17 W, which was not measured" in capfd.readouterr().err
    assert trial.limit_w == 260


def test_without_a_helper_one_line_says_so_and_the_training_goes_on(two_gpus, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("POWERD_CONTROL", str(tmp_path / "nobody"))
    callbacks = CallbackSet([GlobalPowerLimitOptimizer(ZeusMonitor([0]))])
    callbacks.on_train_begin()
    for _ in range(3):
        callbacks.on_step_begin()
        callbacks.on_step_end()
    callbacks.on_epoch_end()
    callbacks.on_evaluate(0.5)
    (line,) = capfd.readouterr().err.splitlines()
    assert "no power cap is chosen: no control helper answers" in line


@pytest.mark.parametrize("text", ["", "{}", '{"measurements": []}', '{"measurements": [{"power_limit": 1}]}'])
def test_a_file_that_is_no_profile_is_refused(two_gpus, tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no profile of power limits"):
        GlobalPowerLimitOptimizer(ZeusMonitor([0]), profile_path=path)


def test_numbers_that_cannot_be_are_refused(two_gpus):
    for options in ({"profile_steps": 0}, {"pl_step": 0}, {"wait_steps": -1}, {"warmup_steps": -1}):
        (name,) = options
        with pytest.raises(ValueError, match=f"{name}=.*or more"):
            GlobalPowerLimitOptimizer(ZeusMonitor([0]), **options)


def test_the_callback_of_hugging_faces_trainer(two_gpus, monkeypatch, tmp_path):
    module = types.ModuleType("transformers")
    module.TrainerCallback = type("TrainerCallback", (), {})
    monkeypatch.setitem(sys.modules, "transformers", module)
    monkeypatch.delitem(sys.modules, "powerd_client.compat.zeus.trainer", raising=False)
    monkeypatch.setenv("POWERD_CONTROL", str(tmp_path / "nobody"))
    from powerd_client.compat.zeus import HFGlobalPowerLimitOptimizer

    callback = HFGlobalPowerLimitOptimizer(ZeusMonitor([0]), profile_steps=3)
    callback.on_step_begin(None, None, None, model=None)
    callback.on_epoch_end(None, None, None)
    assert isinstance(callback, module.TrainerCallback)
    assert callback.optimizer.measurements == []
    monkeypatch.delitem(sys.modules, "powerd_client.compat.zeus.trainer")


def test_variables_of_the_environment(monkeypatch):
    monkeypatch.setenv("SLOWDOWN", "1.2")
    monkeypatch.setenv("IS_ON", "true")
    assert get_env("SLOWDOWN", float) == 1.2
    assert get_env("IS_ON", bool) is True
    assert get_env("NOTHING", int, 3) == 3
    for name, kind, text in (("NOTHING", int, "is not set"), ("SLOWDOWN", int, "is no int")):
        with pytest.raises(ValueError, match=text):
            get_env(name, kind)
