"""`powerd calibrate`: reads the lines of a configuration at a known load and keeps what follows in a calibration file.

Readings are taken as currents by the nominal conversion (no offset, gain 1). They are judged first: nothing saturated,
enough of them, and steady. What follows for a sensor is a point at no load (its zero) or at a reference (its gain).

`powerd calibrate gpu0` is done by the analytics, which are no part of this package: they add their options to these.
"""

from __future__ import annotations

import argparse
import re
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import hypot, isfinite, nan, sqrt
from pathlib import Path
from socket import gethostname
from statistics import fmean, stdev
from time import gmtime, strftime

from powerd_core.calibration import Calibration, CalibrationFile, Point, SensorCalibration
from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import BAD, Block, Flag, ShuntConversion, Stream, columns
from powerd_core.text import printable
from powerd_daemon.clock import Clock, SystemClock
from powerd_daemon.commands import entry_point
from powerd_daemon.config import load_config, make_source
from powerd_daemon.sources.base import Source, Start, find_source
from powerd_daemon.sources.ina.chips import ChipSettings
from powerd_daemon.sources.ina.sensor_accuracy import Sensor, accuracy, bus_number, load_calibration, save_calibration
from powerd_daemon.sources.ina.source import RailsSource
from powerd_daemon.sources.node.source import NodeSensor, NodeSource
from powerd_daemon.sources.sim.source import SimSource

PARTS = 10
MIN_COUNT = 200
MAX_BAD = 0.1
WANDER_STEPS = 2.0
WANDER_SHARE = 0.002
"""The means of ten equal parts of the readings may differ by two quantisation steps or 0.2 % of the mean."""
IMPLAUSIBLE = 3.0
"""An offset or a gain that is off by more than so many data-sheet limits is a mistake of the set-up."""


@dataclass(slots=True)
class Readings:
    """What one line gave: currents by the nominal conversion, in order, and how many readings were no values."""

    current_a: list[float] = field(default_factory=list)
    bus_v: list[float] = field(default_factory=list)
    saturated: int = 0
    bad: int = 0


def read_lines(source: Source, clock: Clock, seconds: float, lines: Sequence[str]) -> dict[str, Readings]:
    """Poll a source for some seconds. Raises `ConfigError` for a line that it does not have or that has no shunt."""
    readings = {line: Readings() for line in lines}
    try:
        streams = {stream.number: stream for stream in source.open()[0]}
        due_ns = clock.now_ns()
        polls = max(1, round(seconds * 1e9 / source.period_ns))
        for k in range(polls):
            clock.sleep_until(due_ns)
            due_ns += source.period_ns
            source.poll()
            is_last = k == polls - 1
            if k % 50 == 49 or is_last:
                for block in source.finish() if is_last else source.take():
                    if isinstance(block, Block):
                        _collect(readings, block, streams[block.stream])
    finally:
        source.close()
    return readings


def _collect(readings: dict[str, Readings], block: Block, stream: Stream) -> None:
    views, typecodes = columns(block, stream), {column.name: column.typecode for column in stream.columns}
    for at, line in enumerate(stream.lines):
        c = line.conversion
        if line.name not in readings or not isinstance(c, ShuntConversion):
            continue
        flags, shunt, bus = (
            array(typecodes.get(name, "H"), bytes(views[name]))[at :: len(stream.lines)]
            for name in ("flags", c.shunt, c.bus)
        )
        good = [i for i, flag in enumerate(flags) if not flag & BAD]
        saturated = sum(bool(flag & Flag.SATURATED) for flag in flags)
        # A reading that repeats a conversion is no fault of the sensor; it is only no further value.
        stale = sum(flag & BAD == Flag.STALE for flag in flags)
        one = readings[line.name]
        one.current_a += (shunt[i] * c.shunt_lsb_v / c.shunt_ohm for i in good)
        one.bus_v += ((bus[i] >> c.bus_shift) * c.bus_lsb_v for i in good)
        one.saturated += saturated
        one.bad += len(flags) - len(good) - saturated - stale


def judge(line: str, readings: Readings, step_a: float) -> None:
    """Refuse what a calibration must not rest on. Raises `SensorError`."""
    count = len(readings.current_a)
    everything = count + readings.bad + readings.saturated
    if readings.saturated:
        raise SensorError(f"{line}: {readings.saturated} of {everything} readings are saturated: lower the current")
    if readings.bad > MAX_BAD * everything:
        raise SensorError(f"{line}: {readings.bad} of {everything} readings failed: run `powerd check` first")
    if count < MIN_COUNT:
        raise SensorError(f"{line}: {count} readings are too few, {MIN_COUNT} are needed: give more --seconds")
    part = count // PARTS
    means = [fmean(readings.current_a[i * part : (i + 1) * part]) for i in range(PARTS)]
    wander_a = max(means) - min(means)
    # Means of parts differ by their scatter alone, about three standard deviations between the ends of ten.
    scatter_a = 5 * stdev(readings.current_a) / sqrt(part)
    limit_a = max(WANDER_STEPS * step_a, WANDER_SHARE * abs(fmean(means)))
    if wander_a > max(limit_a, min(scatter_a, 3 * limit_a)):
        raise SensorError(
            f"{line}: the readings wander by {wander_a * 1000:.3g} mA within {count} of them, more than "
            f"{limit_a * 1000:.3g} mA: wait until the load and the temperature are steady"
        )


def _nominal_record(
    line: str, source: RailsSource | NodeSource, sensor: Sensor, settings: ChipSettings
) -> SensorCalibration:
    """What a calibration of the sensor rests on, without points. A node must have been opened."""
    if isinstance(sensor, NodeSensor):
        assert isinstance(source, NodeSource)
        board, bus, serial = "", sensor.controller, source.serial
    else:
        number = bus_number(getattr(source.options, "bus", -1))
        board, bus, serial = gethostname(), -1 if number is None else number, ""
    uncalibrated = accuracy(replace(sensor, calibration=Calibration()), settings, period_ns=source.period_ns)
    kind, limits = settings.type, settings.grade(sensor.grade)
    bus_rounding = kind.bus_lsb_v * 2 ** kind.adc[settings.bus_adc].bits_lost / 2 / sensor.nominal_v
    return SensorCalibration(
        line=line,
        chip=kind.name,
        shunt_ohm=sensor.shunt_ohm,
        step_a=uncalibrated.step_w / sensor.nominal_v,
        u_bus=hypot(limits.bus_gain, bus_rounding, limits.bus_offset_v / sensor.nominal_v) / sqrt(3),
        u_bus_step=bus_rounding / sqrt(3),
        board=board,
        bus=bus,
        address=sensor.address,
        channel=sensor.channel,
        serial=serial,
    )


def _with_point(record: SensorCalibration, sensor: Sensor, settings: ChipSettings, point: Point) -> SensorCalibration:
    """The record with a new zero or a new loaded point. Raises `SensorError` for one that is implausible."""
    limits = settings.grade(sensor.grade)
    if point.reference == 0:
        limit_a = IMPLAUSIBLE * limits.offset_v[settings.shunt_range] / sensor.shunt_ohm
        if abs(point.mean_a) > limit_a:
            raise SensorError(
                f"{record.line}: {point.mean_a * 1000:.4g} mA without load is more than any zero error "
                f"({limit_a * 1000:.3g} mA is three times the data sheet's limit): disconnect the load"
            )
        return replace(record, zero=point, zero_before=record.zero)
    try:
        loaded = replace(record, load=point)
    except ValueError as error:
        raise SensorError(f"{record.line}: {error}: is the load on, and from IN+ to IN-?") from error
    limit = IMPLAUSIBLE * hypot(limits.current_gain, sensor.shunt_tolerance, limits.bus_gain)
    if abs(loaded.gain - 1) > limit:
        raise SensorError(
            f"{record.line}: a gain of {loaded.gain:.4f} is further from 1 than three times all limits ({limit:.1%}): "
            "check the reference, shunt_ohm, and that the load is on this line"
        )
    return loaded


def _read_reference(arguments: argparse.Namespace) -> None:
    """What --reference says of a line: 0, 5.0021A, 250W. Raises `ConfigError`."""
    if arguments.temperature_c is None or arguments.out is None:
        raise ConfigError("a configuration's lines are calibrated with --temperature-c and --out")
    if arguments.reference is None:
        return
    match = re.fullmatch(r"([0-9.eE+-]+) ?([AW]?)", arguments.reference)
    try:
        number = float(match[1]) if match else nan
    except ValueError:
        number = nan
    if not isfinite(number) or (number and match and not match[2]):
        raise ConfigError(f"--reference {arguments.reference!r}: 0 for no load, or as in 5.0021A, 250W")
    assert match is not None
    arguments.zero = number == 0
    arguments.reference_a, arguments.reference_w = (number or None if match[2] == unit else None for unit in "AW")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `powerd calibrate`."""
    parser.description = (
        "Reads the lines of a configuration at a known load and stores what follows in a calibration file. Of a GPU, "
        "holds what its driver says against the card's rails, a wall meter or a stated power."
    )
    parser.epilog = "powerd calibrate gpu0 --reference rails --run run.h5"
    target = "the configuration that names the lines, or a GPU such as gpu0"
    parser.add_argument("file", type=Path, metavar="FILE|GPU", help=target)
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--zero", action="store_true", help="no load: nothing flows through the shunts")
    reference = "of a GPU: rails, wall, or watts; of a line: 0, or as in 5.0021A, 250W"
    load.add_argument("--reference", metavar="WHAT", help=reference)
    load.add_argument("--reference-a", type="number", metavar="A", help="the true current of one line, in amperes")
    load.add_argument("--reference-w", type="number", metavar="W", help="the true power of one line, in watts")
    relative = "relative standard uncertainty of the reference (0.001 is 0.1 %%)"
    parser.add_argument("--reference-u", type="number", metavar="U", help=relative)
    at_shunts = "temperature at the shunts, in degrees Celsius (not of a GPU)"
    parser.add_argument("--temperature-c", type="number", metavar="C", help=at_shunts)
    lines = "a line (default with --zero: all)"
    parser.add_argument("--line", action="append", default=[], metavar="NAME", help=lines)
    duration = "how many seconds to read (default 10)"
    parser.add_argument("--seconds", type="number", default=10.0, metavar="S", help=duration)
    written = "the calibration file to write (of a GPU by default gpus.toml beside the keys)"
    parser.add_argument("--out", type=Path, metavar="FILE", help=written)
    with suppress(ConfigError):
        entry_point("calibrate").add_arguments(parser)


def run(arguments: argparse.Namespace) -> int | None:
    """Calibrate lines, or a GPU. Raises `PowerdError`."""
    if re.fullmatch(r"gpu\d+", str(arguments.file)):
        status: int | None = entry_point("calibrate").run(arguments)
        return status
    calibrate_lines(arguments)
    return None


def calibrate_lines(arguments: argparse.Namespace, clock: Clock | None = None) -> None:
    """All or nothing: a line whose readings will not do leaves the file as it was. Raises `PowerdError`."""
    _read_reference(arguments)
    reference = arguments.reference_a or arguments.reference_w or 0.0
    if not arguments.zero and (reference <= 0 or arguments.reference_u is None or len(arguments.line) != 1):
        raise ConfigError("a reference is above 0, of one --line NAME, and has a --reference-u (0.001 is 0.1 %)")
    clock = clock or SystemClock()
    file = load_calibration(arguments.out) if arguments.out.exists() else CalibrationFile()
    records: list[SensorCalibration] = []
    for config in load_config(arguments.file).sources:
        cls = find_source(config.kind)
        if not issubclass(cls, RailsSource | NodeSource):
            continue
        source = make_source(config, cls, Start(config.name, 1, 0, clock))
        assert isinstance(source, RailsSource | NodeSource)
        sensors = {f"{s.device or source.options.device}.{s.name}": (s, settings) for s, settings in source.bank}
        lines = [line for line in sensors if line in arguments.line or not arguments.line]
        if isinstance(source, SimSource) and source.options.waveform != "constant" and lines:
            # A simulated card at work stops, and has the load that this calibration is told of.
            sensor = sensors[lines[0]][0]
            power_w = arguments.reference_w or reference * sensor.nominal_v
            source = SimSource(source.options.at_load(sensor.name, power_w), Start(config.name, 1, 0, clock))
        readings = read_lines(source, clock, arguments.seconds, lines) if lines else {}
        for line, read in readings.items():
            sensor, settings = sensors[line]
            record = _nominal_record(line, source, sensor, settings)
            judge(line, read, record.step_a)
            place = {"bus": record.bus, "address": sensor.address, "channel": sensor.channel}
            before = file.find(board=record.board, serial=record.serial, **place)
            if before is not None:
                record = replace(record, zero=before.zero, load=before.load, zero_before=before.zero_before)
            point = Point(
                taken=strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(clock.wall_ns() // 1_000_000_000)),
                temperature_c=arguments.temperature_c,
                reference=reference,
                quantity="A" if arguments.reference_w is None else "W",
                u_reference=0.0 if arguments.zero else arguments.reference_u,
                count=len(read.current_a),
                mean_a=fmean(read.current_a),
                spread_a=stdev(read.current_a),
                bus_v=fmean(read.bus_v),
            )
            records.append(_with_point(record, sensor, settings, point))
            file = file.with_sensor(records[-1])
    missing = set(arguments.line) - {record.line for record in records}
    if missing or not records:
        raise ConfigError(
            f"{arguments.file}: no source of kind ina, node or sim has a line {', '.join(sorted(missing))}"
        )
    save_calibration(arguments.out, file)
    print(f"{'line':<22}  offset mA    u mA      gain       u")
    for record in records:
        u_offset = "-" if record.u_offset_a is None else f"{record.u_offset_a * 1000:.3f}"
        u_gain = "-" if record.u_gain is None else f"{record.u_gain:.3%}"
        print(
            f"{printable(record.line):<22} {record.offset_a * 1000:10.3f} {u_offset:>7} {record.gain:9.6f} {u_gain:>7}"
        )
    for record in records if arguments.zero else ():
        if record.is_drifted and record.zero_before is not None and record.zero_moved_a is not None:
            print(
                f"{printable(record.line)}: the zero has moved by {record.zero_moved_a * 1000:+.3f} mA since "
                f"{record.zero_before.taken[:10]}, more than both uncertainties explain: calibrate more often"
            )
    print(f'written to {arguments.out}; load it in the [[source]] with: calibration = "{arguments.out.absolute()}"')
