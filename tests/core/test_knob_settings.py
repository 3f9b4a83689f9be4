"""The event that states what a knob of a device is set to."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerd_core.settings import KNOB_AS_OPTION, UNITS, KnobSetting, setting_in

amounts = st.none() | st.floats(1e-3, 1e6)


@given(st.text(min_size=1), st.sampled_from(sorted(k for k, unit in UNITS.items() if unit)), amounts, amounts, amounts)
def test_what_is_stated_is_read_back(device, knob, asked, requested, enforced):
    setting = KnobSetting(device, knob, UNITS[knob], asked, requested, enforced)
    assert setting_in(json.loads(json.dumps(setting.values()))) == setting


@pytest.mark.parametrize("wrong", [{"unit": "kW"}, {"device": ""}, {"knob": 3}, {"enforced": True}, {"asked": -1.0},
                                   {"requested": float("nan")}])  # fmt: skip
def test_anything_else_states_nothing(wrong):
    good = KnobSetting("gpu0", "power_cap", "W", 200.0, 200.0, 200.0).values()
    assert setting_in(good) is not None
    assert setting_in(good | wrong) is None
    del good["enforced"]
    assert setting_in(good) is None


def test_knobs_are_known_by_option_with_their_unit():
    assert {option: (knob.name, knob.unit) for option, knob in KNOB_AS_OPTION.items()} == {
        "power_cap_w": ("power_cap", "W"), "sm_clock_mhz": ("sm_clock", "MHz"), "mem_clock_mhz": ("mem_clock", "MHz"),
        "package_power_w": ("package_power", "W"),
    }  # fmt: skip
