"""A load that follows this host's CPUs, so that what a program does shows in the simulated card's power."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from math import expm1
from typing import Any

from powerd_daemon.sim.shapes import Waveform

HISTORY = 1 << 18
"""Steps that are remembered: some nine minutes at 500 a second."""


class Host(Waveform):
    """Between idle and peak in proportion to the share of ``cores`` that was busy.

    CPU time is counted in lumps of a scheduler's tick and more. It is therefore drawn from a store that empties
    with the time constant ``smooth_ns``, never faster than ``cores`` could have used it: late, but complete.

    The power is known exactly over what was generated so far, and only there: `advance` reads ``cpu_ns`` (cumulative)
    and appends a step from the end of the last one. Asking beyond, or before what is remembered, is a `ValueError`.
    """

    kind = "host"

    def __init__(
        self,
        t0_ns: int,
        *,
        idle_w: float,
        peak_w: float,
        cores: float,
        smooth_ns: float,
        cpu_ns: Callable[[], int],
    ) -> None:
        self._parameters = {"idle_w": idle_w, "peak_w": peak_w, "cores": cores, "smooth_ns": smooth_ns}
        self._idle_w, self._span_w, self._cores, self._smooth_ns = idle_w, peak_w - idle_w, cores, smooth_ns
        self._read_ns = cpu_ns
        self._cpu_ns, self._store_ns = cpu_ns(), 0.0
        self._ends_ns = array("q", [t0_ns])
        self._ends_j = array("d", [0.0])
        self._levels_w = array("d", [idle_w])

    def parameters(self) -> dict[str, Any]:
        return dict(self._parameters)

    def advance(self, t_ns: int) -> None:
        step_ns = t_ns - self._ends_ns[-1]
        if step_ns <= 0:
            return
        cpu_ns = self._read_ns()
        most_ns = self._cores * step_ns
        # More threads than cores must not fill the store for ever.
        self._store_ns = min(self._store_ns + cpu_ns - self._cpu_ns, most_ns + 10 * self._cores * self._smooth_ns)
        self._cpu_ns = cpu_ns
        spent_ns = min(-expm1(-step_ns / self._smooth_ns) * self._store_ns, most_ns)
        self._store_ns -= spent_ns
        level_w = self._idle_w + self._span_w * spent_ns / most_ns
        self._ends_j.append(self._ends_j[-1] + step_ns * 1e-9 * level_w)
        self._ends_ns.append(t_ns)
        self._levels_w.append(level_w)
        if len(self._ends_ns) > HISTORY:
            for kept in (self._ends_ns, self._ends_j, self._levels_w):
                del kept[: HISTORY // 2]

    def power_w(self, t_ns: int) -> float:
        return self._levels_w[self._piece(t_ns)]

    def energy_j(self, t0_ns: int, t1_ns: int) -> float:
        return self._until_j(t1_ns) - self._until_j(t0_ns)

    def _piece(self, t_ns: int) -> int:
        if not self._ends_ns[0] <= t_ns <= self._ends_ns[-1]:
            raise ValueError(f"the host's load is known from {self._ends_ns[0]} to {self._ends_ns[-1]}, not at {t_ns}")
        return min(bisect_right(self._ends_ns, t_ns), len(self._ends_ns) - 1)

    def _until_j(self, t_ns: int) -> float:
        i = self._piece(t_ns)
        return self._ends_j[i] - (self._ends_ns[i] - t_ns) * 1e-9 * self._levels_w[i]
