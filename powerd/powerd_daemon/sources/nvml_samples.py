"""The driver's buffer of power samples of one GPU."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_core.model import Accuracy, Column, Flag
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml_api import ARCH_HOPPER, NOT_SUPPORTED, Nvml, NvmlRefused
from powerd_daemon.sources.nvml_grid import LEARNT, PERIOD_NS, SampleGrid
from powerd_daemon.sources.nvml_quantity import FILTER_NS, FITTED, GAIN_ORIGIN, U_GAIN, UNKNOWN, Gpu, Quantity
from powerd_daemon.sources.nvml_stamps import SAME_NS, StampClock, tie_clocks

HALF_LATE_NS = 7_500_000
"""Where samples are on no grid, they are taken to be stamped late by this, give or take as much."""


class SampleBuffer(Quantity):
    """The driver's buffer of some 120 samples about 20 ms apart, with timestamps of the wall clock.

    Samples are known again by their stamps on the board's clock, which no setting of the wall clock moves: closer than
    `SAME_NS` they are the same one, for the driver moves the stamps a little; equal values are not. Each gets the
    moment at which it was taken (`SampleGrid`). A read that fails or is left out loses nothing, for the buffer goes
    back two seconds; only `SILENCE_NS` without a sample are flagged, at the beginning of the silence. So is all time in
    which the driver takes its samples at another pace than the grid's (``lost_grids`` counts that): when these were
    taken is not known to what the line's accuracy says.

    The centre of what a sample shows was found 16.0 to 17.3 ms before its moment, on one H200.
    """

    suffix = "nvml_samples"
    column = Column("power_mw", "I")
    SILENCE_NS = 500_000_000
    FILL_NS = 600_000_000
    DAY_NS = 86_400_000_000_000

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        # What is in the buffer already was measured before anybody asked for it.
        found = self._filled()
        if not found:
            raise NvmlRefused(NOT_SUPPORTED, "the driver's sample buffer is empty")
        self.stamps = StampClock(clock)
        self._widest_ns = 0
        self._seen_ns = found[-1][0] * 1000 - self.stamps.ahead_ns
        self._heard_ns = clock.now_ns()
        if abs(self._heard_ns - self._seen_ns) > self.DAY_NS:
            # Some drivers are said to count from the start of the machine.
            raise NvmlRefused(NOT_SUPPORTED, "the driver's samples are stamped by another clock than the wall clock")
        self._grid = SampleGrid()
        taken = [t_us * 1000 - self.stamps.ahead_ns for t_us, _ in _since_step_back(found)]
        self._is_on_grid = self._fitted and self._grid.learn(taken)
        self.lost_grids = 0
        self._is_between_grids = False
        self._age_ns = 0 if not self._fitted else 16_500_000 if self._is_on_grid else 16_500_000 + HALF_LATE_NS

    @property
    def period_ns(self) -> int:
        return PERIOD_NS

    @property
    def _fitted(self) -> bool:
        return self.gpu.architecture == ARCH_HOPPER

    @property
    def description(self) -> str:
        return "power samples from the driver's buffer (NVML, total power)"

    @property
    def accuracy(self) -> Accuracy:
        if not self._fitted:
            return Accuracy(U_GAIN, 0.0, 1e-3, 100_000_000, 50_000_000, 0, f"{GAIN_ORIGIN}; {UNKNOWN}")
        centre_ns, origin = 1_000_000, FITTED
        if not self._is_on_grid:
            centre_ns, origin = centre_ns + HALF_LATE_NS, f"{FITTED}; stamps are on no grid"
        return Accuracy(U_GAIN, 0.0, 1e-3, 1_000_000, centre_ns, 0, f"{GAIN_ORIGIN}; {origin}", FILTER_NS)

    def _filled(self) -> list[tuple[int, int]]:
        """The buffer, once it holds what a grid is learnt from.

        Where nothing else keeps the driver loaded (persistence mode), asking for the GPU has loaded it just now, and
        its buffer is still empty. Raises `NvmlRefused`.
        """
        enough = LEARNT if self._fitted else 1
        if self.nvml.fills_until_ns is None:
            self.nvml.fills_until_ns = self.clock.now_ns() + self.FILL_NS
        while True:
            found = self.nvml.samples(self.gpu.handle, 0)
            now_ns = self.clock.now_ns()
            if len(found) >= enough or now_ns >= self.nvml.fills_until_ns:
                return found
            self.clock.sleep_until(now_ns + PERIOD_NS)

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
        new = self._new(found, now_ns)
        for (stamp_ns, value), t_ns in zip(new, self._moments([t for t, _ in new]), strict=False):
            self._seen_ns = stamp_ns
            if t_ns is None and self._is_between_grids:
                # It may be of another pace, and then nobody knows its moment.
                self.append(stamp_ns - self._age_ns, 0, Flag.MISSING)
            if t_ns is not None:
                self._heard_ns = now_ns
                self._widest_ns = max(self._widest_ns, self.stamps.half_ns)
                # A GPU that can be asked takes some power: 0 is what a driver says that does not know.
                self.append(t_ns - self._age_ns, value, 0 if value else Flag.MISSING)
        if now_ns - self._heard_ns >= self.SILENCE_NS:
            self._heard_ns = now_ns
            self.append(max(self._last_ns + 1, now_ns - self._age_ns - self.SILENCE_NS), 0, flag)

    def _new(self, found: list[tuple[int, int]], now_ns: int) -> list[tuple[int, int]]:
        """Samples not seen before, by their stamps on the board's clock."""
        new, last_ns = [], self._seen_ns
        for t_us, value in _since_step_back(found):
            t_ns = t_us * 1000 - self.stamps.ahead_ns
            if last_ns + SAME_NS <= t_ns <= now_ns:
                last_ns = t_ns
                new.append((t_ns, value))
        return new

    def _moments(self, stamps_ns: list[int]) -> Sequence[int | None]:
        """When the first of these samples were taken. The rest stays in the driver's buffer for the next look."""
        if not self._is_on_grid:
            return stamps_ns
        if self._grid.is_known:
            self._is_between_grids = False
            found = self._grid.moments(stamps_ns)
            if self._grid.is_known:
                return found
            self.lost_grids += 1
        self._is_between_grids = True
        return self._grid.learn_again(stamps_ns)

    def take_bound_ns(self) -> int:
        """How far the times of the samples since the last call may be off by their stamps, at most, and of those that
        wait for the grid."""
        bound_ns, self._widest_ns = max(self._widest_ns, self.stamps.half_ns), 0
        return bound_ns


def _since_step_back(found: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The samples, oldest first, after the last that has a stamp later than the next one's."""
    for i in range(len(found) - 1, 0, -1):
        if found[i - 1][0] * 1000 > found[i][0] * 1000 + SAME_NS:
            return found[i:]
    return found
