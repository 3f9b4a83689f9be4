"""The driver's buffer of power samples of one GPU: when they were taken, and how well that is known.

On two H200 (driver 580) samples are taken every 20 ms to within 0.1 ms, over minutes. Four in five are stamped at once
on the one and half of them on the other, the rest up to 15 ms later, and one in a thousand by more than a period; up to
one instant in thirty has no sample. That the values of samples less than 10 ms late belong to the grid and not to their
stamps was seen with loads that were switched at known times.

The stamps keep to the wall clock, but seem to do so by a comparison that the driver makes once in several seconds: then
those of the whole buffer move together, by up to 4 us in a minute of an even wall clock. The newest sample is never
ahead of its time and up to 25 ms old. What a step does to the stamps was not tried there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from powerd_core.model import Accuracy, Column, Flag, Line, QuantityConversion
from powerd_daemon.clock import Clock
from powerd_daemon.sources.nvml.api import ARCH_HOPPER, NOT_SUPPORTED, Nvml, NvmlRefused
from powerd_daemon.sources.nvml.quantities import FILTER_NS, FITTED, UNKNOWN, Gpu, Quantity

PERIOD_NS = 20_000_000
ON_TIME_NS = 500_000
"""A sample stamped within this after its instant counts as stamped at once."""
INSTANT_EARLY_NS = 1_000_000
"""None is stamped before its instant by more than this: then the grid is not where it was taken to be."""
LEARNT = 25
"""Samples from which a grid is learnt, half a second,"""
SHARE = 0.25
"""of which so many must have been stamped at once (of fifty in a row 30 to 80 % were, on the worse of two H200),"""
OFF = 0.2
"""and whose distance, the median, is a period to within this share: a driver that samples every 10, 30 or 50 ms stamps
half of its samples at instants of this grid, too."""
GRID_FOLLOWED = 50
"""Latest samples that the grid follows: a second, in which a clock that is slewed by 500 ppm goes 0.5 ms astray."""
WAITED = 5
"""Samples from an instant without one on after which it is believed that there was none."""
GIVEN_UP = 12
"""Samples of which none was stamped at once: they are not of the grid."""
OTHER_INSTANT_NS = 10_000_000
"""Samples stamped at least this late are left out. In random loads on two H200 they were one in twenty, and off by 60
to 100 W where the others were by 5: the values of those stamped 13 to 15 ms late were those of 11 ms after their
instants, and nobody knows why."""
LATE_PERIODS = 2
"""No sample is stamped later than this many periods after its instant."""
SLOW = 1.2
"""Samples that are farther apart than this many periods, on average, are taken at another pace: where up to one instant
in thirty has no sample, it was 1.11 at most in 150 s."""
JITTER_NS = 300_000
"""The farthest that the stamp of one sample was seen to move from read to read."""
SLEW = 1e-3
"""Twice the 500 ppm by which the kernel slews the wall clock: what is quicker is taken for a step."""
FOLLOW_NS = 1_000_000_000
COMPARISONS = 10
"""The driver's last comparison is taken to be at most this many times `FOLLOW_NS` ago."""
EARLY_NS, LATE_NS = 2_000_000, 100_000_000
"""A newest sample younger or older than these is at a wrong time, or the buffer stands still."""
SAME_NS = 3_000_000
"""Stamps closer than this are of one sample."""
VOTES = 3
"""Samples in a row that must be too old for a step, since one can be late by itself. None is early by itself."""
BUFFER_NS = 3_000_000_000
"""More than the driver's buffer holds."""
LOOKS = 60
"""Samples whose least age tells a step of less than `LATE_NS`,"""
CLEAR_NS = 3_000_000
"""for it is always the same to within this."""
HALF_LATE_NS = 7_500_000
"""Where samples are on no grid, they are taken to be stamped late by this, give or take as much."""
SILENCE_NS = 500_000_000
"""So long without a sample is told."""
FILL_NS = 600_000_000
"""How long a driver that was loaded just now is given to fill its buffer."""
DAY_NS = 86_400_000_000_000


class SampleGrid:
    """Gives samples, by their stamps in order, the instants at which they were taken.

    There is no grid (`is_known`) before `learn` found one, and none after stamps came that cannot be of it.
    """

    def __init__(self) -> None:
        self._origin_ns = 0
        self._base_ns: int | None = None
        """An instant's distance from whole periods after ``_origin_ns``."""
        self._number: int | None = None
        """Of the last sample that has got its instant."""
        self._phases: deque[int] = deque(maxlen=GRID_FOLLOWED)
        """Stamps less whole periods since ``_origin_ns``, of the latest samples."""
        self._latest: deque[int] = deque(maxlen=GRID_FOLLOWED)
        """Stamps of the latest samples that have got their instants."""
        self._since_again = 0
        """Samples since one that seemed to come again."""

    @property
    def is_known(self) -> bool:
        return self._base_ns is not None

    def learn(self, stamps_ns: Sequence[int]) -> bool:
        """Find the grid in stamps that are in order. False where there are too few, or on none."""
        self._forget()
        latest = stamps_ns[-GRID_FOLLOWED:]
        if len(latest) < LEARNT:
            return False
        if abs(median(b - a for a, b in pairwise(latest)) - PERIOD_NS) > OFF * PERIOD_NS:
            return False
        if latest[-1] - latest[0] < (len(latest) - 1) * PERIOD_NS - 3 * PERIOD_NS // 2:
            return False  # more samples than instants: some of them are from a time of another pace
        phases = sorted((t - latest[0]) % PERIOD_NS for t in latest)
        around = phases + [p + PERIOD_NS for p in phases]
        counts = [bisect_left(around, p + ON_TIME_NS) - i for i, p in enumerate(phases)]
        if max(counts) < SHARE * len(latest):
            return False
        self._origin_ns = latest[0] + phases[counts.index(max(counts))] - PERIOD_NS
        self._base_ns = 0
        # All numbers before the base follows any of them: after the first few samples alone it may stand at late ones.
        for t, number in [(t, self._raw_number(t)) for t in latest]:
            self._follow(t, number)
        self._since_again = GRID_FOLLOWED
        return True

    def instants(self, stamps_ns: Sequence[int]) -> list[int | None]:
        """The instants of the first of these samples, in order; None for one that has got its instant before.

        The last few may be given only with later ones: a sample counts for what it seems when one that was stamped at
        once has come (itself or a later one), and after an instant that seems to have none, when `WAITED` more have
        come; for a sample that is a period late looks like the next one, until that comes as well. Where `GIVEN_UP`
        samples tell nothing, or the samples cannot be one for each instant, `is_known` becomes false and nothing is
        given.
        """
        if self._base_ns is None or not stamps_ns:
            return []
        raw = [self._raw_number(t) for t in stamps_ns]
        at_once = [i for i, t in enumerate(stamps_ns) if t - self._instant(raw[i]) <= ON_TIME_NS]
        numbers = raw.copy()
        for i in range(len(numbers) - 2, -1, -1):
            numbers[i] = min(numbers[i], numbers[i + 1] - 1)
        before = numbers[0] - 1 if self._number is None else self._number
        steps = enumerate(pairwise([before, *numbers]))
        hole = next((i for i, (a, b) in steps if b - a > 1 and len(numbers) - i <= WAITED), len(numbers))
        ripe = min(at_once[-1] + 1, hole) if at_once else 0
        again = sum(number <= before for number in numbers[:ripe])
        # One sample may come once more under another stamp: once in a while, and with the next one at its instant.
        may_come_again = again == 1 and self._since_again >= GRID_FOLLOWED and 1 in at_once
        if (
            (not ripe and len(numbers) >= GIVEN_UP)
            or any(a - b > LATE_PERIODS or b <= before < a for a, b in zip(raw, numbers, strict=True))
            or (again and not may_come_again)
            or is_slow([*self._latest, *stamps_ns][-GRID_FOLLOWED:])
        ):
            self._forget()
            return []
        instants: list[int | None] = []
        for t, number in zip(stamps_ns[:ripe], numbers, strict=False):
            self._follow(t, number)
            instants.append(self._instant(number) if number > before else None)
        if ripe:
            self._number = max(before, numbers[ripe - 1])
        self._since_again = ripe - again if again else self._since_again + ripe
        return instants

    def _raw_number(self, t_ns: int) -> int:
        """Of the last instant before a stamp."""
        return (t_ns - self._instant(0) + INSTANT_EARLY_NS) // PERIOD_NS

    def _instant(self, number: int) -> int:
        assert self._base_ns is not None
        return self._origin_ns + self._base_ns + number * PERIOD_NS

    def _follow(self, t_ns: int, number: int) -> None:
        self._latest.append(t_ns)
        self._phases.append(t_ns - self._origin_ns - number * PERIOD_NS)
        # They scatter by 0.1 ms, so that a single early one does not count.
        self._base_ns = sorted(self._phases)[len(self._phases) // 5]

    def _forget(self) -> None:
        self._phases.clear()
        self._latest.clear()
        self._base_ns = self._number = None


def is_slow(stamps_ns: Sequence[int]) -> bool:
    """Whether so many samples are too far apart for the grid. A driver that takes them more quickly has more than one
    for an instant, which shows at once."""
    count = len(stamps_ns) - 1
    return count >= LEARNT - 1 and stamps_ns[-1] - stamps_ns[0] > SLOW * count * PERIOD_NS


@dataclass(frozen=True, slots=True)
class ClockTie:
    """Wall clock minus board clock at the board time ``t_ns``, certain to within ``half_ns``."""

    t_ns: int
    wall_ahead_ns: int
    half_ns: int

    def stepped_since(self, before: ClockTie) -> bool:
        """Whether the wall clock was set, by more than the two ties and slewing leave open."""
        open_ns = self.half_ns + before.half_ns + JITTER_NS + round((self.t_ns - before.t_ns) * SLEW)
        return abs(self.wall_ahead_ns - before.wall_ahead_ns) > open_ns


def tie_clocks(clock: Clock, attempts: int = 3) -> ClockTie:
    """The tightest of a few readings of both clocks. The wall clock was read somewhere within its width."""
    readings = []
    for _ in range(attempts):
        before_ns, wall_ns, after_ns = clock.now_ns(), clock.wall_ns(), clock.now_ns()
        middle_ns = (before_ns + after_ns) // 2
        readings.append((after_ns - before_ns, middle_ns, wall_ns - middle_ns))
    width_ns, t_ns, ahead_ns = min(readings)
    return ClockTie(t_ns, ahead_ns, (width_ns + 1) // 2)


class StampClock:
    """How far the stamps are ahead of the board's clock, through slewing and steps of the wall clock.

    A step of the wall clock reaches the stamps later, or never. It is left out (``untaken_ns``) until the newest sample
    shows that the stamps made it: with the step left out, its age is then off by the whole step. Where the ages cannot
    tell yet, the step is in `half_ns`.
    """

    def __init__(self, clock: Clock) -> None:
        self.tie = tie_clocks(clock)
        self.untaken_ns = 0
        self._is_open = False
        """Whether the ages cannot tell yet."""
        self._newest_us = self._votes = 0
        self._ages_ns: deque[int] = deque(maxlen=LOOKS)
        self._usual_age_ns: int | None = None
        """The least before the step."""
        self._recent_ns: deque[int] = deque([self.tie.wall_ahead_ns], maxlen=COMPARISONS)
        self._noted_ns = self.tie.t_ns
        self._taken_ns = self.tie.t_ns - BUFFER_NS

    @property
    def is_settled(self) -> bool:
        """Whether the stamps of the whole buffer are known to be on one side of every step."""
        return not self.untaken_ns and self.tie.t_ns - self._taken_ns >= BUFFER_NS

    @property
    def ahead_ns(self) -> int:
        """Stamp minus board time."""
        return self.tie.wall_ahead_ns - self.untaken_ns

    @property
    def half_ns(self) -> int:
        """How far `ahead_ns` may be off: the tie, jitter, slewing since the driver's last comparison, an open step."""
        among = (*self._recent_ns, self.ahead_ns)
        return self.tie.half_ns + JITTER_NS + max(among) - min(among) + (abs(self.untaken_ns) if self._is_open else 0)

    def follow(self, tie: ClockTie) -> None:
        """Go on to a later tie."""
        if tie.stepped_since(self.tie):
            if not self.untaken_ns:
                self._usual_age_ns = min(self._ages_ns) if len(self._ages_ns) == LOOKS else None
            self._ages_ns.clear()
            self.untaken_ns += tie.wall_ahead_ns - self.tie.wall_ahead_ns
            self._is_open = abs(self.untaken_ns) > JITTER_NS
            if not self._is_open:  # set back to where it was
                self.untaken_ns = 0
        self.tie = tie
        if tie.t_ns - self._noted_ns >= FOLLOW_NS:
            self._noted_ns = tie.t_ns
            self._recent_ns.append(self.ahead_ns)

    def look(self, newest_us: int, begin_ns: int, end_ns: int) -> None:
        """Judge an open step by the newest stamp of a read that lasted from ``begin_ns`` to ``end_ns``."""
        if abs(newest_us - self._newest_us) * 1000 < SAME_NS:
            return  # in a buffer that stands still, a sample grows as old as a step would make it
        self._newest_us = newest_us
        t_ns = newest_us * 1000 - self.ahead_ns
        left_out, taken = (begin_ns - LATE_NS <= t <= end_ns + EARLY_NS for t in (t_ns, t_ns - self.untaken_ns))
        if left_out:
            self._ages_ns.append(end_ns - t_ns)
        self._votes = self._votes + 1 if taken and not left_out else 0
        self._is_open = bool(self.untaken_ns) and (taken or not left_out)
        is_told_by_least_age = (
            self._usual_age_ns is not None
            and len(self._ages_ns) == LOOKS
            and abs(self.untaken_ns) >= 2 * CLEAR_NS
            and abs(min(self._ages_ns) + self.untaken_ns - self._usual_age_ns) < CLEAR_NS
        )
        if self._votes >= (1 if t_ns > end_ns else VOTES) or (left_out and taken and is_told_by_least_age):
            self._recent_ns = deque((t + self.untaken_ns for t in self._recent_ns), maxlen=COMPARISONS)
            self.untaken_ns, self._is_open, self._votes, self._taken_ns = 0, False, 0, self.tie.t_ns
            self._ages_ns.clear()


class SampleBuffer(Quantity):
    """The driver's buffer of some 120 samples about 20 ms apart, with timestamps of the wall clock.

    Samples are known again by their stamps on the board's clock, which no setting of the wall clock moves: closer than
    `SAME_NS` they are the same one, for the driver moves the stamps a little; equal values are not. Each gets its
    sampling instant (`SampleGrid`). A read that fails or is left out loses nothing, for the buffer goes back two
    seconds; only `SILENCE_NS` without a sample are flagged, at the beginning of the silence. Samples that the driver
    takes at another pace than the grid's (``lost_grids`` counts that) are none: nobody knows their times well enough.

    The centre of what a sample shows was found 16.0 to 17.3 ms before its instant, on one H200.
    """

    suffix = "nvml_samples"
    description = "power samples from the driver's buffer (NVML, total power)"

    def __init__(self, nvml: Nvml, clock: Clock, gpu: Gpu, interval_ns: int) -> None:
        super().__init__(nvml, clock, gpu, interval_ns)
        self.period_ns = PERIOD_NS
        is_fitted = gpu.architecture == ARCH_HOPPER
        # What is in the buffer already was measured before anybody asked for it.
        samples = self._first_samples(LEARNT if is_fitted else 1)
        if not samples:
            raise NvmlRefused(NOT_SUPPORTED, "the driver's sample buffer is empty")
        self.stamps = StampClock(clock)
        stamps_ns = [t_us * 1000 - self.stamps.ahead_ns for t_us, _ in samples]
        self._widest_ns = 0
        self._seen_ns = stamps_ns[-1]
        """Stamp of the last sample that was taken up, on the board's clock."""
        self._heard_ns = clock.now_ns()
        """When a sample came last."""
        if abs(self._heard_ns - self._seen_ns) > DAY_NS:
            # Some drivers are said to count from the start of the machine.
            raise NvmlRefused(NOT_SUPPORTED, "the driver's samples are stamped by another clock than the wall clock")
        self.lost_grids = self.late_samples = 0
        self._grid = SampleGrid()
        self._is_on_grid = is_fitted and self._grid.learn(stamps_ns)
        late_ns, note = (0, "") if self._is_on_grid else (HALF_LATE_NS, "; stamps are on no grid")
        if self.response is not None and self._is_on_grid == is_fitted:
            self.accuracy = self.identified(self.response)
            return
        self.response = None
        if not is_fitted:
            origin = f"{self.gain_origin}; response assumed: {UNKNOWN}"
            self.accuracy = Accuracy(self.u_gain, 0.0, 1e-3, 100_000_000, 50_000_000, 0, origin)
            return
        self.age_ns = 16_500_000 + late_ns
        origin = f"{self.gain_origin}; response assumed: {FITTED}{note}"
        self.accuracy = Accuracy(self.u_gain, 0.0, 1e-3, 1_000_000, 1_000_000 + late_ns, 0, origin, FILTER_NS)

    def _first_samples(self, enough: int) -> list[tuple[int, int]]:
        """The buffer, once it holds what a grid is learnt from.

        Where nothing else keeps the driver loaded (persistence mode), asking for the GPU has loaded it just now, and
        its buffer is still empty. Raises `NvmlRefused`.
        """
        until_ns = self.clock.now_ns() + FILL_NS
        while len(samples := self.nvml.samples(self.gpu.handle, 0)) < enough and self.clock.now_ns() < until_ns:
            self.clock.sleep_until(self.clock.now_ns() + PERIOD_NS)
        return samples

    def poll(self) -> None:
        before = tie_clocks(self.clock)
        self.stamps.follow(before)
        begin_ns = self.clock.now_ns()
        # About a step, what is new may have stamps before those already seen, and what was seen stamps after it.
        newer_us = (self._seen_ns + self.stamps.ahead_ns) // 1000 if self.stamps.is_settled else 0
        samples: list[tuple[int, int]] = []
        silence = Flag.MISSING
        try:
            samples = self.nvml.samples(self.gpu.handle, newer_us)
        except NvmlRefused:
            self.refused += 1
            silence = Flag.IO_ERROR
        now_ns = self.clock.now_ns()
        if tie_clocks(self.clock).stepped_since(before):
            samples = []  # from before or after the step: the next read tells
        if samples:
            self.stamps.look(samples[-1][0], begin_ns, now_ns)
        new = self._new(samples, now_ns)
        for (stamp_ns, value), t_ns in zip(new, self._instants([t for t, _ in new]), strict=False):
            self._seen_ns = stamp_ns
            if t_ns is not None:
                self._heard_ns = now_ns
                if stamp_ns - t_ns >= OTHER_INSTANT_NS:
                    self.late_samples += 1
                    continue
                self._widest_ns = max(self._widest_ns, self.stamps.half_ns)
                # A GPU that can be asked takes some power: 0 is what a driver says that does not know.
                self.output.append(t_ns - self.age_ns, value, 0 if value else Flag.MISSING)
        if now_ns - self._heard_ns >= SILENCE_NS:
            self._heard_ns = now_ns
            self.output.append(max(self.output.last_ns + 1, now_ns - self.age_ns - SILENCE_NS), 0, silence)

    def _new(self, samples: list[tuple[int, int]], now_ns: int) -> list[tuple[int, int]]:
        """Samples not seen before, by their stamps on the board's clock."""
        # Before a stamp that is later than the next one's, stamps are of the time before a step back.
        backs = [i for i, ((a, _), (b, _)) in enumerate(pairwise(samples), 1) if a * 1000 > b * 1000 + SAME_NS]
        new, last_ns = [], self._seen_ns
        for t_us, value in samples[backs[-1] if backs else 0 :]:
            t_ns = t_us * 1000 - self.stamps.ahead_ns
            if last_ns + SAME_NS <= t_ns <= now_ns:
                last_ns = t_ns
                new.append((t_ns, value))
        return new

    def _instants(self, stamps_ns: list[int]) -> Sequence[int | None]:
        """When the first of these samples were taken. The rest stays in the driver's buffer for the next look."""
        if not self._is_on_grid:
            return stamps_ns
        if self._grid.is_known:
            instants = self._grid.instants(stamps_ns)
            self.lost_grids += not self._grid.is_known
            return instants
        if is_slow(stamps_ns[-GRID_FOLLOWED:][:LEARNT]) or not self._grid.learn(stamps_ns):
            return []
        # Older ones may be of a time of another pace, and then nobody knows their instants.
        older = max(len(stamps_ns) - LEARNT, 0)
        if older:
            self.output.append(stamps_ns[0] - self.age_ns, 0, Flag.MISSING)
        return [*[None] * older, *self._grid.instants(stamps_ns[older:])]

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
    conversion = QuantityConversion("ns", "clock_bound_s", 1e-9)
    description = "within what the samples' stamps are tied to the board's clock: the most since the reading before"
    accuracy = Accuracy(
        origin="guaranteed for both clocks' reading; the driver's 0.3 ms were seen on one H200, driver 580"
    )

    def __init__(self, samples: SampleBuffer) -> None:
        super().__init__(samples.nvml, samples.clock, samples.gpu, 1_000_000_000)
        self._samples = samples

    @property
    def lines(self) -> tuple[Line, ...]:
        offset = QuantityConversion("ns", "clock_offset_s", 1e-9)
        exact = Accuracy(origin="read between two looks at the board's clock")
        return *super().lines, self.line("wall_offset", offset, exact, "wall clock minus the board's clock")

    def poll(self) -> None:
        tie = self._samples.stamps.tie
        if tie.t_ns > self.output.last_ns:
            self.output.last_ns = tie.t_ns
            self.output.builder.append(tie.t_ns, (0, 0), (0, 0), ((self._samples.take_bound_ns(), tie.wall_ahead_ns),))
