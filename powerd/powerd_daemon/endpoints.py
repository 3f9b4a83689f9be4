"""Where powerd listens: checked ``tcp://`` and ``ipc://`` addresses, and the other sockets' next to the control's."""

from __future__ import annotations

import re
from pathlib import Path

from powerd_core.errors import ConfigError

DEFAULT_LISTEN = "tcp://127.0.0.1:7360"
IPC_PATH_BYTES = 107
"""A Unix socket's path has 108 bytes with its final NUL (unix(7))."""

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^:/\[\]\s]+):(?P<port>\d+|\*)")


def check_endpoint(url: str, where: str) -> str:
    """``url`` with an ipc path made absolute. Raises `ConfigError` naming ``where`` it was given."""
    if url.startswith("ipc://"):
        path = str(Path(url.removeprefix("ipc://")).absolute())
        if path == str(Path.cwd()) or url.endswith("/"):
            raise ConfigError(f"{where}: {url!r} names no file: write ipc:///PATH")
        if (size := len(path.encode())) > IPC_PATH_BYTES:
            raise ConfigError(
                f"{where}: the path of {url!r} has {size} bytes, a socket's path at most {IPC_PATH_BYTES}: "
                "choose a shorter one"
            )
        return f"ipc://{path}"
    match = _TCP.fullmatch(url)
    if not match:
        raise ConfigError(f"{where}: cannot use {url!r}: write tcp://HOST:PORT or ipc:///PATH")
    if match["port"] != "*" and not 1 <= int(match["port"]) <= 65535:
        raise ConfigError(f"{where}: port {match['port']} of {url!r} is not between 1 and 65535")
    return url


def neighbour_endpoint(listen: str, step: int, name: str, where: str) -> str:
    """The default of another socket beside a checked control socket: ``step`` ports on, or the path with its name."""
    if listen.startswith("ipc://"):
        return check_endpoint(f"{listen}.{name}", where)
    host, _, port = listen.rpartition(":")
    if port == "*":
        return listen
    if int(port) + step > 65535:
        raise ConfigError(
            f"{where}: there is no port {int(port) + step} for '{name}': give '{name}' an endpoint of its own"
        )
    return f"{host}:{int(port) + step}"


def public_endpoint(bound: str) -> str:
    """A bound endpoint as a `Description` states it: over tcp, host ``*`` stands for the address that was asked."""
    return f"tcp://*:{bound.rpartition(':')[2]}" if bound.startswith("tcp://") else bound
