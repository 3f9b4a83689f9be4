"""The samplers' pipes: whatever a sampler sends, the rings stay whole and hold only what clients can read."""

from __future__ import annotations

import io
import logging

from fuzzing.frames import EPOCH, STREAMS, any_frame, likely_block, likely_gap, message
from fuzzing.picker import Picker, spoiled
from powerd_core import wire
from powerd_core.errors import WireError
from powerd_core.serde import to_document
from powerd_core.wire import decode
from powerd_daemon.config import SourceConfig
from powerd_daemon.log import Console
from powerd_daemon.ring import Store
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.supervisor import Sampler

_RING_BYTES = 4096


def one(data: bytes) -> None:
    clock, said = VirtualClock(), io.StringIO()
    # The test runner keeps raw messages too, and cannot pass half a character on to another process.
    logger = logging.getLogger("powerd_daemon")
    logger.propagate = False
    try:
        with Console(said, clock):
            _send(Picker(data), clock)
    finally:
        logger.propagate = True
    assert len(said.getvalue()) < 20_000
    assert all(line.isprintable() for line in said.getvalue().splitlines())


def _send(picker: Picker, clock: VirtualClock) -> None:
    store = Store(EPOCH, _RING_BYTES)
    sampler = Sampler(SourceConfig("sim", "sim", {}, "x"), 0, store, clock)
    streams = {"streams": to_document(STREAMS), "devices": []}
    described = message("streams", streams)
    sampler.take(decode(described), described)
    for _ in range(picker.below(24)):
        frame = _frame(picker, store)
        try:
            sampler.take(decode(frame), frame)
        except WireError:
            continue
    for number, intake in store.intakes.items():
        ring = intake.ring
        assert ring.size_bytes <= _RING_BYTES or len(ring) == 1
        at = max(ring.oldest - 2, 0)
        for _ in range(len(ring) + 4):
            if (found := ring.find(at)) is None:
                break
            event = decode(found[0])
            assert (event.stream, event.epoch, event.sequence) == (number, EPOCH, at)
            at = found[1]


def _frame(picker: Picker, store: Store) -> bytes:
    how = picker.below(5)
    if how == 0:
        return any_frame(picker)
    if how == 1:
        subject = picker.one_of(("streams", "statistics", "notice", "failed", "x"))
        body = {"streams": to_document(STREAMS), "devices": [], "message": picker.text(), "final": picker.flip()}
        return message(subject, spoiled(body, picker) if picker.flip() else {"message": picker.value()})
    stream = picker.one_of(STREAMS)
    sequence = store.intakes[stream.number].ring.next + (picker.below(4) if picker.rarely() else 0)
    if sequence >= wire.CURRENT:
        return any_frame(picker)
    return likely_gap(picker, stream, sequence) if how == 2 else likely_block(picker, stream, sequence)
