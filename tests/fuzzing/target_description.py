"""A description with spoiled values: refused with our error, or good for everything that is done with one."""

from __future__ import annotations

from fuzzing.frames import description_document, message
from fuzzing.picker import Picker, expect, spoiled
from powerd_core import wire
from powerd_core.errors import WireError
from powerd_core.serde import read_description, to_document
from powerd_daemon.cli import _tree, description_rows
from powerd_daemon.config import ServerConfig
from powerd_daemon.daemon import ready_lines


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
    for line in (*description_rows(found), *ready_lines(found, "l", "d", ServerConfig())):
        assert line.isprintable(), "an escape sequence for the terminal"
    assert all(line.isprintable() for line in _tree(event.body))
    for stream in found.streams:
        wire.encode(wire.Want(stream.number, found.epoch, 0, 1))
