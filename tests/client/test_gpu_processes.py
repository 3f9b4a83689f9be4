"""Which programs the driver lists on the GPUs of a run: whose they are, and where nothing is to be said."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from powerd_client.journals.gpu_processes import DriverLists, GpuProcess, Others, OwnProcesses
from powerd_core.gpu_physics import CARDS
from powerd_core.marks import OTHERS
from powerd_core.model import Device
from powerd_daemon.sources.sim.gpu import SimulatedGpu, SimulatedNode
from powerd_daemon.sources.sim.nvml_face import NvmlFace, make_module

UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


def proc(folder: Path, parents: dict[int, int], namespace: str = "pid:[4026531836]", comm: str = "python") -> Path:
    """What proc(5) shows of processes and their parents."""
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(namespace)
    for pid, parent in parents.items():
        (folder / str(pid)).mkdir()
        (folder / str(pid) / "stat").write_text(f"{pid} (a) name) S {parent} 1 1")
        (folder / str(pid) / "comm").write_text(comm + "\n")
    return folder


class FakeNvml:
    """A driver with two GPUs, the first of which may be divided."""

    class NVMLError(Exception):
        pass

    def __init__(self, pids: tuple[int, ...] = (), is_divided: bool = False) -> None:
        self.pids, self.is_divided = pids, is_divided

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return UUID.format(handle).encode()

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if handle:
            raise self.NVMLError
        return [int(self.is_divided), 0]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:
        if handle:
            raise self.NVMLError
        return [SimpleNamespace(pid=pid, usedGpuMemory=None if pid == 30 else pid << 20) for pid in self.pids]


DEVICES = [Device("gpu0", (), uuid=UUID.format(0)), Device("gpu1", (), uuid=UUID.format(1)), Device("cpu0", ())]


def test_the_process_tree_of_the_recording_is_its_own(tmp_path: Path) -> None:
    """A program, what it starts and a rank that marks; not the shell around, nor another program of that shell."""
    own = OwnProcesses([10], proc(tmp_path, {2: 1, 10: 2, 11: 10, 12: 11, 20: 2, 21: 20, 40: 1}))
    own.add(20)
    assert [pid for pid in (2, 10, 11, 12, 20, 21, 40, 99) if own.has(pid)] == [10, 11, 12, 20, 21]
    for gone in ("11", "12"):
        (tmp_path / gone / "stat").unlink()
    assert own.has(12), "one that was of the run stays so, though its parent has ended"


def test_what_the_driver_lists_is_told_by_device(tmp_path: Path) -> None:
    here = proc(tmp_path, {10: 1, 30: 1})
    seen = DriverLists(DEVICES, FakeNvml((10, 30, 77)), here).look()
    assert [(p.pid, p.memory_mib) for p in seen["gpu0"]] == [(10, 10), (30, None), (77, 77)]
    assert seen["gpu0"][0].user
    assert seen["gpu0"][2].user == "", "it has just ended, or is hidden"
    assert "gpu1" not in seen, "it does not answer"


@pytest.mark.parametrize("why", ["divided", "container", "not here"])
def test_where_it_could_be_false_nothing_is_said(tmp_path: Path, why: str) -> None:
    """Of a divided GPU, where process ids are others than the driver's, and of a remote board's GPU."""
    here = proc(tmp_path, {10: 1}, "pid:[4026532201]" if why == "container" else "pid:[4026531836]")
    devices = [Device("gpu0", (), uuid=UUID.format(7))] if why == "not here" else DEVICES[:1]
    assert not DriverLists(devices, FakeNvml((10,), is_divided=why == "divided"), here).has_gpus


def test_the_service_that_computes_for_several_programs_is_none(tmp_path: Path) -> None:
    lists = DriverLists(DEVICES, FakeNvml((10,)), proc(tmp_path, {10: 1}, comm="nvidia-cuda-mps-server"))
    assert lists.look() == {"gpu0": []}


def test_changes_are_events(tmp_path: Path) -> None:
    """The first look is one too: somebody has looked."""
    others = Others(OwnProcesses([10], proc(tmp_path, {10: 1, 30: 1})))
    looks = [(10,), (10, 30), (10, 30), (10,)]
    seen = [list(others.take({"gpu0": [GpuProcess(pid, "a", 5) for pid in pids]}, t)) for t, pids in enumerate(looks)]
    told = [(e["t_ns"], e["event"], [p["pid"] for p in e["values"]["others"]]) for events in seen for e in events]
    assert told == [(0, OTHERS, []), (1, OTHERS, [30]), (3, OTHERS, [])]


def test_the_simulated_gpu_lists_who_works_on_it() -> None:
    gpu = SimulatedGpu(CARDS["rtx6000"], 0, seed=1, now_s=0.0)
    module = make_module(NvmlFace(SimulatedNode([gpu]), lambda: 1.0).call)
    lists = DriverLists([Device("gpu0", (), uuid=gpu.uuid)], module)
    assert lists.look() == {"gpu0": []}
    gpu.processes |= {os.getpid()}
    (process,) = lists.look()["gpu0"]
    assert (process.pid, process.memory_mib) == (os.getpid(), 4096)
