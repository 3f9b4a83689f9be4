"""A client's sockets to one powerd: connected, refused, gone silent, and connected anew."""

from __future__ import annotations

from contextlib import suppress

import zmq

from powerd_client.hostclock import now_ns
from powerd_client.keys import RefusalWatch, apply_credentials
from powerd_core import wire
from powerd_core.errors import ConfigError, PeerError
from powerd_core.keys import Credentials
from powerd_core.model import Description
from powerd_core.protocol import WINDOW

_QUESTIONS = 8
"""So many questions may wait for a connection: those of a long cut would all be answered when it is over."""
_DEAF_NS = 2_000_000_000
"""A socket on which nothing has come for so long is connected anew: libzmq gives up for good on a peer that broke the
protocol, be it that the way damaged a single byte."""


class Connection:
    """A connection to one endpoint, to be used through ``socket``."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        credentials: Credentials | None,
        *,
        queue: int = 1000,
    ) -> None:
        """At most ``queue`` messages wait for it to come about. Raises `ConfigError` for what is no endpoint."""
        self.endpoint = endpoint
        self.heard_ns: int | None = None
        """When something came last, or it was connected; None before anybody waited for something."""
        self._watch: RefusalWatch | None = None
        self.socket = socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm, socket.rcvhwm = queue, 4 * WINDOW
        socket.maxmsgsize = wire.MAX_PAYLOAD + wire.HEADER_BYTES
        if endpoint.startswith("tcp:"):
            socket.heartbeat_ivl, socket.heartbeat_timeout = 200, 600
            # The kernel's own patience grows during a long cut; the first moment after it shall do.
            socket.connect_timeout, socket.handshake_ivl = 1000, 2000
            socket.ipv6 = "[" in endpoint
            apply_credentials(socket, credentials)
            self._watch = RefusalWatch(socket, endpoint, credentials)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"{endpoint!r} is no address of a powerd ({error}): try tcp://HOST:7360") from error

    def send(self, frame: bytes) -> bool:
        """Whether there was room for it."""
        try:
            self.socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def refusal(self) -> str | None:
        """Why the other side refuses our keys, and what to do; None when it does not."""
        return self._watch.reason() if self._watch is not None else None

    def try_again(self) -> None:
        """Connect anew what was refused a while ago."""
        if self._watch is not None:
            self._watch.try_again()

    def renew_if_deaf(self, now: int, *, patience_ns: int = _DEAF_NS, heard_ns: int = 0) -> bool:
        """Connect anew what seems to be connected to nobody. Whether that was done. ``heard_ns``: when others heard
        something on it.
        """
        if self.heard_ns is None:
            self.heard_ns = now
        if now - max(self.heard_ns, heard_ns) <= patience_ns:
            return False
        self.renew(now)
        return True

    def renew(self, now: int) -> None:
        """Connect anew."""
        self.heard_ns = now
        with suppress(zmq.ZMQError):  # libzmq may have forgotten it already
            self.socket.disconnect(self.endpoint)
        with suppress(zmq.ZMQError):  # it could be connected once; the next attempt is soon
            self.socket.connect(self.endpoint)

    def heard(self) -> None:
        """Something has come."""
        self.heard_ns = now_ns()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self.socket.close()


class Connections:
    """The control socket at ``url`` from the beginning; those of data and clock where a description says they are."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], url: str, credentials: Credentials | None) -> None:
        self._context = context
        self._url = url
        self._credentials = credentials
        self.control = Connection(context, url, credentials, queue=_QUESTIONS)
        self.data: Connection | None = None
        self.clock: Connection | None = None

    def _all(self) -> list[Connection]:
        return [c for c in (self.control, self.data, self.clock) if c is not None]

    def lead_to(self, description: Description) -> None:
        """Connect to the endpoints of a description, where that is not done yet. Raises `PeerError` and `ConfigError`
        for those that cannot be used.
        """
        self.data = self._leading_to(description.data_endpoint, self.data, 1000)
        self.clock = self._leading_to(description.clock_endpoint, self.clock, _QUESTIONS)

    def _leading_to(self, named: str, old: Connection | None, queue: int) -> Connection:
        endpoint = self._reachable(named)
        if old is not None and old.endpoint == endpoint:
            return old
        # The new one first: an endpoint that cannot be used leaves us the one that we have.
        made = Connection(self._context, endpoint, self._credentials, queue=queue)
        if old is not None:
            old.close()
        return made

    def _reachable(self, endpoint: str) -> str:
        """An endpoint of the description, with the host at which the control socket answered."""
        if not endpoint.startswith("tcp://*:"):
            if self._url.startswith("tcp:"):
                # A board must not send its clients to other machines, nor to sockets of their own.
                raise PeerError(f"the powerd at {self._url} names the address {endpoint[:200]!r}: only a port is taken")
            return endpoint
        host = self._url.removeprefix("tcp://").rpartition(":")[0]
        return f"tcp://{host}:{endpoint.rpartition(':')[2]}"

    def refusal(self) -> str | None:
        """Why any of them is refused, and what to do."""
        return next((reason for connection in self._all() if (reason := connection.refusal())), None)

    def try_again(self) -> None:
        """Connect anew what was refused a while ago."""
        for connection in self._all():
            connection.try_again()

    def renew_deaf(self, now: int, slow_ns: int, clock_heard_ns: int) -> None:
        """Connect anew what seems to be connected to nobody; the control socket, which is mostly silent, with them.

        ``slow_ns``: how long the streams may be silent.
        """
        deaf = self.data is not None and self.data.renew_if_deaf(now, patience_ns=max(_DEAF_NS, slow_ns))
        if self.clock is not None:
            deaf = self.clock.renew_if_deaf(now, heard_ns=clock_heard_ns) or deaf
        if deaf:
            self.control.renew(now)

    def close(self) -> None:
        for connection in self._all():
            connection.close()
