"""A running powerd, here or elsewhere, as a command asks it: what `powerd describe` and `stats` do."""

from __future__ import annotations

import time
from contextlib import suppress

import zmq

from powerd_core.errors import PeerError, PeerTimeout, WireError
from powerd_core.keys import Credentials, control_url, explain_refusal, read_monitor
from powerd_core.wire import MAX_PAYLOAD, Message, decode, encode
from powerd_daemon.auth import KeyDirectory, is_local
from powerd_daemon.config import release

TIMEOUT_MS = 3000
_DENIED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_OTHER_MECHANISM = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_HUNG_UP = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


class Refused(PeerError):
    """A powerd that does not take our keys, or that we do not take for the one we know."""


def ask(url: str, subject: str, timeout_ms: int = TIMEOUT_MS, *, keys: str | None = None) -> Message:
    """The answer of the powerd at ``url`` (which may be short: ``board``), with the keys that a directory has for it.

    Raises `ConfigError`, `PeerTimeout`, `PeerError`, `VersionError`.
    """
    url = control_url(url)
    request = encode(Message(subject, {"version": release(), "client": f"powerd {subject}"}))
    directory = KeyDirectory(keys)
    known = directory.credentials(url) if url.startswith("tcp://") else None
    # A board's own commands reach it with its own keys, if it uses any.
    own = directory.server() if known is None and url.startswith("tcp://") and is_local(url) else None
    try:
        frame = _request(url, request, Credentials(own, own.public) if own else known, timeout_ms)
    except Refused:
        if own is None:
            raise
        frame = _request(url, request, None, timeout_ms)
    try:
        answer = decode(frame)
    except WireError as error:
        raise type(error)(f"{url}: {error}") from error
    if not isinstance(answer, Message):
        raise PeerError(f"what answers at {url} is no powerd: check the address")
    if answer.subject == "error":
        raise PeerError(f"the powerd at {url} says: {answer.body.get('message')}")
    return answer


def _request(url: str, request: bytes, credentials: Credentials | None, timeout_ms: int) -> bytes:
    """The frame that answers a request."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        control = context.socket(zmq.DEALER)
        # Where a handshake failed, libzmq may have given the connection up, and nothing ever takes the request.
        control.set(zmq.SNDTIMEO, 0)
        control.set(zmq.MAXMSGSIZE, MAX_PAYLOAD + 1024)
        control.set(zmq.IPV6, int("[" in url))
        if credentials is not None:
            control.set(zmq.CURVE_PUBLICKEY, credentials.own.public.encode())
            control.set(zmq.CURVE_SECRETKEY, credentials.own.secret.encode())
            control.set(zmq.CURVE_SERVERKEY, credentials.board.encode())
        monitor = control.get_monitor_socket(_DENIED | _OTHER_MECHANISM | _HUNG_UP)
        try:
            control.connect(url)
        except zmq.ZMQError as error:
            raise PeerError(f"cannot connect to {url}: {error}: check the address") from error
        with suppress(zmq.Again):
            control.send(request)
        poller = zmq.Poller()
        poller.register(control, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        end_s = time.monotonic() + timeout_ms / 1000
        has_hung_up = False
        while (left_s := end_s - time.monotonic()) > 0:
            ready = dict(poller.poll(round(left_s * 1000) + 1))
            if control in ready:
                return control.recv()
            if monitor not in ready:
                continue
            event, _ = read_monitor(monitor.recv_multipart())
            # Hung up once, it may be a powerd that just ends; twice, it is one that cannot read what we send.
            if event != _HUNG_UP or (has_hung_up and credentials is not None):
                raise Refused(explain_refusal(url, credentials, is_denied=event == _DENIED))
            has_hung_up = True
        raise PeerTimeout(f"no powerd answers at {url}: is it running there? start it with `powerd run ...`")
    finally:
        context.destroy(linger=0)
