"""The node's serial protocol, version 1: bytes to events, commands to bytes. docs/reference/node-protocol.md. No I/O.

A frame is a body with its CRC-16/CCITT-FALSE in COBS, and a zero byte at the end.

A body has at most 240 bytes, so no COBS code ever reaches 0xFF: a frame is the data between its zeros, each piece
behind one byte that holds its length plus one.
"""

from __future__ import annotations

import struct
from binascii import crc_hqx
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from powerd_core.errors import VersionError, WireError

MAX_BODY = 240
MAX_ENCODED = MAX_BODY + 3
"""Body, CRC and one byte of COBS, without the zero at the end."""
VERSION = 1
MAX_SENSORS = 8
TICK_NS = 1000
"""Node times are whole microseconds, cut off."""
COUNTERS = ("i2c_errors", "missed_scans", "dropped_frames", "damaged_commands", "lost_edges", "sensor_resets")
RESET_CAUSES = ("unknown", "power", "watchdog")
_HEAD = struct.Struct("<BBHI")
_DATA = struct.Struct("<BBH")
_DESCRIPTION = struct.Struct("<BBBI8sBBBIB")
_SENSOR = struct.Struct("<BBHB")
_WANTED = struct.Struct("<BBH")
_STATUS = struct.Struct("<IBBI6I")


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
    parts = []
    while at < size <= MAX_ENCODED:
        end = at + encoded[at]
        if end > size or end == at:
            raise WireError("no frame: a length leads beyond its end")
        parts.append(encoded[at + 1 : end])
        at = end
    data = b"\0".join(parts)
    if len(data) < 3 or crc16(data[:-2]) != data[-2] | data[-1] << 8:
        raise WireError(f"{size} bytes are no frame: checksum mismatch")
    return data[:-2]


class Deframer:
    """Good bodies out of a byte stream in any pieces. Holds at most one frame, whatever comes.

    What it gives does not depend on where the stream was cut.
    """

    def __init__(self) -> None:
        self.damaged = 0
        """Stretches between two zeros that were no frame."""
        self._tail = b""
        self._overrun = False

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that ``data`` completes."""
        *pieces, self._tail = (self._tail + data).split(b"\0")
        bodies = []
        for piece in pieces:
            if piece or self._overrun:
                try:
                    bodies.append(decode_frame(b"" if self._overrun else piece))
                except WireError:
                    self.damaged += 1
            self._overrun = False
        if len(self._tail) > MAX_ENCODED:
            # Nothing of this stretch can be a frame any more; only its end matters.
            self._tail, self._overrun = b"", True
        return bodies


class Kind(IntEnum):
    """Types of frames: from the node below 0x80, commands above."""

    DATA = 1
    DESCRIPTION = 2
    ECHO_ANSWER = 3
    EDGE = 4
    STATUS = 5
    ANSWER = 6
    DESCRIBE = 0x81
    CONFIGURE = 0x82
    START = 0x83
    STOP = 0x84
    ECHO = 0x85


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan. Sensor i of n was read at ``time_us + span_us * (i + 0.5) / n``."""

    sequence: int
    """Number of its deadline modulo 2**16."""
    time_us: int
    valid: int
    """Bit i: sensor i was read. Without it, its codes mean nothing."""
    reset: int
    """Bit i: sensor i was found without its settings, or could not be asked."""
    span_us: int
    words: bytes
    """Shunt (s16) and bus (u16) of each sensor, little-endian."""


@dataclass(frozen=True, slots=True)
class WantedSensor:
    """A sensor to be read: an I2C controller (0 or 1), an address, and the CONFIG register to write."""

    controller: int
    address: int
    config: int


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What the node says of itself."""

    sequence: int
    time_us: int
    software: str
    boot: int
    """Drawn at random when the node starts."""
    uid: str
    reset_cause: str
    marker_pin: int
    answering: int
    """Bit i: sensor i answered when it was set up."""


@dataclass(frozen=True, slots=True)
class EchoAnswer:
    sequence: int
    sent_us: int
    received_us: int


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the marker input. ``sequence`` counts edges modulo 2**16, lost ones included."""

    sequence: int
    time_us: int
    level: int


@dataclass(frozen=True, slots=True)
class Status:
    """Twice a second. Every edge before ``time_us`` was sent before it."""

    sequence: int
    time_us: int
    boot: int
    is_running: bool
    level: int
    edges: int
    """Number of the next edge."""
    counters: Mapping[str, int]
    """`COUNTERS`: of I2C since it was configured, the others since it started."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the command of the same sequence number."""

    sequence: int
    time_us: int
    command: int
    result: int


Event = Scan | NodeDescription | EchoAnswer | Edge | Status | Answer


def decode_body(body: bytes) -> Event:
    """The event of a body from the node. Raises `VersionError` or `WireError`."""
    try:
        version, kind, sequence, time_us = _HEAD.unpack_from(body)
        if version != VERSION:
            raise VersionError(
                f"the node speaks version {version} of the protocol, this powerd version {VERSION}: "
                "put the firmware of this release on the node"
            )
        return _decode(kind, sequence, time_us, body[_HEAD.size :])
    except struct.error as error:
        raise WireError(f"a body of {len(body)} bytes is none of the protocol: {error}") from error


def _decode(kind: int, sequence: int, time_us: int, payload: bytes) -> Event:
    match kind:
        case Kind.DATA:
            valid, reset, span_us = _DATA.unpack_from(payload)
            words = payload[_DATA.size :]
            if not words or len(words) % 4 or len(words) > 4 * MAX_SENSORS:
                raise WireError(f"a scan with {len(words)} bytes of codes")
            return Scan(sequence, time_us, valid, reset, span_us, words)
        case Kind.ECHO_ANSWER:
            return EchoAnswer(sequence, time_us, *struct.unpack("<I", payload))
        case Kind.EDGE:
            return Edge(sequence, time_us, *struct.unpack("<B", payload))
        case Kind.STATUS:
            boot, is_running, level, edges, *counts = _STATUS.unpack(payload)
            counters = dict(zip(COUNTERS, counts, strict=True))
            return Status(sequence, time_us, boot, bool(is_running), level, edges, counters)
        case Kind.ANSWER:
            return Answer(sequence, time_us, *struct.unpack("<BB", payload))
        case Kind.DESCRIPTION:
            major, minor, patch, boot, uid, cause, _, marker, _, count = _DESCRIPTION.unpack_from(payload)
            rows = list(_SENSOR.iter_unpack(payload[_DESCRIPTION.size :]))
            if len(rows) != count:
                raise WireError(f"a description of {count} sensors with {len(payload)} bytes")
            answering = sum(bool(answers) << i for i, (*_, answers) in enumerate(rows))
            software = f"{major}.{minor}.{patch}"
            why = RESET_CAUSES[cause if cause < len(RESET_CAUSES) else 0]
            return NodeDescription(sequence, time_us, software, boot, uid.hex(), why, marker, answering)
    raise WireError(f"unknown type of frame: {kind:#04x}")


def encode_command(kind: Kind, sequence: int, payload: bytes = b"") -> bytes:
    """The body of a command."""
    return _HEAD.pack(VERSION, kind, sequence & 0xFFFF, 0) + payload


def configure_payload(period_us: int, sensors: Sequence[WantedSensor]) -> bytes:
    """What `Kind.CONFIGURE` carries."""
    rows = b"".join(_WANTED.pack(s.controller, s.address, s.config) for s in sensors)
    return struct.pack("<IB", period_us, len(sensors)) + rows
