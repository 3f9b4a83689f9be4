"""A hostile wall meter: every answer to every question may be anything. Readings, flags or a `SensorError`."""

from __future__ import annotations

import powerd_daemon.sources.wt310e as wt310
from fuzzing.picker import Picker, expect
from powerd_core import wire
from powerd_core.errors import SensorError
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.port import LineReader
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.wt310e import Wt310eOptions, Wt310eSource

_NUMBERS = ("1.5E+00", "-3", "NAN", "sNaN", "INF", "-INF", "9.91E+37", "9.9E+37", "1E+9999999", "1E-9999999", "", "x",
            "1_0", "9" * 400, "0x1", "1E+12", "-0")  # fmt: skip
_ANSWERS = {
    "*IDN?": "YOKOGAWA,WT310E,X,F1", ":INTEG:STAT?": "STAR", ":STAT:ERR?": '0,"NO ERROR"', ":INP:VOLT:RANG?": "300",
    ":INP:CURR:RANG?": "5", ":SAMP:RATE?": "0.25", ":STAT:EESR?": "0",
}  # fmt: skip


class HostileMeter:
    """A link on which questions are mostly answered as they should be."""

    name, byte_ns, blocks = "/dev/ttyX", 100_000, False

    def __init__(self, picker: Picker) -> None:
        self._picker = picker
        self._out = b""

    def write(self, data: bytes) -> None:
        question = data.decode("ascii").strip()
        picker = self._picker
        if not question.rstrip("01;").endswith("?"):
            return
        if wt310.VALUES in question:
            said = f"{picker.one_of(('1', '65535', 'x', '0', '-1'))};{picker.one_of(('2', '3', '', '450'))};"
            said += ",".join(picker.one_of(_NUMBERS) for _ in range(1 + picker.below(3) % 2 + picker.rarely()))
            text = said.encode("utf-8", "surrogatepass" if picker.flip() else "replace")
        else:
            text = _ANSWERS.get(question, "0").encode()
        if picker.rarely():
            text = picker.take(picker.below(40))
        self._out += text + (b"" if picker.rarely() else b"\n")

    def read(self) -> bytes:
        found, self._out = self._out, b""
        return found

    def close(self) -> None:
        pass


def one(data: bytes) -> None:
    picker = Picker(data)
    if picker.rarely():
        _parse(picker.rest().decode("utf-8", "replace"))
        return
    clock = VirtualClock()
    options = Wt310eOptions(port="/dev/ttyX", volts=300.0, amperes=5.0)
    source = Wt310eSource(options, Start("wall", 7, 0, clock), lambda _port, _baud: HostileMeter(picker))
    try:
        streams, _ = source.open()
        while picker.left:
            clock.t_ns += picker.one_of((10_000_000, 250_000_000, 0))
            source.poll()
            assert len(source._lines._held) <= LineReader.MAX_LINE
            for event in source.take():
                wire.decode(wire.encode(event))
                assert len(event.payload) == event.count * streams[0].scan_bytes  # type: ignore[union-attr]
    except SensorError as error:
        expect(len(str(error)) < 2 * LineReader.MAX_LINE, error)
    finally:
        source.close()


def _parse(text: str) -> None:
    try:
        reply = wt310.parse_reply(text, with_energy=True)
    except ValueError:
        return
    assert all(abs(code) < 1 << 63 for code in (reply.power, reply.energy))
