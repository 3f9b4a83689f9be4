"""Register tables, settings and accuracy of the INA family against the data sheets' figures."""

from math import isclose, sqrt

import pytest

from powerd_core.calibration import Calibration
from powerd_core.errors import ConfigError
from powerd_daemon.sources.ina.chips import CHIPS, ChipSettings, chip_type
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, accuracy, conversion


@pytest.mark.parametrize(
    ("settings", "words", "cycle_ns"),
    [
        (ChipSettings("INA219", "avg4", "10bit"), ((0, 0x38D7),), 2_278_000),
        (ChipSettings("INA219", "avg128", "9bit", 1, "40mV", "16V"), ((0, 0x007F),), 68_184_000),
        (ChipSettings("INA226", "1100us", "1100us", 16), ((0, 0x4527),), 35_200_000),
        (ChipSettings("INA228", "1052us", "1052us", 4), ((0, 0), (1, 0xBB61)), 8_416_000),
        (ChipSettings("INA228", "50us", "50us", 1, "41mV"), ((0, 0x10), (1, 0xB020)), 100_000),
        (ChipSettings("INA3221", "140us", "204us", channels=(1, 3)), ((0, 0x5047),), 688_000),
    ],
)
def test_configuration_words_and_cycles(settings, words, cycle_ns):
    assert (settings.words, settings.cycle_ns) == (words, cycle_ns)


@pytest.mark.parametrize(
    "settings",
    [ChipSettings("INA219", "12bit", "12bit"), ChipSettings("INA226", "1100us", "1100us"), ChipSettings("INA228"),
     ChipSettings("INA3221", "1100us", "1100us", channels=(1, 2, 3))],
)  # fmt: skip
def test_a_reset_always_shows_in_what_is_read_back(settings):
    resets = settings.type.resets
    assert any(word != resets[register] for register, word in settings.words)


@pytest.mark.parametrize(
    "wrong",
    [
        {"shunt_adc": "13bit"},
        {"bus_range": "26V"},
        {"averages": 4},
        {"channels": (2,)},
        {"chip": "INA229"},
        {"chip": "INA3221", "averages": 4},  # a running average has no window
    ],
)
def test_what_a_chip_does_not_have_is_refused(wrong):
    with pytest.raises(ConfigError, match=str(list(wrong)[-1])[:4]):
        ChipSettings(**wrong)


def test_the_codes_weigh_what_the_data_sheets_say():
    def lsb(chip):
        c = conversion(Sensor("x", 0x40, chip), ChipSettings(chip))
        return c.shunt_lsb_v, c.bus_lsb_v, c.bus_shift

    assert lsb("INA219") == (10e-6, 4e-3, 3)
    assert lsb("INA226") == (2.5e-6, 1.25e-3, 0)
    assert lsb("INA228") == (312.5e-9 / 16, 195.3125e-6, 4)
    assert lsb("INA3221") == (5e-6, 8e-3, 3)


def test_accuracy_follows_the_data_sheet_and_a_calibration():
    sensor = Sensor("x", 0x40, shunt_adc="12bit", bus_adc="12bit", grade="B")
    found = accuracy(sensor, sensor.settings_of((1,)), period_ns=2_000_000)
    assert isclose(found.u_gain, sqrt(0.005**2 + 0.01**2 + 0.01**2) / sqrt(3), rel_tol=1e-3)
    assert isclose(found.u_offset_w, 100e-6 / 0.05 * 12 / sqrt(3))
    assert isclose(found.step_w, 10e-6 / 0.05 * 12)
    assert (found.window_ns, found.update_ns) == (532_000, 0)
    known = Calibration(0.004, 1.01, u_offset_a=0.0002, u_gain=0.001, date="2025-06-30", temperature_c=23.0)
    calibrated = Sensor("x", 0x40, shunt_adc="12bit", bus_adc="12bit", calibration=known)
    found = accuracy(calibrated, calibrated.settings_of((1,)), period_ns=2_000_000)
    assert found.u_gain == 0.001
    assert isclose(found.u_offset_w, 0.0002 * 1.01 * 12)
    assert "2025-06-30 at 23 C" in found.origin
    c = conversion(calibrated, calibrated.settings_of((1,)))
    assert (c.offset_a, c.gain) == (0.004, 1.01)


@pytest.mark.parametrize(
    ("chip", "grade", "limits"),
    [
        # Gain of the shunt, gain of the bus, zero of the shunt in uV, zero of the bus in mV. SBOS448G, section 7.5:
        ("INA219", "A", (0.010, 0.010, {"40mV": 100, "80mV": 125, "160mV": 150, "320mV": 200}, 0)),
        ("INA219", "B", (0.005, 0.010, {"40mV": 50, "80mV": 75, "160mV": 75, "320mV": 100}, 0)),
        # Limits at 25 C and 60 K of their drift.
        ("INA226", "", (0.001 + 0.003, 0.001 + 0.003, {"82mV": 10 + 6}, 7.5 + 2.4)),
        ("INA228", "", (0.0005 + 0.0012, 0.0005 + 0.0012, {"164mV": 1 + 0.6, "41mV": 1 + 0.6}, 5 + 2.4)),
        ("INA3221", "", (0.0025 + 0.003, 0.0025 + 0.003, {"164mV": 80 + 30}, 16 + 4.8)),
    ],
)
def test_limits_are_those_of_the_data_sheets_over_temperature(chip, grade, limits):
    found = CHIPS[chip].grades[grade]
    current_gain, bus_gain, zeros_uv, bus_zero_mv = limits
    assert (found.current_gain, found.bus_gain) == pytest.approx((current_gain, bus_gain))
    assert {name: zero_v * 1e6 for name, zero_v in found.offset_v.items()} == pytest.approx(zeros_uv)
    assert found.bus_offset_v * 1e3 == pytest.approx(bus_zero_mv)


LONGEST_US = {
    "INA219": {"9bit": 93, "10bit": 163, "11bit": 304, "12bit": 586},
    "INA226": {"140us": 154, "204us": 224, "332us": 365, "588us": 646, "1100us": 1210, "2116us": 2328, "4156us": 4572,
               "8244us": 9068},
}  # fmt: skip
"""The maxima of the data sheets, which are rounded; the INA3221's are the INA226's."""


@pytest.mark.parametrize(("chip", "longest_us"), [*LONGEST_US.items(), ("INA3221", LONGEST_US["INA226"])])
def test_no_conversion_lasts_longer_than_the_tolerance_says(chip, longest_us):
    kind = chip_type(chip)
    for name, longest in longest_us.items():
        assert abs(kind.adc[name].conversion_ns * (1 + kind.clock_tolerance) / 1000 - longest) < 1
