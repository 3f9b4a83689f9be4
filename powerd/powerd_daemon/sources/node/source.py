"""Source ``node``: up to eight INA219 behind a Raspberry Pi Pico with our firmware, over USB serial.

A node measures three streams: one with a line for each sensor, one of its marker input, and one of how well its clock
is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from powerd_core.calibration import CalibrationFile
from powerd_core.errors import ConfigError, PowerdError, SensorError
from powerd_core.model import Accuracy, Block, Column, Device, Gap, Line, Provenance, QuantityConversion, Stream
from powerd_core.serde import option
from powerd_daemon.sources.base import Source, Start, devices_of
from powerd_daemon.sources.ina.accuracy import line
from powerd_daemon.sources.ina.calibration_file import calibrated, load_calibration
from powerd_daemon.sources.ina.chips import CONFIG
from powerd_daemon.sources.ina.sensor import Bank, Sensor, make_bank
from powerd_daemon.sources.node.link import NodeLink
from powerd_daemon.sources.node.protocol import (
    MAX_SENSORS,
    TICK_NS,
    Answer,
    Edge,
    Kind,
    NodeDescription,
    Scan,
    Status,
    WantedSensor,
    configure_payload,
)
from powerd_daemon.sources.node.readings import MarkerReadings, ScanReadings
from powerd_daemon.sources.port import OpenPort, SerialPort

READ_US = 120
"""A pointer write and a word read: 48 SCL periods at 400 kHz."""
POLL_NS = 5_000_000
ECHO_NS = 250_000_000
ECHO_WAIT_NS = 4_000_000
FIRST_ECHOES = 24
SILENCE_NS = 1_500_000_000
STATUS_NS = 500_000_000
"""How often the node sends its status."""
MAX_BOUND_NS = (1 << 32) - 1
"""What the column of the bound can hold."""
SLOT_NS = 100_000
"""Readings of one scan are taken to be evenly spaced: they are, to this."""


@dataclass(frozen=True, slots=True)
class NodeSensor(Sensor):
    """One table of ``sensors``."""

    controller: int = option(0, "I2C controller of the Pico: 0 (GP4, GP5) or 1 (GP6, GP7)")

    def __post_init__(self) -> None:
        # Written out: a class with slots is made anew, and super() would look for the old one.
        Sensor.__post_init__(self)
        if self.controller not in (0, 1):
            raise ConfigError(f"{self.name}: controller = {self.controller}: a Pico has 0 and 1")
        if self.chip.upper() != "INA219":
            raise ConfigError(f"{self.name}: the node's firmware reads INA219 only, not {self.chip}")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """A node reads eight sensors some 300 times a second; see firmware/README.md for the arithmetic."""

    port: str = field(metadata={"help": "serial port, best by its lasting name: /dev/serial/by-id/usb-..."})
    sensors: tuple[NodeSensor, ...] = field(metadata={"help": "the INA219 on the node: [[source.sensors]]"})
    rate_hz: float = option(250.0, "scans per second")
    baud: int = option(115_200, "means nothing on USB; else at least 10 bits a byte")
    device: str = option("gpu0", "device that the lines belong to and feed")
    marker: str = option("marker", "name of the marker input's line; empty = leave it out")
    clock_limit_us: float = option(
        1000.0, "readings whose time is not guaranteed to this are a gap; part of each line's accuracy"
    )
    calibration: str = option("", "calibration file that `powerd calibrate` wrote; changes metadata, never codes")

    def __post_init__(self) -> None:
        if not 1 <= len(self.sensors) <= MAX_SENSORS:
            raise ConfigError(f"there are {len(self.sensors)} sensors: write 1 to {MAX_SENSORS} [[source.sensors]]")
        if not 0.1 <= self.rate_hz <= 2000:
            raise ConfigError(f"rate_hz = {self.rate_hz:g} is not between 0.1 and 2000")
        if self.baud < 1 or self.clock_limit_us <= 0:
            raise ConfigError("baud and clock_limit_us must be positive")
        names = [f"{s.device or self.device}.{s.name}" for s in self.sensors] + [f"{self.device}.{self.marker}"]
        if len(set(names)) < len(names):
            raise ConfigError(f"two lines are called the same: give each its own name: {', '.join(names)}")
        reads = 2 * len(self.sensors) + 1
        limit_hz = int(1e6 / (reads * READ_US))
        if self.rate_hz > limit_hz:
            raise ConfigError(
                f"rate_hz = {self.rate_hz:g}: {reads} reads a scan allow at most {limit_hz} scans a second"
            )


class NodeSource(Source):
    """One stream with a line for each sensor, one with the line ``<device>.<marker>``, and one with the line
    ``<device>.clock_bound``: how well the node's clock is known.

    A node that falls silent, was reset or unplugged is a `SensorError`: it is then opened again, behind a gap.
    Tests give ``open_port`` a port of their own.
    """

    Options: ClassVar[type[NodeOptions]] = NodeOptions
    options: NodeOptions

    def __init__(self, options: NodeOptions, start: Start, open_port: OpenPort = SerialPort) -> None:
        super().__init__(options, start)
        self._open_port = open_port
        sensors = options.sensors
        # Each controller's addresses are checked by themselves.
        for controller in {s.controller for s in sensors}:
            make_bank([s for s in sensors if s.controller == controller])
        self.bank = Bank(sensors, tuple(s.settings_of((1,)) for s in sensors))
        words = [dict(settings.words)[CONFIG] for settings in self.bank.settings]
        self._wanted = [WantedSensor(s.controller, s.address, w) for s, w in zip(sensors, words, strict=True)]
        self._calibrations = load_calibration(Path(options.calibration)) if options.calibration else CalibrationFile()
        self._limit_ns = round(options.clock_limit_us * 1000)
        self._period_us = round(1e6 / options.rate_hz)
        self._link: NodeLink | None = None
        self._node: NodeDescription | None = None
        self._scans: ScanReadings | None = None
        self._marker: MarkerReadings | None = None
        self._damaged = 0
        """Damaged frames at the last scan."""
        self._echo_ns = self._heard_ns = self._bound_ns = 0
        self._counters: Mapping[str, int] = {}
        """What the node last said of itself."""

    @property
    def period_ns(self) -> int:
        return POLL_NS

    @property
    def serial(self) -> str:
        """The serial number of the node's processor; empty before it was opened."""
        return "" if self._node is None else self._node.uid

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o, clock = self.options, self.start.clock
        link = self._link = NodeLink(self._open_port(o.port, o.baud), clock, o.port)
        link.ask(Kind.STOP, Answer)
        link.ask(Kind.CONFIGURE, Answer, configure_payload(self._period_us, self._wanted))
        node = self._node = link.ask(Kind.DESCRIBE, NodeDescription)
        if not node.answering:
            raise SensorError(f"{o.port}: no INA219 answers the node: check the wiring and the supply of the sensors")
        for _ in range(FIRST_ECHOES):
            link.exchange(ECHO_WAIT_NS)
            if len(link.time) >= 8 and link.time.half_ns < self._limit_ns // 2:
                break
        if not len(link.time) or link.time.half_ns > self._limit_ns:
            raise SensorError(
                f"{o.port}: the node's clock is not known to clock_limit_us = {o.clock_limit_us:g}: plug it in without "
                "a hub, or raise the limit"
            )
        streams = self._describe(node, link.time.half_ns)
        self._scans = ScanReadings(self.builders[0], self.bank.settings, self._period_us)
        self._marker = MarkerReadings(self.builders[1]) if o.marker else None
        self._bound_ns = link.time.latest_ns
        link.ask(Kind.START, Answer)
        self._damaged = link.deframer.damaged
        self._heard_ns = clock.now_ns()
        self._echo_ns = self._heard_ns + ECHO_NS
        return streams, devices_of(streams[0], "measured by a node")

    def poll(self) -> None:
        link, clock = self._link, self.start.clock
        assert link is not None, "open comes first"
        if clock.now_ns() >= self._echo_ns:
            self._echo_ns = clock.now_ns() + ECHO_NS
            link.exchange(ECHO_WAIT_NS)
            # An echo may be lost, or late.
            if link.time.latest_ns > self._bound_ns:
                self._bound_ns = link.time.latest_ns
                t_ns, half_ns = link.time.board_ns(self._bound_ns)
                self.builders[-1].append(t_ns, (0,), (0,), ((min(half_ns, MAX_BOUND_NS),),))
        for arrival_ns, event in link.events():
            if isinstance(event, Scan | Edge | Status):
                self._handle(link, arrival_ns, event)
        silence_ns = clock.now_ns() - self._heard_ns
        if silence_ns > max(SILENCE_NS, 5 * self._period_us * 1000):
            raise SensorError(f"{self.options.port}: the node sent no readings for {silence_ns * 1e-9:.1f} s")

    def take(self) -> list[Block | Gap]:
        events = self._scans.take() if self._scans else []
        events += self._marker.take() if self._marker else []
        bounds = self.builders[-1].take() if self.builders else None
        return [*events, bounds] if bounds else events

    def health(self) -> dict[str, object]:
        link, scans, node = self._link, self._scans, self._node
        if link is None or scans is None or node is None:
            return {}
        return {
            "left_out": [s.name for i, s in enumerate(self.options.sensors) if not scans.valid >> i & 1],
            "lost_scans": scans.lost,
            "unfit_scans": scans.unfit,
            "lost_edges": self._marker.lost if self._marker else 0,
            "damaged_frames": link.deframer.damaged,
            "unusable_frames": link.unknown,
            "clock_half_us": link.time.half_ns / 1000,
            "node": {"firmware": node.software, "reset_cause": node.reset_cause, **self._counters},
        }

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            # When it is gone, nothing is left to be stopped.
            with suppress(PowerdError):
                link.send(Kind.STOP)
            link.port.close()

    def _handle(self, link: NodeLink, arrival_ns: int, event: Scan | Edge | Status) -> None:
        node_us = link.time.unwrapped_us(event.time_us)
        # A stamp is cut to whole microseconds: half of one, on average.
        t_ns, half_ns = link.time.board_ns(node_us * TICK_NS + TICK_NS // 2)
        is_known = half_ns + TICK_NS <= self._limit_ns
        if isinstance(event, Scan):
            are_damaged = link.deframer.damaged != self._damaged
            cause = "the node missed deadlines, or its buffer was full"
            cause = "frames were damaged on the serial line" if are_damaged else cause
            assert self._scans is not None
            if self._scans.add(event, node_us, t_ns if is_known else None, arrival_ns, cause):
                self._heard_ns, self._damaged = arrival_ns, link.deframer.damaged
            return
        if isinstance(event, Status):
            self._counters = event.counters
            if self._node is not None and event.boot != self._node.boot:
                raise SensorError(f"{self.options.port}: the node was reset; it is set up again")
            if not event.is_running and self.start.clock.now_ns() - self._heard_ns > STATUS_NS:
                raise SensorError(f"{self.options.port}: the node stopped measuring: does another program command it?")
        # Edges that are passed over here are missed by the next one that is not.
        if self._marker is not None and is_known:
            self._marker.add(event, min(t_ns, arrival_ns))

    def _describe(self, node: NodeDescription, half_ns: int) -> tuple[Stream, ...]:
        """The streams: the sensors' first, the clock's last. ``half_ns`` is how well the node's clock is known."""
        o = self.options
        common: dict[str, object] = {
            "port": o.port,
            "firmware": node.software,
            "uid": node.uid,
            "boot": node.boot,
            "reset_cause": node.reset_cause,
            "clock_half_ns": half_ns,
            "clock_limit_ns": self._limit_ns,
        }
        lines, sensors, records = self._sensor_lines(node.uid)
        detail = common | {
            "configs": [f"{w.config:#06x}" for w in self._wanted],
            "silent_at_start": [known.name for i, known in enumerate(lines) if not node.answering >> i & 1],
            "calibration": records,
            "sensors": [asdict(s) for s in sensors],
        }
        self.add_stream((Column("shunt", "h"), Column("bus", "H")), lines, self._period_us * 1000, detail)
        if o.marker:
            name, level = f"{o.device}.{o.marker}", QuantityConversion("level", "marker_bits")
            origin = f"edges timed by an interrupt of the node, its clock +-{o.clock_limit_us:g} us guaranteed"
            accuracy = Accuracy(centre_ns=self._limit_ns, origin=origin)
            text = f"level of GP{node.marker_pin} of the node, at each edge and twice a second"
            marker = Line(name, o.device, level, Provenance.MEASURED, accuracy, text)
            detail = common | {"bits": {name: {"high": 1}}}
            self.add_stream((Column("level", "B"), Column("edge", "H")), (marker,), STATUS_NS, detail)
        clock = Line(
            f"{o.device}.clock_bound",
            o.device,
            QuantityConversion("bound_ns", "clock_bound_s", 1e-9),
            Provenance.MEASURED,
            Accuracy(origin="guaranteed while the clocks drift apart by less than 100 ppm"),
            "half-width of what is guaranteed of the node's clock against the board's, after each echo",
        )
        self.add_stream((Column("bound_ns", "I"),), (clock,), ECHO_NS, common)
        return tuple(builder.stream for builder in self.builders)

    def _sensor_lines(self, uid: str) -> tuple[Sequence[Line], Sequence[Sensor], dict[str, object]]:
        """The sensors' lines, the sensors with their calibrations, and the records that were used."""
        o = self.options
        lines: list[Line] = []
        sensors: list[Sensor] = []
        records: dict[str, object] = {}
        for sensor, settings in self.bank:
            assert isinstance(sensor, NodeSensor)
            (known,), used = calibrated([sensor], self._calibrations, bus=sensor.controller, serial=uid)
            sensors.append(known)
            records |= used
            bare = line(known, settings, o.device, Provenance.MEASURED, period_ns=self._period_us * 1000)
            # What an origin says last is how the line was calibrated: a later calibration replaces it.
            limits, _, calibration = bare.accuracy.origin.rpartition("; ")
            accuracy = replace(
                bare.accuracy,
                centre_ns=bare.accuracy.centre_ns + self._limit_ns + SLOT_NS,
                origin=f"{limits}; node clock +-{o.clock_limit_us:g} us guaranteed; {calibration}",
            )
            note = f"{bare.description[:-1]}, controller {sensor.controller} of the node)"
            lines.append(replace(bare, accuracy=accuracy, description=note))
        return lines, sensors, records
