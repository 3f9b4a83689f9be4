"""Calibration: what follows from points, what is refused, and that the true power lies inside what it states."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from math import hypot, sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerd_core.calibration import Calibration, CalibrationFile, Point, SensorCalibration
from powerd_core.errors import ConfigError, SensorError
from powerd_daemon.calibrate import Readings, calibrate_lines, judge, read_lines
from powerd_daemon.daemon import calibrations
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.ina.sensor_accuracy import (
    Sensor,
    accuracy,
    calibrated,
    calibrated_by,
    conversion,
    load_calibration,
    save_calibration,
)
from powerd_daemon.sources.sim.bus import VirtualClock
from powerd_daemon.sources.sim.source import SimOptions, SimSource

ZERO = Point("2025-03-14T09:26:53Z", 23.0, 0.0, "A", 0.0, 1000, -0.002, 0.0001, 12.05)
LOAD = Point("2025-03-15T10:00:00Z", 24.5, 5.0, "A", 0.001, 1000, 4.973, 0.0002, 12.0)
RECORD = SensorCalibration(
    "gpu0.a", "INA219", 0.05, 0.0002, 0.0058, 0.0004, board="bone", bus=2, address=0x41, zero=ZERO, load=LOAD
)


def test_zero_and_gain_follow_from_the_points() -> None:
    assert RECORD.offset_a == 0.002
    assert RECORD.gain == pytest.approx(5.0 / 4.975)
    power = replace(RECORD, load=replace(LOAD, reference=60.0, quantity="W"))
    assert power.gain == pytest.approx(60.0 / (12.0 * 4.975))
    assert (replace(RECORD, load=None).gain, replace(RECORD, zero=None).offset_a) == (1.0, 0.0)


def test_uncertainties_say_what_they_contain() -> None:
    # Scatter of the mean, half a step, and 15 K of 0.2 uV/K over 50 mOhm.
    u_offset_a = hypot(0.0001 / sqrt(1000), 0.0001 / sqrt(3), 3e-6 / 0.05 / sqrt(3))
    assert RECORD.u_offset_a == pytest.approx(u_offset_a)
    mean = hypot(0.0002 / sqrt(1000), 0.0001 / sqrt(3), u_offset_a) / 4.975
    drift = 1.5e-3 / sqrt(3)
    assert RECORD.u_gain == pytest.approx(hypot(0.001, mean, drift, 0.0058))
    # A reference of power settles the bus voltage's gain too, up to its rounding.
    power = replace(RECORD, load=replace(LOAD, reference=60.0, quantity="W"))
    assert power.u_gain == pytest.approx(hypot(0.001, mean, drift, 0.0004 * sqrt(2)))
    assert replace(RECORD, load=None).u_gain is None
    assert replace(RECORD, zero=None).u_offset_a is None


@pytest.mark.parametrize(
    "change",
    [{"zero": replace(ZERO, reference=1.0)}, {"load": replace(LOAD, mean_a=-0.01)}, {"shunt_ohm": 0.0}],
)
def test_points_that_contradict(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="0|positive"):
        replace(RECORD, **change)  # type: ignore[arg-type]


def test_sensors_are_found_by_place_or_serial() -> None:
    serial = replace(RECORD, serial="E660", board="", bus=0)
    file = CalibrationFile((RECORD,)).with_sensor(serial)
    for place, found in (
        ({"board": "bone", "bus": 2}, RECORD),
        ({"board": "other", "bus": 2}, None),
        ({"board": "bone", "bus": 0}, None),
        ({"board": "bone", "serial": "E660", "bus": 0}, serial),
        ({"serial": "E660", "bus": 2}, None),
        ({"serial": "E661", "bus": 0}, None),
    ):
        assert file.find(address=0x41, **place) is found  # type: ignore[arg-type]
    assert file.find(board="bone", bus=2, address=0x42) is None
    newer = replace(RECORD, load=None)
    assert file.with_sensor(newer).find(board="bone", bus=2, address=0x41) is newer
    of_any_board = CalibrationFile((replace(RECORD, board=""),))
    assert of_any_board.find(board="bone", bus=2, address=0x41) is not None
    assert of_any_board.with_sensor(newer).find(board="bone", bus=2, address=0x41) is newer


def test_calibrated_sensors() -> None:
    mine, other = Sensor("a", 0x41), Sensor("b", 0x42)
    by_hand = replace(mine, calibration=Calibration(gain=1.5))
    file = CalibrationFile((RECORD,))
    (first, second), used = calibrated((mine, other), file, bus=2, board="bone")
    assert first.calibration == RECORD.option
    assert second is other
    assert list(used) == ["a"]
    assert calibrated((mine,), file, bus="/dev/i2c-2", board="bone")[0] == (first,)
    assert calibrated_by("", [mine], bus=2) == ((mine,), {})
    assert calibrated((by_hand,), file, bus=2, board="bone") == ((by_hand,), {})
    with pytest.raises(ConfigError, match="shunt_ohm = 0.05"):
        calibrated((replace(mine, shunt_ohm=0.01),), file, bus=2, board="bone")


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
"""No configuration gives a line a name with a NUL."""


@settings(max_examples=25)  # each waits for the disk
@given(NAMES, st.floats(-6, 6), st.floats(0, 1), st.integers(2, 10**9), st.booleans())
def test_the_file_round_trips(
    tmp_path_factory: pytest.TempPathFactory, name: str, mean_a: float, spread_a: float, count: int, loaded: bool
) -> None:
    zero = replace(ZERO, mean_a=mean_a, spread_a=spread_a, count=count)
    load = replace(LOAD, mean_a=4.9 + max(mean_a, 0.0)) if loaded else None
    file = CalibrationFile((replace(RECORD, line=name, zero=zero, load=load), replace(RECORD, channel=2)))
    path = tmp_path_factory.getbasetemp() / "calibration.toml"
    save_calibration(path, file)
    assert load_calibration(path) == file


@pytest.mark.parametrize(
    ("current_a", "counts", "name"),
    [
        ([1.0, 1.0002] * 200, {"saturated": 1}, "saturated"),
        ([1.0 + i * 1e-4 for i in range(400)], {}, "wander"),
        ([1.0, 1.0002] * 50, {}, "--seconds"),
        ([1.0, 1.0002] * 200, {"bad": 100}, "powerd check"),
    ],
)
def test_readings_that_will_not_do(current_a: list[float], counts: dict[str, int], name: str) -> None:
    judge("a", Readings([1.0, 1.0002] * 200, [12.0] * 400), 0.0002)
    with pytest.raises(SensorError, match=name):
        judge("a", Readings(current_a, [12.0] * len(current_a), **counts), 0.0002)


def test_a_zero_that_has_moved_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By more than both uncertainties explain: at once, and by every powerd that loads the file."""
    out, clock, file = tmp_path / "cal.toml", VirtualClock(), configuration(tmp_path / "z.toml", 0)
    calibrate_lines(arguments(file, out, zero=True), clock)
    calibrate_lines(arguments(file, out, zero=True), clock)
    assert "the zero has moved" not in capsys.readouterr().out
    assert not any(record.is_drifted for record in load_calibration(out).sensor)
    # What was found the first time, as if the sensor had been 10 mA lower then.
    first = load_calibration(out)
    moved = [replace(r, zero=replace(r.zero, mean_a=r.zero.mean_a - 0.01)) for r in first.sensor[:1] if r.zero]
    save_calibration(out, first.with_sensor(moved[0]))
    calibrate_lines(arguments(file, out, zero=True), clock)
    told = capsys.readouterr().out
    assert f"{moved[0].line}: the zero has moved by +10.0" in told
    assert told.count("the zero has moved") == 1
    drifted = [r for r in load_calibration(out).sensor if r.is_drifted]
    assert [r.line for r in drifted] == [moved[0].line]
    (stream,), _ = SimSource(SimOptions(calibration=str(out)), Start("sim", 1, 0, clock)).open()
    zeros: Any = calibrations(stream)["calibration"]
    assert {name: zero["zero_drifted"] for name, zero in zeros.items()} == {
        r.line.partition(".")[2]: r == drifted[0] for r in load_calibration(out).sensor
    }


def configuration(path: Path, power_w: float) -> Path:
    path.write_text(f'[[source]]\nkind = "sim"\nwaveform = "constant"\nidle_w = 0\npeak_w = {power_w}\nseed = 5\n')
    return path


def arguments(
    file: Path, out: Path, *, zero: bool = False, reference_w: float | None = None, **more: object
) -> Namespace:
    given = {
        "file": file, "out": out, "zero": zero, "reference_w": reference_w, "reference_a": None, "reference_u": 0.001,
        "line": [], "temperature_c": 23.0, "seconds": 1.0,
    }  # fmt: skip
    return Namespace(**{"url": None, "keys": None, "reference": None, **given, **more})


LINE, SHARE = "gpu0.pcie_12v", 0.2


def test_the_calibrated_line_is_right_within_what_it_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, clock = tmp_path / "cal.toml", VirtualClock()
    calibrate_lines(arguments(configuration(tmp_path / "z.toml", 0), out, zero=True), clock)
    loaded = configuration(tmp_path / "l.toml", 250)
    calibrate_lines(arguments(loaded, out, reference_w=250 * SHARE, line=[LINE]), clock)
    assert "load it in the [[source]] with: calibration =" in capsys.readouterr().out
    file = load_calibration(out)
    assert len(file.sensor) == 8
    options = SimOptions(waveform="constant", peak_w=120.0, seed=5)
    sensors, _ = calibrated(options.all_sensors(), file, bus=-1)
    source = SimSource(options, Start("sim", 1, 0, clock))
    read = read_lines(source, clock, 1.0, [LINE])[LINE]
    true_w = 120 * SHARE
    errors = []
    for sensor in (sensors[0], options.all_sensors()[0]):
        settings = source.bank.settings[0]
        c, a = conversion(sensor, settings), accuracy(sensor, settings, period_ns=source.period_ns)
        power_w = sum((i + c.offset_a) * c.gain * v for i, v in zip(read.current_a, read.bus_v, strict=True))
        error_w = power_w / len(read.bus_v) - true_w
        u_w = hypot(a.u_gain * true_w, a.u_offset_w, a.step_w / sqrt(12))
        assert abs(error_w) < 2 * u_w
        errors.append((abs(error_w), u_w))
    (after_w, u_after_w), (before_w, u_before_w) = errors
    assert after_w < before_w
    assert u_after_w < u_before_w / 4


@pytest.mark.parametrize(
    ("power_w", "options", "name"),
    [
        (100, {"zero": True}, "disconnect the load"),
        (0, {"reference_w": 50.0, "line": [LINE]}, "on this line"),
        (250, {"reference_w": 25.0, "line": [LINE]}, "shunt_ohm"),
        (1000, {"reference_w": 200.0, "line": [LINE]}, "saturated"),
        (250, {"reference_w": 50.0, "line": ["gpu0.pcie"]}, "gpu0.pcie"),
        (250, {"reference_w": 50.0}, "--line"),
        (250, {"reference_w": 50.0, "line": [LINE], "reference_u": None}, "--reference-u"),
    ],
)
def test_what_is_refused_leaves_no_file(tmp_path: Path, power_w: float, options: dict[str, object], name: str) -> None:
    out = tmp_path / "cal.toml"
    file = configuration(tmp_path / "c.toml", power_w)
    with pytest.raises((SensorError, ConfigError), match=name):
        calibrate_lines(arguments(file, out, seconds=0.5, **options), VirtualClock())  # type: ignore[arg-type]
    assert not out.exists()
