"""ZeroMQ's authentication requests (ZAP, ZeroMQ RFC 27), answered in the loop of whoever owns the sockets.

pyzmq's own handler is a coroutine from release 25 on and wants a loop of asyncio; this one knows CURVE alone.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq
from zmq.utils import z85

from powerd_core.errors import ConfigError
from powerd_daemon.log import Log

ENDPOINT = "inproc://zeromq.zap.01"
SLICE = 100
_VERSION = b"1.0"


class ZapHandler:
    """Admits CURVE clients whose public key ``is_allowed``; the key then travels with each of their messages.

    Make it before any socket of the context that needs it: libzmq asks it by its well-known address.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], is_allowed: Callable[[str], bool], log: Log) -> None:
        self.socket = context.socket(zmq.REP)
        self.socket.set(zmq.LINGER, 0)
        self._is_allowed = is_allowed
        self._log = log
        try:
            self.socket.bind(ENDPOINT)
        except zmq.ZMQError as error:
            self.socket.close()
            raise ConfigError(f"keys cannot be checked: {error}") from error

    def answer(self) -> None:
        """Answer what waits."""
        for _ in range(SLICE):
            try:
                request = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._reply(request))

    def _reply(self, request: list[bytes]) -> list[bytes]:
        version, request_id, _, address, _, mechanism, *credentials = [*request, *[b""] * (6 - len(request))]
        if version != _VERSION or mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            return [_VERSION, request_id, b"400", b"only CURVE", b"", b""]
        key = z85.encode(credentials[0]).decode()
        if self._is_allowed(key):
            return [_VERSION, request_id, b"200", b"OK", key.encode(), b""]
        self._log.complain(
            f"a client at {address.decode(errors='replace')} was refused: its key {key!r} is not allowed"
        )
        return [_VERSION, request_id, b"400", b"key not allowed", b"", b""]

    def close(self) -> None:
        self.socket.close()


def user_of(first: zmq.Frame) -> str:
    """The public key of a message's sender, by any of its frames; empty where no handler admitted it."""
    try:
        return str(first.get("User-Id"))
    except zmq.ZMQError:
        return ""


def sender(first: zmq.Frame) -> str:
    """A message's sender for people: its address and the beginning of its key."""
    try:
        address = str(first.get("Peer-Address")) or "this machine"
    except zmq.ZMQError:
        address = "an unknown address"
    key = user_of(first)
    return f"{address} (key {key[:8]}...)" if key else address
