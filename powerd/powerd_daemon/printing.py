"""What the commands of `powerd` print on stdout."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from powerd_core.model import CounterConversion, Description
from powerd_daemon.config import Config
from powerd_daemon.options import OptionInfo

WIDTH = 100


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
    said = [f"{found.board}: powerd {found.version}, data on {found.data_endpoint}"]
    for stream in found.streams:
        said.append(f"stream {stream.number} {stream.source}, {1e9 / stream.period_ns:.6g} Hz")
        for line in stream.lines:
            what = "energy counter" if isinstance(line.conversion, CounterConversion) else "power"
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
    return "\n".join(said)


def tree(value: object, indent: str = "") -> str:
    """A JSON value as indented lines, for people."""
    said = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        if isinstance(inner, dict | list):
            said.append(f"{indent}{name}:" if inner else f"{indent}{name}: none")
            if inner:
                said.append(tree(inner, indent + "    "))
        else:
            shown = f"{inner:.6g}" if isinstance(inner, float) else "-" if inner in (None, "") else str(inner)
            said.append(f"{indent}{name}: {shown}")
    return "\n".join(said)


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent) or indent.rstrip()
