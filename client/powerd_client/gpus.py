"""Which GPU a process works on: what PyTorch says of its current device, else CUDA_VISIBLE_DEVICES and the driver.

PyTorch is asked only where the script has imported it and has already begun to use CUDA: nothing is initialised here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from powerd_core.model import pci_key, uuid_key


def devices_here(environment: Mapping[str, str] = os.environ) -> list[dict[str, object]]:
    """``index``, ``uuid`` and ``pci`` of the GPU that this process works on now, if it does; never raises.

    Without PyTorch, the one GPU that CUDA_VISIBLE_DEVICES names, if it names one alone.
    """
    with contextlib.suppress(Exception):  # whatever a library says: the training goes on, unmapped
        torch = sys.modules.get("torch")
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        if torch is not None and torch.cuda.is_initialized():
            index = int(torch.cuda.current_device())
            properties = torch.cuda.get_device_properties(index)
            return [_document(index, str(getattr(properties, "uuid", "") or ""), pci_of(properties))]
        if torch is None and visible and "," not in visible:
            gpu = visible_gpu(visible, list_gpus(), environment.get("CUDA_DEVICE_ORDER", ""))
            return [] if gpu is None else [_document(0, gpu["uuid"], gpu["pci"])]
    return []


def visible_gpu(entry: str, gpus: Sequence[Mapping[str, str]], order: str = "") -> Mapping[str, str] | None:
    """The GPU that one entry of CUDA_VISIBLE_DEVICES names (CUDA C++ Programming Guide, environment variables): a
    number, or the beginning of a UUID.

    ``gpus`` as `list_gpus` gives them, ``order`` is CUDA_DEVICE_ORDER. None where it cannot be told: CUDA numbers GPUs
    of different models by their speed.
    """
    entry = entry.strip().lower()
    if entry.isdecimal():
        is_by_speed = order != "PCI_BUS_ID" and len({gpu["name"] for gpu in gpus}) > 1
        return None if is_by_speed or int(entry) >= len(gpus) else gpus[int(entry)]
    named = [gpu for gpu in gpus if len(entry) > len("gpu-") and gpu["uuid"].lower().startswith(entry)]
    return named[0] if len(named) == 1 else None


def list_gpus() -> list[dict[str, str]]:
    """``name``, ``uuid`` and ``pci`` of this machine's GPUs by PCI address. Raises what pynvml raises."""
    import pynvml

    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            {
                "name": text(pynvml.nvmlDeviceGetName(handle)),
                "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
                "pci": text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
            }
            for handle in handles
        ]
    finally:
        pynvml.nvmlShutdown()


def _document(index: object, uuid: str, pci: str) -> dict[str, object]:
    key = uuid_key(uuid)
    return {"index": index, "uuid": f"GPU-{key}" if key and not key.startswith("mig-") else key, "pci": pci_key(pci)}


def each_once(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Devices as a process named them again and again: each once, with all that was said of it."""
    known: dict[object, dict[str, object]] = {}
    for device in devices:
        document = _document(device.get("index"), str(device.get("uuid") or ""), str(device.get("pci") or ""))
        if key := document["uuid"] or document["pci"]:
            first = known.setdefault(key, document)
            first["pci"] = first["pci"] or document["pci"]
    return list(known.values())


def pci_of(properties: Any) -> str:
    """The PCI address in what PyTorch says of a device, empty where it says none."""
    try:
        return pci_key(f"{properties.pci_domain_id:x}:{properties.pci_bus_id:x}:{properties.pci_device_id:x}.0")
    except (AttributeError, ValueError, TypeError):
        return ""
