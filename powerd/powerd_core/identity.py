"""Who a device is: its UUID or its PCI address, spelled one way whoever tells it.

The NVIDIA driver writes ``GPU-…`` before a UUID and eight digits of PCI domain, PyTorch writes neither, people copy one
or the other. Two spellings are one device when their keys are equal.
"""

from __future__ import annotations

import re

_UUID = re.compile(r"(?:gpu-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})", re.ASCII)
_MIG = re.compile(r"mig-[0-9a-f-]{36}", re.ASCII)
_MIG_PARENT = re.compile(r"mig-(gpu-[0-9a-f-]{36})/\d+/\d+", re.ASCII)
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.ASCII)


def uuid_key(text: object) -> str:
    """A GPU's UUID in lower case without ``GPU-``; empty for what is none.

    A MIG device is told apart from its GPU: ``mig-…``, but for the older ``MIG-GPU-…/gi/ci``, which names its GPU.
    """
    lower = str(text or "").strip().lower()
    parent = _MIG_PARENT.fullmatch(lower)
    if parent:
        lower = parent[1]
    if _MIG.fullmatch(lower):
        return lower
    found = _UUID.fullmatch(lower)
    return found[1] if found else ""


def pci_key(text: object) -> str:
    """A PCI address as ``dddd:bb:dd.f``, its domain 0 and its function 0 where they are not given; empty for what is
    none."""
    found = _PCI.fullmatch(str(text or "").strip().lower())
    if not found:
        return ""
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}" if device < 32 else ""
