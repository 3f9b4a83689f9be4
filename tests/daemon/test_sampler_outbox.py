"""Frames that wait for the server: bounded, and what gives way is a gap."""

from __future__ import annotations

from daemon_harness import block, following
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import Block, Gap, Message, decode, encode
from powerd_core.model import UNKNOWN_TIME_NS
from powerd_core.wire import MAX_PAYLOAD
from powerd_daemon.outbox import OVERFLOW, Outbox

STREAM = steady_stream()
FRAME_BYTES = len(encode(block(STREAM, 0)))


def drained(outbox: Outbox, limit: int = 10**9) -> list[object]:
    got: list[object] = []

    def send(frame: bytes) -> bool:
        if len(got) >= limit:
            return False
        got.append(decode(frame))
        return True

    outbox.drain(send)
    return got


def test_frames_leave_in_order_and_a_full_socket_keeps_the_rest() -> None:
    outbox = Outbox(1 << 20)
    blocks = [block(STREAM, n) for n in range(5)]
    for b in blocks:
        outbox.put(b)
    assert drained(outbox, 2) == blocks[:2]
    assert not outbox.is_empty
    assert drained(outbox) == blocks[2:]
    assert outbox.is_empty


def test_overflow_is_one_gap_with_all_that_was_lost() -> None:
    outbox = Outbox(2 * FRAME_BYTES)
    blocks = [block(STREAM, n) for n in range(6)]
    for b in blocks:
        outbox.put(b)
    gap, *rest = drained(outbox)
    assert gap == Gap(0, 7, 0, blocks[0].t_first_ns, blocks[3].t_last_ns, 4, 12, OVERFLOW)
    assert rest == blocks[4:]
    assert outbox.dropped_frames == 4


def test_a_dropped_gap_keeps_its_cause_and_what_nobody_knows() -> None:
    outbox = Outbox(1)
    outbox.put(Gap(0, 7, 0, UNKNOWN_TIME_NS, 10, 3, -1, "sensor lost"))
    outbox.put(block(STREAM, 3))
    outbox.put(block(STREAM, 4))
    gap, last = drained(outbox)
    assert isinstance(gap, Gap)
    assert (gap.sequence, gap.span, gap.lost, gap.t_first_ns) == (0, 4, -1, UNKNOWN_TIME_NS)
    assert gap.cause == f"{OVERFLOW}; sensor lost"
    assert last == block(STREAM, 4)


def test_streams_overflow_apart() -> None:
    other = steady_stream(1)
    outbox = Outbox(FRAME_BYTES)
    for n in range(3):
        outbox.put(block(STREAM, n))
    outbox.put(block(other, 0))
    assert [(type(e), e.stream) for e in drained(outbox)] == [(Gap, 0), (Block, 0), (Block, 1)]  # type: ignore[attr-defined]


def test_messages_go_first_and_only_the_latest_statistics_last() -> None:
    outbox = Outbox(1 << 20)
    outbox.put(block(STREAM, 0))
    outbox.put_statistics(Message("statistics", {"polls": 1}))
    outbox.put_statistics(Message("statistics", {"polls": 2}))
    outbox.put_message(Message("streams"))
    assert drained(outbox) == [Message("streams"), block(STREAM, 0), Message("statistics", {"polls": 2})]


def test_a_block_too_large_for_a_frame_is_a_gap_that_says_so() -> None:
    outbox = Outbox(1 << 20)
    outbox.put(Block(0, 7, 0, 1, 2, 9, 0, bytes(MAX_PAYLOAD + 1)))
    (gap,) = drained(outbox)
    assert isinstance(gap, Gap)
    assert (gap.sequence, gap.span, gap.lost) == (0, 1, 9)
    assert "over the limit" in gap.cause


@given(
    st.integers(1, 10 * FRAME_BYTES),
    st.lists(st.tuples(st.sampled_from(["block", "gap", "drain"]), st.integers(1, 5)), max_size=60),
)
def test_no_number_and_no_scan_goes_missing(max_bytes: int, steps: list[tuple[str, int]]) -> None:
    outbox, put_in, got = Outbox(max_bytes), 0, []
    scans = 0
    for what, n in steps:
        if what == "drain":
            got += drained(outbox, n)
        else:
            event = block(STREAM, put_in) if what == "block" else Gap(0, 7, put_in, 0, 0, n, n, "cut")
            scans += event.count if isinstance(event, Block) else n
            outbox.put(event)
            put_in = following(event)
    got += drained(outbox)
    at = 0
    for event in got:
        assert isinstance(event, Block | Gap)
        assert event.sequence == at
        at = following(event)
    assert at == put_in
    assert scans == sum(e.count if isinstance(e, Block) else e.lost for e in got)  # type: ignore[union-attr]
