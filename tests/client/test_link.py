"""The link to a powerd: description, resume after loss, restart, other versions."""

import time

import pytest
import zmq

from powerd_client.link import BoardLink
from powerd_core import wire
from powerd_core.errors import ConfigError, PeerTimeout, VersionError
from powerd_core.model import Block, Gap
from support.fake_daemon import FakeDaemon


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def daemon(context):
    made = FakeDaemon(context)
    yield made
    made.close()


@pytest.fixture
def link(context, daemon):
    made = BoardLink(context, daemon.url)
    yield made
    made.close()


def receive(link, count, timeout_s=10.0):
    """The next ``count`` events, asking as the recorder does."""
    found, deadline = [], time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} events came"
        link.ask()
        link.data.poll(10)
        found += [event for event, _ in link.receive()]
        while link.control.poll(0):
            link.receive_control()
    return found


def numbers(events):
    return [e.sequence for e in events]


def test_the_description_is_asked_for_and_checked(link, daemon):
    assert link.describe() == daemon.description


def test_nobody_there_is_said_within_the_time(context):
    link = BoardLink(context, "tcp://127.0.0.1:9")
    with pytest.raises(PeerTimeout, match=r"no powerd answers at tcp://127.0.0.1:9 within 0.2 s"):
        link.describe(timeout_s=0.2)
    link.close()


def test_an_address_that_is_none_is_a_configuration_error(context):
    with pytest.raises(ConfigError, match="no address"):
        BoardLink(context, "board:7360")


def test_another_version_is_named_with_its_address(link, daemon):
    daemon.version = 2
    with pytest.raises(VersionError, match=rf"{daemon.url}.*version 2"):
        link.describe()


def test_an_exchange_brackets_the_boards_clock(context):
    daemon = FakeDaemon(context, offset_ns=-5_000_000_000)
    link = BoardLink(context, daemon.url)
    link.describe()
    exchange = next(e for e in (link.exchange(500) for _ in range(20)) if e is not None)
    assert abs(exchange.offset_ns - 5e9) <= exchange.delay_ns / 2
    link.close()
    daemon.close()


def test_reception_begins_with_the_newest_block(link, daemon):
    for _ in range(5):
        daemon.add_block([1000])
    link.describe()
    assert numbers(receive(link, 1)) == [4]


def test_lost_frames_are_asked_for_again(link, daemon):
    daemon.add_block([1000])
    link.describe()
    events = receive(link, 1)
    daemon.drop = {3, 4, 9}
    for _ in range(20):
        daemon.add_block([1000])
    events += receive(link, 20)
    assert numbers(events) == list(range(21))
    assert link.refused > 0


def test_a_gap_moves_on_by_its_span(link, daemon):
    daemon.add_block([1000])
    link.describe()
    receive(link, 1)
    daemon.oldest = 6
    for _ in range(10):
        daemon.add_block([1000])
    events = receive(link, 6)
    assert numbers(events) == [1, 6, 7, 8, 9, 10]
    assert [type(e) for e in events] == [Gap] + [Block] * 5
    assert events[0].span == 5


def test_more_than_a_window_flows(link, daemon):
    daemon.add_block([1])
    link.describe()
    receive(link, 1)
    for _ in range(1500):
        daemon.add_block([1])
    assert numbers(receive(link, 1500)) == list(range(1, 1501))


def test_a_restarted_powerd_is_described_anew_and_read_from_its_oldest(context):
    first = FakeDaemon(context, epoch=5)
    link = BoardLink(context, first.url)
    first.add_block([1])
    link.describe()
    receive(link, 1)
    first.close()
    second = FakeDaemon(context, epoch=6, control_port=first.port)
    for _ in range(3):
        second.add_block([2])
    link.streams[0].heard_ns = link.streams[0].asked_ns = 1  # a silence that lasted long enough
    events = receive(link, 3)
    assert [(e.epoch, e.sequence) for e in events] == [(6, 0), (6, 1), (6, 2)]
    link.close()
    second.close()


@pytest.mark.parametrize("garbage", [b"", b"x" * 10, b"pwrd" + bytes(200), wire.encode(wire.Message("hello"))])
def test_garbage_from_the_wire_is_counted_and_survived(context, garbage):
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    link = BoardLink(context, f"tcp://127.0.0.1:{port}")
    link.ask_description()
    peer, _ = router.recv_multipart()
    router.send_multipart([peer, garbage])
    assert link.control.poll(2000)
    if garbage[4:5] == b"\0":
        with pytest.raises(VersionError):
            link.receive_control()
    else:
        assert link.receive_control() is None
    link.close()
    router.close()
