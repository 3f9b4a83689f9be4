"""Which GPUs a process may use, by CUDA_VISIBLE_DEVICES and the driver, and on which it works, by PyTorch if it tells.

PyTorch is asked only where the script has imported it and has already begun to use CUDA: nothing is initialised here.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
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
    number, or the beginning of a UUID. A part of a GPU (MIG) stands for the whole.

    ``gpus`` as `list_gpus` gives them, ``order`` is CUDA_DEVICE_ORDER. None where it cannot be told: CUDA numbers GPUs
    of different models by their speed.
    """
    entry = entry.strip().lower()
    if entry.isdecimal():
        is_by_speed = order != "PCI_BUS_ID" and len({gpu["name"] for gpu in gpus}) > 1
        return None if is_by_speed or int(entry) >= len(gpus) else gpus[int(entry)]
    is_part = entry.startswith("mig-")
    # Drivers before 470 named a part MIG-GPU-<UUID of the GPU>/<instance>/<instance>.
    whole = entry.removeprefix("mig-").partition("/")[0] if entry.startswith("mig-gpu-") else entry
    named = [
        gpu
        for gpu in gpus
        if (len(whole) > len("gpu-") and gpu["uuid"].lower().startswith(whole))
        or (is_part and any(part.startswith(entry) for part in gpu.get("mig", "").lower().split()))
    ]
    return named[0] if len(named) == 1 else None


def usable_gpus(
    gpus: Sequence[Mapping[str, str]], environment: Mapping[str, str] = os.environ
) -> tuple[list[int], str]:
    """Which of ``gpus`` (as `list_gpus` gives them) this process and the ranks beside it may use, by their place there;
    and a sentence on what that leaves out, or why it cannot be told. Empty where all of them may be used."""
    visible, everything = environment.get("CUDA_VISIBLE_DEVICES"), list(range(len(gpus)))
    if visible is None or not gpus:
        return everything, ""
    setting, entries = f"CUDA_VISIBLE_DEVICES={visible}", visible.split(",")
    order, ranks = environment.get("CUDA_DEVICE_ORDER", ""), environment.get("LOCAL_WORLD_SIZE", "")
    # CUDA takes no notice of what stands behind the first entry that names none.
    named = list(takewhile(bool, (visible_gpu(entry, gpus, order) for entry in entries)))
    if not named and visible_gpu(entries[0], gpus, "PCI_BUS_ID"):
        return everything, f"all GPUs are recorded: {setting} needs CUDA_DEVICE_ORDER=PCI_BUS_ID to be understood"
    usable = [at for at in everything if gpus[at] in named]
    if named and ranks.isdecimal() and len(usable) < min(int(ranks), len(gpus)):
        return everything, f"all GPUs are recorded: {ranks} ranks run here, and {setting} may be that of one of them"
    left_out = ", ".join(f"gpu{at}" for at in everything if at not in usable)
    notes = [f"left out by {setting}: {left_out}"] if left_out else []
    if named and "mig-" in visible.lower():
        notes.append("a GPU of which this process uses a part (MIG) counts as a whole, with what others do on it")
    return usable, "; ".join(notes)


def list_gpus() -> list[dict[str, str]]:
    """``name``, ``uuid``, ``pci`` and ``mig`` (the UUIDs of its parts) of this machine's GPUs by PCI address.

    Raises what pynvml raises.
    """
    import pynvml

    def text(value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    def parts(handle: Any) -> Iterator[str]:
        with contextlib.suppress(pynvml.NVMLError):  # most GPUs cannot be divided
            for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
                with contextlib.suppress(pynvml.NVMLError):  # no part has this number
                    yield text(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [
            {
                "name": text(pynvml.nvmlDeviceGetName(handle)),
                "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
                "pci": text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
                "mig": " ".join(parts(handle)),
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


def visible_uuids(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The UUIDs of the GPUs that this process sees, as CUDA numbers them; empty where that cannot be told."""
    with contextlib.suppress(Exception):  # without a driver there are none
        gpus = list_gpus()
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return [gpu["uuid"] for gpu in gpus]
        order = environment.get("CUDA_DEVICE_ORDER", "")
        named = takewhile(bool, (visible_gpu(entry, gpus, order) for entry in visible.split(",")))
        return [gpu["uuid"] for gpu in named if gpu is not None]
    return []
