"""How well readings came in: frames, bytes, their age on arrival, and what the recorder cost."""

from __future__ import annotations

import time
from math import exp, log

_STEP = log(1.05)


class Reception:
    """Counts of what arrived; ages in a histogram with steps of 5 %, so that a long run takes no more memory."""

    def __init__(self) -> None:
        self.frames = 0
        self.bytes = 0
        self._ages: dict[int, int] = {}
        self._oldest_ns = 0
        self._begun = time.monotonic()
        self._cpu = time.process_time()

    def add(self, size: int, age_ns: float) -> None:
        """A frame of ``size`` bytes whose oldest reading was taken ``age_ns`` before it arrived."""
        self.frames += 1
        self.bytes += size
        step = int(log(max(age_ns, 1.0)) / _STEP)
        self._ages[step] = self._ages.get(step, 0) + 1
        self._oldest_ns = max(self._oldest_ns, int(age_ns))

    def _age_ms(self, share: float) -> float:
        """The age that ``share`` of the frames stayed under (upper edge of its histogram step)."""
        left = share * self.frames
        for step in sorted(self._ages):
            left -= self._ages[step]
            if left <= 0:
                return min(exp((step + 1) * _STEP), self._oldest_ns) * 1e-6
        return 0.0

    def summary(self, *, refused: int, replayed: int) -> dict[str, float]:
        """What goes into the run file as ``reception``: ``refused`` frames were damaged or out of turn, ``replayed``
        ones came late, out of the daemon's ring.
        """
        elapsed = time.monotonic() - self._begun
        return {
            "frames": self.frames,
            "bytes": self.bytes,
            "refused": refused,
            "replayed": replayed,
            "age_p50_ms": round(self._age_ms(0.50), 3),
            "age_p99_ms": round(self._age_ms(0.99), 3),
            "age_max_ms": round(self._oldest_ns * 1e-6, 3),
            "elapsed_s": round(elapsed, 3),
            "recorder_cpu_share": round((time.process_time() - self._cpu) / max(elapsed, 1e-9), 4),
        }
