"""The wire and journal format, version 1: bytes to events and events to bytes. No sockets, no files.

`decode` takes one whole frame (a ZeroMQ message), and `read_header` one whose contents do not matter; a byte stream (a
journal) is for `powerd_core.framereader`. Anything else than a good frame raises `WireError`; a good frame of another
version, `VersionError`.
"""

from powerd_core.wire.events import CURRENT, MAX_SEQUENCE, Event, Message, Want, decode, encode
from powerd_core.wire.frame import (
    BLOCK,
    CLOCK,
    CRC,
    EDGES,
    GAP,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MARKS,
    MAX_PAYLOAD,
    MESSAGE,
    VERSION,
    WANT,
    Header,
    header_fields,
    read_header,
)

__all__ = [
    "BLOCK",
    "CLOCK",
    "CRC",
    "CURRENT",
    "EDGES",
    "GAP",
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "MARKS",
    "MAX_PAYLOAD",
    "MAX_SEQUENCE",
    "MESSAGE",
    "VERSION",
    "WANT",
    "Event",
    "Header",
    "Message",
    "Want",
    "decode",
    "encode",
    "header_fields",
    "read_header",
]
