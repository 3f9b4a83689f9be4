"""What must hold before a run of a campaign begins (the GPU as cool as at the first run, and a pause), and why one that
has ended does not count.

A card that is warm from the run before draws more (it leaks) and may be slowed down by heat, so that a cell would
depend on what ran before it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from powerd_analytics.campaigns.design import Guard
from powerd_analytics.campaigns.journal import Discard, Result
from powerd_analytics.frame.figure import number_of
from powerd_core.verdict import Verdict

CONTRADICTED = "contradicted"
"""Why a run does not count whose phases say something else than its cell."""
_REASON = {Verdict.OVERRIDDEN: "overridden", Verdict.CONFOUNDED: "thermal", Verdict.CLOCK_MISSED: "clock-missed"}
_LOOK_S = 1.0


class Thermometer(Protocol):
    def read_c(self) -> float | None:
        """Degrees Celsius of the hottest GPU that is used; None where no driver tells."""


class Clock(Protocol):
    def now_s(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """Real time."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class NvmlThermometer:
    """Of all NVIDIA GPUs of this machine, by their driver. Where there is none it has nothing to tell."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[Any] | None = None

    def _open(self) -> list[Any]:
        gpus: list[Any] = []
        with contextlib.suppress(Exception):  # no driver, no library, no right: there is no temperature then
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return gpus

    def read_c(self) -> float | None:
        if self._gpus is None:
            self._gpus = self._open()
        degrees = []
        for gpu in self._gpus:
            with contextlib.suppress(self._nvml.NVMLError):
                degrees.append(float(self._nvml.nvmlDeviceGetTemperature(gpu, 0)))
        return max(degrees, default=None)


@dataclass(slots=True)
class Wait:
    """Before a run: the pause, then the cooling down."""

    guard: Guard
    thermometer: Thermometer
    clock: Clock

    def until_ready(self, start_c: float | None, tell: Callable[[str], None]) -> str:
        """Wait; what to note of the run, as that the card did not get cool in time. ``start_c``: temperature at the
        campaign's first run."""
        if self.guard.idle_gap_s:
            self.clock.sleep(self.guard.idle_gap_s)
        if self.guard.start_within_c is None or start_c is None:
            return ""
        most_c, begin_s = start_c + self.guard.start_within_c, self.clock.now_s()
        while (now_c := self.thermometer.read_c()) is not None and now_c > most_c:
            if self.clock.now_s() - begin_s >= self.guard.cool_down_max_s:
                return f"began at {now_c:.0f} degrees, {now_c - start_c:.0f} above the first run"
            tell(f"cooling down: {now_c:.0f} degrees, {most_c:.0f} wanted")
            self.clock.sleep(_LOOK_S)
        return ""


def discard_of(result: Result, guard: Guard) -> Discard | None:
    """Why a run does not count by its phases, or by what the guard discards; None where it does."""
    reasons = guard.discard
    if result.contradiction:
        return Discard(CONTRADICTED, result.contradiction)
    if result.note.startswith("lease lost") and "lease-lost" in reasons:
        return Discard("lease-lost", result.note)
    if result.shared and "shared" in reasons:
        return Discard("shared", result.shared)
    around = (number_of(row, "ambient_c") for row in result.wholes)
    ambient_c = next((degrees for degrees in around if degrees is not None), None)
    if guard.ambient_c and ambient_c is not None and "ambient" in reasons:
        least, greatest = guard.ambient_c
        if not least <= ambient_c <= greatest:
            return Discard("ambient", f"{ambient_c:.1f} degrees around it, {least:g} to {greatest:g} are wanted")
    reason = _REASON.get(Verdict(result.verdict)) if result.verdict else None
    return Discard(reason, result.note) if reason in tuple(reasons) and reason is not None else None
