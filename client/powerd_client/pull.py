"""One stream's reception by pull and resume, without socket or clock: what to ask for, and what comes next in turn."""

from __future__ import annotations

from dataclasses import dataclass

from powerd_core.model import Block, Gap, Stream
from powerd_core.wire import CURRENT, Want

WINDOW = 512
"""Frames that a daemon may send beyond the one that was asked for."""
SILENCE_NS = 1_000_000_000
_USED_NS = 10_000_000
_AGAIN_MIN_NS, _AGAIN_MAX_NS = 100_000_000, 3_200_000_000


@dataclass(slots=True)
class StreamState:
    """Where the reception of a stream stands in one epoch.

    Whatever the way does to the frames (loss, repetition, another order), `take` accepts each number once and in turn,
    as long as `due` is asked and its requests are answered now and then.
    """

    stream: Stream
    epoch: int
    next: int = CURRENT
    end: int | None = None
    """The number behind the last of an epoch that is over; None for the one that goes on."""
    t_last_board_ns: int = 0
    asked_ns: int = 0
    heard_ns: int = 0
    granted: int = 0
    replayed: int = 0
    """Frames that came in turn only because they were asked for again."""
    _ahead: int = 0
    _hole: int | None = None
    _hole_ns: int = 0
    _reset_ns: int = -_AGAIN_MIN_NS
    _pause_ns: int = _AGAIN_MIN_NS

    @property
    def patience_ns(self) -> int:
        """How long silence is nothing to wonder about."""
        return max(SILENCE_NS, 5 * self.stream.period_ns)

    @property
    def is_over(self) -> bool:
        """Whether all that this epoch has was received."""
        return self.end is not None and self.next >= self.end

    def is_silent(self, now_ns: int) -> bool:
        return self.asked_ns > 0 and now_ns - max(self.heard_ns, self.asked_ns) > self.patience_ns

    def due(self, now_ns: int) -> Want | None:
        """What to ask for now; when it could be sent, say so with `asked`."""
        if self.is_over:
            return None
        if self.asked_ns == 0 or self._hole_is_due(now_ns) or self.is_silent(now_ns):
            return self._want(reset=True)
        used = self.next != CURRENT and self.granted - self.next < WINDOW // 2
        return self._want(reset=False) if used and now_ns - self.asked_ns > _USED_NS else None

    def _want(self, *, reset: bool) -> Want:
        return Want(self.stream.number, self.epoch, self.next, WINDOW, reset)

    def _hole_is_due(self, now_ns: int) -> bool:
        """At once for a hole that is the first for a while; then ever more rarely: the daemon starts over each time."""
        return self._hole == self.next and now_ns >= self._hole_ns

    def asked(self, want: Want, now_ns: int) -> None:
        """The request was sent."""
        self.asked_ns = now_ns
        if self.next != CURRENT:
            self.granted = self.next + WINDOW
        if want.reset:
            self._reset_ns = now_ns
            self._hole_ns = now_ns + self._pause_ns
            self._pause_ns = min(2 * self._pause_ns, _AGAIN_MAX_NS)

    def take(self, event: Block | Gap, now_ns: int) -> bool:
        """Whether a frame is the next in turn. One that is ahead shows that something was lost on the way."""
        self.heard_ns = now_ns
        if self.next == CURRENT:
            self.next = event.sequence
            self.granted = event.sequence + WINDOW
        if event.sequence != self.next:
            if event.sequence > self.next:
                self._ahead = max(self._ahead, event.sequence + 1)
                if self._hole != self.next:
                    self._hole, self._hole_ns = self.next, max(now_ns, self._reset_ns + _AGAIN_MIN_NS)
            return False
        self.replayed += event.sequence < self._ahead
        self.next += event.span if isinstance(event, Gap) else 1
        self.t_last_board_ns = event.t_last_ns
        self._hole, self._pause_ns = None, _AGAIN_MIN_NS
        return True
