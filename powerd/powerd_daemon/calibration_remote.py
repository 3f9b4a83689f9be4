"""Calibration of a powerd that runs: readings from its stream here, the calibration file there."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Literal, cast

import zmq

from powerd_core.calibration import CalibrationFile, SensorCalibration
from powerd_core.errors import ConfigError, PeerError, PeerTimeout, SensorError, WireError
from powerd_core.model import Block, Description, Gap, Line, ShuntConversion, Stream
from powerd_core.serde import build_options, read_description, to_document
from powerd_core.wire import CURRENT, Message, Want, decode, encode
from powerd_daemon import printing
from powerd_daemon.asking import Board
from powerd_daemon.calibration import bus_number
from powerd_daemon.calibration_file import load_calibration, save_calibration
from powerd_daemon.calibration_readings import Collector, Readings
from powerd_daemon.calibration_take import Means, Reference, judge, make_record
from powerd_daemon.clock import Clock
from powerd_daemon.config import Config, SourceConfig, make_source
from powerd_daemon.registry import find_source
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.rails import RailsSource

WINDOW = 512
SILENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The body of *calibrate*: what lines read at one load."""

    lines: tuple[Means, ...]
    reference: float
    quantity: str
    u: float
    temperature_c: float


def calibrate_remote(arguments: argparse.Namespace, reference: Reference) -> int:
    """`powerd calibrate --url`. Raises `PowerdError`."""
    with Board(arguments.url, arguments.keys) as board:
        description = read_description(board.ask("describe").body)
        lines = {
            line.name: (stream, line)
            for stream in description.streams
            for line in stream.lines
            if isinstance(line.conversion, ShuntConversion)
        }
        if unknown := [name for name in arguments.line if name not in lines]:
            raise ConfigError(f"{arguments.url}: {unknown[0]!r} is no line on a shunt (see `powerd describe`)")
        wanted = arguments.line or list(lines)
        if not wanted:
            raise ConfigError(f"{arguments.url}: there is no line on a shunt: nothing to calibrate")
        # Asked before the readings are taken: who may not store them need not wait for them.
        board.ask("configure")
        read = _read(board, description, wanted, arguments.seconds)
        for name in wanted:
            judge(name, read[name], _step_a(*lines[name]))
        measured = Measured(
            tuple(Means.of(name, read[name]) for name in wanted),
            reference.value,
            reference.quantity,
            reference.u,
            arguments.temperature_c,
        )
        answer = board.ask("calibrate", to_document(measured))
        said, records = answer.body.get("records"), []
        for record in (r for r in said if isinstance(r, dict)) if isinstance(said, list) else ():
            given = {name: value for name, value in record.items() if value is not None}
            records.append(build_options(SensorCalibration, given, f"{arguments.url}: calibration"))
    print(
        printing.calibrations(Path(str(answer.body.get("file"))), records, at_zero=reference.value == 0, is_used=True)
    )
    return 0


def store(
    config: Config, asked: Measured, clock: Clock
) -> tuple[list[tuple[Path, SensorCalibration]], Callable[[], None]]:
    """On the board: put what was measured into the files that the sources name, all or nothing.

    Returns the records with their files, and what undoes it. Raises `ConfigError` and `SensorError`.
    """
    reference = Reference(asked.reference, cast(Literal["A", "W"], asked.quantity), asked.u)
    wanted = {m.line: m for m in asked.lines}
    files: dict[Path, CalibrationFile] = {}
    made: list[tuple[Path, SensorCalibration]] = []
    for source_config, source in rails(config, clock):
        device = source.options.device
        for sensor, settings in zip(source.bank.sensors, source.bank.settings, strict=True):
            means = wanted.pop(f"{sensor.device or device}.{sensor.name}", None)
            if means is None:
                continue
            path = _file(source_config)
            file = files[path] if path in files else load_calibration(path)
            number = bus_number(cast("int | str", source_config.options.get("bus", -1)))
            bus = -1 if number is None else number
            before = file.find(board=gethostname(), bus=bus, address=sensor.address, channel=sensor.channel)
            record = make_record(
                before,
                sensor,
                settings,
                means,
                reference,
                board=gethostname(),
                bus=bus,
                wall_ns=clock.wall_ns(),
                temperature_c=asked.temperature_c,
                period_ns=source.period_ns,
            )
            files[path] = file.with_sensor(record)
            made.append((path, record))
    if wanted or not made:
        raise ConfigError(f"no source of kind ina or sim here has a line {next(iter(wanted), '')!r}")
    former = {path: load_calibration(path) for path in files}

    def undo() -> None:
        for path, file in former.items():
            save_calibration(path, file)

    try:
        for path, file in files.items():
            save_calibration(path, file)
    except ConfigError:
        for path in files:
            save_calibration(path, former[path])
        raise
    return made, undo


def rails(config: Config, clock: Clock) -> list[tuple[SourceConfig, RailsSource]]:
    """The sources of a configuration that can be calibrated, not opened."""
    found = []
    for source_config in config.sources:
        cls = find_source(source_config.kind)
        if issubclass(cls, RailsSource):
            source = make_source(source_config, cls, Start(source_config.name, 1, 0, clock))
            assert isinstance(source, RailsSource)
            found.append((source_config, source))
    return found


def _file(source: SourceConfig) -> Path:
    path = source.options.get("calibration")
    if not isinstance(path, str) or not path:
        raise ConfigError(
            f"{source.where}: names no calibration file: make an empty one on the board and add calibration = ... there"
        )
    return Path(path)


def _read(board: Board, description: Description, lines: list[str], seconds: float) -> dict[str, Readings]:
    """Readings that the board takes from now on, for some seconds of its clock."""
    collector = Collector(description.streams, lines)
    begins: dict[int, int] = {}
    data = board.socket(description.data_endpoint)
    open_streams = set(collector.numbers)
    try:
        for number in open_streams:
            _send(data, Want(number, description.epoch, CURRENT, WINDOW, reset=True))
        heard_s = time.monotonic()
        while open_streams:
            if not data.poll(200):
                if time.monotonic() - heard_s > SILENCE_S:
                    raise PeerTimeout(f"{board.url}: no readings came for {SILENCE_S:g} s")
                continue
            event = decode(data.recv())
            heard_s = time.monotonic()
            if isinstance(event, Message):
                raise PeerError(f"the powerd at {board.url} says: {event.body.get('message')}")
            if isinstance(event, Gap):
                raise SensorError(f"readings are missing ({event.cause}): try again")
            if not isinstance(event, Block) or event.stream not in open_streams:
                continue
            if event.epoch != description.epoch:
                raise PeerError(f"the powerd at {board.url} was started anew meanwhile: try again")
            # The first block was taken before this was asked for, perhaps at another load.
            begin_ns = begins.setdefault(event.stream, event.t_last_ns)
            if event.t_first_ns > begin_ns:
                collector.add(event)
            if event.t_last_ns - begin_ns >= seconds * 1e9:
                open_streams.discard(event.stream)
            else:
                _send(data, Want(event.stream, description.epoch, event.sequence + 1, WINDOW, reset=False))
    except WireError as error:
        raise type(error)(f"{board.url}: {error}") from error
    finally:
        data.close()
    return collector.found


def _send(data: zmq.Socket[bytes], want: Want) -> None:
    try:
        data.send(encode(want), zmq.NOBLOCK)
    except zmq.Again:
        return  # it is slower than its readings; the next one says the same


def _step_a(stream: Stream, line: Line) -> float:
    """The quantisation step of a line's current: the stream's detail knows the voltage at which its step holds."""
    sensors = stream.detail.get("sensors")
    at = stream.lines.index(line)
    if isinstance(sensors, list) and at < len(sensors) and isinstance(sensors[at], dict):
        nominal_v = sensors[at].get("nominal_v")
        if isinstance(nominal_v, int | float) and nominal_v > 0:
            return line.accuracy.step_w / nominal_v
    raise ConfigError(f"{line.name}: its powerd does not say its nominal voltage")
