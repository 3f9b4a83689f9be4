"""The server's two ROUTER sockets: bound, bounded, and with errors a user can act on."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

import zmq

from powerd_core.errors import ConfigError

HEARTBEAT_MS = 200
HEARTBEAT_TIMEOUT_MS = 600
SEND_HWM = 64
"""Frames that wait for one client in the server before it counts as slow; the kernel's buffers come on top."""
MAX_REQUEST_BYTES = 64 << 10
"""libzmq hangs up on who sends more: no request is nearly as long."""


def bind_router(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, mandatory: bool) -> zmq.Socket[bytes]:
    """A ROUTER at ``endpoint``. Raises `ConfigError` naming the endpoint and the remedy."""
    router = context.socket(zmq.ROUTER)
    router.set(zmq.ROUTER_MANDATORY, int(mandatory))
    router.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    router.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    router.set(zmq.SNDHWM, SEND_HWM)
    router.set(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    router.set(zmq.LINGER, 0)
    router.set(zmq.IPV6, int("[" in endpoint))
    try:
        if endpoint.startswith("ipc://"):
            _make_way(Path(endpoint.removeprefix("ipc://")), endpoint)
        router.bind(endpoint)
    except zmq.ZMQError as error:
        router.close()
        raise ConfigError(f"cannot listen on {endpoint}: {_reason(error.errno)}") from error
    except BaseException:
        router.close()
        raise
    return router


def bound_endpoint(router: zmq.Socket[bytes]) -> str:
    """Where a socket really listens: with the port that ``*`` became."""
    found = router.get(zmq.LAST_ENDPOINT)
    assert isinstance(found, bytes)
    return found.rstrip(b"\0").decode()


def release(router: zmq.Socket[bytes], linger_ms: int = 0) -> None:
    """Close a socket and remove the file of an ipc endpoint; what is queued may still leave for ``linger_ms``."""
    endpoint = bound_endpoint(router)
    router.close(linger=linger_ms)
    if endpoint.startswith("ipc://"):
        with suppress(OSError):
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)


def _make_way(path: Path, endpoint: str) -> None:
    """Remove a socket that nobody listens to any more. libzmq would also remove a live one, and any other file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ConfigError(f"cannot listen on {endpoint}: there is no directory {path.parent}") from None
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {endpoint}: {path} exists and is not a socket: choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise ConfigError(f"cannot listen on {endpoint}: {error.strerror or error}") from error
    raise ConfigError(f"cannot listen on {endpoint}: {_reason(errno.EADDRINUSE)}")


def _reason(code: int | None) -> str:
    match code:
        case errno.EADDRINUSE:
            return "it is in use, perhaps by another powerd: stop that one or choose another endpoint with --listen"
        case errno.EACCES | errno.EPERM:
            return "permission denied: choose a port from 1024 on or a path you may write to, with --listen"
        case errno.ENODEV | errno.EADDRNOTAVAIL:
            return "this machine has no such address: choose another with --listen"
        case _:
            return f"{zmq.strerror(code or 0)}: choose another endpoint with --listen"
