"""When the driver took its power samples: on a grid, though it stamps many of them late.

On one H200 (driver 580) samples are taken every 20 ms to within 0.1 ms, over minutes. Four in five are stamped at once,
the others up to 15 ms later, and one in a thousand by more than a period. That their values belong to the grid and not
to their stamps was seen with loads that were switched at known times (`benchmarks/bench_folding_gpu.py`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

PERIOD_NS = 20_000_000
ON_TIME_NS = 500_000
"""A sample stamped within this after its moment counts as stamped at once."""
EARLY_NS = 1_000_000
"""None is stamped before its moment by more than this: then the grid is not where it was taken to be."""
LEARNT = 25
"""Samples from which a grid is learnt, half a second,"""
SHARE = 0.5
"""of which so many must have been stamped at once,"""
OFF = 0.25
"""and whose distance, the median, is a period to within this share: a driver that samples every 10, 30 or 50 ms stamps
half of its samples at moments of this grid, too."""
FOLLOWED = 50
"""Latest samples that the grid follows: a second, in which a clock that is slewed by 500 ppm goes 0.5 ms astray."""
WAITED = 5
"""Samples from a moment without one on after which it is believed that there was none."""
GIVEN_UP = 12
"""Samples of which none was stamped at once: they are not of the grid."""


class SampleGrid:
    """Gives samples, by their stamps in order, the moments at which they were taken.

    There is no grid (`is_known`) before `learn` found one, and none after stamps came that cannot be of it.
    """

    def __init__(self) -> None:
        self._origin_ns = 0
        self._base_ns: int | None = None
        """A moment's distance from whole periods after ``_origin_ns``."""
        self._number: int | None = None
        """Of the last sample that has got its moment."""
        self._phases: deque[int] = deque(maxlen=FOLLOWED)
        """Stamps less whole periods since ``_origin_ns``, of the latest samples,"""
        self._sorted: list[int] = []
        """in order of size."""

    @property
    def is_known(self) -> bool:
        return self._base_ns is not None

    def learn(self, stamps_ns: Sequence[int]) -> bool:
        """Find the grid in stamps that are in order. False where there are too few, or on none."""
        self._forget()
        latest = stamps_ns[-FOLLOWED:]
        if len(latest) < LEARNT:
            return False
        if abs(median(b - a for a, b in pairwise(latest)) - PERIOD_NS) > OFF * PERIOD_NS:
            return False
        phases = sorted((t - latest[0]) % PERIOD_NS for t in latest)
        around = phases + [p + PERIOD_NS for p in phases]
        counts = [bisect_left(around, p + ON_TIME_NS) - i for i, p in enumerate(phases)]
        if max(counts) < SHARE * len(latest):
            return False
        self._origin_ns = latest[0] + phases[counts.index(max(counts))] - PERIOD_NS
        self._base_ns = 0
        for t in latest:
            self._follow(t, self._raw_number(t))
        return True

    def moments(self, stamps_ns: Sequence[int]) -> list[int | None]:
        """The moments of the first of these samples, in order; None for one that has got its moment before.

        The last few may be told only with later ones: a sample counts for what it seems when one that was stamped at
        once has come (itself or a later one), and after a moment that seems to have none, when `WAITED` more have come;
        for a sample that is a period late looks like the next one, until that comes as well. Where `GIVEN_UP` samples
        tell nothing, `is_known` becomes false.
        """
        if self._base_ns is None or not stamps_ns:
            return []
        numbers = [self._raw_number(t) for t in stamps_ns]
        at_once = [i for i, t in enumerate(stamps_ns) if t - self._moment(numbers[i]) <= ON_TIME_NS]
        for i in range(len(numbers) - 2, -1, -1):
            numbers[i] = min(numbers[i], numbers[i + 1] - 1)
        before = numbers[0] - 1 if self._number is None else self._number
        left_out = max((i for i, (a, b) in enumerate(pairwise([before, *numbers])) if b - a > 1), default=-1)
        told = at_once[-1] + 1 if at_once else 0
        if left_out >= 0 and len(numbers) - left_out <= WAITED:
            told = min(told, left_out)
        if not told and len(numbers) >= GIVEN_UP:
            self._forget()
        found: list[int | None] = []
        for t, number in zip(stamps_ns[:told], numbers, strict=False):
            self._follow(t, number)
            found.append(self._moment(number) if number > before else None)
        if told:
            self._number = max(before, numbers[told - 1])
        return found

    def _raw_number(self, t_ns: int) -> int:
        """Of the last moment before a stamp."""
        return (t_ns - self._moment(0) + EARLY_NS) // PERIOD_NS

    def _moment(self, number: int) -> int:
        assert self._base_ns is not None
        return self._origin_ns + self._base_ns + number * PERIOD_NS

    def _follow(self, t_ns: int, number: int) -> None:
        if len(self._phases) == FOLLOWED:
            self._sorted.pop(bisect_left(self._sorted, self._phases[0]))
        phase = t_ns - self._origin_ns - number * PERIOD_NS
        self._phases.append(phase)
        insort(self._sorted, phase)
        # They scatter by 0.1 ms, so that a single early one does not count.
        self._base_ns = self._sorted[len(self._sorted) // 5]

    def _forget(self) -> None:
        self._phases.clear()
        self._sorted.clear()
        self._base_ns = self._number = None
