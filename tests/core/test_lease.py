"""The table of a hold's life, whose value a knob shows, what a level means, and the lines of the protocol."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.errors import ConfigError, ControlDenied, ControlError, LeaseHeld
from powerd_core.hold import (
    ENDINGS,
    KNOB_OF_OPTION,
    TRANSITIONS,
    UNITS,
    Happening,
    Range,
    Setting,
    State,
    after_reading,
    follow,
    option_of,
)
from powerd_core.lease import Answer, Evidence, Holding, LeaseInfo, read_answer, resolve, to_line
from powerd_core.verdict import Verdict, judge

CAP = Range(100.0, 300.0, 260.0)
CLOCK = Range(300.0, 2100.0, "unlocked", tuple(float(c) for c in range(300, 2101, 15)))


class TestLife:
    def test_every_way_ends(self):
        """From any state some happenings lead to the end, and none leads back from it."""
        assert not any(state is State.ENDED for state, _ in TRANSITIONS)
        reach = {State.ENDED}
        for _ in State:
            reach |= {state for (state, _), behind in TRANSITIONS.items() if behind in reach}
        assert reach == set(State)

    def test_a_value_that_is_ours_goes_back_before_the_end(self):
        """No ending leads from a knob that is or may be set to the end directly."""
        for state in (State.INTENT, State.HELD):
            for ending in ENDINGS:
                assert follow(state, ending) is State.REVERTING
        straight = {h for (s, h), behind in TRANSITIONS.items() if s is State.HELD and behind is State.ENDED}
        assert not straight

    def test_what_is_not_ours_any_more_is_never_reverted(self):
        for state in (State.YIELDED, State.LOST):
            behind = {after for (before, _), after in TRANSITIONS.items() if before is state}
            assert State.REVERTING not in behind
            assert State.INTENT not in behind, "nor set again"

    def test_what_is_forgotten_is_never_set_again(self):
        assert follow(State.HELD, Happening.FORGOTTEN) is State.LOST
        with pytest.raises(ControlError, match="lost"):
            follow(State.LOST, Happening.APPLIED)

    def test_every_state_takes_every_ending_but_the_last(self):
        for state in set(State) - {State.ENDED}:
            for ending in ENDINGS:
                follow(state, ending)
        with pytest.raises(ControlError, match="ended"):
            follow(State.ENDED, Happening.RELEASED)


class TestWhose:
    @given(st.floats(100, 300), st.floats(100, 300))
    def test_what_we_set_is_ours(self, asked, found):
        assert after_reading(asked, [asked], found, is_intent=False) == "ours"

    def test_what_was_found_needs_nothing(self):
        assert after_reading(260.1, [200.0], 260.0, is_intent=True) == "found"

    def test_another_value_is_somebody_elses(self):
        for is_intent in (False, True):
            assert after_reading(150.0, [200.0], 260.0, is_intent=is_intent) == "foreign"
        assert after_reading(220.0, [200.0], 260.0, is_intent=False) == "foreign"

    def test_right_after_a_set_a_value_in_between_is_the_drivers_clamp(self):
        assert after_reading(220.0, [200.0], 260.0, is_intent=True) == "ours"

    def test_what_cannot_be_read_is_ours(self):
        assert after_reading(None, [1200.0], "unlocked", is_intent=False) == "ours"


class TestLevels:
    @pytest.mark.parametrize(
        ("level", "value"),
        [("min", 100.0), ("max", 300.0), ("default", 260.0), ("50%", 150.0), ("200", 200.0), (200.0, 200.0)],
    )
    def test_a_level_of_a_cap(self, level, value):
        assert resolve(level, CAP, "power_cap") == value

    def test_a_clock_is_one_that_is_listed(self):
        assert resolve(1207.0, CLOCK, "sm_clock") == 1200.0
        assert resolve("default", CLOCK, "sm_clock") == "unlocked"

    @pytest.mark.parametrize("level", [99.0, 301.0, "20%", "300%", "fast", "", "nan"])
    def test_what_there_is_not_is_refused_with_what_there_is(self, level):
        with pytest.raises(ConfigError, match=r"power_cap(_w)? (can be set from 100 W to 300 W|takes a number)"):
            resolve(level, CAP, "power_cap")

    def test_words(self):
        governors = Range(words=("powersave", "performance"))
        assert resolve("powersave", governors, "cpu_governor") == "powersave"
        with pytest.raises(ConfigError, match="powersave, performance"):
            resolve("fast", governors, "cpu_governor")

    def test_options_are_knobs_with_units(self):
        assert KNOB_OF_OPTION["power_cap_w"] == "power_cap"
        assert option_of("sm_clock") == "sm_clock_mhz"
        assert option_of("cpu_governor") == "cpu_governor"
        assert set(KNOB_OF_OPTION.values()) == set(UNITS)


class TestLines:
    def test_an_answer_survives_the_way(self):
        hold = Holding("gpu0", "GPU-1", "power_cap", State.HELD, 260.0, Setting(200.0, 200.0, 200.0), 5)
        answer = Answer(lease=LeaseInfo("ab", "train.py (ada, pid 7)", 30.0, 29.5, (hold,)))
        assert read_answer(to_line(answer)) == answer

    @pytest.mark.parametrize(
        ("kind", "error"),
        [("denied", ControlDenied), ("held", LeaseHeld), ("invalid", ConfigError), ("failed", ControlError)],
    )
    def test_a_refusal_is_raised(self, kind, error):
        with pytest.raises(error, match="no"):
            read_answer(to_line(Answer("no", kind)))


class TestVerdict:
    @pytest.mark.parametrize(
        ("knob", "setting", "evidence", "verdict"),
        [
            ("power_cap", (200.0, 200.0, 200.0), Evidence(10, 5.0, 0, 0), Verdict.BINDING),
            ("power_cap", (200.0, 200.0, 200.0), Evidence(10, 0.1, 0, 0), Verdict.SLACK),
            ("power_cap", (None, 260.0, 260.0), Evidence(10, 9.0, 0, 0), Verdict.BINDING),
            ("power_cap", (200.0, 200.0, 180.0), Evidence(10, 9.0, 0, 0), Verdict.OVERRIDDEN),
            ("power_cap", (200.0, 250.0, 250.0), Evidence(10, 9.0, 0, 0), Verdict.OVERRIDDEN),
            ("power_cap", (200.0, 260.0, 260.0), Evidence(10, 0.0, 0, 0), Verdict.OVERRIDDEN),
            ("power_cap", (200.0, 200.0, 200.0), Evidence(10, 5.0, 0.06, 0), Verdict.CONFOUNDED),
            ("power_cap", (200.0, 200.0, 200.0), Evidence(10, 5.0, 0, 0.06), Verdict.CONFOUNDED),
            ("power_cap", (200.0, 200.0, 200.0), Evidence(10), Verdict.UNKNOWN),
            ("power_cap", (200.0, 200.0, None), Evidence(10, 5.0, 0, 0), Verdict.UNKNOWN),
            ("sm_clock", (1200.0, None, None), Evidence(10, 0, 0, 0, 100, 1), Verdict.BINDING),
            ("sm_clock", (1200.0, None, None), Evidence(10, 0, 0, 0, 100, 2), Verdict.CLOCK_MISSED),
            ("sm_clock", (1200.0, None, None), Evidence(10, 0, 0, 0, 0, 0), Verdict.UNKNOWN),
            ("sm_clock", (1200.0, None, None), Evidence(10, 0, 5, 0, 100, 0), Verdict.CONFOUNDED),
            ("package_power", (50.0, 50.0, 50.0), Evidence(10), Verdict.UNKNOWN),
            ("cpu_governor", ("powersave", "powersave", "powersave"), Evidence(10), Verdict.SLACK),
        ],
    )
    def test_by_the_evidence(self, knob, setting, evidence, verdict):
        assert judge(knob, *setting, evidence)[0] is verdict

    def test_only_two_are_honoured(self):
        assert {v for v in Verdict if v.is_honoured} == {Verdict.BINDING, Verdict.SLACK}
