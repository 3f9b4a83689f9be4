"""What is asked of the control helper for several devices and several knobs."""

import pytest

from powerd_client.knobs.control import wishes
from powerd_core.errors import ConfigError
from powerd_core.lease import KnobInfo, Range, Setting

KNOBS = tuple(
    KnobInfo(device, f"uuid-{device}", knob, Range(30, 300, 200), Setting())
    for device, knob in (("gpu0", "power_cap"), ("gpu0", "sm_clock"), ("gpu1", "power_cap"), ("cpu0", "package_power"))
)


def asked(levels, *devices):
    return [(wish.device, wish.knob, wish.level) for wish in wishes(levels, devices, KNOBS)]


def test_each_kind_of_device_takes_its_own_knobs():
    levels = {"power_cap_w": 200, "package_power_w": 90}
    expected = [("gpu0", "power_cap", 200), ("gpu1", "power_cap", 200), ("cpu0", "package_power", 90)]
    assert asked(levels, "gpu0", "gpu1", "cpu0") == expected


@pytest.mark.parametrize(
    ("levels", "devices", "named"),
    [
        ({"power_cap_w": 200, "package_power_w": 90}, ("gpu0",), "gpu0 has no package_power"),
        ({"power_cap_w": 200}, ("gpu0", "cpu0"), "cpu0 has no power_cap_w"),
        ({"power_cap_w": 200, "sm_clock_mhz": 100}, ("gpu0", "gpu1"), "gpu1 has no sm_clock"),
        ({"power_cap_w": 200, "package_power_w": 90}, ("gpu0", "cpu0", "gpu7"), "there is no device 'gpu7'"),
    ],
)
def test_what_no_device_has_is_refused(levels, devices, named):
    with pytest.raises(ConfigError, match=named):
        asked(levels, *devices)
