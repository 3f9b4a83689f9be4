"""The server: clock exchanges on one socket, questions on the second, the readings' frames on the third.

It never waits for a client. Clock exchanges go first in every cycle and between the frames sent in bulk, then
questions; bulk is sent in slices.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import zmq

from powerd_core.errors import VersionError, WireError
from powerd_core.model import ClockExchange
from powerd_core.wire import Event, Message, Want, decode, encode
from powerd_daemon.access import Access, Role, Subject
from powerd_daemon.clock import Clock
from powerd_daemon.feeds import Subscriber
from powerd_daemon.flood import FloodGate
from powerd_daemon.log import Log
from powerd_daemon.security_zap import sender
from powerd_daemon.sockets import Sockets
from powerd_daemon.store import Store

SLICE_REQUESTS = 100
SLICE_BYTES = 1 << 20
EXCHANGE_BYTES = 64 << 10
"""So much is sent in bulk before the clock socket is looked at again."""
MAX_CLIENTS = 64
IDLE_NS = 30_000_000_000
"""A client that neither asked nor took anything for so long is forgotten; its next `Want` says where it is."""


@dataclass(slots=True)
class Garbage:
    """Counts what came in and was no request."""

    control: int = 0
    data: int = 0
    clock: int = 0


class Server:
    """Serves ``store`` to those whom ``access`` admits. ``subjects`` answers control messages."""

    def __init__(
        self,
        sockets: Sockets,
        store: Store,
        clock: Clock,
        log: Log,
        subjects: Mapping[str, Subject],
        access: Access,
    ) -> None:
        self.control = sockets.control
        self.data = sockets.data
        self.clock = sockets.clock
        self.subscribers: dict[bytes, Subscriber] = {}
        self.garbage = Garbage()
        self.flood = FloodGate(log)
        self.denied = 0
        """Requests of clients that may not make them."""
        self.handshakes_failed = 0
        """Connections that were refused before a first request, as far as whoever watches the sockets has said."""
        self.served_clients = 0
        self.sent_frames = 0
        self.replayed_frames = 0
        """Frames of these that were not live; see `powerd_daemon.feeds`."""
        self._store = store
        self._clock = clock
        self._log = log
        self._subjects = subjects
        self._access = access
        self._turn = 0
        self._check_ns = clock.now_ns() + IDLE_NS
        self._badges: dict[bytes, zmq.Frame] = {}
        """What tells each subscriber's role, for the time until it asks again."""

    def cycle(self) -> bool:
        """Answer, take requests, send one slice. True when there is more to send right now."""
        self.answer()
        self._take_wants()
        more = self._deliver()
        self._forget_idle()
        return more

    def retry_ns(self) -> int | None:
        """When to try again at a client that did not take a frame."""
        return min((s.retry_ns for s in self.subscribers.values() if s.retry_ns is not None), default=None)

    def drop_denied(self) -> None:
        """Send nothing more to clients that may no longer read: to be called when roles have changed."""
        for identity, first in list(self._badges.items()):
            if self._access.role(first) < Role.READ:
                del self._badges[identity]
                if self.subscribers.pop(identity, None) is not None:
                    self._log.complain(f"the client at {sender(first)} may read no longer")

    def answer(self) -> None:
        """Answer what waits on the clock and control sockets."""
        self.exchange_clocks()
        for _ in range(SLICE_REQUESTS):
            try:
                first, *parts = self.control.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            event, answer = self._decode(first, parts, "control")
            if event is None:
                self.garbage.control += 1
            elif isinstance(event, Message):
                answer = self._answer_message(event, first)
            else:
                self.garbage.control += 1
                answer = self._error(f"the control socket does not take a {type(event).__name__}")
            if answer is not None:
                self._reply(self.control, first.bytes, answer)

    def exchange_clocks(self) -> None:
        """Answer what waits on the clock socket."""
        for _ in range(SLICE_REQUESTS):
            try:
                first, *parts = self.clock.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            t2_ns = self._clock.now_ns()
            event, answer = self._decode(first, parts, "clock")
            if event is None:
                self.garbage.clock += 1
            elif self._access.role(first) < Role.READ:
                self.denied += 1
            elif isinstance(event, ClockExchange):
                times = replace(event, epoch=self._store.epoch, t2_board_ns=t2_ns, t3_board_ns=self._clock.now_ns())
                answer = encode(times)
            else:
                self.garbage.clock += 1
                answer = self._error(f"the clock socket does not take a {type(event).__name__}")
            if answer is not None:
                self._reply(self.clock, first.bytes, answer)

    def _answer_message(self, message: Message, first: zmq.Frame) -> bytes | None:
        role = self._access.role(first)
        if role < Role.READ:
            self.denied += 1
            return None
        subject = self._subjects.get(message.subject)
        if subject is None:
            known = ", ".join(sorted(self._subjects))
            return self._error(f"unknown subject {message.subject[:100]!r}: this powerd answers {known}")
        if role < subject.needs:
            self.denied += 1
            self._log.complain(f"the client at {sender(first)} may only read and asked to {message.subject}")
            return self._error(f"to {message.subject} needs the role 'control', which this client does not have")
        if subject.needs >= Role.CONTROL:
            self._log.note(f"powerd: {message.subject}, asked for by the client at {sender(first)}")
        return subject.answer(message.body)

    def _take_wants(self) -> None:
        for _ in range(SLICE_REQUESTS):
            try:
                first, *parts = self.data.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            event, answer = self._decode(first, parts, "data")
            if event is None:
                self.garbage.data += 1
            elif isinstance(event, Want):
                answer = self._take_want(first, event)
            else:
                self.garbage.data += 1
                answer = self._error(f"the data socket does not take a {type(event).__name__}")
            if answer is not None:
                self._reply(self.data, first.bytes, answer)

    def _take_want(self, first: zmq.Frame, want: Want) -> bytes | None:
        if self._access.role(first) < Role.READ:
            self.denied += 1
            self.subscribers.pop(first.bytes, None)
            return None
        ring = self._store.ring(want.stream, want.epoch)
        if ring is None:
            return self._error(f"there is no stream {want.stream} here: ask for the description again")
        now_ns = self._clock.now_ns()
        subscriber = self.subscribers.get(first.bytes)
        if subscriber is None:
            if len(self.subscribers) >= MAX_CLIENTS:
                self._log.complain(f"a client was turned away: there are {MAX_CLIENTS} already")
                return self._error(f"this powerd serves {MAX_CLIENTS} clients already")
            self.served_clients += 1
            subscriber = Subscriber(first.bytes, _address(first), self.served_clients, now_ns)
            self.subscribers[first.bytes] = subscriber
        self._badges[first.bytes] = first
        subscriber.active_ns = now_ns
        subscriber.want(want, ring)
        return None

    def _deliver(self) -> bool:
        """One slice, the clients in turn, each frame to one of them."""
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
                    self.exchange_clocks()
            rounds = left
            if budget <= 0:
                return bool(rounds)
        return False

    def _send_to(self, subscriber: Subscriber, now_ns: int) -> Iterator[int]:
        """Send what a client is due, one frame a step, and yield its size; ends when it has all or takes no more."""
        for (epoch, number), feed in list(subscriber.feeds.items()):
            ring = self._store.ring(number, epoch)
            while ring is not None and (found := feed.upcoming(ring)) is not None:
                frame, following = found
                evicted = max(min(following, ring.oldest) - feed.next, 0)
                try:
                    self.data.send_multipart([subscriber.identity, frame], zmq.NOBLOCK)
                except zmq.Again:
                    subscriber.refused(now_ns)
                    return
                except zmq.ZMQError as error:
                    if error.errno != errno.EHOSTUNREACH:
                        raise
                    self.subscribers.pop(subscriber.identity, None)
                    return
                subscriber.evicted += evicted
                self.replayed_frames += feed.next < feed.live
                subscriber.took(feed, following, len(frame), now_ns)
                self.sent_frames += 1
                yield len(frame)

    def is_drained(self) -> bool:
        """Whether every client has been sent all there is, or all it asked for."""
        return all(
            feed.next >= feed.limit or (ring := self._store.ring(number, epoch)) is None or feed.next >= ring.next
            for subscriber in self.subscribers.values()
            for (epoch, number), feed in subscriber.feeds.items()
        )

    def _forget_idle(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns < self._check_ns:
            return
        self._check_ns = now_ns + IDLE_NS // 10
        for identity, subscriber in list(self.subscribers.items()):
            if now_ns - subscriber.active_ns > IDLE_NS:
                del self.subscribers[identity]
        self._badges = {identity: first for identity, first in self._badges.items() if identity in self.subscribers}

    def _decode(self, first: zmq.Frame, parts: Sequence[zmq.Frame], where: str) -> tuple[Event | None, bytes | None]:
        """The event of a single-part request; for another version the answer that says so, for garbage neither."""
        self.flood.arrived(first, parts)
        try:
            # A request has one part; several are as good as none.
            return decode(parts[0].bytes if len(parts) == 1 else b""), None
        except VersionError as error:
            self._log.complain(f"a client on the {where} socket speaks another version of the wire format")
            return None, self._error(str(error))
        except WireError as error:
            self._log.complain(f"a request on the {where} socket was no frame of powerd: {error}")
            return None, None

    def _error(self, message: str) -> bytes:
        return encode(Message("error", {"message": message}, self._store.epoch))

    def _reply(self, router: zmq.Socket[bytes], identity: bytes, frame: bytes) -> None:
        """Send an answer, unless whoever asked is gone or does not read."""
        try:
            router.send_multipart([identity, frame], zmq.NOBLOCK)
        except zmq.Again:
            pass
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise


def _address(first: zmq.Frame) -> str:
    try:
        return str(first.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
