"""What drivers enforced, as step functions of time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_run import S

from powerd_analytics.runs.in_force import (
    CHANGING,
    MOST_SETTINGS,
    Enforced,
    Stated,
    Steps,
    Timeline,
    stated_steps,
    steps_of,
    timed_by,
    without_repeats,
)

BEFORE, BEHIND = -(10**15), 10**15


def seconds(*watts):
    """Steps of a limit that is read once a second."""
    return steps_of(np.arange(len(watts), dtype=np.int64) * S, np.array(watts, float))


@pytest.mark.parametrize(
    ("watts", "steps"),
    [
        ((300,), Steps((300.0,))),
        ((300, 300.2, 299.9, 300.4), Steps((300.1,))),  # told in milliwatts
        ((300, 300, 200, 200), Steps((300.0, 200.0), ((S, 2 * S),))),
        ((300, 200, 200), Steps((300.0, 200.0), ((0, S),))),
        ((300, 300, 200, 300, 300), Steps((300.0,))),  # a dip
        ((300, 300, 300, 200), Steps((300.0,))),  # nobody knows whether it stayed
        ((300, 300, 260, 220, 200, 200), Steps((300.0, 200.0), ((S, 4 * S),))),  # a ramp is one change
        ((300, 300, 200, 200, 300.3, 300.3), Steps((300.0, 200.0, 300.0), ((S, 2 * S), (3 * S, 4 * S)))),
        ((300, 300, 300.4, 300.6, 300.6), Steps((300.0, 300.6), ((2 * S, 3 * S),))),
    ],
)
def test_a_limit_changes_when_it_stays_at_another_one(watts, steps):
    found = seconds(*watts)
    assert found.values == pytest.approx(steps.values)
    assert found.changes_ns == steps.changes_ns


def test_the_times_of_a_change_are_as_unsure_as_the_clock_and_need_no_order():
    t_ns, watts = np.array([0, 3 * S, S, 2 * S]), np.array([300.0, 200, 300, 200])
    assert steps_of(t_ns, watts, np.full(4, 7.0)).changes_ns == ((S - 7, 2 * S + 7),)


@given(st.lists(st.sampled_from([100.0, 100.1, 200.0, 300.0]), min_size=1, max_size=30))
def test_repeats_tell_nothing(watts):
    t_ns = np.arange(len(watts), dtype=np.int64) * S
    every, some = steps_of(t_ns, np.array(watts)), steps_of(*without_repeats(t_ns, np.array(watts)))
    assert every.changes_ns == some.changes_ns
    assert every.values == pytest.approx(some.values, abs=0.1)


@given(st.lists(st.tuples(st.integers(2, 6), st.sampled_from([100.0, 150.0, 200.0])), min_size=1, max_size=8))
def test_between_two_changes_every_moment_has_the_cap_that_was_read(pieces):
    watts = [w for count, w in pieces for _ in range(count)]
    steps = seconds(*watts)
    timeline = Timeline.of({"gpu0": steps})
    for i, w in enumerate(watts):
        assert steps.between(i * S, i * S) == (w,)
        if timeline.settings:
            assert timeline.holds(Enforced((("gpu0", w),)), np.array([i * S]))[0]
    for i in np.flatnonzero(np.diff(watts)).tolist():
        assert steps.between(i * S, (i + 1) * S) == (watts[i], watts[i + 1])
        assert timeline.holds(CHANGING, np.array([i * S + S // 2]))[0]
    assert steps.between(BEFORE, BEHIND)[:: len(steps.values) or 1][0] == watts[0]


def test_devices_that_change_together_change_once():
    together = {"gpu1": Steps((300.0, 200.0), ((100, 200),)), "gpu0": Steps((300.0, 200.0), ((150, 250),))}
    timeline = Timeline.of(together)
    assert [(int(b), int(e)) for b, e in zip(timeline.begin_ns, timeline.end_ns, strict=True)] == [(100, 250)]
    assert [s.value for s in timeline.settings] == [300, 200]
    alone = Timeline.of(together | {"gpu0": Steps((300.0,))})
    assert [s.value for s in alone.settings] == [300, "300 W on gpu0, 200 W on gpu1"]
    later = Timeline.of(together | {"gpu0": Steps((300.0, 250.4), ((900, 950),))})
    assert [s.value for s in later.settings] == [300, "300 W on gpu0, 200 W on gpu1", "250.4 W on gpu0, 200 W on gpu1"]


def test_a_limit_that_wanders_parts_nothing():
    many = np.repeat(100.0 + np.arange(MOST_SETTINGS + 1), 2)
    t_ns = np.arange(len(many), dtype=np.int64) * S
    assert len(Timeline.of({"gpu0": steps_of(t_ns[:-2], many[:-2])}).settings) == MOST_SETTINGS
    assert not Timeline.of({"gpu0": steps_of(t_ns, many)}).settings


class TestEvents:
    READ = Steps((260.0, 200.0, 260.0), ((1_000, 2_000), (5_000, 6_000)))

    def test_a_change_is_where_its_event_says(self):
        stated = [Stated(1_400, 200.0, 1_500), Stated(5_100, 260.0, 5_900)]
        assert timed_by(stated, self.READ).changes_ns == ((1_400, 1_500), (5_100, 5_900))

    def test_one_of_which_no_event_tells_or_several_stays_as_it_was_read(self):
        for stated in (
            [],
            [Stated(1_400, 180.0, 1_400)],
            [Stated(900, 200.0, 900)],
            [Stated(1_400, 200.0, 1_400), Stated(1_600, 200.0, 1_600)],
            [Stated(1_400, None, 1_400)],
        ):
            assert timed_by(stated, self.READ) == self.READ

    def test_what_events_alone_state_takes_its_time_to_settle(self):
        steps = stated_steps([Stated(10, 1200.0, 60), Stated(500, None, 500)])
        assert steps == Steps((0.0, 1200.0, 0.0), ((10, 60), (500, 500)))
