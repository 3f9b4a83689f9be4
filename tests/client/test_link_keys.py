"""A client's keys: found by the board's address, refused with a remedy, and tried again."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from powerd_client.keys import credentials_for
from powerd_client.link import BoardLink
from powerd_core.errors import ConfigError, PeerError, PeerTimeout
from powerd_core.keys import AllowedClient, KeyPair
from powerd_daemon.clock import SystemClock
from powerd_daemon.config import parse_config
from powerd_daemon.daemon import Daemon
from powerd_daemon.keys import KeyDirectory, make_pair
from powerd_daemon.log import Log
from support.fake_daemon import FakeDaemon

PATIENCE_S = 20.0


class Pair:
    """A board that serves with keys, and the key directory of a client."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.board, self.client = KeyDirectory(directory / "b"), KeyDirectory(directory / "c")
        self.own, self.server = make_pair(), make_pair()
        with self.board.changing(), self.client.changing():
            self.board.write_pair("server.toml", self.server)
            self.client.write_pair("client.toml", self.own)
        config = f'[server]\nlisten = "tcp://127.0.0.1:*"\nkeys = "{self.board.path}"\n[[source]]\nkind = "sim"\n'
        self.said = io.StringIO()
        self.daemon = Daemon(parse_config(config, "f"), Log(self.said, SystemClock()))
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


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_readings_and_clock_come_through(pair: Pair, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    pair.allow(pair.own)
    link = BoardLink(context, pair.url)
    assert link.describe(PATIENCE_S).access == "keys"
    wait(lambda: link.exchange(timeout_ms=100))
    wait(lambda: [link.ask(), *link.receive()][1:])
    assert link.refusal() is None
    link.close()


def wait(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_refused_key_is_told_and_tried_again(pair: Pair, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    link = BoardLink(context, pair.url)
    with pytest.raises(
        PeerError, match="refuses this client's key: on the board run `powerd keys allow NAME '"
    ) as caught:
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

    wait(described)
    link.close()


def test_another_board_is_not_taken_for_this_one(pair: Pair, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    pair.allow(pair.own)
    pair.trust(make_pair().public)
    link = BoardLink(context, pair.url)
    with pytest.raises(PeerError, match="does not have the key that is trusted for it"):
        link.describe(PATIENCE_S)
    link.close()


def test_without_keys_it_says_what_to_do(
    pair: Pair, context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POWERD_KEYS", str(tmp_path / "none"))
    link = BoardLink(context, pair.url)
    # Which side sees first that the other has no keys is a race; libzmq connects again until it is this one.
    with pytest.raises(PeerError, match="there is no key for it here") as caught:
        link.describe(PATIENCE_S)
    assert not isinstance(caught.value, PeerTimeout)
    link.close()


def test_a_board_sends_nobody_elsewhere(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    for endpoint in ("tcp://10.0.0.1:22", "ipc:///run/other.sock", "inproc://x"):
        daemon = FakeDaemon(context)
        daemon.description = type(daemon.description)(
            **{f: getattr(daemon.description, f) for f in daemon.description.__slots__} | {"data_endpoint": endpoint}
        )
        link = BoardLink(context, daemon.url)
        with pytest.raises(PeerError, match="only a port is taken"):
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
    with pytest.raises(ConfigError, match="others can change it"):
        credentials_for(pair.url)
