"""Figures under CodeCarbon's names, and its files of them."""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from powerd_client.energies.live_energy import Energy
from powerd_client.host.log import tell
from powerd_client.host.ownership import led_to, open_own, set_aside, whole_text

UNKNOWN = float("nan")
"""What CodeCarbon fills with a guess or 0; an empty cell of the CSV."""


@dataclass
class EmissionsData:
    """What a tracker has found, by CodeCarbon's names: kWh, kg, W, s, litres. What nobody knows is NaN."""

    timestamp: str
    project_name: str
    run_id: str
    experiment_id: str
    duration: float
    emissions: float
    emissions_rate: float
    cpu_power: float
    gpu_power: float
    ram_power: float
    cpu_energy: float
    gpu_energy: float
    ram_energy: float
    energy_consumed: float
    water_consumed: float
    country_name: str
    country_iso_code: str
    region: str
    cloud_provider: str
    cloud_region: str
    os: str
    python_version: str
    codecarbon_version: str
    cpu_count: float
    cpu_model: str
    gpu_count: float
    gpu_model: str
    longitude: float
    latitude: float
    ram_total_size: float
    tracking_mode: str
    cpu_utilization_percent: float = UNKNOWN
    gpu_utilization_percent: float = UNKNOWN
    ram_utilization_percent: float = UNKNOWN
    ram_used_gb: float = UNKNOWN
    on_cloud: str = "N"
    pue: float = 1.0
    wue: float = 0.0

    energies: tuple[Energy, ...] = field(default=(), repr=False, kw_only=True)
    """What it is made of: joules of each device with U95 and provenance, before ``pue``. CodeCarbon has none."""

    @property
    def values(self) -> dict[str, Any]:
        """Its figures by CodeCarbon's columns, in their order."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "energies"}


@dataclass
class TaskEmissionsData:
    """A row of the file of tasks."""

    task_name: str
    emissions_data: EmissionsData

    @property
    def values(self) -> dict[str, Any]:
        whole = self.emissions_data.values
        return {"task_name": self.task_name} | {
            name: value for name, value in whole.items() if name not in ("experiment_id", "pue", "wue")
        }

    def __getattr__(self, name: str) -> Any:
        if name == "emissions_data":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.emissions_data, name)


def write_row(path: Path, values: Mapping[str, Any], *, update: bool) -> None:
    """Append a row to a CSV file; with ``update`` it takes the place of those of its ``run_id``. A file with other
    columns is moved away, as CodeCarbon does. Raises `OSError`."""
    rows = _read(path)
    if rows and sorted(rows[0]) != sorted(values):
        place = next(p for p in _backups(path) if not os.path.lexists(p))
        tell(f"{path} has other columns: it is {place.name} now, and a new one begins")
        set_aside(led_to(path), place)
        rows = []
    columns = rows[0] if rows else list(values)
    row = [_cell(values[name]) for name in columns]
    if update and rows:
        run_at = columns.index("run_id")
        kept = [r for r in rows[1:] if r[run_at] != row[run_at]]
        whole_text(path, _text([columns, *kept, row]))
        return
    descriptor = open_own(led_to(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "a", encoding="utf-8", newline="") as file:
        file.write(_text([row] if rows else [columns, row]))  # at once: others may append to it


def task_text(tasks: Sequence[TaskEmissionsData]) -> str:
    """The file of tasks: without columns in which nothing is known, as CodeCarbon writes it."""
    rows = [{name: _cell(value) for name, value in task.values.items()} for task in tasks]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    return _text([columns, *([row[name] for name in columns] for row in rows)])


def _read(path: Path) -> list[list[str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.reader(file))
    except FileNotFoundError:
        return []


def _backups(path: Path) -> itertools.chain[Path]:
    numbered = (path.with_name(f"{path.name}_{i}.bak") for i in itertools.count())
    return itertools.chain([path.with_name(f"{path.name}.bak")], numbered)


def _cell(value: Any) -> str:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)


def _text(rows: Sequence[Sequence[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
