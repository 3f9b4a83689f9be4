"""Peers on real sockets that do what ours never do: flood, stop half-way, reset, and hide commands in their floods.

ZeroMQ's own library would not send most of this, so `RawPeer` speaks ZMTP 3.1 by hand (https://rfc.zeromq.org/spec/37).
Behind CURVE nothing can be forged; there a `Resetter` stands between a real client and powerd and cuts the
connection hard, with whatever is on its way.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress

from fuzzing.picker import Picker

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
WHOLE, MORE, LONG = 0, 1, 2
"""Flags of a frame: the last one of its message, followed by more, with eight bytes of length."""
PATIENCE_S = 30.0


def command(name: bytes, body: bytes = b"") -> bytes:
    """A short command frame."""
    return bytes((4, 1 + len(name) + len(body), len(name))) + name + body


def ready(socket_type: bytes = b"DEALER") -> bytes:
    """The command that ends the handshake."""
    return command(b"READY", b"\x0bSocket-Type" + struct.pack(">I", len(socket_type)) + socket_type)


def ping(ttl_ds: int = 0) -> bytes:
    """A heartbeat, which ZeroMQ answers while it reads; the peer is given up after ``ttl_ds`` tenths of a second."""
    return command(b"PING", struct.pack(">H", ttl_ds))


def frame(payload: bytes, flags: int = WHOLE) -> bytes:
    """A short frame of a message."""
    return bytes((flags, len(payload))) + payload


def reset(connection: socket.socket) -> None:
    """Close with a reset instead of an end, so that the other side's next look at the socket is an error."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class RawPeer:
    """A connection to ``port`` on this machine that says what it is told to, right or wrong."""

    def __init__(self, port: int, patience_s: float = 0.0) -> None:
        """Raises `ConnectionRefusedError` when powerd lets nobody in for ``patience_s``."""
        end = time.monotonic() + patience_s
        while True:
            try:
                self.connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
                break
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)
        self.connection.settimeout(PATIENCE_S)

    def greet(self, handshake: bytes) -> None:
        """Greet, wait for the other's greeting, and send ``handshake``."""
        self.say(GREETING)
        missing = len(GREETING)
        with suppress(OSError):
            while missing and (received := self.connection.recv(missing)):
                missing -= len(received)
        self.say(handshake)

    def say(self, data: bytes) -> None:
        """Send, as far as powerd takes it."""
        with suppress(OSError):
            self.connection.sendall(data)


def harass(port: int, picker: Picker, tally: Counter[str]) -> socket.socket | None:
    """One hostile connection; what is returned is still open, and silent."""
    try:
        peer = RawPeer(port)
    except ConnectionRefusedError:  # what others have flooded it with is being worked off
        tally["refused"] += 1
        return None
    tally["connections"] += 1
    opening = picker.below(8)
    if opening == 0:
        peer.say(picker.take(picker.below(80)))
    elif opening == 1:
        peer.say(GREETING[: picker.below(len(GREETING))])
    else:
        peer.greet(picker.one_of((ready(), ready(), ready(), ready(b"PULL"), command(b"ERROR", b"\0"), b"")))
        for _ in range(1 + picker.below(3)):
            frames, flood = _flood(picker)
            tally["frames"] += frames
            peer.say(flood)
    how = picker.below(8)
    if how == 0:
        return peer.connection
    if how == 1:
        with suppress(OSError):
            peer.connection.shutdown(socket.SHUT_WR)
        return peer.connection
    if how == 2:
        peer.connection.close()
    else:
        reset(peer.connection)
        tally["resets"] += 1
    return None


def _flood(picker: Picker) -> tuple[int, bytes]:
    """Up to some ten kilobytes, and how many frames they are: whole messages, parts without end, heartbeats among
    them, or what is no frame."""
    count = 1 + picker.below(20_000) if picker.rarely() else 1 + picker.below(3000)
    how = picker.below(8)
    if how == 0:
        return count, frame(b"", MORE) * count
    if how == 1:
        count = min(count, 2000)
        return count, frame(picker.take(1 + picker.below(20)), picker.below(256)) * count
    if how == 2:
        return 1, bytes((LONG,)) + picker.unsigned(64).to_bytes(8, "big") + bytes(min(count, 4096))
    if how == 3:
        count = min(count, 2000)
        return count, ping(picker.below(4)) * count
    if how == 4:
        return count, frame(b"") * count
    # Heartbeats behind a full queue are what ZeroMQ reads only when the server has caught up: perhaps after a reset.
    every = 1 + picker.below(3000)
    times = 1 + count // every
    return (every + 1) * times, (frame(b"") * every + ping()) * times


class Resetter:
    """A port that leads to another one. What a client sends after the handshake is collected, and then poured out in
    one burst that ends with a reset."""

    def __init__(self, port: int, handshake_bytes: int, burst_bytes: int) -> None:
        self._target = port
        self._handshake_bytes = handshake_bytes
        self._burst_bytes = burst_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.resets = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                # Who is let in nowhere, as many are connected, is turned away here too.
                with suppress(OSError), near, RawPeer(self._target, patience_s=60).connection as far:
                    self._carry(near, far)

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """One connection, until its burst or its end."""
        handshake_bytes, burst = 0, bytearray()
        while True:
            readable, _, _ = select.select((near, far), (), (), PATIENCE_S)
            if not readable:
                return
            if far in readable:
                if not (answer := far.recv(1 << 16)):
                    return
                near.sendall(answer)
            if near in readable:
                if not (data := near.recv(1 << 16)):
                    return
                if handshake_bytes < self._handshake_bytes:
                    handshake_bytes += len(data)
                    far.sendall(data)
                    continue
                burst += data
                if len(burst) >= self._burst_bytes:
                    far.sendall(burst)
                    reset(far)
                    self.resets += 1
                    return
