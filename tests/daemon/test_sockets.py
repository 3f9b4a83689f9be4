"""Clients that send without end, on real sockets: they are cut off, the others are served, and memory stays."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from daemon_harness import Running, running, steady_config

from powerd_core import Message
from powerd_core.wire import encode
from powerd_daemon.sockets import ALLOWED_BYTES

PATIENCE_S = 20.0
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
_READY = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
MORE, LONG, COMMAND = 1, 2, 4


class Raw:
    """ZMTP 3.0 spoken by hand: what no ZeroMQ library would send."""

    def __init__(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.sent = 0
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.socket.sendall(_GREETING + bytes((COMMAND, len(_READY))) + _READY)
        answer = b""
        while b"READY" not in answer:  # libzmq takes no message before it has said so itself
            answer += self.socket.recv(1000)

    def flood(self, part: bytes, most_bytes: int) -> None:
        """Parts of one message without end, until we are cut off or close; `sent` counts them."""
        framed = bytes((LONG | MORE,)) + len(part).to_bytes(8, "big") + part
        batch = framed * max(1, 60_000 // len(framed))
        with suppress(OSError):
            while self.sent < most_bytes:
                self.socket.sendall(batch)
                self.sent += len(batch)

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # also wakes up a thread that is sending
        self.socket.close()


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


def tcp_config(directory: Path):
    config = steady_config(directory)
    server = config.server.listening_on("tcp://127.0.0.1:*", "test")
    return replace(config, server=server)


def until(holds, powerd: Running) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, powerd.said.getvalue()
        time.sleep(0.01)


def ask_stats(powerd: Running) -> dict:
    with powerd.control() as client:
        return client.stats()


@pytest.mark.parametrize("part", [b"x" * 4000, b""], ids=["large parts", "empty parts"])
def test_a_message_without_end_is_cut_off_while_others_are_served(tmp_path, part):
    with running(tcp_config(tmp_path)) as powerd:
        until(lambda: powerd.daemon.description is not None, powerd)
        before = ask_stats(powerd)
        assert before["cut_off"] == 0
        begun_mib = resident_mib()
        for number, endpoint in enumerate((powerd.daemon.listen, powerd.daemon.data, powerd.daemon.clock), 1):
            hostile = Raw(endpoint)
            flood = threading.Thread(target=hostile.flood, args=(part, 4 << 30))
            flood.start()
            # Others are answered meanwhile. Whoever was cut off may learn of it much later, by the kernel's timers.
            until(lambda number=number: ask_stats(powerd)["cut_off"] == number, powerd)
            hostile.close()
            flood.join()
            assert ALLOWED_BYTES < hostile.sent < 4 << 30
        after = ask_stats(powerd)
        assert after["cut_off"] == 3
        assert after["garbage"] == before["garbage"]
        assert resident_mib() - begun_mib < 300
    assert "was cut off: it sent without end" in powerd.said.getvalue()


def test_a_busy_honest_client_is_left_alone(tmp_path):
    with running(tcp_config(tmp_path)) as powerd:
        until(lambda: powerd.daemon.description is not None, powerd)
        stop = threading.Event()

        def ask_much() -> None:
            with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
                dealer.set(zmq.LINGER, 0)
                dealer.connect(powerd.daemon.listen)
                request = encode(Message("nothing", {"text": "x" * 3_000}))
                asked = 0
                while not stop.is_set() and asked < 200:
                    dealer.send(request)
                    asked += 1
                    if not dealer.poll(int(PATIENCE_S * 1000)):
                        break
                    dealer.recv()

        thread = threading.Thread(target=ask_much)
        thread.start()
        thread.join(PATIENCE_S)
        stop.set()
        assert ask_stats(powerd)["cut_off"] == 0
