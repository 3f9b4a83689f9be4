"""Frames of the node's serial line: COBS, CRC-16/CCITT-FALSE, a zero byte at the end. No ports, no clock.

A body has at most 240 bytes, so no COBS code ever reaches 0xFF: a frame is the data between its zeros, each piece
behind one byte that holds its length plus one.
"""

from __future__ import annotations

from binascii import crc_hqx

from powerd_core.errors import WireError

MAX_BODY = 240
MAX_ENCODED = MAX_BODY + 3
"""Body, CRC and one byte of COBS, without the zero at the end."""


def crc16(data: bytes) -> int:
    """CRC-16/CCITT-FALSE: polynomial 0x1021, start 0xFFFF; of ``b"123456789"`` it is 0x29B1."""
    return crc_hqx(data, 0xFFFF)


def encode_frame(body: bytes) -> bytes:
    """The frame of a body, with the zero at its end."""
    if len(body) > MAX_BODY:
        raise WireError(f"a body of {len(body)} bytes is over the limit of {MAX_BODY}")
    parts = (body + crc16(body).to_bytes(2, "little")).split(b"\0")
    return b"".join(bytes((len(part) + 1,)) + part for part in parts) + b"\0"


def decode_frame(encoded: bytes) -> bytes:
    """The body of a frame that is given without its final zero. Raises `WireError`."""
    size, at = len(encoded), 0
    if size > MAX_ENCODED:
        raise WireError(f"{size} bytes without a zero are no frame")
    parts = []
    while at < size:
        end = at + encoded[at]
        if end > size or end == at:
            raise WireError("no frame: a length leads beyond its end")
        parts.append(encoded[at + 1 : end])
        at = end
    data = b"\0".join(parts)
    if len(data) < 3:
        raise WireError(f"a frame of {len(data)} bytes is shorter than its checksum")
    body = data[:-2]
    if crc_hqx(body, 0xFFFF) != data[-2] | data[-1] << 8:
        raise WireError("checksum mismatch")
    return body


class Deframer:
    """Good bodies out of a byte stream in any pieces. Holds at most one frame, whatever comes.

    What it gives does not depend on where the stream was cut.
    """

    def __init__(self) -> None:
        self.frames = 0
        self.damaged = 0
        """Stretches between two zeros that were no frame."""
        self._tail = b""
        self._overrun = False

    @property
    def pending(self) -> int:
        """Bytes held that are not a whole frame yet."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that ``data`` completes."""
        pieces = (self._tail + data).split(b"\0")
        self._tail = pieces.pop()
        found = []
        for piece in pieces:
            if self._overrun:
                self.damaged += 1
                self._overrun = False
            elif piece:
                try:
                    found.append(decode_frame(piece))
                except WireError:
                    self.damaged += 1
        if len(self._tail) > MAX_ENCODED:
            # Nothing of this stretch can be a frame any more; only its end matters.
            self._tail, self._overrun = b"", True
        self.frames += len(found)
        return found
