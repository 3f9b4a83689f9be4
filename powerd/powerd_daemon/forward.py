"""Questions of clients with the role *control*, handed on to the control helper of this machine, and its answers.

powerd itself has no right to set anything. The helper believes it for whom it asks (``powerd_user`` of its policy),
and allows what a rule for that key allows. Each client has a connection of its own to the helper, whose end ends its
leases: when powerd dies, everything goes back.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from powerd_core.errors import ControlDenied, ControlError, PowerdError
from powerd_core.keys import AllowedClient
from powerd_core.lease import DEFAULT_SOCKET, MAX_ANSWER, Request, to_line
from powerd_core.serde import from_document
from powerd_core.wire import Message, encode
from powerd_daemon.server import Later

CONTROL = "control"
"""The subject of such questions, and the role that a key needs for them."""
_ANSWER_S = 9.0
"""Less than what the server waits for a late answer."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Way:
    """One client's connection to the helper: one question at a time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    socket: socket.socket | None = None


class Forward:
    """Hands questions on. ``path`` is the helper's socket."""

    def __init__(self, path: str = DEFAULT_SOCKET) -> None:
        self._path = path
        self._ways: dict[str, _Way] = {}

    def answer(self, question: Message, caller: AllowedClient | None) -> Later:
        """Raises `ControlDenied` for a client whose key has not the role *control*, or who has none; `WireError`."""
        if caller is None:
            raise ControlDenied("knobs are turned for clients with a key: `powerd keys allow NAME --role control`")
        if caller.role != CONTROL:
            raise ControlDenied(f"the key {caller.name!r} may read: `powerd keys allow {caller.name} --role control`")
        request = replace(from_document(Request, dict(question.body)), claim=caller.name)
        way = self._ways.setdefault(caller.name, _Way())

        def begin(give: Callable[[bytes], None]) -> None:
            threading.Thread(target=self._ask, args=(way, request, give), name="control", daemon=True).start()

        return Later(begin)

    def _ask(self, way: _Way, request: Request, give: Callable[[bytes], None]) -> None:
        with way.lock:
            try:
                subject, body = CONTROL, self._exchange(way, request)
            except (OSError, ValueError, PowerdError) as error:
                text = error if isinstance(error, PowerdError) else f"the control helper does not answer: {error}"
                subject, body = "error", {"message": str(text)}
        give(encode(Message(subject, body)))

    def _exchange(self, way: _Way, request: Request) -> dict[str, object]:
        line = to_line(request)
        for attempt in range(2):
            is_new = way.socket is None
            if way.socket is None:
                way.socket = self._connect()
            try:
                way.socket.sendall(line)
                if answer := _read_line(way.socket):
                    body: dict[str, object] = json.loads(answer)
                    return body
            except BrokenPipeError:
                pass
            except OSError:
                self._hang_up(way)
                raise
            self._hang_up(way)  # it was started anew, or has closed a connection that was idle
            if is_new or attempt:
                break
        raise ControlError("the control helper closed the connection")

    def _connect(self) -> socket.socket:
        helper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        helper.settimeout(_ANSWER_S)
        try:
            helper.connect(self._path)
        except OSError as error:
            helper.close()
            raise ControlError(f"no control helper answers beside this powerd at {self._path}: {error}") from error
        return helper

    @staticmethod
    def _hang_up(way: _Way) -> None:
        if way.socket is not None:
            way.socket.close()
        way.socket = None

    def close(self) -> None:
        """Hang up: all leases that clients hold through this powerd end."""
        for way in self._ways.values():
            self._hang_up(way)


def _read_line(helper: socket.socket) -> bytes:
    """A line; empty where the helper hung up."""
    received = b""
    while not received.endswith(b"\n"):
        part = helper.recv(MAX_ANSWER)
        if not part or len(received) > MAX_ANSWER:
            return b""
        received += part
    return received
