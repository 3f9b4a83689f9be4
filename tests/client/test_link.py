"""The link to a powerd: description, resume after loss, restart, other versions."""

import time

import pytest
import zmq

from powerd_client.link import BoardLink
from powerd_core import wire
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, VersionError, WireError
from powerd_core.model import Block, Gap
from powerd_core.serde import to_document
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


def test_a_description_that_cannot_be_read_is_not_taken_for_silence(link, daemon, monkeypatch):
    def newer(document):
        raise WireError("Description.streams[0].lines[0].accuracy: unknown key 'drift'")

    monkeypatch.setattr("powerd_client.link.read_description", newer)
    with pytest.raises(PeerError, match=rf"{daemon.url} says .*unknown key 'drift'.*the same release") as caught:
        link.describe(0.3)
    assert not isinstance(caught.value, PeerTimeout)


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


def restarted(context, first, **options):
    """Another powerd at the address of ``first``, which is gone."""
    first.close()
    return FakeDaemon(context, control_port=first.port, **options)


def hurry(link):
    """As after a silence that lasted long enough."""
    for state in link.streams.values():
        state.heard_ns = state.asked_ns = 1
    link._described_ns = 0


def settle(link, timeout_s=10.0):
    """All events and notes until nothing of an earlier epoch is open."""
    found, notes, deadline = [], [], time.monotonic() + timeout_s
    while link.description.epoch == 5 or link.earlier.open:
        assert time.monotonic() < deadline, link.earlier.open
        found += receive(link, 0)
        link.ask()
        link.data.poll(10)
        found += [event for event, _ in link.receive()]
        while link.control.poll(0):
            link.receive_control()
        notes += link.take_notes()
    return found, notes


@pytest.fixture
def begun(context):
    """A link and its daemon of epoch 5, of which blocks 0 and 1 were received and 2 to 4 were not."""
    first = FakeDaemon(context)
    link = BoardLink(context, first.url)
    first.add_block([1])
    link.describe()
    receive(link, 1)
    first.add_block([1])
    receive(link, 1)
    while link.exchange(500) is None:
        pass
    first._stop.set()
    first._thread.join()
    for _ in range(3):
        first.add_block([1])
    yield first, link
    link.close()


def test_a_restarted_powerd_is_described_anew_and_read_from_its_oldest(context, begun):
    first, link = begun
    second = restarted(context, first, epoch=6)
    for _ in range(3):
        second.add_block([2])
    hurry(link)
    events = receive(link, 3)
    assert [(e.epoch, e.sequence) for e in events] == [(6, 0), (6, 1), (6, 2)]
    second.close()


@pytest.mark.parametrize("spool", [None, []], ids=["older powerd", "no spool"])
def test_what_a_restarted_powerd_has_lost_becomes_a_gap_with_its_cause(context, begun, spool):
    first, link = begun
    second = restarted(context, first, epoch=6, spool=spool)
    hurry(link)
    _, notes = settle(link)
    (gap,) = [n for n in notes if isinstance(n, Gap)]
    last = wire.decode(first.ring[1])
    assert (gap.epoch, gap.sequence, gap.cause) == (5, 2, "powerd ended; its ring is lost")
    assert gap.t_first_ns == last.t_last_ns
    assert last.t_last_ns < gap.t_last_ns <= second.now_ns()
    states = [(n.epoch, n.body["state"]) for n in notes if isinstance(n, wire.Message) and n.subject == "epoch"]
    assert states == [(5, "live"), (6, "live"), (5, "settled")]
    second.close()


def test_another_board_at_the_address_is_read_from_its_newest(context, begun):
    first, link = begun
    second = restarted(context, first, epoch=6, board="another", spool=[])
    for _ in range(3):
        second.add_block([2])
    hurry(link)
    events, notes = settle(link)
    assert [n.cause for n in notes if isinstance(n, Gap)] == ["another board answers at the address"]
    second.add_block([2])
    assert min(numbers(events + receive(link, 1))) >= 2
    second.close()


def test_the_rest_of_an_epoch_comes_from_the_spool_and_so_does_one_that_nobody_saw(context, begun):
    first, link = begun
    unseen = FakeDaemon(context, epoch=9)
    for _ in range(4):
        unseen.add_block([3])
    unseen.close()
    before = FakeDaemon(context, epoch=3)
    before.add_block([0])
    before.close()
    second = restarted(context, first, epoch=6, spool=[before, first, unseen])
    second.spool_ready = False
    second.add_block([2])
    hurry(link)
    events = receive(link, 1)  # what is new does not wait for what is old
    assert [(e.epoch, e.sequence) for e in events] == [(6, 0)]
    second.spool_ready = True
    events, notes = settle(link)
    found = {epoch: [e.sequence for e in events if e.epoch == epoch] for epoch in (3, 5, 6, 9)}
    assert found == {3: [], 5: [2, 3, 4], 6: [], 9: [0, 1, 2, 3]}
    assert not [n for n in notes if isinstance(n, Gap)]
    assert [n.body["board"] for n in notes if n.epoch == 9 and n.subject == "description"] == ["fake board"]
    second.close()


def test_a_run_that_ends_before_the_spool_was_read_says_so(context, begun):
    first, link = begun
    second = restarted(context, first, epoch=6, spool=[first])
    second.spool_ready = False
    hurry(link)
    while link.description.epoch == 5:
        receive(link, 0)
        link.ask()
        while link.control.poll(10):
            link.receive_control()
    link.earlier.give_up()
    (gap,) = [n for n in link.take_notes() if isinstance(n, Gap)]
    assert (gap.epoch, gap.sequence) == (5, 2)
    assert "before the run ended" in gap.cause
    assert not link.earlier.open
    second.close()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ready": True, "epochs": [{"epoch": 1}]},
        {"ready": True, "epochs": 5},
        {"ready": True, "epochs": [{"epoch": 5, "streams": [{"number": 0, "oldest": 9, "next": 2}]}]},
    ],
)
def test_a_list_of_epochs_that_is_none_is_refused(begun, body):
    _, link = begun
    link.earlier._is_waiting = True
    for entry in body.get("epochs", []) if isinstance(body.get("epochs"), list) else []:
        entry["description"] = to_document(link.description)
    with pytest.raises(WireError):
        link.earlier.take_answer(body, 6)


def test_a_list_of_epochs_that_nobody_asked_for_changes_nothing(begun):
    _, link = begun
    notes = len(link.earlier.notes)
    with pytest.raises(WireError, match="nobody asked"):
        link.earlier.take_answer({"ready": True, "epochs": []}, 6)
    assert len(link.earlier.notes) == notes


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
