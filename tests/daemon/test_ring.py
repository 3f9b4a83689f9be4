"""The ring of one stream, and the intake that keeps it free of holes."""

from __future__ import annotations

import pytest
from daemon_harness import block, following
from steady_source import steady_stream

from powerd_core import Block, Gap, WireError, decode, encode
from powerd_daemon.ring import FRAME_OVERHEAD_BYTES, LOST_ON_THE_WAY, Intake, Ring

STREAM = steady_stream()
FRAME_BYTES = len(encode(block(STREAM, 0))) + FRAME_OVERHEAD_BYTES


def gap(sequence: int, span: int, lost: int = 5) -> Gap:
    return Gap(0, 7, sequence, sequence * 1_000_000_000, (sequence + span) * 1_000_000_000, span, lost, "cut")


def intake(ring_bytes: int = 1 << 20) -> Intake:
    return Intake(STREAM, 7, ring_bytes)


def put(store: Intake, event: Block | Gap) -> bytes:
    frame = encode(event)
    store.accept(frame, decode(frame))
    return frame


def found(ring: Ring, sequence: int) -> Block | Gap:
    hit = ring.find(sequence)
    assert hit is not None
    event = decode(hit[0])
    assert isinstance(event, Block | Gap)
    assert hit[1] == following(event)
    return event


def test_bounded_in_bytes_and_keeps_the_newest() -> None:
    store = intake(3 * FRAME_BYTES)
    for n in range(10):
        put(store, block(STREAM, n))
        assert store.ring.size_bytes <= 3 * FRAME_BYTES
    assert (store.ring.oldest, store.ring.next) == (7, 10)
    huge = block(STREAM, 10, scans=1000)
    put(store, huge)
    assert found(store.ring, 10) == huge
    assert len(store.ring) == 1


def test_current_is_the_newest_block_held() -> None:
    store = intake(2 * FRAME_BYTES)
    assert store.ring.current == 0
    put(store, gap(0, 3))
    assert store.ring.current == 3
    put(store, block(STREAM, 3))
    put(store, gap(4, 1))
    assert store.ring.current == 3
    put(store, gap(5, 1))
    put(store, gap(6, 1))
    assert store.ring.current == 7


def test_a_hole_becomes_a_gap_and_a_repetition_is_dropped() -> None:
    store = intake()
    put(store, block(STREAM, 0))
    put(store, block(STREAM, 4))
    put(store, block(STREAM, 4))
    put(store, block(STREAM, 2))
    hole = found(store.ring, 1)
    assert hole == Gap(0, 7, 1, 2_000_000, 4_000_000_000, 3, -1, LOST_ON_THE_WAY)
    assert (store.holes, store.duplicates, store.frames, store.scans, store.gaps) == (1, 2, 3, 6, 1)


@pytest.mark.parametrize(
    "event",
    [
        block(STREAM, 0, epoch=8),
        block(STREAM, 0, scans=0),
        gap(0, 0),
        block(steady_stream(lines=("a", "b")), 0),
        block(STREAM, 2**33),
    ],
    ids=["epoch", "no scans", "no span", "layout", "far ahead"],
)
def test_what_does_not_belong_is_refused_and_leaves_no_hole(event: Block | Gap) -> None:
    store = intake()
    with pytest.raises(WireError):
        put(store, event)
    assert store.ring.next == 0
