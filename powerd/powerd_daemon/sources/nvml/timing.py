"""When the driver took its power samples: the grid that they are on, and the clock that stamps them.

On two H200 (driver 580) samples are taken every 20 ms to within 0.1 ms, over minutes. Four in five are stamped at once
on the one and half of them on the other, the rest up to 15 ms later, and one in a thousand by more than a period; up to
one instant in thirty has no sample. That the values belong to the grid and not to their stamps was seen with loads that
were switched at known times (`benchmarks/bench_folding_gpu.py`).

The stamps keep to the wall clock, but seem to do so by a comparison that the driver makes once in several seconds: then
those of the whole buffer move together, by up to 4 us in a minute of an even wall clock. The newest sample is never
ahead of its time and up to 25 ms old. What a step does to the stamps was not tried there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from powerd_daemon.clock import Clock

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
LATE_PERIODS = 2
"""No sample is stamped later than this many periods after its instant."""
SLOW = 1.2
"""`FOLLOWED` samples that are farther apart than this many periods, on average, are taken at another pace: where up to
one instant in thirty has no sample, it was 1.11 at most in 150 s."""
JITTER_NS = 300_000
"""The farthest that the stamp of one sample was seen to move from read to read."""
SLEW = 1e-3
"""Twice the 500 ppm by which the kernel slews the wall clock: what is quicker is taken for a step."""
FOLLOW_NS = 1_000_000_000
COMPARISONS = 10
"""The driver's last comparison is taken to be at most this many times `FOLLOW_NS` ago."""
EARLY_NS, LATE_NS = 2_000_000, 100_000_000
"""After a step, a newest sample younger or older than these shows that the stamps did not follow it."""
SAME_NS = 3_000_000
"""Stamps closer than this are of one sample."""


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
        """Stamps less whole periods since ``_origin_ns``, of the latest samples,"""
        self._sorted: list[int] = []
        """in order of size."""
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

    def learn_again(self, stamps_ns: Sequence[int]) -> list[int | None]:
        """Learn from samples without instants; then as `instants`, None also for the older ones, which may be of a time
        of another pace. Nothing is given where there is still no grid."""
        if not self.learn(stamps_ns) or _is_slow(stamps_ns[-GRID_FOLLOWED:][:LEARNT]):
            self._forget()
            return []
        older = max(len(stamps_ns) - LEARNT, 0)
        return [*[None] * older, *self.instants(stamps_ns[older:])]

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
        ripe = self._ripe(numbers, at_once, before)
        again = sum(number <= before for number in numbers[:ripe])
        if (
            (not ripe and len(numbers) >= GIVEN_UP)
            or any(a - b > LATE_PERIODS for a, b in zip(raw, numbers, strict=True))
            or any(b <= before < a for a, b in zip(raw, numbers, strict=True))
            or (again and not self._may_come_again(again, at_once))
            or _is_slow([*self._latest, *stamps_ns][-GRID_FOLLOWED:])
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

    @staticmethod
    def _ripe(numbers: Sequence[int], at_once: Sequence[int], before: int) -> int:
        """How many of the first samples count for what they seem."""
        holes = (i for i, (a, b) in enumerate(pairwise([before, *numbers])) if b - a > 1 and len(numbers) - i <= WAITED)
        hole = next(holes, len(numbers))
        return min(at_once[-1] + 1, hole) if at_once else 0

    def _may_come_again(self, count: int, at_once: Sequence[int]) -> bool:
        """Whether the first samples may be the last one once more, under another stamp: once in a while, and with the
        next one at its instant. More often, there are more samples than instants."""
        return count == 1 and self._since_again >= GRID_FOLLOWED and 1 in at_once

    def _raw_number(self, t_ns: int) -> int:
        """Of the last instant before a stamp."""
        return (t_ns - self._instant(0) + INSTANT_EARLY_NS) // PERIOD_NS

    def _instant(self, number: int) -> int:
        assert self._base_ns is not None
        return self._origin_ns + self._base_ns + number * PERIOD_NS

    def _follow(self, t_ns: int, number: int) -> None:
        if len(self._phases) == GRID_FOLLOWED:
            self._sorted.pop(bisect_left(self._sorted, self._phases[0]))
        self._latest.append(t_ns)
        phase = t_ns - self._origin_ns - number * PERIOD_NS
        self._phases.append(phase)
        insort(self._sorted, phase)
        # They scatter by 0.1 ms, so that a single early one does not count.
        self._base_ns = self._sorted[len(self._sorted) // 5]

    def _forget(self) -> None:
        self._phases.clear()
        self._sorted.clear()
        self._latest.clear()
        self._base_ns = self._number = None


def _is_slow(stamps_ns: Sequence[int]) -> bool:
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

    A step of the wall clock reaches the stamps with the driver's next comparison, or never: what was stamped until
    that is due has no known time.
    """

    def __init__(self, clock: Clock) -> None:
        self.tie = tie_clocks(clock)
        self.stepped_ns: int | None = None
        """When the wall clock was last seen to be set."""
        self._recent: deque[int] = deque([self.tie.wall_ahead_ns], maxlen=COMPARISONS)
        self._noted_ns = self.tie.t_ns

    @property
    def is_settled(self) -> bool:
        """Whether the driver has compared its clock since the last step."""
        return self.stepped_ns is None or self.tie.t_ns - self.stepped_ns >= COMPARISONS * FOLLOW_NS

    @property
    def half_ns(self) -> int:
        """How far the tie may be off for stamps: its width, jitter, and slewing since the driver's last comparison."""
        among = (*self._recent, self.tie.wall_ahead_ns)
        return self.tie.half_ns + JITTER_NS + max(among) - min(among)

    def follow(self, tie: ClockTie) -> None:
        """Go on to a later tie."""
        if tie.stepped_since(self.tie):
            self.stepped_ns = tie.t_ns
            self._recent.clear()
        self.tie = tie
        if tie.t_ns - self._noted_ns >= FOLLOW_NS:
            self._noted_ns = tie.t_ns
            self._recent.append(tie.wall_ahead_ns)

    def is_likely(self, stamp_ns: int, begin_ns: int, end_ns: int) -> bool:
        """Whether a newest stamp of a read from ``begin_ns`` to ``end_ns`` (all of the board's clock) may be right."""
        return self.stepped_ns is None or begin_ns - LATE_NS <= stamp_ns <= end_ns + EARLY_NS
