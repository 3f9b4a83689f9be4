"""How far each client has come in each stream: pull with resume, without a socket.

A feed has two numbers: ``next``, the first frame not yet sent, and ``limit``, the first that the client has not asked
for. A `Want` moves the limit; only a reset, or the first contact, moves ``next``. Since every `Want` carries the
client's own position, the server may forget a client at any time without losing it anything.

A frame is *replayed* when powerd had it before the client said where it begins (first contact or reset), and *live*
when it came later, however late it is then sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from powerd_core.wire import CURRENT, Want
from powerd_daemon.ring import Frames

RETRY_MIN_NS = 5_000_000
RETRY_MAX_NS = 100_000_000


@dataclass(slots=True)
class Feed:
    """One client's place in one stream."""

    next: int
    limit: int
    live: int = 0
    """The first number that is live."""

    def upcoming(self, ring: Frames) -> tuple[bytes, int] | None:
        """The frame to send now and the number after it; None when the client has what it asked for or all there is."""
        return ring.find(self.next) if self.next < self.limit else None


@dataclass(slots=True)
class Subscriber:
    """A client of the data socket."""

    identity: bytes
    address: str
    number: int
    active_ns: int
    """When it last asked for something, or last took a frame."""
    feeds: dict[tuple[int, int], Feed] = field(default_factory=dict)
    """By epoch and stream."""
    frames: int = 0
    bytes: int = 0
    replayed: int = 0
    """Frames of these that were not live."""
    evicted: int = 0
    """Sequence numbers it asked for that were no longer in the ring."""
    retry_ns: int | None = None
    """When it did not take a frame: the time of the next attempt."""
    _pause_ns: int = RETRY_MIN_NS

    def want(self, want: Want, ring: Frames) -> None:
        """Take a request into account. Idempotent."""
        key = ring.epoch, want.stream
        feed = self.feeds.get(key)
        fresh = feed is None or want.reset
        if want.epoch not in (0, ring.epoch):
            # The numbers of another life of powerd say nothing here: everything that is held is news to this client.
            if fresh:
                self.feeds[key] = Feed(ring.oldest, ring.oldest + want.window, ring.next)
            return
        begin = ring.current if want.sequence == CURRENT else want.sequence
        if feed is None or want.reset:
            # Who asks for what is new takes the newest block as its beginning, not as a repetition.
            live = begin if want.sequence == CURRENT else ring.next
            self.feeds[key] = Feed(begin, begin + want.window, live)
        else:
            feed.limit = begin + want.window

    def took(self, feed: Feed, following: int, size: int, now_ns: int) -> None:
        """A frame went out."""
        self.replayed += feed.next < feed.live
        feed.next = following
        self.frames += 1
        self.bytes += size
        self.active_ns = now_ns
        self.retry_ns, self._pause_ns = None, RETRY_MIN_NS

    def refused(self, now_ns: int) -> None:
        """Its queue is full: leave it alone for a while, longer each time."""
        self.retry_ns = now_ns + self._pause_ns
        self._pause_ns = min(self._pause_ns * 2, RETRY_MAX_NS)
