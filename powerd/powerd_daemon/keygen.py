"""`powerd keys`: making keys, and saying who may connect to whom."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from socket import gethostname

from powerd_core.errors import ConfigError
from powerd_core.keys import CLIENT_FILE, SERVER_FILE, AllowedClient, KeyPair, board_address, check_key, check_name
from powerd_core.text import did_you_mean
from powerd_daemon.auth import KeyDirectory, make_pair


def keys(arguments: argparse.Namespace) -> int:
    """One of the subcommands. Raises `ConfigError`."""
    directory = KeyDirectory(arguments.keys)
    for line in _SUBCOMMANDS[arguments.action](directory, arguments):
        print(line)
    return 0


def _server(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    address = _address(arguments.address or f"{gethostname()}:7360")
    what, public = _own_pair(directory, SERVER_FILE, directory.server, "this board")
    return [
        *what,
        "On each client, with the address under which it reaches this board:",
        f"    powerd keys trust {address} {shlex.quote(public)}",
    ]


def _client(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    name = check_name(arguments.name or _plain(gethostname()), "--name")
    what, public = _own_pair(directory, CLIENT_FILE, directory.client, "this client")
    return [*what, "On each board that it may read:", f"    powerd keys allow {name} {shlex.quote(public)}"]


def _own_pair(
    directory: KeyDirectory, file: str, read: Callable[[], KeyPair | None], whose: str
) -> tuple[list[str], str]:
    """The lines about a pair, which is made where there is none, and its public key."""
    with directory.changing():
        known = read()
        pair = known or make_pair()
        if known is None:
            directory.write_pair(file, pair)
    state = "made" if known is None else "already there:"
    return [f"{state} the keys of {whose}, in {directory.path / file}", f"public key: {pair.public}"], pair.public


def _allow(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    name, key = check_name(arguments.name, "NAME"), check_key(arguments.key, "KEY")
    with directory.changing():
        clients = directory.clients()
        known = clients.get(name)
        if known is not None and known.public != key:
            raise ConfigError(f"{name!r} is allowed with another key: first run `powerd keys revoke {name}`")
        if twin := next((c.name for c in clients.values() if c.public == key and c.name != name), ""):
            raise ConfigError(f"this key is allowed as {twin!r}: one name is enough")
        new = AllowedClient(name, key, arguments.role or (known.role if known else "read"))
        directory.write_clients({**clients, name: new})
        has_keys = directory.server() is not None
    missing = [] if has_keys else ["This board has no keys yet: make them with `powerd keys server`"]
    return [f"{name} may {_WHAT[new.role]} this board", *missing]


def _revoke(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    with directory.changing():
        clients = directory.clients()
        if arguments.name not in clients:
            raise ConfigError(f"no client is called {arguments.name!r}{did_you_mean(arguments.name, clients)}")
        directory.write_clients({name: c for name, c in clients.items() if name != arguments.name})
    return [f"{arguments.name} gets nothing more from this board"]


def _trust(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    address, key = _address(arguments.address), check_key(arguments.key, "KEY")
    with directory.changing():
        boards = directory.boards()
        if boards.get(address, key) != key and not arguments.replace:
            raise ConfigError(
                f"{address} is trusted with another key: has the board new keys, or is it another board? "
                "If you know, give --replace"
            )
        directory.write_boards({**boards, address: key})
        has_keys = directory.client() is not None
    missing = [] if has_keys else ["This client has no keys yet: make them with `powerd keys client`"]
    return [f"the board at {address} is trusted with this key", *missing]


def _list(directory: KeyDirectory, _: argparse.Namespace) -> list[str]:
    server, client, clients, boards = directory.server(), directory.client(), directory.clients(), directory.boards()
    name_width, address_width = max(map(len, clients), default=0), max(map(len, boards), default=0)
    return [
        f"keys in {directory.path}",
        f"this board   {server.public if server else 'has none'}",
        *(f"    {c.name:<{name_width}}  {c.role:<7}  {c.public}" for c in clients.values()),
        f"this client  {client.public if client else 'has none'}",
        *(f"    {address:<{address_width}}  {key}" for address, key in boards.items()),
    ]


_WHAT = {"read": "read from", "control": "read from and control"}
_SUBCOMMANDS = {
    "server": _server,
    "client": _client,
    "allow": _allow,
    "revoke": _revoke,
    "trust": _trust,
    "list": _list,
}


def _address(given: str) -> str:
    address = board_address(given)
    if address is None:
        raise ConfigError(f"cannot use {given!r}: write HOST:PORT, such as board:7360 or [fe80::1]:7360")
    return address


def _plain(host: str) -> str:
    return "".join(c if (c.isascii() and c.isalnum()) or c in "._-" else "-" for c in host).strip("-")[:64] or "client"
