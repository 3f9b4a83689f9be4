"""Frames on the serial line: COBS, CRC-16/CCITT-FALSE and a zero byte at the end.

A body has at most 240 bytes, so that no COBS code ever reaches 0xFF and every block is one code and its bytes.
"""

import struct
from array import array

MAX_BODY = 240
MAX_ENCODED = MAX_BODY + 3
"""Body, CRC and one byte of COBS, without the zero at the end."""


def _table():
    values = []
    for byte in range(256):
        crc = byte << 8
        for _ in range(8):
            crc = crc << 1 ^ (0x1021 if crc & 0x8000 else 0)
            crc &= 0xFFFF
        values.append(crc)
    return array("H", values)


_TABLE = _table()


def crc16(data):
    """CRC-16/CCITT-FALSE: polynomial 0x1021, start 0xFFFF; of b"123456789" it is 0x29B1."""
    crc = 0xFFFF
    table = _TABLE
    for byte in data:
        crc = (crc << 8 & 0xFF00) ^ table[crc >> 8 ^ byte]
    return crc


def encode(body, crc=crc16):
    """The frame of a body, with the zero at its end."""
    if len(body) > MAX_BODY:
        raise ValueError(f"a body of {len(body)} bytes is over the limit of {MAX_BODY}")
    parts = (body + struct.pack("<H", crc(body))).split(b"\0")
    return b"".join([bytes((len(part) + 1,)) + part for part in parts]) + b"\0"


def decode(encoded, crc=crc16):
    """The body of a frame (without its final zero), or None for what is not a good one."""
    size = len(encoded)
    if size > MAX_ENCODED:
        return None
    out = bytearray()
    at = 0
    while at < size:
        end = at + encoded[at]
        if end == at or end > size:
            return None
        out += encoded[at + 1 : end]
        if end < size:
            out.append(0)
        at = end
    if len(out) < 3:
        return None
    body = bytes(out[:-2])
    return body if crc(body) == out[-2] | out[-1] << 8 else None


class Deframer:
    """Good bodies out of a byte stream in any pieces. Holds at most one frame, whatever comes."""

    def __init__(self, crc=crc16):
        self.damaged = 0
        """Stretches between two zeros that were no frame."""
        self._crc = crc
        self._buffer = bytearray()
        self._overrun = False

    def feed(self, data):
        """A list of the bodies that ``data`` completes."""
        found = []
        for byte in data:
            if byte:
                if len(self._buffer) < MAX_ENCODED:
                    self._buffer.append(byte)
                else:
                    self._overrun = True
                continue
            if self._buffer:
                body = None if self._overrun else decode(self._buffer, self._crc)
                if body is None:
                    self.damaged += 1
                else:
                    found.append(body)
                self._buffer = bytearray()
                self._overrun = False
        return found
