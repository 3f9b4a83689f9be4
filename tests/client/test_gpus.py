"""Which GPU a process works on, by PyTorch, by CUDA_VISIBLE_DEVICES and by the driver."""

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client import gpus
from powerd_client.gpus import devices_here, each_once, visible_gpu
from powerd_core.model import pci_key, uuid_key

U = [f"{c * 8}-1111-2222-3333-{c * 12}" for c in "ab3c"]
GPUS = [{"uuid": f"GPU-{u}", "pci": f"0000:{i + 1:02x}:00.0", "name": "H200"} for i, u in enumerate(U)]


@pytest.mark.parametrize(
    ("entry", "index"), [("2", 2), (" 1 ", 1), ("-1", None), ("9", None), ("", None), ("GPU-bbbb", 1), ("GPU-", None)]
)
def test_an_entry_is_read_as_cuda_reads_it(entry, index):
    assert visible_gpu(entry, GPUS) == (None if index is None else GPUS[index])


def test_what_names_none():
    twins = [{**GPUS[0], "uuid": f"GPU-aaaa{i}"} for i in (1, 2)]
    assert visible_gpu("GPU-aaaa", twins) is None
    mixed = [GPUS[0], {**GPUS[1], "name": "T4"}]  # CUDA sorts these by speed
    assert visible_gpu("1", mixed) is None
    assert visible_gpu("1", mixed, "PCI_BUS_ID") == mixed[1]


@given(st.uuids())
def test_all_spellings_of_a_uuid_are_one(uuid):
    assert uuid_key(f"GPU-{uuid}") == uuid_key(str(uuid).upper()) == uuid_key(f"MIG-GPU-{uuid}/1/0") == str(uuid)


@given(st.integers(0, 2**16 - 1), st.integers(0, 255), st.integers(0, 31))
def test_all_spellings_of_an_address_are_one(domain, bus, device):
    key = f"{domain:04x}:{bus:02x}:{device:02x}.0"
    assert pci_key(f"{domain:08X}:{bus:02X}:{device:02X}.0") == pci_key(key) == key
    assert pci_key(f"{bus:02x}:{device:02x}.0") == f"0000:{bus:02x}:{device:02x}.0"


@pytest.mark.parametrize("text", ["", None, "GPU-0", "3b", "0000:3b:20.0", "0000:3b:00.8", "x:3b:00.0", 7, "GPU-" * 9])
def test_what_is_no_uuid_and_no_address(text):
    assert (uuid_key(text), pci_key(text)) == ("", "")


def torch(*, initialized=True):
    properties = SimpleNamespace(uuid=U[0], pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    cuda = SimpleNamespace(is_initialized=lambda: initialized, current_device=lambda: 1)
    cuda.get_device_properties = lambda index: properties if index == 1 else None
    return SimpleNamespace(cuda=cuda)


def here(monkeypatch, module, **environment):
    monkeypatch.setattr(gpus, "list_gpus", lambda: GPUS)
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
