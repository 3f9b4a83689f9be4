"""How often, and after which pause, something that died is started again."""

from __future__ import annotations

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
