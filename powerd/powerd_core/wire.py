"""Frames: a header, its checks, and a payload, from events and back, and out of any byte stream. No sockets, no files.

    magic "pwrd", version u8, kind u8, stream u16, epoch u64, sequence u64, t_first i64, t_last i64,
    count u32, length u32, layout u16, reserved u16 (0), crc32 u32

is the 56-byte little-endian header; the CRC covers what is before it and the payload.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from zlib import crc32

from powerd_core.errors import VersionError, WireError
from powerd_core.marks import EDGE, RECORD, Edges, Marks
from powerd_core.model import Block, ClockExchange, Gap
from powerd_core.serde import check_json

VERSION = 1
MAGIC = b"pwrd"
HEADER = Struct("<4sBBHQQqqIIHH")
CRC = Struct("<I")
HEADER_BYTES = HEADER.size + CRC.size
MAX_PAYLOAD = 16 << 20
"""A frame that claims more is garbage, so that a hostile length never becomes an allocation."""
MAX_SEQUENCE = 1 << 62
"""A block or gap that reaches beyond is garbage: below, numbers and sums of them fit wherever they are kept."""
CURRENT = 2**64 - 1
"""As `Want.sequence`: start with the newest block that the daemon holds."""

_MOST_CREDIT = 2 * MAX_PAYLOAD
_CREDIT_PER_BYTE = 16

BLOCK, GAP, CLOCK, MARKS, MESSAGE, WANT, EDGES = 1, 2, 3, 4, 5, 6, 7

_WHOLE = Struct(HEADER.format + "I")
"""The header with its CRC."""
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


class Header(NamedTuple):
    """A frame's header behind magic and version. ``extent`` is the field count: scans of a block, span of a gap."""

    kind: int
    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    extent: int
    length: int
    """Bytes of payload."""
    layout: int
    check: int
    """The CRC as the frame states it."""

    @property
    def following(self) -> int:
        """The stream's next sequence number after this frame."""
        return self.sequence + (self.extent if self.kind == GAP else 1)


def seal(
    kind: int,
    payload: bytes,
    *,
    stream: int = 0,
    epoch: int = 0,
    sequence: int = 0,
    t_first: int = 0,
    t_last: int = 0,
    count: int = 0,
    layout: int = 0,
) -> bytes:
    """The bytes of a frame. Raises `WireError` for numbers and payloads that no frame has room for."""
    length = len(payload)
    if length > MAX_PAYLOAD:
        raise WireError(f"a payload of {length} bytes is over the limit of {MAX_PAYLOAD}")
    try:
        head = HEADER.pack(MAGIC, VERSION, kind, stream, epoch, sequence, t_first, t_last, count, length, layout, 0)
    except StructError as error:
        raise WireError(f"a number that a frame of kind {kind} has no room for: {error}") from error
    return b"".join((head, CRC.pack(crc32(payload, crc32(head))), payload))


def encode(event: Event) -> bytes:
    """The frame of an event."""
    match event:
        case Block() | Gap():
            if isinstance(event, Block):
                kind, payload, count, layout = BLOCK, event.payload, event.count, event.layout
            else:
                kind, payload, count, layout = GAP, _GAP.pack(event.lost) + event.cause.encode(), event.span, 0
            return seal(
                kind,
                payload,
                stream=event.stream,
                epoch=event.epoch,
                sequence=event.sequence,
                t_first=event.t_first_ns,
                t_last=event.t_last_ns,
                count=count,
                layout=layout,
            )
        case ClockExchange():
            times = (event.t1_host_ns, event.t2_board_ns, event.t3_board_ns, event.t4_host_ns)
            return seal(CLOCK, _CLOCK.pack(*times), epoch=event.epoch)
        case Marks():
            return seal(MARKS, bytes(event.records), epoch=event.process, sequence=event.first, count=len(event))
        case Edges():
            return seal(EDGES, event.records, epoch=event.process, sequence=event.clock, count=len(event))
        case Want():
            window = _WANT.pack(event.window, event.reset)
            return seal(WANT, window, stream=event.stream, epoch=event.epoch, sequence=event.sequence)
        case Message():
            document = {"subject": event.subject, "body": event.body}
            try:
                body = json.dumps(document, separators=(",", ":"), allow_nan=False)
            except (ValueError, RecursionError) as error:
                raise WireError(f"a message that cannot be sent: {error}") from error
            return seal(MESSAGE, body.encode(), epoch=event.epoch)


def _read_head(head: bytes | memoryview) -> Header:
    """The header out of the first `HEADER_BYTES` of what may be a frame; its checksum is still to be compared."""
    magic, version, *numbers, reserved, check = _WHOLE.unpack_from(head)
    header = Header._make((*numbers, check))
    if magic != MAGIC:
        raise WireError("no powerd frame: it does not begin with 'pwrd'")
    if version != VERSION:
        raise VersionError(
            f"the other side speaks version {version} of the wire format, this one version {VERSION}: "
            "install the same release of powerd on both"
        )
    if header.length > MAX_PAYLOAD or reserved:
        raise WireError(f"a frame claims {header.length} bytes of payload, more than {MAX_PAYLOAD}, or sets other bits")
    return header


def _open(frame: bytes) -> tuple[Header, bytes]:
    """The header and the payload of one whole frame whose checksum is right."""
    if len(frame) < HEADER_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes is shorter than its header")
    header = _read_head(frame)
    if len(frame) != HEADER_BYTES + header.length:
        raise WireError(f"a frame of {len(frame)} bytes claims {HEADER_BYTES + header.length}")
    payload = frame[HEADER_BYTES:]
    if header.check != crc32(payload, crc32(frame[: HEADER.size])):
        raise WireError("checksum mismatch")
    return header, payload


def read_header(frame: bytes) -> Header:
    """The header of one whole frame that is passed on as it is: all is checked but what the payload means.

    Raises `VersionError`, `WireError`.
    """
    return _open(frame)[0]


def decode(frame: bytes) -> Event:
    """The event of one whole frame.

    Raises `VersionError` for another version, `WireError` for anything that is not exactly one good frame.
    """
    h, payload = _open(frame)
    if h.kind in (BLOCK, GAP) and h.sequence + h.extent > MAX_SEQUENCE:
        raise WireError(f"no stream gets to the number {h.sequence + h.extent}")
    if h.kind == BLOCK:
        return Block(h.stream, h.epoch, h.sequence, h.t_first_ns, h.t_last_ns, h.extent, h.layout, payload)
    try:
        event = _decode_payload(h, payload)
    except WireError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, StructError) as error:
        raise WireError(f"a frame of kind {h.kind} with unusable contents: {error}") from error
    if event is None:
        raise WireError(f"a frame of kind {h.kind} with {len(payload)} bytes is none of ours")
    return event


def _decode_payload(h: Header, payload: bytes) -> Event | None:
    """The event of a frame that is no block; None when it cannot be."""
    if h.kind == GAP:
        (lost,) = _GAP.unpack_from(payload)
        gap = Gap(
            h.stream, h.epoch, h.sequence, h.t_first_ns, h.t_last_ns, h.extent, lost, payload[_GAP.size :].decode()
        )
        return gap if h.extent > 0 and lost >= -1 else None
    if h.kind == CLOCK:
        return ClockExchange(h.epoch, *_CLOCK.unpack(payload))
    if h.kind == MARKS and len(payload) == h.extent * RECORD.size:
        return Marks(h.epoch, h.sequence, payload)
    if h.kind == EDGES and len(payload) == h.extent * EDGE.size:
        return Edges(h.epoch, h.sequence, payload)
    if h.kind == WANT:
        window, reset = _WANT.unpack(payload)
        return Want(h.stream, h.epoch, h.sequence, window, bool(reset))
    if h.kind == MESSAGE:
        document = json.loads(payload)
        check_json(document)
        subject, body = document["subject"], document["body"]
        return Message(subject, body, h.epoch) if isinstance(subject, str) and isinstance(body, dict) else None
    return None


@dataclass(frozen=True, slots=True)
class Garbage:
    """Bytes that a `FrameReader` had to skip, and the reason."""

    count: int
    reason: str


class FrameReader:
    """Frames out of a byte stream that arrives in any pieces.

    The events do not depend on where the stream was cut. A damaged stretch is skipped up to the next good
    frame and reported as `Garbage`; a tail that is not a whole frame stays pending.

    The work is linear in the bytes that are fed. Each damaged header can claim 16 MiB, of which all have to be summed
    up to see that it lies. So what a header may claim is bounded by a credit, which a lie uses up and the bytes that
    pass restore.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipped = 0
        self._reason = ""
        self._credit = _MOST_CREDIT

    @property
    def pending(self) -> int:
        """Bytes held that are not a whole frame (yet)."""
        return len(self._buffer) + self._skipped

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Event | Garbage, bytes]]:
        """Yield each event completed by ``data``, with the bytes of its frame (empty for garbage)."""
        self._buffer += data
        buffer, at = self._buffer, 0
        try:
            while len(buffer) - at >= HEADER_BYTES:
                size = 0
                try:
                    size = self._claimed(buffer, at)
                    end = at + HEADER_BYTES + size
                    if len(buffer) < end:
                        # A damaged length must not swallow the frames behind it for ever, but only a
                        # longer stream can tell; `close` settles it at the end.
                        break
                    frame = bytes(memoryview(buffer)[at:end])
                    event = decode(frame)
                except WireError as error:
                    skip = self._skip(buffer, at, str(error))
                    self._credit = min(self._credit - size + skip * _CREDIT_PER_BYTE, _MOST_CREDIT)
                    at += skip
                    continue
                if self._skipped:
                    yield self._take_garbage(), b""
                self._credit = min(self._credit + len(frame) * _CREDIT_PER_BYTE, _MOST_CREDIT)
                at = end
                yield event, frame
        finally:
            del buffer[:at]

    def _claimed(self, buffer: bytearray, at: int) -> int:
        """The bytes of payload that the header at that place claims."""
        size = _read_head(memoryview(buffer)[at : at + HEADER_BYTES]).length
        if size > self._credit:
            raise WireError("a frame that claims much, behind many that could not be read")
        return size

    def close(self) -> Iterator[tuple[Event | Garbage, bytes]]:
        """The stream has ended: look for frames inside the pending tail, then report what is left of it."""
        while self._buffer:
            skip = self._skip(self._buffer, 0, "cut off")
            del self._buffer[:skip]
            yield from self.feed(b"")
        if self._skipped:
            yield self._take_garbage(), b""

    def _skip(self, buffer: bytearray, at: int, reason: str) -> int:
        """Bytes from ``at`` to the next place where a frame could begin."""
        following = buffer.find(MAGIC, at + 1)
        if following < 0:
            # The last bytes may be the beginning of a magic whose rest has not arrived.
            following = max(at + 1, len(buffer) - len(MAGIC) + 1)
        self._reason = self._reason or reason
        self._skipped += following - at
        return following - at

    def _take_garbage(self) -> Garbage:
        garbage = Garbage(self._skipped, self._reason)
        self._skipped, self._reason = 0, ""
        return garbage
