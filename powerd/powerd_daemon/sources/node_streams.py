"""What a node measures: a stream of its sensors, one of its marker input, and one of how well its clock is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

from powerd_core.calibration import CalibrationFile
from powerd_core.model import Accuracy, Column, Line, Provenance, QuantityConversion, Stream
from powerd_daemon.calibration import calibrated
from powerd_daemon.ina.chips import CONFIG
from powerd_daemon.ina.sensor import Bank, Sensor, line
from powerd_daemon.serial.protocol import NodeDescription, WantedSensor
from powerd_daemon.sources.base import Start
from powerd_daemon.sources.node_options import NodeOptions

ECHO_NS = 250_000_000
MAX_BOUND_NS = (1 << 32) - 1
"""What the column of the bound can hold."""
STATUS_NS = 500_000_000
"""How often the node sends its status."""
SLOT_NS = 100_000
"""Readings of one scan are taken to be evenly spaced: they are, to this."""


def wanted_sensors(options: NodeOptions, bank: Bank) -> list[WantedSensor]:
    """What the node is told to read."""
    pairs = zip(options.sensors, bank.settings, strict=True)
    return [WantedSensor(s.controller, s.address, dict(settings.words)[CONFIG]) for s, settings in pairs]


def describe_node(
    options: NodeOptions,
    bank: Bank,
    calibrations: CalibrationFile,
    found: NodeDescription,
    start: Start,
    *,
    period_us: int,
    half_ns: int,
) -> tuple[Stream, ...]:
    """The streams: the sensors' first, the clock's last. ``half_ns`` is how well the node's clock is known by now."""
    o = options
    limit_ns = round(o.clock_limit_us * 1000)
    node: dict[str, object] = {
        "port": o.port,
        "firmware": found.software,
        "uid": found.uid,
        "boot": found.boot,
        "reset_cause": found.reset_cause,
        "clock_half_ns": half_ns,
        "clock_limit_ns": limit_ns,
    }
    lines, sensors, records = _sensor_lines(o, bank, calibrations, found.uid, period_us * 1000, limit_ns)
    first, name = start.first_stream, start.name
    detail = node | {
        "configs": [f"{w.config:#06x}" for w in wanted_sensors(o, bank)],
        "silent_at_start": [made.name for i, made in enumerate(lines) if not found.answering >> i & 1],
        "calibration": records,
        "sensors": [asdict(s) for s in sensors],
    }
    columns = (Column("shunt", "h"), Column("bus", "H"))
    streams = [Stream(first, name, columns, tuple(lines), period_us * 1000, detail)]
    if o.marker:
        marker = _marker_line(o, found.marker_pin, limit_ns)
        bits = {"bits": {marker.name: {"high": 1}}}
        columns = (Column("level", "B"), Column("edge", "H"))
        streams.append(Stream(first + 1, name, columns, (marker,), STATUS_NS, node | bits))
    clock = (Column("bound_ns", "I"),)
    streams.append(Stream(first + len(streams), name, clock, (_clock_line(o.device),), ECHO_NS, node))
    return tuple(streams)


def _sensor_lines(
    options: NodeOptions, bank: Bank, calibrations: CalibrationFile, uid: str, period_ns: int, limit_ns: int
) -> tuple[Sequence[Line], Sequence[Sensor], dict[str, object]]:
    """The sensors' lines, the sensors with their calibrations, and the records that were used."""
    lines: list[Line] = []
    sensors: list[Sensor] = []
    records: dict[str, object] = {}
    for sensor, settings in zip(options.sensors, bank.settings, strict=True):
        known, used = calibrated([sensor], calibrations, bus=sensor.controller, serial=uid)
        sensors += known
        records |= used
        made = line(known[0], settings, device=options.device, provenance=Provenance.MEASURED, period_ns=period_ns)
        # What an origin says last is how the line was calibrated: a later calibration replaces it.
        limits, _, calibration = made.accuracy.origin.rpartition("; ")
        accuracy = replace(
            made.accuracy,
            centre_ns=made.accuracy.centre_ns + limit_ns + SLOT_NS,
            origin=f"{limits}; node clock +-{options.clock_limit_us:g} us guaranteed; {calibration}",
        )
        note = f"{made.description[:-1]}, controller {sensor.controller} of the node)"
        lines.append(replace(made, accuracy=accuracy, description=note))
    return lines, sensors, records


def _marker_line(options: NodeOptions, pin: int, limit_ns: int) -> Line:
    origin = f"edges timed by an interrupt of the node, its clock +-{options.clock_limit_us:g} us guaranteed"
    return Line(
        f"{options.device}.{options.marker}",
        options.device,
        QuantityConversion("level", "marker_bits"),
        Provenance.MEASURED,
        Accuracy(centre_ns=limit_ns, origin=origin),
        f"level of GP{pin} of the node, at each edge and twice a second",
    )


def _clock_line(device: str) -> Line:
    return Line(
        f"{device}.clock_bound",
        device,
        QuantityConversion("bound_ns", "clock_bound_s", 1e-9),
        Provenance.MEASURED,
        Accuracy(origin="guaranteed while the clocks drift apart by less than 100 ppm"),
        "half-width of what is guaranteed of the node's clock against the board's, after each echo",
    )
