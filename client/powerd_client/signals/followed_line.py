"""A line whose readings come in pieces, as frames arrive: each piece becomes a signal that begins with the last good
reading before it, so that the intervals of all pieces are those of the whole, each once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from powerd_client.signals.signal import Readings, RunLine, Signal, joined_readings, make_signal, usual_spacing

_SPACINGS = 64
"""Pieces of a line whose readings tell its usual spacing."""


@dataclass(slots=True)
class FollowedLine:
    """A line of power or energy, and where its readings have come to."""

    line: RunLine
    last: Readings | None = None
    """The latest good reading, with which the next one makes an interval, and the bad one behind it if there is one."""
    spacings: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_SPACINGS))
    """Good readings of the latest pieces, and their median distance in each."""

    def take(self, readings: Readings) -> Signal:
        """The signal of the last good reading and these, times increasing; its ``bad`` are among these alone."""
        joined = readings if self.last is None else joined_readings([self.last, readings])
        signal = make_signal(self.line, joined)
        signal = replace(signal, bad=signal.bad - (0 if self.last is None else len(self.last.t_ns) - 1))
        if len(signal):
            signal = self._evenly(signal)
            at = int(np.flatnonzero(joined.t_ns == signal.t_ns[-1])[-1])
            self.last = joined.some(at, min(at + 2, len(joined.t_ns)))
        return signal

    @property
    def spacing_ns(self) -> float:
        """The usual distance of its readings, as far as they have told it."""
        nominal_ns = max(self.line.period_ns, self.line.accuracy.update_ns)
        return usual_spacing([(1, nominal_ns), *self.spacings], self.line)

    def _evenly(self, signal: Signal) -> Signal:
        """The signal with the usual distance of readings of many pieces: one piece has too few of them."""
        if len(signal) > 2:
            self.spacings.append((len(signal), signal.spacing_ns))
        elif len(signal) > 1:
            self.spacings.append((1, float(max(signal.t_ns[1] - signal.t_ns[0], self.line.accuracy.update_ns))))
        return replace(signal, spacing_ns=self.spacing_ns)
