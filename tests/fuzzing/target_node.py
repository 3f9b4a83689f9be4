"""A hostile sensor node on the serial line: readings, gaps or a `SensorError`, whatever it answers."""

from __future__ import annotations

import struct

import powerd_daemon.sources.node.protocol as p
from fuzzing.picker import Picker, expect
from powerd_core import wire
from powerd_core.errors import SensorError
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.node.protocol import MAX_BODY, Deframer, encode_frame
from powerd_daemon.sources.node.source import NodeOptions, NodeSensor, NodeSource
from powerd_daemon.sources.sim.bus import VirtualClock

_HEAD = struct.Struct("<BBHI")
_OPTIONS = NodeOptions(port="/dev/fake", sensors=(NodeSensor("a", 0x40), NodeSensor("b", 0x41, controller=1)))


class HostileNode:
    """A port behind which commands are mostly answered well, and anything comes besides."""

    def __init__(self, picker: Picker, clock: VirtualClock) -> None:
        self._picker, self._clock = picker, clock
        self._commands = Deframer()
        self._out = bytearray()
        self._sequence = 0

    @property
    def us(self) -> int:
        return self._clock.t_ns // 1000 & 0xFFFFFFFF

    def write(self, data: bytes) -> None:
        for body in self._commands.feed(data):
            _, kind, sequence, _ = _HEAD.unpack_from(body)
            if self._picker.rarely():
                self._out += self.anything()
                continue
            if kind == p.Kind.ECHO:
                answer = _HEAD.pack(p.VERSION, p.Kind.ECHO_ANSWER, sequence, self.us) + struct.pack("<I", self.us)
            elif kind == p.Kind.DESCRIBE:
                said = struct.pack("<BBBI8sBBBIB", 1, 0, 0, 9, bytes(8), 1, 0, 15, 4000, 2)
                sensors = struct.pack("<BBHBBBHB", 0, 0x40, 0x3C4F, 1, 1, 0x41, 0x3C4F, 1)
                answer = _HEAD.pack(p.VERSION, p.Kind.DESCRIPTION, sequence, self.us) + said + sensors
            else:
                answer = _HEAD.pack(p.VERSION, p.Kind.ANSWER, sequence, self.us) + bytes((kind, 0))
            self._out += encode_frame(answer)

    def read(self, timeout_ns: int) -> bytes:
        self._clock.t_ns += max(timeout_ns, 100_000) if not self._out else 100_000
        found, self._out = bytes(self._out), bytearray()
        return found

    def close(self) -> None:
        pass

    def say(self, data: bytes) -> None:
        self._out += data

    def anything(self) -> bytes:
        """A frame of any contents, or bytes that are none."""
        picker = self._picker
        how = picker.below(5)
        if how == 0:
            return picker.take(picker.below(64))
        kind = picker.one_of((p.Kind.DATA, p.Kind.EDGE, p.Kind.STATUS, p.Kind.ECHO_ANSWER, p.Kind.DESCRIPTION, 0, 0x81))
        time_us = picker.unsigned(32) if picker.rarely() else self.us
        head = _HEAD.pack(2 if picker.rarely() else p.VERSION, kind, picker.unsigned(16), time_us)
        if kind == p.Kind.DATA and how != 1:
            self._sequence += 1 + picker.rarely() * picker.below(256)
            head = _HEAD.pack(p.VERSION, kind, self._sequence & 0xFFFF, time_us)
            body = struct.pack("<BBH", picker.below(256), picker.below(4), picker.unsigned(16))
            return encode_frame(head + body + picker.take(8).ljust(8, b"\0"))
        if kind == p.Kind.STATUS:
            rest = struct.pack("<IBBI6I", picker.one_of((9, 9, 9, 1)), picker.below(3), picker.below(256),
                               *(picker.unsigned(32) for _ in range(7)))  # fmt: skip
            return encode_frame(head + rest)
        return encode_frame((head + picker.take(picker.below(64)))[:MAX_BODY])


def one(data: bytes) -> None:
    picker = Picker(data)
    clock = VirtualClock()
    node = HostileNode(picker, clock)
    source = NodeSource(_OPTIONS, Start("node", 7, 0, clock), lambda _path, _baud: node)
    following: dict[int, int] = {}
    try:
        streams, _ = source.open()
        fits = {s.number: s for s in streams}
        while picker.left:
            node.say(b"".join(node.anything() for _ in range(picker.below(8))))
            clock.t_ns += picker.one_of((5_000_000, 5_000_000, 5_000_000, 0, 600_000_000))
            source.poll()
            for event in source.take():
                wire.decode(wire.encode(event))
                assert event.sequence == following.get(event.stream, 0)
                following[event.stream] = event.sequence + 1
                if hasattr(event, "payload"):
                    assert len(event.payload) == event.count * fits[event.stream].scan_bytes
    except SensorError as error:
        expect(str(error).isprintable(), error)
    finally:
        source.close()
