"""Connections that pour in more than they ever ask: cut off, before they cost the memory that rings need.

libzmq bounds a message's parts in size but not in number, and counts against its high-water mark only messages that are
whole: a message without end grows until the machine is out of memory, and the server never sees it. The kernel does: it
counts what each connection has brought. What is far more than the messages that came of it is a flood.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct

import zmq

from powerd_daemon.log import Log

EVERY_NS = 50_000_000
ALLOWED_BYTES = 256 << 10
"""Beyond its messages for one connection: four of the longest requests."""
ALLOWED_TOTAL_BYTES = 16 << 20
"""… for all of them together."""
LEAK_BYTES_PER_S = 4096
"""Heartbeats and handshakes come beside messages, some 1 KB a second."""
MESSAGE_BYTES = 256
"""What framing and encryption add to a message, and more."""

_TCP_INFO_BYTES = 256
_RECEIVED = Struct("128xQ")
"""``tcpi_bytes_received`` of Linux's ``struct tcp_info`` (include/uapi/linux/tcp.h), there since 4.1."""


@dataclass(slots=True)
class _Connection:
    """What is known of a file descriptor."""

    received: int = 0
    messages: int = 0
    """Bytes of the messages that it brought, with what may have come beside them."""
    at_ns: int = 0
    cut_bytes: int | None = None
    """What it had brought when it was cut off: libzmq may be slow to let go of it."""

    @property
    def excess(self) -> int:
        if self.cut_bytes is not None and self.received <= self.cut_bytes + ALLOWED_BYTES:
            return 0
        return max(self.received - self.messages, 0)


class FloodGate:
    """Compares what connections bring with the messages that come of it. Over ipc the kernel does not count; there the
    socket's file says who may connect."""

    def __init__(self, log: Log) -> None:
        self.cut_off = 0
        self._log = log
        self._known: dict[int, _Connection] = {}
        self._next_ns = 0

    def arrived(self, first: zmq.Frame, parts: Sequence[zmq.Frame]) -> None:
        """A whole message came."""
        with suppress(zmq.ZMQError):
            known = self._known.setdefault(int(first.get(zmq.SRCFD)), _Connection())
            known.messages += MESSAGE_BYTES + sum(len(part) for part in parts)

    def mind(self, connections: Callable[[], Mapping[int, str]], now_ns: int) -> None:
        """When it is time: look at the open ``connections`` (addresses by file descriptor) and cut off what floods."""
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + EVERY_NS
        addresses = connections()
        for descriptor in self._known.keys() - addresses.keys():
            del self._known[descriptor]
        for descriptor in addresses:
            self._measure(descriptor, now_ns)
        total = sum(c.excess for c in self._known.values())
        for descriptor, c in sorted(self._known.items(), key=lambda item: -item[1].excess):
            if c.excess <= ALLOWED_BYTES and total <= ALLOWED_TOTAL_BYTES:
                break
            total -= c.excess
            self._cut_off(descriptor, addresses[descriptor])

    def _measure(self, descriptor: int, now_ns: int) -> None:
        received = _received(descriptor)
        if received is None:
            return
        known = self._known.get(descriptor)
        if known is None or received < known.received:  # another connection under the same number
            known = self._known[descriptor] = _Connection()
        known.received = received
        if known.at_ns:
            # What comes beside messages is allowed for up to now, and not saved up for later.
            allowed = known.messages + LEAK_BYTES_PER_S * (now_ns - known.at_ns) // 1_000_000_000
            known.messages = min(allowed, max(received, known.messages))
        known.at_ns = now_ns

    def _cut_off(self, descriptor: int, address: str) -> None:
        self.cut_off += 1
        self._known[descriptor].cut_bytes = self._known[descriptor].received
        self._log.complain(
            f"a connection from {address or 'somewhere'} was cut off: it sent without end, and no request"
        )
        with suppress(OSError):
            borrowed = socket.socket(fileno=descriptor)
            try:
                # libzmq sees the end of the connection and lets go of all that it brought.
                borrowed.shutdown(socket.SHUT_RDWR)
            finally:
                borrowed.detach()


def _received(descriptor: int) -> int | None:
    """Bytes that a TCP connection has brought; None for what is none, or where the kernel does not say."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(_RECEIVED.unpack_from(info)[0]) if len(info) >= _RECEIVED.size else None
    except OSError:
        return None
    finally:
        borrowed.detach()
