"""How long a fault lasts and how much is measured: short for every day, long for the soak."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS_PER_S, FRAME_BYTES = 50, 256
"""Of powerd's ring: a block's header and what it keeps beside it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How long and how much."""

    length_s: float
    """A fault's duration."""
    lines: int
    rate_hz: float
    clients: int
    before_steps: int
    after_steps: int

    def ring_mib(self, share: float) -> float:
        """A ring that lasts ``share`` times a fault, as `powerd_daemon.status.ring_seconds` reckons."""
        scan_bytes = 8 + 10 * self.lines
        bytes_per_s = BLOCKS_PER_S * FRAME_BYTES + scan_bytes * self.rate_hz
        return share * self.length_s * bytes_per_s / (1 << 20)


QUICK = Scale(length_s=2.0, lines=4, rate_hz=500.0, clients=1, before_steps=40, after_steps=40)
FULL = Scale(length_s=30.0, lines=8, rate_hz=1000.0, clients=3, before_steps=300, after_steps=300)
