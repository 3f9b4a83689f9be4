"""The header of a frame that passes through: the server looks at no payload."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from powerd_core.errors import VersionError, WireError
from powerd_core.wire import CRC, GAP, HEADER, HEADER_BYTES, MAGIC, VERSION


@dataclass(frozen=True, slots=True)
class Header:
    """What the server needs of a block or gap. ``count`` is the number of scans of a block, the span of a gap."""

    kind: int
    stream: int
    epoch: int
    sequence: int
    t_first_ns: int
    t_last_ns: int
    count: int
    layout: int

    @property
    def following(self) -> int:
        """The stream's next sequence number after this frame."""
        return self.sequence + (self.count if self.kind == GAP else 1)


def read_header(frame: bytes) -> Header:
    """The header of one whole frame whose checksum is right. Raises `WireError`, `VersionError`.

    What `powerd_core.wire.decode` checks, without copying the payload.
    """
    if len(frame) < HEADER_BYTES:
        raise WireError(f"a frame of {len(frame)} bytes is shorter than its header")
    magic, version, kind, stream, epoch, sequence, t_first, t_last, count, length, layout, _ = HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise WireError("no powerd frame: it does not begin with 'pwrd'")
    if version != VERSION:
        raise VersionError(f"a frame in version {version} of the wire format, not {VERSION}")
    if len(frame) != HEADER_BYTES + length:
        raise WireError(f"a frame of {len(frame)} bytes claims {HEADER_BYTES + length}")
    view = memoryview(frame)
    if CRC.unpack_from(frame, HEADER.size)[0] != crc32(view[HEADER_BYTES:], crc32(view[: HEADER.size])):
        raise WireError("checksum mismatch")
    return Header(kind, stream, epoch, sequence, t_first, t_last, count, layout)
