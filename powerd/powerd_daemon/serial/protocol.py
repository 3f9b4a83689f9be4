"""Bodies of the node's frames, version 1: bytes to events and commands to bytes. See docs/node-protocol.md."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from powerd_core.errors import VersionError, WireError

VERSION = 1
MAX_SENSORS = 8
TICK_NS = 1000
"""Node times are whole microseconds, cut off."""


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


RESULTS = ("ok", "it does not know this", "it is measuring", "it is not configured", "it speaks another version")
RESET_CAUSES = ("unknown", "power", "watchdog")

_HEAD = struct.Struct("<BBHI")
_DATA = struct.Struct("<BBH")
_DESCRIPTION = struct.Struct("<BBBI8sBBBIB")
_SENSOR = struct.Struct("<BBHB")
_WANTED = struct.Struct("<BBH")
_STATUS = struct.Struct("<IBBI6I")


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
    is_running: bool
    marker_pin: int
    period_us: int
    sensors: tuple[WantedSensor, ...]
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
    i2c_errors: int
    missed_scans: int
    dropped_frames: int
    damaged_commands: int
    lost_edges: int
    sensor_resets: int

    @property
    def counters(self) -> dict[str, int]:
        """The six counters by name: of I2C since it was configured, the others since it started."""
        return {
            "i2c_errors": self.i2c_errors,
            "missed_scans": self.missed_scans,
            "dropped_frames": self.dropped_frames,
            "damaged_commands": self.damaged_commands,
            "lost_edges": self.lost_edges,
            "sensor_resets": self.sensor_resets,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of the command of the same sequence number."""

    sequence: int
    time_us: int
    command: int
    result: int

    @property
    def said(self) -> str:
        return RESULTS[self.result] if self.result < len(RESULTS) else f"result {self.result}"


Event = Scan | NodeDescription | EchoAnswer | Edge | Status | Answer


def decode_body(body: bytes) -> Event:
    """The event of a body from the node. Raises `VersionError` or `WireError`."""
    if len(body) < _HEAD.size:
        raise WireError(f"a body of {len(body)} bytes is shorter than its head")
    version, kind, sequence, time_us = _HEAD.unpack_from(body)
    if version != VERSION:
        raise VersionError(
            f"the node speaks version {version} of the protocol, this powerd version {VERSION}: "
            "put the firmware of this release on the node"
        )
    try:
        if kind == Kind.DATA:
            valid, reset, span_us = _DATA.unpack_from(body, _HEAD.size)
            words = body[_HEAD.size + _DATA.size :]
            if not words or len(words) % 4 or len(words) > 4 * MAX_SENSORS:
                raise WireError(f"a scan with {len(words)} bytes of codes")
            return Scan(sequence, time_us, valid, reset, span_us, words)
        return _decode_rare(kind, sequence, time_us, body[_HEAD.size :])
    except struct.error as error:
        raise WireError(f"frame of type {kind:#04x} with a body of {len(body)} bytes") from error


def _decode_rare(kind: int, sequence: int, time_us: int, payload: bytes) -> Event:
    match kind:
        case Kind.ECHO_ANSWER:
            return EchoAnswer(sequence, time_us, *struct.unpack("<I", payload))
        case Kind.EDGE:
            return Edge(sequence, time_us, *struct.unpack("<B", payload))
        case Kind.STATUS:
            boot, is_running, *rest = _STATUS.unpack(payload)
            return Status(sequence, time_us, boot, bool(is_running), *rest)
        case Kind.ANSWER:
            return Answer(sequence, time_us, *struct.unpack("<BB", payload))
        case Kind.DESCRIPTION:
            major, minor, patch, boot, uid, cause, is_running, marker, period_us, count = _DESCRIPTION.unpack_from(
                payload
            )
            if len(payload) != _DESCRIPTION.size + count * _SENSOR.size:
                raise WireError(f"a description of {count} sensors with {len(payload)} bytes")
            rows = list(_SENSOR.iter_unpack(payload[_DESCRIPTION.size :]))
            return NodeDescription(
                sequence,
                time_us,
                f"{major}.{minor}.{patch}",
                boot,
                uid.hex(),
                RESET_CAUSES[cause] if cause < len(RESET_CAUSES) else RESET_CAUSES[0],
                bool(is_running),
                marker,
                period_us,
                tuple(WantedSensor(*row[:3]) for row in rows),
                sum(bool(row[3]) << i for i, row in enumerate(rows)),
            )
    raise WireError(f"unknown type of frame: {kind:#04x}")


def encode_command(kind: Kind, sequence: int, payload: bytes = b"") -> bytes:
    """The body of a command."""
    return _HEAD.pack(VERSION, kind, sequence & 0xFFFF, 0) + payload


def configure_payload(period_us: int, sensors: Sequence[WantedSensor]) -> bytes:
    """What `Kind.CONFIGURE` carries."""
    rows = b"".join(_WANTED.pack(s.controller, s.address, s.config) for s in sensors)
    return struct.pack("<IB", period_us, len(sensors)) + rows
