"""Asking a running powerd: what `powerd describe`, `stats`, `configure` and `calibrate --url` do."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from powerd_core.errors import PeerError, PeerTimeout, WireError
from powerd_core.keys import Credentials, explain_refusal
from powerd_core.wire import MAX_PAYLOAD, Message, decode, encode
from powerd_daemon.endpoints import check_endpoint
from powerd_daemon.keys import KeyDirectory
from powerd_daemon.release import release
from powerd_daemon.security import is_local

TIMEOUT_MS = 3000

_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OTHER_MECHANISM = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_HUNG_UP = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def ask(url: str, subject: str, timeout_ms: int | None = None, *, keys: str | None = None) -> Message:
    """The answer of the powerd at ``url``. Raises `ConfigError`, `PeerTimeout`, `PeerError`, `VersionError`."""
    with Board(url, keys) as board:
        return board.ask(subject, timeout_ms=timeout_ms)


class Refused(PeerError):
    """A powerd that does not take our keys, or that we do not take for the one we know."""


class Board:
    """A connection to the control socket of the powerd at ``url``, with the keys that a directory has for it.

    Methods raise `ConfigError`, `PeerTimeout`, `PeerError`, `VersionError`.
    """

    def __init__(self, url: str, keys: str | None = None) -> None:
        self.url = check_endpoint(url, "URL")
        self._ways = _ways(self.url, keys)
        self.credentials = self._ways.pop(0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._control: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    def ask(self, subject: str, body: Mapping[str, object] | None = None, *, timeout_ms: int | None = None) -> Message:
        """The answer to one request."""
        request = encode(Message(subject, {"version": release(), "client": f"powerd {subject}", **(body or {})}))
        while True:
            try:
                answer = _decode(self._ask(request, TIMEOUT_MS if timeout_ms is None else timeout_ms), self.url)
                break
            except Refused:
                self._hang_up()
                if not self._ways:
                    raise
                self.credentials = self._ways.pop(0)
        if answer.subject == "error":
            raise PeerError(f"the powerd at {self.url} says: {answer.body.get('message')}")
        return answer

    def socket(self, endpoint: str) -> zmq.Socket[bytes]:
        """Another socket of the same powerd, as its description names it."""
        if endpoint.startswith("tcp://*:"):
            endpoint = f"{self.url.rpartition(':')[0]}:{endpoint.rpartition(':')[2]}"
        dealer = self._context.socket(zmq.DEALER)
        self._connect(dealer, endpoint)
        return dealer

    def _connect(self, dealer: zmq.Socket[bytes], endpoint: str) -> None:
        try:
            dealer.set(zmq.LINGER, 0)
            # Where a handshake failed, libzmq may have given the connection up, and nothing ever takes the request.
            dealer.set(zmq.SNDTIMEO, 0)
            dealer.set(zmq.MAXMSGSIZE, MAX_PAYLOAD + 1024)
            dealer.set(zmq.IPV6, int("[" in endpoint))
            if self.credentials is not None:
                dealer.set(zmq.CURVE_PUBLICKEY, self.credentials.own.public.encode())
                dealer.set(zmq.CURVE_SECRETKEY, self.credentials.own.secret.encode())
                dealer.set(zmq.CURVE_SERVERKEY, self.credentials.board.encode())
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            dealer.close()
            raise PeerError(f"cannot connect to {endpoint}: {error}: check the address") from error

    def _ask(self, request: bytes, timeout_ms: int) -> bytes:
        if self._control is None or self._monitor is None:
            self._control = self._context.socket(zmq.DEALER)
            self._monitor = self._control.get_monitor_socket(_DENIED | _OTHER_MECHANISM | _HUNG_UP)
            self._connect(self._control, self.url)
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        with suppress(zmq.Again):
            self._control.send(request)
        end_s = time.monotonic() + timeout_ms / 1000
        has_hung_up = False
        while (left_s := end_s - time.monotonic()) > 0:
            ready = dict(poller.poll(round(left_s * 1000) + 1))
            if self._control in ready:
                return self._control.recv()
            if self._monitor not in ready:
                continue
            event = recv_monitor_message(self._monitor)["event"]
            # Hung up once, it may be a powerd that just ends; twice, it is one that cannot read what we send.
            if event != _HUNG_UP or (has_hung_up and self.credentials is not None):
                raise Refused(explain_refusal(self.url, self.credentials, is_denied=event == _DENIED))
            has_hung_up = True
        raise PeerTimeout(f"no powerd answers at {self.url}: is it running there? start it with `powerd run ...`")

    def _hang_up(self) -> None:
        if self._control is not None:
            self._control.disable_monitor()
            self._control.close()
        if self._monitor is not None:
            self._monitor.close()
        self._control = self._monitor = None

    def close(self) -> None:
        self._hang_up()
        self._context.destroy(linger=0)

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ways(url: str, keys: str | None) -> list[Credentials | None]:
    """The keys to try one after the other: a board's own commands reach it with its own keys, if it uses any."""
    if not url.startswith("tcp://"):
        return [None]
    directory = KeyDirectory(keys)
    if (known := directory.credentials(url)) is not None:
        return [known]
    own = directory.server() if is_local(url) else None
    return [None] if own is None else [Credentials(own, own.public), None]


def _decode(frame: bytes, url: str) -> Message:
    try:
        answer = decode(frame)
    except WireError as error:
        raise type(error)(f"{url}: {error}") from error
    if not isinstance(answer, Message):
        raise PeerError(f"what answers at {url} is no powerd: check the address")
    return answer
