"""How something died, and how often and after which pause it is started again."""

from __future__ import annotations

import signal
from collections import deque

PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0)
WINDOW_S = 60.0


class Attempts:
    """Five within a minute, each after a longer pause; then it is enough."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def pause(self, now_s: float) -> float | None:
        """The seconds to wait before starting again what has just died; None when that has been tried often enough."""
        while self._times and self._times[0] < now_s - WINDOW_S:
            self._times.popleft()
        if len(self._times) == len(PAUSES_S):
            return None
        pause = PAUSES_S[len(self._times)]
        self._times.append(now_s)
        return pause


def manner_of_death(status: int) -> str:
    """``died (SIGKILL)`` or ``failed (status 3)``, from an exit status in which a signal is negative."""
    if status >= 0:
        return f"failed (status {status})"
    try:
        return f"died ({signal.Signals(-status).name})"
    except ValueError:
        return f"died (signal {-status})"
