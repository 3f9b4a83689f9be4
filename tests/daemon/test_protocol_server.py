"""Pull with resume: whatever is asked and evicted, a client never sees a silent hole."""

from __future__ import annotations

from daemon_harness import block, following
from hypothesis import given
from hypothesis import strategies as st
from steady_source import steady_stream

from powerd_core import Block, Gap, Want, decode, encode
from powerd_core.protocol import RETRY_MAX_NS, RETRY_MIN_NS, Subscriber
from powerd_core.wire import CURRENT
from powerd_daemon.ring import Intake

STREAM = steady_stream()


def client() -> Subscriber:
    return Subscriber(b"id", "", 1, 0)


def filled(count: int, ring_bytes: int = 1 << 20) -> Intake:
    store = Intake(STREAM, 7, ring_bytes)
    for n in range(count):
        frame = encode(block(STREAM, n))
        store.accept(frame, decode(frame))
    return store


def sent(subscriber: Subscriber, store: Intake) -> list[int]:
    """Send all that is due; the sequence numbers of it."""
    cursor, numbers = subscriber.cursors[7, 0], []
    while (found := cursor.upcoming(store.ring)) is not None:
        event = decode(found[0])
        assert isinstance(event, Block | Gap)
        assert event.sequence == cursor.next
        numbers.append(event.sequence)
        subscriber.took(cursor, found[1], len(found[0]), 0)
    return numbers


def test_what_was_there_before_it_was_asked_for_is_replayed() -> None:
    store, subscriber = filled(5), client()
    subscriber.want(Want(0, 0, 2, 50), store.ring)
    sent(subscriber, store)
    assert (subscriber.frames, subscriber.replayed) == (3, 3)
    for n in range(5, 8):
        frame = encode(block(STREAM, n))
        store.accept(frame, decode(frame))
    subscriber.want(Want(0, 0, 5, 50), store.ring)
    sent(subscriber, store)
    assert (subscriber.frames, subscriber.replayed) == (6, 3), "late is not again"
    subscriber.want(Want(0, 0, 6, 50, reset=True), store.ring)
    sent(subscriber, store)
    assert (subscriber.frames, subscriber.replayed) == (8, 5)
    subscriber.want(Want(0, 0, CURRENT, 50, reset=True), store.ring)
    sent(subscriber, store)
    assert (subscriber.frames, subscriber.replayed) == (9, 5), "who wants what is new begins with the newest block"


def test_a_slow_client_is_tried_again_less_and_less_often() -> None:
    store, subscriber = filled(1), client()
    subscriber.want(Want(0, 0, 0, 5), store.ring)
    waits = []
    for _ in range(10):
        subscriber.refused(1000)
        assert subscriber.retry_ns is not None
        waits.append(subscriber.retry_ns - 1000)
    assert waits[:3] == [RETRY_MIN_NS, 2 * RETRY_MIN_NS, 4 * RETRY_MIN_NS]
    assert waits[-1] == RETRY_MAX_NS
    sent(subscriber, store)
    assert subscriber.retry_ns is None
    subscriber.refused(0)
    assert subscriber.retry_ns == RETRY_MIN_NS


WANT = st.tuples(
    st.just("want"),
    st.one_of(st.integers(0, 60), st.just(CURRENT)),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from([0, 7, 99]),
)
COME = st.tuples(st.just("come"), st.sampled_from(["block", "gap", "jump", "repeat"]), st.integers(1, 6))
SEND = st.tuples(st.just("send"), st.integers(1, 5))
FORGET = st.tuples(st.just("forget"))


@given(st.integers(0, 4000), st.lists(st.one_of(WANT, COME, SEND, FORGET), max_size=80))
def test_no_silent_hole(ring_bytes: int, steps: list[tuple[object, ...]]) -> None:
    """After every first contact or reset, frames cover the numbers one after the other."""
    store, subscriber = Intake(STREAM, 7, ring_bytes), client()
    expected: int | None = None
    for step in steps:
        match step:
            case ("want", int(begin), int(window), bool(reset), int(epoch)):
                known = (7, 0) in subscriber.cursors
                subscriber.want(Want(0, epoch, begin, window, reset), store.ring)
                cursor = subscriber.cursors[7, 0]
                if reset or not known:
                    at = store.ring.current if begin == CURRENT else begin
                    expected = at if epoch in (0, 7) else store.ring.oldest
                    assert cursor.limit == expected + window
                assert cursor.next == expected
            case ("come", kind, int(n)):
                at = store.ring.next
                event: Block | Gap = Gap(0, 7, at, at, at, n, n, "cut") if kind == "gap" else block(STREAM, at)
                if kind == "jump":
                    event = block(STREAM, at + n)
                elif kind == "repeat":
                    event = block(STREAM, max(at - n, 0))
                frame = encode(event)
                store.accept(frame, decode(frame))
            case ("send", int(n)):
                cursor = subscriber.cursors.get((7, 0))
                for _ in range(n if cursor else 0):
                    found = cursor.upcoming(store.ring)
                    if found is None:
                        assert cursor.next >= min(cursor.limit, store.ring.next), "something is due but not sent"
                        break
                    frame_sent = decode(found[0])
                    assert isinstance(frame_sent, Block | Gap)
                    assert frame_sent.sequence == expected
                    assert found[1] == following(frame_sent) > frame_sent.sequence
                    expected = found[1]
                    subscriber.took(cursor, found[1], 1, 0)
            case ("forget",):
                subscriber = client()
