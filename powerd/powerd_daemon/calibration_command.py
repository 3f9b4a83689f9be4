"""`powerd calibrate`: reads the lines of a configuration at a known load and keeps what follows in a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from socket import gethostname

from powerd_core.calibration import CalibrationFile, SensorCalibration
from powerd_core.errors import ConfigError
from powerd_daemon import printing
from powerd_daemon.calibration import bus_number
from powerd_daemon.calibration_file import load_calibration, save_calibration
from powerd_daemon.calibration_readings import Readings, read_lines
from powerd_daemon.calibration_remote import calibrate_remote
from powerd_daemon.calibration_take import Reference, calibrate
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.config import Config, SourceConfig, load_config, make_source
from powerd_daemon.ina.sensor import Sensor
from powerd_daemon.ina.settings import Settings
from powerd_daemon.registry import find_source
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.node import NodeSource
from powerd_daemon.sources.node_options import NodeSensor
from powerd_daemon.sources.rails import RailsSource


def calibrate_lines(arguments: argparse.Namespace, clock: Clock | None = None) -> int:
    """All or nothing: a line whose readings will not do leaves the file as it was. Raises `PowerdError`."""
    clock = clock or SystemClock()
    reference = Reference(0.0)
    if arguments.reference_a is not None:
        reference = Reference(arguments.reference_a, "A", arguments.reference_u)
    elif arguments.reference_w is not None:
        reference = Reference(arguments.reference_w, "W", arguments.reference_u)
    if arguments.url is not None:
        return calibrate_remote(arguments, reference)
    config = load_config(arguments.file)
    file = load_calibration(arguments.out) if arguments.out.exists() else CalibrationFile()
    made: list[tuple[SensorCalibration, Readings]] = []
    wanted = list(arguments.line)
    for source_config, source in _boards(config, clock):
        sensors = _sensors(source)
        mine = [line for line in sensors if line in wanted or not wanted]
        if not mine:
            continue
        read = read_lines(source, clock, arguments.seconds, mine)
        for line in mine:
            sensor, settings = sensors[line]
            board, bus, serial = _place(source_config, source, sensor)
            record = calibrate(
                file.find(board=board, bus=bus, address=sensor.address, channel=sensor.channel, serial=serial),
                sensor,
                settings,
                read[line],
                reference,
                line=line,
                board=board,
                bus=bus,
                serial=serial,
                wall_ns=clock.wall_ns(),
                temperature_c=arguments.temperature_c,
                period_ns=source.period_ns,
            )
            made.append((record, read[line]))
            file = file.with_sensor(record)
        wanted = [line for line in wanted if line not in mine]
    if wanted:
        raise ConfigError(f"{arguments.file}: no source of kind ina, node or sim has a line {wanted[0]!r}")
    if not made:
        raise ConfigError(f"{arguments.file}: there is no source of kind ina, node or sim: nothing to calibrate")
    save_calibration(arguments.out, file)
    print(printing.calibrations(Path(arguments.out), [record for record, _ in made], at_zero=reference.value == 0))
    return 0


def _boards(config: Config, clock: Clock) -> list[tuple[SourceConfig, RailsSource | NodeSource]]:
    found = []
    for source_config in config.sources:
        cls = find_source(source_config.kind)
        if issubclass(cls, RailsSource | NodeSource):
            source: Source = make_source(source_config, cls, Start(source_config.name, 1, 0, clock))
            assert isinstance(source, RailsSource | NodeSource)
            found.append((source_config, source))
    return found


def _place(source_config: SourceConfig, source: RailsSource | NodeSource, sensor: Sensor) -> tuple[str, int, str]:
    """Board, bus and serial number that a calibration file knows the sensor by. A node must have been opened."""
    if isinstance(sensor, NodeSensor):
        assert isinstance(source, NodeSource)
        return "", sensor.controller, source.serial
    number = bus_number(source_config.options.get("bus", -1))  # type: ignore[arg-type]  # checked by its Options
    return gethostname(), -1 if number is None else number, ""


def _sensors(source: RailsSource | NodeSource) -> dict[str, tuple[Sensor, Settings]]:
    """Sensors and settings by line."""
    device = source.options.device
    pairs = zip(source.bank.sensors, source.bank.settings, strict=True)
    return {f"{s.device or device}.{s.name}": (s, settings) for s, settings in pairs}
