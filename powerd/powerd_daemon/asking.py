"""Asking a running powerd one question: what `powerd describe` and `powerd stats` do."""

from __future__ import annotations

import zmq

from powerd_core.errors import PeerError, PeerTimeout, WireError
from powerd_core.wire import Message, decode, encode
from powerd_daemon.endpoints import check_endpoint
from powerd_daemon.release import release

TIMEOUT_MS = 3000


def ask(url: str, subject: str, timeout_ms: int | None = None) -> Message:
    """The answer of the powerd at ``url``. Raises `ConfigError`, `PeerTimeout`, `PeerError`, `VersionError`."""
    url = check_endpoint(url, "URL")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.IPV6, int("[" in url))
        try:
            dealer.connect(url)
        except zmq.ZMQError as error:
            raise PeerError(f"cannot connect to {url}: {error}: check the address") from error
        dealer.send(encode(Message(subject, {"version": release(), "client": f"powerd {subject}"})))
        if not dealer.poll(TIMEOUT_MS if timeout_ms is None else timeout_ms):
            raise PeerTimeout(f"no powerd answers at {url}: is it running there? start it with `powerd run ...`")
        answer = _decode(dealer.recv(), url)
    finally:
        dealer.close()
        context.term()
    if answer.subject == "error":
        raise PeerError(f"the powerd at {url} says: {answer.body.get('message')}")
    return answer


def _decode(frame: bytes, url: str) -> Message:
    try:
        answer = decode(frame)
    except WireError as error:
        raise type(error)(f"{url}: {error}") from error
    if not isinstance(answer, Message):
        raise PeerError(f"what answers at {url} is no powerd: check the address")
    return answer
