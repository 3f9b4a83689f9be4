"""The driver's buffer of power samples of one GPU."""

from __future__ import annotations

from powerd_core.model import Accuracy, Column, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml_api import ARCH_HOPPER, NOT_SUPPORTED, Nvml, NvmlRefused
from powerd_daemon.sources.nvml_quantity import FITTED, GAIN_ORIGIN, U_GAIN, UNKNOWN, Gpu, Quantity


class SampleBuffer(Quantity):
    """The driver's buffer of some 120 samples about 20 ms apart, with timestamps of the wall clock.

    The wall clock is tied to the board's anew at every poll. Asked again, the driver gives the same sample with a
    timestamp that moved by up to 0.3 ms, so samples closer than `APART_US` are the same one; equal values are not.
    A read that fails loses nothing, for the buffer goes back two seconds; only `SILENCE_NS` without a sample are
    flagged, at the beginning of the silence.
    """

    suffix = "nvml_samples"
    column = Column("power_mw", "I")
    APART_US = 3_000
    SILENCE_NS = 500_000_000
    STEP_NS = 50_000_000

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        # What is in the buffer already was measured before anybody asked for it.
        found = nvml.samples(gpu.handle, 0)
        if not found:
            raise NvmlRefused(NOT_SUPPORTED, "the driver's sample buffer is empty")
        self._seen_us = max(t_us for t_us, _ in found)
        self._heard_ns = clock.now_ns()
        self._wall_ahead_ns = tie_clocks(clock)

    @property
    def period_ns(self) -> int:
        return 20_000_000

    @property
    def _fitted(self) -> bool:
        return self.gpu.architecture == ARCH_HOPPER

    @property
    def _age_ns(self) -> int:
        return 16_000_000 if self._fitted else 0

    @property
    def description(self) -> str:
        return "power samples from the driver's buffer (NVML, total power)"

    @property
    def accuracy(self) -> Accuracy:
        window_ns, centre_ns, origin = (
            (29_000_000, 5_000_000, FITTED) if self._fitted else (100_000_000, 50_000_000, UNKNOWN)
        )
        return Accuracy(U_GAIN, 0.0, 1e-3, window_ns, centre_ns, 0, f"{GAIN_ORIGIN}; {origin}")

    def poll(self) -> None:
        wall_ahead_ns = tie_clocks(self.clock)
        now_ns = self.clock.now_ns()
        stepped_ns = wall_ahead_ns - self._wall_ahead_ns
        self._wall_ahead_ns = wall_ahead_ns
        if abs(stepped_ns) > self.STEP_NS:
            # Somebody set the wall clock; without this, a step back would silence the line until time caught up.
            self._seen_us += stepped_ns // 1000
        flag = Flag.MISSING
        try:
            found = self.nvml.samples(self.gpu.handle, self._seen_us)
        except NvmlRefused:
            self.refused += 1
            found, flag = [], Flag.IO_ERROR
        for t_us, value in sorted(found):
            if t_us < self._seen_us + self.APART_US:
                continue
            self._seen_us, self._heard_ns = t_us, now_ns
            self.append(t_us * 1000 - wall_ahead_ns - self._age_ns, value)
        if now_ns - self._heard_ns >= self.SILENCE_NS:
            self._heard_ns = now_ns
            self.append(max(self._last_ns + 1, now_ns - self._age_ns - self.SILENCE_NS), 0, flag)


def tie_clocks(clock: Clock, attempts: int = 3) -> int:
    """Wall clock minus board clock, from the tightest of a few readings of both."""
    best: tuple[int, int] | None = None
    for _ in range(attempts):
        before_ns, wall_ns, after_ns = clock.now_ns(), clock.wall_ns(), clock.now_ns()
        tie = after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2
        best = tie if best is None else min(best, tie)
    assert best is not None
    return best[1]
