"""Frames, whatever they carry: a header, its checks, and a payload. No sockets, no files.

    magic "pwrd", version u8, kind u8, stream u16, epoch u64, sequence u64, t_first i64, t_last i64,
    count u32, length u32, layout u16, reserved u16 (0), crc32 u32

is the 56-byte little-endian header; the CRC covers what is before it and the payload.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple
from zlib import crc32

from powerd_core.errors import VersionError, WireError

VERSION = 1
MAGIC = b"pwrd"
HEADER = Struct("<4sBBHQQqqIIHH")
CRC = Struct("<I")
HEADER_BYTES = HEADER.size + CRC.size
MAX_PAYLOAD = 16 << 20
"""A frame that claims more is garbage, so that a hostile length never becomes an allocation."""

BLOCK, GAP, CLOCK, MARKS, MESSAGE, WANT, EDGES = 1, 2, 3, 4, 5, 6, 7

_WHOLE = Struct("<4sBBHQQqqIIHHI")
"""The header with its CRC."""

Fields = tuple[int, int, int, int, int, int, int, int, int, int]
"""Those of a `Header`, in its order."""


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
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"a payload of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    try:
        head = HEADER.pack(
            MAGIC, VERSION, kind, stream, epoch, sequence, t_first, t_last, count, len(payload), layout, 0
        )
    except StructError as error:
        raise WireError(f"a number that a frame of kind {kind} has no room for: {error}") from error
    return b"".join((head, CRC.pack(crc32(payload, crc32(head))), payload))


class Header(NamedTuple):
    """A frame's header behind magic and version. ``extent`` is the field count: scans of a block, span of a gap."""

    kind: int
    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    extent: int
    layout: int
    length: int
    """Bytes of payload."""
    check: int
    """The CRC as the frame states it."""

    @property
    def following(self) -> int:
        """The stream's next sequence number after this frame."""
        return self.sequence + (self.extent if self.kind == GAP else 1)


def header_fields(head: bytes | memoryview) -> Fields:
    """The fields of a `Header`, in its order, out of the first `HEADER_BYTES` of what may be a frame."""
    magic, version, kind, stream, epoch, seq, t_first, t_last, count, length, layout, reserved, check = (
        _WHOLE.unpack_from(head)
    )
    if magic != MAGIC:
        raise WireError("no powerd frame: it does not begin with 'pwrd'")
    if version != VERSION:
        raise VersionError(
            f"the other side speaks version {version} of the wire format, this one version {VERSION}: "
            "install the same release of powerd on both"
        )
    if length > MAX_PAYLOAD:
        raise WireError(f"a frame claims {length} bytes of payload, more than {MAX_PAYLOAD}")
    if reserved:
        raise WireError("reserved header bits are set")
    return kind, stream, epoch, seq, t_first, t_last, count, layout, length, check


def opened(frame: bytes) -> tuple[Fields, bytes]:
    """The header's fields and the payload of one whole frame whose checksum is right."""
    if len(frame) < HEADER_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes is shorter than its header")
    fields = header_fields(frame)
    length, check = fields[8:]
    if len(frame) != HEADER_BYTES + length:
        raise WireError(f"a frame of {len(frame)} bytes claims {HEADER_BYTES + length}")
    # A copy costs less than a view of it does, up to some 64 KiB.
    payload = frame[HEADER_BYTES:]
    if check != crc32(payload, crc32(frame[: HEADER.size])):
        raise WireError("checksum mismatch")
    return fields, payload


def read_header(frame: bytes) -> Header:
    """The header of one whole frame that is passed on as it is: all is checked but what the payload means.

    Raises `VersionError`, `WireError`.
    """
    return Header._make(opened(frame)[0])
