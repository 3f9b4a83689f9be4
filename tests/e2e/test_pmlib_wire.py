"""pmlib's protocol, spoken by a client of our own as the C library does: small reads, and one connection a counter."""

import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from powerd_analytics import read_run
from powerd_client.pmlib import service as service_module
from powerd_core.errors import ConfigError
from support.steady import steady_daemon

ALL, FIRST = bytes(16), b"\x01" + bytes(15)
"""Masks of lines; an empty one means all."""
WATTS = 3.0
"""Two lines of 1.5 W."""


class CLibrary:
    """One connection to pmlib's server."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)

    def say(self, *values):
        for value in values:
            data = value.encode() if isinstance(value, str) else value
            is_text = isinstance(value, str | bytes)
            self.socket.sendall(struct.pack("=i", len(data)) + data if is_text else struct.pack("=i", value))

    def take(self, size):
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            assert piece, "the server has closed"
            data += piece
        return data

    def number(self):
        return struct.unpack("=i", self.take(4))[0]

    def numbers(self, count):
        return [self.number() for _ in range(count)]

    def text(self):
        return self.take(self.number()).decode()

    def ask(self, *values):
        self.say(*values)
        return self.number()

    def data(self):
        """Set indices, and values by line."""
        self.say(4)
        size, ends, lines = self.numbers(3)
        indices = self.numbers(ends)
        return indices, lines, np.frombuffer(self.take(8 * size)).reshape(-1, indices[-1])


class Service:
    """`powerd pmlib` in front of a powerd that this process stands for."""

    def __init__(self, path, url):
        self.path, self.clients = path, []
        options = [url, "--listen", "127.0.0.1:0", "--directory", str(path)]
        with (path / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "powerd_daemon", "pmlib", *options], stderr=log
            )
        self.wait_for(lambda: "pmlib's server at 127.0.0.1:" in self.log())
        self.port = int(self.log().split("pmlib's server at 127.0.0.1:")[1].split()[0])

    def log(self):
        return (self.path / "log").read_text()

    def wait_for(self, condition):
        end = time.monotonic() + 60
        while not condition():
            assert self.process.poll() is None, list(self.path.glob("*"))
            assert time.monotonic() < end, list(self.path.glob("*"))
            time.sleep(0.02)

    def client(self):
        self.clients.append(CLibrary(self.port))
        return self.clients[-1]

    def counter(self, lines=ALL, *, aggregate, frequency_hz):
        library = self.client()
        assert library.ask(0, "gpu0", frequency_hz, aggregate, lines) == 0, self.log()
        return library

    def close(self):
        for client in self.clients:
            client.socket.close()
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, self.log()


PAUSED = threading.Event()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with steady_daemon(paused=PAUSED) as daemon:
        made = Service(tmp_path_factory.mktemp("pmlib"), daemon.url)
        yield made
        made.close()


def test_what_there_is(service):
    library = service.client()
    devices = [library.text() for _ in range(library.ask(7))]
    assert devices == ["gpu0"]
    assert [library.ask(6, "gpu0"), library.number(), library.text()] == [1000, 2, "gpu0"]
    assert library.ask(6, "gpu1") == -1
    assert library.ask(8) == 1
    assert [library.text(), *library.numbers(3)] == ["gpu0", 1000, 2, 0]
    assert library.text() == "fake board"
    for number in range(2):
        assert library.number() == number
        assert [library.text().startswith("gpu0."), len(library.take(4)), bool(library.text())] == [True, 4, True]
    assert library.number() == 0
    assert service.client().ask(0, "gpu0", 1001, 1, ALL) == -1


def test_counters_side_by_side_and_one_whose_client_dies(service):
    apart, sum_ = service.counter(FIRST, aggregate=0, frequency_hz=50), service.counter(aggregate=1, frequency_hz=0)
    dying = service.counter(aggregate=1, frequency_hz=0)
    assert apart.ask(3) == -1
    assert [counter.ask(1) for counter in (apart, sum_, dying)] == [0, 0, 0]
    assert [apart.ask(1), apart.ask(4)] == [-1, -1]
    dying.socket.close()
    time.sleep(0.2)
    assert [counter.ask(3) for counter in (apart, sum_)] == [0, 0]
    watts = [np.nanmean(counter.data()[2], axis=1) for counter in (apart, sum_)]  # a busy machine misses some
    assert [w.tolist() for w in watts] == [[pytest.approx(WATTS / 2)], [pytest.approx(WATTS)]]
    assert [counter.ask(5) for counter in (apart, sum_)] == [0, 0]
    service.wait_for(lambda: service.log().count("is recorded") >= 3)
    assert "is gone without a word: its counter ends" in service.log()


def test_live_values_until_the_client_has_enough(service):
    library = service.client()
    assert library.ask(9, "gpu1", 10) == -1
    assert [library.ask(9, "gpu0", 2000), library.number()] == [-2, 1000]
    assert library.ask(9, "gpu0", 20) == 0
    for go_on in (1, 1, 0):
        watts = struct.unpack("=2d", library.take(8 * library.number()))
        assert all(w > 0 or np.isnan(w) for w in watts)  # a busy machine misses some
        library.say(go_on)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """A C program that speaks the protocol, compiled."""
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    target = tmp_path_factory.mktemp("c") / "pmlib_client"
    source = Path(__file__).with_name("pmlib_client.c")
    subprocess.run([compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o", target, source], check=True)
    return target


def begin(program, service, *arguments):
    return subprocess.Popen([program, str(service.port), *map(str, arguments)], stdout=subprocess.PIPE, text=True)


def test_a_c_program_lists_reads_and_measures(service, program):
    recorded = service.log().count("is recorded")
    apart = begin(program, service, "measure", "gpu0", 50, 0, "3", 0.3, 1)
    sum_ = begin(program, service, "measure", "gpu0", 100, 1, "0", 0.4, 2)
    assert apart.stdout.readline() == "begun\n"
    about = begin(program, service, "about", "gpu0").communicate(timeout=60)[0].splitlines()
    assert about[:2] == ["devices gpu0", "info 1000 2 gpu0"]
    assert [row.split()[0] for row in about[2:]].count("line") == 2
    live = begin(program, service, "live", "gpu0", 20, 2).communicate(timeout=60)[0].splitlines()
    assert [len(row.split()) for row in live] == [3, 3]

    said = [client.communicate(timeout=60)[0] for client in (apart, sum_)]
    assert [client.returncode for client in (apart, sum_)] == [0, 0], service.log()
    form = r"set (\d) of \d, row (\d): (\d+) values ([\d.]+) s ([\d.]+) J"
    assert [row[:2] for row in re.findall(form, said[0])] == [("0", "0"), ("0", "1")]
    sets = re.findall(form, said[1])
    assert [row[:2] for row in sets] == [("0", "0"), ("1", "0")]
    for _, _, values, length_s, joules in sets:
        assert int(values) == pytest.approx(100 * float(length_s), abs=2)  # what lies between their clock and ours, too
        assert float(joules) == pytest.approx(WATTS * float(length_s), rel=0.01 + 0.004 / float(length_s))
    service.wait_for(lambda: service.log().count("is recorded") == recorded + 2)
    runs = [read_run(path) for path in re.findall("its counter: (.+) is recorded", service.log())[recorded:]]
    assert sorted(len(run.phases) for run in runs) == [1, 2]


def test_fifty_clients_at_once(service, program):
    clients = [begin(program, service, "about", "gpu0") for _ in range(50)]
    said = [client.communicate(timeout=100)[0] for client in clients]
    assert [client.returncode for client in clients] == [0] * 50
    assert {text.splitlines()[0] for text in said} == {"devices gpu0"}


@pytest.mark.parametrize("request_", [(99,), (6, b"x" * 2000), (0, "gpu0", 0, 1, b"short")])
def test_what_is_no_request_ends_that_connection_alone(service, request_):
    hostile = service.client()
    hostile.say(*request_)
    assert hostile.socket.recv(10) == b""
    assert service.client().ask(7) == 1


def test_what_was_not_read_is_nan_and_logged(service):
    counter = service.counter(aggregate=1, frequency_hz=20)
    assert counter.ask(1) == 0
    time.sleep(0.3)
    PAUSED.set()
    time.sleep(0.4)
    PAUSED.clear()
    time.sleep(0.2)
    assert counter.ask(3) == 0
    values = counter.data()[2][0]
    assert np.isnan(values).sum() >= 3
    assert values[~np.isnan(values)] == pytest.approx(WATTS)
    assert "values are NaN, for there are no readings of them" in service.log()


def test_a_powerd_that_vanishes(tmp_path):
    """Its counter ends with what was read, a new one is refused, and the server goes on."""
    (tmp_path / "pmlib").mkdir()
    with steady_daemon() as daemon:
        service = Service(tmp_path / "pmlib", daemon.url)
        counter = service.counter(aggregate=1, frequency_hz=20)
        assert counter.ask(1) == 0
        time.sleep(0.5)
    time.sleep(0.5)
    assert counter.ask(3) == 0
    values = counter.data()[2][0]
    assert values[:5] == pytest.approx(WATTS)
    assert np.isnan(values[-3:]).all()
    assert service.client().ask(0, "gpu0", 20, 1, ALL) == -1
    assert "no powerd answers" in service.log()
    service.close()


def test_a_client_that_comes_while_the_server_ends_does_not_keep_it_from_ending(monkeypatch):
    taken, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(service_module._Client, "setup", lambda _: [taken.set(), goes_on.wait(60)])
    server = service_module.Service(("127.0.0.1", 0), "ipc:///nowhere")
    loop = threading.Thread(target=server.serve_forever)
    loop.start()
    with socket.create_connection(server.server_address):
        assert taken.wait(60)
        ending = threading.Thread(target=server.end, daemon=True)
        ending.start()
        loop.join(60)
        goes_on.set()
        ending.join(60)
        assert not ending.is_alive()


@pytest.fixture
def listening(monkeypatch):
    """A server whose connections and counters are few, before a powerd that is not there."""
    server = service_module.Service(("127.0.0.1", 0), "ipc:///nowhere")
    loop = threading.Thread(target=server.serve_forever)
    loop.start()
    yield server
    server.end()
    loop.join(60)


def test_more_connections_than_there_may_be_are_turned_away(listening, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_CONNECTIONS", 3)
    threads = threading.active_count()
    kept = [socket.create_connection(listening.server_address) for _ in range(30)]
    for late in kept[3:]:
        late.settimeout(60)
        assert late.recv(1) == b"", "hung up on"
    assert threading.active_count() <= threads + 3
    for connection in kept:
        connection.close()


def test_a_connection_that_asks_nothing_is_closed(listening, monkeypatch):
    monkeypatch.setattr(service_module, "IDLE_S", 0.2)
    with socket.create_connection(listening.server_address, timeout=60) as silent:
        assert silent.recv(1) == b""
    with socket.create_connection(listening.server_address, timeout=60) as half:
        half.sendall(b"\7\0")
        assert half.recv(1) == b""


def test_no_more_counters_than_there_may_be(listening, monkeypatch):
    monkeypatch.setattr(service_module, "MAX_COUNTERS", 2)
    with listening.room(), listening.room(), pytest.raises(ConfigError, match="there are 2 counters already"):
        listening.room().__enter__()
    with listening.room():
        pass


def test_an_answer_has_an_end(service, monkeypatch):
    """What would be too many values is refused; the counter goes on."""
    library = service.counter(aggregate=0, frequency_hz=1000)
    assert service_module.MAX_VALUES * 8 <= 32 << 20
    assert library.ask(1) == 0
    assert library.ask(3) == 0
    library.data()
