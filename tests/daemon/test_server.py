"""The server's two sockets, turned by hand in one thread: no sampler, no waiting."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from daemon_harness import Client, block, following
from steady_source import steady_stream

from powerd_core import Block, ClockExchange, ConfigError, Gap, Message, SensorError, Want, encode
from powerd_core.wire import decode
from powerd_daemon.log import Console
from powerd_daemon.ring import EVICTED, Store
from powerd_daemon.server import IDLE_NS, LATER_NS, MAX_CLIENTS, MAX_LATER, Later, Server
from powerd_daemon.sockets import SEND_HWM, bind_router, bind_sockets, bound_endpoint, close_router
from powerd_daemon.sources.sim.bus import VirtualClock
from support.steady import wait_for

EPOCH = 7
STREAM = steady_stream()


class Bench:
    """A server without samplers: the test puts the frames into its store."""

    def __init__(self, directory: Path, ring_bytes: int = 1 << 20) -> None:
        self.clock = VirtualClock()
        self.said = io.StringIO()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets = bind_sockets(self.context, *(f"ipc://{directory}/{name}" for name in "cdt"))
        self.store = Store(EPOCH, ring_bytes)
        self.store.add(STREAM)
        self.subjects = {"describe": lambda question, caller: encode(Message("description", {"board": "b"}, EPOCH))}
        self.may_read = True
        self.server = Server(self.sockets, self.store, self.clock, self.subjects, lambda _: self.may_read)
        self.console = Console(self.said, self.clock).__enter__()
        self.clients: list[Client] = []

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.sockets.release()
        self.context.term()
        self.console.__exit__()

    def turn(self) -> None:
        self.clock.t_ns += 10_000_000
        while self.server.cycle():
            pass

    def client(self, socket: str = "data") -> Client:
        self.clients.append(Client(bound_endpoint(getattr(self.sockets, socket)), self.turn))
        return self.clients[-1]

    def fill(self, count: int, scans: int = 3) -> None:
        ring = self.store.intakes[0].ring
        for n in range(ring.next, ring.next + count):
            frame = encode(block(STREAM, n, EPOCH, scans))
            self.store.intakes[0].accept(frame, decode(frame))

    def numbers(self, client: Client, count: int) -> list[int]:
        """Sequence numbers of the next frames a client gets."""
        found = []
        for _ in range(count):
            event = client.receive()
            assert isinstance(event, Block | Gap)
            found.append(event.sequence)
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    """With a ring of a few frames."""
    bench = Bench(tmp_path, ring_bytes=2000)
    yield bench
    bench.close()


QUIET_S = 0.2


def test_eviction_is_an_explicit_gap(small: Bench) -> None:
    small.fill(30)
    client = small.client()
    client.send(Want(0, 0, 4, 100))
    gap = client.receive()
    oldest = small.store.intakes[0].ring.oldest
    assert isinstance(gap, Gap)
    assert (gap.sequence, gap.span, gap.lost, gap.cause) == (4, oldest - 4, -1, EVICTED)
    assert small.numbers(client, 30 - oldest) == list(range(oldest, 30))
    assert next(iter(small.server.delivery.subscribers.values())).evicted == oldest - 4


def test_a_client_that_never_reads_slows_nobody_and_grows_nothing(bench: Bench) -> None:
    lazy, keen = bench.client(), bench.client()
    lazy.socket.set(zmq.RCVHWM, 1)
    lazy.send(Want(0, 0, 0, 1_000_000))
    keen.send(Want(0, 0, 0, 1_000_000))
    expected = 0
    for _ in range(400):
        bench.fill(2, scans=2000)
        for _ in range(2):
            event = keen.receive()
            assert isinstance(event, Block | Gap)
            assert event.sequence == expected
            expected = following(event)
    by_speed = sorted(bench.server.delivery.subscribers.values(), key=lambda s: s.frames)
    assert by_speed[1].frames == 800
    # Its own high-water mark of 1000 and the kernel's buffers take some; the server's queue no more than its own mark.
    assert by_speed[0].cursors[EPOCH, 0].next < 800
    assert by_speed[0].retry_ns is not None
    assert bench.server.delivery.retry_ns() is not None
    assert SEND_HWM < 100


def test_clock_exchange(bench: Bench) -> None:
    client = bench.client("clock")
    answer = client.ask(ClockExchange(0, 123))
    assert isinstance(answer, ClockExchange)
    assert (answer.epoch, answer.t1_host_ns, answer.t4_host_ns) == (EPOCH, 123, 0)
    assert bench.clock.t_ns >= answer.t3_board_ns >= answer.t2_board_ns > 1_000_000_000


@pytest.mark.parametrize("socket", ["control", "data"])
def test_garbage_is_counted_and_not_answered(bench: Bench, socket: str) -> None:
    client = bench.client(socket)
    good = encode(Message("describe"))
    garbage = [b"", b"\0" * 100, good[:-1], good + b"x", b"pwrd" + b"\xff" * 70, bytes([good[0] ^ 1]) + good[1:]]
    for frame in garbage[:-1]:
        client.send(frame)
    client.socket.send_multipart([good, good])
    assert client.receive().subject == "error", "a frame of version 255 is told which version is spoken"
    while bench.server.garbage[socket] < len(garbage):
        bench.turn()
    assert client.receive(QUIET_S) is None
    assert bench.server.garbage[socket] == len(garbage)
    assert bench.said.getvalue().count("\n") <= 10
    bench.fill(1)
    if socket == "data":
        client.send(Want(0, 0, 0, 1))
        assert bench.numbers(client, 1) == [0]
    else:
        assert client.ask(Message("describe")).subject == "description"


def test_the_number_of_clients_is_bounded_and_idle_ones_make_room(bench: Bench) -> None:
    first = bench.client()
    for n in range(MAX_CLIENTS):
        bench.server._take_want(Want(0, 0, 0, 0), _Identity(n), 0)  # type: ignore[arg-type]
    answer = first.ask(Want(0, 0, 0, 1))
    assert f"serves {MAX_CLIENTS} clients already" in answer.body["message"]
    bench.clock.t_ns += IDLE_NS
    bench.turn()
    bench.fill(1)
    first.send(Want(0, 0, 0, 1))
    assert bench.numbers(first, 1) == [0]


ANSWER = encode(Message("capped", {"watts": 200}, EPOCH))


class Helper:
    """Another process that is asked, as the server knows it: what was begun, and how each answer is given."""

    def __init__(self, bench: Bench) -> None:
        self.given: list[Callable[[bytes], None]] = []
        bench.subjects["cap"] = lambda question, caller: Later(self.given.append)


def pump(bench: Bench, is_so: Callable[[], bool]) -> None:
    """Turn until it is so."""
    wait_for(lambda: (bench.turn(), is_so())[1])


def test_readings_and_clocks_go_on_while_an_answer_takes_long(bench: Bench) -> None:
    """The one who is asked blocks until all else was served, which would last for ever in the serving loop."""
    is_all_served, has_begun = threading.Event(), threading.Event()

    def begin(give: Callable[[bytes], None]) -> None:
        def work() -> None:
            has_begun.set()
            is_all_served.wait()
            give(ANSWER)

        threading.Thread(target=work, daemon=True).start()

    bench.subjects["cap"] = lambda question, caller: Later(begin)
    asker, reader, clock, other = (bench.client(name) for name in ("control", "data", "clock", "control"))
    asker.send(Message("cap"))
    pump(bench, has_begun.is_set)
    bench.fill(100)
    reader.send(Want(0, 0, 0, 1000))
    assert bench.numbers(reader, 100) == list(range(100))
    assert isinstance(clock.ask(ClockExchange(0, 1)), ClockExchange)
    assert other.ask(Message("describe")).subject == "description"
    assert asker.receive(QUIET_S) is None
    is_all_served.set()
    assert asker.receive() == Message("capped", {"watts": 200}, EPOCH)


def test_no_more_answers_are_awaited_than_there_is_room_for_and_what_is_refused_never_begins(bench: Bench) -> None:
    helper, client = Helper(bench), bench.client("control")
    for _ in range(MAX_LATER):
        client.send(Message("cap"))
    pump(bench, lambda: len(helper.given) == MAX_LATER)
    refused = client.ask(Message("cap"))
    assert refused.body["message"] == f"{MAX_LATER} answers are awaited here already: ask again later"
    assert len(helper.given) == MAX_LATER
    helper.given[0](ANSWER)
    assert client.receive().subject == "capped"
    client.send(Message("cap"))
    pump(bench, lambda: len(helper.given) == MAX_LATER + 1)


def test_an_answer_that_does_not_come_is_told_once_and_makes_room(bench: Bench) -> None:
    helper, client = Helper(bench), bench.client("control")
    client.send(Message("cap"))
    pump(bench, lambda: len(helper.given) == 1)
    bench.clock.t_ns += LATER_NS
    assert client.receive().body["message"] == "no answer came within 10 s"
    helper.given[0](ANSWER)
    assert client.receive(QUIET_S) is None
    assert bench.server._awaited == []


def test_who_is_gone_loses_the_answer_silently(bench: Bench) -> None:
    helper, gone, other = Helper(bench), bench.client("control"), bench.client("control")
    gone.send(Message("cap"))
    pump(bench, lambda: len(helper.given) == 1)
    bench.clients.remove(gone)
    gone.close()
    helper.given[0](ANSWER)
    assert other.ask(Message("describe")).subject == "description"
    assert bench.server._awaited == []
    assert bench.said.getvalue() == ""


def test_who_may_read_no_longer_gets_no_answer_either(bench: Bench) -> None:
    helper, client = Helper(bench), bench.client("control")
    client.send(Message("cap"))
    pump(bench, lambda: len(helper.given) == 1)
    bench.may_read = False
    helper.given[0](ANSWER)
    bench.turn()
    bench.may_read = True
    assert client.receive(QUIET_S) is None


def test_an_answer_may_refuse_in_its_own_words(bench: Bench) -> None:
    def refuse(*_: object) -> bytes:
        raise SensorError("the helper is not running")

    bench.subjects |= {"cap": refuse, "later": lambda question, caller: Later(refuse)}
    client = bench.client("control")
    for subject in ("cap", "later"):
        answer = client.ask(Message(subject))
        assert (answer.subject, answer.body["message"]) == ("error", "the helper is not running")
    assert bench.server._awaited == []


class _Identity:
    """A peer's identity as it arrives in front of a request."""

    def __init__(self, number: int) -> None:
        self.bytes = f"client {number}".encode()

    def get(self, _: str) -> str:
        return "here"


def test_a_stale_socket_is_replaced_and_other_files_are_not(bench: Bench, tmp_path: Path) -> None:
    stale = zmq.Context()
    path = tmp_path / "old"
    socket = stale.socket(zmq.ROUTER)
    socket.bind(f"ipc://{path}")
    copy = tmp_path / "kept"
    copy.hardlink_to(path)
    socket.close()
    stale.term()
    copy.rename(path)
    assert path.is_socket()
    close_router(bind_router(bench.context, f"ipc://{path}", mandatory=False))
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(ConfigError, match="File exists"):
        bind_router(bench.context, f"ipc://{path}", mandatory=False)
    assert path.read_text() == "precious"
