"""Clients that send without end, on real sockets: they are cut off, the others are served, and memory stays."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zmq
from daemon_harness import Running, running, steady_config

from fuzzing.hostile_peers import LONG, MORE, RawPeer, ready
from powerd_core import Message
from powerd_core.wire import encode
from powerd_daemon.sockets import ALLOWED_BYTES
from support.steady import wait_for

PATIENCE_S = 60.0
MOST_BYTES = 4 << 30


def flooding(endpoint: str) -> RawPeer:
    """A peer that the server takes messages from."""
    peer = RawPeer(int(endpoint.rpartition(":")[2]))
    peer.greet(ready())
    answer = b""
    while b"READY" not in answer:  # ZeroMQ takes no message before it has said so itself
        answer += peer.connection.recv(1000)
    return peer


def flood(peer: RawPeer, part: bytes, sent: Counter[str]) -> None:
    """Parts of one message without end, until the peer is cut off or closed; ``sent`` counts the bytes."""
    framed = bytes((LONG | MORE,)) + len(part).to_bytes(8, "big") + part
    batch = framed * max(1, 60_000 // len(framed))
    with suppress(OSError):
        while sent["bytes"] < MOST_BYTES:
            peer.connection.sendall(batch)
            sent["bytes"] += len(batch)


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


def tcp_config(directory: Path):
    config = steady_config(directory)
    server = config.server.listening_on("tcp://127.0.0.1:*", "test")
    return replace(config, server=server)


def ask_stats(powerd: Running) -> dict:
    with powerd.control() as client:
        return client.stats()


@pytest.mark.parametrize("part", [b"x" * 4000, b""], ids=["large parts", "empty parts"])
def test_a_message_without_end_is_cut_off_while_others_are_served(tmp_path, part):
    with running(tcp_config(tmp_path)) as powerd:
        wait_for(lambda: powerd.daemon.description)
        before = ask_stats(powerd)
        assert before["cut_off"] == 0
        begun_mib = resident_mib()
        for number, endpoint in enumerate((powerd.daemon.listen, powerd.daemon.data, powerd.daemon.clock), 1):
            peer, sent = flooding(endpoint), Counter()
            thread = threading.Thread(target=flood, args=(peer, part, sent))
            thread.start()
            # Others are answered meanwhile. Whoever was cut off may learn of it much later, by the kernel's timers.
            wait_for(lambda number=number: ask_stats(powerd)["cut_off"] == number)
            with suppress(OSError):
                peer.connection.shutdown(socket.SHUT_RDWR)  # also wakes up a thread that is sending
            thread.join()
            peer.connection.close()
            assert ALLOWED_BYTES < sent["bytes"] < MOST_BYTES
        after = ask_stats(powerd)
        assert after["cut_off"] == 3
        assert after["garbage"] == before["garbage"]
        assert resident_mib() - begun_mib < 300
    assert "was cut off: it sent without end" in powerd.said.getvalue()


def test_a_busy_honest_client_is_left_alone(tmp_path):
    with running(tcp_config(tmp_path)) as powerd:
        wait_for(lambda: powerd.daemon.description)
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
