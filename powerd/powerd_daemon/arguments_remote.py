"""The command line's part on keys and on what is done to a powerd from afar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from powerd_core.keys import ROLES
from powerd_daemon.endpoints import DEFAULT_LISTEN


def add_directory(parser: Any) -> None:
    """The option that says where keys are."""
    parser.add_argument("--keys", metavar="DIR", help="directory of keys (default $POWERD_KEYS, else ~/.config/powerd)")


def add_keys(commands: Any) -> None:
    """`powerd keys` and its subcommands."""
    keys = commands.add_parser(
        "keys",
        help="make, list, allow and revoke keys",
        description="Whoever reads a board from another machine needs keys: the board its own, each client its own, "
        "the client's public key allowed on the board and the board's trusted on the client. See docs/security.md.",
        allow_abbrev=False,
    )
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(keys))

    def add(name: str, what: str) -> Any:
        made = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", allow_abbrev=False)
        add_directory(made)
        return made

    server = add("server", "on a board: make its keys once, and say what each client has to run")
    server.add_argument(
        "--address", metavar="HOST:PORT", help="under which clients reach this board (default this host's name, 7360)"
    )
    client = add("client", "on a client: make its keys once, and say what the board has to run")
    client.add_argument("--name", metavar="NAME", help="how boards shall call this client (default this host's name)")
    allow = add("allow", "on a board: let a client in")
    allow.add_argument("name", metavar="NAME", help="of the client, for lists and `revoke`")
    allow.add_argument("key", metavar="KEY", help="its public key, in single quotes")
    allow.add_argument("--role", choices=ROLES, help="read (default): readings; control: calibrate and configure too")
    revoke = add("revoke", "on a board: shut a client out, at once")
    revoke.add_argument("name", metavar="NAME")
    trust = add("trust", "on a client: say which key a board has")
    trust.add_argument("address", metavar="HOST:PORT", help="as in tcp://HOST:PORT")
    trust.add_argument("key", metavar="KEY", help="the board's public key, in single quotes")
    trust.add_argument("--replace", action="store_true", help="also where another key is trusted")
    add("list", "list all public keys of the directory, and what each may do")


def add_configure(commands: Any) -> None:
    """`powerd configure`."""
    configure = commands.add_parser(
        "configure",
        help="show or replace the configuration of a running powerd",
        description="Without FILE, prints the configuration that a powerd runs with. With FILE, has it check and take "
        "over a new one: it starts again with it, or goes on with the old one. Needs the role control.",
        allow_abbrev=False,
    )
    configure.add_argument("url", metavar="URL", help=f"of the powerd, such as {DEFAULT_LISTEN}")
    configure.add_argument("file", type=Path, nargs="?", metavar="FILE", help="the new configuration")
    add_directory(configure)
