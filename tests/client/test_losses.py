"""What is missing between the frames of a stream."""

from hypothesis import given
from hypothesis import strategies as st

from powerd_client.runs.losses import StreamFrames
from powerd_core.model import UNKNOWN_TIME_NS, Gap
from support.fake_daemon import PERIOD_NS, make_block, make_stream

STREAM = make_stream()


def block(number, epoch=5):
    return make_block(STREAM, epoch, number, number * 10 * PERIOD_NS, [1] * 5)


def gap(number, span, lost=-1, cause="no longer in powerd's ring"):
    return Gap(0, 5, number, UNKNOWN_TIME_NS, number * 10 * PERIOD_NS, span, lost, cause)


@given(st.sets(st.integers(0, 40)), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 50)), max_size=6))
def test_every_number_is_a_block_or_in_one_hole(blocks, gaps):
    held = StreamFrames()
    for number in blocks:
        held.add(block(number), 0, 10)
    for number, span in gaps:
        held.add(gap(number, span), 0, 0)
    first, behind = held.numbers
    holes = list(held.holes())
    assert len(blocks) + sum(hole.numbers for hole in holes) == behind - first
    assert all(hole.numbers > 0 for hole in holes)
    for hole in holes:
        if UNKNOWN_TIME_NS not in hole[:2]:
            assert hole.t_first_ns <= hole.t_last_ns
    # No block lies inside a hole.
    for number in blocks:
        middle = number * 10 * PERIOD_NS + 2 * PERIOD_NS
        assert not any(h.t_first_ns < middle < h.t_last_ns for h in holes if h.t_first_ns != UNKNOWN_TIME_NS)


def test_a_gap_that_was_delivered_after_all_counts_only_for_the_rest():
    held = StreamFrames()
    held.add(gap(2, 4, lost=20), 0, 0)
    for number in (0, 1, 3, 4, 6):
        held.add(block(number), 0, 10)
    assert [(hole.numbers, hole.lost) for hole in held.holes()] == [(1, -1), (1, -1)]
