"""The kernel's power sensors, on trees of plain files like those of Jetson boards, servers and ina2xx."""

from math import hypot, sqrt
from pathlib import Path

import pytest
from conformance import EPOCH, Opened, SourceConformance

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Flag
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.polled import LOST
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sysfs import HwmonSource, IioSource, SysfsOptions

S = 1_000_000_000
JETSON = {
    "name": "ina3221", "update_interval": 7, "samples": 1,
    "in1_label": "VDD_IN", "in1_input": 19_424, "curr1_input": 1048, "shunt1_resistor": 2000,
    "in2_label": "VDD_CPU_GPU_CV", "in2_input": 19_416, "curr2_input": 312, "shunt2_resistor": 2000,
    "in3_label": "VDD_SOC", "in3_input": 19_408, "curr3_input": 204, "shunt3_resistor": 2000,
    # Behind the rails: shunt voltages, and the sum of the currents.
    "in4_input": 2, "in5_input": 1, "in6_input": 0, "in7_label": "sum of shunt voltages", "in7_input": 3,
    "curr4_input": 1564,
}  # fmt: skip
INA226 = {"name": "ina226", "update_interval": 35, "in0_input": 3, "in1_input": 12_050, "curr1_input": 1500,
          "power1_input": 18_075_000, "shunt_resistor": 2000}  # fmt: skip
GRACE = {"name": "power_meter", "power1_average": 312_500_000, "power1_average_interval": 50,
         "power1_accuracy": "95.0%", "power1_oem_info": "Module Power Socket 0"}  # fmt: skip
SUPPLY = {"name": "pmbus", "power1_label": "pin", "power1_input": 412_000_000, "power2_label": "pout1",
          "power2_input": 381_000_000}  # fmt: skip
COUNTER = {"name": "xe", "energy1_label": "card", "energy1_input": 77_000_123, "power1_label": "card",
           "power1_average": 30_000_000}  # fmt: skip
FAN = {"name": "nct6775", "fan1_input": 900, "in0_input": 880, "curr1_input": 3}
OLD_JETSON = {"name": "ina3221x", "rail_name_0": "VDD_IN", "in_power0_input": 5120, "in_voltage0_input": 19_200,
              "in_current0_input": 266, "rail_name_1": "VDD_GPU", "in_power1_input": 820}  # fmt: skip
INA2XX_ADC = {"name": "ina226", "in_power2_raw": 1501, "in_power2_scale": "12.5", "in_voltage1_raw": 9640,
              "in_shunt_resistor": "0.002000000", "sampling_frequency": 455}  # fmt: skip


def chip(folder: Path, files: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def hwmon(root: Path, *chips: dict[str, object]) -> Path:
    for i, files in enumerate(chips):
        folder = chip(root / f"class/hwmon/hwmon{i}", files)
        (root / f"devices/{i}-0040").mkdir(parents=True)
        (folder / "device").symlink_to(root / f"devices/{i}-0040")
    return root


def opened(root: Path, kind=HwmonSource, name="hwmon", **options: object) -> Opened:
    clock = VirtualClock()
    source = kind(SysfsOptions(root=root, **options), Start(name, EPOCH, 0, clock))
    return Opened(source, clock, *source.open())


def lines_of(o: Opened):
    return {line.name: line for s in o.streams for line in s.lines}


class TestHwmonConformance(SourceConformance):
    polls = 60
    kind, files = HwmonSource, (JETSON, SUPPLY, COUNTER)

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root = hwmon(tmp_path, *self.files)

    def make(self, start: Start) -> HwmonSource:
        return HwmonSource(SysfsOptions(root=self.root), start)

    def fail(self, source) -> None:
        """As a chip that does not acknowledge: no number comes."""
        for path in self.root.glob("class/hwmon/hwmon*/*_input"):
            path.write_text("")
        for path in self.root.glob("class/hwmon/hwmon*/*_average"):
            path.write_text("")


class TestIioConformance(SourceConformance):
    polls = 60

    @pytest.fixture(autouse=True)
    def _root(self, tmp_path):
        self.root = tmp_path
        chip(tmp_path / "bus/iio/devices/iio:device0", OLD_JETSON)

    def make(self, start: Start) -> IioSource:
        return IioSource(SysfsOptions(root=self.root), start)

    def fail(self, source) -> None:
        for path in self.root.glob("bus/iio/devices/*/in_power*"):
            path.write_text("")


class TestLines:
    def test_rails_of_a_jetson_are_volts_times_amperes_and_never_added_by_guess(self, tmp_path):
        o = opened(hwmon(tmp_path, JETSON, FAN))
        assert [(d.name, d.feeds) for d in o.devices] == [
            (name, (f"hwmon.{name}",)) for name in ("vdd_in", "vdd_cpu_gpu_cv", "vdd_soc")
        ]
        made = o.run(1)
        assert o.readings(made, "hwmon.vdd_in")["power_uw"] == [19_424 * 1048]
        assert o.streams[0].detail["codes"] == "micro-units: in1_input * curr1_input * 1"
        assert o.streams[0].detail["untested"] == "untested on hardware"

    def test_what_adds_up_is_said_by_the_user(self, tmp_path):
        o = opened(hwmon(tmp_path, JETSON), feeds=("VDD_IN",), device="board")
        assert [(d.name, d.feeds) for d in o.devices] == [("board", ("hwmon.vdd_in",))]
        with pytest.raises(SensorError, match="'VDD_X': here are VDD_IN, VDD_CPU_GPU_CV, VDD_SOC"):
            opened(tmp_path, feeds=("VDD_X",))

    def test_the_accuracy_is_that_of_the_chip_on_its_shunt(self, tmp_path):
        o = opened(hwmon(tmp_path, JETSON, INA226))
        rail = lines_of(o)["hwmon.vdd_in"].accuracy
        # Data sheet: 0.25 % and 50 ppm/K over 60 K, twice, and a shunt of 1 %; 80 uV and 0.5 uV/K on 2 mOhm at 19.4 V.
        assert rail.u_gain == pytest.approx(hypot(0.0055, 0.0055, 0.01) / sqrt(3))
        assert rail.u_offset_w == pytest.approx(110e-6 / 2e-3 * 19.424 / sqrt(3))
        assert rail.step_w == pytest.approx(40e-6 / 2e-3 * 19.424)
        assert (rail.window_ns, rail.centre_ns) == (7_000_000, 7_000_000)
        assert "INA3221 data sheet SBOS576" in rail.origin
        single = lines_of(o)["hwmon.ina226_power1"].accuracy
        assert (single.window_ns, single.step_w) == (35_000_000, pytest.approx(2.5e-6 / 2e-3 * 12.05))

    def test_a_server_says_its_accuracy_and_what_is_unknown_is_assumed(self, tmp_path):
        o = opened(hwmon(tmp_path, GRACE, SUPPLY))
        module = lines_of(o)["hwmon.module_power_socket_0"]
        assert module.accuracy.u_gain == pytest.approx(0.05 / sqrt(3))
        assert "firmware states 95.0 %" in module.accuracy.origin
        assert module.accuracy.window_ns == 50_000_000
        assert "assumed ±5%" in lines_of(o)["hwmon.pin"].accuracy.origin
        assert "taken as 1 s" in lines_of(o)["hwmon.pin"].accuracy.origin
        assert lines_of(opened(tmp_path, u_gain=0.003))["hwmon.pin"].accuracy.u_gain == 0.003

    def test_a_counter_is_compared_with_the_power_of_its_label(self, tmp_path):
        o = opened(hwmon(tmp_path, COUNTER))
        (device,) = o.devices
        assert (device.name, device.feeds, list(lines_of(o))) == (
            "card", ("hwmon.card",), ["hwmon.card", "hwmon.card_energy"],
        )  # fmt: skip
        assert o.readings(o.run(1), "hwmon.card_energy")["energy_uj"] == [77_000_123]

    def test_two_of_a_kind_are_told_apart_by_their_place_and_may_be_chosen(self, tmp_path):
        o = opened(hwmon(tmp_path, INA226, INA226))
        assert list(lines_of(o)) == ["hwmon.ina226_power1_0_0040", "hwmon.ina226_power1_1_0040"]
        assert list(lines_of(opened(tmp_path, chips=("hwmon1",)))) == ["hwmon.ina226_power1"]

    def test_a_machine_without_any_says_which_chips_are_here(self, tmp_path):
        with pytest.raises(SensorError, match="chips here: nct6775"):
            opened(hwmon(tmp_path, FAN))

    def test_iio_tells_milliwatts_or_codes_and_their_scale(self, tmp_path):
        chip(tmp_path / "bus/iio/devices/iio:device0", OLD_JETSON)
        chip(tmp_path / "bus/iio/devices/iio:device1", INA2XX_ADC)
        o = opened(tmp_path, IioSource, "iio")
        made = o.run(1)
        assert o.readings(made, "iio.vdd_in")["power_uw"] == [5_120_000]
        assert o.readings(made, "iio.ina226_power2")["power_uw"] == [18_762_500]
        assert lines_of(o)["iio.ina226_power2"].accuracy.window_ns == 2_197_802
        assert "without the zero's limit" in lines_of(o)["iio.vdd_in"].accuracy.origin


class TestFailures:
    def test_one_rail_that_fails_is_flagged_alone(self, tmp_path):
        o = opened(hwmon(tmp_path, JETSON))
        (tmp_path / "class/hwmon/hwmon0/curr2_input").write_text("")
        made = o.run(LOST + 3)
        assert o.readings(made, "hwmon.vdd_cpu_gpu_cv")["flags"] == [Flag.IO_ERROR] * (LOST + 3)
        assert o.readings(made, "hwmon.vdd_in")["flags"] == [0] * (LOST + 3)
        assert o.source.health()["failed_reads"]["hwmon.vdd_cpu_gpu_cv"] == LOST + 3

    def test_a_machine_on_which_none_can_be_read_is_told_so(self, tmp_path):
        hwmon(tmp_path, SUPPLY)
        (tmp_path / "class/hwmon/hwmon0/power1_input").write_text("")
        assert len(lines_of(opened(tmp_path))) == 2
        (tmp_path / "class/hwmon/hwmon0/power2_input").write_text("")
        with pytest.raises(SensorError, match="power2_input does not give a number"):
            opened(tmp_path)

    def test_a_chip_that_is_gone_is_flagged_alone_until_it_is_back(self, tmp_path):
        o = opened(hwmon(tmp_path, INA226, GRACE))
        file = tmp_path / "class/hwmon/hwmon0/power1_input"
        file.unlink()
        made = o.run(LOST + 3)
        file.write_text("18075000\n")
        made += o.run(2)
        flags = o.readings(made, "hwmon.ina226_power1")["flags"]
        assert (flags[: LOST + 3], flags[-1]) == ([Flag.IO_ERROR] * (LOST + 3), 0)
        assert set(o.readings(made, "hwmon.module_power_socket_0")["flags"]) == {0}

    def test_the_source_is_lost_when_all_are_gone(self, tmp_path):
        o = opened(hwmon(tmp_path, INA226, GRACE))
        for file in ("hwmon0/power1_input", "hwmon1/power1_average"):
            (tmp_path / "class/hwmon" / file).unlink()
        with pytest.raises(SensorError, match="power1_input is gone: was the kernel's module unloaded"):
            o.run(LOST)

    @pytest.mark.parametrize("options", [{"rate_hz": 0.0}, {"u_gain": -1.0}, {"device": ""}])
    def test_options_that_cannot_be_used_are_refused(self, options):
        with pytest.raises(ConfigError):
            SysfsOptions(**options)
