"""The mapping of clocks while a run goes on, against simulated truth."""

import random
from dataclasses import replace

import pytest
from bench_clock import IDLE, MS, Quartz, S, Step, draw_case, simulate

from powerd_core.clock import ClockFilter
from powerd_core.errors import ClockError


@pytest.mark.parametrize(("kind", "limit_ns"), [("idle", 30_000), ("loaded", 300_000), ("wild", None)])
def test_the_bound_holds_after_every_exchange_and_ahead(kind, limit_ns):
    rng, found = random.Random(4), []
    for _ in range(40):
        sim = draw_case(rng, kind)
        if sim.steps:
            continue
        clock = ClockFilter()
        for exchange in sim.exchanges:
            assert not clock.add(exchange)
            t_host = exchange.t4_host_ns + rng.uniform(-S, S)
            t_board = sim.clocks.read(t_host)
            estimate, low, high = clock.at(t_board)
            assert low <= estimate <= high
            assert sim.clocks.error_ns(t_board, low, t_host) <= 1e-6
            assert sim.clocks.error_ns(t_board, high, t_host) >= -1e-6
            if clock.count > 60:
                found.append(abs(sim.clocks.error_ns(t_board, estimate, t_host)))
        assert clock.steps == 0
    assert limit_ns is None or sorted(found)[len(found) * 99 // 100] < limit_ns


def test_it_learns_the_skew():
    sim = simulate(1, IDLE, Quartz(drift_ppm=-35, swing_ppm=0, walk_ppm=0))
    clock = ClockFilter()
    for exchange in sim.exchanges:
        clock.add(exchange)
    # The quartz is so much slower by the host's clock; by the board's, to 1e-9, the same.
    assert clock.skew_ppm == pytest.approx(-35, abs=0.5)


@pytest.mark.parametrize("by_ns", [50 * MS, -50 * MS, 10**13])
def test_a_step_begins_anew(by_ns):
    sim = simulate(1, IDLE, length_ns=20 * S, steps=(Step(10 * S, by_ns=by_ns),))
    clock, told = ClockFilter(), []
    for exchange in sim.exchanges:
        if clock.add(exchange):
            told.append(exchange.t1_host_ns)
            assert clock.count == 1
    (t_ns,) = told
    assert 10 * S <= t_ns < 10.3 * S
    assert clock.steps == 1
    t_board = sim.clocks.read(20 * S)
    assert abs(sim.clocks.error_ns(t_board, clock.at(t_board)[0], 20 * S)) < 30_000


def test_another_epoch_and_a_torn_exchange_begin_anew():
    first, second, third = simulate(1, IDLE, length_ns=S).exchanges[:3]
    clock = ClockFilter()
    with pytest.raises(ClockError, match="no clock exchange"):
        clock.at(0)
    assert not clock.add(first)
    assert clock.add(replace(second, epoch=9))
    assert (clock.epoch, clock.count, clock.steps) == (9, 1, 1)
    assert clock.add(replace(second, epoch=9, t4_host_ns=second.t1_host_ns))
    with pytest.raises(ClockError):
        clock.at(0)
    assert not clock.add(replace(third, epoch=9))
    assert clock.count == 1


def test_memory_stays_bounded():
    sim = simulate(1, IDLE, length_ns=100 * S)
    clock = ClockFilter(window_ns=20 * S)
    most = 0
    for k, exchange in enumerate(sim.exchanges):
        # Ever slower: the worst case for a window that keeps the quickest.
        clock.add(replace(exchange, t4_host_ns=exchange.t4_host_ns + 1_000 * k))
        most = max(most, len(clock._quick))
    assert 5 < most <= 16
