"""Readings out of the journal of a run that goes on, as watts at moments and joules between them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from powerd_client.clock_map import have_host_time, to_host_ns
from powerd_core.clock import ClockPiece, map_clock
from powerd_core.errors import ClockError, RunFileError, WireError
from powerd_core.model import (
    BAD,
    Block,
    ClockExchange,
    CounterConversion,
    Description,
    Flag,
    Gap,
    Line,
    ShuntConversion,
    Stream,
    columns,
)
from powerd_core.serde import read_description
from powerd_core.wire import FrameReader, Garbage, Message, decode

Times = NDArray[np.int64]
Values = NDArray[np.float64]
Columns = Mapping[str, NDArray[Any]]

_LATE, _FLAGGED = 3.5, 1.8
"""Good readings farther apart than this many usual distances miss some between them; the second where a bad one lies
there. The same limits as in the tables."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LineReadings:
    """Good readings [n] of one line, times on the host's clock; its methods want at least two.

    Power is linear between readings; a line that counts energy has constant power between two of them.
    """

    t_ns: Times
    energy_j: Values
    """[n] since the first of them."""
    begin_w: Values
    """[n-1] power where each interval between two readings begins."""
    end_w: Values
    """[n-1] and where it ends."""
    lost_ns: Values
    """[n-1] how much of it has lost its readings."""
    clipped: Times
    """Times of readings at full scale. They are left out, since the truth is only known to be more."""

    def joules(self, begin_ns: ArrayLike, end_ns: ArrayLike) -> Values:
        """Energy between pairs of moments; what lies before the first and after the last reading counts nothing."""
        return np.asarray(self._energy_until(end_ns) - self._energy_until(begin_ns))

    def _energy_until(self, t_ns: ArrayLike) -> Values:
        t, i, share = self._interval(t_ns)
        mean_w = self.begin_w[i] + 0.5 * share * (self.end_w[i] - self.begin_w[i])
        return np.asarray(self.energy_j[i] + (t - self.t_ns[i]) * 1e-9 * mean_w)

    def watts_at(self, t_ns: Times) -> Values:
        """Power at moments, NaN where nobody knows: outside the readings and where readings were lost."""
        t, i, share = self._interval(t_ns)
        watts = self.begin_w[i] + share * (self.end_w[i] - self.begin_w[i])
        is_known = (t == t_ns) & ((share == 0) | (share == 1) | (self.lost_ns[i] == 0))
        return np.where(is_known, watts, np.nan)

    def missing_s(self, begin_ns: int, end_ns: int) -> float:
        """Seconds between two moments for which there are no readings."""
        begin, end = self.missing_until(np.array([begin_ns, end_ns]))
        return float(end - begin)

    def missing_until(self, t_ns: Times) -> Values:
        """Seconds without readings from the first one up to moments. Beyond both ends there are none."""
        t, i, share = self._interval(t_ns)
        lost_ns = np.concatenate([[0.0], np.cumsum(self.lost_ns)])[i] + share * self.lost_ns[i]
        return np.asarray((lost_ns + (t_ns - t)) * 1e-9)

    def _interval(self, t_ns: ArrayLike) -> tuple[Times, NDArray[np.intp], Values]:
        """Moments, moved to the readings where they lie outside, the reading before each, and how far it lies from that
        to the next one (0 to 1)."""
        t = np.clip(np.asarray(t_ns, np.int64), self.t_ns[0], self.t_ns[-1])
        i = np.clip(np.searchsorted(self.t_ns, t, "right") - 1, 0, len(self.t_ns) - 2)
        return t, i, (t - self.t_ns[i]) / (self.t_ns[i + 1] - self.t_ns[i])


def convert(line: Line, period_ns: int, t_ns: Times, flags: NDArray[np.uint16], codes: Columns) -> LineReadings:
    """Readings from raw codes [n] by the line's conversion; flags decide what is a value."""
    good = (flags & np.uint16(int(BAD))) == 0
    # After a clock step the mapping may fold back: time goes on where it passes what was there.
    latest = np.maximum.accumulate(np.where(good, t_ns, np.iinfo(np.int64).min))
    good[1:] &= t_ns[1:] > latest[:-1]
    t, has_bad = t_ns[good], np.diff(np.flatnonzero(good)) > 1
    is_reset = np.zeros(len(has_bad), bool)
    c, update_ns = line.conversion, line.accuracy.update_ns
    if isinstance(c, CounterConversion):
        unsigned = codes[c.column][good].astype(np.int64).view(np.uint64)
        # Unsigned differences wrap by themselves at 64 bits; narrower counters wrap earlier.
        steps = (unsigned[1:] - unsigned[:-1]) & np.uint64((1 << c.bits) - 1)
        # A counter of 64 bits never wraps: one that falls was set back, and what it counted then is unknown.
        is_reset = steps >> np.uint64(63) != 0
        counts = _cumulated(np.where(is_reset, 0, steps).astype(np.float64), len(t))
        if update_ns > 1.2 * (spacing_ns := _spacing_ns(t, period_ns)) and len(t) > 2:
            # Read more often than it moves: only where it moved is its value that of the moment.
            keep = np.concatenate([[True], (np.diff(counts) > 0) | is_reset])
            keep |= t - np.maximum.accumulate(np.where(keep, t, t[0])) > update_ns + spacing_ns
            keep[-1] = True
            kept = np.flatnonzero(keep)
            is_reset, has_bad = (np.logical_or.reduceat(mask, kept[:-1]) for mask in (is_reset, has_bad))
            t, counts = t[keep], counts[keep]
        energy_j: Values = counts * c.j_per_code + c.background_w * ((t - t[:1]) * 1e-9)
        begin_w = end_w = np.diff(energy_j) / (np.diff(t) * 1e-9)
    else:
        watts = _power_w(line, {name: column[good] for name, column in codes.items()})
        begin_w, end_w = watts[:-1], watts[1:]
        energy_j = _cumulated(np.diff(t) * 0.5e-9 * (begin_w + end_w), len(t))
    dt, usual_ns = np.diff(t).astype(np.float64), max(_spacing_ns(t, period_ns), float(update_ns))
    lost_ns = np.where(dt > np.where(has_bad, _FLAGGED, _LATE) * usual_ns, dt - usual_ns, 0.0)
    clipped = t_ns[(flags & np.uint16(int(Flag.SATURATED))) != 0]
    return LineReadings(t, energy_j, begin_w, end_w, np.where(is_reset, dt, lost_ns), clipped)


def _power_w(line: Line, codes: Columns) -> Values:
    c: Any = line.conversion
    if not isinstance(c, ShuntConversion):
        return np.asarray(codes[c.column] * c.w_per_code, np.float64)
    bus_v = (codes[c.bus].astype(np.int64) >> c.bus_shift) * c.bus_lsb_v
    current_a = (codes[c.shunt] * (c.shunt_lsb_v / c.shunt_ohm) + c.offset_a) * c.gain
    return np.asarray(bus_v * current_a, np.float64)


def _cumulated(steps: Values, n: int) -> Values:
    """[n] sums of [n-1] steps from 0; nothing for n = 0."""
    return np.concatenate([[0.0], np.cumsum(steps)])[:n]


def _spacing_ns(t: Times, period_ns: int) -> float:
    return float(np.median(np.diff(t))) if len(t) > 2 else float(max(period_ns, 1))


@dataclass(slots=True)
class _Epoch:
    """What one life of one powerd has sent so far."""

    description: Description
    exchanges: list[ClockExchange] = field(default_factory=list)
    blocks: dict[int, dict[int, tuple[int, int, int, int]]] = field(default_factory=dict)
    """By stream and sequence number of a block: offset and bytes in the journal, first and last board time."""
    newest_ns: dict[int, int] = field(default_factory=dict)
    """By stream: board time up to which readings, or the knowledge that they are lost, have arrived."""


class JournalReader:
    """Follows the ``journal.bin`` of one journal. Its calls may not overlap."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._path = journal / "journal.bin"
        self._frames = FrameReader()
        self._bytes_read = self._offset = 0
        self._epochs: dict[int, _Epoch] = {}

    @property
    def descriptions(self) -> tuple[Description, ...]:
        """What every powerd of the run said it measures, in the order in which they were first heard."""
        return tuple(epoch.description for epoch in self._epochs.values())

    def update(self) -> None:
        """Take in what has been appended. Raises `RunFileError` when the journal cannot be read."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._bytes_read)
                while data := file.read(_CHUNK_BYTES):
                    self._bytes_read += len(data)
                    for event, frame in self._frames.feed(data):
                        size = event.count if isinstance(event, Garbage) else len(frame)
                        self._take(event, size)
                        self._offset += size
        except OSError as error:
            raise RunFileError(f"cannot read {self._path}: {error.strerror}") from error

    def _take(self, event: object, size: int) -> None:
        """An event of so many bytes at the offset that has been reached."""
        if isinstance(event, Message) and event.subject == "description":
            with contextlib.suppress(WireError):  # the run file will tell
                description = read_description(event.body)
                self._epochs.setdefault(description.epoch, _Epoch(description))
        elif isinstance(event, Block | Gap | ClockExchange) and (epoch := self._epochs.get(event.epoch)):
            if isinstance(event, ClockExchange):
                epoch.exchanges.append(event)
                return
            if isinstance(event, Block):
                place = (self._offset, size, event.t_first_ns, event.t_last_ns)
                epoch.blocks.setdefault(event.stream, {}).setdefault(event.sequence, place)
            newest_ns = epoch.newest_ns.get(event.stream, event.t_last_ns)
            epoch.newest_ns[event.stream] = max(newest_ns, event.t_last_ns)

    def reaches(self, lines: Collection[str], t_host_ns: int) -> bool:
        """Whether every one of the lines has been read after that moment, by the quickest of the latest exchanges.

        A scan takes up to a period, so that its last reading alone does not say so of all its lines.
        """
        reached: set[str] = set()
        for epoch in self._epochs.values():
            if not epoch.exchanges:
                continue
            e = min(epoch.exchanges[-10:], key=lambda exchange: exchange.delay_ns)
            ahead_ns = (e.t1_host_ns + e.t4_host_ns - e.t2_board_ns - e.t3_board_ns) // 2
            for stream in epoch.description.streams:
                newest_ns = epoch.newest_ns.get(stream.number)
                if newest_ns is not None and newest_ns + ahead_ns >= t_host_ns + stream.period_ns:
                    reached |= {line.name for line in stream.lines}
        return reached >= set(lines)

    def readings(self, names: Collection[str], sets: Sequence[tuple[int, int]]) -> list[dict[str, LineReadings]]:
        """For each pair of host times the good readings of lines between them, and the nearest block on either side."""
        lines: dict[str, tuple[Line, int]] = {}
        parts: list[dict[str, list[Columns]]] = [{name: [] for name in names} for _ in sets]
        for epoch in self._epochs.values():
            pieces: tuple[ClockPiece, ...] = ()
            with contextlib.suppress(ClockError):
                pieces = map_clock(epoch.exchanges)
            for stream in epoch.description.streams:
                wanted = {i: line.name for i, line in enumerate(stream.lines) if line.name in names}
                lines |= {name: (stream.lines[i], stream.period_ns) for i, name in wanted.items()}
                if not (wanted and pieces and epoch.blocks.get(stream.number)):
                    continue
                for edges, part in zip(sets, parts, strict=True):
                    scans = self._scans(epoch, pieces, stream, edges)
                    for i, name in wanted.items():
                        t_board = scans["t_ns"] + scans["dt_ns"][:, i]
                        known = have_host_time(t_board, pieces)  # not around a step
                        codes = {c: a[known, i] for c, a in scans.items() if c not in ("t_ns", "dt_ns")}
                        part[name].append({"t_ns": to_host_ns(t_board, pieces)[known], **codes})
        return [{name: _joined(*lines[name], part[name]) for name in names} for part in parts]

    def _scans(
        self, epoch: _Epoch, pieces: tuple[ClockPiece, ...], stream: Stream, edges: tuple[int, int]
    ) -> dict[str, NDArray[Any]]:
        """The arrays of a stream's blocks, times [n] and the others [n, lines]."""
        places = [place for _, place in sorted(epoch.blocks[stream.number].items())]
        first, last = (to_host_ns(np.array([p[side] for p in places], np.int64), pieces) for side in (2, 3))
        low, high = int(np.sum(last < edges[0])), int(np.sum(first <= edges[1]))
        types = {"t_ns": "<i8", "dt_ns": "<i4", "flags": "<u2"}
        types |= {c.name: np.dtype(c.typecode).newbyteorder("<").str for c in stream.columns}
        arrays: dict[str, list[NDArray[Any]]] = {name: [] for name in types}
        with self._path.open("rb") as file:
            for offset, size, _, _ in places[max(low - 1, 0) : high + 1]:
                file.seek(offset)
                block = decode(file.read(size))
                assert isinstance(block, Block)
                for name, view in columns(block, stream).items():
                    values = np.frombuffer(view, types[name])
                    arrays[name].append(values if name == "t_ns" else values.reshape(block.count, -1))
        return {name: np.concatenate(blocks) for name, blocks in arrays.items()}


def _joined(line: Line, period_ns: int, parts: Sequence[Columns]) -> LineReadings:
    """Readings of one line out of those of several powerds, or of several lives of one."""
    c: Any = line.conversion
    named = (c.shunt, c.bus) if isinstance(c, ShuntConversion) else (c.column,)
    none = np.zeros(0, np.int64)
    t_ns, flags, *codes = (
        np.concatenate([part[name] for part in parts]) if parts else none for name in ("t_ns", "flags", *named)
    )
    return convert(line, period_ns, t_ns, flags.astype(np.uint16), dict(zip(named, codes, strict=True)))
