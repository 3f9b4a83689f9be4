"""Any bytes from a meter that prints lines: flagged readings at most."""

from __future__ import annotations

from fuzzing.picker import Picker
from powerd_core import wire
from powerd_core.model import Block
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.port import LineReader
from powerd_daemon.sources.serial_line import SerialLineOptions, SerialLineSource
from powerd_daemon.sources.sim.bus import VirtualClock

_OPTIONS = (
    SerialLineOptions(port="/dev/x", pattern=r"P=(?P<power>\S+) *(?P<power_unit>\w*)", ignore="^#"),
    SerialLineOptions(
        port="/dev/x", pattern=r"(?P<volts>\S+) V,(?P<amps>\S+) A(?:,(?P<energy>\S+))?", decimal=",", ask="?"
    ),
)
_WORDS = (b"P=", b"1.5", b"1e9", b"1E+999999999", b"-", b"NaN", b"sNaN", b"Infinity", b" W", b" kW", b" V,", b" A",
          b",", b"\n", b"\r\n", b"#", b"9" * 40, b"_", "\u0661".encode(), b"\xff", b"\0", b"\x1b[2J",
          b"x" * 1500)  # fmt: skip


class Line:
    """A port that gives what it is told."""

    name, byte_ns, blocks = "/dev/x", 1_000_000, False

    def __init__(self) -> None:
        self.coming = b""

    def read(self) -> bytes:
        found, self.coming = self.coming, b""
        return found

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def one(data: bytes) -> None:
    picker = Picker(data)
    clock, line = VirtualClock(), Line()
    source = SerialLineSource(picker.one_of(_OPTIONS), Start("m", 7, 0, clock), lambda _port, _baud: line)
    streams, _ = source.open()
    size = {s.number: s.scan_bytes for s in streams}
    while picker.left:
        line.coming = b"".join(
            picker.one_of(_WORDS) if picker.flip() else picker.take(picker.below(12)) for _ in range(picker.below(10))
        )
        clock.t_ns += picker.one_of((10_000_000, 10_000_000, 0, 4_000_000_000))
        source.poll()
        assert len(source._reader._held) <= LineReader.MAX_LINE
        for event in source.take():
            wire.decode(wire.encode(event))
            assert isinstance(event, Block)
            assert len(event.payload) == event.count * size[event.stream]
    source.close()
