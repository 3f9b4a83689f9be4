"""What guards the sockets: who may reach them, by the addresses they listen on and the keys there are.

On a socket that only this machine or a file's owner reaches, whoever reaches it may read. Beyond that, connections are
encrypted (CURVE) and admitted by their public key: libzmq asks the `Guard` about every new connection, and it is asked
again for every request, so that a right that is taken away is gone at once. Keys lie in a `KeyDirectory` as files.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import zmq
from zmq.utils import z85

from powerd_core.errors import ConfigError
from powerd_core.keys import (
    BOARDS_FILE,
    CLIENT_FILE,
    CLIENTS_FILE,
    SERVER_FILE,
    AllowedClient,
    Credentials,
    KeyPair,
    find_credentials,
    keys_directory,
    parse_boards,
    parse_clients,
    parse_pair,
    read_monitor,
)
from powerd_daemon.config import ServerConfig
from powerd_daemon.sockets import Sockets, borrowed
from powerd_daemon.toml_files import write_text

MayRead = Callable[[zmq.Frame], bool]
"""Whether the sender of a message may read now, told by the message's first frame, which carries the connection's
properties. Asked for every request, so that taking the right away takes effect at once."""

CallerOf = Callable[[zmq.Frame], AllowedClient | None]
"""Who sent a message, told by the message's first frame; None where no keys tell."""

_HEADS = {
    SERVER_FILE: "# The keys of this board, made by `powerd keys server`. Whoever has the secret is this board.",
    CLIENTS_FILE: "# Who may connect to this board. Change it with `powerd keys allow` and `revoke`; no restart.",
    CLIENT_FILE: "# The keys of this client, made by `powerd keys client`. Whoever has the secret is this client.",
    BOARDS_FILE: "# Public keys of boards, from `powerd keys trust`.",
}
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
SLICE = 100
"""Requests and events that are taken in one turn of the loop."""
QUEUE = 100_000
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_LEFT = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _REFUSED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL

THIS_BOARD = "(this board)"
"""The name of who has the board's own keys; no client can be called so."""
BY_FILE, BY_MACHINE, BY_KEY, ANYONE = "socket-file", "this-machine", "keys", "anyone"
"""Who may read, as a description says it."""

_log = logging.getLogger(__name__)


class KeyDirectory:
    """One directory of keys; the default one without a path. Methods raise `ConfigError`."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path or keys_directory(os.environ, str(Path.home()))).expanduser().absolute()

    def server(self) -> KeyPair | None:
        """The board's own pair, None before `powerd keys server`."""
        return self._pair(SERVER_FILE)

    def client(self) -> KeyPair | None:
        """This client's own pair, None before `powerd keys client`."""
        return self._pair(CLIENT_FILE)

    def clients(self) -> dict[str, AllowedClient]:
        """Who may connect to the board, by name."""
        return parse_clients(self.read(CLIENTS_FILE, False) or "", str(self.path / CLIENTS_FILE))

    def boards(self) -> dict[str, str]:
        """Public keys of boards by ``host:port``."""
        return parse_boards(self.read(BOARDS_FILE, False) or "", str(self.path / BOARDS_FILE))

    def credentials(self, url: str) -> Credentials | None:
        """For the board at ``url``, None when it is not known here."""
        return find_credentials(url, str(self.path), self.read)

    def read(self, name: str, is_secret: bool) -> str | None:
        """A file's text, None when there is none. Refuses what others could have read or changed."""
        path = self.path / name
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                if is_secret and mode & 0o077:
                    raise ConfigError(
                        f"{path}: others could read this secret: run `chmod 600 {path}`, or make new keys"
                    )
                if (mode | self.path.stat().st_mode) & 0o022:
                    raise ConfigError(
                        f"{path}: others can change it: run `chmod go-w {path} {self.path}` and check the keys"
                    )
                return file.read().decode()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}: run powerd as its owner") from error
        except UnicodeDecodeError:
            # Without the error, which carries a secret's bytes.
            raise ConfigError(f"{path}: not a text file in UTF-8") from None

    def write_pair(self, name: str, pair: KeyPair) -> None:
        self._write(name, f'public = "{pair.public}"\nsecret = "{pair.secret}"\n', 0o600)

    def write_clients(self, clients: Mapping[str, AllowedClient]) -> None:
        tables = [f'[clients."{c.name}"]\npublic = "{c.public}"\nrole = "{c.role}"\n' for c in clients.values()]
        self._write(CLIENTS_FILE, "\n".join(tables))

    def write_boards(self, boards: Mapping[str, str]) -> None:
        self._write(BOARDS_FILE, "".join(f'"{address}" = "{key}"\n' for address, key in boards.items()))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make the directory if need be, and keep other changes out meanwhile."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be used for keys: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _pair(self, name: str) -> KeyPair | None:
        text = self.read(name, True)
        if text is None:
            return None
        pair = parse_pair(text, str(self.path / name))
        if zmq.curve_public(pair.secret.encode()).decode() != pair.public:
            raise ConfigError(f"{self.path / name}: public and secret key do not belong together: make new keys")
        return pair

    def _write(self, name: str, body: str, mode: int = 0o644) -> None:
        write_text(self.path / name, f"{_HEADS[name]}\n{body}", mode)


def make_pair() -> KeyPair:
    """A new pair. Its public key does not begin with ``-``, which a command would take for an option."""
    while True:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        if not public.startswith("-"):
            return KeyPair(public, secret)


def address_of(first: zmq.Frame) -> str:
    """The address of a message's sender, by the message's first frame; empty on an ipc socket."""
    return _property(first, "Peer-Address")


def sender(first: zmq.Frame) -> str:
    """A message's sender for people: its address and the beginning of its key."""
    key = _property(first, "User-Id")
    return (address_of(first) or "this machine") + (f" (key {key[:8]}...)" if key else "")


def _property(first: zmq.Frame, name: str) -> str:
    try:
        return str(first.get(name))
    except zmq.ZMQError:
        return ""


class HandshakeMonitor:
    """Listens to what libzmq tells of the connections of one socket.

    Where keys are asked for, a connection that the other end closes half way counts as failed too: a client without
    keys, or with those of another board, may be the first of the two to see that this leads nowhere.
    """

    def __init__(self, name: str, router: zmq.Socket[bytes], *, has_keys: bool) -> None:
        self.failed = 0
        self.addresses: dict[int, str] = {}
        """Of the open connections, by file descriptor."""
        self._name = name
        self._router = router
        endpoint = f"inproc://handshakes-{id(router)}"
        router.monitor(endpoint, _EVENTS | (_LEFT if has_keys else 0))
        self.socket: zmq.Socket[bytes] = router.context.socket(zmq.PAIR)
        # When this queue is full, libzmq's own thread waits, under a lock that closing the monitor needs.
        self.socket.set(zmq.RCVHWM, QUEUE)
        self.socket.set(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def receive(self) -> None:
        """Take in what waits."""
        for _ in range(SLICE):
            if not self.socket.poll(0):
                break
            event, descriptor = read_monitor(self.socket.recv_multipart(zmq.NOBLOCK))
            if event == zmq.EVENT_ACCEPTED:
                self.addresses[descriptor] = _peer(descriptor)
            elif event == zmq.EVENT_DISCONNECTED:
                self.addresses.pop(descriptor, None)
            else:
                self.failed += 1
                if event != _REFUSED:  # of a refused key the guard has told already
                    _log.warning(
                        f"a connection to the {self._name} socket failed: "
                        "it has no keys, another key for this board, or is no client of powerd"
                    )

    def close(self) -> None:
        self._router.monitor(None, 0)
        self.socket.close()


def _peer(descriptor: int) -> str:
    """Who is at the other end. Empty when it is gone already, or is a process of this machine on an ipc socket."""
    with suppress(OSError, ValueError), borrowed(descriptor) as connection:
        name = connection.getpeername()
        return str(name[0]) if isinstance(name, tuple) else ""
    return ""


def is_local(endpoint: str) -> bool:
    """Whether only this machine reaches an endpoint: ipc, localhost, 127.0.0.0/8, ::1.

    Any other host name counts as beyond: what it means is decided elsewhere, and may change.
    """
    if not endpoint.startswith("tcp://"):
        return True
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def who_may_read(server: ServerConfig) -> str:
    """How ``server``'s sockets are guarded: one of the four words above. Raises `ConfigError` for what must not be."""
    endpoints = (server.listen, server.data, server.clock)
    over_tcp = [e for e in endpoints if e.startswith("tcp://")]
    if not over_tcp:
        return BY_FILE
    if all(map(is_local, endpoints)) and not server.keys:
        return BY_MACHINE
    if server.insecure:
        return ANYONE
    if len(over_tcp) < len(endpoints):
        raise ConfigError("'listen', 'data' and 'clock' must all be tcp or all be ipc where keys guard them")
    return BY_KEY


class Guard:
    """Decides who may reach a powerd's sockets, and answers at their doors while it runs.

    Make it before the sockets, which take `keys`; then `watch` them. Raises `ConfigError` where powerd must not listen.

    It is the handler of ZeroMQ's authentication requests (ZAP, ZeroMQ RFC 27): CURVE clients whose public key is known
    are admitted, and the key travels with each of their messages. pyzmq's own handler wants a loop of asyncio.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], server: ServerConfig) -> None:
        self.readers = who_may_read(server)
        self.keys: KeyPair | None = None
        self._clients: KeyDirectory | None = None
        self._stamp: object = ()
        self._admitted: dict[str, AllowedClient] = {}
        """By public key."""
        self._has_changed = False
        self._door: zmq.Socket[bytes] | None = None
        self._monitors: list[HandshakeMonitor] = []
        if self.readers != BY_KEY:
            return
        self._clients = KeyDirectory(server.keys)
        self.keys = self._clients.server()
        if self.keys is None:
            option = f" --keys {self._clients.path}" if server.keys else ""
            raise ConfigError(
                f"{server.listen} needs keys and there are no keys in {self._clients.path}: "
                f"make them with `powerd keys server{option}`, or let anyone read with --insecure"
            )
        self._door = context.socket(zmq.REP)
        self._door.set(zmq.LINGER, 0)
        # libzmq asks at this address, and no socket may be there before.
        self._door.bind(ZAP_ENDPOINT)

    def may_read(self, first: zmq.Frame) -> bool:
        """Whether a message's sender may read now. Without keys, whoever reaches a socket may."""
        return self._clients is None or self._admits(_property(first, "User-Id"))

    def caller(self, first: zmq.Frame) -> AllowedClient | None:
        """Which client sent a message, with the role that it has now; None where no keys guard the sockets."""
        if self._clients is None:
            return None
        self._refresh()
        return self._admitted.get(_property(first, "User-Id"))

    def _admits(self, key: str) -> bool:
        """Whether clients.toml allows a key, or it is the board's own: who can read its secret owns the board."""
        self._refresh()
        return key in self._admitted

    def _refresh(self) -> None:
        """Read clients.toml again when it has changed.

        A file that cannot be used admits nobody: a right that was taken away by a slip of the editor must not stay.
        """
        if self._clients is None or self.keys is None:
            return
        try:
            state = os.stat(self._clients.path / CLIENTS_FILE)
            stamp: object = (state.st_ino, state.st_mtime_ns, state.st_ctime_ns, state.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        self._stamp, self._has_changed = stamp, True
        self._admitted = {self.keys.public: AllowedClient(THIS_BOARD, self.keys.public, "control")}
        try:
            self._admitted |= {client.public: client for client in self._clients.clients().values()}
        except ConfigError as error:
            _log.warning(f"no client is admitted until this is mended: {error}")

    def watch(self, sockets: Sockets) -> None:
        """Count handshakes that fail at ``sockets``."""
        for name, router in (("control", sockets.control), ("data", sockets.data), ("clock", sockets.clock)):
            self._monitors.append(HandshakeMonitor(name, router, has_keys=self.keys is not None))

    def register(self, poller: zmq.Poller) -> None:
        """Have ``poller`` wake up for whatever `mind` has to do."""
        for door in ([self._door] if self._door else []) + [monitor.socket for monitor in self._monitors]:
            poller.register(door, zmq.POLLIN)

    def mind(self) -> bool:
        """Answer at the doors. True when some client's rights may have changed."""
        if self._door is not None:
            with suppress(zmq.Again):
                for _ in range(SLICE):
                    request = self._door.recv_multipart(zmq.NOBLOCK)
                    self._door.send_multipart(self._verdict(request))
        for monitor in self._monitors:
            monitor.receive()
        self._refresh()
        had_changed, self._has_changed = self._has_changed, False
        return had_changed

    def _verdict(self, request: list[bytes]) -> list[bytes]:
        """The answer to a request of ZAP: version, id, domain, address, identity, mechanism, credentials."""
        version, request_id, _, address, _, mechanism, *credentials = request
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        if self._admits(key):
            return [version, request_id, b"200", b"OK", key.encode(), b""]
        _log.warning(f"a client at {address.decode(errors='replace')} was refused: its key {key!r} is not allowed")
        return [version, request_id, b"400", b"key not allowed", b"", b""]

    @property
    def handshakes_failed(self) -> int:
        """Connections that were refused before a first request."""
        return sum(monitor.failed for monitor in self._monitors)

    @property
    def connections(self) -> dict[int, str]:
        """Addresses by file descriptor of the connections that are open, as far as libzmq has told."""
        return {fd: address for monitor in self._monitors for fd, address in monitor.addresses.items()}

    def unwatch(self) -> None:
        """Before the sockets are closed."""
        while self._monitors:
            self._monitors.pop().close()

    def close(self) -> None:
        """After the sockets are closed: until then nobody gets in unasked."""
        self.unwatch()
        if self._door is not None:
            self._door.close()
            self._door = None
