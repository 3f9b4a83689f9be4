"""The serial protocol, version 1: frames on the line and the bodies in them, see docs/reference/node-protocol.md.

A frame is a body with its CRC-16/CCITT-FALSE in COBS, and a zero byte at the end. A body has at most 240 bytes, so that
no COBS code ever reaches 0xFF and every block is one code and its bytes. It begins with version u8, type u8, sequence
u16, time u32 (microseconds of the node; 0 in commands), little-endian throughout.
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
        bodies = []
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
                    bodies.append(body)
                self._buffer = bytearray()
                self._overrun = False
        return bodies


VERSION = 1
SOFTWARE = (1, 0, 0)
MAX_SENSORS = 8

DATA, DESCRIPTION, ECHO_ANSWER, EDGE, STATUS, ANSWER = 1, 2, 3, 4, 5, 6
DESCRIBE, CONFIGURE, START, STOP, ECHO = 0x81, 0x82, 0x83, 0x84, 0x85

OK, BAD_COMMAND, RUNNING, NOT_CONFIGURED, BAD_VERSION = 0, 1, 2, 3, 4
"""Results in an answer."""

_HEAD = "<BBHI"
HEAD_BYTES = 8


def head(kind, sequence, time_us):
    return struct.pack(_HEAD, VERSION, kind, sequence & 0xFFFF, time_us)


def data(sequence, time_us, valid, reset, span_us, words):
    """One scan. ``words`` holds shunt and bus of each sensor, as bytes, little-endian."""
    return struct.pack(_HEAD + "BBH", VERSION, DATA, sequence & 0xFFFF, time_us, valid, reset, span_us) + words


def description(sequence, time_us, boot, uid, reset_cause, is_running, marker, period_us, sensors):
    """What the node is. ``sensors`` holds (controller, address, config, answers) tuples."""
    fields = struct.pack("<BBBI8sBBBIB", *SOFTWARE, boot, uid, reset_cause, is_running, marker, period_us, len(sensors))
    return head(DESCRIPTION, sequence, time_us) + fields + b"".join([struct.pack("<BBHB", *s) for s in sensors])


def echo_answer(sequence, sent_us, received_us):
    return head(ECHO_ANSWER, sequence, sent_us) + struct.pack("<I", received_us)


def edge(sequence, time_us, level):
    return head(EDGE, sequence, time_us) + bytes((level,))


def status(sequence, time_us, boot, is_running, level, edges, counters):
    fields = struct.pack("<IBBI", boot, is_running, level, edges & 0xFFFFFFFF)
    return head(STATUS, sequence, time_us) + fields + struct.pack("<6I", *[c & 0xFFFFFFFF for c in counters])


def answer(sequence, time_us, command, result):
    return head(ANSWER, sequence, time_us) + bytes((command, result))


def parse_head(body):
    """(version, type, sequence, time) or None for a body that is too short."""
    return struct.unpack(_HEAD, body[:HEAD_BYTES]) if len(body) >= HEAD_BYTES else None


def parse_configure(body):
    """(period_us, [(controller, address, config), ...]) or None for what cannot be meant."""
    payload = body[HEAD_BYTES:]
    if len(payload) < 5:
        return None
    period_us, count = struct.unpack("<IB", payload[:5])
    if not 1 <= count <= MAX_SENSORS or len(payload) != 5 + 4 * count or not 200 <= period_us <= 10000000:
        return None
    sensors = [struct.unpack("<BBH", payload[5 + 4 * i : 9 + 4 * i]) for i in range(count)]
    places = {(controller, address) for controller, address, _ in sensors}
    if len(places) < count or max([c for c, _ in places]) > 1 or max([a for _, a in places]) > 0x77:
        return None
    return period_us, sensors
