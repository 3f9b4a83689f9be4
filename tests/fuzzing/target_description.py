"""A description with spoiled values: refused with our error, or good for everything that is done with one."""

from __future__ import annotations

from fuzzing.frames import description_document, message
from fuzzing.picker import Picker, expect, spoiled
from powerd_core import wire
from powerd_core.errors import WireError
from powerd_core.serde import read_description, to_document
from powerd_daemon import printing
from powerd_daemon.reports import ready_lines


def one(data: bytes) -> None:
    picker = Picker(data)
    try:
        event = wire.decode(message("description", spoiled(description_document(), picker)))
        assert isinstance(event, wire.Message)
        found = read_description(event.body)
    except WireError as error:
        expect(len(str(error)) < 1000, error)
        return
    again = wire.decode(wire.encode(wire.Message("description", to_document(found), found.epoch)))
    assert isinstance(again, wire.Message)
    assert read_description(again.body) == found
    for text in (printing.description(found), *ready_lines(found, "l", "d", 1 << 20, 1_000_000)):
        assert all(line.isprintable() for line in text.split("\n")), "an escape sequence for the terminal"
    printing.tree(event.body)
    for stream in found.streams:
        wire.encode(wire.Want(stream.number, found.epoch, 0, 1))
