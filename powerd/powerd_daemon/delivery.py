"""Readings to clients: who asked for what, and one slice of frames after the other to each in turn."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

import zmq

from powerd_core.protocol import Subscriber
from powerd_core.wire import Want
from powerd_daemon.access import Access, Role
from powerd_daemon.clock import Clock
from powerd_daemon.log import Log
from powerd_daemon.security_zap import sender
from powerd_daemon.store import Store

SLICE_BYTES = 1 << 20
EXCHANGE_BYTES = 64 << 10
"""So much is sent in bulk before the clock socket is looked at again."""
MAX_CLIENTS = 64
IDLE_NS = 30_000_000_000
"""A client that neither asked nor took anything for so long is forgotten; its next `Want` says where it is."""


class Delivery:
    """Sends what ``store`` holds over the data socket to those who asked for it there."""

    def __init__(self, data: zmq.Socket[bytes], store: Store, clock: Clock, log: Log) -> None:
        self.subscribers: dict[bytes, Subscriber] = {}
        self.served_clients = 0
        self.sent_frames = 0
        self.replayed_frames = 0
        """Frames of these that were not live; see `powerd_core.protocol`."""
        self._data = data
        self._store = store
        self._clock = clock
        self._log = log
        self._turn = 0
        self._check_ns = clock.now_ns() + IDLE_NS
        self._badges: dict[bytes, zmq.Frame] = {}
        """What tells each subscriber's role, for the time until it asks again."""

    def want(self, first: zmq.Frame, want: Want) -> str:
        """Take a request of a client that may read into account. Why that cannot be, if so."""
        ring = self._store.ring(want.stream, want.epoch)
        if ring is None:
            return f"there is no stream {want.stream} here: ask for the description again"
        now_ns = self._clock.now_ns()
        subscriber = self.subscribers.get(first.bytes)
        if subscriber is None:
            if len(self.subscribers) >= MAX_CLIENTS:
                self._log.complain(f"a client was turned away: there are {MAX_CLIENTS} already")
                return f"this powerd serves {MAX_CLIENTS} clients already"
            self.served_clients += 1
            subscriber = Subscriber(first.bytes, _address(first), self.served_clients, now_ns)
            self.subscribers[first.bytes] = subscriber
        self._badges[first.bytes] = first
        subscriber.active_ns = now_ns
        subscriber.want(want, ring)
        return ""

    def drop(self, first: zmq.Frame) -> bool:
        """Send nothing more to this client. Whether anything was sent to it at all."""
        self._badges.pop(first.bytes, None)
        return self.subscribers.pop(first.bytes, None) is not None

    def drop_denied(self, access: Access) -> None:
        """Send nothing more to clients that may no longer read: to be called when roles have changed."""
        for first in list(self._badges.values()):
            if access.role(first) < Role.READ and self.drop(first):
                self._log.complain(f"the client at {sender(first)} may read no longer")

    def retry_ns(self) -> int | None:
        """When to try again at a client that did not take a frame."""
        return min((s.retry_ns for s in self.subscribers.values() if s.retry_ns is not None), default=None)

    def is_drained(self) -> bool:
        """Whether every client has been sent all there is, or all it asked for."""
        return all(
            cursor.next >= cursor.limit or (ring := self._store.ring(number, epoch)) is None or cursor.next >= ring.next
            for subscriber in self.subscribers.values()
            for (epoch, number), cursor in subscriber.cursors.items()
        )

    def send(self, meanwhile: Callable[[], None]) -> bool:
        """One slice, the clients in turn, each frame to one of them, with ``meanwhile`` called after every few. True
        when there is more to send right now."""
        now_ns = self._clock.now_ns()
        waiting = [s for s in self.subscribers.values() if s.retry_ns is None or s.retry_ns <= now_ns]
        if not waiting:
            return False
        self._turn += 1
        begin = self._turn % len(waiting)
        rounds = [self._send_to(s, now_ns) for s in waiting[begin:] + waiting[:begin]]
        budget, exchange_at = SLICE_BYTES, SLICE_BYTES - EXCHANGE_BYTES
        while rounds:
            left = []
            for sending in rounds:
                size = next(sending, 0)
                budget -= size
                if size:
                    left.append(sending)
                if budget < exchange_at:
                    exchange_at = budget - EXCHANGE_BYTES
                    meanwhile()
            rounds = left
            if budget <= 0:
                return bool(rounds)
        return False

    def _send_to(self, subscriber: Subscriber, now_ns: int) -> Iterator[int]:
        """Send what a client is due, one frame a step, and yield its size; ends when it has all or takes no more."""
        for (epoch, number), cursor in list(subscriber.cursors.items()):
            ring = self._store.ring(number, epoch)
            while ring is not None and (found := cursor.upcoming(ring)) is not None:
                frame, following = found
                evicted = max(min(following, ring.oldest) - cursor.next, 0)
                try:
                    self._data.send_multipart([subscriber.identity, frame], zmq.NOBLOCK)
                except zmq.Again:
                    subscriber.refused(now_ns)
                    return
                except zmq.ZMQError as error:
                    if error.errno != errno.EHOSTUNREACH:
                        raise
                    self.subscribers.pop(subscriber.identity, None)
                    return
                subscriber.evicted += evicted
                self.replayed_frames += cursor.next < cursor.live
                subscriber.took(cursor, following, len(frame), now_ns)
                self.sent_frames += 1
                yield len(frame)

    def forget_idle(self) -> None:
        """Now and then: let go of clients that are silent."""
        now_ns = self._clock.now_ns()
        if now_ns < self._check_ns:
            return
        self._check_ns = now_ns + IDLE_NS // 10
        for identity, subscriber in list(self.subscribers.items()):
            if now_ns - subscriber.active_ns > IDLE_NS:
                del self.subscribers[identity]
        self._badges = {identity: first for identity, first in self._badges.items() if identity in self.subscribers}


def _address(first: zmq.Frame) -> str:
    try:
        return str(first.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
