"""The simulated GPU: its time and joules are the physics', its driver's face is NVML's, and its faults are evident."""

import contextlib
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from bench_gpu_physics import campaign
from conformance import Opened, SourceConformance
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_core.card_file import KnownCard, card_text
from powerd_core.errors import ConfigError, PeerError
from powerd_core.gpu_physics import (
    CARDS,
    EIGHT_CARDS,
    NETWORKS,
    RTX_6000,
    V100,
    XCEPTION,
    operate,
    operate_machine,
    timed,
)
from powerd_core.model import Provenance
from powerd_daemon.sim_gpu import SHIM
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.nvml.source import NvmlOptions, NvmlSource
from powerd_daemon.sources.sim import gpu_socket
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.gpu import FAULTS, Refusal, SimulatedGpu, SimulatedNode, check_faults, work_of
from powerd_daemon.sources.sim.gpu_socket import GpuServer, SimGpu
from powerd_daemon.sources.sim.nvml_face import FUNCTIONS, NvmlFace, make_module

VGG = timed(NETWORKS["vgg19"], 0.2)


def iteration(network=VGG):
    return work_of(network)


def train(gpu, iterations=25, network=VGG):
    """Seconds and true joules of an iteration."""
    before, begin_s = gpu.truth.energy_j, gpu.now_s
    for _ in range(iterations):
        gpu.submit(iteration(network))
    while not gpu.is_idle:
        gpu.advance(gpu.now_s + 0.01)
    seconds = gpu.last_done_s - begin_s
    idle_j = (gpu.now_s - gpu.last_done_s) * gpu.card.idle_w
    return seconds / iterations, (gpu.truth.energy_j - before - idle_j) / iterations


def steady(card=RTX_6000, **settings):
    """A card whose temperature changes nothing, with its settings in force."""
    gpu = SimulatedGpu(replace(card, leakage_per_k=0.0))
    for name, value in settings.items():
        gpu.change(name, value)
    gpu.advance(1.0)
    return gpu


class TestTime:
    @pytest.mark.parametrize("cap_w", [100.0, 130.0, 165.0, 210.0, 260.0])
    def test_it_is_the_physics(self, cap_w):
        gpu = steady(limit_w=cap_w)
        time_s, energy_j = train(gpu)
        at = operate(gpu.card, VGG, cap_w)
        assert time_s == pytest.approx(at.time_s, rel=1e-6)
        assert energy_j == pytest.approx(at.energy_j, rel=1e-6)
        assert gpu.truth.at_cap_s == pytest.approx(25 * at.at_cap * at.time_s, rel=1e-6)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(0.001, 0.7), min_size=1, max_size=20))
    def test_it_does_not_depend_on_how_time_is_cut(self, pieces):
        whole, cut = SimulatedGpu(RTX_6000), SimulatedGpu(RTX_6000)
        for gpu in (whole, cut):
            gpu.change("limit_w", 150.0)
            for _ in range(10):
                gpu.submit(iteration())
        for piece_s in pieces:
            cut.advance(cut.now_s + piece_s)
        whole.advance(cut.now_s)
        assert cut.truth.energy_j == pytest.approx(whole.truth.energy_j, rel=1e-9)
        assert cut.temperature_c == pytest.approx(whole.temperature_c, rel=1e-9)
        for (t_s, shown_w), (of_whole_s, of_whole_w) in zip(cut.samples, whole.samples, strict=True):
            assert (t_s, shown_w) == (pytest.approx(of_whole_s), pytest.approx(of_whole_w, rel=1e-6))
        assert cut.instant_w == pytest.approx(whole.instant_w, rel=1e-6)
        assert abs(cut.energy_mj - whole.energy_mj) <= 1

    def test_a_locked_clock(self):
        gpu = steady(core_mhz=(1050, 1050))
        time_s, _ = train(gpu)
        assert time_s == pytest.approx(operate(gpu.card, VGG, 260.0, f_most=0.5).time_s, rel=1e-6)

    def test_a_locked_clock_stays_while_nothing_is_to_do(self):
        gpu = steady(core_mhz=(1050, 1050))
        assert (gpu.f * 2100, gpu.reasons) == (1050.0, 0x1)
        gpu.change("core_mhz", None)
        gpu.advance(gpu.now_s + 1.0)
        assert gpu.f * 2100 == 300.0

    def test_it_warms_and_leaks(self):
        gpu = SimulatedGpu(RTX_6000)
        gpu.advance(1.0)
        first = train(gpu, 25)[1]
        train(gpu, 600)
        assert gpu.temperature_c > 65
        assert train(gpu, 25)[1] > 1.01 * first

    def test_a_campaign_of_runs_of_full_length_in_virtual_time(self):
        """A fifth of that of Krzywaniak et al.: 33 caps, 6 networks, one run, by a card that warms up, with noise."""
        runs, hours = campaign(0.01, repeats=1)
        assert runs == 198
        assert 12 < hours < 14

    def test_a_run_in_virtual_time_is_the_same_as_its_iterations_one_by_one(self):
        at_once, one_by_one = steady(limit_w=150.0), steady(limit_w=150.0)
        run = at_once.train(VGG, 100)
        time_s, energy_j = train(one_by_one, 100)
        assert (run.time_s / 100, run.energy_j / 100) == (pytest.approx(time_s), pytest.approx(energy_j))
        assert at_once.truth.at_cap_s == pytest.approx(one_by_one.truth.at_cap_s)

    def test_noise_of_runs_is_of_time_and_energy_apart(self):
        gpu = steady()
        runs = [gpu.train(VGG, 5, time_noise=0.02, noise=0.01) for _ in range(300)]
        of_time = [run.time_s / statistics.fmean(r.time_s for r in runs) - 1 for run in runs]
        of_energy = [run.energy_j / statistics.fmean(r.energy_j for r in runs) - 1 for run in runs]
        assert statistics.pstdev(of_time) == pytest.approx(0.02, rel=0.15)
        assert statistics.pstdev(of_energy) == pytest.approx(0.01, rel=0.15)
        assert abs(statistics.correlation(of_time, of_energy)) < 0.2

    def test_a_node_at_the_wall(self):
        cards = [SimulatedGpu(replace(RTX_6000, leakage_per_k=0.0), i) for i in range(8)]
        node = SimulatedNode(cards, EIGHT_CARDS)
        for gpu in cards:
            gpu.change("limit_w", 170.0)
        node.advance(1.0)
        run, at = node.train(XCEPTION, cards=4), operate_machine(EIGHT_CARDS, RTX_6000, XCEPTION, 170.0, cards=4)
        assert (run.time_s, run.energy_j) == (pytest.approx(at.time_s), pytest.approx(at.energy_j))

    def test_what_the_driver_tells_follows_the_power(self):
        """The counter to a renewal, the mean of a second, and samples behind a low-pass."""
        gpu = steady()
        for _ in range(30):
            gpu.submit(iteration())
        gpu.advance(gpu.now_s + 4.0)
        assert gpu.energy_mj == pytest.approx(1e3 * gpu.truth.energy_j, abs=1e3 * 260 * 0.1)
        assert len(gpu.samples) == 119
        mean_w = statistics.fmean(watts for _, watts in gpu.samples[-50:])
        assert mean_w == pytest.approx(gpu.average_w, rel=0.02)
        assert max(w for _, w in gpu.samples) <= 260
        begin_s = gpu.samples[0][0]
        gpu.advance(gpu.now_s + 0.02)
        assert gpu.samples[0][0] == pytest.approx(begin_s + 0.02)

    def test_noise_of_a_reading_does_not_change_when_it_is_read_again(self):
        gpu = steady()
        gpu.noise = 0.01
        before = dict(gpu.samples)
        assert len(set(before.values())) > 40
        gpu.advance(gpu.now_s + 0.1)
        after = dict(gpu.samples)
        assert {t_s: after[t_s] for t_s in before} == before

    def test_heat_throttles_until_it_is_cooler(self):
        hot = SimulatedGpu(replace(RTX_6000, ambient_c=55.0))
        run = hot.train(VGG, 1000)
        assert 0 < hot.truth.thermal_s < hot.truth.busy_s
        assert hot.temperature_c < 90
        assert run.time_s > 1.01 * SimulatedGpu(RTX_6000).train(VGG, 1000).time_s


class TestFaults:
    """Each shows that it happened, and that without it nothing of the kind does."""

    @pytest.fixture
    def gpu(self):
        return steady()

    def test_there_is_a_test_of_each(self):
        tested = {name.removeprefix("test_").replace("_", "-") for name in dir(type(self)) if name.startswith("test_")}
        assert set(FAULTS) <= tested

    def after(self, gpu, *faults, limit_w=180.0, wait_s=2.0):
        gpu.faults = set(faults)
        gpu.change("limit_w", limit_w)
        gpu.advance(gpu.now_s + wait_s)
        return gpu

    def test_ignore(self, gpu):
        assert self.after(gpu).set_to.limit_w == 180.0
        assert self.after(gpu, "ignore", limit_w=150.0).set_to.limit_w == 180.0
        assert gpu.setters[-1] == ("limit_w", 150.0)

    def test_clamp(self, gpu):
        assert self.after(gpu, "clamp").set_to.limit_w == (260.0 + 180.0) / 2

    def test_override(self, gpu):
        self.after(gpu, "override")
        assert (gpu.set_to.limit_w, gpu.enforced_w) == (180.0, 144.0)
        assert train(gpu)[0] == pytest.approx(operate(gpu.card, VGG, 144.0).time_s, rel=1e-6)

    def test_other_client(self, gpu):
        assert self.after(gpu, "other-client", wait_s=0.5).set_to.limit_w == 180.0
        gpu.advance(gpu.now_s + 1.0)
        assert gpu.set_to.limit_w == 187.0

    def test_driver_reload(self, gpu):
        train(gpu)
        counted = gpu.energy_mj
        self.after(gpu, "driver-reload")
        assert gpu.set_to.limit_w == 260.0
        assert gpu.energy_mj < counted

    def test_renumbered(self):
        node = SimulatedNode([SimulatedGpu(RTX_6000, index) for index in range(2)])
        first, second = node.gpus
        now_s = [1.0]
        call = NvmlFace(node, lambda: now_s[0]).call
        handle = call("nvmlDeviceGetHandleByIndex", [0])
        first.faults = {"renumbered"}
        call("nvmlDeviceSetPowerManagementLimit", [handle, 180_000])
        now_s[0] += 2.0
        with pytest.raises(Refusal) as told:
            call("nvmlDeviceGetUUID", [handle])
        assert told.value.code == 1
        call("nvmlInit", [])
        assert call("nvmlDeviceGetUUID", [handle]) == second.uuid, "the handle is another card's"
        assert call("nvmlDeviceGetHandleByUUID", [first.uuid]) == 1
        assert (first.set_to.limit_w, node.gpus) == (260.0, [second, first])

    def test_no_permission(self, gpu):
        with pytest.raises(Refusal) as told:
            self.after(gpu, "no-permission")
        assert told.value.code == 4

    def test_not_supported(self, gpu):
        with pytest.raises(Refusal) as told:
            self.after(gpu, "not-supported")
        assert told.value.code == 3

    def test_lost(self, gpu):
        self.after(gpu, "lost")
        face = NvmlFace(SimulatedNode([gpu]), lambda: gpu.now_s)
        with pytest.raises(Refusal) as told:
            face.call("nvmlDeviceGetPowerUsage", [0])
        assert told.value.code == 15

    @pytest.mark.parametrize(("fault", "counter"), [("thermal", "thermal_s"), ("brake", "brake_s")])
    def test_slowed(self, gpu, fault, counter):
        free_s, _ = train(gpu)
        assert getattr(gpu.truth, counter) == 0
        gpu.faults = {fault}
        slowed_s, _ = train(gpu)
        assert slowed_s > 1.1 * free_s
        assert getattr(gpu.truth, counter) > 0.5 * 25 * slowed_s

    test_thermal = test_brake = test_slowed

    def test_heat_shows_in_the_temperature(self, gpu):
        gpu.faults = {"thermal"}
        train(gpu)
        assert gpu.temperature_c > gpu.card.slowdown_c

    @pytest.mark.parametrize(("fault", "code"), [("no-permission", 4), ("not-supported", 3)])
    def test_of_one_knob_alone(self, gpu, fault, code):
        gpu.faults = {f"{fault}:sm-clock"}
        gpu.change("limit_w", 180.0)
        with pytest.raises(Refusal) as told:
            gpu.change("core_mhz", (1050, 1050))
        assert told.value.code == code
        assert (gpu.set_to.limit_w, gpu.set_to.core_mhz) == (180.0, None)

    def test_a_fault_of_no_knob_is_none(self):
        assert check_faults({"ignore:power-cap", "slow:sm-clock", "brake"})
        with pytest.raises(ConfigError, match="there is no fault 'brake:sm-clock'"):
            check_faults({"brake:sm-clock"})

    def test_clock_ignored(self, gpu):
        gpu.faults = {"clock-ignored"}
        gpu.change("core_mhz", (1050, 1050))
        gpu.advance(gpu.now_s + 1)
        assert train(gpu)[0] == pytest.approx(operate(gpu.card, VGG, 260.0).time_s, rel=1e-6)

    def test_slow(self, socket_of):
        gpu, _ = socket_of
        gpu.set_faults("slow")
        begin_s = time.monotonic()
        other = threading.Thread(target=lambda: gpu.call("nvmlDeviceGetPowerUsage", [0]))
        gpu_call = threading.Thread(target=lambda: gpu.call("nvmlDeviceSetPowerManagementLimit", [0, 150_000]))
        gpu_call.start()
        other.start()
        other.join()
        assert gpu_call.is_alive(), "others are answered meanwhile"
        gpu_call.join()
        assert time.monotonic() - begin_s >= 3.0


@pytest.fixture
def socket_of(tmp_path):
    """A server in a thread, and a client of it."""
    import socket

    from powerd_daemon.sources.sim.gpu_socket import now_s

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "gpu"))
    listener.listen()
    listener.setblocking(False)
    node = SimulatedNode([SimulatedGpu(RTX_6000, i, now_s=now_s()) for i in range(2)])
    server = GpuServer(node, listener)
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield SimGpu(tmp_path / "gpu"), node
    server.is_stopping = True
    thread.join()
    listener.close()
    for client in server._clients:
        client.socket.close()


class TestFace:
    @pytest.fixture
    def module(self):
        gpu = steady()
        self.gpu = gpu
        return make_module(NvmlFace(SimulatedNode([gpu]), lambda: gpu.now_s, lambda: 1e9 + gpu.now_s).call)

    def test_names_values_and_errors_are_pynvmls(self, module):
        module.nvmlInit()
        handle = module.nvmlDeviceGetHandleByIndex(0)
        assert module.nvmlDeviceGetName(handle) == "Quadro RTX 6000"
        assert module.nvmlDeviceGetPowerManagementLimitConstraints(handle) == [100_000, 260_000]
        module.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
        assert module.nvmlDeviceGetPowerManagementLimit(handle) == 200_000
        field = module.nvmlDeviceGetFieldValues(handle, [module.NVML_FI_DEV_POWER_INSTANT])[0]
        assert (field.nvmlReturn, field.value.uiVal) == (0, 15_000)
        with pytest.raises(module.NVMLError_InvalidArgument):
            module.nvmlDeviceSetPowerManagementLimit(handle, 5)
        with pytest.raises(module.NVMLError_NotSupported):
            module.nvmlDeviceSetMemoryLockedClocks(handle, 7001, 7001)
        with pytest.raises(module.NVMLError_NotSupported):
            module.nvmlDeviceGetFanSpeed(handle)

    def test_every_function_is_one_of_pynvmls(self):
        import pynvml

        ours = {name for name in FUNCTIONS if not hasattr(pynvml, name)}
        assert not ours, "renamed, or never there"

    @pytest.mark.parametrize("name", sorted(CARDS))
    def test_clocks_that_are_listed_can_be_set(self, name):
        gpu = SimulatedGpu(CARDS[name])
        module = make_module(NvmlFace(SimulatedNode([gpu]), lambda: gpu.now_s).call)
        memory = module.nvmlDeviceGetSupportedMemoryClocks(0)
        for clock in module.nvmlDeviceGetSupportedGraphicsClocks(0, max(memory)):
            if gpu.card.architecture >= 5:
                module.nvmlDeviceSetGpuLockedClocks(0, clock, clock)
            else:
                module.nvmlDeviceSetApplicationsClocks(0, max(memory), clock)

    def test_the_source_nvml_reads_it(self):
        gpu = steady()
        clock = VirtualClock()
        offset_s = gpu.now_s - clock.now_ns() / 1e9
        face = NvmlFace(SimulatedNode([gpu]), lambda: clock.now_ns() / 1e9 + offset_s, lambda: clock.wall_ns() / 1e9)
        source = NvmlSource(NvmlOptions(), Start("nvml", 1, 0, clock), make_module(face.call))
        streams, devices = source.open()
        lines = {line.name: line for stream in streams for line in stream.lines}
        assert devices[0].feeds == ("gpu0.nvml_samples",)
        assert {line.provenance for line in lines.values()} == {Provenance.SIMULATED}
        assert "identified" in lines["gpu0.nvml_samples"].accuracy.origin
        assert {"gpu0.at_power_cap", "gpu0.power_limit_requested"} <= set(lines)
        source.close()


class TestConformance(SourceConformance):
    """The source nvml on a simulated GPU that works."""

    polls = 400

    def make(self, start):
        clock = start.clock
        gpus = [SimulatedGpu(RTX_6000, i, now_s=clock.now_ns() / 1e9) for i in range(2)]
        self.gpus = gpus
        for _ in range(300):
            gpus[0].submit(iteration())
        face = NvmlFace(SimulatedNode(gpus), lambda: clock.now_ns() / 1e9, lambda: clock.wall_ns() / 1e9)
        return NvmlSource(NvmlOptions(), start, make_module(face.call))

    def fail(self, source):
        for gpu in self.gpus:
            gpu.is_lost = True


class TestSource:
    def test_its_readings_add_up_to_the_truth(self):
        """Samples, and the counter, of a training between two moments of rest."""
        clock = VirtualClock(3_000_000_000)
        gpu = SimulatedGpu(RTX_6000, now_s=clock.now_ns() / 1e9)
        face = NvmlFace(SimulatedNode([gpu]), lambda: clock.now_ns() / 1e9, lambda: clock.wall_ns() / 1e9)
        source = NvmlSource(NvmlOptions(), Start("nvml", 1, 0, clock), make_module(face.call))
        opened = Opened(source, clock, *source.open())
        made = opened.run(200, every=10_000)
        before_j = gpu.truth.energy_j
        for _ in range(25):
            gpu.submit(iteration())
        made += opened.run(1000, every=10_000)
        assert gpu.is_idle
        trained_j = gpu.truth.energy_j - before_j
        for line, column, per_code in (
            ("gpu0.nvml_samples", "power_mw", 1e-3),
            ("gpu0.nvml_energy", "energy_mj", 1e-3),
        ):
            readings = opened.readings(made, line)
            assert not any(readings["flags"]), line
            seconds, codes = [t / 1e9 for t in readings["t_ns"]], [per_code * code for code in readings[column]]
            if column == "power_mw":
                pairs = zip(seconds, seconds[1:], codes, codes[1:], strict=False)
                told_j = sum((b - a) * (p + q) / 2 for a, b, p, q in pairs)
            else:
                told_j = codes[-1] - codes[0]
            rest_j = RTX_6000.idle_w * (seconds[-1] - seconds[0] - (gpu.now_s - 3.0 - 2.0))
            assert told_j - rest_j == pytest.approx(trained_j, rel=0.01), line
        source.close()


class TestProcess:
    def test_a_cap_that_comes_while_it_works_slows_the_rest(self, socket_of):
        gpu, _ = socket_of
        begin_s = time.monotonic()
        worker = threading.Thread(target=lambda: gpu.run(0.0, 1.0, 0.0, 187.0))
        worker.start()
        while not gpu.truth()["busy_s"] > 0.2:
            time.sleep(0.01)
        gpu.call("nvmlDeviceSetPowerManagementLimit", [0, 100_000])
        worker.join()
        truth = gpu.truth()
        assert 0.2 < truth["at_cap_s"] < truth["busy_s"]
        assert truth["busy_s"] > 1.3
        assert time.monotonic() - begin_s >= truth["busy_s"] - 1e-3
        assert truth["at_cap_ns"] == round(1e9 * truth["at_cap_s"])

    def test_who_works_on_it_is_told_until_it_goes(self, socket_of):
        gpu, node = socket_of
        program = f"""
from powerd_daemon.sources.sim.gpu_socket import SimGpu
SimGpu({str(gpu._wire.path)!r}).run(0.0, 0.01, 0.0, 187.0)
input()
"""
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as worker:
            while not node.gpus[0].processes:
                gpu.truth()
            assert [p["pid"] for p in gpu.call("nvmlDeviceGetComputeRunningProcesses", [0])] == [worker.pid]
            assert gpu.call("nvmlDeviceGetComputeRunningProcesses", [1]) == []
            assert worker.stdin
            worker.stdin.close()
        while node.gpus[0].processes:
            gpu.truth()

    def test_work_takes_as_long_as_the_card_needs(self, socket_of):
        gpu, _ = socket_of
        assert gpu.run(0.05, 0.1, 0.05, 187.0) >= 0.2
        assert gpu.truth()["busy_s"] == pytest.approx(0.15, abs=1e-6)
        assert gpu.work(0.2 * RTX_6000.flops, gpu=1) >= 0.2
        assert gpu.truth(1)["busy_s"] == pytest.approx(0.2, abs=1e-6)

    def test_nonsense_is_refused_in_one_line(self, socket_of):
        gpu, _ = socket_of
        for request in ({"work": 5}, {"call": "nvmlInit"}, {}, {"faults": ["fire"]}, {"truth": 1, "gpu": 9}):
            with pytest.raises(OSError, match="the simulated GPU says"):
                gpu._ask(request)
        assert gpu.call("nvmlDeviceGetCount", []) == 2

    def test_no_number_ends_it_or_keeps_others_waiting(self, socket_of):
        gpu, _ = socket_of
        forms = (
            '{"truth": true, "gpu": %s}',
            '{"work": {"wait_s": %s, "core_s": 0, "memory_s": 0, "busy_w": 1, "exchange_s": 0}}',
            '{"call": "nvmlDeviceSetPowerManagementLimit", "arguments": [0, %s]}',
        )
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(gpu._wire.path))
            for number in ("1e999", "-1e999", "NaN", "1e-400", "9" * 400):
                for form in forms:
                    client.sendall(f"{form % number}\n".encode())
                    assert client.recv(1 << 16)  # an answer, whatever it is
        assert gpu.run(0.0, 0.001, 0.0, 100.0) > 0
        assert gpu.call("nvmlDeviceGetCount", []) == 2

    def test_without_a_descriptor_a_client_is_turned_away_and_others_are_served(self, socket_of):
        gpu, _ = socket_of
        assert gpu.call("nvmlDeviceGetCount", []) == 2
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = []
        with socket.socket(socket.AF_UNIX) as client:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[0]), before[1]))
            try:
                with contextlib.suppress(OSError):
                    while True:
                        held.append(os.open(os.devnull, os.O_RDONLY))
                with pytest.raises(OSError, match="Too many open files"):
                    os.open(os.devnull, os.O_RDONLY)
                client.connect(str(gpu._wire.path))
                assert client.recv(1) == b""  # it hears of it
                assert gpu.call("nvmlDeviceGetCount", []) == 2
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
                for descriptor in held:
                    os.close(descriptor)
        assert SimGpu(gpu._wire.path).call("nvmlDeviceGetCount", []) == 2

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the end that is tried
    def test_clients_hear_of_its_end_whatever_it_ends_by(self, socket_of, monkeypatch):
        gpu, _ = socket_of
        assert gpu.call("nvmlDeviceGetCount", []) == 2
        with monkeypatch.context() as patched:
            patched.setattr(threading, "excepthook", lambda args: None)
            patched.setattr(gpu_socket, "now_s", lambda: 1 / 0)
            with pytest.raises(PeerError):
                gpu.truth()

    def test_a_command_sees_it_as_pynvml_and_ends_with_it(self, tmp_path):
        (tmp_path / "card.toml").write_text(card_text(KnownCard(replace(V100, name="Mine"), "v100")))
        command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--cards", "3", "--card", "card.toml", "--"]
        program = (
            "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount(), pynvml.SIMULATED, pynvml.__file__, "
            "pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(2)))"
        )
        done = subprocess.run(
            [*command, sys.executable, "-c", program],
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        assert done.stdout.split() == ["3", "True", str(SHIM / "pynvml.py"), "Mine"]

    @pytest.mark.slow
    @pytest.mark.parametrize(("program", "is_told"), [
        ("", False),
        ("import pynvml as p; p.nvmlInit(); p.nvmlDeviceGetPowerUsage(p.nvmlDeviceGetHandleByIndex(0))", True),
    ], ids=["nothing is measured", "power is read"])  # fmt: skip
    def test_an_idle_card_is_told_where_something_was_measured(self, program, is_told):
        command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--", sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert ("was given no work" in done.stderr) == is_told

    def test_without_one_it_says_what_to_start(self, monkeypatch):
        monkeypatch.delenv("POWERD_SIM_GPU", raising=False)
        with pytest.raises(OSError, match="start `powerd sim-gpu`"):
            SimGpu.here()

    def test_the_socket_is_its_users_alone(self, tmp_path):
        path = tmp_path / "gpu"
        command = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--socket", str(path), "--"]
        mode = "import os, sys; print(oct(os.stat(sys.argv[1]).st_mode & 0o777))"
        done = subprocess.run(
            [*command, sys.executable, "-c", mode, str(path)], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == "0o600"
        assert not path.exists()
        assert Path(os.devnull).exists()
