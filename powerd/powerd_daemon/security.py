"""What guards the sockets: who may reach them, by the addresses they listen on and the keys there are."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping

import zmq

from powerd_core.errors import ConfigError
from powerd_core.keys import CLIENTS_FILE, SERVER_FILE, KeyPair
from powerd_daemon.access import Access, Role, SameForAll
from powerd_daemon.config import ServerConfig
from powerd_daemon.keys import KeyDirectory
from powerd_daemon.log import Log
from powerd_daemon.security_watch import HandshakeWatch
from powerd_daemon.security_zap import ZapHandler, user_of
from powerd_daemon.sockets import Sockets

_ROLES = {"read": Role.READ, "control": Role.CONTROL}

BY_FILE, BY_MACHINE, BY_KEY, ANYONE = "socket-file", "this-machine", "keys", "anyone"
"""Who may read, as a description says it."""


def is_local(endpoint: str) -> bool:
    """Whether only this machine reaches an endpoint: ipc, localhost, 127.0.0.0/8, ::1.

    Any other host name counts as beyond: what it means is decided elsewhere, and may change.
    """
    if not endpoint.startswith("tcp://"):
        return True
    host = endpoint.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def who_may_read(server: ServerConfig) -> str:
    """How ``server``'s sockets are guarded: one of the four words above. Raises `ConfigError` for what must not be."""
    endpoints = (server.listen, server.data, server.clock)
    beyond = [e for e in endpoints if not is_local(e)]
    over_tcp = [e for e in endpoints if e.startswith("tcp://")]
    if not over_tcp:
        return BY_FILE
    if not beyond and not server.keys:
        return BY_MACHINE
    if server.insecure:
        return ANYONE
    if len(over_tcp) < len(endpoints):
        raise ConfigError("'listen', 'data' and 'clock' must all be tcp or all be ipc where keys guard them")
    return BY_KEY


class Keyring:
    """Who may do what by public key; reads clients.toml again whenever it has changed.

    A file that cannot be used admits nobody: a right that was taken away by a slip of the editor must not stay. The
    board's own pair may do everything, for whoever can read its secret owns the board.
    """

    def __init__(self, directory: KeyDirectory, own: KeyPair, log: Log) -> None:
        self._directory = directory
        self._own = own
        self._log = log
        self._path = directory.path / CLIENTS_FILE
        self._stamp: object = ()
        self._roles: dict[str, Role] = {}
        self._has_changed = False
        self._refresh()

    def role(self, first: zmq.Frame) -> Role:
        return self.role_of(user_of(first))

    def role_of(self, key: str) -> Role:
        self._refresh()
        return self._roles.get(key, Role.NONE)

    def changed(self) -> bool:
        """Whether anybody's role may have changed since this was last asked."""
        self._refresh()
        was, self._has_changed = self._has_changed, False
        return was

    def _refresh(self) -> None:
        try:
            found = os.stat(self._path)
            stamp: object = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
        except OSError:
            stamp = None
        if stamp == self._stamp:
            return
        self._stamp, self._has_changed = stamp, True
        self._roles = {self._own.public: Role.CONTROL}
        try:
            clients = self._directory.clients()
        except ConfigError as error:
            self._log.complain(f"no client is admitted until this is mended: {error}")
            return
        self._roles = {c.public: _ROLES[c.role] for c in clients.values()} | self._roles


class Guard:
    """Decides who may reach a powerd's sockets, and answers at their doors while it runs.

    Make it before the sockets, which take `keys`; then `watch` them. Raises `ConfigError` where powerd must not listen.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], server: ServerConfig, log: Log) -> None:
        self.readers = who_may_read(server)
        self.keys: KeyPair | None = None
        self.access: Access = SameForAll(Role.CONTROL if server.listen.startswith("ipc:") else Role.READ)
        self.changed: Callable[[], bool] = lambda: False
        self._zap: ZapHandler | None = None
        self._watch: HandshakeWatch | None = None
        self._log = log
        if self.readers == BY_KEY:
            directory = KeyDirectory(server.keys)
            self.keys = directory.server()
            if self.keys is None:
                raise ConfigError(
                    f"{_exposed(server)} can be reached from other machines and there are no keys in {directory.path}: "
                    "make them with `powerd keys server`, or let anyone read with --insecure"
                    if not all(map(is_local, (server.listen, server.data, server.clock)))
                    else f"{directory.path / SERVER_FILE}: there is no such file: make it with `powerd keys server`"
                )
            ring = Keyring(directory, self.keys, log)
            self.access, self.changed = ring, ring.changed
            self._zap = ZapHandler(context, lambda key: ring.role_of(key) >= Role.READ, log)

    def watch(self, sockets: Sockets) -> None:
        """Count handshakes that fail at ``sockets``."""
        self._watch = HandshakeWatch(sockets, self._log, has_keys=self.keys is not None)

    def register(self, poller: zmq.Poller) -> None:
        """Have ``poller`` wake up for whatever `mind` has to do."""
        for socket in (*([self._zap.socket] if self._zap else ()), *(self._watch.monitors if self._watch else ())):
            poller.register(socket, zmq.POLLIN)

    def mind(self) -> bool:
        """Answer at the doors. True when some client's rights may have changed."""
        if self._zap is not None:
            self._zap.answer()
        if self._watch is not None:
            self._watch.receive()
        return self.changed()

    @property
    def handshakes_failed(self) -> int:
        """Connections that were refused before a first request."""
        return self._watch.failed if self._watch else 0

    @property
    def connections(self) -> Mapping[int, str]:
        """Addresses by file descriptor of the connections that are open, as far as libzmq has told."""
        return self._watch.connections if self._watch else {}

    def unwatch(self) -> None:
        """Before the sockets are closed."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def close(self) -> None:
        """After the sockets are closed: until then nobody gets in unasked."""
        self.unwatch()
        if self._zap is not None:
            self._zap.close()
            self._zap = None


def _exposed(server: ServerConfig) -> str:
    return next(e for e in (server.listen, server.data, server.clock) if not is_local(e))
