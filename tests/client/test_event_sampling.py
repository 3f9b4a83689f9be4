"""Which iterations have device events: the cost that they really have decides, and edges without one keep their
truth."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_client.journals.device_timing import DeviceTimes
from powerd_client.journals.event_sampling import LOOKS, MOST_COST, PAIRS, RAREST, WARM_UP, EventSampling
from powerd_core.clock_comparison import map_clock
from powerd_core.marks import RECORD, Edges
from powerd_core.model import ClockExchange

CODES = (0, ~0, 1, ~1, 2, ~2)
LEARNT = WARM_UP + LOOKS + 2 * PAIRS + 1


def train(sampling, iterations, *, iteration_ns, event_ns, is_behind=False, noise=0.0, seed=1, extra=()):
    """Which iterations had events, and how long each took."""
    rng, t_ns, had, took = random.Random(seed), 0, [], []
    for number in range(iterations):
        events = sum(not sampling.leaves_out(code) for code in (*CODES, *(extra if number % 5 == 0 else ())))
        duration = round(iteration_ns * (1 + rng.gauss(0, noise))) + events * event_ns
        t_ns += duration
        had.append(events)
        took.append(duration)
        sampling.turn(~2, t_ns, lambda: not is_behind)
    return had, took


@given(
    st.integers(200_000, 30_000_000),
    st.integers(10_000, 45_000),
    st.sampled_from([0.0, 0.01, 0.05]),
    st.integers(0, 99),
)
def test_what_events_cost_in_the_end_is_at_most_what_they_may(iteration_ns, event_ns, noise, seed):
    sampling = EventSampling()
    train(sampling, LEARNT, iteration_ns=iteration_ns, event_ns=event_ns, noise=noise, seed=seed)
    assert sampling.is_settled
    had, _ = train(sampling, 2 * RAREST, iteration_ns=iteration_ns, event_ns=event_ns, noise=noise, seed=seed)
    share = sum(had) / len(had) * event_ns / iteration_ns
    # By pairs with noise the cost is known to a few of its standard errors, and there is a rarest.
    assert share <= MOST_COST + 4 * noise * 2**0.5 / PAIRS**0.5 or sampling.every == RAREST


def test_a_gpu_that_is_behind_the_host_has_events_in_every_iteration():
    sampling = EventSampling()
    had, _ = train(sampling, 300, iteration_ns=1_000_000, event_ns=40_000, is_behind=True)
    assert set(had) == {len(CODES)}
    assert not sampling.is_sampling
    assert sampling.remark


def test_long_iterations_are_not_even_looked_at():
    sampling = EventSampling()
    had, _ = train(sampling, 200, iteration_ns=200_000_000, event_ns=40_000)
    assert set(had) == {len(CODES)}
    assert not sampling.is_sampling


def test_what_is_not_in_every_iteration_always_has_events():
    sampling = EventSampling()
    train(sampling, LEARNT, iteration_ns=1_000_000, event_ns=40_000)
    assert sampling.every > 8
    left = [code for code in (*CODES, 7, ~7) if sampling.leaves_out(code)]
    assert left in ([], list(CODES))
    had, _ = train(sampling, sampling.every * 2, iteration_ns=1_000_000, event_ns=40_000, extra=(7, ~7))
    assert min(had[::5]) >= 2, "the evaluations'"
    assert sorted(set(had))[0] == 0


def test_the_cost_is_said_with_its_interval():
    sampling = EventSampling()
    train(sampling, LEARNT, iteration_ns=1_000_000, event_ns=30_000, noise=0.01)
    share = float(sampling.remark.split("cost ")[1].split("%")[0]) / 100
    assert share == pytest.approx(6 * 0.03, abs=0.01)
    assert "give or take" in sampling.remark


def test_edges_without_an_event_are_moved_by_the_lag_of_the_others():
    """A GPU 40 us behind at the begin of a phase and 90 us at its end, give or take 3 us; one iteration of 16 has
    events."""
    rng, clock, process = np.random.default_rng(1), 5, 9
    host, truth, records, edges = 10**9, [], b"", []
    for number in range(0, 1600, 2):
        for code, lag_us in ((0, 40), (~0, 90)):
            host += int(rng.integers(300_000, 700_000))
            passed = host + round(lag_us * 1e3 + rng.normal(0, 3e3))
            truth.append(passed)
            records += RECORD.pack(code, 1, host)
            if number // 2 % 16 == 0:
                edges.append((number + (code < 0), passed))
    exchanges = [ClockExchange(clock, t - 4000, t, t, t + 4000) for t in range(10**9, host + 10**8, 10**8)]
    times = DeviceTimes(pieces={clock: map_clock(exchanges)})
    times.add_edges(Edges.of(process, clock, edges))
    plain = list(times.marks(process, {0: records}, {0: "device"}))
    assert times.unresolved == 1600 - len(edges), "without having been told, they are edges that were lost"
    times.unresolved = 0
    times.add_sampling({"process": process})
    moved = list(times.marks(process, {0: records}, {0: "device"}))
    assert times.unresolved == 0
    assert times.moved == 1600 - len(edges)
    with_event = {number for number, _ in edges}
    off = np.array([m.t_host_ns - t for n, (m, t) in enumerate(zip(moved, truth, strict=True)) if n not in with_event])
    assert abs(off.mean()) < 2_000
    assert np.abs(off).max() < 20_000
    assert all(m.bound_ns > 3_000 for m in moved)
    assert [m for n, m in enumerate(moved) if n in with_event] == [m for n, m in enumerate(plain) if n in with_event]
