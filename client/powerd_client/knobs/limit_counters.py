"""What the NVIDIA driver counts of GPUs at their limits since a knob of theirs was set, which needs no rights to read.

Whoever holds a knob reads it here, in the process of the training, and judges by it (`powerd_core.verdict`). Nothing is
counted where there is no driver on this machine: for a GPU elsewhere the run's own lines say it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from powerd_core.lease import Evidence

_LIMITS = {"at_cap_s": (74,), "thermal_s": (269, 270), "brake_s": (271,)}
"""Fields that count nanoseconds at a limit (nvml.h, NVML_FI_DEV_CLOCKS_EVENT_REASON_*)."""
_IDLE, _SLOWED = 0x1, 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Bits of nvmlClocksEventReasons: nothing to do; the power cap, heat or the power brake."""
_CLOCKS = {"sm_clock": 1, "mem_clock": 2}
"""nvmlClockType_t."""
_CLOCK_STEP_MHZ = 15


@dataclass(slots=True)
class _Since:
    """What had been counted when a knob was set, and how its clock was seen since."""

    at_s: float
    limited_s: dict[str, float]
    looks: int = 0
    missed: int = 0


class LimitCounters:
    """Of the GPUs whose knobs a process holds. Nothing here raises: what cannot be read is unknown."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._since: dict[tuple[str, str], _Since] = {}
        with suppress(Exception):  # no library, no driver
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml

    def begin(self, uuid: str, knob: str) -> None:
        """The knob of a GPU was set just now."""
        self._since[uuid, knob] = _Since(time.monotonic(), self._limited_s(uuid))

    def look(self, uuid: str, knob: str, asked: object) -> None:
        """Whether a GPU works at another clock than the locked one, and no limit explains it; not while it rests."""
        since, kind = self._since.get((uuid, knob)), _CLOCKS.get(knob)
        if since is None or kind is None or not isinstance(asked, float) or self._nvml is None:
            return
        with suppress(self._nvml.NVMLError, AttributeError):
            gpu = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
            reasons = int(self._nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
            if reasons & _IDLE:
                return
            clock_mhz = int(self._nvml.nvmlDeviceGetClockInfo(gpu, kind))
            since.looks += 1
            since.missed += abs(clock_mhz - asked) > _CLOCK_STEP_MHZ and not reasons & _SLOWED

    def evidence(self, uuid: str, knob: str) -> Evidence:
        """Since the knob was set last."""
        since = self._since.get((uuid, knob))
        if since is None:
            return Evidence()
        now_s = self._limited_s(uuid)
        grown = {name: now_s[name] - since.limited_s[name] for name in now_s.keys() & since.limited_s.keys()}
        return Evidence(time.monotonic() - since.at_s, **grown, looks=since.looks, missed=since.missed)

    def _limited_s(self, uuid: str) -> dict[str, float]:
        if self._nvml is None or not uuid.startswith("GPU-"):
            return {}
        fields = [field for of in _LIMITS.values() for field in of]
        with suppress(self._nvml.NVMLError, AttributeError):
            answers = self._nvml.nvmlDeviceGetFieldValues(self._nvml.nvmlDeviceGetHandleByUUID(uuid), fields)
            counted = {f: a.value.ullVal for f, a in zip(fields, answers, strict=True) if a.nvmlReturn == 0}
            told = {name: of for name, of in _LIMITS.items() if counted.keys() >= set(of)}
            return {name: sum(counted[field] for field in of) / 1e9 for name, of in told.items()}
        return {}
