"""How late things were, for as long as a process lives: mean, deviation and quantiles in memory that does not grow."""

from __future__ import annotations

from math import sqrt

_FINE_BITS = 3
"""Buckets double in width from one octave to the next, and each octave has eight."""
_LAST = (40 << _FINE_BITS) + (1 << _FINE_BITS) - 1
"""The last bucket begins at some two hours; what is later is as good as never."""


class Lateness:
    """Counts of times in ns, none negative.

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
