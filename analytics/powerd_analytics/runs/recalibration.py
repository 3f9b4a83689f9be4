"""A run computed again with the calibrations of a later day: raw codes stay, what they mean is replaced."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from powerd_analytics.runs.run import Run, RunLine
from powerd_core.calibration import CalibrationFile, SensorCalibration, recalibrated
from powerd_core.errors import AnalysisError, ConfigError, WireError
from powerd_core.model import ShuntConversion
from powerd_core.serde import from_document


def read_calibration(path: Path) -> CalibrationFile:
    """A file that `powerd calibrate` wrote. Raises `ConfigError`."""
    try:
        return from_document(CalibrationFile, tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such calibration file: make it with `powerd calibrate`") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except WireError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        # Not TOML, not UTF-8, or points that contradict each other.
        raise ConfigError(f"{path}: no calibration file: {error}") from error


def recalibrate(run: Run, path: Path) -> tuple[Run, tuple[str, ...]]:
    """The run with the calibrations in a file, and the names of the lines that have one there.

    A record is of the sensor at its bus, address and channel; where several boards have such a one, of the board. Those
    of a node are known by its serial number and their controller on it.
    Raises `ConfigError` for the file, `AnalysisError` where it has nothing on this run or contradicts it.
    """
    known, lines = read_calibration(path), dict(run.lines)
    found = []
    for name, line in run.lines.items():
        sensor = _sensor(line)
        if sensor is None or not isinstance(line.conversion, ShuntConversion):
            continue
        record = _record(known, line, sensor)
        if record is None:
            continue
        if record.chip != str(sensor.get("chip", record.chip)).upper():
            raise AnalysisError(
                f"{path}: {name}: its calibration was taken with an {record.chip}, not {sensor['chip']}"
            )
        try:
            conversion, accuracy = recalibrated(
                line.conversion,
                line.accuracy,
                record,
                nominal_v=float(sensor["nominal_v"]),
                bus_hold=float(line.detail.get("bus_hold", 0.0)),
            )
        except ValueError as error:
            raise AnalysisError(f"{path}: {name}: {error}") from error
        lines[name] = replace(line, conversion=conversion, accuracy=accuracy)
        found.append(name)
    if not found:
        raise AnalysisError(
            f"{path}: no sensor of {run.path} is calibrated there (board or serial number, bus, address and channel)"
        )
    return replace(run, lines=lines), tuple(found)


def _sensor(line: RunLine) -> Mapping[str, Any] | None:
    """What the source said of the line's sensor; None for lines that have none."""
    sensors = line.detail.get("sensors", ())
    return next((s for s in sensors if isinstance(s, dict) and f"{line.device}.{s.get('name')}" == line.name), None)


def _record(known: CalibrationFile, line: RunLine, sensor: Mapping[str, Any]) -> SensorCalibration | None:
    if "controller" in sensor:
        uid, controller = str(line.detail.get("uid", "")), int(sensor["controller"])
        return known.find(serial=uid, bus=controller, address=int(sensor["address"])) if uid else None
    bus = str(line.detail.get("bus", ""))
    number = int(bus.rpartition("-")[2]) if bus.rpartition("-")[2].isdigit() else -1
    place = (number, sensor.get("address"), sensor.get("channel", 1))
    there = [s for s in known.sensor if not s.serial and (s.bus, s.address, s.channel) == place]
    # A board's name in its configuration need not be the host name under which it was calibrated: the line then tells.
    mine = [s for s in there if s.board in ("", line.board)] or [s for s in there if s.line == line.name]
    return mine[0] if mine else None
