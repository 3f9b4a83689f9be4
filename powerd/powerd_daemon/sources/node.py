"""Source ``node``: up to eight INA219 behind a Raspberry Pi Pico with our firmware, over USB serial."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from powerd_core.calibration import CalibrationFile
from powerd_core.errors import PowerdError, SensorError
from powerd_core.model import Block, BlockBuilder, Device, Gap, Stream
from powerd_daemon.calibration_file import load_calibration
from powerd_daemon.ina.sensor import Bank
from powerd_daemon.serial.link import NodeLink
from powerd_daemon.serial.node_marker import MarkerRows
from powerd_daemon.serial.node_scans import ScanRows
from powerd_daemon.serial.port import Port, SerialPort
from powerd_daemon.serial.protocol import (
    TICK_NS,
    Answer,
    Edge,
    Event,
    Kind,
    NodeDescription,
    Scan,
    Status,
    configure_payload,
)
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.node_options import NodeOptions, bank_of, check_rate
from powerd_daemon.sources.node_streams import ECHO_NS, MAX_BOUND_NS, STATUS_NS, describe_node, wanted_sensors

POLL_NS = 5_000_000
ECHO_WAIT_NS = 4_000_000
FIRST_ECHOES = 24
SILENCE_NS = 1_500_000_000

OpenPort = Callable[[str, int], Port]


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
        self.bank: Bank = bank_of(options.sensors)
        check_rate(options)
        self._calibrations = load_calibration(Path(options.calibration)) if options.calibration else CalibrationFile()
        self._limit_ns = round(options.clock_limit_us * 1000)
        self._period_us = round(1e6 / options.rate_hz)
        self._port: Port | None = None
        self._link: NodeLink | None = None
        self._rows: ScanRows | None = None
        self._marker: MarkerRows | None = None
        self._bounds: BlockBuilder | None = None
        self._boot = 0
        self._damaged = 0
        self._echo_ns = self._heard_ns = self._told_ns = 0
        self._found: NodeDescription | None = None
        self.status: Status | None = None
        """The node's last word on itself."""

    @property
    def period_ns(self) -> int:
        return POLL_NS

    @property
    def serial(self) -> str:
        """The serial number of the node's processor; empty before it was opened."""
        return "" if self._found is None else self._found.uid

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        o, clock = self.options, self.start.clock
        self._port = self._open_port(o.port, o.baud)
        link = self._link = NodeLink(self._port, clock, o.port)
        link.ask(Kind.STOP, Answer)
        link.ask(Kind.CONFIGURE, Answer, configure_payload(self._period_us, wanted_sensors(o, self.bank)))
        found = link.ask(Kind.DESCRIBE, NodeDescription)
        self._found, self._boot = found, found.boot
        if not found.answering:
            raise SensorError(f"{o.port}: no INA219 answers the node: check the wiring and the supply of the sensors")
        self._synchronise(link)
        streams = describe_node(
            o, self.bank, self._calibrations, found, self.start, period_us=self._period_us, half_ns=self._half_ns(link)
        )
        builders = [self.start.builder(s) for s in streams]
        self._rows = ScanRows(builders[0], self.bank.settings, self._period_us)
        self._marker = MarkerRows(builders[1]) if o.marker else None
        self._bounds, self._told_ns = builders[-1], link.time.latest_ns
        link.ask(Kind.START, Answer)
        self._damaged = link.deframer.damaged
        self._heard_ns = clock.now_ns()
        self._echo_ns = self._heard_ns + ECHO_NS
        feeds: dict[str, list[str]] = {}
        for made in streams[0].lines:
            feeds.setdefault(made.device, []).append(made.name)
        return streams, tuple(Device(name, tuple(lines), "measured by a node") for name, lines in feeds.items())

    def poll(self) -> None:
        link = self._link
        assert link is not None, "open comes first"
        if self.start.clock.now_ns() >= self._echo_ns:
            self._echo_ns = self.start.clock.now_ns() + ECHO_NS
            link.exchange(ECHO_WAIT_NS)
            self._tell_bound(link)
        for arrival_ns, event in link.events():
            self._handle(link, arrival_ns, event)
        silence_ns = self.start.clock.now_ns() - self._heard_ns
        if silence_ns > max(SILENCE_NS, 5 * self._period_us * 1000):
            raise SensorError(f"{self.options.port}: the node sent no readings for {silence_ns * 1e-9:.1f} s")

    def take(self) -> list[Block | Gap]:
        made = self._rows.take() if self._rows else []
        made += self._marker.take() if self._marker else []
        bounds = self._bounds.take() if self._bounds else None
        return [*made, bounds] if bounds else made

    def health(self) -> dict[str, object]:
        link, rows, found = self._link, self._rows, self._found
        if link is None or rows is None or found is None:
            return {}
        return {
            "left_out": [s.name for i, s in enumerate(self.options.sensors) if not rows.valid >> i & 1],
            "lost_scans": rows.lost,
            "unfit_scans": rows.unfit,
            "lost_edges": self._marker.lost if self._marker else 0,
            "damaged_frames": link.deframer.damaged,
            "unusable_frames": link.unknown,
            "clock_half_us": self._half_ns(link) / 1000 if len(link.time) else None,
            "node": {
                "firmware": found.software,
                "reset_cause": found.reset_cause,
                **(self.status.counters if self.status else {}),
            },
        }

    def close(self) -> None:
        port, self._port, self._link = self._port, None, None
        if port is None:
            return
        # When it is gone, nothing is left to be stopped.
        with suppress(PowerdError):
            NodeLink(port, self.start.clock, self.options.port).tell(Kind.STOP)
        port.close()

    def _tell_bound(self, link: NodeLink) -> None:
        node_ns = link.time.latest_ns
        if self._bounds is None or node_ns <= self._told_ns:
            return  # the echo was lost, or is late
        self._told_ns = node_ns
        t_ns, half_ns = link.time.board_ns(node_ns)
        self._bounds.append(t_ns, (0,), (0,), ((min(half_ns, MAX_BOUND_NS),),))

    def _handle(self, link: NodeLink, arrival_ns: int, event: Event) -> None:
        if not isinstance(event, Scan | Edge | Status):
            return
        node_us = link.unwrapper.us(event.time_us)
        # A stamp is cut to whole microseconds: half of one, on average.
        t_ns, half_ns = link.time.board_ns(node_us * TICK_NS + TICK_NS // 2)
        is_known = half_ns + TICK_NS <= self._limit_ns
        is_damaged = link.deframer.damaged != self._damaged
        if isinstance(event, Scan):
            cause = (
                "frames were damaged on the serial line"
                if is_damaged
                else "the node missed deadlines, or its buffer was full"
            )
            assert self._rows is not None
            if self._rows.add(event, node_us, t_ns if is_known else None, arrival_ns, cause):
                self._heard_ns = arrival_ns
                self._damaged = link.deframer.damaged
            return
        if isinstance(event, Status):
            self._check(event)
        if self._marker is None or not is_known:
            # Edges that are passed over here are missed by the next one that is not.
            return
        t_ns = min(t_ns, arrival_ns)
        cause = "edges were lost on the way, too fast for the node, or at times that are not known well enough"
        if isinstance(event, Edge):
            self._marker.edge(event, t_ns, cause)
        else:
            self._marker.status(event, t_ns, cause)

    def _check(self, status: Status) -> None:
        self.status = status
        if status.boot != self._boot:
            raise SensorError(f"{self.options.port}: the node was reset; it is set up again")
        if not status.is_running and self.start.clock.now_ns() - self._heard_ns > STATUS_NS:
            raise SensorError(f"{self.options.port}: the node stopped measuring: does another program command it?")

    def _synchronise(self, link: NodeLink) -> None:
        """Exchanges until the node's time is known to half the limit, or as well as it gets."""
        half_ns = 1 << 62
        for _ in range(FIRST_ECHOES):
            link.exchange(ECHO_WAIT_NS)
            if len(link.time) >= 8:
                half_ns = self._half_ns(link)
                if half_ns < self._limit_ns // 2:
                    return
        half_ns = self._half_ns(link) if len(link.time) else half_ns
        if half_ns > self._limit_ns:
            known = f"known to {half_ns / 1000:.0f} us" if len(link.time) else "not known: it answers no echo"
            raise SensorError(
                f"{self.options.port}: the node's clock is {known}, clock_limit_us = {self.options.clock_limit_us:g}: "
                "plug it in without a hub, or raise the limit"
            )

    @staticmethod
    def _half_ns(link: NodeLink) -> int:
        return link.time.board_ns(link.time.latest_ns)[1]
