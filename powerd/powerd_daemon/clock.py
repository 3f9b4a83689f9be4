"""The board's clock, and what is measured against it: absolute deadlines and how late they were met.

The clock is injected everywhere, so that tests can run in virtual time.
"""

from __future__ import annotations

import time
from math import sqrt
from typing import Protocol

_FINE_BITS = 3
"""Buckets double in width from one octave to the next, and each octave has eight."""
_LAST = (40 << _FINE_BITS) + (1 << _FINE_BITS) - 1
"""The last bucket begins at some two hours; what is later is as good as never."""


class Clock(Protocol):
    """Nanoseconds of the monotonic clock, of the wall clock, and waiting for a moment of the first."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int: ...

    def sleep_until(self, t_ns: int) -> None: ...


class SystemClock:
    """CLOCK_MONOTONIC_RAW of this machine; see `powerd_core.model.CLOCK_NAME` for why."""

    def now_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    def wall_ns(self) -> int:
        return time.time_ns()

    def sleep_until(self, t_ns: int) -> None:
        # The kernel sleeps by the slewed clock; over one sleep the difference is below a microsecond a second.
        wait_ns = t_ns - self.now_ns()
        if wait_ns > 0:
            time.sleep(wait_ns * 1e-9)


class LatencyHistogram:
    """Mean, deviation and quantiles of times in ns, none negative, in memory that does not grow.

    Sums are whole numbers of any size, so the deviation loses no digits after days. A quantile comes from a histogram
    whose buckets grow with the time: it is never below the true one, and above it by at most an eighth.
    """

    def __init__(self) -> None:
        self.count = 0
        self.max_ns = 0
        self._sum_ns = 0
        self._squares_ns2 = 0
        self._buckets = [0] * (_LAST + 1)

    def add(self, late_ns: int) -> None:
        """Take one in. Part of the scan's loop."""
        self.count += 1
        self._sum_ns += late_ns
        self._squares_ns2 += late_ns * late_ns
        self.max_ns = max(self.max_ns, late_ns)
        octave = late_ns.bit_length() - _FINE_BITS - 1
        at = late_ns if octave <= 0 else (octave << _FINE_BITS) + (late_ns >> octave)
        self._buckets[at if at < _LAST else _LAST] += 1

    @property
    def mean_ns(self) -> float:
        return self._sum_ns / self.count if self.count else 0.0

    @property
    def deviation_ns(self) -> float:
        """Standard deviation of all that was taken in."""
        if not self.count:
            return 0.0
        return sqrt(self.count * self._squares_ns2 - self._sum_ns * self._sum_ns) / self.count

    def quantile_ns(self, share: float) -> int:
        """At least ``share`` (0 to 1) of all times are at most this; 0 before there are any."""
        wanted = share * self.count
        passed = 0
        for at, number in enumerate(self._buckets[:_LAST]):
            passed += number
            if number and passed >= wanted:
                return min(_upper_ns(at), self.max_ns)
        return self.max_ns


def _upper_ns(at: int) -> int:
    """The longest time that falls into a bucket."""
    octave = max((at >> _FINE_BITS) - 1, 0)
    return ((at - (octave << _FINE_BITS) + 1) << octave) - 1


class Deadlines:
    """Moments ``period_ns`` apart on a grid that never drifts: a loop that is late once is not late for ever.

    A moment that was slept through is skipped and counted.
    """

    def __init__(self, first_ns: int, period_ns: int) -> None:
        self.first_ns = first_ns
        self.period_ns = period_ns
        self.next_ns = first_ns
        self.missed = 0
        self.lateness = LatencyHistogram()
        """Of the deadlines that were met, behind each of which others may have been missed."""
        self._latest_ns = first_ns

    @property
    def rate_hz(self) -> float:
        """Achieved rate from the first deadline to the latest that was met; 0 before there are two."""
        elapsed_ns = self._latest_ns - self.first_ns
        return (self.lateness.count - 1) * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0

    def meet(self, now_ns: int) -> int:
        """The work of the current deadline begins at ``now_ns``. Returns how many deadlines behind it were missed."""
        late_ns = max(now_ns - self.next_ns, 0)
        skipped = late_ns // self.period_ns
        self.missed += skipped
        self.lateness.add(late_ns)
        self._latest_ns = now_ns
        self.next_ns += (1 + skipped) * self.period_ns
        return skipped
