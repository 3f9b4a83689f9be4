"""The offset of a board's clock while exchanges come in: for a recorder and for live views.

Only the past counts, so this is less exact than `powerd_core.clock.map_clock` after the run; its bound is as much of
a guarantee. Memory and time for each exchange are bounded.
"""

from __future__ import annotations

from collections import deque

from powerd_core.clock import DRIFT_PPM
from powerd_core.clock_bound import interval_of
from powerd_core.clock_line import DOUBT, FINE_NS, FLOOR_NS, QUIET_NS, RateFilter
from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange

FULL = 25
"""Exchanges after which a stretch ends even before its time: at first they come fast."""


class ClockFilter:
    """Host minus board time now, from the exchanges so far. Another epoch or a step begins anew."""

    def __init__(self, *, drift_ppm: float = DRIFT_PPM, window_ns: int = QUIET_NS) -> None:
        self._drift = drift_ppm * 1e-6
        self._window_ns = window_ns
        self.epoch = 0
        self.count = 0
        """Exchanges since the last step."""
        self.steps = 0
        self._base_ns = 0
        self._t_ns = 0
        self._origin_s = 0.0
        self._low = self._high = 0.0
        self._line = RateFilter(0.0, 0.0)
        # The least and the greatest that the present stretch allows above the line, the stretch's start and count.
        self._least = self._most = 0.0
        self._stretch_ns = self._inside = 0
        # Widths of past stretches that may still be the least of the window: times and widths increase.
        self._quick: deque[tuple[int, float]] = deque()

    @property
    def skew_ppm(self) -> float:
        """The rate at which the offset grows, as far as it is known."""
        return self._line.rate * 1e-3

    def add(self, exchange: ClockExchange) -> bool:
        """Take an exchange. True when it shows that a clock stepped or another board answers: all before is void."""
        if exchange.delay_ns < 0:
            # A step in the middle of the exchange: not even this one says where the clocks are now.
            was = self.count > 0
            self.count = 0
            self.steps += was
            return was
        if self.count == 0 or exchange.epoch != self.epoch:
            was = self.count > 0
            self.steps += was
            self._begin(exchange)
            return was
        t, low, high = interval_of(exchange, self._base_ns, self._drift)
        spread = self._drift * abs(t - self._t_ns)
        if t >= self._t_ns:
            new_low, new_high = max(self._low - spread, low), min(self._high + spread, high)
        else:
            new_low, new_high = max(self._low, low - spread), min(self._high, high + spread)
        if new_low > new_high:
            self.steps += 1
            self._begin(exchange)
            return True
        self.count += 1
        self._low, self._high = new_low, new_high
        self._t_ns = max(self._t_ns, t)
        self._follow(t, low, high)
        return False

    def at(self, t_board_ns: int) -> tuple[float, float, float]:
        """Estimate, lower and upper bound of the offset at a board time. Raises `ClockError` before any exchange."""
        if not self.count:
            raise ClockError("no clock exchange with the board succeeded since its clock was last known")
        spread = self._drift * abs(t_board_ns - self._t_ns)
        low, high = self._low - spread, self._high + spread
        value = min(max(self._value(t_board_ns), low), high)
        return self._base_ns + value, self._base_ns + low, self._base_ns + high

    def _begin(self, exchange: ClockExchange) -> None:
        self.epoch, self.count = exchange.epoch, 1
        self._base_ns = exchange.t1_host_ns - exchange.t2_board_ns
        self._t_ns, self._low, self._high = interval_of(exchange, self._base_ns, self._drift)
        self._origin_s = self._t_ns * 1e-9
        middle = (self._low + self._high) / 2
        # Corrected by the first stretch's end, and until then by what is found in it.
        self._line = RateFilter(0.0, middle, p_offset=(self._high - self._low) ** 2)
        self._least, self._most = self._low - middle, self._high - middle
        self._stretch_ns, self._inside = self._t_ns, 1
        self._quick.clear()

    def _value(self, t_ns: int) -> float:
        line = self._line
        value = line.offset + line.rate * (t_ns * 1e-9 - self._origin_s - line.t_s)
        # Before there is a line, the least delays of the present stretch are all that there is.
        return value if self._quick else value + (self._least + self._most) / 2

    def _follow(self, t: int, low: float, high: float) -> None:
        """Keep the least delay of either direction; at a stretch's end, correct the line by them."""
        line = self._line
        expected = line.offset + line.rate * (t * 1e-9 - self._origin_s - line.t_s)
        if self._inside:
            self._least = max(self._least, low - expected)
            self._most = min(self._most, high - expected)
        else:
            self._least, self._most, self._stretch_ns = low - expected, high - expected, t
        self._inside += 1
        if self._inside < FULL and t - self._stretch_ns < FINE_NS:
            return
        self._inside = 0
        middle_ns = (self._stretch_ns + t) // 2
        width = max(self._most - self._least, 0.0)
        line.predict(middle_ns * 1e-9 - self._origin_s)
        sigma = FLOOR_NS + DOUBT * (width - self._quietest(middle_ns, width))
        line.update(line.offset + (self._least + self._most) / 2, sigma)

    def _quietest(self, t_ns: int, width: float) -> float:
        quick = self._quick
        while quick and quick[-1][1] >= width:
            quick.pop()
        quick.append((t_ns, width))
        while quick[0][0] < t_ns - self._window_ns:
            quick.popleft()
        return quick[0][1]
