"""The server's ROUTER sockets: bound, bounded, and with errors a user can act on."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from powerd_core.errors import ConfigError
from powerd_core.keys import KeyPair

HEARTBEAT_MS = 200
HEARTBEAT_TIMEOUT_MS = 600
SEND_HWM = 64
"""Frames that wait for one client in the server before it counts as slow; the kernel's buffers come on top."""
MAX_REQUEST_BYTES = 64 << 10
"""libzmq hangs up on who sends more: the longest request is a configuration."""
HANDSHAKE_MS = 10_000
"""libzmq hangs up on who has not finished a handshake by then."""
ZAP_DOMAIN = b"powerd"


@dataclass(frozen=True, slots=True)
class Sockets:
    """Where clients ask, where readings go out, and where clocks are compared."""

    control: zmq.Socket[bytes]
    data: zmq.Socket[bytes]
    clock: zmq.Socket[bytes]

    def release(self, linger_ms: int = 0) -> None:
        """Close all three, see `release`."""
        for router in (self.control, self.data, self.clock):
            release(router, linger_ms)


def bind_sockets(
    context: zmq.Context[zmq.Socket[bytes]], control: str, data: str, clock: str, keys: KeyPair | None = None
) -> Sockets:
    """All three or none; with ``keys`` encrypted, for clients that the context's ZAP handler admits.

    Raises `ConfigError` naming the endpoint and the remedy.
    """
    made: list[zmq.Socket[bytes]] = []
    try:
        # Only the data socket must know that a client cannot take a frame: an answer nobody takes is just dropped.
        for endpoint, mandatory in ((control, False), (data, True), (clock, False)):
            made.append(bind_router(context, endpoint, mandatory=mandatory, keys=keys))
    except BaseException:
        for router in made:
            release(router)
        raise
    return Sockets(*made)


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, mandatory: bool, keys: KeyPair | None = None
) -> zmq.Socket[bytes]:
    """A ROUTER at ``endpoint``. Raises `ConfigError` naming the endpoint and the remedy."""
    router = context.socket(zmq.ROUTER)
    router.set(zmq.ROUTER_MANDATORY, int(mandatory))
    router.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    router.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    router.set(zmq.SNDHWM, SEND_HWM)
    router.set(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
    router.set(zmq.LINGER, 0)
    router.set(zmq.IPV6, int("[" in endpoint))
    router.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if keys is not None:
        router.set(zmq.CURVE_SERVER, 1)
        router.set(zmq.CURVE_SECRETKEY, keys.secret.encode())
        # Without a domain of its own, and without insisting on a handler, libzmq would admit every key.
        router.set(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
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
