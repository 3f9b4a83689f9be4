"""`powerd keys`: making keys, and saying who may connect to whom."""

from __future__ import annotations

import argparse
import shlex
from socket import gethostname

from powerd_core.errors import ConfigError
from powerd_core.keys import (
    CLIENT_FILE,
    ROLES,
    SERVER_FILE,
    AllowedClient,
    KeyPair,
    board_address,
    check_key,
    check_name,
)
from powerd_daemon.auth import KeyDirectory, make_pair
from powerd_daemon.commands import add_keys_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The subcommands of `powerd keys`, and their options."""
    parser.description = (
        "Whoever reads a board from another machine needs keys: the board its own, each client its own, "
        "the client's public key allowed on the board and the board's trusted on the client: docs/howto/security.md."
    )
    parser.epilog = "powerd keys list"
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def add(name: str, what: str, example: str, /, **arguments: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=what, description=what, epilog=f"powerd keys {name}{example}")
        add_keys_option(action)
        for argument, help_text in arguments.items():
            action.add_argument(argument, metavar=argument.upper(), help=help_text)
        return action

    server = add("server", "on a board: make its keys once, and say what clients have to run", " --address board:7360")
    under = "under which clients reach this board (default this host's name, 7360)"
    server.add_argument("--address", metavar="HOST:PORT", help=under)
    client = add("client", "on a client: make its keys once, and say what the board has to run", " --name lab")
    client.add_argument("--name", metavar="NAME", help="how boards shall call this client (default this host's name)")
    key = "its public key, in single quotes"
    allow = add("allow", "on a board: let a client in", " lab 'CLIENT_KEY'", name="of the client, for lists", key=key)
    allow.add_argument("--role", choices=ROLES, help="read (default): readings; control: nothing more today")
    add("revoke", "on a board: shut a client out, at once", " lab", name="of the client")
    say, address = "on a client: say which key a board has", "HOST:PORT as in tcp://HOST:PORT"
    trust = add("trust", say, " board:7360 'BOARD_KEY'", address=address, key=key)
    trust.add_argument("--replace", action="store_true", help="also where another key is trusted")
    add("list", "list all public keys of the directory, and what each may do", " --keys /var/lib/powerd/keys")


def run(arguments: argparse.Namespace) -> None:
    """One of the subcommands. Raises `ConfigError`."""
    directory = KeyDirectory(arguments.keys)
    if arguments.action == "list":
        _list(directory)
        return
    with directory.changing():
        match arguments.action:
            case "server":
                address = _address(arguments.address or f"{gethostname()}:7360")
                public = _own_key(directory, SERVER_FILE, directory.server())
                print(f"On each client, with the address under which it reaches this board{_own_folder(arguments)}:")
                print(f"    powerd keys trust {address} {shlex.quote(public)}{_option(arguments)}")
            case "client":
                name = arguments.name or "".join(c if c.isascii() and c.isalnum() else "-" for c in gethostname())
                check_name(name, "--name")
                public = _own_key(directory, CLIENT_FILE, directory.client())
                print(f"On each board that it may read{_own_folder(arguments)}:")
                print(f"    powerd keys allow {name} {shlex.quote(public)}{_option(arguments)}")
            case "allow":
                _allow(directory, arguments)
            case "revoke":
                clients = directory.clients()
                if clients.pop(arguments.name, None) is None:
                    see = f"`powerd keys list{_option(arguments)}` shows them"
                    raise ConfigError(f"no client is called {arguments.name!r}: {see}")
                directory.write_clients(clients)
                print(f"{arguments.name} gets nothing more from this board")
            case "trust":
                _trust(directory, arguments)


def _option(arguments: argparse.Namespace) -> str:
    """``--keys DIR`` for a command to be copied, where it was given."""
    return f" --keys {shlex.quote(arguments.keys)}" if arguments.keys else ""


def _own_folder(arguments: argparse.Namespace) -> str:
    return ", with its own folder of keys" if arguments.keys else ""


def _own_key(directory: KeyDirectory, file: str, known: KeyPair | None) -> str:
    """The public key of a pair, which is made where there is none."""
    pair = known or make_pair()
    if known is None:
        directory.write_pair(file, pair)
    print(f"{'made' if known is None else 'already there:'} the keys in {directory.path / file}")
    print(f"public key: {pair.public}")
    return pair.public


def _allow(directory: KeyDirectory, arguments: argparse.Namespace) -> None:
    name, key = check_name(arguments.name, "NAME"), check_key(arguments.key, "KEY")
    clients = directory.clients()
    known = clients.get(name)
    if known is not None and known.public != key:
        raise ConfigError(
            f"{name!r} is allowed with another key: first run `powerd keys revoke {name}{_option(arguments)}`"
        )
    if twin := next((c.name for c in clients.values() if c.public == key and c.name != name), ""):
        raise ConfigError(f"this key is allowed as {twin!r}: one name is enough")
    role = arguments.role or (known.role if known else "read")
    directory.write_clients({**clients, name: AllowedClient(name, key, role)})
    print(f"{name} may read from the board whose keys are in {directory.path}")
    if directory.server() is None:
        print(f"no board has its keys there yet: powerd keys server{_option(arguments)}")


def _trust(directory: KeyDirectory, arguments: argparse.Namespace) -> None:
    address, key = _address(arguments.address), check_key(arguments.key, "KEY")
    boards = directory.boards()
    if boards.get(address, key) != key and not arguments.replace:
        raise ConfigError(f"{address} is trusted with another key: if you know why it has a new one, give --replace")
    directory.write_boards({**boards, address: key})
    print(f"the board at {address} is trusted with this key")


def _list(directory: KeyDirectory) -> None:
    server, client, clients, boards = directory.server(), directory.client(), directory.clients(), directory.boards()
    print(f"keys in {directory.path}\nthis board   {server.public if server else 'has none'}")
    for c in clients.values():
        print(f"    {c.name:<20}  {c.role:<7}  {c.public}")
    print(f"this client  {client.public if client else 'has none'}")
    for address, key in boards.items():
        print(f"    {address:<20}  {key}")


def _address(given: str) -> str:
    address = board_address(given)
    if address is None:
        raise ConfigError(f"cannot use {given!r}: write HOST:PORT, such as board:7360 or [fe80::1]:7360")
    return address
