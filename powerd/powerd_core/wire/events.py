"""Events to frames and frames to events: blocks, gaps, clock exchanges, marks, requests and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from struct import Struct

from powerd_core.document import check_json
from powerd_core.errors import WireError
from powerd_core.marks import EDGE, RECORD, Edges, Marks
from powerd_core.model import Block, ClockExchange, Gap
from powerd_core.wire.frame import BLOCK, CLOCK, EDGES, GAP, MARKS, MESSAGE, WANT, opened, seal

CURRENT = 2**64 - 1
"""As `Want.sequence`: start with the newest block that the daemon holds."""

MAX_SEQUENCE = 1 << 62
"""A block or gap that reaches beyond is garbage: below, numbers and sums of them fit wherever they are kept."""

_CLOCK = Struct("<4q")
_WANT = Struct("<IB")
_GAP = Struct("<q")


@dataclass(frozen=True, slots=True)
class Want:
    """A client's request: send me ``stream`` from ``sequence`` on, at most ``window`` frames beyond it.

    Idempotent. Without ``reset`` it only moves the window; with it, the daemon goes back (or ahead) to ``sequence``.
    """

    stream: int
    epoch: int
    sequence: int
    window: int
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """A rare control message: a subject such as ``describe`` and a JSON object."""

    subject: str
    body: Mapping[str, object] = field(default_factory=dict)
    epoch: int = 0


Event = Block | Gap | ClockExchange | Marks | Edges | Message | Want


def encode(event: Event) -> bytes:
    """The frame of an event."""
    match event:
        case Block():
            return seal(
                BLOCK,
                event.payload,
                stream=event.stream,
                epoch=event.epoch,
                sequence=event.sequence,
                t_first=event.t_first_ns,
                t_last=event.t_last_ns,
                count=event.count,
                layout=event.layout,
            )
        case Gap():
            return seal(
                GAP,
                _GAP.pack(event.lost) + event.cause.encode(),
                stream=event.stream,
                epoch=event.epoch,
                sequence=event.sequence,
                t_first=event.t_first_ns,
                t_last=event.t_last_ns,
                count=event.span,
            )
        case ClockExchange():
            times = (event.t1_host_ns, event.t2_board_ns, event.t3_board_ns, event.t4_host_ns)
            return seal(CLOCK, _CLOCK.pack(*times), epoch=event.epoch)
        case Marks():
            return seal(MARKS, bytes(event.records), epoch=event.process, sequence=event.first, count=len(event))
        case Edges():
            return seal(EDGES, event.records, epoch=event.process, sequence=event.clock, count=len(event))
        case Want():
            return seal(
                WANT,
                _WANT.pack(event.window, event.reset),
                stream=event.stream,
                epoch=event.epoch,
                sequence=event.sequence,
            )
        case Message():
            document = {"subject": event.subject, "body": event.body}
            try:
                body = json.dumps(document, separators=(",", ":"), allow_nan=False)
            except (ValueError, RecursionError) as error:
                raise WireError(f"a message that cannot be sent: {error}") from error
            return seal(MESSAGE, body.encode(), epoch=event.epoch)


def decode(frame: bytes) -> Event:
    """The event of one whole frame.

    Raises `VersionError` for another version, `WireError` for anything that is not exactly one good frame.
    """
    (kind, stream, epoch, seq, t_first, t_last, count, layout, _, _), payload = opened(frame)
    if kind in (BLOCK, GAP) and seq + count > MAX_SEQUENCE:
        raise WireError(f"no stream gets to the number {seq + count}")
    if kind == BLOCK:
        return Block(stream, epoch, seq, t_first, t_last, count, layout, payload)
    try:
        return _decode_rest(kind, stream, epoch, seq, t_first, t_last, count, payload)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"frame of kind {kind} with unusable contents: {error}") from error


def _decode_rest(
    kind: int, stream: int, epoch: int, seq: int, t_first: int, t_last: int, count: int, payload: bytes
) -> Event:
    def need(ok: bool) -> None:
        if not ok:
            raise WireError(f"frame of kind {kind} with a payload of {len(payload)} bytes")

    if kind == GAP:
        need(len(payload) >= _GAP.size and count > 0)
        (lost,) = _GAP.unpack_from(payload)
        need(lost >= -1)
        return Gap(stream, epoch, seq, t_first, t_last, count, lost, payload[_GAP.size :].decode())
    if kind == CLOCK:
        need(len(payload) == _CLOCK.size)
        return ClockExchange(epoch, *_CLOCK.unpack(payload))
    if kind == MARKS:
        need(len(payload) == count * RECORD.size)
        return Marks(epoch, seq, payload)
    if kind == EDGES:
        need(len(payload) == count * EDGE.size)
        return Edges(epoch, seq, payload)
    if kind == WANT:
        need(len(payload) == _WANT.size)
        window, reset = _WANT.unpack(payload)
        return Want(stream, epoch, seq, window, bool(reset))
    if kind == MESSAGE:
        document = json.loads(payload)
        check_json(document)
        subject, body = document["subject"], document["body"]
        need(isinstance(subject, str) and isinstance(body, dict))
        return Message(subject, body, epoch)
    raise WireError(f"unknown kind of frame: {kind}")
