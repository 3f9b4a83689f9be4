"""A link to one powerd: description, streams by pull and resume, clock exchanges, and keys."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from powerd_client.host.hostclock import now_ns
from powerd_client.journals.link import BoardLink, Connection, Exchanges, credentials_for
from powerd_core import wire
from powerd_core.errors import ConfigError, PeerError
from powerd_core.keys import AllowedClient, KeyPair
from powerd_core.model import UNKNOWN_TIME_NS, ClockExchange, Gap
from powerd_core.protocol import WINDOW
from powerd_core.wire import decode, encode
from powerd_daemon.auth import KeyDirectory, make_pair
from powerd_daemon.config import parse_config
from powerd_daemon.daemon import Daemon
from support.fake_daemon import FakeDaemon
from support.steady import wait_for


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


def receive(link, count, timeout_s=60.0):
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


def restarted(context, first, **options):
    """Another powerd at the address of ``first``, which is gone."""
    first.close()
    return FakeDaemon(context, control_port=first.port, **options)


def hurry(link):
    """As after a silence that lasted long enough."""
    for state in link.streams.values():
        state.heard_ns = state.asked_ns = 1
    link._described_ns = 0


def settle(link, timeout_s=60.0):
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


def test_what_a_restarted_powerd_has_lost_becomes_a_gap_with_its_cause(context, begun):
    first, link = begun
    second = restarted(context, first, epoch=6)
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


PATIENCE_S = 60.0


class Pair:
    """A board that serves with keys, and the key directory of a client."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.board, self.client = KeyDirectory(directory / "b"), KeyDirectory(directory / "c")
        self.own, self.server = make_pair(), make_pair()
        with self.board.changing(), self.client.changing():
            self.board.write_pair("server.toml", self.server)
            self.client.write_pair("client.toml", self.own)
        config = f'[server]\nlisten = "tcp://127.0.0.1:*"\nkeys = "{self.board.path}"\n[[source]]\nkind = "sim"\n'
        self.daemon = Daemon(parse_config(config, "f"))
        self.url = self.daemon.listen
        self.trust(self.server.public)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        monkeypatch.setenv("POWERD_KEYS", str(self.client.path))

    def _run(self) -> None:
        try:
            if self.daemon.start(self._stop.is_set):
                self.daemon.serve(self._stop.is_set)
        finally:
            self.daemon.close()

    def trust(self, key: str) -> None:
        self.client.write_boards({self.url.removeprefix("tcp://"): key})

    def allow(self, *pairs: KeyPair) -> None:
        with self.board.changing():
            self.board.write_clients({f"c{i}": AllowedClient(f"c{i}", p.public, "read") for i, p in enumerate(pairs)})

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    made = Pair(tmp_path, monkeypatch)
    yield made
    made.close()


def test_a_refused_key_is_told_and_tried_again(pair: Pair, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    link = BoardLink(context, pair.url)
    with pytest.raises(PeerError) as caught:
        link.describe(PATIENCE_S)
    assert pair.own.public in str(caught.value)
    assert pair.own.secret not in str(caught.value)
    pair.allow(pair.own)

    def described() -> bool:
        link.ask()
        try:
            link.describe(timeout_s=0.2)
        except PeerError:
            return False
        return True

    wait_for(described)
    wait_for(lambda: link.exchange(timeout_ms=100))
    wait_for(lambda: [link.ask(), *link.receive()][1:])
    link.close()


def test_another_board_is_not_taken_for_this_one(pair: Pair, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    pair.allow(pair.own)
    pair.trust(make_pair().public)
    link = BoardLink(context, pair.url)
    with pytest.raises(PeerError):
        link.describe(PATIENCE_S)
    link.close()


def test_a_board_sends_nobody_elsewhere(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    for endpoint in ("tcp://10.0.0.1:22", "ipc:///run/other.sock", "inproc://x"):
        daemon = FakeDaemon(context)
        daemon.description = type(daemon.description)(
            **{f: getattr(daemon.description, f) for f in daemon.description.__slots__} | {"data_endpoint": endpoint}
        )
        link = BoardLink(context, daemon.url)
        with pytest.raises(PeerError):
            link.describe(PATIENCE_S)
        assert link.data is None
        link.close()
        daemon.close()


def test_secrets_that_others_could_read_are_refused(pair: Pair) -> None:
    assert credentials_for(pair.url) is not None
    assert credentials_for("tcp://127.0.0.1:1") is None
    assert credentials_for("ipc:///x") is None
    assert credentials_for(pair.url, keys=pair.board.path) is None
    file = pair.client.path / "client.toml"
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        credentials_for(pair.url)
    file.chmod(0o600)
    (pair.client.path / "boards.toml").chmod(0o666)
    with pytest.raises(ConfigError, match="chmod"):
        credentials_for(pair.url)


EPOCH = 5
AHEAD_NS = 7_000_000_000
"""So much the board's clock is ahead of ours."""


class Board:
    """The other end of the clock socket, which answers when the test wants it to."""

    def __init__(self, context):
        self.router = context.socket(zmq.ROUTER)
        self.router.bind("inproc://clock")
        self.clock = context.socket(zmq.DEALER)
        self.clock.connect("inproc://clock")
        self.peer = b""

    def question(self):
        self.peer, frame = self.router.recv_multipart()
        return decode(frame)

    def answer(self, question):
        t_ns = now_ns() + AHEAD_NS
        self.say(encode(ClockExchange(EPOCH, question.t1_host_ns, t_ns, t_ns)))

    def say(self, frame):
        self.router.send_multipart([self.peer, frame])


@pytest.fixture
def board():
    context = zmq.Context()
    yield Board(context)
    context.destroy(linger=0)


def test_an_answer_that_comes_late_is_kept_and_brackets_the_truth(board):
    exchanges = Exchanges()
    assert exchanges.make(board.clock, 1) is None
    assert exchanges.offset_ns(EPOCH) is None
    assert exchanges.board_now_ns(EPOCH) == UNKNOWN_TIME_NS
    board.answer(board.question())
    (late,) = exchanges.late(board.clock)
    assert abs(late.offset_ns + AHEAD_NS) <= late.delay_ns / 2 + 1
    assert exchanges.offset_ns(EPOCH) == pytest.approx(-AHEAD_NS, abs=late.delay_ns)
    assert -AHEAD_NS - late.delay_ns <= exchanges.least_offset_ns(EPOCH) <= -AHEAD_NS
    assert exchanges.board_now_ns(EPOCH) >= now_ns() + AHEAD_NS - 2 * late.delay_ns
    assert exchanges.late(board.clock) == []


def test_questions_that_wait_are_bounded(board):
    exchanges = Exchanges()
    for _ in range(70):
        assert exchanges.make(board.clock, 0) is None
    questions = [board.question() for _ in range(70)]
    for question in questions:
        board.answer(question)
    found = [e for _ in range(3) for e in exchanges.late(board.clock)]
    assert [e.t1_host_ns for e in found] == [q.t1_host_ns for q in questions[-64:]]


def test_a_peer_that_hangs_up_thousands_of_times_does_not_keep_a_connection_from_closing():
    """libzmq's own thread waits when nobody looks at what it tells of hang-ups, and whoever closes waits for it."""
    hung_up = 0

    def hang_up(listener):
        nonlocal hung_up
        with suppress(OSError):
            while True:
                listener.accept()[0].close()
                hung_up += 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up, args=(listener,), daemon=True).start()
        context = zmq.Context()
        connection = Connection(context, f"tcp://127.0.0.1:{listener.getsockname()[1]}", None, 8)
        connection.socket.reconnect_ivl = 1
        connection.reconnect()
        while hung_up < 2001:
            time.sleep(0.05)
        closing = threading.Thread(target=connection.close, daemon=True)
        closing.start()
        closing.join(30)
        assert not closing.is_alive()
    context.destroy(linger=0)


@pytest.mark.slow
def test_a_reader_that_looks_too_rarely_is_not_aborted():
    """libzmq aborts a process whose full queue made it miss heartbeats: all that was asked for has to find room."""
    words = [sys.executable, str(Path(__file__).with_name("slow_reader.py"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3 * 16 * WINDOW
