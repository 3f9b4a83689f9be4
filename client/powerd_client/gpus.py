"""Which GPUs a process works on: what PyTorch says of its current device, else CUDA_VISIBLE_DEVICES and the driver.

PyTorch is asked only where the script has imported it and has already begun to use CUDA: nothing is initialised here.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from powerd_core.model import pci_key, uuid_key

_BY_PCI = "PCI_BUS_ID"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver lists it, in the order of PCI addresses."""

    uuid: str
    pci: str
    name: str = ""
    mig: tuple[str, ...] = field(default=())
    """UUIDs of the MIG devices on it."""


def visible_gpus(text: str | None, gpus: Sequence[Gpu], order: str = "") -> list[Gpu] | None:
    """What CUDA numbers 0, 1, … under CUDA_VISIBLE_DEVICES = ``text`` (CUDA C++ Programming Guide, environment
    variables): numbers, beginnings of UUIDs, MIG devices; what follows the first invalid entry is not visible.

    ``order`` is CUDA_DEVICE_ORDER. None where it cannot be told: CUDA numbers GPUs of different models by their speed.
    """
    if (text is None or _has_numbers(text)) and order != _BY_PCI and len({gpu.name for gpu in gpus}) > 1:
        return None
    if text is None:
        return list(gpus)
    found: list[tuple[Gpu, str]] = []
    for entry in text.split(","):
        match = _entry(entry.strip(), gpus)
        if match is None:
            break
        found.append(match)
    if len({name for _, name in found}) < len(found):
        return []  # CUDA refuses a device that is named twice
    return [gpu for gpu, _ in found]


def _has_numbers(text: str) -> bool:
    return any(entry.strip().isdigit() for entry in text.split(","))


def _entry(entry: str, gpus: Sequence[Gpu]) -> tuple[Gpu, str] | None:
    """The GPU that an entry names, and one spelling of the entry."""
    if entry.isascii() and entry.isdigit():
        number = int(entry)
        return (gpus[number], gpus[number].uuid) if number < len(gpus) else None
    lower = entry.lower()
    if lower.startswith("gpu-") and len(lower) > 4:
        of_gpu = [gpu for gpu in gpus if gpu.uuid.lower().startswith(lower)]
        return (of_gpu[0], of_gpu[0].uuid) if len(of_gpu) == 1 else None
    if lower.startswith("mig-") and len(lower) > 4:
        parent = uuid_key(lower)
        on = [gpu for gpu in gpus if uuid_key(gpu.uuid) == parent or any(m.lower().startswith(lower) for m in gpu.mig)]
        return (on[0], lower) if len(on) == 1 else None
    return None


def devices_here(environment: Mapping[str, str] = os.environ) -> list[dict[str, object]]:
    """``index``, ``uuid`` and ``pci`` of the GPU that this process works on now, if it does; never raises.

    Without PyTorch, the one GPU that CUDA_VISIBLE_DEVICES leaves, if it leaves one.
    """
    with contextlib.suppress(Exception):  # whatever a library says: the training goes on, unmapped
        torch = sys.modules.get("torch")
        if torch is not None:
            cuda = torch.cuda
            return [_of_torch(cuda, environment)] if cuda.is_initialized() else []
        text = environment.get("CUDA_VISIBLE_DEVICES")
        if text:
            seen = visible_gpus(text, list_gpus(), environment.get("CUDA_DEVICE_ORDER", ""))
            if seen is not None and len(seen) == 1:
                return [_document(0, seen[0].uuid, seen[0].pci)]
    return []


def _of_torch(cuda: Any, environment: Mapping[str, str]) -> dict[str, object]:
    index = int(cuda.current_device())
    found = cuda.get_device_properties(index)
    uuid, pci = str(getattr(found, "uuid", "") or ""), pci_of(found)
    if not uuid_key(uuid) and not pci:
        # Releases of PyTorch before 2.4 say neither.
        seen = visible_gpus(
            environment.get("CUDA_VISIBLE_DEVICES"), list_gpus(), environment.get("CUDA_DEVICE_ORDER", "")
        )
        if seen is not None and index < len(seen):
            uuid, pci = seen[index].uuid, seen[index].pci
    return _document(index, uuid, pci)


def _document(index: int, uuid: str, pci: str) -> dict[str, object]:
    key = uuid_key(uuid)
    return {"index": index, "uuid": f"GPU-{key}" if key and not key.startswith("mig-") else key, "pci": pci_key(pci)}


def each_once(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Devices as a process told them again and again: each once, with all that was said of it."""
    found: dict[object, dict[str, object]] = {}
    for device in devices:
        uuid, pci = str(device.get("uuid") or ""), str(device.get("pci") or "")
        document = _document(0, uuid, pci) | {"index": device.get("index")}
        if document["uuid"] or document["pci"]:
            known = found.setdefault(document["uuid"] or document["pci"], document)
            known["pci"] = known["pci"] or document["pci"]
    return list(found.values())


def pci_of(properties: Any) -> str:
    """The PCI address in what PyTorch says of a device, empty where it says none."""
    numbers = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if not all(isinstance(number, int) for number in numbers):
        return ""
    domain, bus, device = numbers
    return pci_key(f"{domain:x}:{bus:x}:{device:x}.0")


@functools.cache
def list_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, asked for once; none where there is no driver or nothing to ask it with."""
    try:
        import pynvml
    except ImportError:
        return ()
    found = []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                name, uuid = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle))
                pci = _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)
                found.append(Gpu(uuid, pci_key(pci), name, tuple(_migs(pynvml, handle))))
        finally:
            pynvml.nvmlShutdown()
    return tuple(found)


def _migs(pynvml: Any, handle: Any) -> list[str]:
    found: list[str] = []
    with contextlib.suppress(pynvml.NVMLError):
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(pynvml.NVMLError):  # a place without a device
                found.append(_text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))))
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
