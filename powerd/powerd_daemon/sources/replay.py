"""Source ``replay``: the blocks of a journal once more, on one time line, as if they were measured now."""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Description, Device, Gap, Stream
from powerd_core.serde import option, read_description
from powerd_core.wire import Event, FrameReader, Garbage, Message
from powerd_daemon.sources.base import Source, Start

_PIECE_BYTES = 1 << 18


def read_events(path: Path) -> Iterator[Event]:
    """Every good frame of a journal, packed or not, in order; damaged stretches are passed over."""
    reader = FrameReader()
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield from (event for event, _ in reader.feed(piece) if not isinstance(event, Garbage))
    except (OSError, EOFError, zlib.error) as error:
        raise SensorError(f"journal {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    yield from (event for event, _ in reader.close() if not isinstance(event, Garbage))


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """At another speed than 1 the times are compressed and the powers stay, so joules shrink or grow with it."""

    path: str = option("", "a journal, packed (RUN.h5.journal.gz) or not, or its directory")
    speed: float = option(1.0, "how many times faster than recorded; 1 keeps the joules")
    loop: bool = option(False, "begin again at the end")

    def __post_init__(self) -> None:
        if not self.path or not 0.001 <= self.speed <= 1000:
            raise ConfigError("the source 'replay' needs path = ... (a journal) and a speed from 0.001 to 1000")


class ReplaySource(Source):
    """All streams of a journal, numbered anew, with codes, flags and provenance as recorded.

    A block is given out when the clock reaches its last reading. After the end (without ``loop``) nothing more comes.
    """

    Options: ClassVar[type[ReplayOptions]] = ReplayOptions
    options: ReplayOptions

    def __init__(self, options: ReplayOptions, start: Start) -> None:
        super().__init__(options, start)
        path = Path(options.path)
        self._path = path / "journal.bin" if path.is_dir() else path
        self._streams: dict[tuple[int, int], Stream] = {}
        """As given out, by epoch and number in the journal: a board that was restarted has the same streams again."""
        self._shifts_ns: dict[int, int] = {}
        """What to add to a board time of each epoch to count from the first reading on the journal's time line."""
        self._length_ns = 0
        self._events: Iterator[Block | Gap] = iter(())
        self._next: Block | Gap | None = None
        self._out: list[Block | Gap] = []

    @property
    def period_ns(self) -> int:
        return 10_000_000

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        if not self._path.is_file():
            raise ConfigError(f"no journal at {self._path}: give the path of a journal file or of its directory")
        descriptions = self._survey()
        streams: dict[tuple[object, ...], Stream] = {}
        devices: dict[str, Device] = {}
        for description in descriptions:
            for stream in description.streams:
                alike = (stream.layout, *(line.name for line in stream.lines))
                if alike not in streams:
                    streams[alike] = self._renamed(stream, self.start.first_stream + len(streams))
                self._streams[description.epoch, stream.number] = streams[alike]
            devices = {device.name: device for device in description.devices} | devices
        self._events = self._replayed(self.start.clock.now_ns())
        self._advance()
        return tuple(streams.values()), tuple(devices.values())

    def _renamed(self, stream: Stream, number: int) -> Stream:
        o = self.options
        origin = {"path": str(self._path), "source": stream.source, "speed": o.speed, "loop": o.loop}
        return replace(
            stream,
            number=number,
            source=self.start.name,
            period_ns=max(1, round(stream.period_ns / o.speed)),
            detail={"replayed": origin, "recorded": dict(stream.detail)},
        )

    def _survey(self) -> list[Description]:
        """Read the journal through once; the descriptions of its blocks. Raises `SensorError` when there are none."""
        descriptions: dict[int, Description] = {}
        exchanges: dict[int, ClockExchange] = {}
        spans_ns: dict[int, tuple[int, int]] = {}
        for event in read_events(self._path):
            if isinstance(event, Message) and event.subject == "description":
                try:
                    description = read_description(dict(event.body))
                except WireError as error:
                    raise SensorError(f"journal {self._path} has an unusable description: {error}") from error
                descriptions.setdefault(description.epoch, description)
            elif isinstance(event, ClockExchange) and event.delay_ns >= 0:  # below, a clock stepped meanwhile
                best = exchanges.setdefault(event.epoch, event)
                exchanges[event.epoch] = min(best, event, key=lambda e: e.delay_ns)
            elif isinstance(event, Block):
                first_ns, last_ns = spans_ns.get(event.epoch, (event.t_first_ns, event.t_last_ns))
                spans_ns[event.epoch] = min(first_ns, event.t_first_ns), max(last_ns, event.t_last_ns)
        offsets_ns = {e: round(exchanges[e].offset_ns) if e in exchanges else 0 for e in spans_ns if e in descriptions}
        if not offsets_ns:
            raise SensorError(
                f"journal {self._path} holds no description with blocks to it: there is nothing to replay"
            )
        begin_ns = min(spans_ns[e][0] + offset_ns for e, offset_ns in offsets_ns.items())
        self._length_ns = max(spans_ns[e][1] + offset_ns for e, offset_ns in offsets_ns.items()) - begin_ns
        self._shifts_ns = {e: offset_ns - begin_ns for e, offset_ns in offsets_ns.items()}
        return [descriptions[e] for e in offsets_ns]

    def poll(self) -> None:
        now_ns = self.start.clock.now_ns()
        while self._next is not None and self._next.t_last_ns <= now_ns:
            self._out.append(self._next)
            self._advance()

    def take(self) -> list[Block | Gap]:
        out, self._out = self._out, []
        return out

    def _advance(self) -> None:
        try:
            self._next = next(self._events, None)
        except (OverflowError, ValueError) as error:
            raise SensorError(f"journal {self._path} has readings that cannot be replayed: {error}") from error

    def _replayed(self, start_ns: int) -> Iterator[Block | Gap]:
        """Each block and gap at its new time and number; the first round of the journal begins at ``start_ns``."""
        speed = self.options.speed
        longest_ns = max(s.period_ns for s in self._streams.values())
        # No shorter than the distance of polls: a journal of a moment, at a great speed, would never let a poll end.
        round_ns = max(self.period_ns, round(self._length_ns / speed) + longest_ns)
        sequences = {s.number: self.start.next_sequence.get(s.number, 0) for s in self._streams.values()}
        while True:
            for event in read_events(self._path):
                if not isinstance(event, Block | Gap) or (event.epoch, event.stream) not in self._streams:
                    continue
                stream, shift_ns = self._streams[event.epoch, event.stream], self._shifts_ns[event.epoch]
                begin_ns = 0 if event.t_first_ns == UNKNOWN_TIME_NS else event.t_first_ns + shift_ns
                moved = replace(
                    event,
                    stream=stream.number,
                    epoch=self.start.epoch,
                    sequence=sequences[stream.number],
                    t_first_ns=start_ns + round(begin_ns / speed),
                    t_last_ns=start_ns + round(max(begin_ns, event.t_last_ns + shift_ns) / speed),
                )
                sequences[stream.number] += 1
                if isinstance(moved, Gap):
                    yield replace(moved, span=1)
                    continue
                if moved.layout != stream.layout or len(moved.payload) != moved.count * stream.scan_bytes:
                    raise ValueError("a block is not laid out as described")
                yield replace(moved, payload=_retime(moved, len(stream.lines), shift_ns, start_ns, speed))
            if not self.options.loop:
                return
            start_ns += round_ns


def _retime(block: Block, lines: int, shift_ns: int, start_ns: int, speed: float) -> bytes:
    """The payload with each time ``t`` turned into ``start_ns + (t + shift_ns) / speed``."""
    t_end, dt_end = 8 * block.count, (8 + 4 * lines) * block.count
    t_ns = array("q", [start_ns + round((t + shift_ns) / speed) for t in array("q", block.payload[:t_end])])
    dt_ns = array("i", block.payload[t_end:dt_end])
    if speed != 1.0:
        dt_ns = array("i", [round(dt / speed) for dt in dt_ns])
    return t_ns.tobytes() + dt_ns.tobytes() + block.payload[dt_end:]
