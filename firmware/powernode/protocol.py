"""Bodies of frames, version 1: see docs/reference/node-protocol.md. Little-endian throughout.

Every body begins with version u8, type u8, sequence u16, time u32 (microseconds of the node; 0 in commands).
"""

import struct

VERSION = 1
SOFTWARE = (1, 0, 0)
MAX_SENSORS = 8

DATA, DESCRIPTION, ECHO_ANSWER, EDGE, STATUS, ANSWER = 1, 2, 3, 4, 5, 6
DESCRIBE, CONFIGURE, START, STOP, ECHO = 0x81, 0x82, 0x83, 0x84, 0x85

OK, BAD_COMMAND, RUNNING, NOT_CONFIGURED, BAD_VERSION = 0, 1, 2, 3, 4
"""Results in an answer."""

COUNTERS = ("i2c_errors", "missed_scans", "dropped_frames", "damaged_commands", "lost_edges", "sensor_resets")

_HEAD = "<BBHI"
HEAD_BYTES = 8


def head(kind, sequence, time_us):
    return struct.pack(_HEAD, VERSION, kind, sequence & 0xFFFF, time_us)


def data(sequence, time_us, valid, reset, span_us, words):
    """One scan. ``words`` holds shunt and bus of each sensor, as bytes, little-endian."""
    return struct.pack(_HEAD + "BBH", VERSION, DATA, sequence & 0xFFFF, time_us, valid, reset, span_us) + words


def description(sequence, time_us, boot, uid, reset_cause, is_running, marker, period_us, sensors):
    """What the node is. ``sensors`` holds (controller, address, config, answers) tuples."""
    said = struct.pack("<BBBI8sBBBIB", *SOFTWARE, boot, uid, reset_cause, is_running, marker, period_us, len(sensors))
    return head(DESCRIPTION, sequence, time_us) + said + b"".join([struct.pack("<BBHB", *s) for s in sensors])


def echo_answer(sequence, sent_us, received_us):
    return head(ECHO_ANSWER, sequence, sent_us) + struct.pack("<I", received_us)


def edge(sequence, time_us, level):
    return head(EDGE, sequence, time_us) + bytes((level,))


def status(sequence, time_us, boot, is_running, level, edges, counters):
    said = struct.pack("<IBBI", boot, is_running, level, edges & 0xFFFFFFFF)
    return head(STATUS, sequence, time_us) + said + struct.pack("<6I", *[c & 0xFFFFFFFF for c in counters])


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
