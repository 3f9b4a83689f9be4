"""`powerd keys`: making keys, and saying who may connect to whom."""

from __future__ import annotations

import argparse
import shlex
from socket import gethostname

from powerd_core.errors import ConfigError
from powerd_core.keys import CLIENT_FILE, SERVER_FILE, AllowedClient, board_address, check_key, check_name
from powerd_core.text import did_you_mean
from powerd_daemon.keys import KeyDirectory, make_pair


def keys(arguments: argparse.Namespace) -> int:
    """One of the subcommands. Raises `ConfigError`."""
    directory = KeyDirectory(arguments.keys)
    for line in _SUBCOMMANDS[arguments.action](directory, arguments):
        print(line)
    return 0


def _server(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    address = _address(arguments.address or f"{gethostname()}:7360")
    with directory.changing():
        pair = directory.server()
        made = pair is None
        if pair is None:
            pair = make_pair()
            directory.write_pair(SERVER_FILE, pair)
    return [
        f"{'made' if made else 'already there:'} the keys of this board, in {directory.path / SERVER_FILE}",
        f"public key: {pair.public}",
        "On each client, with the address under which it reaches this board:",
        f"    powerd keys trust {address} {shlex.quote(pair.public)}",
    ]


def _client(directory: KeyDirectory, arguments: argparse.Namespace) -> list[str]:
    name = check_name(arguments.name or _plain(gethostname()), "--name")
    with directory.changing():
        pair = directory.client()
        made = pair is None
        if pair is None:
            pair = make_pair()
            directory.write_pair(CLIENT_FILE, pair)
    return [
        f"{'made' if made else 'already there:'} the keys of this client, in {directory.path / CLIENT_FILE}",
        f"public key: {pair.public}",
        "On each board that it may read:",
        f"    powerd keys allow {name} {shlex.quote(pair.public)}",
    ]


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
        said = [f"{name} may {_WHAT[new.role]} this board"]
        if directory.server() is None:
            said.append("This board has no keys yet: make them with `powerd keys server`")
    return said


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
        own = directory.client()
    said = [f"the board at {address} is trusted with this key"]
    if own is None:
        said.append("This client has no keys yet: make them with `powerd keys client`")
    return said


def _list(directory: KeyDirectory, _: argparse.Namespace) -> list[str]:
    server, client, clients, boards = directory.server(), directory.client(), directory.clients(), directory.boards()
    said = [f"keys in {directory.path}"]
    said.append(f"this board   {server.public if server else 'has none'}")
    width = max(map(len, clients), default=0)
    said += [f"    {c.name:<{width}}  {c.role:<7}  {c.public}" for c in clients.values()]
    said.append(f"this client  {client.public if client else 'has none'}")
    width = max(map(len, boards), default=0)
    return said + [f"    {address:<{width}}  {key}" for address, key in boards.items()]


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
