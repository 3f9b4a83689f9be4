"""A short day of the benchmark `bench_day`: many faults, and no wrong reading, silent hole or wrong energy."""

import pytest
from bench_day import SENSORS, Day


@pytest.mark.parametrize(("seed", "bus_every"), [(1, 1), (3, 3)])
def test_readings_are_right_or_flagged_and_none_is_missing_in_silence(seed, bus_every):
    day = Day(seed=seed, rate_hz=10.0, fault_every_s=2.0, bus_every=bus_every)
    day.run(day.clock.now_ns() + 600_000_000_000)
    day.finish()
    assert sum(day.faults.values()) > 200
    assert day.wrong == []
    assert day.unexplained == 0
    for i, line in enumerate(day.lines.values()):
        assert line.good > 2000
        assert abs(line.measured_j - line.true_j) <= 2.5 * day.energy_u_j(i)


def test_the_judge_finds_a_wrong_reading():
    day = Day(seed=1, rate_hz=10.0, fault_every_s=1e9)
    day.bus.chips[SENSORS[1].address]._loads = day.bus.chips[SENSORS[0].address]._loads
    day.run(day.clock.now_ns() + 20_000_000_000)
    assert day.wrong
