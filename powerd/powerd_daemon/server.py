"""The server: answers questions and clock exchanges on one socket, hands out the rings' frames on the other.

It never waits for a client. Questions go first in every cycle, so that a clock exchange is quick whatever is sent in
bulk; bulk is sent in slices.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import zmq

from powerd_core.errors import VersionError, WireError
from powerd_core.model import ClockExchange
from powerd_core.wire import Event, Message, Want, decode, encode
from powerd_daemon.clock import Clock
from powerd_daemon.feeds import Subscriber
from powerd_daemon.log import Log
from powerd_daemon.store import Store

SLICE_REQUESTS = 100
SLICE_BYTES = 1 << 20
MAX_CLIENTS = 64
IDLE_NS = 30_000_000_000
"""A client that neither asked nor took anything for so long is forgotten; its next `Want` says where it is."""


@dataclass(slots=True)
class Garbage:
    """Counts what came in and was no request."""

    control: int = 0
    data: int = 0


class Server:
    """Serves ``store``. ``subjects`` answers control messages by subject: body of the request to the answer's frame."""

    def __init__(
        self,
        control: zmq.Socket[bytes],
        data: zmq.Socket[bytes],
        store: Store,
        clock: Clock,
        log: Log,
        subjects: Mapping[str, Callable[[], bytes]],
    ) -> None:
        self.control = control
        self.data = data
        self.subscribers: dict[bytes, Subscriber] = {}
        self.garbage = Garbage()
        self.served_clients = 0
        self.sent_frames = 0
        self._store = store
        self._clock = clock
        self._log = log
        self._subjects = subjects
        self._turn = 0
        self._check_ns = clock.now_ns() + IDLE_NS

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

    def answer(self) -> None:
        """Answer what waits on the control socket."""
        for _ in range(SLICE_REQUESTS):
            try:
                identity, *parts = self.control.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            t2_ns = self._clock.now_ns()
            event, answer = self._decode(parts, "control")
            if event is None:
                self.garbage.control += 1
            elif isinstance(event, ClockExchange):
                times = replace(event, epoch=self._store.epoch, t2_board_ns=t2_ns, t3_board_ns=self._clock.now_ns())
                answer = encode(times)
            elif isinstance(event, Message):
                answer = self._answer_message(event)
            else:
                self.garbage.control += 1
                answer = self._error(f"the control socket does not take a {type(event).__name__}")
            if answer is not None:
                self._reply(self.control, identity, answer)

    def _answer_message(self, message: Message) -> bytes:
        if message.subject not in self._subjects:
            known = ", ".join(sorted(self._subjects))
            return self._error(f"unknown subject {message.subject[:100]!r}: this powerd answers {known}")
        return self._subjects[message.subject]()

    def _take_wants(self) -> None:
        for _ in range(SLICE_REQUESTS):
            try:
                first, *parts = self.data.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            event, answer = self._decode([part.bytes for part in parts], "data")
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
        ring = self._store.ring(want.stream)
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
        budget = SLICE_BYTES
        while rounds:
            left = []
            for sending in rounds:
                size = next(sending, 0)
                budget -= size
                if size:
                    left.append(sending)
            rounds = left
            if budget <= 0:
                return bool(rounds)
        return False

    def _send_to(self, subscriber: Subscriber, now_ns: int) -> Iterator[int]:
        """Send what a client is due, one frame a step, and yield its size; ends when it has all or takes no more."""
        for number, feed in subscriber.feeds.items():
            ring = self._store.ring(number)
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
                subscriber.took(feed, following, len(frame), now_ns)
                self.sent_frames += 1
                yield len(frame)

    def is_drained(self) -> bool:
        """Whether every client has been sent all there is, or all it asked for."""
        return all(
            feed.next >= feed.limit or (ring := self._store.ring(number)) is None or feed.next >= ring.next
            for subscriber in self.subscribers.values()
            for number, feed in subscriber.feeds.items()
        )

    def _forget_idle(self) -> None:
        now_ns = self._clock.now_ns()
        if now_ns < self._check_ns:
            return
        self._check_ns = now_ns + IDLE_NS // 10
        for identity, subscriber in list(self.subscribers.items()):
            if now_ns - subscriber.active_ns > IDLE_NS:
                del self.subscribers[identity]

    def _decode(self, parts: list[bytes], where: str) -> tuple[Event | None, bytes | None]:
        """The event of a single-part request; for another version the answer that says so, for garbage neither."""
        try:
            # A request has one part; several are as good as none.
            return decode(parts[0] if len(parts) == 1 else b""), None
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
