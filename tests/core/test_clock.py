"""The mapping between two clocks, against simulated truth."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_core.clock import map_clock
from powerd_core.errors import ClockError
from powerd_core.model import ClockExchange


class TwoClocks:
    """A host whose clock is the truth, a board that drifts, and a path between them."""

    def __init__(
        self, seed: int, *, offset_ns: float, drift_ppm: float, base_ns: float = 20_000, queue_ns: float = 10_000
    ):
        self.rng = random.Random(seed)
        self.offset_ns, self.drift = offset_ns, drift_ppm * 1e-6
        self.base_ns, self.queue_ns = base_ns, queue_ns

    def board(self, t_host: float) -> float:
        return t_host - self.offset_ns - self.drift * t_host

    def true_offset(self, t_board: float) -> float:
        t_host = (t_board + self.offset_ns) / (1 - self.drift)
        return t_host - t_board

    def exchange(self, t_host: float, asymmetry_ns: float = 0.0) -> ClockExchange:
        there = self.base_ns + asymmetry_ns + self.rng.expovariate(1 / self.queue_ns)
        back = self.base_ns + self.rng.expovariate(1 / self.queue_ns)
        serve = 1000.0
        return ClockExchange(
            1, int(t_host), int(self.board(t_host + there)), int(self.board(t_host + there + serve)),
            int(t_host + there + serve + back) + 1,
        )  # fmt: skip


@given(
    st.integers(0, 2**32),
    st.floats(-1e12, 1e12),
    st.floats(-45, 45),
    st.floats(0, 200_000),
    st.integers(1, 300),
)
@settings(max_examples=100, deadline=None)
def test_the_truth_is_inside_the_bound_at_every_moment(seed, offset, drift, asymmetry, count):
    clocks = TwoClocks(seed, offset_ns=offset, drift_ppm=drift)
    exchanges = [clocks.exchange(k * 1e8 + clocks.rng.uniform(0, 5e7), asymmetry) for k in range(count)]
    (piece,) = map_clock(exchanges)
    first, last = piece.t_board_ns[0], piece.t_board_ns[-1]
    for _ in range(30):
        t = clocks.rng.randint(first - 10**9, last + 10**9)
        estimate, low, high = piece.at(t)
        assert low - 4 <= clocks.true_offset(t) <= high + 4  # timestamps are whole nanoseconds
        assert low <= estimate <= high


def test_the_estimate_is_far_better_than_one_exchange():
    clocks = TwoClocks(3, offset_ns=5e9, drift_ppm=40, queue_ns=200_000)
    exchanges = [clocks.exchange(k * 1e8) for k in range(600)]
    (piece,) = map_clock(exchanges)
    errors = sorted(abs(o - clocks.true_offset(t)) for t, o in zip(piece.t_board_ns, piece.offset_ns, strict=True))
    naive = sorted(abs(e.offset_ns - clocks.true_offset(e.t_board_ns)) for e in exchanges)
    assert errors[594] < 30_000
    assert errors[594] < naive[594] / 10


def test_a_step_begins_a_new_piece():
    clocks = TwoClocks(1, offset_ns=0, drift_ppm=0)
    before = [clocks.exchange(k * 1e8) for k in range(50)]
    clocks.offset_ns = -5e6  # the board jumped ahead by 5 ms
    after = [clocks.exchange(k * 1e8) for k in range(50, 100)]
    pieces = map_clock(before + after)
    assert [len(p.t_board_ns) for p in pieces] == [50, 50]
    assert abs(pieces[1].offset_ns[0] + 5e6) < 40_000


def test_what_gives_no_mapping_is_refused():
    with pytest.raises(ClockError, match="no clock exchange"):
        map_clock([])
    with pytest.raises(ClockError, match="epochs"):
        map_clock([ClockExchange(1, 0, 0, 0, 1), ClockExchange(2, 0, 5, 5, 1)])
    with pytest.raises(ClockError, match="less time"):
        map_clock([ClockExchange(1, 0, 0, 10, 5)])


@given(st.tuples(*[st.integers(0, 2**40)] * 4))
def test_offset_and_delay_follow_their_definition(times):
    e = ClockExchange(0, *times)
    assert e.offset_ns == ((e.t1_host_ns - e.t2_board_ns) + (e.t4_host_ns - e.t3_board_ns)) / 2
    assert e.delay_ns == (e.t4_host_ns - e.t1_host_ns) - (e.t3_board_ns - e.t2_board_ns)
