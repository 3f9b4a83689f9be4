"""The calibration file: TOML, one ``[[sensor]]`` a sensor, read strictly and written atomically."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from powerd_core.calibration import CalibrationFile, Point, SensorCalibration
from powerd_core.errors import ConfigError
from powerd_core.serde import build_options, parse_toml
from powerd_core.text import did_you_mean
from powerd_daemon.calibration import calibrated
from powerd_daemon.ina.sensor import Sensor
from powerd_daemon.textfile import read_text

_HEAD = """\
# Calibrations of single sensors, written by `powerd calibrate`; load it with: calibration = "{name}"
# zero: read without load. load: read at a known current ("A") or power ("W"). Means are by the nominal conversion.
"""


def load_calibration(path: Path) -> CalibrationFile:
    """What is in a calibration file. Raises `ConfigError`."""
    try:
        document = parse_toml(read_text(path, "there is no such calibration file: make it with `powerd calibrate`"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    for name in document:
        if name != "sensor":
            raise ConfigError(f"{path}: unknown table {name!r}{did_you_mean(name, ['sensor'])}")
    tables = document.get("sensor", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ConfigError(f"{path}: 'sensor' is a list of tables: write [[sensor]]")
    sensors = tuple(build_options(SensorCalibration, t, f"{path}: [[sensor]] {i}") for i, t in enumerate(tables, 1))
    seen: dict[tuple[object, ...], int] = {}
    for i, sensor in enumerate(sensors, 1):
        if sensor.key in seen:
            raise ConfigError(
                f"{path}: [[sensor]] {i} is of the same sensor as [[sensor]] {seen[sensor.key]}: remove one"
            )
        seen[sensor.key] = i
    return CalibrationFile(sensors)


def calibrated_by(
    path: str | Path, sensors: Sequence[Sensor], *, bus: int | str
) -> tuple[tuple[Sensor, ...], dict[str, object]]:
    """What a source does with its option ``calibration``: the sensors with what the file knows of them, and the records
    used, by sensor name, for the stream's ``detail``. An empty path is no file. Raises `ConfigError`."""
    if not str(path):
        return tuple(sensors), {}
    return calibrated(sensors, load_calibration(Path(path)), bus=bus)


def save_calibration(path: Path, calibration: CalibrationFile) -> None:
    """Write the file, whole or not at all. Raises `ConfigError` where it cannot be written."""
    said = [_HEAD.format(name=path.name)]
    for sensor in calibration.sensor:
        said.append(_table("[[sensor]]", sensor))
        said += [_table(f"[sensor.{name}]", p) for name, p in (("zero", sensor.zero), ("load", sensor.load)) if p]
    new = path.with_name(path.name + ".new")
    try:
        with new.open("w", encoding="utf-8") as file:
            file.write("\n".join(said))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def _table(head: str, value: SensorCalibration | Point) -> str:
    rows = [head]
    for f in fields(value):
        inner = getattr(value, f.name)
        if isinstance(inner, Point) or inner is None:
            continue
        # An address is known in hexadecimal. JSON's numbers and strings are TOML's, but for one control character.
        is_address = f.name == "address" and inner >= 0
        shown = f"{inner:#04x}" if is_address else json.dumps(inner, ensure_ascii=False).replace("\x7f", "\\u007f")
        rows.append(f"{f.name} = {shown}")
    return "\n".join(rows) + "\n"
