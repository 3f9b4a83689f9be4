"""Sampling instants from stamps that are late."""

from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_daemon.sources.nvml.samples import LEARNT, PERIOD_NS, WAITED, SampleGrid

MS = 1_000_000
FIRST = 7_003_456_789


def instants(n: int) -> list[int]:
    return [FIRST + i * PERIOD_NS for i in range(n)]


def told(grid: SampleGrid, stamps: list[int], size: int) -> list[int | None]:
    """What the grid tells of stamps that come ``size`` at a time."""
    found: list[int | None] = []
    waiting: list[int] = []
    for i in range(0, len(stamps), size):
        waiting += stamps[i : i + size]
        new = grid.instants(waiting)
        assert grid.is_known
        found += new
        waiting = waiting[len(new) :]
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([0, 0, 0, 60_000, 3 * MS, 9 * MS, 14 * MS, 20 * MS, 24 * MS]), min_size=110, max_size=150),
    st.integers(1, 30),
)
def test_every_sample_gets_its_own_instant(late, size):
    # Three in four are stamped at once, but for those that one before them keeps waiting.
    late = [x if i % 4 == 1 else 0 for i, x in enumerate(late)]
    true = instants(len(late))
    stamps = [t + x for t, x in zip(true, late, strict=True)]
    # The driver writes its buffer in order.
    stamps = [max(stamps[: i + 1]) + i for i in range(len(stamps))]
    grid = SampleGrid()
    assert grid.learn(stamps[:80])
    found = told(grid, stamps[80:], size)
    assert len(found) >= len(stamps) - 80 - WAITED
    assert all(abs(a - b) <= 0.1 * MS for a, b in zip(found, true[80:], strict=False))


def test_a_grid_follows_a_clock_that_drifts():
    stamps = [t + round(i * PERIOD_NS * 100e-6) for i, t in enumerate(instants(3000))]
    grid = SampleGrid()
    grid.learn(stamps[:80])
    found = told(grid, stamps[80:], 10)
    assert max(abs(a - b) for a, b in zip(found, stamps[80:], strict=True)) < 0.25 * MS
    assert all(abs(b - a - PERIOD_NS) < 20_000 for a, b in pairwise(found))


def test_stamps_at_any_time_are_on_no_grid():
    grid = SampleGrid()
    assert not grid.learn([t + (i * 7919 % 15_000) * 1000 for i, t in enumerate(instants(100))])
    assert not grid.learn(instants(LEARNT - 1))
    assert grid.learn(instants(LEARNT))


@pytest.mark.parametrize("period_ms", [5, 10, 30, 40, 50, 100])
def test_samples_at_another_distance_are_on_no_grid(period_ms):
    assert not SampleGrid().learn([FIRST + i * period_ms * MS for i in range(100)])
    # As they come when some are left out: most are a period apart all the same.
    assert SampleGrid().learn([t for i, t in enumerate(instants(100)) if i % 5])


def measured() -> list[int]:
    """Stamps of one H200, of which half are late (tests/data/README.md)."""
    lines = (Path(__file__).parents[1] / "data/nvml/h200_stamps.txt").read_text().splitlines()[1:]
    return [FIRST + t * 1000 for t in accumulate(int(word) for line in lines for word in line.split())]


def test_wherever_learning_begins_it_finds_the_same_grid():
    stamps = measured()
    grids = []
    for i in range(0, len(stamps) - 119, 29):
        grids.append(SampleGrid())
        assert grids[-1].learn(stamps[i : i + 119])
    phases = [(g._instant(0) - FIRST + PERIOD_NS // 2) % PERIOD_NS for g in grids]
    assert max(phases) - min(phases) < 0.5 * MS


@pytest.mark.parametrize("size", [1, 3, 50])
def test_measured_samples_are_all_told_each_before_its_stamp(size):
    stamps = measured()
    grid = SampleGrid()
    grid.learn(stamps[:119])
    found = told(grid, stamps[119:], size)
    assert len(found) >= len(stamps) - 119 - WAITED
    assert all(-0.5 * MS < t - m < 2 * PERIOD_NS for t, m in zip(stamps[119:], found, strict=False))
    assert all(b > a for a, b in pairwise(found))


def test_a_sample_that_comes_again_with_another_stamp_is_told_once():
    true = instants(100)
    grid = SampleGrid()
    grid.learn(true[:80])
    assert grid.instants(true[80:90]) == true[80:90]
    again = true[89] + 4 * MS
    assert grid.instants([again, *true[90:95]]) == [None, *true[90:95]]
