"""Readings out of the journal of a run that goes on: a file is read, when somebody asks; nothing is received here."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerd_client.hosttime import have_host_time, to_host_ns
from powerd_client.pmlib.readings import LineReadings, convert
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError, RunFileError, WireError
from powerd_core.model import Block, ClockExchange, Description, Gap, Line, Stream, columns
from powerd_core.serde import read_description
from powerd_core.wire import FrameReader, Garbage, Message, decode

Int64 = NDArray[np.int64]

_CHUNK_BYTES = 1 << 20
_RECENT_EXCHANGES = 100


class HostClock:
    """A board's clock as seen from the host, from the exchanges that there are so far."""

    def __init__(self, pieces: Sequence[ClockPiece]) -> None:
        self._pieces = pieces

    def to_host(self, t_board_ns: Int64) -> tuple[Int64, NDArray[np.bool_]]:
        """Board times on the host's clock, and whether the mapping says anything of them (not around a step)."""
        if not self._pieces:
            return t_board_ns, np.zeros(len(t_board_ns), bool)
        return to_host_ns(t_board_ns, self._pieces), have_host_time(t_board_ns, self._pieces)


@dataclass(slots=True)
class _Epoch:
    """What one life of one powerd has sent so far."""

    description: Description
    exchanges: list[ClockExchange] = field(default_factory=list)
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_RECENT_EXCHANGES))
    """Delay and offset of the last exchanges."""
    places: dict[int, dict[int, tuple[int, int, int, int]]] = field(default_factory=dict)
    """By stream and sequence number of a block: offset, bytes, first and last board time."""
    newest_ns: dict[int, int] = field(default_factory=dict)
    """By stream: board time up to which readings, or the knowledge that they are lost, have arrived."""

    mapped: tuple[int, HostClock] = field(default_factory=lambda: (0, HostClock(())))
    """The clock, and from how many exchanges it was made."""

    def clock(self) -> HostClock:
        if self.mapped[0] != len(self.exchanges):
            try:
                self.mapped = len(self.exchanges), HostClock(map_clock(self.exchanges))
            except ClockError:
                self.mapped = len(self.exchanges), HostClock(())
        return self.mapped[1]


class JournalReader:
    """Follows one ``journal.bin``. Its calls may not overlap."""

    def __init__(self, journal: Path) -> None:
        self._path = journal / "journal.bin"
        self._begin()

    def _begin(self) -> None:
        self._frames = FrameReader()
        self._fed = self._at = 0
        self._epochs: dict[int, _Epoch] = {}

    @property
    def descriptions(self) -> tuple[Description, ...]:
        """What every powerd of the run said it measures, in the order in which they were first heard."""
        return tuple(epoch.description for epoch in self._epochs.values())

    def update(self) -> None:
        """Take in what has been appended. Raises `RunFileError` when the journal cannot be read."""
        try:
            if self._path.stat().st_size < self._fed or self._read_on():
                # An append that failed half-way was taken back and made again: what was read of it was no frame.
                self._begin()
                self._read_on()
        except OSError as error:
            raise RunFileError(f"cannot read {self._path}: {error.strerror}") from error

    def _read_on(self) -> bool:
        """Whether there was anything in it that is no frame."""
        is_damaged = False
        with self._path.open("rb") as file:
            file.seek(self._fed)
            while data := file.read(_CHUNK_BYTES):
                self._fed += len(data)
                for event, frame in self._frames.feed(data):
                    if isinstance(event, Garbage):
                        is_damaged = True
                        self._at += event.count
                        continue
                    self._take(event, len(frame))
                    self._at += len(frame)
        return is_damaged

    def _take(self, event: object, size: int) -> None:
        match event:
            case Message(subject="description"):
                try:
                    description = read_description(event.body)
                except WireError:
                    return  # the run file will tell
                if description.epoch not in self._epochs:
                    self._epochs[description.epoch] = _Epoch(description)
            case Block() if (epoch := self._epochs.get(event.epoch)) is not None:
                place = (self._at, size, event.t_first_ns, event.t_last_ns)
                epoch.places.setdefault(event.stream, {}).setdefault(event.sequence, place)
                _advance(epoch, event)
            case Gap() if (epoch := self._epochs.get(event.epoch)) is not None:
                _advance(epoch, event)
            case ClockExchange() if (epoch := self._epochs.get(event.epoch)) is not None:
                epoch.exchanges.append(event)
                epoch.recent.append((event.delay_ns, event.offset_ns))

    def reaches(self, lines: Collection[str], t_host_ns: int) -> bool:
        """Whether every one of the lines has been read after that moment.

        A scan takes up to a period, so that its last reading alone does not say so of all its lines.
        """
        found = set()
        for epoch in self._epochs.values():
            if not epoch.recent:
                continue
            offset_ns = min(epoch.recent)[1]
            for stream in epoch.description.streams:
                t_ns = epoch.newest_ns.get(stream.number, 0)
                if t_ns and t_ns + offset_ns >= t_host_ns + stream.period_ns:
                    found |= {line.name for line in stream.lines}
        return found >= set(lines)

    def readings(self, names: Collection[str], begin_ns: int, end_ns: int) -> dict[str, LineReadings]:
        """The good readings of lines between two host times, and the nearest block on either side of them."""
        parts: dict[str, list[Mapping[str, NDArray[Any]]]] = {name: [] for name in names}
        lines: dict[str, tuple[Line, int]] = {}
        for epoch in self._epochs.values():
            for stream in epoch.description.streams:
                wanted = {i: line.name for i, line in enumerate(stream.lines) if line.name in parts}
                lines |= {name: (stream.lines[i], stream.period_ns) for i, name in wanted.items()}
                scans = self._scans(epoch, stream, begin_ns, end_ns) if wanted else None
                if scans is not None:
                    for i, name in wanted.items():
                        parts[name].append(_line_of(scans, i, epoch.clock()))
        return {name: _joined(*lines[name], parts[name]) for name in names}

    def _scans(self, epoch: _Epoch, stream: Stream, begin_ns: int, end_ns: int) -> Mapping[str, NDArray[Any]] | None:
        """The arrays of a stream's blocks, times [n] and the others [n, lines]; None where there is no block."""
        places = [place for _, place in sorted(epoch.places.get(stream.number, {}).items())]
        if not places:
            return None
        edges = np.array([place[2:] for place in places], np.int64)
        (first, _), (last, _) = epoch.clock().to_host(edges[:, 0]), epoch.clock().to_host(edges[:, 1])
        wanted = np.flatnonzero((last >= begin_ns) & (first <= end_ns))
        low, high = int(np.sum(last < begin_ns)), int(np.sum(first <= end_ns))
        if len(wanted):
            low, high = int(wanted[0]), int(wanted[-1]) + 1
        types = {"t_ns": "<i8", "dt_ns": "<i4", "flags": "<u2"}
        types |= {c.name: np.dtype(c.typecode).newbyteorder("<").str for c in stream.columns}
        found: dict[str, list[NDArray[Any]]] = {name: [] for name in types}
        with self._path.open("rb") as file:
            for at, size, _, _ in places[max(low - 1, 0) : high + 1]:
                file.seek(at)
                block = decode(file.read(size))
                assert isinstance(block, Block)
                for name, view in columns(block, stream).items():
                    values = np.frombuffer(view, types[name])
                    found[name].append(values if name == "t_ns" else values.reshape(block.count, -1))
        return {name: np.concatenate(arrays) for name, arrays in found.items()}


def _advance(epoch: _Epoch, event: Block | Gap) -> None:
    epoch.newest_ns[event.stream] = max(epoch.newest_ns.get(event.stream, event.t_last_ns), event.t_last_ns)


def _line_of(scans: Mapping[str, NDArray[Any]], index: int, clock: HostClock) -> Mapping[str, NDArray[Any]]:
    """One line's times on the host's clock, flags and codes."""
    t_ns, is_known = clock.to_host(scans["t_ns"] + scans["dt_ns"][:, index])
    own = {name: a[is_known, index] for name, a in scans.items() if name not in ("t_ns", "dt_ns")}
    return {"t_ns": t_ns[is_known], **own}


def _joined(line: Line, period_ns: int, parts: Sequence[Mapping[str, NDArray[Any]]]) -> LineReadings:
    conversion = line.conversion
    columns_of = [getattr(conversion, name) for name in ("column", "shunt", "bus") if hasattr(conversion, name)]
    none = np.zeros(0, np.int64)
    joined = {
        name: np.concatenate([part[name] for part in parts]) if parts else none
        for name in ("t_ns", "flags", *columns_of)
    }
    return convert(line, period_ns, joined.pop("t_ns"), joined.pop("flags").astype(np.uint16), joined)
