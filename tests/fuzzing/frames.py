"""Frames with a right checksum around anything, and descriptions to be spoiled."""

from __future__ import annotations

import json
import struct

from fuzzing.picker import Picker, spoiled
from powerd_core import wire
from powerd_core.model import (
    Accuracy,
    Block,
    BlockBuilder,
    Column,
    CounterConversion,
    Description,
    Device,
    Line,
    Provenance,
    QuantityConversion,
    ScaledConversion,
    ShuntConversion,
    Stream,
)
from powerd_core.serde import to_document
from powerd_core.wire import seal as sealed

EPOCH = 7
_LINES = (
    Line("gpu0.a", "gpu0", ShuntConversion(0.05, 1e-5, 4e-3, 3), Provenance.MEASURED, Accuracy(0.01, origin="sheet")),
    Line("gpu0.b", "gpu0", ScaledConversion("mw", 1e-3), Provenance.SIMULATED),
    Line("gpu0.c", "gpu0", CounterConversion("mj", 1e-3, 2.5, 32), Provenance.MODELLED),
    Line("gpu0.t", "gpu0", QuantityConversion("deg", "temperature_c", 0.5), Provenance.MEASURED),
)
_COLUMNS = (Column("shunt", "h"), Column("bus", "H"), Column("mw", "I"), Column("mj", "Q"), Column("deg", "b"))
STREAMS = (
    Stream(0, "rails", _COLUMNS, _LINES, 2_000_000, {"seed": 1, "bits": {"gpu0.t": {"high": 1}}}),
    Stream(1, "wall", (Column("uw", "q"),), (Line("wall", "node", ScaledConversion("uw", 1e-6), Provenance.MEASURED),),
           100_000_000),
)  # fmt: skip
DESCRIPTION = Description(
    "board", "0.1", EPOCH, "CLOCK_MONOTONIC_RAW", "tcp://*:7361", STREAMS,
    (Device("gpu0", ("gpu0.a", "gpu0.b")), Device("node", ("wall",))), "tcp://*:7362",
)  # fmt: skip


def description_document() -> dict[str, object]:
    """A fresh one, as it comes off the wire."""
    found: dict[str, object] = json.loads(json.dumps(to_document(DESCRIPTION)))
    return found


def message(subject: str, body: object, epoch: int = 0) -> bytes:
    """A message's frame, whatever its body: what JSON should not say (NaN, deep nesting) included."""
    text = json.dumps({"subject": subject, "body": body})
    return sealed(wire.MESSAGE, text.encode("utf-8", "surrogatepass"), epoch=epoch)


def any_frame(picker: Picker) -> bytes:
    """A frame of any kind and fields, its checksum right."""
    kind = picker.one_of((wire.BLOCK, wire.GAP, wire.CLOCK, wire.MARKS, wire.MESSAGE, wire.WANT, 0, 7, 255))
    fields = {"stream": picker.unsigned(16), "epoch": picker.unsigned(64), "sequence": picker.unsigned(64),
              "t_first": picker.signed(64), "t_last": picker.signed(64), "count": picker.unsigned(32),
              "layout": picker.unsigned(16)}  # fmt: skip
    if kind == wire.MESSAGE:
        text = json.dumps(spoiled({"subject": picker.text(), "body": {"a": picker.value()}}, picker))
        return sealed(kind, text.encode("utf-8", "surrogatepass"), **fields)
    if kind == wire.WANT:
        return sealed(kind, struct.pack("<IB", picker.unsigned(32), picker.below(3)), **fields)
    if kind == wire.CLOCK:
        return sealed(kind, struct.pack("<4q", *(picker.signed(64) for _ in range(4))), **fields)
    if kind == wire.GAP:
        return sealed(kind, struct.pack("<q", picker.signed(64)) + picker.take(picker.below(24)), **fields)
    return sealed(kind, picker.take(picker.below(64)), **fields)


def likely_block(picker: Picker, stream: Stream, sequence: int, epoch: int = EPOCH) -> bytes:
    """A block that fits its stream in most respects."""
    count = picker.below(4)
    payload = bytearray(count * stream.scan_bytes)
    for i, byte in enumerate(picker.take(picker.below(48))):
        if payload:
            payload[i % len(payload)] = byte
    if picker.rarely():
        payload += picker.take(picker.below(16)) + b"x"
    first = (sequence * 1_000_000) % (1 << 60) if picker.flip() else picker.signed(64)
    return sealed(
        wire.BLOCK, bytes(payload), stream=stream.number, epoch=picker.unsigned(64) if picker.rarely() else epoch,
        sequence=picker.unsigned(64) if picker.rarely() else sequence, t_first=first,
        t_last=first + picker.below(256) if abs(first) < 1 << 62 else picker.signed(64), count=count,
        layout=picker.unsigned(16) if picker.rarely() else stream.layout,
    )  # fmt: skip


def likely_gap(picker: Picker, stream: Stream, sequence: int, epoch: int = EPOCH) -> bytes:
    """A gap in its place, of any width, time and cause."""
    span = picker.unsigned(32)
    lost = picker.signed(64) if picker.rarely() else picker.below(256) - 1
    payload = struct.pack("<q", lost) + picker.text().encode("utf-8", "surrogatepass")
    return sealed(wire.GAP, payload, stream=stream.number, epoch=epoch, sequence=sequence, t_first=picker.signed(64),
                  t_last=picker.signed(64), count=span)  # fmt: skip


def good_block(stream: Stream, sequence: int, t_ns: int, epoch: int = EPOCH) -> Block:
    """Three scans of plain codes."""
    builder = BlockBuilder(stream, epoch, sequence)
    lines = len(stream.lines)
    for i in range(3):
        builder.append(t_ns + i * stream.period_ns, [0] * lines, [0] * lines, [[5] * lines for _ in stream.columns])
    block = builder.take()
    assert block is not None
    return block
