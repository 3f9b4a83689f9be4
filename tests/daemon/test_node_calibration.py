"""Sensors behind a node are calibrated by its serial number and their controller, wherever it is plugged in."""

from __future__ import annotations

import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from simulated_node import SimulatedNode

from powerd_core.calibration import CalibrationFile
from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import ShuntConversion, Stream
from powerd_daemon.calibrate import calibrate_lines
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.sensor_accuracy import load_calibration, save_calibration
from powerd_daemon.sources.node.source import NodeOptions, NodeSensor, NodeSource
from powerd_daemon.sources.sim.bus import VirtualClock

UID = "e660010203040506"
SHUNT_A = 1e-5 / 0.05
"""Amperes a code: 10 uV over 50 mOhm."""


class BenchNode(NodeSource):
    """A node with two sensors at one address, one on each controller, and what they read."""

    codes = (0, 0)

    def __init__(self, options: NodeOptions, start: Start) -> None:
        node = SimulatedNode(start.clock, sensors=2)
        for controller, code in enumerate(self.codes):
            node.pico.chips[controller, 0x40].shunt = code
        super().__init__(options, start, lambda _path, _baud: node)


def calibrate(tmp_path: Path, *, codes: tuple[int, int], line: str = "", reference_a: float | None = None) -> Path:
    """Run the command on a node that reads these codes; the calibration file."""
    BenchNode.codes = codes
    config, out = tmp_path / "node.toml", tmp_path / "cal.toml"
    config.write_text(
        f'[[source]]\nkind = "{__name__}:BenchNode"\nport = "/dev/fake"\n'
        '[[source.sensors]]\nname = "a"\naddress = 0x40\n'
        '[[source.sensors]]\nname = "b"\naddress = 0x40\ncontroller = 1\n'
    )
    given = Namespace(
        reference=None,
        file=config, url=None, out=out, zero=reference_a is None, reference_a=reference_a, reference_w=None,
        reference_u=0.001,
        line=[line] if line else [], temperature_c=23.0, seconds=1.0,
    )  # fmt: skip
    calibrate_lines(given, VirtualClock())
    return out


def described(calibration: Path | str = "", *, shunt_ohm: float = 0.05) -> Stream:
    sensors = tuple(NodeSensor(n, 0x40, controller=i, shunt_ohm=shunt_ohm) for i, n in enumerate("ab"))
    source = BenchNode(
        NodeOptions("/dev/fake", sensors, calibration=str(calibration)), Start("n", 1, 0, VirtualClock())
    )
    try:
        return source.open()[0][0]
    finally:
        source.close()


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both zeros (5 and -7 codes), and the gain of the second: 20000 codes above its zero are 4.04 A."""
    folder = tmp_path_factory.mktemp("calibration")
    calibrate(folder, codes=(5, -7))
    return calibrate(folder, codes=(5, 19_993), line="gpu0.b", reference_a=4.04)


@pytest.fixture
def file(calibrated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(calibrated, tmp_path))


def test_lines_and_detail_tell_of_the_calibration_of_this_node(file: Path) -> None:
    plain, stream, known = described(), described(file), load_calibration(file)
    a, b = known.sensor
    assert [(s.line, s.serial, s.board, s.bus, s.address) for s in (a, b)] == [
        ("gpu0.a", UID, "", 0, 0x40),
        ("gpu0.b", UID, "", 1, 0x40),
    ]
    assert (a.offset_a, a.gain, a.load) == (pytest.approx(-5 * SHUNT_A), 1.0, None)
    assert (b.offset_a, b.gain) == (pytest.approx(7 * SHUNT_A), pytest.approx(1.01))
    for line, before, record in zip(stream.lines, plain.lines, (a, b), strict=True):
        assert isinstance(line.conversion, ShuntConversion)
        assert (line.conversion.offset_a, line.conversion.gain) == (record.offset_a, record.gain)
        assert line.accuracy.u_offset_w < before.accuracy.u_offset_w / 10
        assert (line.accuracy.u_gain < before.accuracy.u_gain) == (record is b)
        assert line.accuracy.centre_ns == before.accuracy.centre_ns
        assert f"guaranteed; {record.option.what_and_when}" in line.accuracy.origin
    assert [s["calibration"]["gain"] for s in stream.detail["sensors"]] == [1.0, b.gain]
    assert set(stream.detail["calibration"]) == {"a", "b"}
    assert plain.detail["calibration"] == {}
    save_calibration(file, CalibrationFile(tuple(replace(s, serial="e660ffffffffffff") for s in known.sensor)))
    assert described(file).lines == plain.lines, "another node has other sensors"


def test_what_cannot_be_of_this_sensor_is_refused(tmp_path: Path, file: Path) -> None:
    for path, shunt_ohm in ((file, 0.01), (tmp_path / "none.toml", 0.05)):
        with pytest.raises(ConfigError):
            described(path, shunt_ohm=shunt_ohm)
    before = file.read_bytes()
    with pytest.raises(SensorError, match="saturated"):
        calibrate(tmp_path, codes=(5, 32_000), line="gpu0.b", reference_a=6.4)
    with pytest.raises(ConfigError, match=r"gpu0.marker"):
        calibrate(tmp_path, codes=(5, -7), line="gpu0.marker")
    assert file.read_bytes() == before
