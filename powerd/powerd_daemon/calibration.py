"""Which calibration a sensor of a configuration gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from socket import gethostname

from powerd_core.calibration import Calibration, CalibrationFile
from powerd_core.errors import ConfigError
from powerd_core.serde import to_document
from powerd_daemon.ina.chips import chip_type
from powerd_daemon.ina.sensor import Sensor


def bus_number(bus: int | str) -> int | None:
    """N of ``N`` or ``/dev/i2c-N``; None for a path of another form."""
    if isinstance(bus, int):
        return bus
    digits = bus.rpartition("-")[2]
    return int(digits) if digits.isdigit() else None


def calibrated(
    sensors: Sequence[Sensor], file: CalibrationFile, *, bus: int | str, board: str = "", serial: str = ""
) -> tuple[tuple[Sensor, ...], dict[str, object]]:
    """The sensors with what the file knows of them, and the records used by sensor name, for a stream's ``detail``.

    What a sensor's own table ``calibration`` says counts before the file. Raises `ConfigError` for a record that was
    taken with another shunt or type of chip.
    """
    found: list[Sensor] = []
    used: dict[str, object] = {}
    number = bus_number(bus)
    for sensor in sensors:
        record = file.find(
            board=board or gethostname(),
            bus=-1 if number is None else number,
            address=sensor.address,
            channel=sensor.channel,
            serial=serial,
        )
        if record is None or sensor.calibration != Calibration():
            found.append(sensor)
            continue
        kind = chip_type(sensor.chip).name
        if abs(sensor.shunt_ohm / record.shunt_ohm - 1) > 1e-9 or kind != record.chip:
            raise ConfigError(
                f"{sensor.name}: its calibration was taken with an {record.chip} and shunt_ohm = {record.shunt_ohm:g}, "
                f"not {kind} and {sensor.shunt_ohm:g}: calibrate again, or correct the options"
            )
        found.append(replace(sensor, calibration=record.option))
        used[sensor.name] = to_document(record)
    return tuple(found), used
