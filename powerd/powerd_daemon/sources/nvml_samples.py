"""The driver's buffer of power samples of one GPU."""

from __future__ import annotations

from powerd_core.model import Accuracy, Column, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml_api import ARCH_HOPPER, NOT_SUPPORTED, Nvml, NvmlRefused
from powerd_daemon.sources.nvml_quantity import FITTED, GAIN_ORIGIN, U_GAIN, UNKNOWN, Gpu, Quantity
from powerd_daemon.sources.nvml_stamps import SAME_NS, StampClock, tie_clocks


class SampleBuffer(Quantity):
    """The driver's buffer of some 120 samples about 20 ms apart, with timestamps of the wall clock.

    Samples are known again by their time on the board's clock, which no setting of the wall clock moves: closer than
    `SAME_NS` they are the same one, for the driver moves the stamps a little; equal values are not. A read that fails
    or is left out loses nothing, for the buffer goes back two seconds; only `SILENCE_NS` without a sample are flagged,
    at the beginning of the silence.
    """

    suffix = "nvml_samples"
    column = Column("power_mw", "I")
    SILENCE_NS = 500_000_000
    DAY_NS = 86_400_000_000_000

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        # What is in the buffer already was measured before anybody asked for it.
        found = nvml.samples(gpu.handle, 0)
        if not found:
            raise NvmlRefused(NOT_SUPPORTED, "the driver's sample buffer is empty")
        self.stamps = StampClock(clock)
        self._widest_ns = 0
        self._seen_ns = found[-1][0] * 1000 - self.stamps.ahead_ns
        self._heard_ns = clock.now_ns()
        if abs(self._heard_ns - self._seen_ns) > self.DAY_NS:
            # Some drivers are said to count from the start of the machine.
            raise NvmlRefused(NOT_SUPPORTED, "the driver's samples are stamped by another clock than the wall clock")

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
        before = tie_clocks(self.clock)
        self.stamps.follow(before)
        begin_ns = self.clock.now_ns()
        # About a step, what is new may have stamps before those already seen, and what was seen stamps after it.
        newer_us = (self._seen_ns + self.stamps.ahead_ns) // 1000 if self.stamps.is_settled else 0
        flag = Flag.MISSING
        try:
            found = self.nvml.samples(self.gpu.handle, newer_us)
        except NvmlRefused:
            self.refused += 1
            found, flag = [], Flag.IO_ERROR
        now_ns = self.clock.now_ns()
        if tie_clocks(self.clock).stepped_since(before):
            found = []  # from before or after the step: the next read tells
        if found:
            self.stamps.look(found[-1][0], begin_ns, now_ns)
        for t_us, value in _since_step_back(found):
            t_ns = t_us * 1000 - self.stamps.ahead_ns
            if self._seen_ns + SAME_NS <= t_ns <= now_ns:
                self._seen_ns, self._heard_ns = t_ns, now_ns
                self._widest_ns = max(self._widest_ns, self.stamps.half_ns)
                self.append(t_ns - self._age_ns, value)
        if now_ns - self._heard_ns >= self.SILENCE_NS:
            self._heard_ns = now_ns
            self.append(max(self._last_ns + 1, now_ns - self._age_ns - self.SILENCE_NS), 0, flag)

    def take_bound_ns(self) -> int:
        """How far the times of the samples since the last call may be off by their stamps, at most."""
        bound_ns, self._widest_ns = self._widest_ns or self.stamps.half_ns, 0
        return bound_ns


def _since_step_back(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The samples, oldest first, after the last that has a stamp later than the next one's."""
    for i in range(len(found) - 1, 0, -1):
        if found[i - 1][0] * 1000 > found[i][0] * 1000 + SAME_NS:
            return found[i:]
    return found
