"""The calibration file: TOML, one ``[[sensor]]`` a sensor, read strictly and written atomically; and which sensor of a
configuration gets which calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from socket import gethostname

from powerd_core.calibration import Calibration, CalibrationFile
from powerd_core.errors import ConfigError
from powerd_core.serde import build_options, to_document
from powerd_daemon.documents import read_document, toml_table, write_text
from powerd_daemon.sources.ina.chips import chip_type
from powerd_daemon.sources.ina.sensor import Sensor


def bus_number(bus: int | str) -> int | None:
    """N of ``N`` or ``/dev/i2c-N``; None for a path of another form."""
    digits = str(bus).rpartition("-")[2]
    return bus if isinstance(bus, int) else int(digits) if digits.isdigit() else None


def calibrated(
    sensors: Sequence[Sensor], file: CalibrationFile, *, bus: int | str, board: str = "", serial: str = ""
) -> tuple[tuple[Sensor, ...], dict[str, object]]:
    """The sensors with what the file knows of them, and the records used by sensor name, for a stream's ``detail``.

    What a sensor's own table ``calibration`` says counts before the file. Raises `ConfigError` for a record that was
    taken with another shunt or type of chip.
    """
    with_calibration: list[Sensor] = []
    used: dict[str, object] = {}
    number, board = bus_number(bus), board or gethostname()
    for sensor in sensors:
        place = {"bus": -1 if number is None else number, "address": sensor.address, "channel": sensor.channel}
        record = file.find(board=board, serial=serial, **place)
        if record is None or sensor.calibration != Calibration():
            with_calibration.append(sensor)
            continue
        kind = chip_type(sensor.chip).name
        if abs(sensor.shunt_ohm / record.shunt_ohm - 1) > 1e-9 or kind != record.chip:
            raise ConfigError(
                f"{sensor.name}: its calibration was taken with an {record.chip} and shunt_ohm = {record.shunt_ohm:g}, "
                f"not {kind} and {sensor.shunt_ohm:g}: calibrate again, or correct the options"
            )
        with_calibration.append(replace(sensor, calibration=record.option))
        used[sensor.name] = to_document(record)
    return tuple(with_calibration), used


def calibrated_by(
    path: str | Path, sensors: Sequence[Sensor], *, bus: int | str
) -> tuple[tuple[Sensor, ...], dict[str, object]]:
    """`calibrated` by the file at ``path``, which is a source's option ``calibration``: an empty one is no file."""
    return calibrated(sensors, load_calibration(Path(path)) if str(path) else CalibrationFile(), bus=bus)


def load_calibration(path: Path) -> CalibrationFile:
    """What is in a calibration file. Raises `ConfigError`."""
    file = build_options(CalibrationFile, read_document(path), str(path))
    if len({sensor.key for sensor in file.sensor}) < len(file.sensor):
        raise ConfigError(f"{path}: two [[sensor]] tables are of one sensor: remove one")
    return file


_HEAD = """\
# Calibrations of single sensors, written by `powerd calibrate`; load it with: calibration = "{name}"
# zero: read without load. load: read at a known current ("A") or power ("W"). Means are by the nominal conversion.
"""


def save_calibration(path: Path, calibration: CalibrationFile) -> None:
    """Write the file, whole or not at all. Raises `ConfigError` where it cannot be written."""
    tables = [_HEAD.format(name=path.name)]
    for sensor in calibration.sensor:
        tables.append(toml_table("[[sensor]]", sensor))
        tables += [toml_table(f"[sensor.{name}]", p) for name, p in (("zero", sensor.zero), ("load", sensor.load)) if p]
    write_text(path, "\n".join(tables))
