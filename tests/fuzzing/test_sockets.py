"""Hostile peers against a whole powerd on real sockets, with and without keys: a short siege each, always the same."""

from __future__ import annotations

import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from fuzzing.hostile_peers import RawPeer, frame, ping, ready, reset
from fuzzing.target_sockets import Powerd, Reader, Siege

FLOODS = {
    "empty messages": (10, frame(b"") * 20_000),
    "heartbeats among empty messages": (100, (frame(b"") * 1200 + ping()) * 2),
}


@pytest.mark.parametrize(("times", "flood"), FLOODS.values(), ids=FLOODS)
def test_forty_kilobytes_and_a_reset_do_not_abort_powerd(times: int, flood: bytes) -> None:
    """libzmq asserts when it writes a heartbeat, or the answer to one, to a connection whose reset it has seen while
    the messages before it still waited for room in a full queue."""
    with closing(Powerd()) as powerd, closing(Reader(powerd.data)) as reader:
        for _ in range(times):
            peer = RawPeer(powerd.control, patience_s=60)
            peer.greet(ready())
            peer.say(flood)
            reset(peer.connection)
            reader.read()
        time.sleep(0.5)  # more than a heartbeat's interval in release 0.1.0
        reader.read()
        assert powerd.is_alive(), powerd.log.read_text()[-2000:]


def test_a_siege_of_hostile_peers_costs_nobody_a_reading() -> None:
    chance = random.Random(20)
    with closing(Siege()) as siege:
        for _ in range(100):
            siege.harass(chance.randbytes(64))


def test_who_may_read_cannot_abort_powerd_either(tmp_path: Path) -> None:
    with closing(Siege(tmp_path / "keys")) as siege:
        for _ in range(60):
            siege.flood_by_a_client()
        assert siege.tally["resets"] >= 20


def test_a_flood_of_short_connections_costs_little_memory_and_none_for_good() -> None:
    with closing(Powerd()) as powerd, closing(Reader(powerd.data)) as reader:
        reader.read()
        before_mib = most_mib = powerd.memory_mib()
        refused = 0
        while refused < 3:
            try:
                peer = RawPeer(powerd.control)
            except ConnectionRefusedError:
                refused += 1
                continue
            peer.greet(ready())
            peer.say(frame(b"") * 30_000)
            reset(peer.connection)
            most_mib = max(most_mib, powerd.memory_mib())
        assert before_mib < most_mib < before_mib + 60
        # Those who are connected are served while nobody new is let in, and then all is as before.
        while powerd.memory_mib() > before_mib + 5:
            reader.read()
            time.sleep(0.02)
        RawPeer(powerd.control, patience_s=10).connection.close()


def test_the_siege_sees_an_abort() -> None:
    """The evidence that it could fail: a powerd that is killed is noticed at the next input."""
    with closing(Siege()) as siege:
        siege.powerd.process.kill()
        siege.powerd.process.wait()
        with pytest.raises((AssertionError, OSError)):
            siege.harass(bytes(8))
