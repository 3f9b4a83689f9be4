"""A calibration file of any contents: calibrations whose figures can be used, or one line that says what is wrong."""

from __future__ import annotations

import os
import tempfile
from math import isfinite
from pathlib import Path

from fuzzing.picker import Picker, expect
from powerd_core.errors import ConfigError
from powerd_daemon.sources.ina.sensor_accuracy import load_calibration

_VALUES = ("inf", "-inf", "nan", "0", "0.0", "-1", "1e308", "1e-320", "9" * 400, "true", '""', '"W"', '"A"', "[]", "{}",
           '"INA219"', "0x40", "2", "0.05", "1979-05-27", "[" * 600, '"x"')  # fmt: skip
_SENSOR = {"line": '"gpu0.a"', "chip": '"INA219"', "shunt_ohm": "0.05", "step_a": "2e-4", "u_bus": "0.003",
           "u_bus_step": "0.001", "board": '"b"', "bus": "1", "address": "0x40", "channel": "1",
           "serial": '""'}  # fmt: skip
_POINT = {"taken": '"2025-03-14T09:26:53Z"', "temperature_c": "21.5", "reference": "0.0", "quantity": '"A"',
          "u_reference": "0.001", "count": "100", "mean_a": "0.01", "spread_a": "0.001", "bus_v": "12.0"}  # fmt: skip
_PATH = Path(tempfile.gettempdir()) / f"fuzz-calibration-{os.getpid()}.toml"


def one(data: bytes) -> None:
    picker = Picker(data)
    _PATH.write_bytes(_file(picker) if picker.flip() else picker.rest())
    try:
        found = load_calibration(_PATH)
    except ConfigError as error:
        expect(str(error).startswith(str(_PATH)), error)
        return
    finally:
        _PATH.unlink()
    for sensor in found.sensor:
        figures = (sensor.offset_a, sensor.gain, sensor.u_offset_a, sensor.u_gain)
        assert all(isfinite(f) for f in figures if f is not None), "a calibration that makes every joule not a number"
        assert sensor.option is not None


def _file(picker: Picker) -> bytes:
    said = []
    for _ in range(1 + picker.below(2)):
        said += ["[[sensor]]", *_table(picker, _SENSOR)]
        for name, reference in (("zero", "0.0"), ("load", "5.0")):
            if picker.flip():
                said += [f"[sensor.{name}]", *_table(picker, {**_POINT, "reference": reference})]
    return "\n".join(said).encode()


def _table(picker: Picker, good: dict[str, str]) -> list[str]:
    rows = dict(good)
    for _ in range(picker.below(3)):
        name = picker.one_of(sorted(good))
        if picker.rarely():
            rows.pop(name, None)
        else:
            rows[name] = picker.one_of(_VALUES)
    return [f"{name} = {value}" for name, value in rows.items()]
