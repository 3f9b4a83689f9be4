"""Source ``ina``: its options, and what it makes of sensors behind a bus that stands where Linux's is."""

from socket import gethostname

import pytest
from conformance import EPOCH, SourceConformance
from ina_bench import Bench

import powerd_daemon.sources.ina.source as ina
from powerd_core.calibration import Calibration, CalibrationFile, Point, SensorCalibration
from powerd_core.errors import ConfigError
from powerd_core.model import Provenance
from powerd_daemon.config import parse_config
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, save_calibration
from powerd_daemon.sources.ina.source import InaOptions, InaSource
from powerd_daemon.sources.sim.bus import SimBus, VirtualClock

SENSORS = (
    Sensor("slot_12v", 0x40, description="slot, 12 V", calibration=Calibration(0.001, 1.002, date="2025-06-30")),
    Sensor("slot_3v3", 0x41, nominal_v=3.3),
    Sensor("cpu", 0x42, "INA226", shunt_ohm=0.01, device="cpu0"),
)


class Bus(SimBus):
    """Chips on the clock of the test, opened by a number as Linux's are."""

    path = "/dev/i2c-2"
    closed = 0
    opened: "Bus"

    def close(self):
        type(self).closed += 1


@pytest.fixture(autouse=True)
def bus(monkeypatch, clock):
    def make(number, timeout_ms):
        assert (number, timeout_ms) == (2, 50)
        bench = Bench([1.0] * 3, sensors=SENSORS)
        Bus.opened = Bus(clock, bench.chips)
        return Bus.opened

    monkeypatch.setattr(ina, "LinuxBus", make)


@pytest.fixture
def clock():
    return VirtualClock()


class TestConformance(SourceConformance):
    def make(self, start: Start) -> InaSource:
        return InaSource(InaOptions(bus=2, sensors=SENSORS), start)

    def fail(self, source):
        for sensor, _ in source.bank:
            Bus.opened.fail(sensor.address, 1 << 30)


def test_lines_say_what_they_are(clock):
    source = InaSource(InaOptions(bus=2, sensors=SENSORS), Start("rails", EPOCH, 0, clock))
    (stream,), devices = source.open()
    assert [line.name for line in stream.lines] == ["gpu0.slot_12v", "gpu0.slot_3v3", "cpu0.cpu"]
    assert {line.provenance for line in stream.lines} == {Provenance.MEASURED}
    assert [(d.name, len(d.feeds)) for d in devices] == [("gpu0", 2), ("cpu0", 1)]
    assert (stream.lines[0].conversion.offset_a, stream.lines[0].conversion.gain) == (0.001, 1.002)
    assert stream.detail["bus"] == "/dev/i2c-2"
    assert stream.detail["combined_reads"] is True
    before = Bus.closed
    source.close()
    source.close()
    assert Bus.closed == before + 1


def test_a_calibration_file_changes_the_lines_metadata(clock, tmp_path):
    point = Point("2025-03-14T09:26:53Z", 23.0, 0.0, "A", 0.0, 1000, -0.002, 0.0001, 3.3)
    record = SensorCalibration(
        "gpu0.slot_3v3", "INA219", 0.05, 0.0002, 0.0058, 0.0004, board=gethostname(), bus=2, address=0x41, zero=point
    )
    path = tmp_path / "calibration.toml"
    save_calibration(path, CalibrationFile((record,)))
    with_file, without = (
        InaSource(InaOptions(bus=2, sensors=SENSORS, calibration=name), Start("rails", EPOCH, 0, clock)).open()[0][0]
        for name in (str(path), "")
    )
    assert with_file.lines[1].conversion.offset_a == 0.002
    assert without.lines[1].conversion.offset_a == 0.0
    assert with_file.lines[1].accuracy.u_offset_w < without.lines[1].accuracy.u_offset_w
    assert "slot_3v3" in with_file.detail["calibration"]
    assert without.detail["calibration"] == {}
    with pytest.raises(ConfigError, match="none.toml"):
        InaSource(InaOptions(bus=2, sensors=SENSORS, calibration="none.toml"), Start("rails", EPOCH, 0, clock))


CONFIG = """
[[source]]
kind = "ina"
name = "rails"
bus = {bus}
priority = 50
lock_memory = true
{more}
[[source.sensors]]
name = "slot_12v"
address = 0x40
shunt_ohm = 0.05
[source.sensors.calibration]
offset_a = 0.002
date = "2025-06-30"
[[source.sensors]]
name = "cable"
address = 0x41
chip = "INA226"
"""


def test_it_is_configured_in_toml():
    source = parse_config(CONFIG.format(bus=2, more=""), "p.toml").sources[0]
    assert (source.sampler.priority, source.sampler.lock_memory) == (50, True)
    assert "priority" not in source.options
    assert parse_config(CONFIG.format(bus='"/dev/i2c-2"', more=""), "p.toml")


@pytest.mark.parametrize("more", ["rate_hz = 5000", "timeout_ms = 1", "bus_every = 500", "bus_hold = 2.0", "prio = 1"])
def test_bad_configurations_name_the_source(more):
    with pytest.raises(ConfigError, match=rf"p.toml: \[\[source\]\] 1 \(ina\).*{more.split()[0]}"):
        parse_config(CONFIG.format(bus=2, more=more), "p.toml")
