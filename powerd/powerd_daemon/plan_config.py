"""The buses that a configuration asks for, without building its sources: these would refuse what a plan explains."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from powerd_core.errors import ConfigError
from powerd_core.serde import build_options, parse_toml
from powerd_daemon.calibration import bus_number
from powerd_daemon.calibration_file import calibrated_by
from powerd_daemon.config import SamplerConfig
from powerd_daemon.ina.sensor import make_bank
from powerd_daemon.places import line_of
from powerd_daemon.plan import Bus, BusPlan, plan_bus
from powerd_daemon.registry import find_source
from powerd_daemon.sources.base import Source
from powerd_daemon.sources.ina import InaSource
from powerd_daemon.sources.rails import RailsSource, check_pace
from powerd_daemon.sources.sim import SimOptions, SimSource
from powerd_daemon.textfile import read_text

_BUILT_IN: dict[str, type[Source]] = {"ina": InaSource, "sim": SimSource}


def plan_file(path: Path) -> list[BusPlan]:
    """The plan of every bus in a configuration file. Raises `ConfigError`."""
    return plan_text(read_text(path, "there is no such configuration file"), str(path))


def plan_text(text: str, path: str) -> list[BusPlan]:
    """The same for a text; ``path`` names it in errors."""
    try:
        document = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error
    tables = document.get("source", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise ConfigError(f"{path}: 'source' is a list of tables: write [[source]]")
    try:
        buses = [bus for i, table in enumerate(tables, 1) if (bus := read_bus(table, f"{path}: [[source]] {i}"))]
    except ConfigError as error:
        raise ConfigError(placed(text, str(error), path)) from error
    return [plan_bus(bus) for bus in buses]


def placed(text: str, message: str, path: str) -> str:
    """The message with the line of the file that it is about, where it names one."""
    line = line_of(text, message.removeprefix(path))
    return f"{message} (line {line})" if line else message


def refuse(path: Path) -> None:
    """Raise `ConfigError` for a configuration that asks for more than a bus or its chips can do.

    What is wrong with it otherwise is left to `load_config`, which tells it better.
    """
    try:
        text = read_text(path, "")
    except ConfigError:
        return
    refuse_text(text, str(path))


def refuse_text(text: str, path: str) -> None:
    """The same for a text; ``path`` names it in errors."""
    try:
        plans = plan_text(text, path)
    except ConfigError:
        return
    for plan in plans:
        for problem in plan.problems:
            said = placed(text, f"{plan.bus.where}: {problem}", path)
            raise ConfigError(f"{said}; the arithmetic: powerd plan {path}")


def read_bus(table: Mapping[str, Any], where: str) -> Bus | None:
    """The bus of a ``[[source]]``, or None for a kind that has none. Raises `ConfigError`."""
    kind = table.get("kind")
    if not isinstance(kind, str):
        return None
    cls = _BUILT_IN.get(kind) or find_source(kind)
    if not issubclass(cls, RailsSource):
        return None
    if not where.endswith(f"({kind})"):
        where = f"{where} ({kind})"
    common = {"kind", "name", *(f.name for f in fields(SamplerConfig))}
    given = {name: value for name, value in table.items() if name not in common}
    options = build_options(cls.Options, given, where)
    name = str(table.get("name", kind))
    try:
        check_pace(options)
        return _sim(options, name, where) if isinstance(options, SimOptions) else _ina(options, name, where)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _ina(options: Any, name: str, where: str) -> Bus:
    sensors, _ = calibrated_by(getattr(options, "calibration", ""), options.sensors, bus=options.bus)
    return Bus(
        source=name,
        where=where,
        number=bus_number(options.bus),
        scl_hz=options.scl_hz,
        rate_hz=options.rate_hz,
        device=options.device,
        bank=make_bank(sensors),
        bus_every=options.bus_every,
        bus_hold=options.bus_hold,
    )


def _sim(options: SimOptions, name: str, where: str) -> Bus:
    return Bus(
        source=name,
        where=where,
        number=None,
        scl_hz=options.scl_hz,
        rate_hz=options.rate_hz,
        device=options.device,
        bank=make_bank(options.all_sensors()),
        bus_every=options.bus_every,
        bus_hold=options.bus_hold,
        combined=options.adapter == "combined",
        loads_w={f"{options.device}.{line}": share * options.peak_w for line, share in options.shares().items()},
    )
