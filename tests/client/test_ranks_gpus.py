"""Which GPU a process works on, by PyTorch, by CUDA_VISIBLE_DEVICES and by the driver."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client import gpus
from powerd_client.gpus import Gpu, devices_here, each_once, visible_gpus
from powerd_core.model import pci_key, uuid_key

U = [f"{c * 8}-1111-2222-3333-{c * 12}" for c in "ab3c"]
GPUS = [Gpu(f"GPU-{u}", f"0000:{i + 1:02x}:00.0", "H200") for i, u in enumerate(U)]
MIG = "MIG-12345678-1111-2222-3333-123456789abc"


class TestVisible:
    @pytest.mark.parametrize(
        ("text", "indices"),
        [
            (None, [0, 1, 2, 3]),
            ("", []),
            ("2", [2]),
            ("3,1", [3, 1]),
            (" 1 , 0", [1, 0]),
            ("0,-1,1", [0]),
            ("0,9,1", [0]),
            ("NoDevFiles", []),
            ("GPU-bbbb", [1]),
            (f"GPU-{U[2]},0", [2, 0]),
            ("gpu-BBBB", [1]),
            ("GPU-", []),
            ("GPU-ffff", []),
            ("0,0", []),
            (f"0,GPU-{U[0]}", []),
            (f"MIG-GPU-{U[1]}/3/0", [1]),
        ],
    )
    def test_as_cuda_reads_it(self, text, indices):
        assert visible_gpus(text, GPUS) == [GPUS[i] for i in indices]

    def test_a_beginning_that_two_share_names_none(self):
        twins = [Gpu("GPU-aaaa1", "", "H200"), Gpu("GPU-aaaa2", "", "H200")]
        assert visible_gpus("GPU-aaaa", twins) == []

    def test_a_mig_device_is_on_its_gpu(self):
        with_mig = [GPUS[0], Gpu(GPUS[1].uuid, GPUS[1].pci, "H200", (MIG, MIG.replace("1234", "5678")))]
        assert visible_gpus(MIG, with_mig) == [with_mig[1]]
        assert visible_gpus("MIG-0000", with_mig) == []

    def test_numbers_say_nothing_where_cuda_sorts_by_speed(self):
        mixed = [GPUS[0], Gpu(GPUS[1].uuid, "", "T4")]
        assert visible_gpus("1", mixed) is None
        assert visible_gpus(None, mixed) is None
        assert visible_gpus("1", mixed, "PCI_BUS_ID") == [mixed[1]]
        assert visible_gpus("GPU-bbbb", mixed) == [mixed[1]]

    @given(st.text(max_size=40))
    def test_whatever_it_is(self, text):
        assert all(gpu in GPUS for gpu in visible_gpus(text, GPUS))


class TestKeys:
    @given(st.uuids())
    def test_all_spellings_of_a_uuid_are_one(self, uuid):
        assert uuid_key(f"GPU-{uuid}") == uuid_key(str(uuid).upper()) == uuid_key(f"MIG-GPU-{uuid}/1/0") == str(uuid)

    @given(st.integers(0, 2**16 - 1), st.integers(0, 255), st.integers(0, 31))
    def test_all_spellings_of_an_address_are_one(self, domain, bus, device):
        key = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        assert pci_key(f"{domain:08X}:{bus:02X}:{device:02X}.0") == pci_key(key) == key
        assert pci_key(f"{bus:02x}:{device:02x}.0") == f"0000:{bus:02x}:{device:02x}.0"

    @pytest.mark.parametrize(
        "text", ["", None, "GPU-0", "3b", "0000:3b:20.0", "0000:3b:00.8", "x:3b:00.0", 7, "GPU-" * 9]
    )
    def test_what_is_none(self, text):
        assert (uuid_key(text), pci_key(text)) == ("", "")


def torch(uuid=None, pci=None, current=1, initialized=True):
    properties = SimpleNamespace()
    if uuid:
        properties.uuid = uuid
    if pci:
        properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id = pci
    cuda = SimpleNamespace(is_initialized=lambda: initialized, current_device=lambda: current)
    cuda.get_device_properties = lambda index: properties if index == current else None
    return SimpleNamespace(cuda=cuda)


class TestHere:
    @pytest.fixture(autouse=True)
    def _driver(self, monkeypatch):
        monkeypatch.setattr(gpus, "list_gpus", lambda: tuple(GPUS))

    def here(self, monkeypatch, module, **environment):
        if module is None:
            monkeypatch.delitem(sys.modules, "torch", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "torch", module)
        return devices_here(environment)

    def test_pytorch_tells(self, monkeypatch):
        found = self.here(monkeypatch, torch(U[0], (0, 0x3B, 0)))
        assert found == [{"index": 1, "uuid": f"GPU-{U[0]}", "pci": "0000:3b:00.0"}]

    def test_an_old_pytorch_has_numbers_only(self, monkeypatch):
        found = self.here(monkeypatch, torch(), CUDA_VISIBLE_DEVICES="3,2")
        assert found == [{"index": 1, "uuid": f"GPU-{U[2]}", "pci": "0000:03:00.0"}]

    def test_a_process_that_has_not_begun_to_use_cuda_uses_no_gpu(self, monkeypatch):
        assert self.here(monkeypatch, torch(U[0], initialized=False), CUDA_VISIBLE_DEVICES="2") == []

    def test_without_pytorch_the_one_that_is_visible(self, monkeypatch):
        found = self.here(monkeypatch, None, CUDA_VISIBLE_DEVICES="2")
        assert found == [{"index": 0, "uuid": f"GPU-{U[2]}", "pci": "0000:03:00.0"}]
        assert self.here(monkeypatch, None, CUDA_VISIBLE_DEVICES="2,1") == []
        assert self.here(monkeypatch, None) == []

    def test_whatever_goes_wrong_the_training_goes_on(self, monkeypatch):
        broken = torch()
        broken.cuda.current_device = lambda: 1 / 0
        assert self.here(monkeypatch, broken) == []
        assert self.here(monkeypatch, SimpleNamespace()) == []


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
