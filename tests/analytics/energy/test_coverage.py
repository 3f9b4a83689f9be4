"""95 % intervals hold what they say: their factors against drawn sums, and simulated sensors against exact joules."""

import math
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_analytics.energy.coverage import NORMAL, factor, one_rectangle, student

HALF_WIDTH = math.sqrt(3)


def test_factors_of_a_rectangle_and_of_a_normal_part():
    assert factor(2.0, 2.0) == pytest.approx(0.95 * HALF_WIDTH, abs=1e-4)
    assert factor(2.0, 0.0) == pytest.approx(NORMAL, abs=1e-4)
    assert factor(0.0, 0.0) == pytest.approx(NORMAL)


@pytest.mark.parametrize(
    "rectangles", [[1.0], [1.0, 1.0], [1.0, 0.5], [1.0, 0.2], [1.0, 1.0, 1.0], [1.0, 0.7, 0.4], [1.0] * 6]
)
@pytest.mark.parametrize("normal", [0.0, 0.3, 1.0])
def test_intervals_of_drawn_sums_hold_95_percent(rectangles, normal):
    rng = np.random.default_rng(1)
    drawn = rng.normal(0, normal, 200_000)
    for u in rectangles:
        drawn += rng.uniform(-1, 1, len(drawn)) * HALF_WIDTH * u
    u = math.sqrt(sum(x**2 for x in rectangles) + normal**2)
    inside = np.mean(np.abs(drawn) <= factor(u, one_rectangle(*rectangles)) * u)
    assert inside == pytest.approx(0.95, abs=0.008)


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=6), st.floats(1e-6, 1e6))
def test_one_rectangle_lies_between_the_largest_and_the_sum_and_scales(us, scale):
    found = float(one_rectangle(*us))
    assert max(us) * (1 - 1e-9) <= found <= math.sqrt(sum(u**2 for u in us)) * (1 + 1e-9)
    assert float(one_rectangle(*(u * scale for u in us))) == pytest.approx(found * scale)
    assert float(one_rectangle(found, 0.0)) == pytest.approx(found)


def test_few_repeats_widen_an_interval_as_student_says():
    assert student(math.inf) == 1
    assert student(4) * NORMAL == pytest.approx(2.776, abs=1e-3)
    assert student(30) * NORMAL == pytest.approx(2.042, abs=1e-3)
    grid = [student(n) for n in np.linspace(1, 60, 200)]
    assert all(a >= b - 1e-4 for a, b in pairwise(grid))


@pytest.fixture(scope="module")
def bench():
    folder = str(Path(__file__).parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import bench_coverage

        yield bench_coverage
    finally:
        sys.path.remove(folder)


# 120 runs: an interval half as wide as it should be holds in 70 %, one of twice the width in all.
@pytest.mark.parametrize(
    ("sensor", "kind", "length_ms", "low", "high"),
    [
        ("INA219, data sheet", "steps", 50, 0.90, 0.995),
        ("INA219, calibrated", "square", 200, 0.92, 0.985),
        ("INA219, calibrated", "edge ramps", 20, 0.90, 0.99),
        ("counter, 500/s", "exponential", 200, 0.90, 0.99),
        ("NVML, 50/s", "steps", 200, 0.88, 0.995),
        ("counter, 500/s", "edge ramps", 10, 0.93, 0.97),
        ("INA219 alone, 9 bit, 4500/s", "edge ramps", 2, 0.93, 0.995),
        ("INA228 alone, 84 us, 4000/s", "edge ramps", 2, 0.93, 0.995),
        ("INA226 alone, 140 us, 3500/s", "sine", 5, 0.90, 0.99),
    ],
)
def test_true_joules_lie_in_intervals_of_simulated_runs(bench, sensor, kind, length_ms, low, high):
    chosen = next(s for s in bench.SENSORS if s.name == sensor)
    cell = bench.measure(chosen, kind, length_ms, 120, seed=7)
    assert cell.resolvable == 1
    assert low <= cell.single.value <= high
    if kind not in bench.SLOW:
        assert 0.88 <= cell.mean.value <= 0.995


def test_processes_change_no_figure(bench, monkeypatch, capsys):
    printed = []
    for jobs in "12":
        few = ["--runs", "3", "--seed", "4", "--lengths", "2", "--sensor", "INA219 alone", "wall", "--jobs", jobs]
        monkeypatch.setattr(sys, "argv", ["bench_coverage.py", *few])
        bench.main()
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "not resolvable, whatever the waveform" in printed[0]
    assert "wander" in printed[0]


def test_cells_of_a_length_are_pooled_alike_and_judged_together(bench):
    from coverage_shares import Length, pooled, share_of

    rng = np.random.default_rng(2)
    low, high = (share_of(rng.binomial(90, p, 50) / 90) for p in (0.90, 0.99))
    both = pooled([low, high])
    assert both.value == pytest.approx((low.value + high.value) / 2)
    assert both.low < both.value < both.high
    assert both.high - both.low < low.high - low.low
    assert not Length([low, high], [low, high]).is_missed
    assert Length([low], [low, high]).is_missed
    assert Length([low, high], [high, high]).is_missed
    assert Length().is_missed


def test_of_many_looks_some_are_beyond_their_own_interval_and_few_beyond_that_of_all(bench):
    from coverage_shares import Verdict, share_of

    rng = np.random.default_rng(3)
    right, with_wrong = Verdict(), Verdict()
    for _ in range(400):
        share = share_of(rng.binomial(1, 0.93, 60).astype(float))
        right.add(share)
        with_wrong.add(share)
    with_wrong.add(share_of(rng.binomial(1, 0.6, 60).astype(float)))
    assert right.by_chance == pytest.approx(10)
    assert 1 <= right.below <= 20
    assert right.together() == (0, 0)
    assert with_wrong.together() == (1, 0)


def test_runs_that_share_a_gain_are_no_more_trials_for_being_alike(bench):
    from coverage_shares import Verdict, share_of

    alike = Verdict()
    # Of 40 runs of which one in thirty misses altogether, none does in a quarter of cases.
    alike.add(share_of(np.where(np.arange(40) % 2, 1.0, 0.996)))
    assert (alike.above, alike.together()) == (1, (0, 0))
    alike.add(share_of(np.ones(400)))
    assert alike.together() == (0, 1)
