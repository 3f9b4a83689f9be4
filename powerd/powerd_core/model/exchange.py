"""The clock of every timestamp, and one comparison of two of them."""

from __future__ import annotations

from dataclasses import dataclass

CLOCK_NAME = "CLOCK_MONOTONIC_RAW"
"""The clock of every timestamp on every machine. Time daemons slew CLOCK_MONOTONIC by up to 500 ppm,
which would break the guaranteed bound of a clock mapping; they leave this one alone."""


@dataclass(frozen=True, slots=True)
class ClockExchange:
    """Four timestamps: client sends (t1), board receives (t2) and replies (t3), client receives (t4).

    t1 and t4 are read on the host's clock, t2 and t3 on the board's, all in nanoseconds.
    """

    epoch: int
    t1_host_ns: int
    t2_board_ns: int = 0
    t3_board_ns: int = 0
    t4_host_ns: int = 0

    @property
    def offset_ns(self) -> float:
        """Best single estimate of host clock minus board clock."""
        return (self.t1_host_ns - self.t2_board_ns + self.t4_host_ns - self.t3_board_ns) / 2

    @property
    def delay_ns(self) -> int:
        """Time on the wire, both ways. The true offset lies in ``offset_ns ± delay_ns / 2``."""
        return (self.t4_host_ns - self.t1_host_ns) - (self.t3_board_ns - self.t2_board_ns)

    @property
    def t_board_ns(self) -> int:
        """The board's time at the middle of the exchange."""
        return (self.t2_board_ns + self.t3_board_ns) // 2
