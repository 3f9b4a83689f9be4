"""One frame, raw or with a right checksum: an event or our error, and an event can be sent again."""

from __future__ import annotations

from fuzzing.frames import any_frame
from fuzzing.picker import Picker
from powerd_core import wire
from powerd_core.errors import WireError
from powerd_core.wire import read_header


def one(data: bytes) -> None:
    picker = Picker(data)
    frame = any_frame(picker) if picker.flip() else picker.rest()
    try:
        event = wire.decode(frame)
    except WireError:
        return
    # What the server passes on without reading it must have the same header as what clients read.
    header = read_header(frame)
    assert header.kind == frame[5]
    if isinstance(event, wire.Message):
        wire.encode(event)  # JSON has many spellings of one thing
    else:
        assert wire.decode(wire.encode(event)) == event
