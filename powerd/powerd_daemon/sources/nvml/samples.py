"""The driver's buffer of power samples of one GPU, and how well their times are known."""

from __future__ import annotations

from collections.abc import Sequence

from powerd_core.model import Accuracy, Column, Flag, Line, Provenance, QuantityConversion
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml.api import ARCH_HOPPER, NOT_SUPPORTED, Nvml, NvmlRefused
from powerd_daemon.sources.nvml.quantities import FILTER_NS, FITTED, GAIN_ORIGIN, U_GAIN, UNKNOWN, Gpu, Quantity
from powerd_daemon.sources.nvml.timing import LEARNT, PERIOD_NS, SAME_NS, SampleGrid, StampClock, tie_clocks

HALF_LATE_NS = 7_500_000
"""Where samples are on no grid, they are taken to be stamped late by this, give or take as much."""
SILENCE_NS = 500_000_000
"""So long without a sample is told."""
FILL_NS = 600_000_000
"""How long a driver that was loaded just now is given to fill its buffer."""
DAY_NS = 86_400_000_000_000


class SampleBuffer(Quantity):
    """The driver's buffer of some 120 samples about 20 ms apart, with timestamps of the wall clock.

    Samples are known again by their stamps on the board's clock, which no setting of the wall clock moves: closer than
    `SAME_NS` they are the same one, for the driver moves the stamps a little; equal values are not. Each gets its
    sampling instant (`SampleGrid`). A read that fails or is left out loses nothing, for the buffer goes back two
    seconds; only `SILENCE_NS` without a sample are flagged, at the beginning of the silence. So is the time after
    somebody set the wall clock until the driver is sure to have followed, and all time in which the driver takes its
    samples at another pace than the grid's (``lost_grids`` counts that): when these were taken is not known to what the
    line's accuracy says.

    The centre of what a sample shows was found 16.0 to 17.3 ms before its instant, on one H200.
    """

    suffix = "nvml_samples"
    column = Column("power_mw", "I")
    description = "power samples from the driver's buffer (NVML, total power)"

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self._is_fitted = gpu.architecture == ARCH_HOPPER
        # What is in the buffer already was measured before anybody asked for it.
        samples = self._first_samples()
        if not samples:
            raise NvmlRefused(NOT_SUPPORTED, "the driver's sample buffer is empty")
        self.stamps = StampClock(clock)
        self._widest_ns = 0
        self._seen_ns = self._stamp_ns(samples[-1][0])
        """Stamp of the last sample that was taken up, on the board's clock."""
        self._heard_ns = clock.now_ns()
        """When a sample came last."""
        if abs(self._heard_ns - self._seen_ns) > DAY_NS:
            # Some drivers are said to count from the start of the machine.
            raise NvmlRefused(NOT_SUPPORTED, "the driver's samples are stamped by another clock than the wall clock")
        self._grid = SampleGrid()
        stamps_ns = [self._stamp_ns(t_us) for t_us, _ in samples]
        self._is_on_grid = self._is_fitted and self._grid.learn(stamps_ns)
        self.lost_grids = 0
        self._is_between_grids = False
        self._age_ns = 0 if not self._is_fitted else 16_500_000 if self._is_on_grid else 16_500_000 + HALF_LATE_NS

    @property
    def period_ns(self) -> int:
        return PERIOD_NS

    @property
    def accuracy(self) -> Accuracy:
        if not self._is_fitted:
            return Accuracy(U_GAIN, 0.0, 1e-3, 100_000_000, 50_000_000, 0, f"{GAIN_ORIGIN}; {UNKNOWN}")
        centre_ns, origin = 1_000_000, FITTED
        if not self._is_on_grid:
            centre_ns, origin = centre_ns + HALF_LATE_NS, f"{FITTED}; stamps are on no grid"
        return Accuracy(U_GAIN, 0.0, 1e-3, 1_000_000, centre_ns, 0, f"{GAIN_ORIGIN}; {origin}", FILTER_NS)

    def _first_samples(self) -> list[tuple[int, int]]:
        """The buffer, once it holds what a grid is learnt from.

        Where nothing else keeps the driver loaded (persistence mode), asking for the GPU has loaded it just now, and
        its buffer is still empty. Raises `NvmlRefused`.
        """
        enough, until_ns = LEARNT if self._is_fitted else 1, self.clock.now_ns() + FILL_NS
        while len(samples := self.nvml.samples(self.gpu.handle, 0)) < enough and self.clock.now_ns() < until_ns:
            self.clock.sleep_until(self.clock.now_ns() + PERIOD_NS)
        return samples

    def _stamp_ns(self, t_us: int) -> int:
        """A stamp on the board's clock."""
        return t_us * 1000 - self.stamps.tie.wall_ahead_ns

    def poll(self) -> None:
        before = tie_clocks(self.clock)
        self.stamps.follow(before)
        begin_ns = self.clock.now_ns()
        samples: list[tuple[int, int]] = []
        silence = Flag.MISSING
        try:
            if self.stamps.is_settled:
                samples = self.nvml.samples(self.gpu.handle, (self._seen_ns + before.wall_ahead_ns) // 1000)
        except NvmlRefused:
            self.refused += 1
            silence = Flag.IO_ERROR
        now_ns = self.clock.now_ns()
        if tie_clocks(self.clock).stepped_since(before):
            samples = []  # from before or after the step
        if samples and not self.stamps.is_likely(self._stamp_ns(samples[-1][0]), begin_ns, now_ns):
            samples = []
        new = self._new(samples, now_ns)
        for (stamp_ns, value), t_ns in zip(new, self._instants([t for t, _ in new]), strict=False):
            self._seen_ns = stamp_ns
            if t_ns is not None:
                self._heard_ns = now_ns
                self._widest_ns = max(self._widest_ns, self.stamps.half_ns)
                # A GPU that can be asked takes some power: 0 is what a driver says that does not know.
                self.output.append(t_ns - self._age_ns, value, 0 if value else Flag.MISSING)
            elif self._is_between_grids:
                # It may be of another pace, and then nobody knows its instant.
                self.output.append(stamp_ns - self._age_ns, 0, Flag.MISSING)
        if now_ns - self._heard_ns >= SILENCE_NS:
            self._heard_ns = now_ns
            self.output.append(max(self.output.last_ns + 1, now_ns - self._age_ns - SILENCE_NS), 0, silence)

    def _new(self, samples: list[tuple[int, int]], now_ns: int) -> list[tuple[int, int]]:
        """Samples not seen before, by their stamps on the board's clock."""
        new, last_ns = [], self._seen_ns
        for t_us, value in samples:
            t_ns = self._stamp_ns(t_us)
            if last_ns + SAME_NS <= t_ns <= now_ns:
                last_ns = t_ns
                new.append((t_ns, value))
        return new

    def _instants(self, stamps_ns: list[int]) -> Sequence[int | None]:
        """When the first of these samples were taken. The rest stays in the driver's buffer for the next look."""
        if not self._is_on_grid:
            return stamps_ns
        if self._grid.is_known:
            self._is_between_grids = False
            instants = self._grid.instants(stamps_ns)
            if self._grid.is_known:
                return instants
            self.lost_grids += 1
        self._is_between_grids = True
        return self._grid.learn_again(stamps_ns)

    def take_bound_ns(self) -> int:
        """How far the times of the samples since the last call may be off by their stamps, at most, and of those that
        wait for the grid."""
        bound_ns, self._widest_ns = max(self._widest_ns, self.stamps.half_ns), 0
        return bound_ns


class SampleClock(Quantity):
    """An auxiliary stream of two lines about once a second: the bound of the tie that the samples are timed by, and the
    wall clock's offset itself, in which somebody setting the clock shows as a jump."""

    suffix = "clock_bound"
    column = Column("ns", "q")
    description = "within what the samples' stamps are tied to the board's clock: the most since the reading before"
    accuracy = Accuracy(
        origin="guaranteed for both clocks' reading; the driver's 0.3 ms were seen on one H200, driver 580"
    )
    INTERVAL_NS = 1_000_000_000

    def __init__(self, samples: SampleBuffer) -> None:
        super().__init__(samples.nvml, samples.clock, samples.gpu, self.INTERVAL_NS)
        self._samples = samples

    @property
    def lines(self) -> tuple[Line, ...]:
        gpu = self.gpu.name
        bound = QuantityConversion(self.column.name, "clock_bound_s", 1e-9)
        offset = QuantityConversion(self.column.name, "clock_offset_s", 1e-9)
        exact = Accuracy(origin="read between two looks at the board's clock")
        return (
            Line(self.name, gpu, bound, Provenance.MEASURED, self.accuracy, self.description),
            Line(f"{gpu}.wall_offset", gpu, offset, Provenance.MEASURED, exact, "wall clock minus the board's clock"),
        )

    def poll(self) -> None:
        tie = self._samples.stamps.tie
        if tie.t_ns > self.output.last_ns:
            self.output.last_ns = tie.t_ns
            self.output.builder.append(tie.t_ns, (0, 0), (0, 0), ((self._samples.take_bound_ns(), tie.wall_ahead_ns),))
