"""Source ``node``: up to eight INA219 behind a Raspberry Pi Pico with our firmware, over USB serial.

A node measures three streams: one with a line for each sensor, one of its marker input, and one of how well its clock
is known. `NodeLink` talks with it: commands that are answered, echoes for the clocks, and all the rest as events.
`ScanReadings` and `MarkerReadings` make blocks and gaps of these. See docs/reference/node-protocol.md.

The maths of the node's clock are those of `powerd_core.clock_comparison`, with the board in the place of the host and
the node in that of the board: an offset is board minus node time. Both are in nanoseconds; the node's is unwrapped.
Readings stream in meanwhile, so only exchanges that were already made count.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import ClassVar, TypeVar

from powerd_core.calibration import CalibrationFile
from powerd_core.clock_comparison import ClockPiece, map_clock
from powerd_core.errors import ClockError, ConfigError, PowerdError, SensorError, VersionError, WireError
from powerd_core.model import (
    Accuracy,
    Block,
    BlockBuilder,
    ClockExchange,
    Column,
    Device,
    Flag,
    Gap,
    Line,
    Provenance,
    QuantityConversion,
    Stream,
)
from powerd_core.serde import option
from powerd_daemon.clock import Clock
from powerd_daemon.sources.base import Source, Start, devices_of
from powerd_daemon.sources.ina.chips import CONFIG, ChipSettings
from powerd_daemon.sources.ina.scanner import Decoder, flag_stale
from powerd_daemon.sources.ina.sensor_accuracy import (
    Bank,
    Sensor,
    accuracy,
    calibrated,
    line,
    load_calibration,
    make_bank,
)
from powerd_daemon.sources.node.protocol import (
    MAX_SENSORS,
    TICK_NS,
    Answer,
    Deframer,
    EchoAnswer,
    Edge,
    Event,
    Kind,
    NodeDescription,
    Scan,
    Status,
    WantedSensor,
    configure_payload,
    decode_body,
    encode_command,
    encode_frame,
)
from powerd_daemon.sources.port import OpenPort, Port, SerialPort

KEPT = 64
"""Exchanges that count: the last 16 s at four a second."""
E = TypeVar("E", Answer, NodeDescription)
TRIES = 4
ANSWER_NS = 400_000_000
OUTSTANDING = 8


class NodeTime:
    """Maps node times to board times by the exchanges so far.

    Beyond the last exchange the estimate goes on at the rate of the recent ones, inside the guaranteed bound, which
    there grows with the drift limit.
    """

    def __init__(self) -> None:
        self._exchanges: deque[ClockExchange] = deque(maxlen=KEPT)
        self._piece: ClockPiece | None = None
        self._us: int | None = None

    def __len__(self) -> int:
        return len(self._exchanges)

    @property
    def latest_ns(self) -> int:
        """Node time of the last exchange."""
        return self._exchanges[-1].t_board_ns

    @property
    def half_ns(self) -> int:
        """Half-width of what is guaranteed of the node's clock at the last exchange."""
        return self.board_ns(self.latest_ns)[1]

    def unwrapped_us(self, time_us: int) -> int:
        """A node time of 32 bits as an ever-growing count of microseconds. Two of them must be less than 35 minutes
        apart; they may come slightly out of order."""
        if self._us is None:
            self._us = time_us + (1 << 32)  # room below, for a time before the first
        unwrapped = self._us + (time_us - self._us + (1 << 31)) % (1 << 32) - (1 << 31)
        self._us = max(self._us, unwrapped)
        return unwrapped

    def add(self, t1_board_ns: int, received_us: int, sent_us: int, t4_board_ns: int) -> None:
        """An echo: sent and received by the board, received and sent by the node (cut to whole microseconds).

        Raises `ClockError` when no offset agrees with all exchanges, as one of the clocks stepped.
        """
        # The node received within the microsecond after its stamp: the later end keeps the interval a guarantee.
        exchange = ClockExchange(0, t1_board_ns, (received_us + 1) * TICK_NS, sent_us * TICK_NS, t4_board_ns)
        self._exchanges.append(exchange)
        pieces = map_clock(tuple(self._exchanges)) if exchange.delay_ns >= 0 else ()
        if len(pieces) != 1:
            raise ClockError("the node's clock stepped against the board's")
        self._piece = pieces[0]

    def board_ns(self, node_ns: int) -> tuple[int, int]:
        """The best estimate of a node time on the board's clock, and the half-width of its guaranteed bound."""
        if self._piece is None:
            raise ClockError("there is no exchange with the node yet")
        offset, low, high = self._piece.at(node_ns)
        # From the estimate to the farther end: the estimate need not stand in the middle.
        return node_ns + round(offset), round(max(high - offset, offset - low))


class NodeLink:
    """One open port with a node behind it. ``name`` begins every error."""

    def __init__(self, port: Port, clock: Clock, name: str) -> None:
        self.port, self._clock, self._name = port, clock, name
        self.deframer = Deframer()
        self.unknown = 0
        """Good frames whose contents could not be used."""
        self.time = NodeTime()
        self._events: list[tuple[int, Event]] = []
        self._echoes: dict[int, int] = {}
        # Answers to whoever had the port before must not be taken for ours.
        self._sequence = clock.now_ns() // 1_000_000 & 0xFFFF

    def events(self, timeout_ns: int = 0) -> list[tuple[int, Event]]:
        """What has come, each with the board's time of its arrival; waits for at most ``timeout_ns``."""
        self._receive(timeout_ns)
        events, self._events = self._events, []
        return events

    def ask(self, kind: Kind, want: type[E], payload: bytes = b"") -> E:
        """Send a command until it is answered. Raises `SensorError` when it is not, or is refused.

        Everything that came before the answer is dropped: a node that was left alone may still hold old readings.
        """
        for _ in range(TRIES):
            sequence = self.send(kind, payload)
            give_up_ns = self._clock.now_ns() + ANSWER_NS
            while (left_ns := give_up_ns - self._clock.now_ns()) > 0:
                events = self.events(left_ns)
                for i, (_, event) in enumerate(events):
                    if not isinstance(event, Answer | NodeDescription) or event.sequence != sequence:
                        continue
                    if isinstance(event, Answer) and event.result:
                        raise SensorError(f"{self._name}: the node refused {kind.name.lower()}: result {event.result}")
                    if isinstance(event, want):
                        self._events = events[i + 1 :]
                        return event
        raise SensorError(f"{self._name}: no sensor node answers: is the firmware on it (firmware/README.md)?")

    def exchange(self, wait_ns: int) -> None:
        """Send an echo and wait a little for the answer; one that comes later counts too, for what it is worth."""
        t1_ns = self._clock.now_ns()
        sequence = self.send(Kind.ECHO)
        self._echoes[sequence] = t1_ns
        if len(self._echoes) > OUTSTANDING:
            del self._echoes[next(iter(self._echoes))]
        give_up_ns = t1_ns + wait_ns
        while sequence in self._echoes and (left_ns := give_up_ns - self._clock.now_ns()) > 0:
            self._receive(left_ns)

    def send(self, kind: Kind, payload: bytes = b"") -> int:
        """Send a command and wait for nothing. Returns its sequence number."""
        self._sequence = self._sequence + 1 & 0xFFFF
        # The zero in front ends whatever garbage the node may have received before.
        self.port.write(b"\0" + encode_frame(encode_command(kind, self._sequence, payload)))
        return self._sequence

    def _receive(self, timeout_ns: int) -> None:
        data = self.port.read(timeout_ns)
        arrival_ns = self._clock.now_ns()
        for body in self.deframer.feed(data):
            try:
                event = decode_body(body)
            except VersionError as error:
                raise SensorError(f"{self._name}: {error}") from error
            except WireError:
                self.unknown += 1
                continue
            if isinstance(event, EchoAnswer):
                self._compare(event, arrival_ns)
            else:
                self._events.append((arrival_ns, event))

    def _compare(self, echo: EchoAnswer, arrival_ns: int) -> None:
        t1_ns = self._echoes.pop(echo.sequence, None)
        if t1_ns is None:
            return
        sent_us = self.time.unwrapped_us(echo.sent_us)
        received_us = sent_us - ((echo.sent_us - echo.received_us) & 0xFFFFFFFF)
        try:
            self.time.add(t1_ns, received_us, sent_us, arrival_ns)
        except ClockError as error:
            raise SensorError(f"{self._name}: {error}") from error


# -- readings ----------------------------------------------------------------------------------------------------------

CHECK_ALL_US = 20_000
"""With periods from here on the node checks all its sensors in each scan."""
_LONG_AGO = -(1 << 62)


@dataclass(slots=True)
class _Row:
    """A scan that waits for the checks of its sensors, and how many never came in front of it."""

    t_ns: int
    span_ns: int
    flags: list[int]
    words: bytes
    lost: int
    cause: str


def _gap(builder: BlockBuilder, begin_ns: int, end_ns: int, lost: int, cause: str) -> Gap:
    """A gap with the builder's next sequence number."""
    gap = Gap(builder.stream.number, builder.epoch, builder.sequence, min(begin_ns, end_ns), end_ns, 1, lost, cause)
    builder.sequence += 1
    return gap


class ScanReadings:
    """Turns scans into the blocks and gaps of one stream with columns ``shunt`` and ``bus``.

    The node checks its sensors' settings one a scan, in turn; the bits of ``reset`` toggle when a check fails. A
    reading is held until its sensor has been checked behind it, and flagged ``RESET`` when that check failed.
    """

    def __init__(self, builder: BlockBuilder, settings: Sequence[ChipSettings], period_us: int) -> None:
        self._builder, self._decoder, self._count = builder, Decoder(settings), len(settings)
        self._period_us = period_us
        self._hold = 0 if period_us >= CHECK_ALL_US else self._count - 1
        """Scans after which every sensor was checked."""
        self._rows: list[_Row] = []
        self._last: Scan | None = None
        self._last_us = 0
        """When the last scan began, by the node's clock; and, by the board's, when it ended."""
        self._last_end_ns = _LONG_AGO
        self._untimed = 0
        """Scans whose times are not known, since the last that is held."""
        self.valid = (1 << self._count) - 1
        """Bit i: sensor i was read by the latest scan."""
        self.lost = 0
        """Scans in gaps."""
        self.unfit = 0
        """Scans that were dropped, since they fit neither the sensors nor the scans before."""
        self._fresh_ns = [_LONG_AGO] * self._count
        self._taken_ns: int | None = None
        """Last reading that was given out."""
        self._ages_ns = [s.age_ns() for s in settings]
        self._cycles_ns = [max(s.longest_cycle_ns for s in settings)] * self._count

    def add(self, scan: Scan, node_us: int, t_ns: int | None, arrival_ns: int, cause: str) -> bool:
        """Take a scan that began at ``t_ns`` of the board's clock (None: not known well enough).

        ``cause`` is that of the scans missing in front of it, if any. False for one that does not fit: it is dropped.
        """
        if len(scan.words) != 4 * self._count or (self._last and node_us <= self._last_us):
            self.unfit += 1
            return False
        self.valid = scan.valid
        missing = self._missing(scan, node_us)
        toggled = scan.reset ^ self._last.reset if self._last else 0
        self._last, self._last_us = scan, node_us
        if t_ns is None:
            self._untimed += 1 + missing
        else:
            if self._untimed:
                missing, self._untimed = missing + self._untimed, 0
                cause = "the node's clock was not known well enough: its echoes came late"
            self.lost += missing
            span_ns = scan.span_us * 1000
            # Received before it ended is impossible, and so is a scan that begins within the one before.
            t_ns = max(min(t_ns, arrival_ns - span_ns), self._last_end_ns)
            self._last_end_ns = t_ns + max(span_ns, 1)
            flags = [0 if scan.valid >> i & 1 else int(Flag.IO_ERROR) for i in range(self._count)]
            self._rows.append(_Row(t_ns, span_ns, flags, scan.words, missing, cause))
        # What waits for a check that failed is of a sensor without its settings.
        checked = len(self._rows) - self._hold - (t_ns is not None)
        for row in self._rows[max(checked, 0) :] if toggled else ():
            row.flags = [f | Flag.RESET if toggled >> i & 1 else f for i, f in enumerate(row.flags)]
        return True

    def take(self) -> list[Block | Gap]:
        """What is confirmed, as blocks and gaps in order."""
        count = max(0, len(self._rows) - self._hold)
        rows, self._rows = self._rows[:count], self._rows[count:]
        events: list[Block | Gap] = []
        first = 0
        for k, row in enumerate(rows):
            if row.lost:
                self._append_block(rows[first:k], events)
                first = k
                begin_ns = row.t_ns if self._taken_ns is None else self._taken_ns
                events.append(_gap(self._builder, begin_ns, row.t_ns, row.lost, row.cause))
        self._append_block(rows[first:], events)
        return events

    def _missing(self, scan: Scan, node_us: int) -> int:
        """Scans that the node took since the last one."""
        if self._last is None:
            return 0
        jump = (scan.sequence - self._last.sequence - 1) & 0xFFFF
        # A sequence number comes round after some minutes; the time tells how often it did.
        by_time = round((node_us - self._last_us) / self._period_us) - 1
        return jump + 0x10000 * max(0, round((by_time - jump) / 0x10000))

    def _append_block(self, rows: Sequence[_Row], events: list[Block | Gap]) -> None:
        if not rows:
            return
        b, n = self._builder, self._count
        words = array("H", b"".join(r.words for r in rows))
        shunt, bus = array("h", words[0::2].tobytes()), words[1::2]
        flags = array("H", [f for r in rows for f in r.flags])
        self._decoder.flag(flags, shunt, bus)
        # What the codes of a failed reading look like says nothing.
        flags = array("H", [int(Flag.IO_ERROR) if f & Flag.IO_ERROR else f for f in flags])
        for row in rows:
            b.t_ns.append(row.t_ns)
            # The shunt word is the first of the two: its middle is a quarter into the sensor's share of the scan.
            b.dt_ns.extend(row.span_ns * (4 * i + 1) // (4 * n) - age_ns for i, age_ns in enumerate(self._ages_ns))
        flag_stale(flags, b.t_ns, b.dt_ns, self._fresh_ns, self._cycles_ns)
        b.flags.extend(flags)
        b.columns[0].extend(shunt)
        b.columns[1].extend(bus)
        if block := b.take():
            self._taken_ns = block.t_last_ns
            events.append(block)


class MarkerReadings:
    """The marker input: its level at every edge, and twice a second besides, in columns ``level`` and ``edge``.

    A reading with level 1 says that the input is high from then on. The column ``edge`` counts edges modulo 2**16: a
    reading whose count is that of the one before is no edge but the node's word that there was none. So a stream in
    which nothing happens is told from one that is lost.
    """

    CAUSE = "edges were lost on the way, too fast for the node, or at times that are not known well enough"

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._events: list[Block | Gap] = []
        self._next: int | None = None
        """Number of the next edge; None until the node has said."""
        self._last_ns: int | None = None
        self.lost = 0
        """Edges in gaps."""

    def add(self, event: Edge | Status, t_ns: int) -> None:
        """An edge at ``t_ns`` of the board's clock, or a status: the level then unless a later edge is known."""
        is_edge = isinstance(event, Edge)
        number = event.sequence if isinstance(event, Edge) else event.edges & 0xFFFF
        last_ns = t_ns - 1 if self._last_ns is None else self._last_ns
        if self._next is not None and (lost := (number - self._next) & 0xFFFF):
            self.lost += lost
            self._close_block()
            self._events.append(_gap(self._builder, last_ns, max(last_ns, t_ns), lost, self.CAUSE))
        self._next = number + is_edge & 0xFFFF
        if is_edge or t_ns > last_ns:
            # An interrupt's edges may share a microsecond, or two corrections of the clock may overlap.
            self._last_ns = max(t_ns, last_ns + 1)
            self._builder.append(self._last_ns, (0,), (0,), ((event.level,), (self._next,)))

    def take(self) -> list[Block | Gap]:
        """Everything since the last call, in order."""
        self._close_block()
        events, self._events = self._events, []
        return events

    def _close_block(self) -> None:
        if block := self._builder.take():
            self._events.append(block)


# -- the source --------------------------------------------------------------------------------------------------------

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
            unsure = Accuracy(centre_ns=self._limit_ns, origin=origin)
            text = f"level of GP{node.marker_pin} of the node, at each edge and twice a second"
            marker = Line(name, o.device, level, Provenance.MEASURED, unsure, text)
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
            on_wire = accuracy(known, settings, period_ns=self._period_us * 1000)
            # What an origin says last is how the line was calibrated: a later calibration replaces it.
            limits, _, calibration = on_wire.origin.rpartition("; ")
            by_node = replace(
                on_wire,
                centre_ns=on_wire.centre_ns + self._limit_ns + SLOT_NS,
                origin=f"{limits}; node clock +-{o.clock_limit_us:g} us guaranteed; {calibration}",
            )
            bare = line(known, settings, o.device, Provenance.MEASURED, by_node)
            note = f"{bare.description[:-1]}, controller {sensor.controller} of the node)"
            lines.append(replace(bare, description=note))
        return lines, sensors, records
