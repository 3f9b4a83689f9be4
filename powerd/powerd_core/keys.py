"""Keys of boards and clients, and the texts of the files that hold them: what a connection needs, without I/O.

CURVE keys are 32 bytes, written as 40 characters of Z85 (ZeroMQ RFC 32). A key directory holds

    server.toml    the pair of the board whose directory this is       public, secret
    clients.toml   who may connect to that board                       [clients.NAME] public, role
    client.toml    the pair of the client whose directory this is      public, secret
    boards.toml    which key belongs to which board                    "HOST:PORT" = public

No message made here repeats what stood in a file where a secret may be.
"""

from __future__ import annotations

import struct
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from powerd_core.errors import ConfigError
from powerd_core.serde import parse_toml

PORT = 7360
"""Where a powerd listens unless it is told otherwise."""
KEY_CHARACTERS = 40
NAME_CHARACTERS = 64
SERVER_FILE, CLIENTS_FILE, CLIENT_FILE, BOARDS_FILE = "server.toml", "clients.toml", "client.toml", "boards.toml"
ROLES = ("read", "control")
_Z85 = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_NAME = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """One side's own keys."""

    public: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client needs to reach one board: its own keys, and the board's public key."""

    own: KeyPair
    board: str


@dataclass(frozen=True, slots=True)
class AllowedClient:
    """One entry of clients.toml."""

    name: str
    public: str
    role: str
    """One of `ROLES`."""


def check_key(text: object, where: str) -> str:
    """``text`` when it is a key. Raises `ConfigError` naming ``where`` it was found; never repeats the text."""
    if not isinstance(text, str) or len(text) != KEY_CHARACTERS or not _Z85.issuperset(text):
        raise ConfigError(f"{where}: not a key: a key has {KEY_CHARACTERS} characters, as `powerd keys` prints it")
    return text


def check_name(text: str, where: str) -> str:
    """``text`` when it can name a client. Raises `ConfigError`."""
    if not 0 < len(text) <= NAME_CHARACTERS or not _NAME.issuperset(text) or text[0] == "-":
        raise ConfigError(f"{where}: a name has 1 to {NAME_CHARACTERS} letters, digits and ._- and begins with no '-'")
    return text


def board_address(url: str) -> str | None:
    """``host:port`` of a control socket's ``tcp://`` address, as boards.toml writes it; None for any other."""
    address = url.removeprefix("tcp://")
    if "://" in address:
        return None
    host, _, port = address.rpartition(":")
    is_host = bool(host) and not any(c in host for c in " /'\"\\") and (":" not in host or host[0] + host[-1] == "[]")
    if not is_host or not (port.isascii() and port.isdigit()) or not 1 <= int(port) <= 65535:
        return None
    return f"{host.lower()}:{int(port)}"


def control_url(text: str) -> str:
    """Where a powerd listens, as a URL: ``board`` and ``board:7360`` are ``tcp://board:7360``. Raises `ConfigError`."""
    if text.startswith("ipc://") and len(text) > len("ipc://"):
        return text
    address = text.removeprefix("tcp://")
    url = f"tcp://{address}" if ":" in address.rpartition("]")[2] else f"tcp://{address}:{PORT}"
    if board_address(url) is None:
        hint = f"; a run file is named by out={text!r} or --output {text}" if text.endswith(".h5") else ""
        raise ConfigError(f"{text!r} is no address of a powerd: write HOST, tcp://HOST:PORT or ipc:///PATH{hint}")
    return url


def keys_directory(environment: Mapping[str, str], home: str) -> str:
    """Where keys are unless something else is said: $POWERD_KEYS, else powerd's directory of the user's settings."""
    if given := environment.get("POWERD_KEYS"):
        return given
    return f"{environment.get('XDG_CONFIG_HOME') or f'{home}/.config'}/powerd"


def parse_pair(text: str, where: str) -> KeyPair:
    """The pair in server.toml or client.toml. Raises `ConfigError`."""
    document = _table(_load(text, where), ("public", "secret"), where)
    return KeyPair(*(check_key(document.get(name), f"{where}: {name}") for name in ("public", "secret")))


def parse_boards(text: str, where: str) -> dict[str, str]:
    """Public keys by address, from boards.toml. Raises `ConfigError`."""
    keys: dict[str, str] = {}
    for written, key in _load(text, where).items():
        address = board_address(written)
        if address is None or address in keys:
            raise ConfigError(f"{where}: {written[:100]!r} is no HOST:PORT, or is there twice")
        keys[address] = check_key(key, f"{where}: {written!r}")
    return keys


def parse_clients(text: str, where: str) -> dict[str, AllowedClient]:
    """Clients by name, from clients.toml. Raises `ConfigError`."""
    clients: dict[str, AllowedClient] = {}
    tables = _table(_load(text, where), ("clients",), where).get("clients", {})
    for name, table in _table(tables, None, where).items():
        entry = f"{where}: [clients.{name[:NAME_CHARACTERS]}]"
        known = _table(table, ("public", "role"), entry)
        key, role = check_key(known.get("public"), f"{entry}: public"), known.get("role")
        if role not in ROLES:
            raise ConfigError(f"{entry}: role: write one of {', '.join(map(repr, ROLES))}")
        if any(client.public == key for client in clients.values()):
            raise ConfigError(f"{entry}: another client has the same key: remove one")
        clients[name] = AllowedClient(check_name(name, entry), key, str(role))
    return clients


def find_credentials(url: str, directory: str, read: Callable[[str, bool], str | None]) -> Credentials | None:
    """What the key directory has for the board at ``url``; None when its boards.toml does not name that board.

    ``read`` gives the text of a file of the directory, None where there is none; it is told whether a secret is in it.
    Raises `ConfigError`.
    """
    address = board_address(url) if url.startswith("tcp://") else None
    if address is None:
        return None
    board = parse_boards(read(BOARDS_FILE, False) or "", f"{directory}/{BOARDS_FILE}").get(address)
    if board is None:
        return None
    own = read(CLIENT_FILE, True)
    if own is None:
        make = f"powerd keys client --keys {directory}"
        raise ConfigError(f"{directory}: this client has no keys of its own: make them with `{make}`")
    return Credentials(parse_pair(own, f"{directory}/{CLIENT_FILE}"), board)


def read_monitor(frames: Sequence[bytes]) -> tuple[int, int]:
    """The event and its value in a message of a libzmq monitor: zmq_socket_monitor(3).

    `zmq.utils.monitor` reads the same message, and loads asyncio and ssl for it: they would be a fifth of the start.
    """
    event, value = struct.unpack("=Hi", frames[0])
    return event, value


def explain_refusal(url: str, credentials: Credentials | None, *, is_denied: bool) -> str:
    """Why a connection's handshake fails, and what to do. ``is_denied``: the board knows what it wants, and not us."""
    address = board_address(url) or url
    if credentials is None:
        return (
            f"the powerd at {url} asks for keys, and there is no key for it here: get it with `powerd keys server` on "
            f"the board, then run `powerd keys trust {address} KEY` here"
        )
    if is_denied:
        allow = f"powerd keys allow NAME '{credentials.own.public}'"
        return f"the powerd at {url} refuses this client's key: on the board run `{allow}`"
    return (
        f"what answers at {url} does not have the key that is trusted for it: it is another board, one with new keys "
        f"or one without. If you know why, run `powerd keys trust --replace {address} KEY` here"
    )


def _load(text: str, where: str) -> dict[str, object]:
    try:
        return parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        place = str(error).rpartition("(")[2].rstrip(")")
    # The library's words may quote the text, and its error may carry all of it.
    raise ConfigError(f"{where}: not valid TOML ({place})")


def _table(value: object, known: tuple[str, ...] | None, where: str) -> Mapping[str, object]:
    """``value`` when it is a table with ``known`` entries alone."""
    if not isinstance(value, dict) or (known is not None and value.keys() - set(known)):
        # Not repeated: a secret that slipped to the wrong place would be shown.
        raise ConfigError(
            f"{where}: not a table, or one with other entries than {', '.join(known or ['[clients.NAME]'])}"
        )
    return value
