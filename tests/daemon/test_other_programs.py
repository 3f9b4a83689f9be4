"""Other people's programs on simulated GPUs: pynvml anywhere, nvidia-smi, gpustat, nvitop, codecarbon, Zeus."""

import ast
import ctypes
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from powerd_core.gpu_physics import RTX_6000
from powerd_daemon.sim_gpu import SHIM
from powerd_daemon.sources.sim.gpu import SimulatedGpu, SimulatedNode
from powerd_daemon.sources.sim.nvidia_smi import FIELDS, SimGpu, main
from powerd_daemon.sources.sim.nvml_face import NvmlFace, make_module

SIM_GPU = [sys.executable, "-m", "powerd_daemon", "sim-gpu", "--cards", "2", "--"]
WORK_W = 187.0
ASK = """
import json, os, socket
def ask(**request):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(os.environ["POWERD_SIM_GPU"])
        peer.sendall(json.dumps(request).encode() + b"\\n")
        return json.loads(peer.makefile().readline())
def true_j():
    return sum(ask(truth=True, gpu=gpu)["truth"]["energy_j"] for gpu in range(2))
def work(seconds):
    ask(gpu=0, work=dict(wait_s=0, core_s=seconds, memory_s=0, busy_w=187.0, exchange_s=0))
"""
"""A program that knows nothing of powerd and lets a card work."""


def test_what_stands_before_pynvml_imports_the_standard_library_alone():
    tree = ast.parse((SHIM / "pynvml.py").read_text())
    imported = {a.name.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {str(n.module).partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {"socket", "json"} <= imported <= sys.stdlib_module_names


@pytest.mark.slow
def test_an_environment_without_powerd_sees_the_card(tmp_path):
    shutil.copy(find_spec("pynvml").origin, tmp_path)
    program = (
        "import importlib.util, pynvml as n; assert importlib.util.find_spec('powerd_core') is None; n.nvmlInit(); "
        "print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(1)))"
    )
    shell = f"PYTHONPATH={SHIM}:{tmp_path} exec {sys.executable} -S -c {json.dumps(program)}"
    done = subprocess.run([*SIM_GPU, "sh", "-c", shell], capture_output=True, text=True, check=False)
    assert done.stdout == "2 15000\n", done.stderr


class TestFunctions:
    @pytest.fixture
    def nvml(self):
        gpu = SimulatedGpu(RTX_6000)
        gpu.processes.add(4711)
        gpu.advance(1.0)
        return make_module(NvmlFace(SimulatedNode([gpu]), lambda: gpu.now_s).call)

    def test_arguments_may_be_named(self, nvml):
        of = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index=0), version=nvml.nvmlMemory_v2)
        assert (of.total, of.used, of.free) == (24 << 30, 4 << 30, 20 << 30)
        assert nvml.nvmlDeviceGetClock(0, type=nvml.NVML_CLOCK_SM, id=nvml.NVML_CLOCK_ID_CURRENT) == 300
        with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
            nvml.nvmlDeviceGetName(0, colour=5)

    def test_what_the_card_is(self, nvml):
        assert nvml.nvmlDeviceGetBrand(0) == nvml.NVML_BRAND_QUADRO_RTX
        assert nvml.nvmlDeviceGetComputeMode(0) == nvml.NVML_COMPUTEMODE_DEFAULT
        assert list(nvml.nvmlDeviceGetCudaComputeCapability(0)) == [7, 5]
        for name in ("", "_v2", "_v3"):
            (process,) = getattr(nvml, f"nvmlDeviceGetComputeRunningProcesses{name}")(0)
            assert (process.pid, process.usedGpuMemory) == (4711, 4 << 30)

    def test_an_error_has_its_words(self, nvml):
        assert nvml.nvmlErrorString(nvml.NVML_ERROR_NOT_SUPPORTED) == "Not Supported"
        with pytest.raises(nvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetFanSpeed(0)

    def test_functions_of_the_library_by_pointer(self, nvml):
        memory = nvml.c_nvmlMemory_v2_t()
        assert nvml._nvmlGetFunctionPointer("nvmlDeviceGetMemoryInfo_v2")(0, ctypes.byref(memory)) == 0
        assert memory.used == 4 << 30
        count, ask = ctypes.c_uint(0), nvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
        assert ask(0, ctypes.byref(count), None) == nvml.NVML_ERROR_INSUFFICIENT_SIZE
        processes = (nvml.c_nvmlProcessInfo_v3_t * 5)()
        assert ask(0, ctypes.byref(count), processes) == 0
        assert (count.value, processes[0].pid) == (1, 4711)
        temperature = ctypes.c_uint(0)
        ask = nvml._nvmlGetFunctionPointer("nvmlDeviceGetTemperature")
        assert ask(0, ctypes.c_uint(0), ctypes.byref(temperature)) == 0
        assert temperature.value == 33
        assert ask(9, ctypes.c_uint(0), ctypes.byref(temperature)) == nvml.NVML_ERROR_INVALID_ARGUMENT
        assert nvml._nvmlGetFunctionPointer("nvmlDeviceGetFanSpeed")(0) == nvml.NVML_ERROR_NOT_SUPPORTED


class TestNvidiaSmi:
    @pytest.fixture(autouse=True)
    def _node(self, monkeypatch):
        gpus = [SimulatedGpu(RTX_6000, number) for number in range(2)]
        face = NvmlFace(SimulatedNode(gpus), lambda: 1.0)
        gpu = SimGpu("nowhere")
        monkeypatch.setattr(gpu, "call", face.call)
        monkeypatch.setattr(SimGpu, "here", lambda: gpu)

    def test_a_list(self, capsys):
        assert main(["-L"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1] == "GPU 1: Quadro RTX 6000 (UUID: GPU-51500000-0000-0000-0000-000000000001)"

    def test_a_query(self, capsys):
        assert main(["--query-gpu=index,name,power.draw,power.limit", "--format=csv,noheader,nounits", "-i", "1"]) == 0
        assert capsys.readouterr().out == "1, Quadro RTX 6000, 15.00, 260.00\n"
        assert main(["--query-gpu", "power.draw,clocks.sm,fan.speed"]) == 2
        assert 'Field "fan.speed" is not a valid field' in capsys.readouterr().err

    def test_every_field(self, capsys):
        assert main([f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]) == 0
        for line in capsys.readouterr().out.splitlines():
            assert len(line.split(", ")) == len(FIELDS)
            assert "N/A" not in line

    def test_help(self, capsys):
        with pytest.raises(SystemExit) as ended:
            main(["--help"])
        assert ended.value.code == 0
        assert "--query-gpu" in capsys.readouterr().out


def on_the_card(package, program, *, seconds=2.0):
    """What a program prints while gpu0 works for some seconds. Skips where its package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    script = f"{ASK}\nimport subprocess, sys\nseconds = {seconds}\n{program}"
    done = subprocess.run([*SIM_GPU, sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


BESIDE = """
import threading
over = threading.Event()
def train():
    while not over.is_set():
        work(0.5)
thread = threading.Thread(target=train)
thread.start()
over.wait(seconds)
{}
over.set()
thread.join()
"""


@pytest.mark.slow
class TestPrograms:
    """By the packages that are installed here; they were tried in environments of their own as well."""

    def test_nvidia_smi(self):
        printed = on_the_card(
            "json", BESIDE.format("subprocess.run(['nvidia-smi', '--query-gpu=power.draw', '--format=csv,noheader'])")
        )
        assert [float(line.removesuffix(" W")) for line in printed.splitlines()] == pytest.approx([252, 15], rel=0.05)

    def test_gpustat(self):
        printed = on_the_card("gpustat", BESIDE.format("subprocess.run([sys.executable, '-m', 'gpustat', '--json'])"))
        busy, idle = json.loads(printed)["gpus"]
        assert (busy["power.draw"], idle["power.draw"]) == pytest.approx((252, 15), rel=0.05)
        assert (busy["memory.used"], busy["enforced.power.limit"]) == (4096, 260)
        assert len(busy["processes"]) == 1

    def test_nvitop(self):
        printed = on_the_card("nvitop", BESIDE.format("subprocess.run([sys.executable, '-m', 'nvitop', '-1'])"))
        assert "252W / 260W" in printed or "251W / 260W" in printed
        assert "4096MiB / 24.00GiB" in printed

    def test_codecarbon(self):
        program = """
from codecarbon import OfflineEmissionsTracker
of = OfflineEmissionsTracker(country_iso_code="DEU", measure_power_secs=1, log_level="error", save_to_file=False)
of.start()
before = true_j()
work(seconds)
after = true_j()
of.stop()
print(json.dumps([of._total_gpu_energy.kWh * 3.6e6, after - before]))
"""
        told_j, truth_j = json.loads(on_the_card("codecarbon", program, seconds=6.0).splitlines()[-1])
        assert told_j == pytest.approx(truth_j, rel=0.05)

    def test_zeus(self):
        program = """
from zeus.monitor import ZeusMonitor
of = ZeusMonitor(gpu_indices=[0, 1])
of.begin_window("x", sync_execution=False)
before = true_j()
work(seconds)
after = true_j()
print(json.dumps([sum(of.end_window("x", sync_execution=False).gpu_energy.values()), after - before]))
"""
        told_j, truth_j = json.loads(on_the_card("zeus", program, seconds=4.0).splitlines()[-1])
        assert told_j == pytest.approx(truth_j, rel=0.05), "its counter renews each 100 ms"
