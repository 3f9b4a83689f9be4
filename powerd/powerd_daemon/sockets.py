"""The server's ROUTER sockets: bound, bounded, and with errors a user can act on; and the gate against floods."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import zmq

from powerd_core.errors import ConfigError
from powerd_core.keys import KeyPair
from powerd_daemon.ownership import delete_socket, foreign

SEND_HWM = 64
"""Frames that wait for one client in the server before it counts as slow; the kernel's buffers come on top."""
MAX_REQUEST_BYTES = 4 << 10
"""libzmq hangs up on who sends more: the longest request of ours has some hundred bytes."""
HANDSHAKE_MS = 10_000
"""libzmq hangs up on who has not finished a handshake by then."""
ZAP_DOMAIN = b"powerd"
EVERY_NS = 20_000_000
ALLOWED_BYTES = 16 << 10
"""Beyond its messages for one connection: four of the longest requests."""
ALLOWED_TOTAL_BYTES = 512 << 10
"""… for all of them together. An empty message has two bytes on the wire and costs a hundred in memory."""
BACKLOG = 4000
"""Requests that wait at one socket: honest clients, each with a few on the way, never get so far."""
BACKLOG_BYTES = 16 << 20
"""… and what memory may grow by while they wait."""
THROWN_AWAY = 5000
"""Parts of messages that are thrown away in one round: a few milliseconds."""
LEAK_BYTES_PER_S = 4096
"""Heartbeats and handshakes come beside messages, some 1 KB a second."""
MESSAGE_BYTES = 256
"""What framing and encryption add to a message, and more."""

_TCP_INFO_BYTES = 256
_RECEIVED = Struct("128xQ")
"""``tcpi_bytes_received`` of Linux's ``struct tcp_info`` (include/uapi/linux/tcp.h), there since 4.1."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where clients ask, where readings go out, and where clocks are compared."""

    control: zmq.Socket[bytes]
    data: zmq.Socket[bytes]
    clock: zmq.Socket[bytes]

    def release(self, linger_ms: int = 0) -> None:
        """Close all three, see `release`."""
        for router in (self.control, self.data, self.clock):
            close_router(router, linger_ms)


_WHAT = ("", ", where readings are served (by default PORT+1)", ", where clocks are compared (by default PORT+2)")
"""Of the three sockets, behind their addresses in an error."""


def bind_sockets(
    context: zmq.Context[zmq.Socket[bytes]], control: str, data: str, clock: str, keys: KeyPair | None = None
) -> Sockets:
    """All three or none; with ``keys`` encrypted, for clients that the context's ZAP handler admits.

    Raises `ConfigError` naming the endpoint and the remedy.
    """
    with ExitStack() as undo:
        routers: list[zmq.Socket[bytes]] = []
        # Only the data socket must know that a client cannot take a frame: an answer nobody takes is just dropped.
        for endpoint, what in zip((control, data, clock), _WHAT, strict=True):
            is_data = len(routers) == 1
            routers.append(bind_router(context, endpoint, what, mandatory=is_data, keys=keys))
            undo.callback(close_router, routers[-1])
        undo.pop_all()
    return Sockets(*routers)


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    what: str = "",
    *,
    mandatory: bool,
    keys: KeyPair | None = None,
) -> zmq.Socket[bytes]:
    """A ROUTER at ``endpoint``. Raises `ConfigError` naming the endpoint, ``what`` it is for, and the remedy."""
    router = context.socket(zmq.ROUTER)
    router.set(zmq.ROUTER_MANDATORY, int(mandatory))
    router.set(zmq.SNDHWM, SEND_HWM)
    router.set(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    # libzmq aborts the process when it has seen a connection's reset while messages of it waited for room, and then
    # writes to it: a heartbeat of its own, or the answer to one that was among these messages. So there are no
    # heartbeats from here, and always room; `FloodGate` and `Door` bound what waits. Who is gone without a word, the
    # kernel finds.
    router.set(zmq.RCVHWM, 0)
    for option, value in ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 10), (zmq.TCP_KEEPALIVE_INTVL, 5)):
        router.set(option, value)
    router.set(zmq.TCP_KEEPALIVE_CNT, 4)
    router.set(zmq.LINGER, 0)
    router.set(zmq.IPV6, int("[" in endpoint))
    router.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if keys is not None:
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        # Without a domain of its own, and without insisting on a handler, libzmq would admit every key.
        router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
    try:
        if endpoint.startswith("ipc://"):
            _make_way(Path(endpoint.removeprefix("ipc://")))
        router.bind(endpoint)
    except (zmq.ZMQError, OSError) as error:
        router.close()
        why = f"{zmq.strerror(error.errno or 0)}:"
        if error.errno == errno.EADDRINUSE:
            why = "it is in use, perhaps by another powerd: stop that one or"
        raise ConfigError(f"cannot listen on {endpoint}{what}: {why} choose another with --listen") from error
    return router


def bound_endpoint(router: zmq.Socket[bytes]) -> str:
    """Where a socket really listens: with the port that ``*`` became."""
    endpoint = router.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def close_router(router: zmq.Socket[bytes], linger_ms: int = 0) -> None:
    """Close a socket and remove the file of an ipc endpoint; what is queued may still leave for ``linger_ms``."""
    endpoint = bound_endpoint(router)
    router.close(linger=linger_ms)
    if endpoint.startswith("ipc://"):
        with suppress(OSError):
            delete_socket(Path(endpoint.removeprefix("ipc://")))


def _make_way(path: Path) -> None:
    """Remove a socket of ours that nobody listens to any more. libzmq would also remove a live one, and any other file
    or link."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise FileExistsError(errno.EEXIST, "exists and is no socket")
    if foreign(path) is not None:
        raise OSError(errno.EADDRINUSE, "another user's")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, "in use")
    delete_socket(path, status)


@contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """An open connection of libzmq's, for a moment. Raises OSError for what is none."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()  # it is libzmq's to close


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
    """Cuts off connections that pour in more than they ever ask, before they cost the memory that rings need.

    libzmq bounds a message's parts in size but not in number, and counts against its high-water mark only messages that
    are whole: a message without end grows until the machine is out of memory, and the server never sees it. The kernel
    does: it counts what each connection has brought. What is far more than the messages that came of it is a flood.
    Over ipc the kernel does not count; there the socket's file says who may connect.
    """

    def __init__(self) -> None:
        self.cut_off = 0
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
        _log.warning(f"a connection from {address or 'somewhere'} was cut off: it sent without end, and no request")
        with suppress(OSError), borrowed(descriptor) as connection:
            # libzmq sees the end of the connection and lets go of all that it brought.
            connection.shutdown(socket.SHUT_RDWR)


class Door:
    """Ends all connections of a TCP socket when more requests wait there than honest clients ever send.

    `FloodGate` sees a connection only when it looks; thousands of short ones could leave their messages in between,
    and an empty one, of two bytes on the wire, takes a hundred in memory. What waits is then thrown away, and clients
    connect anew: they ask again for what they did not get, so it costs them time and nothing else.
    """

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self.is_open = True
        self._router = router
        self._endpoint = bound_endpoint(router)
        self._backlog = 0
        self._resident_bytes = 0
        """Of powerd, when the backlog began."""

    def served(self, count: int, *, is_drained: bool) -> None:
        """So many requests were taken just now, and whether none is left."""
        if is_drained:
            self._backlog = 0
            return
        if not self._backlog:
            self._resident_bytes = _resident_bytes()
        self._backlog += count
        if not self._endpoint.startswith("tcp://"):
            return
        # How many wait libzmq does not tell, and on a busy machine it may take a million while a hundred are answered.
        if self._backlog >= BACKLOG or _resident_bytes() - self._resident_bytes > BACKLOG_BYTES:
            _log.warning(f"{self._endpoint} is flooded with requests: all its clients have to connect anew")
            self._router.unbind(self._endpoint)
            self.is_open = False

    def clear(self) -> None:
        """Throw away some of what waits, and open again when that was all."""
        try:
            for _ in range(THROWN_AWAY):
                self._router.recv(zmq.NOBLOCK)
        except zmq.Again:
            with suppress(AttributeError, OSError):  # other C libraries than glibc have no such call
                # By itself the C library keeps most of what a flood made it take.
                ctypes.CDLL(None).malloc_trim(0)
            with suppress(zmq.ZMQError):  # the old listener may not be gone yet: the next round tries again
                self._router.bind(self._endpoint)
                self._backlog, self.is_open = 0, True


def _resident_bytes() -> int:
    """The memory that this process holds; 0 where the system does not tell."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return 0


def _received(descriptor: int) -> int | None:
    """Bytes that a TCP connection has brought; None for what is none."""
    with suppress(OSError), borrowed(descriptor) as connection:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        return int(_RECEIVED.unpack_from(info)[0])
    return None
