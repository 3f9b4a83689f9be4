"""A journal as a source of frames: what it describes, and its blocks on one time line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from powerd_core.errors import ConfigError, SensorError, WireError
from powerd_core.model import UNKNOWN_TIME_NS, Block, ClockExchange, Description, Device, Gap, Stream
from powerd_core.serde import read_description
from powerd_core.wire import Event, FrameReader, Garbage, Message

_PIECE_BYTES = 1 << 18


def find_journal(path: Path) -> Path:
    """The file of frames that ``path`` names: itself, or ``journal.bin`` in that directory."""
    found = path / "journal.bin" if path.is_dir() else path
    if not found.is_file():
        raise ConfigError(f"no journal at {found}: give the path of a journal file or of a journal's directory")
    return found


def read_events(path: Path) -> Iterator[Event]:
    """Every good frame of a journal in order; damaged stretches are passed over."""
    reader = FrameReader()
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                for event, _ in reader.feed(piece):
                    if not isinstance(event, Garbage):
                        yield event
    except OSError as error:
        raise SensorError(f"journal {path} cannot be read: {error.strerror}") from error
    for event, _ in reader.close():
        if not isinstance(event, Garbage):
            yield event


@dataclass(frozen=True, slots=True)
class Contents:
    """What a journal holds. A board that was restarted in between has the same streams under another epoch."""

    streams: tuple[Stream, ...]
    """As recorded, each once."""
    devices: tuple[Device, ...]
    index: dict[tuple[int, int], int]
    """Position in ``streams`` for each epoch and stream number."""
    shifts_ns: dict[int, int]
    """What to add to a board time of each epoch to come to the journal's common time line."""
    begin_ns: int
    end_ns: int
    """First and last reading on that time line."""

    def fits(self, event: Block | Gap) -> bool:
        """Whether an event is of a stream that was described, and a block laid out as that says."""
        position = self.index.get((event.epoch, event.stream))
        if position is None or isinstance(event, Gap):
            return position is not None
        stream = self.streams[position]
        return event.layout == stream.layout and len(event.payload) == event.count * stream.scan_bytes > 0

    def times_ns(self, event: Block | Gap) -> tuple[int, int]:
        """First and last time of a block or gap on the common time line."""
        shift_ns = self.shifts_ns[event.epoch]
        first_ns = self.begin_ns if event.t_first_ns == UNKNOWN_TIME_NS else event.t_first_ns + shift_ns
        return first_ns, max(first_ns, event.t_last_ns + shift_ns)


def survey(path: Path) -> Contents:
    """Read a journal through once. Raises `SensorError` when it describes nothing or holds no block."""
    descriptions: dict[int, Description] = {}
    exchanges: dict[int, ClockExchange] = {}
    spans_ns: dict[int, tuple[int, int]] = {}
    for event in read_events(path):
        if isinstance(event, Message) and event.subject == "description":
            try:
                description = read_description(dict(event.body))
            except WireError as error:
                raise SensorError(f"journal {path} has a description that cannot be used: {error}") from error
            descriptions.setdefault(description.epoch, description)
        elif isinstance(event, ClockExchange):
            best = exchanges.get(event.epoch)
            if best is None or event.delay_ns < best.delay_ns:
                exchanges[event.epoch] = event
        elif isinstance(event, Block):
            first_ns, last_ns = spans_ns.get(event.epoch, (event.t_first_ns, event.t_last_ns))
            spans_ns[event.epoch] = min(first_ns, event.t_first_ns), max(last_ns, event.t_last_ns)
    known = [e for e in spans_ns if e in descriptions]
    if not known:
        raise SensorError(f"journal {path} holds no description with blocks to it: there is nothing to replay")
    shifts_ns = {e: round(exchanges[e].offset_ns) if e in exchanges else 0 for e in known}
    streams: list[Stream] = []
    devices: dict[str, Device] = {}
    index: dict[tuple[int, int], int] = {}
    for epoch in known:
        for stream in descriptions[epoch].streams:
            names = [line.name for line in stream.lines]
            same = (
                i for i, s in enumerate(streams) if [n.name for n in s.lines] == names and s.layout == stream.layout
            )
            position = next(same, len(streams))
            if position == len(streams):
                streams.append(stream)
            index[epoch, stream.number] = position
        for device in descriptions[epoch].devices:
            devices.setdefault(device.name, device)
    begin_ns = min(spans_ns[e][0] + shifts_ns[e] for e in known)
    end_ns = max(spans_ns[e][1] + shifts_ns[e] for e in known)
    return Contents(tuple(streams), tuple(devices.values()), index, shifts_ns, begin_ns, end_ns)
