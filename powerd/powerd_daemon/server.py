"""The server: clock exchanges on one socket, questions on the second, requests for readings on the third.

It never waits for a client. Clock exchanges go first in every cycle and between the frames sent in bulk, then
questions; bulk is sent in slices (`powerd_daemon.delivery`).
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import zmq

from powerd_core.errors import VersionError, WireError
from powerd_core.model import ClockExchange
from powerd_core.wire import Event, Message, Want, decode, encode
from powerd_daemon.access import Access, Role, Subject
from powerd_daemon.clock import Clock
from powerd_daemon.delivery import Delivery
from powerd_daemon.flood import FloodGate
from powerd_daemon.log import Log
from powerd_daemon.security_zap import sender
from powerd_daemon.sockets import Sockets
from powerd_daemon.store import Store

SLICE_REQUESTS = 100


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
        self.delivery = Delivery(sockets.data, store, clock, log)
        self.garbage = Garbage()
        self.flood = FloodGate(log)
        self.denied = 0
        """Requests of clients that may not make them."""
        self.handshakes_failed = 0
        """Connections that were refused before a first request, as far as whoever watches the sockets has said."""
        self._store = store
        self._clock = clock
        self._log = log
        self._subjects = subjects
        self._access = access

    def cycle(self) -> bool:
        """Answer, take requests, send one slice. True when there is more to send right now."""
        self.answer()
        self._take_wants()
        more = self.delivery.send(self.exchange_clocks)
        self.delivery.forget_idle()
        return more

    def drop_denied(self) -> None:
        """To be called when roles have changed."""
        self.delivery.drop_denied(self._access)

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
            self.delivery.drop(first)
            return None
        refusal = self.delivery.want(first, want)
        return self._error(refusal) if refusal else None

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
