"""Which GPUs a process may use and works on, and what a run records that names no powerd."""

import os
import sys
from types import SimpleNamespace

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.host import local_powerd, visible_gpus
from powerd_client.host.local_powerd import LocalDaemon, local_sources
from powerd_client.host.visible_gpus import devices_here, each_once, usable_gpus
from powerd_client.journals.link import BoardLink
from powerd_core.model import pci_key, uuid_key

U = [f"{c * 8}-1111-2222-3333-{c * 12}" for c in "ab3c"]
GPUS = [{"uuid": f"GPU-{u}", "pci": f"0000:{i + 1:02x}:00.0", "name": "H200"} for i, u in enumerate(U)]


@given(st.uuids())
def test_all_spellings_of_a_uuid_are_one(uuid):
    assert uuid_key(f"GPU-{uuid}") == uuid_key(str(uuid).upper()) == uuid_key(f"MIG-GPU-{uuid}/1/0") == str(uuid)


@given(st.integers(0, 2**16 - 1), st.integers(0, 255), st.integers(0, 31))
def test_all_spellings_of_an_address_are_one(domain, bus, device):
    key = f"{domain:04x}:{bus:02x}:{device:02x}.0"
    assert pci_key(f"{domain:08X}:{bus:02X}:{device:02X}.0") == pci_key(key) == key
    assert pci_key(f"{bus:02x}:{device:02x}.0") == f"0000:{bus:02x}:{device:02x}.0"


def torch(*, initialized=True):
    properties = SimpleNamespace(uuid=U[0], pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    cuda = SimpleNamespace(is_initialized=lambda: initialized, current_device=lambda: 1)
    cuda.get_device_properties = lambda index: properties if index == 1 else None
    return SimpleNamespace(cuda=cuda)


def here(monkeypatch, module, **environment):
    monkeypatch.setattr(visible_gpus, "list_gpus", lambda: GPUS)
    if module is None:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", module)
    return devices_here(environment)


def test_pytorch_tells(monkeypatch):
    assert here(monkeypatch, torch()) == [{"index": 1, "uuid": f"GPU-{U[0]}", "pci": "0000:3b:00.0"}]
    assert here(monkeypatch, torch(initialized=False), CUDA_VISIBLE_DEVICES="2") == []
    assert here(monkeypatch, SimpleNamespace()) == []


def test_without_pytorch_the_one_that_is_visible(monkeypatch):
    document = {"index": 0, "uuid": f"GPU-{U[2]}", "pci": "0000:03:00.0"}
    assert here(monkeypatch, None, CUDA_VISIBLE_DEVICES="2") == [document]
    assert here(monkeypatch, None, CUDA_VISIBLE_DEVICES="2,1") == []
    assert here(monkeypatch, None) == []


def test_a_device_that_is_told_twice_is_one():
    told = [
        {"index": 0, "uuid": U[0].upper(), "pci": ""},
        {"index": 0, "uuid": f"GPU-{U[0]}", "pci": "3b:00.0"},
        {"index": 1, "uuid": "", "pci": "4c:00.0"},
        {"index": 2},
    ]
    assert each_once(told) == [
        {"index": 0, "uuid": f"GPU-{U[0]}", "pci": "0000:3b:00.0"},
        {"index": 1, "uuid": "", "pci": "0000:4c:00.0"},
    ]


MIG = "MIG-dddddddd-1111-2222-3333-dddddddddddd"
DIVIDED = [*GPUS[:3], {**GPUS[3], "mig": f"MIG-0 {MIG}"}]


@pytest.mark.parametrize(
    ("environment", "usable", "note"),
    [
        ({}, [0, 1, 2, 3], ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 1, 2, 3], ""),
        ({"CUDA_VISIBLE_DEVICES": "2, 0"}, [0, 2], "left out by CUDA_VISIBLE_DEVICES=2, 0: gpu1, gpu3"),
        ({"CUDA_VISIBLE_DEVICES": f"GPU-{U[1]}"}, [1], "gpu0, gpu2, gpu3"),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, [1], "gpu0, gpu2, gpu3"),
        ({"CUDA_VISIBLE_DEVICES": ""}, [], "gpu0, gpu1, gpu2, gpu3"),
        ({"CUDA_VISIBLE_DEVICES": MIG}, [3], "gpu0, gpu1, gpu2; a GPU of which"),
        ({"CUDA_VISIBLE_DEVICES": f"MIG-GPU-{U[2]}/1/0"}, [2], "gpu0, gpu1, gpu3; a GPU of which"),
        ({"CUDA_VISIBLE_DEVICES": "0", "LOCAL_WORLD_SIZE": "4"}, [0, 1, 2, 3], "4 ranks run here"),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_WORLD_SIZE": "2"}, [0, 1], "gpu2, gpu3"),
    ],
)
def test_which_gpus_a_process_may_use_and_what_is_left_out(environment, usable, note):
    found, said = usable_gpus(DIVIDED, environment)
    assert found == usable
    assert note in said
    assert bool(said) == bool(note)


def test_numbers_of_gpus_that_differ_need_an_order():
    mixed = [GPUS[0], {**GPUS[1], "name": "T4"}]
    found, said = usable_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "1"})
    assert found == [0, 1]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in said
    assert usable_gpus(mixed, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[0] == [1]


@pytest.fixture
def powercap(tmp_path):
    """Two packages with their memory, as Linux shows them."""
    for zone, name in (("0", "package-0"), ("0:0", "dram"), ("1", "package-1"), ("1:0", "dram")):
        directory = tmp_path / f"intel-rapl:{zone}"
        directory.mkdir()
        (directory / "name").write_text(f"{name}\n")
        (directory / "max_energy_range_uj").write_text("262143328850\n")
        (directory / "energy_uj").write_text("1000\n")
    return tmp_path


class FakeNvml:
    """What pynvml is asked for a list of GPUs; one that cannot be divided refuses the question."""

    class NVMLError(Exception):
        pass

    def __init__(self, count):
        self.nvmlDeviceGetCount = lambda: count
        self.nvmlInit = self.nvmlShutdown = lambda: None
        self.nvmlDeviceGetHandleByIndex = lambda index: index
        self.nvmlDeviceGetName = lambda handle: b"NVIDIA H200"
        self.nvmlDeviceGetUUID = lambda handle: f"GPU-{U[handle]}"
        self.nvmlDeviceGetPciInfo = lambda handle: SimpleNamespace(busId=f"00000000:0{handle}:00.0".encode())

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        raise self.NVMLError


@pytest.fixture
def counting(monkeypatch, powercap):
    """RAPL's first counter moves whenever somebody waits."""

    def wait(_seconds):
        energy = powercap / "intel-rapl:0" / "energy_uj"
        energy.write_text(f"{int(energy.read_text()) + 400}\n")

    monkeypatch.setattr(local_powerd.time, "sleep", wait)


def test_where_counters_stand_still_the_processor_is_modelled(monkeypatch, powercap):
    """As in a virtual machine; beside a GPU too."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sources, notes = local_sources(7, powercap)
    assert [source["kind"] for source in sources] == ["nvml", "cpu-model"]
    assert notes == ["RAPL's counters stand still here (a virtual machine?): the processor's power is modelled"]


def test_a_counter_that_no_kernel_can_read_stands_beside_one_that_counts(monkeypatch, powercap, counting):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(0))
    dram = powercap / "intel-rapl:0:0" / "energy_uj"
    dram.unlink()
    dram.mkdir()  # EISDIR, for root too
    assert [source["kind"] for source in local_sources(7, powercap)[0]] == ["rapl"]


def test_everything_that_this_machine_has_is_recorded(monkeypatch, powercap, counting):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sources, notes = local_sources(7, powercap)
    assert [source["kind"] for source in sources] == ["nvml", "rapl"]
    assert notes == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    sources, notes = local_sources(7, powercap)
    assert sources[0]["gpus"] == [1]
    assert notes == ["left out by CUDA_VISIBLE_DEVICES=1: gpu0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (rapl,), notes = local_sources(7, powercap)
    assert rapl["kind"] == "rapl"
    assert "gpu0, gpu1" in notes[0]
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as the kernel sets them: for root alone
    (model,), notes = local_sources(7, powercap)
    assert (model["kind"], model["pid"]) == ("cpu-model", 7)
    assert "sudo chmod a+r" in notes[1]


def test_processors_and_memory_are_recorded_beside_a_gpu_that_fails(monkeypatch, powercap, tmp_path):
    """The driver fails in powerd, and the run goes on with the other source and says so."""
    sources = [{"kind": kind, "name": kind, "optional": True} for kind in ("nvml", "rapl")]
    sources[1]["root"] = str(powercap)
    daemon = LocalDaemon(sources, tmp_path / "powerd.log")
    context = zmq.Context()
    link = BoardLink(context, daemon.url, client="test")
    try:
        daemon.start()
        link.describe(30.0, lambda: False)
        assert [stream.source for stream in link.description.streams] == ["rapl"]
        (device,) = link.description.devices
        assert device.feeds == ("cpu0.package_0", "cpu0.dram_0", "cpu0.package_1", "cpu0.dram_1")
        (told,) = daemon.left_out({"rapl"})
        assert "'nvml'" in told
    finally:
        link.close()
        daemon.stop()
        context.destroy(linger=0)
