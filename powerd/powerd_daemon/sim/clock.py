"""A clock that moves only when somebody sleeps: hours of measurement in seconds, and no test that waits."""

from __future__ import annotations


class VirtualClock:
    """Satisfies `powerd_daemon.clock.Clock`. Its wall clock runs ``wall_offset_ns`` ahead of the monotonic one."""

    def __init__(self, t_ns: int = 1_000_000_000, wall_offset_ns: int = 1_700_000_000_000_000_000) -> None:
        self.t_ns = t_ns
        self.wall_offset_ns = wall_offset_ns

    def now_ns(self) -> int:
        return self.t_ns

    def wall_ns(self) -> int:
        return self.t_ns + self.wall_offset_ns

    def sleep_until(self, t_ns: int) -> None:
        self.t_ns = max(self.t_ns, t_ns)

    def spin_until(self, t_ns: int) -> None:
        self.sleep_until(t_ns)
