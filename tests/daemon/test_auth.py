"""Who gets in: real sockets, real handshakes, and strangers of all kinds."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq
from daemon_harness import PATIENCE_S, Running, running

from powerd_core import Block, ClockExchange, ConfigError, Message, PeerError, Want, decode, encode
from powerd_core.keys import AllowedClient, Credentials, KeyPair
from powerd_core.wire import CURRENT
from powerd_daemon import peer
from powerd_daemon.auth import KeyDirectory, is_local, make_pair, who_may_read
from powerd_daemon.config import Config, ServerConfig, parse_config
from powerd_daemon.daemon import Daemon
from powerd_daemon.peer import ask
from powerd_daemon.sockets import bind_router, bound_endpoint
from support.steady import wait_for

REQUESTS = {"control": Message("describe"), "data": Want(0, 0, CURRENT, 100, True), "clock": ClockExchange(0, 5)}
QUIET_MS = 300
"""So long a stranger listens for a byte, after the board is known to have refused it."""


class House:
    """A board with keys, its clients' pairs by role, and a powerd that serves on loopback with them."""

    def __init__(self, directory: Path) -> None:
        self.keys = KeyDirectory(directory / "board")
        self.server = make_pair()
        self.pairs = {role: make_pair() for role in ("read", "control")}
        with self.keys.changing():
            self.keys.write_pair("server.toml", self.server)
            self.allow(**self.pairs)

    def allow(self, **pairs: KeyPair) -> None:
        self.keys.write_clients({role: AllowedClient(role, pair.public, role) for role, pair in pairs.items()})

    def config(self, host: str = "127.0.0.1") -> Config:
        return configuration(f'listen = "tcp://{host}:*"\nkeys = "{self.keys.path}"')


def configuration(server: str) -> Config:
    return parse_config(f'[server]\n{server}\n[[source]]\nkind = "steady_source:SteadySource"\nname = "s"\n', "f")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes its time for two handshakes."""
    monkeypatch.setattr(peer, "TIMEOUT_MS", int(PATIENCE_S * 1000))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def powerd(house: House) -> Iterator[Running]:
    with running(house.config()) as started:
        wait_for(lambda: started.daemon.description is not None)
        yield started


@contextmanager
def dealer(endpoint: str, credentials: Credentials | None = None) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = context.socket(zmq.DEALER)
    made.set(zmq.LINGER, 0)
    made.set(zmq.SNDTIMEO, 1000)
    made.set(zmq.IPV6, int("[" in endpoint))
    if credentials is not None:
        made.set(zmq.CURVE_PUBLICKEY, credentials.own.public.encode())
        made.set(zmq.CURVE_SECRETKEY, credentials.own.secret.encode())
        made.set(zmq.CURVE_SERVERKEY, credentials.board.encode())
    made.connect(endpoint)
    try:
        yield made
    finally:
        context.destroy(linger=0)


def endpoints(powerd: Running) -> dict[str, str]:
    return {"control": powerd.daemon.listen, "data": powerd.daemon.data, "clock": powerd.daemon.clock}


def answer(made: zmq.Socket[bytes], request: Any) -> Any:
    made.send(encode(request))
    assert made.poll(PATIENCE_S * 1000), "no answer"
    return decode(made.recv())


def test_who_is_allowed_is_served_on_all_sockets(house: House, powerd: Running) -> None:
    for role, pair in house.pairs.items():
        credentials = Credentials(pair, house.server.public)
        for name, endpoint in endpoints(powerd).items():
            with dealer(endpoint, credentials) as made:
                got = answer(made, REQUESTS[name])
                assert type(got) in (Message, Block, ClockExchange), role
                assert getattr(got, "subject", "description") == "description"
    assert powerd.daemon.description is not None
    assert powerd.daemon.description.access == "keys"


@pytest.mark.slow
def test_stats_name_clients_by_their_keys(house: House, powerd: Running) -> None:
    with dealer(powerd.daemon.data, Credentials(house.pairs["read"], house.server.public)) as made:
        answer(made, REQUESTS["data"])
        stats = ask(powerd.daemon.listen, "stats", keys=str(house.keys.path)).body
        assert [client["name"] for client in stats["clients"]] == ["read"]


def test_an_answer_knows_who_asks_and_the_role_that_it_has_now(house: House, powerd: Running) -> None:
    def tell(question: Message, caller: AllowedClient | None) -> bytes:
        return encode(Message("who", {"who": [caller.name, caller.role] if caller else None}))

    powerd.daemon._server._subjects["who"] = tell  # type: ignore[index]
    url = endpoints(powerd)["control"]
    for role, pair in house.pairs.items():
        with dealer(url, Credentials(pair, house.server.public)) as made:
            assert answer(made, Message("who")).body == {"who": [role, role]}
    with dealer(url, Credentials(house.server, house.server.public)) as made:
        assert answer(made, Message("who")).body == {"who": ["(this board)", "control"]}
    with dealer(url, Credentials(house.pairs["read"], house.server.public)) as made:
        assert answer(made, Message("who")).body == {"who": ["read", "read"]}
        house.keys.write_clients({"lab": AllowedClient("lab", house.pairs["read"].public, "control")})
        assert answer(made, Message("who")).body == {"who": ["lab", "control"]}


def test_without_keys_nobody_is_known(tmp_path: Path) -> None:
    with running(configuration(f'listen = "ipc://{tmp_path}/s"')) as powerd:
        asked: list[AllowedClient | None] = []
        powerd.daemon._server._subjects["who"] = lambda question, caller: (  # type: ignore[index]
            asked.append(caller) or encode(Message("who"))
        )
        with dealer(endpoints(powerd)["control"]) as made:
            answer(made, Message("who"))
    assert asked == [None]


@pytest.mark.parametrize("stranger", ["unknown key", "no keys", "another board's key"])
def test_a_stranger_gets_nothing(house: House, powerd: Running, stranger: str) -> None:
    board = make_pair().public if stranger == "another board's key" else house.server.public
    own = make_pair() if stranger == "unknown key" else house.pairs["control"]
    credentials = None if stranger == "no keys" else Credentials(own, board)
    with ExitStack() as stack:
        dealers = {name: stack.enter_context(dealer(e, credentials)) for name, e in endpoints(powerd).items()}
        for name, made in dealers.items():
            with suppress(zmq.Again):  # libzmq may have given up already
                made.send(encode(REQUESTS[name]))
        for name in dealers:
            expected = "127.0.0.1 was refused" if stranger == "unknown key" else f" to the {name} socket failed"
            wait_for(lambda expected=expected: expected in powerd.said.getvalue())
        wait_for(lambda: powerd.daemon._server.handshakes_failed >= 3)
        assert not any(made.poll(QUIET_MS // 3) for made in dealers.values())
    assert house.server.secret not in powerd.said.getvalue()
    assert powerd.daemon._server.garbage["control"] == powerd.daemon._server.denied == 0


HELLOS = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "zmtp1": b"\x01\x00",  # an anonymous peer, without any security
    "zmtp2": b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00",
    "null": b"\xff"
    + bytes(8)
    + b"\x7f\x03\x00NULL"
    + bytes(48)
    + b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER",
    "plain": b"\xff" + bytes(8) + b"\x7f\x03\x00PLAIN" + bytes(47),
    "forged": b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47) + b"\x04\xc8\x05HELLO" + bytes(194),
}


def test_older_and_weaker_protocols_get_nothing(powerd: Running) -> None:
    for name, endpoint in endpoints(powerd).items():
        frame = encode(REQUESTS[name])
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        for what, hello in HELLOS.items():
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as line:
                received = b""
                with suppress(ConnectionError, TimeoutError):
                    line.sendall(hello)
                    line.sendall(bytes([0, len(frame)]) + frame)
                    while piece := line.recv(4096):
                        received += piece
            # A greeting at most: which version, which mechanism, and no more.
            assert len(received) <= 64, what
            assert b"pwrd" not in received, what


def test_revoked_in_mid_stream_and_allowed_again(house: House, powerd: Running) -> None:
    credentials = Credentials(house.pairs["read"], house.server.public)
    ends = endpoints(powerd)
    with dealer(ends["data"], credentials) as data, dealer(ends["clock"], credentials) as clock:
        data.send(encode(Want(0, 0, CURRENT, 100_000, True)))
        first = [decode(data.recv()) for _ in range(5)]
        answer(clock, ClockExchange(0, 1))
        with house.keys.changing():
            house.allow(control=house.pairs["control"])
        wait_for(lambda: not powerd.daemon._server.delivery.subscribers)
        while data.poll(QUIET_MS):  # what had been handed to the network before
            data.recv()
        data.send(encode(Want(0, 0, 0, 100_000, True)))
        clock.send(encode(ClockExchange(0, 2)))
        wait_for(lambda: powerd.daemon._server.denied >= 2)
        assert not data.poll(QUIET_MS)
        assert not clock.poll(0)
        with dealer(ends["control"], credentials) as control:
            with suppress(zmq.Again):
                control.send(encode(Message("describe")))
            wait_for(lambda: powerd.daemon._server.handshakes_failed)
            assert not control.poll(QUIET_MS)
        with house.keys.changing():
            house.allow(**house.pairs)
        # The same connection goes on where it was.
        data.send(encode(Want(0, 0, first[-1].sequence + 1, 100_000, True)))
        assert data.poll(PATIENCE_S * 1000)
        assert decode(data.recv()).sequence == first[-1].sequence + 1
    assert "may read no longer" in powerd.said.getvalue()


@pytest.mark.parametrize("text", ["[clients.read]\npublic = 1\n", None], ids=["entry", "gone"])
def test_a_list_of_clients_that_cannot_be_read_admits_nobody(house: House, powerd: Running, text: str | None) -> None:
    file = house.keys.path / "clients.toml"
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with dealer(powerd.daemon.listen, Credentials(house.pairs["control"], house.server.public)) as made:
        with suppress(zmq.Again):
            made.send(encode(Message("describe")))
        wait_for(lambda: powerd.daemon._server.handshakes_failed)
        assert not made.poll(QUIET_MS)
    assert text is None or "no client is admitted" in powerd.said.getvalue()
    # The board's own commands still reach it.
    assert ask(powerd.daemon.listen, "stats", keys=str(house.keys.path)).subject == "stats"


def test_without_the_handler_that_checks_keys_nobody_gets_in(house: House) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = bind_router(context, "tcp://127.0.0.1:*", mandatory=False, keys=house.server)
    with dealer(bound_endpoint(router), Credentials(house.pairs["read"], house.server.public)) as made:
        made.send(b"hello")
        assert not router.poll(QUIET_MS)
    context.destroy(linger=0)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_ipv6(house: House) -> None:
    with running(house.config("[::1]")) as powerd:
        wait_for(lambda: powerd.daemon.description is not None)
        assert powerd.daemon.listen.startswith("tcp://[::1]:")
        with dealer(powerd.daemon.listen, Credentials(house.pairs["read"], house.server.public)) as made:
            assert answer(made, Message("describe")).subject == "description"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_what_only_this_machine_reaches(host: str) -> None:
    assert is_local(f"tcp://{host}:1")
    assert is_local("ipc:///x")


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "eth0", "localhost.example.org", "[fe80::1%eth0]", "0"])
def test_what_others_may_reach(host: str) -> None:
    assert not is_local(f"tcp://{host}:1")


def made_server(listen: str, **more: Any) -> ServerConfig:
    return ServerConfig(**more).listening_on(listen, "test")


def test_who_may_read() -> None:
    assert who_may_read(made_server("ipc:///x")) == "socket-file"
    assert who_may_read(made_server("tcp://127.0.0.1:7360")) == "this-machine"
    assert who_may_read(made_server("tcp://127.0.0.1:7360", keys="k")) == "keys"
    assert who_may_read(made_server("tcp://*:7360")) == "keys"
    assert who_may_read(made_server("tcp://*:7360", insecure=True)) == "anyone"
    beside = ServerConfig().listening_on("tcp://127.0.0.1:7360", "test", data="tcp://10.0.0.1:7361")
    assert who_may_read(beside) == "keys"
    with pytest.raises(ConfigError, match="all"):
        who_may_read(ServerConfig().listening_on("ipc:///x", "test", data="tcp://*:7361"))
    with pytest.raises(ValueError, match="insecure"):
        ServerConfig(keys="k", insecure=True)


def test_beyond_this_machine_it_starts_with_keys_or_when_told_only(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERD_KEYS", str(tmp_path / "none"))
    given = f'listen = "tcp://127.0.0.1:*"\nkeys = "{tmp_path}/none"'
    for server, option in (('listen = "tcp://*:*"', ""), (given, f" --keys {tmp_path}/none")):
        with pytest.raises(ConfigError, match=f"`powerd keys server{option}`"):
            Daemon(configuration(server))
    (house.keys.path / "server.toml").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Daemon(house.config())
    with running(configuration('listen = "tcp://*:*"\ninsecure = true')) as powerd:
        wait_for(lambda: powerd.daemon.description is not None)
        url = powerd.daemon.listen.replace("0.0.0.0", "127.0.0.1")
        assert ask(url, "describe").body["access"] == "anyone"
    assert "anyone who reaches these addresses can read along" in powerd.said.getvalue()


def client_of(directory: Path, url: str, pair: KeyPair, board: str) -> str:
    """A directory of keys for a client of the board at ``url``."""
    keys = KeyDirectory(directory / "client")
    with keys.changing():
        keys.write_pair("client.toml", pair)
        keys.write_boards({url.removeprefix("tcp://"): board})
    return str(keys.path)


def test_commands_find_their_keys_and_say_why_they_are_refused(house: House, powerd: Running, tmp_path: Path) -> None:
    url, stranger, board = powerd.daemon.listen, make_pair(), house.server.public
    assert ask(url, "describe", keys=client_of(tmp_path, url, house.pairs["read"], board)).subject == "description"
    assert ask(url, "describe", keys=str(house.keys.path)).subject == "description"
    with pytest.raises(PeerError, match="powerd keys allow NAME"):
        ask(url, "describe", keys=client_of(tmp_path, url, stranger, board))
    with pytest.raises(PeerError, match="there is no key for it here"):
        ask(url, "describe", keys=str(tmp_path / "none"))
    with pytest.raises(PeerError, match="powerd keys trust --replace"):
        ask(url, "describe", keys=client_of(tmp_path, url, house.pairs["read"], stranger.public))


def test_a_powerd_without_keys_where_keys_are_trusted(house: House, tmp_path: Path) -> None:
    with running(configuration('listen = "tcp://127.0.0.1:*"')) as powerd:
        wait_for(lambda: powerd.daemon.description is not None)
        url = powerd.daemon.listen
        with pytest.raises(PeerError, match="powerd keys trust --replace"):
            ask(url, "describe", keys=client_of(tmp_path, url, house.pairs["read"], house.server.public))
        # On the board itself its own keys are tried first, and then none.
        assert ask(url, "describe", keys=str(house.keys.path)).body["access"] == "this-machine"
