"""How phases are timed: by events on a GPU, by the host's clock, or by the host's clock after waiting for the device.

CUDA (and ROCm, which is `torch.cuda` too) has events that `powerd_client.device` ties to the host's clock. Of other
accelerators (MPS, XPU, NPU, …) only their `synchronize` is relied on: work that is queued is waited for before every
mark. That keeps the device from running ahead of the host, so it is said.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from powerd_client.device import DeviceTimer
from powerd_client.devicetimes import DEVICE
from powerd_client.framefile import FrameFile
from powerd_client.markwriter import MarkWriter
from powerd_client.telling import tell
from powerd_core.errors import ConfigError

HOST: Final = "host"
SYNCHRONISED: Final = "host-synchronised"
CHOICES: Final = ("auto", "cuda", "accelerator", "host")
_BEFORE_2_6: Final = ("xpu", "mps", "npu", "hpu", "mlu", "musa")
"""Modules of torch (or of what plugs into it) that have `synchronize`, where there is no `torch.accelerator`."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How phases are timed."""

    name: str
    """As the run file has it: ``device``, ``host`` or ``host-synchronised``."""
    torch: Any = None
    """The module whose CUDA events time the phases."""
    synchronize: Callable[[], object] | None = None
    """What is called before every mark."""
    said: str = ""
    """What the run, and the user, shall be told of it."""
    was_asked_for: bool = True


def choose_timing(device: str, synchronize: Callable[[], object] | None = None) -> Timing:
    """What ``Meter(device=..., synchronize=...)`` means here. Raises `ConfigError`."""
    if device not in CHOICES:
        raise ConfigError(f"device={device!r}: phases are timed by 'cuda', 'accelerator', 'host' or 'auto'")
    if synchronize is not None:
        return Timing(SYNCHRONISED, synchronize=synchronize)
    # A script that trains on a device has imported torch; importing it here would cost seconds and tell nothing.
    torch = sys.modules.get("torch")
    if device == "host":
        return Timing(HOST)
    if device != "accelerator" and torch is not None and torch.cuda.is_available():
        return Timing(DEVICE, torch)
    if device == "cuda":
        raise ConfigError("device='cuda': torch has no GPU here, or was not imported before the Meter was made")
    found = _accelerator(torch)
    if found is not None:
        name, wait = found
        said = f"every mark waits for {name} to be done (synchronize), and is timed by the host"
        return Timing(SYNCHRONISED, synchronize=wait, said=said, was_asked_for=device == "accelerator")
    if device == "accelerator":
        raise ConfigError(
            "device='accelerator': torch has no accelerator here, or was not imported before the Meter was made"
        )
    return Timing(HOST)


def _accelerator(torch: Any) -> tuple[str, Callable[[], object]] | None:
    """Name of the accelerator that torch works with, and what waits for all work queued on it."""
    try:
        general = getattr(torch, "accelerator", None)
        if general is not None:
            device = general.current_accelerator() if general.is_available() else None
            return None if device is None or device.type == "cpu" else (str(device.type), general.synchronize)
        for name in _BEFORE_2_6:
            module = getattr(torch, name, None)
            if module is not None and callable(getattr(module, "synchronize", None)) and _is_there(torch, name):
                return name, module.synchronize
    except Exception:  # noqa: BLE001  (a driver that is half there: the training will say so itself)
        return None
    return None


def _is_there(torch: Any, name: str) -> bool:
    # `torch.mps` got its own `is_available` late.
    for owner in (getattr(torch, name), getattr(getattr(torch, "backends", None), name, None)):
        asked = getattr(owner, "is_available", None)
        if callable(asked):
            return bool(asked())
    return False


class Synchronized:
    """Waits for the device before each mark, and keeps a failure of that from the training."""

    def __init__(self, synchronize: Callable[[], object], writer: MarkWriter) -> None:
        self._synchronize = synchronize
        self._writer = writer

    def __call__(self, code: int, thread: int | None = None) -> None:
        """As `MarkWriter.mark`."""
        if self._writer.is_open:  # a forked child must not touch its parent's device
            try:
                self._synchronize()
            except Exception as error:  # noqa: BLE001  (the training's next call will raise it too)
                self._writer.disable(f"synchronize() failed: {error}")
        self._writer.mark(code, thread)


def begin_timing(
    choice: Timing, writer: MarkWriter, journal: Path, *, speaks: bool
) -> tuple[Callable[..., None], DeviceTimer | None, str]:
    """What writes a mark, the timer of a GPU if there is one, and the timing's name in the run; it never raises.

    ``speaks``: this process tells the user what is worth telling.
    """
    mark, timer, name = writer.mark, None, choice.name
    if choice.synchronize is not None:
        mark = Synchronized(choice.synchronize, writer)
    elif choice.torch is not None:
        try:
            timer = DeviceTimer(writer, FrameFile(journal, writer.token), choice.torch)
        except (OSError, RuntimeError) as error:  # a file or a thread that cannot be made
            name = HOST
            writer.note(f"phases are timed by the host: {error}", "warning")
        else:
            mark = timer.mark
    if choice.said:
        writer.note(choice.said, "info")
        if speaks and not choice.was_asked_for:
            tell(f"{choice.said}; Meter(device='host') would not wait")
    return mark, timer, name
