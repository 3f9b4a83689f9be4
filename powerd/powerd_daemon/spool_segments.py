"""Segments of the spool: files of frames, verbatim, that begin with what is needed to read them alone.

A segment is called ``<epoch>-<number>.pwrd``, both in hexadecimal; the number goes on over all epochs, so that it tells
the age. It begins with two messages: the description, and ``segment`` with the place of every stream at that point. A
stream's numbers from there up to the next segment's place are this segment's; what it does not hold of them is missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from powerd_core.errors import WireError
from powerd_core.model import UNKNOWN_TIME_NS
from powerd_core.wire import (
    BLOCK,
    GAP,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD,
    MESSAGE,
    Header,
    Message,
    decode,
    encode,
    read_header,
)

READ_BYTES = 256 << 10
CHUNK_BYTES = 512 << 10
"""Distance of an index's marks, and so what is read at once to serve a client."""

MAX_NUMBER = 1 << 40
"""No stream gets so far in a hundred years. What says so is damaged; the hole before it is not filled with gaps."""

Read = Callable[[int, int], bytes]
"""Offset and size to the bytes there; fewer at the end of the file. May raise OSError."""

_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})\.pwrd")


@dataclass(frozen=True, slots=True)
class Place:
    """How far a stream has come: its next number, and the time of the last reading before it."""

    next: int
    t_last_ns: int = UNKNOWN_TIME_NS


START = Place(0)
Places = Mapping[int, Place]
"""By stream."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A place inside a segment at which a frame begins."""

    offset: int
    places: Places


@dataclass(slots=True, eq=False)
class Segment:
    """What is known of one file. Its writer lets ``size_bytes`` and ``marks`` grow; others only read them."""

    epoch: int
    number: int
    size_bytes: int
    begin: Places = field(default_factory=dict)
    marks: list[Mark] | None = None
    """None until it is indexed."""
    is_damaged: bool = False

    @property
    def name(self) -> str:
        return f"{self.epoch:016x}-{self.number:08x}.pwrd"


def parse_name(name: str) -> tuple[int, int] | None:
    """Epoch and number of a segment, or None for another file."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def head(description: bytes, epoch: int, places: Places) -> bytes:
    """The first bytes of a segment."""
    streams = [[number, place.next, place.t_last_ns] for number, place in sorted(places.items())]
    return description + encode(Message("segment", {"streams": streams}, epoch))


def read_head(read: Read, size_bytes: int, epoch: int) -> tuple[bytes, dict[int, Place] | None]:
    """The description's frame, empty when it is damaged, and the places at which a segment begins, or None."""
    description = b""
    for _, frame, header in scan(read, 0, size_bytes, 64 << 10):
        if header is None:
            continue
        if header.kind != MESSAGE or header.epoch != epoch:
            break
        try:
            event = decode(frame)
            if not isinstance(event, Message):
                break
            if event.subject == "description":
                description = frame
            elif event.subject == "segment":
                return description, _places(event.body["streams"])
        except (WireError, KeyError, TypeError, ValueError):
            break
    return description, None


def _places(streams: Any) -> dict[int, Place]:
    found = {int(number): Place(int(following), int(t_last_ns)) for number, following, t_last_ns in streams}
    for number, place in found.items():
        if not (0 <= number < 1 << 16 and 0 <= place.next <= MAX_NUMBER and -(1 << 63) <= place.t_last_ns < 1 << 63):
            raise ValueError("places that no stream can be at")
    return found


def scan(read: Read, begin: int, end: int, window: int = READ_BYTES) -> Iterator[tuple[int, bytes, Header | None]]:
    """Every good frame between two offsets: offset, bytes, header. One without header stands for a damaged stretch.

    Reads from frame to frame in pieces of ``window`` bytes. A frame that is cut off by the end is damaged.
    """
    at = base = begin
    data, is_damaged = b"", False
    while at + HEADER_BYTES <= end:
        if at + HEADER_BYTES > base + len(data):
            base, data = at, read(at, min(window, end - at))
            if len(data) < HEADER_BYTES:
                break
        size = _size(data, at - base)
        if at + size > end:
            size = 0
        elif at + size > base + len(data):
            base, data = at, read(at, min(max(window, size), end - at))
        frame = data[at - base : at - base + size]
        try:
            header = read_header(frame)
            if header.kind == GAP:
                decode(frame)  # rare, and sent on or taken apart without another look
        except WireError:
            if not is_damaged:
                is_damaged = True
                yield at, b"", None
            found = data.find(MAGIC, at - base + 1)
            # The last bytes may be the beginning of a magic whose rest is in the next piece.
            at = base + found if found >= 0 else max(at + 1, base + len(data) - len(MAGIC) + 1)
            continue
        is_damaged = False
        yield at, frame, header
        at += size
    if at < end and not is_damaged:
        yield at, b"", None


def index(segment: Segment, read: Read) -> tuple[list[Mark], dict[int, Place], bool]:
    """Marks of a segment, the places at its end, and whether anything in it is damaged."""
    places = dict(segment.begin)
    marks = [Mark(0, dict(places))]
    is_damaged = False
    for offset, _, header in scan(read, 0, segment.size_bytes):
        is_damaged |= header is None
        if header is None or not belongs(header, segment.epoch, places):
            continue
        if offset - marks[-1].offset >= CHUNK_BYTES:
            marks.append(Mark(offset, dict(places)))
        places[header.stream] = Place(header.following, header.t_last_ns)
    return marks, places, is_damaged


def belongs(header: Header, epoch: int, places: Places) -> bool:
    """Whether a frame carries on a stream from its place. What a failed write left behind twice does not."""
    return (
        header.kind in (BLOCK, GAP)
        and header.epoch == epoch
        and header.extent > 0
        and header.following <= MAX_NUMBER
        and header.sequence >= places.get(header.stream, START).next
    )


def _size(data: bytes, at: int) -> int:
    """What the header at ``at`` claims as its frame's size; 0 when that is no header."""
    magic, *_, length, _, _ = HEADER.unpack_from(data, at)
    return HEADER_BYTES + length if magic == MAGIC and length <= MAX_PAYLOAD else 0
