"""This client's keys: found in the key directory by a board's address, and what a refused connection tells."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import zmq
from zmq.utils.monitor import recv_monitor_message

from powerd_client.hostclock import now_ns
from powerd_core.errors import ConfigError
from powerd_core.keys import Credentials, explain_refusal, find_credentials, keys_directory

MAX_BYTES = 1 << 20

_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OTHER_MECHANISM = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_HUNG_UP = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_HANG_UPS = 3
"""A powerd that ends hangs up once; one that cannot read what we send, at every attempt."""
_PAUSE_NS = 1_000_000_000


def credentials_for(url: str, keys: str | os.PathLike[str] | None = None) -> Credentials | None:
    """What the directory ``keys`` (default: $POWERD_KEYS, else ~/.config/powerd) has for the board at ``url``.

    None for a board that it does not know: that one must do without keys. Raises `ConfigError`.
    """
    directory = Path(keys or keys_directory(os.environ, str(Path.home()))).expanduser().absolute()
    return find_credentials(url, str(directory), lambda name, is_secret: _read(directory / name, is_secret))


def apply_credentials(socket: zmq.Socket[bytes], credentials: Credentials | None) -> None:
    """To be called before the socket is connected."""
    if credentials is not None:
        socket.set(zmq.CURVE_PUBLICKEY, credentials.own.public.encode())
        socket.set(zmq.CURVE_SECRETKEY, credentials.own.secret.encode())
        socket.set(zmq.CURVE_SERVERKEY, credentials.board.encode())


class RefusalWatch:
    """Says why a socket's connection to ``endpoint`` does not come about. Make it before the socket is connected.

    libzmq gives up a connection that was refused for good; `try_again` does not.
    """

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str, credentials: Credentials | None) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._credentials = credentials
        self._hang_ups = 0
        self._reason: str | None = None
        self._refused_ns: int | None = None
        """When libzmq gave up; None while it goes on."""
        self._monitor: zmq.Socket[bytes] = socket.get_monitor_socket(
            _DENIED | _OTHER_MECHANISM | _HUNG_UP | zmq.EVENT_HANDSHAKE_SUCCEEDED
        )

    def reason(self) -> str | None:
        """Why the last attempt was refused, and what to do; None when it was not."""
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._hang_ups, self._reason, self._refused_ns = 0, None, None
                continue
            self._hang_ups += event == _HUNG_UP
            if event != _HUNG_UP:
                self._refused_ns = now_ns()
            if event != _HUNG_UP or (self._credentials is not None and self._hang_ups >= _HANG_UPS):
                self._reason = explain_refusal(self._endpoint, self._credentials, is_denied=event == _DENIED)
        return self._reason

    def try_again(self) -> None:
        """Connect anew where the connection was refused a second ago: the key may be allowed by now."""
        self.reason()
        if self._refused_ns is None or now_ns() - self._refused_ns < _PAUSE_NS:
            return
        self._refused_ns = None
        with suppress(zmq.ZMQError):  # nothing is left of the old connection, as a rule
            self._socket.disconnect(self._endpoint)
        self._socket.connect(self._endpoint)

    def close(self) -> None:
        """Before the socket itself is closed."""
        self._socket.disable_monitor()
        self._monitor.close()


def _read(path: Path, is_secret: bool) -> str | None:
    """A file of keys, None when there is none. Refuses what others could have read or changed."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if is_secret and mode & 0o077:
                raise ConfigError(f"{path}: others could read this secret: run `chmod 600 {path}`, or make new keys")
            for place, its_mode in ((path, mode), (path.parent, path.parent.stat().st_mode)):
                if its_mode & 0o022:
                    raise ConfigError(f"{place}: others can change it: run `chmod go-w {place}` and check the keys")
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path}: longer than {MAX_BYTES} bytes: not a file of keys")
    try:
        return data.decode()
    except UnicodeDecodeError:
        pass
    raise ConfigError(f"{path}: not a text file in UTF-8")
