"""Connections that failed before they said anything: counted, and told with their address as far as it is known."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from powerd_daemon.log import Log
from powerd_daemon.sockets import Sockets

SLICE = 200
QUEUE = 100_000
MAX_ADDRESSES = 4096

_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_BROKEN = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_LEFT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _REFUSED | _BROKEN


class HandshakeWatch:
    """Listens to what libzmq tells of the connections of a powerd's sockets.

    Where keys are asked for, a connection that the other end closes half way counts too: a client without keys, or
    with those of another board, may be the first of the two to see that this leads nowhere.
    """

    def __init__(self, sockets: Sockets, log: Log, *, has_keys: bool) -> None:
        self.failed = 0
        self._log = log
        named = {"control": sockets.control, "data": sockets.data, "clock": sockets.clock}
        events = _EVENTS | (_LEFT if has_keys else 0)
        self._doors = [_Door(name, router, events) for name, router in named.items()]

    @property
    def monitors(self) -> list[zmq.Socket[bytes]]:
        return [door.monitor for door in self._doors]

    @property
    def connections(self) -> dict[int, str]:
        """Addresses by file descriptor."""
        return {fd: address for door in self._doors for fd, address in door.addresses.items()}

    def receive(self) -> None:
        """Take in what waits."""
        for door in self._doors:
            for _ in range(SLICE):
                if not door.monitor.poll(0):
                    break
                self._take(door, recv_monitor_message(door.monitor, zmq.NOBLOCK))

    def _take(self, door: _Door, message: Mapping[str, Any]) -> None:
        event, value = message["event"], message["value"]
        if event == zmq.EVENT_ACCEPTED:
            if len(door.addresses) < MAX_ADDRESSES:
                door.addresses[value] = _peer(value)
        elif event == zmq.EVENT_DISCONNECTED:
            address = door.addresses.pop(value, "")
            if door.has_broken:
                door.has_broken = False
                self._log.complain(
                    f"a connection{address and f' from {address}'} to the {door.name} socket failed: "
                    "it has no keys, another key for this board, or is no client of powerd"
                )
        else:
            self.failed += 1
            # libzmq tells of the broken handshake first and of the closed connection next. Of a refused key the
            # handler has told already.
            door.has_broken |= event != _REFUSED

    def close(self) -> None:
        for door in self._doors:
            door.close()


class _Door:
    """One socket's monitor."""

    def __init__(self, name: str, router: zmq.Socket[bytes], events: int) -> None:
        self.name = name
        self._router = router
        endpoint = f"inproc://handshakes-{id(router)}"
        router.monitor(endpoint, events)
        self.monitor: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        # When this queue is full, libzmq's own thread waits, under a lock that closing the monitor needs.
        self.monitor.set(zmq.RCVHWM, QUEUE)
        self.monitor.set(zmq.LINGER, 0)
        self.monitor.connect(endpoint)
        self.addresses: dict[int, str] = {}
        """By file descriptor."""
        self.has_broken = False

    def close(self) -> None:
        self._router.monitor(None, 0)
        self.monitor.close()


def _peer(descriptor: int) -> str:
    """Who is at the other end. Empty when it is gone already, or is a process of this machine on an ipc socket."""
    with suppress(OSError, ValueError):
        borrowed = socket.socket(fileno=descriptor)
        try:
            name = borrowed.getpeername()
            return str(name[0]) if isinstance(name, tuple) else ""
        finally:
            borrowed.detach()  # it is libzmq's to close
    return ""
