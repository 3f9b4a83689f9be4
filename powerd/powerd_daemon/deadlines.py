"""Absolute deadlines: a loop that is late once is not late for ever."""

from __future__ import annotations

from powerd_daemon.lateness import Lateness


class Deadlines:
    """Moments ``period_ns`` apart on a grid that never drifts. One that was slept through is skipped and counted."""

    def __init__(self, first_ns: int, period_ns: int) -> None:
        if period_ns < 1:
            raise ValueError(f"a period of {period_ns} ns")
        self.first_ns = first_ns
        self.period_ns = period_ns
        self.next_ns = first_ns
        self.missed = 0
        self.lateness = Lateness()
        """Of the deadlines that were met, behind each of which others may have been missed."""
        self._latest_ns = first_ns

    @property
    def met(self) -> int:
        return self.lateness.count

    @property
    def rate_hz(self) -> float:
        """Achieved rate from the first deadline to the latest that was met; 0 before there are two."""
        elapsed_ns = self._latest_ns - self.first_ns
        return (self.met - 1) * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0

    def meet(self, now_ns: int) -> int:
        """The work of the current deadline begins at ``now_ns``. Returns how many deadlines behind it were missed."""
        late_ns = max(now_ns - self.next_ns, 0)
        skipped = late_ns // self.period_ns
        self.missed += skipped
        self.lateness.add(late_ns)
        self._latest_ns = now_ns
        self.next_ns += (1 + skipped) * self.period_ns
        return skipped

    def restart(self, now_ns: int) -> None:
        """Begin a new grid at ``now_ns``, for instance after an interruption that is accounted for elsewhere."""
        self.next_ns = now_ns
