"""The server: clock exchanges on one socket, questions on the second, requests for readings on the third.

It never waits for a client. Clock exchanges go first in every cycle and between the frames sent in bulk, then
questions; readings go out in slices, the clients in turn (`Delivery`). How far each client has come is kept by its
cursors (`powerd_core.protocol`); since every request carries the client's own position, a client may be forgotten at
any time without losing it anything.

An answer that takes its time, since another process has to be asked, is a `Later`: it is sent when it has come, and
everything goes on meanwhile.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import zmq

from powerd_core.errors import PowerdError, VersionError, WireError
from powerd_core.keys import AllowedClient
from powerd_core.model import ClockExchange
from powerd_core.protocol import Subscriber
from powerd_core.wire import Message, Want, decode, encode
from powerd_daemon.auth import CallerOf, MayRead, address_of, sender
from powerd_daemon.clock import Clock
from powerd_daemon.ring import Store
from powerd_daemon.sockets import Door, FloodGate, Sockets

SLICE_REQUESTS = 100
SLICE_BYTES = 1 << 20
EXCHANGE_BYTES = 64 << 10
"""So much is sent in bulk before the clock socket is looked at again."""
MAX_CLIENTS = 64
IDLE_NS = 30_000_000_000
"""A client that neither asked nor took anything for so long is forgotten; its next `Want` says where it is."""

MAX_LATER = 32
"""Answers that may be awaited at a time."""
LATER_NS = 10_000_000_000
"""Who asked is told that no answer came when it takes longer."""


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that is yet to come.

    ``begin`` is called at once, unless too many answers are awaited already: then nothing begins, and who asked is
    told. It does not wait. It is given the function that takes the answer's frame, from any thread. A frame that comes
    late, or for somebody who is gone, is dropped.
    """

    begin: Callable[[Callable[[bytes], None]], None]


Answer = Callable[[Message, AllowedClient | None], bytes | Later]
"""From a question, and who asks it by the key of its connection (None without keys), to the answer's frame.

It runs in the serving loop: what could take a millisecond is a `Later`. Raises `PowerdError` to refuse.
"""


@dataclass(slots=True)
class _Awaited:
    """An answer that somebody waits for."""

    asker: zmq.Frame
    give_up_ns: int
    frame: bytes | None = None

    def give(self, frame: bytes) -> None:
        self.frame = frame


E = TypeVar("E", ClockExchange, Message, Want)

_log = logging.getLogger(__name__)


class Delivery:
    """Sends what ``store`` holds over the data socket to those who asked for it there."""

    def __init__(self, data: zmq.Socket[bytes], store: Store, clock: Clock) -> None:
        self.subscribers: dict[bytes, Subscriber] = {}
        self.served_clients = 0
        self.sent_frames = 0
        self.replayed_frames = 0
        """Frames of these that were not live; see `powerd_core.protocol`."""
        self._data = data
        self._store = store
        self._clock = clock
        self._turn = 0
        self._check_ns = clock.now_ns() + IDLE_NS

    def want(self, first: zmq.Frame, want: Want) -> str:
        """Take a request of a client that may read into account. Why that cannot be, if so."""
        ring = self._store.ring(want.stream, want.epoch)
        if ring is None:
            return f"there is no stream {want.stream} here: ask for the description again"
        now_ns = self._clock.now_ns()
        subscriber = self.subscribers.get(first.bytes)
        if subscriber is None:
            if len(self.subscribers) >= MAX_CLIENTS:
                _log.warning(f"a client was turned away: there are {MAX_CLIENTS} already")
                return f"this powerd serves {MAX_CLIENTS} clients already"
            self.served_clients += 1
            subscriber = Subscriber(first.bytes, address_of(first), self.served_clients, now_ns)
            self.subscribers[first.bytes] = subscriber
        subscriber.badge, subscriber.active_ns = first, now_ns
        subscriber.want(want, ring)
        return ""

    def drop(self, first: zmq.Frame) -> None:
        """Send nothing more to this client."""
        self.subscribers.pop(first.bytes, None)

    def drop_denied(self, may_read: MayRead) -> None:
        """Send nothing more to clients that may no longer read: to be called when rights have changed."""
        for subscriber in list(self.subscribers.values()):
            if isinstance(subscriber.badge, zmq.Frame) and not may_read(subscriber.badge):
                self.drop(subscriber.badge)
                _log.warning(f"the client at {sender(subscriber.badge)} may read no longer")

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
        sending = [self._send_to(s, now_ns) for s in waiting[begin:] + waiting[:begin]]
        budget, exchange_at = SLICE_BYTES, SLICE_BYTES - EXCHANGE_BYTES
        while sending and budget > 0:
            still_sending = []
            for client in sending:
                size = next(client, 0)
                budget -= size
                if size:
                    still_sending.append(client)
                if budget < exchange_at:
                    exchange_at = budget - EXCHANGE_BYTES
                    meanwhile()
            sending = still_sending
        return bool(sending)

    def _send_to(self, subscriber: Subscriber, now_ns: int) -> Iterator[int]:
        """Send what a client is due, one frame a step, and yield its size; ends when it has all or takes no more."""
        for (epoch, number), cursor in list(subscriber.cursors.items()):
            ring = self._store.ring(number, epoch)
            while ring is not None and (upcoming := cursor.upcoming(ring)) is not None:
                frame, following = upcoming
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
        self.subscribers = {i: s for i, s in self.subscribers.items() if now_ns - s.active_ns <= IDLE_NS}


class Server:
    """Serves ``store`` to those who may read. ``subjects`` answers control messages."""

    def __init__(
        self,
        sockets: Sockets,
        store: Store,
        clock: Clock,
        subjects: Mapping[str, Answer],
        may_read: MayRead,
        caller_of: CallerOf = lambda _: None,
    ) -> None:
        self.delivery = Delivery(sockets.data, store, clock)
        self.flood = FloodGate()
        self._doors = {name: Door(getattr(sockets, name)) for name in ("control", "data", "clock")}
        self.garbage = {"control": 0, "data": 0, "clock": 0}
        """What came in on each socket and was no request."""
        self.denied = 0
        """Requests of clients that may not make them."""
        self.handshakes_failed = 0
        """Connections that were refused before a first request, as far as whoever watches the sockets has said."""
        self._sockets = sockets
        self._store = store
        self._clock = clock
        self._subjects = subjects
        self._may_read = may_read
        self._caller_of = caller_of
        self._awaited: list[_Awaited] = []

    def cycle(self) -> bool:
        """Answer, take requests, send one slice. True when there is more to send right now."""
        self.answer()
        self._serve("data", self._sockets.data, Want, self._take_want)
        more = self.delivery.send(self.exchange_clocks)
        self.delivery.forget_idle()
        return more

    def answer(self) -> None:
        """Answer what waits on the clock and control sockets, and send the answers that have come."""
        self.exchange_clocks()
        self._serve("control", self._sockets.control, Message, self._answer_question)
        self._send_awaited()

    def exchange_clocks(self) -> None:
        """Answer what waits on the clock socket."""
        self._serve("clock", self._sockets.clock, ClockExchange, self._exchange_clock)

    def _serve(
        self,
        name: str,
        router: zmq.Socket[bytes],
        kind: type[E],
        handle: Callable[[E, zmq.Frame, int], bytes | str | None],
    ) -> None:
        """Take the requests that wait on one socket, and send what ``handle`` gives: an answer's frame, the words of a
        refusal, or nothing."""
        door = self._doors[name]
        if not door.is_open:
            door.clear()
            return
        for count in range(SLICE_REQUESTS):
            try:
                first, *parts = router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                door.served(count, is_drained=True)
                return
            received_ns = self._clock.now_ns()
            self.flood.arrived(first, parts)
            answer: bytes | str | None = None
            try:
                # A request has one part; several are as good as none.
                event = decode(parts[0].bytes if len(parts) == 1 else b"")
            except WireError as error:
                self.garbage[name] += 1
                _log.warning(f"a request on the {name} socket was no frame of powerd: {error}")
                # Who speaks another version is told so; what is no frame at all gets no answer.
                answer = str(error) if isinstance(error, VersionError) else None
            else:
                if not self._may_read(first):
                    self.denied += 1
                    self.delivery.drop(first)
                elif isinstance(event, kind):
                    answer = handle(event, first, received_ns)
                else:
                    self.garbage[name] += 1
                    answer = f"the {name} socket does not take a {type(event).__name__}"
            if answer is not None:
                self._send(router, first, answer)
        door.served(SLICE_REQUESTS, is_drained=False)

    def _send(self, router: zmq.Socket[bytes], first: zmq.Frame, answer: bytes | str) -> None:
        """An answer's frame, or the words of a refusal, to whoever asked."""
        if isinstance(answer, str):
            answer = encode(Message("error", {"message": answer}, self._store.epoch))
        try:
            router.send_multipart([first.bytes, answer], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # Whoever asked is gone, or does not read.
            if error.errno not in (errno.EAGAIN, errno.EHOSTUNREACH):
                raise

    def _exchange_clock(self, exchange: ClockExchange, _: zmq.Frame, t2_ns: int) -> bytes:
        return encode(replace(exchange, epoch=self._store.epoch, t2_board_ns=t2_ns, t3_board_ns=self._clock.now_ns()))

    def _answer_question(self, question: Message, first: zmq.Frame, received_ns: int) -> bytes | str | None:
        if question.subject not in self._subjects:
            known = ", ".join(sorted(self._subjects))
            return f"unknown subject {question.subject[:100]!r}: this powerd answers {known}"
        try:
            answer = self._subjects[question.subject](question, self._caller_of(first))
            if not isinstance(answer, Later):
                return answer
            if len(self._awaited) >= MAX_LATER:
                return f"{MAX_LATER} answers are awaited here already: ask again later"
            awaited = _Awaited(first, received_ns + LATER_NS)
            answer.begin(awaited.give)
        except PowerdError as error:
            return str(error)
        self._awaited.append(awaited)
        return None

    def _send_awaited(self) -> None:
        """Send the answers that have come, and say so where none has come in time."""
        still: list[_Awaited] = []
        for awaited in self._awaited:
            is_over = self._clock.now_ns() >= awaited.give_up_ns
            if awaited.frame is None and not is_over:
                still.append(awaited)
            elif self._may_read(awaited.asker):  # it may have lost that right meanwhile
                late = f"no answer came within {LATER_NS / 1e9:g} s"
                answer = late if awaited.frame is None else awaited.frame
                self._send(self._sockets.control, awaited.asker, answer)
        self._awaited = still

    def _take_want(self, want: Want, first: zmq.Frame, _received_ns: int) -> str | None:
        return self.delivery.want(first, want) or None
