"""The clock that the driver stamps its power samples with, tied to the board's by way of the wall clock.

On one H200 (driver 580) the stamps keep to the wall clock, but seem to do so by a comparison that the driver makes once
in several seconds: then those of the whole buffer move together, by up to 4 us in a minute of an even wall clock. The
newest sample is never ahead of its time and up to 25 ms old. What a step does to the stamps was not tried there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from powerd_daemon.clock import Clock

JITTER_NS = 300_000
"""The farthest that the stamp of one sample was seen to move from read to read."""
SLEW = 1e-3
"""Twice the 500 ppm by which the kernel slews the wall clock: what is quicker is taken for a step."""
FOLLOW_NS = 1_000_000_000
FOLLOWED = 10
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
"""Samples whose least age tells a step of less than `LATE_NS`."""
CLEAR_NS = 3_000_000
"""The least age of `LOOKS` samples is always the same to within this."""


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
    best: tuple[int, int, int] | None = None
    for _ in range(attempts):
        before_ns, wall_ns, after_ns = clock.now_ns(), clock.wall_ns(), clock.now_ns()
        middle_ns = (before_ns + after_ns) // 2
        found = after_ns - before_ns, middle_ns, wall_ns - middle_ns
        best = found if best is None else min(best, found)
    assert best is not None
    width_ns, t_ns, ahead_ns = best
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
        self._newest_us = self._votes = 0
        self._ages: deque[int] = deque(maxlen=LOOKS)
        self._usual_ns: int | None = None
        self._recent: deque[int] = deque([self.tie.wall_ahead_ns], maxlen=FOLLOWED)
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
        among = (*self._recent, self.ahead_ns)
        return self.tie.half_ns + JITTER_NS + max(among) - min(among) + (abs(self.untaken_ns) if self._is_open else 0)

    def follow(self, tie: ClockTie) -> None:
        """Go on to a later tie."""
        if tie.stepped_since(self.tie):
            if not self.untaken_ns:
                self._usual_ns = min(self._ages) if len(self._ages) == LOOKS else None
            self._ages.clear()
            self.untaken_ns += tie.wall_ahead_ns - self.tie.wall_ahead_ns
            self._is_open = True
            if abs(self.untaken_ns) <= JITTER_NS:  # set back to where it was
                self.untaken_ns, self._is_open = 0, False
        self.tie = tie
        if tie.t_ns - self._noted_ns >= FOLLOW_NS:
            self._noted_ns = tie.t_ns
            self._recent.append(self.ahead_ns)

    def look(self, newest_us: int, begin_ns: int, end_ns: int) -> None:
        """Judge an open step by the newest stamp of a read that lasted from ``begin_ns`` to ``end_ns``."""
        if abs(newest_us - self._newest_us) * 1000 < SAME_NS:
            return  # in a buffer that stands still, a sample grows as old as a step would make it
        self._newest_us = newest_us
        t_ns = newest_us * 1000 - self.ahead_ns

        def is_likely(t_ns: int) -> bool:
            return begin_ns - LATE_NS <= t_ns <= end_ns + EARLY_NS

        left_out, taken = is_likely(t_ns), is_likely(t_ns - self.untaken_ns)
        if left_out:
            self._ages.append(end_ns - t_ns)
        self._votes = self._votes + 1 if taken and not left_out else 0
        self._is_open = bool(self.untaken_ns) and (taken or not left_out)
        is_early = t_ns > end_ns
        if self._votes >= (1 if is_early else VOTES) or (left_out and taken and self._least_age_is_of_a_step()):
            self._take()

    def _least_age_is_of_a_step(self) -> bool:
        if self._usual_ns is None or len(self._ages) < LOOKS or abs(self.untaken_ns) < 2 * CLEAR_NS:
            return False
        return abs(min(self._ages) + self.untaken_ns - self._usual_ns) < CLEAR_NS

    def _take(self) -> None:
        self._recent = deque((ahead_ns + self.untaken_ns for ahead_ns in self._recent), maxlen=FOLLOWED)
        self.untaken_ns, self._is_open, self._votes, self._taken_ns = 0, False, 0, self.tie.t_ns
        self._ages.clear()
