"""Zeus beside powerd: windows of its `ZeusMonitor`, and the driver's energy counter that both can be held against.

Zeus 0.16 waits for the GPU at both edges of a window and reads the energy counter there, which the driver renews about
every 100 ms on an H200.
"""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from powerd_client.hostclock import now_ns

RENEWALS = 2
"""The counter may be late by one: behind the second, all that was counted was drawn by an idle GPU."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The counter where it was renewed: host time ± half of what two reads took."""

    t_host_ns: int
    half_ns: int
    energy_j: float


class EnergyCounter:
    """The driver's counter of joules; ``read_mj`` is asked for its millijoules."""

    def __init__(self, read_mj: Callable[[], int], timeout_s: float = 2.0) -> None:
        self._read_mj = read_mj
        self._timeout_s = timeout_s

    @classmethod
    def of_gpu(cls, uuid: str) -> EnergyCounter:
        """Of the GPU with this UUID (``GPU-…`` or without that). Raises what pynvml raises."""
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return cls(lambda: int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)))

    def read_j(self) -> float:
        return self._read_mj() / 1e3

    def renewed(self, times: int = RENEWALS) -> Reading:
        """Wait until the counter was renewed so often, and read it there. Raises `TimeoutError`."""
        deadline = time.monotonic() + self._timeout_s * times
        value, before = self._read_mj(), now_ns()
        while True:
            found, after = self._read_mj(), now_ns()
            if found != value:
                times -= 1
                if not times:
                    return Reading((before + after) // 2, (after - before) // 2, found / 1e3)
            if time.monotonic() > deadline:
                raise TimeoutError("the energy counter stands still")
            value, before = found, after


@dataclass(slots=True)
class Windows:
    """Windows of a `ZeusMonitor`, and what they said."""

    monitor: Any
    found: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """`Measurement`s by the window's name."""

    @classmethod
    def of_gpu(cls, index: int) -> Windows:
        """Raises ImportError without Zeus, and whatever Zeus raises."""
        from zeus.monitor import ZeusMonitor

        # Said once a window of 0 J; they are counted here.
        warnings.filterwarnings("ignore", message="The energy consumption of one or more GPUs was measured as zero")
        return cls(ZeusMonitor(gpu_indices=[index], cpu_indices=[]))

    def begin(self, name: str) -> None:
        self.monitor.begin_window(name)

    def end(self, name: str) -> None:
        self.found[name].append(self.monitor.end_window(name))

    def take(self) -> dict[str, tuple[list[float], list[float]]]:
        """Seconds and joules of all windows by name, which are forgotten here."""
        taken = {
            name: ([m.time for m in found], [float(sum(m.gpu_energy.values())) for m in found])
            for name, found in self.found.items()
        }
        self.found.clear()
        return taken


@dataclass(slots=True)
class Account:
    """What windows added up to, over all rounds of one training."""

    windows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    zeros: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    energy_j: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    time_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counted_j: float = 0.0
    """The counter's difference over the same rounds: read before the first window of each and after its last."""

    def add(self, taken: dict[str, tuple[list[float], list[float]]], counted_j: float) -> None:
        for name, (seconds, joules) in taken.items():
            self.windows[name] += len(joules)
            self.zeros[name] += joules.count(0.0)
            self.energy_j[name] += sum(joules)
            self.time_s[name] += sum(seconds)
        self.counted_j += counted_j

    def document(self) -> dict[str, Any]:
        """For the results: totals, and the share of the counter that the windows have."""
        total = sum(self.energy_j.values())
        return {
            "windows": dict(self.windows),
            "zeros": dict(self.zeros),
            "energy_j": dict(self.energy_j),
            "time_s": dict(self.time_s),
            "sum_j": total,
            "counter_j": self.counted_j,
            "sum_per_counter": total / self.counted_j if self.counted_j else None,
        }


def not_measured(reason: str) -> dict[str, Any]:
    """In the place of `Account.document`, where Zeus could not be had."""
    return {"not_measured": reason}


class SteppedCounter:
    """Stands for the driver's counter where there is no GPU: ``power_w``, renewed every ``period_ms``."""

    def __init__(self, power_w: float = 100.0, period_ms: int = 100) -> None:
        self._power_w = power_w
        self._period_ns = period_ms * 1_000_000

    def __call__(self) -> int:
        return round(now_ns() // self._period_ns * self._period_ns * 1e-6 * self._power_w)


class SteppedMonitor:
    """Stands for `ZeusMonitor` on that counter."""

    @dataclass(frozen=True, slots=True)
    class Measurement:
        time: float
        gpu_energy: dict[int, float]

    def __init__(self, read_mj: Callable[[], int]) -> None:
        self._read_mj = read_mj
        self._open: dict[str, tuple[float, int]] = {}

    def begin_window(self, name: str) -> None:
        self._open[name] = time.time(), self._read_mj()

    def end_window(self, name: str) -> Measurement:
        begin, energy = self._open.pop(name)
        return self.Measurement(time.time() - begin, {0: (self._read_mj() - energy) / 1e3})
