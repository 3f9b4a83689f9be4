"""What the commands of `powerd` print on stdout."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from powerd_core.calibration import SensorCalibration
from powerd_core.model import Description
from powerd_core.serde import OptionInfo
from powerd_core.text import printable
from powerd_daemon.config import Config
from powerd_daemon.doctor import Finding
from powerd_daemon.scan import Answer

WIDTH = 100
_READERS = {
    "anyone": "anyone who reaches it can read it: it runs without keys",
    "keys": "read by those whose keys it knows",
    "this-machine": "read by anyone on its own machine",
    "socket-file": "read by those who may use its socket's file",
}
_WHAT = {"power_w": "power", "energy_j": "energy counter"}


def source(kind: str, summary: str, options: Sequence[OptionInfo]) -> str:
    """One kind of source with its options."""
    said = [kind, _wrapped(summary, "    ")]
    for option in options:
        default = f"default {option.default}" if option.default else "required"
        said.append(f"    {option.name} = {option.type} ({default})")
        if option.help:
            said.append(_wrapped(option.help, "        "))
    return "\n".join(said) + "\n"


def description(found: Description) -> str:
    """What a powerd measures, line by line."""
    # The host of a tcp address is left to whoever asks: it is the one that was asked.
    data = found.data_endpoint.replace("tcp://*:", "port ")
    said = [f"{found.board}: powerd {found.version}, data on {data}"]
    if found.access in _READERS:
        said.append(_READERS[found.access])
    for stream in found.streams:
        said.append(f"stream {stream.number} {stream.source}, {1e9 / stream.period_ns:.6g} Hz")
        for line in stream.lines:
            what = _WHAT.get(line.quantity, line.quantity)
            note = f": {line.description}" if line.description else ""
            said.append(f"    {line.name}  ({line.provenance.value} {what} of {line.device}){note}")
    for device in found.devices:
        said.append(f"device {device.name} = {' + '.join(device.feeds) or 'nothing'}")  # noqa: PERF401
    return "\n".join(said)


def config(file: str, found: Config) -> str:
    """What a checked configuration amounts to."""
    server = found.server
    said = [f"{file} is good: listens on {server.listen} (data on {server.data}), board {server.board}"]
    said += [f"    source {s.name} of kind {s.kind}" for s in found.sources]
    said += [f"    device {d.name}" for d in found.devices]
    said.append("Sensors, lines and feeds are checked when powerd starts.")
    return "\n".join(map(printable, said))


def answers(found: Sequence[Answer], buses: Sequence[int]) -> str:
    """What `powerd scan` found, as a table."""
    said = ["bus  address  chip     CONFIG  voltages (bus, across shunt)      recognised by"]
    for a in found:
        volts = ", ".join(f"{c.bus_v:.3f} V {c.shunt_v * 1000:.2f} mV" for c in a.channels)
        config = "" if a.config is None else f"{a.config:#06x}"
        said.append(f"{a.bus:>3}  {a.address:#04x}     {a.chip or '?':<8} {config:<7} {volts:<33} {a.how}")
    silent = [str(n) for n in buses if n not in {a.bus for a in found}]
    if silent:
        said.append(f"nothing answers at 0x40 to 0x4f of i2c-{', i2c-'.join(silent)}")
    return "\n".join(said if found else said[1:])


def findings(found: Sequence[Finding]) -> str:
    """What `powerd check` found, each with what to do, and a last line that counts."""
    said = []
    for f in found:
        what = printable(f"{f.verdict.value:<4}  {f.area}: {f.what}")
        said.append(textwrap.fill(what, WIDTH, subsequent_indent="      "))
        if f.remedy:
            said.append(_wrapped(f"-> {printable(f.remedy)}", "      "))
    counts = Counter(f.verdict.value for f in found)
    said.append(", ".join(f"{counts[v]} {v}" for v in ("ok", "warn", "fail")))
    return "\n".join(said)


def calibrations(file: Path, found: Sequence[SensorCalibration], *, at_zero: bool, is_used: bool = False) -> str:
    """What `powerd calibrate` read and what follows from it."""
    said = [f"{'line':<22} {'readings':>8} {'mean mA':>10} {'spread mA':>10}   offset mA  u mA      gain      u"]
    for c in found:
        point = c.zero if at_zero else c.load
        assert point is not None
        u_offset = "-" if c.u_offset_a is None else f"{c.u_offset_a * 1000:.3f}"
        u_gain = "-" if c.u_gain is None else f"{c.u_gain:.3%}"
        said.append(
            f"{printable(c.line):<22} {point.count:>8} {point.mean_a * 1000:10.3f} {point.spread_a * 1000:10.3f}  "
            f"{c.offset_a * 1000:10.3f} {u_offset:>6} {c.gain:10.6f} {u_gain:>7}"
        )
    how = "in use from now on" if is_used else f'load it in the [[source]] with: calibration = "{file.absolute()}"'
    said.append(f"written to {file}; {how}")
    return "\n".join(said)


def tree(value: object, indent: str = "") -> str:
    """A JSON value as indented lines, for people."""
    said = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        if isinstance(inner, dict | list):
            said.append(f"{indent}{printable(str(name))}:" if inner else f"{indent}{printable(str(name))}: none")
            if inner:
                said.append(tree(inner, indent + "    "))
        else:
            shown = f"{inner:.6g}" if isinstance(inner, float) else "-" if inner in (None, "") else str(inner)
            said.append(printable(f"{indent}{name}: {shown}"))
    return "\n".join(said)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent) or indent.rstrip()
