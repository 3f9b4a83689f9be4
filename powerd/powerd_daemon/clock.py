"""The board's clock, injected everywhere so that tests can run in virtual time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Nanoseconds of the monotonic clock, of the wall clock, and waiting for a moment of the first."""

    def now_ns(self) -> int: ...

    def wall_ns(self) -> int: ...

    def sleep_until(self, t_ns: int) -> None: ...

    def spin_until(self, t_ns: int) -> None:
        """Wait awake: to the microsecond, at the price of a core."""
        ...


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

    def spin_until(self, t_ns: int) -> None:
        now = time.clock_gettime_ns
        while now(time.CLOCK_MONOTONIC_RAW) < t_ns:
            pass
