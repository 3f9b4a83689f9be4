"""Words for what limits a sensor."""

from powerd_analytics.energy.reasons import seconds


def test_durations_are_told_in_the_unit_in_which_they_are_at_least_one():
    told = [seconds(v) for v in (1234.4, 0.99996, 0.0299, 999.6e-6, 12.3e-6, 4e-9)]
    assert told == ["1230 s", "1 s", "29.9 ms", "1 ms", "12.3 µs", "4 ns"]
