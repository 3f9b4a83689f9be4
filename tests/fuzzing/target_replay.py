"""A journal that is played again: whatever is in it, blocks that fit their streams or a `SensorError`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fuzzing.frames import (
    EPOCH,
    STREAMS,
    any_frame,
    description_document,
    good_block,
    likely_block,
    likely_gap,
    message,
)
from fuzzing.picker import Picker, spoiled
from powerd_core import wire
from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Block
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.replay import ReplayOptions, ReplaySource
from powerd_daemon.sources.sim.bus import VirtualClock

_PATH = Path(tempfile.gettempdir()) / f"fuzz-replay-{os.getpid()}.bin"


def one(data: bytes) -> None:
    picker = Picker(data)
    _PATH.write_bytes(journal(picker) if picker.flip() else picker.rest())
    clock = VirtualClock()
    options = ReplayOptions(str(_PATH), picker.one_of((1.0, 0.001, 1000.0, 3.7)), picker.flip())
    source = ReplaySource(options, Start("again", 9, 0, clock))
    try:
        streams, _ = source.open()
        size = {s.number: s.scan_bytes for s in streams}
        following: dict[int, int] = {}
        for _ in range(8):
            clock.t_ns += picker.one_of((10_000_000, 50_000_000, 0))
            source.poll()
            for event in source.take():
                wire.decode(wire.encode(event))
                assert event.sequence == following.get(event.stream, 0)
                following[event.stream] = event.sequence + 1
                if isinstance(event, Block):
                    assert len(event.payload) == event.count * size[event.stream]
    except (SensorError, ConfigError):
        pass
    finally:
        source.close()
        _PATH.unlink()


def journal(picker: Picker) -> bytes:
    """A description and readings, with something wrong here and there."""
    document = description_document()
    parts = [message("description", spoiled(document, picker) if picker.rarely() else document, EPOCH)]
    if picker.flip():
        parts.append(wire.encode(good_block(STREAMS[0], 0, 1_000_000)))
    for n in range(1, picker.below(8)):
        stream = picker.one_of(STREAMS)
        how = picker.below(5)
        if how == 0:
            parts.append(any_frame(picker))
        elif how == 1:
            parts.append(likely_gap(picker, stream, n))
        elif how == 2:
            parts.append(picker.take(picker.below(40)))
        else:
            parts.append(likely_block(picker, stream, n))
    return b"".join(parts)
