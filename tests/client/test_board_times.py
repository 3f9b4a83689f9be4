"""Arrays of board times on the host's clock agree with the clock's mapping, one time at a time."""

import random

import numpy as np
from bench_clock import draw_case
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_client.signals.board_times import have_host_time, to_host_ns
from powerd_core.clock_comparison import map_clock, piece_at


@given(st.integers(0, 2**32), st.sampled_from(["idle", "stepped", "wild"]))
@settings(max_examples=40, deadline=None)
def test_they_agree_with_the_piece_at_that_time(seed, kind):
    rng = random.Random(seed)
    sim = draw_case(rng, kind)
    pieces = map_clock(sim.exchanges)
    edges = [t for p in pieces for t in (p.t_board_ns[0], p.t_board_ns[-1])]
    span = max(edges) - min(edges)
    times = [t + d for t in edges for d in (-1, 0, 1)]
    times += [rng.randint(min(edges) - span // 4, max(edges) + span // 4) for _ in range(100)]
    array = np.array(sorted(times), np.int64)
    known, host = have_host_time(array, pieces), to_host_ns(array, pieces)
    for t, is_known, found in zip(array.tolist(), known.tolist(), host.tolist(), strict=True):
        piece = piece_at(pieces, t)
        assert is_known == (piece is not None)
        # Far outside, a single piece's estimate is kept inside its bound; an array's is not.
        if piece is not None and piece.t_board_ns[0] <= t <= piece.t_board_ns[-1]:
            assert abs(found - t - piece.at(t)[0]) < 2


def test_between_two_pieces_times_stay_in_order():
    rng = random.Random(3)
    sim = next(s for _ in range(50) if len((s := draw_case(rng, "stepped")).steps) == 1 and s.steps[0].by_ns > 0)
    before, after = map_clock(sim.exchanges)
    times = np.linspace(before.t_board_ns[-1] - 10**6, after.t_board_ns[0] + 10**6, 1000).astype(np.int64)
    host = to_host_ns(times, (before, after))
    assert (np.diff(host) >= 0).all()
    assert not have_host_time(times, (before, after))[1:-1].all()
