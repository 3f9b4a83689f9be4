"""What a source says of the sensor behind a line: the chip and its shunt, where there are such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from powerd_analytics.runs.run import RunLine


def sensor_of(line: RunLine) -> Mapping[str, Any]:
    """The entry of a line in its source's list of sensors; empty where there is none."""
    sensors = line.detail.get("sensors")
    for sensor in sensors if isinstance(sensors, (list, tuple)) else ():
        if isinstance(sensor, Mapping) and line.name.endswith(f".{sensor.get('name')}"):
            return sensor
    return {}
