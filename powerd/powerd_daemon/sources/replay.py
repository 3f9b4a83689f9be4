"""Source ``replay``: the blocks of a journal once more, as if they were measured now."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from powerd_core.errors import ConfigError, SensorError
from powerd_core.model import Block, Device, Gap, Stream
from powerd_daemon.config import STREAMS_PER_SOURCE
from powerd_daemon.sources.base import Source, Start
from powerd_daemon.sources.replay_journal import Contents, find_journal, read_events, survey


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """At another speed than 1 the times are compressed and the powers stay, so joules shrink or grow with it."""

    path: str = field(default="", metadata={"help": "a journal file, or the directory with journal.bin in it"})
    speed: float = field(default=1.0, metadata={"help": "how many times faster than recorded; 1 keeps the joules"})
    loop: bool = field(default=False, metadata={"help": "begin again at the end"})

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("the source 'replay' needs path = ... : a journal file or a journal's directory")
        if not 0.001 <= self.speed <= 1000:
            raise ConfigError(f"speed = {self.speed:g} is not between 0.001 and 1000")


class ReplaySource(Source):
    """All streams of a journal, numbered anew, with codes, flags and provenance as recorded.

    A block is given out when the clock reaches its last reading. After the end (without ``loop``) nothing more comes.
    """

    Options: ClassVar[type[ReplayOptions]] = ReplayOptions
    options: ReplayOptions

    def __init__(self, options: ReplayOptions, start: Start) -> None:
        super().__init__(options, start)
        self._path = Path(options.path)
        self._contents: Contents | None = None
        self._streams: tuple[Stream, ...] = ()
        self._sequences: dict[int, int] = {}
        self._events: Iterator[tuple[Block | Gap, int]] = iter(())
        self._next: tuple[Block | Gap, int] | None = None
        self._out: list[Block | Gap] = []

    @property
    def period_ns(self) -> int:
        return 10_000_000

    def open(self) -> tuple[tuple[Stream, ...], tuple[Device, ...]]:
        self._path = find_journal(self._path)
        self._contents = contents = survey(self._path)
        o, first = self.options, self.start.first_stream
        if len(contents.streams) > STREAMS_PER_SOURCE:
            most = STREAMS_PER_SOURCE
            raise SensorError(f"journal {self._path} has {len(contents.streams)} streams: {most} can be replayed")
        self._streams = tuple(
            replace(
                stream,
                number=first + i,
                source=self.start.name,
                period_ns=max(1, round(stream.period_ns / o.speed)),
                detail={
                    "replayed": {"path": str(self._path), "source": stream.source, "speed": o.speed, "loop": o.loop},
                    "recorded": dict(stream.detail),
                },
            )
            for i, stream in enumerate(contents.streams)
        )
        self._sequences = {s.number: self.start.next_sequence.get(s.number, 0) for s in self._streams}
        self._events = self._schedule(contents, self.start.clock.now_ns())
        self._next = next(self._events, None)
        return self._streams, contents.devices

    def poll(self) -> None:
        now_ns = self.start.clock.now_ns()
        while self._next is not None and self._span_ns(*self._next)[1] <= now_ns:
            try:
                made = self._rebase(*self._next)
            except OverflowError as error:
                at = f"at speed {self.options.speed:g}"
                raise SensorError(f"journal {self._path} has times that no reading can have {at}") from error
            self._sequences[made.stream] += 1
            self._out.append(made)
            self._next = next(self._events, None)

    def take(self) -> list[Block | Gap]:
        out, self._out = self._out, []
        return out

    def close(self) -> None:
        self._events, self._next = iter(()), None

    def _schedule(self, contents: Contents, start_ns: int) -> Iterator[tuple[Block | Gap, int]]:
        """Each block and gap, with the board time at which this round of the journal begins."""
        longest_ns = max(s.period_ns for s in contents.streams)
        # No shorter than the distance of polls: a journal of a moment, at a great speed, would never let a poll end.
        round_ns = max(self.period_ns, round((contents.end_ns - contents.begin_ns + longest_ns) / self.options.speed))
        while True:
            is_empty = True
            for event in read_events(self._path):
                if isinstance(event, Block | Gap) and contents.fits(event):
                    is_empty = False
                    yield event, start_ns
            if is_empty or not self.options.loop:
                return
            start_ns += round_ns

    def _span_ns(self, event: Block | Gap, round_start_ns: int) -> tuple[int, int]:
        """First and last time of an event in this replay."""
        contents = self._recorded
        first_ns, last_ns = contents.times_ns(event)
        return (
            round_start_ns + round((first_ns - contents.begin_ns) / self.options.speed),
            round_start_ns + round((last_ns - contents.begin_ns) / self.options.speed),
        )

    def _rebase(self, event: Block | Gap, round_start_ns: int) -> Block | Gap:
        contents = self._recorded
        stream = self._streams[contents.index[event.epoch, event.stream]]
        first_ns, last_ns = self._span_ns(event, round_start_ns)
        array("q", (first_ns, last_ns))  # raises OverflowError
        moved = replace(
            event,
            stream=stream.number,
            epoch=self.start.epoch,
            sequence=self._sequences[stream.number],
            t_first_ns=first_ns,
            t_last_ns=last_ns,
        )
        if isinstance(moved, Gap):
            return replace(moved, span=1)
        shift_ns = contents.shifts_ns[event.epoch] - contents.begin_ns
        payload = _retime(moved, len(stream.lines), shift_ns, round_start_ns, self.options.speed)
        return replace(moved, payload=payload)

    @property
    def _recorded(self) -> Contents:
        assert self._contents is not None, "open comes first"
        return self._contents


def _retime(block: Block, lines: int, shift_ns: int, start_ns: int, speed: float) -> bytes:
    """The payload with each time ``t`` turned into ``start_ns + (t + shift_ns) / speed``."""
    t_end, dt_end = 8 * block.count, (8 + 4 * lines) * block.count
    t_ns = _numbers("q", block.payload[:t_end])
    moved = array("q", [start_ns + round((t + shift_ns) / speed) for t in t_ns])
    dt_bytes = block.payload[t_end:dt_end]
    if speed != 1.0:
        dt_bytes = _bytes(array("i", [round(dt / speed) for dt in _numbers("i", dt_bytes)]))
    return _bytes(moved) + dt_bytes + block.payload[dt_end:]


def _numbers(typecode: str, data: bytes) -> array[int]:
    values = array(typecode, data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _bytes(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
